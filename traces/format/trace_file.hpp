// Traces in files. Decides how the tensors and labels of a trace are spelled in one safetensors
// file and how a large one is cut into shards (FORMAT.md; SPEC TRC-1.1, TRC-1.7). What makes the
// values a trace is decided in trace.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/core/expected.hpp"
#include "traces/format/trace.hpp"

namespace assay::traces {

inline constexpr std::string_view kTraceSchema = "assay.trace";
inline constexpr std::uint32_t kTraceVersion = 1;
inline constexpr std::string_view kTraceIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kTraceShardKey = "shard";  // metadata of a shard: "2/7"

// Reads a whole trace into memory, from one file. Errors: those of TensorFile, a schema or version
// other than ours, missing or malformed metadata, missing, unknown or misshapen tensors, and what
// Trace::make refuses; each begins with the file. Paths of any format: traces/readers.
Expected<Trace> open_trace(const std::string& path);

// The same from an index and its shards. Errors: those above, and shards that do not belong
// together.
Expected<Trace> open_trace_shards(const std::string& index_path);

// Replaces `path` by one file that open_trace() reads back as the same trace (SPEC TRC-1.8).
Status write_trace(const Trace& trace, const std::string& path);

// Cuts the trace after every `tokens_per_shard` tokens. For a `path` of "dir/name.safetensors", the
// shards are dir/name-00001-of-0000N.safetensors and the index, written last, is
// dir/name.safetensors.index.json; its path is returned. Errors: tokens_per_shard < 1, more than
// 99,999 shards, a path that does not end in ".safetensors", and those of writing.
Expected<std::string> write_trace_shards(const Trace& trace, const std::string& path,
                                         std::int64_t tokens_per_shard);

}  // namespace assay::traces
