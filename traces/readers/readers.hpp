// Start here: any file with routing in it, as a Trace. Decides which formats are known and how a
// file's own content tells its format (SPEC TRC-2.1); each format is one file of its own:
//   gptoss.hpp       what the two GPT-OSS formats share: the model's sizes, gathering rows
//   gptoss_csv.cpp   one row per (conversation, step, layer)
//   gptoss_json.cpp  one generated text, nested by token and layer
// Assay's own format is traces/format. A further format is one file, one enumerator here and one
// case in readers.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/core/expected.hpp"
#include "traces/format/trace.hpp"

namespace assay::traces {

enum class TraceFormat : std::uint8_t {
  kSafetensors,  // one file of ours
  kIndex,        // ours, in shards
  kGptOssCsv,
  kGptOssJson,
};
std::string_view trace_format_name(TraceFormat format);  // as tools print it: "gptoss-csv"

// The format of a file by its content; by the end of its name only where the content fits none, so
// that a damaged file is reported as what it was meant to be. Errors: cannot be read, empty, or
// neither content nor name say anything.
Expected<TraceFormat> detect_format(const std::string& path);

// Reads a file of any format. Errors: those of detect_format() and of the format's reader, each a
// sentence with the file, the line where the format has lines, and what is allowed.
Expected<Trace> read_trace(const std::string& path);

// The readers behind it (SPEC TRC-2.2 to TRC-2.5). `text` is the whole file; `name` goes into
// `source`. Errors do not repeat the name.
Expected<Trace> read_gptoss_csv(std::string_view text, const std::string& name);
Expected<Trace> read_gptoss_json(std::string_view text, const std::string& name);

}  // namespace assay::traces
