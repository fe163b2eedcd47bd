// The spelling that one file and many shards have in common: names of tensors and metadata keys,
// for reading and writing (SPEC TRC-1.1 to TRC-1.3). Used by trace_file.cpp and trace_shards.cpp
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "model/core/expected.hpp"
#include "model/core/safetensors.hpp"
#include "traces/format/trace.hpp"

namespace assay::traces {

struct TraceTensorName {
  std::string_view name;
  bool required = true;
};
inline constexpr TraceTensorName kTraceTensors[] = {
    {"topk_ids"}, {"topk_weights", false}, {"request"}, {"step"}, {"position"}};
// Tensors of this prefix are somebody's own; they are ignored and not kept.
inline constexpr std::string_view kForeignPrefix = "x.";

// Looks a metadata key up; errors name the file.
using MetadataLookup = std::function<Expected<std::string>(std::string_view key)>;

// Everything but top_k, which is the last axis of topk_ids. `padding` may be absent.
Expected<TraceInfo> parse_info(const std::string& path, const MetadataLookup& required,
                               const std::optional<std::string>& padding);

// Appends the tensors "<name><suffix>" of `file` to `tensors`; sets info.top_k at the first call
// and demands it later. Errors: a required tensor missing, dtypes, shapes.
Status append_tensors(const TensorFile& file, const std::string& suffix, TraceInfo& info,
                      TraceTensors& tensors);

// Adds tokens [begin, end) as tensors "<name><suffix>" and the metadata of `trace`. The trace must
// live until the writer has written.
void add_tensors(const Trace& trace, std::int64_t begin, std::int64_t end,
                 const std::string& suffix, TensorFileWriter& writer);

// Puts the file in front of a sentence that does not begin with it (those of core do).
inline Error in_file(const Error& error, const std::string& path) {
  return error.sentence.rfind(path, 0) == 0 ? error : error.within(path);
}

// Metadata of `trace` without schema and version, by key.
std::map<std::string, std::string> info_metadata(const TraceInfo& info);

}  // namespace assay::traces
