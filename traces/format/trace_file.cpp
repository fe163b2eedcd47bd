// One file: reading, writing, and the names and metadata that shards share. See trace_file.hpp.
#include "traces/format/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "model/core/text.hpp"
#include "traces/format/trace_tensors.hpp"

namespace assay::traces {
namespace {

Status check_names(const TensorFile& file) {
  for (const TensorView& tensor : file.tensors()) {
    const bool known =
        std::any_of(std::begin(kTraceTensors), std::end(kTraceTensors),
                    [&](const TraceTensorName& allowed) { return allowed.name == tensor.name; });
    if (known || tensor.name.substr(0, kForeignPrefix.size()) == kForeignPrefix) continue;
    std::vector<std::string_view> names;
    for (const TraceTensorName& allowed : kTraceTensors) names.push_back(allowed.name);
    return bad_input(
        fmt::format("tensor {} is unknown; allowed are {}, and names that begin with {}",
                    in_quotes(tensor.name), joined(names), in_quotes(kForeignPrefix)));
  }
  return Done{};
}

Expected<Trace> open_one_file(const TensorFile& file) {
  // A shard says so in its metadata; its tensors have other names (SPEC TRC-1.7).
  if (const auto shard = file.metadata(kTraceShardKey)) {
    return bad_input(
        fmt::format("is shard {} of a trace; open the index that names it, a file "
                    "ending in {}",
                    *shard, in_quotes(kTraceIndexSuffix)));
  }
  const auto required = [&](std::string_view key) { return file.require_metadata(key); };
  ASSAY_TRY(TraceInfo info, parse_info(file.path(), required, file.metadata("padding")));
  ASSAY_CHECK(check_names(file));
  TraceTensors tensors;
  ASSAY_CHECK(append_tensors(file, "", info, tensors));
  return Trace::make(std::move(info), std::move(tensors));
}

}  // namespace

Expected<Trace> open_trace(const std::string& path) {
  ASSAY_TRY(const TensorFile file, TensorFile::open(path));
  ASSAY_CHECK(file.schema_version(kTraceSchema, kTraceVersion));
  Expected<Trace> trace = open_one_file(file);
  if (!trace) return in_file(trace.error(), path);
  return trace;
}

Status write_trace(const Trace& trace, const std::string& path) {
  TensorFileWriter writer;
  writer.set_schema(kTraceSchema, kTraceVersion);
  add_tensors(trace, 0, trace.num_tokens(), "", writer);
  return writer.write(path);
}

Expected<TraceInfo> parse_info(const std::string& path, const MetadataLookup& required,
                               const std::optional<std::string>& padding) {
  TraceInfo info;
  ASSAY_TRY(info.model, required("model"));
  ASSAY_TRY(info.licence, required("licence"));
  ASSAY_TRY(info.source, required("source"));
  struct Number {
    const char* key;
    std::int32_t max;
    std::int32_t* value;
  };
  for (const auto& [key, max, value] : {Number{"num_experts", kTraceExpertsMax, &info.num_experts},
                                        Number{"hidden_size", kTraceHiddenMax, &info.hidden_size},
                                        Number{"layers", kTraceLayersMax, &info.num_layers}}) {
    ASSAY_TRY(const std::string text, required(key));
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (code != std::errc{} || end != text.data() + text.size() || *value < 1 || *value > max) {
      return bad_input(fmt::format("{}: metadata {} is {}; allowed are 1 to {}", path, key,
                                   in_quotes(text), max));
    }
  }
  if (padding && *padding != "-1") {
    return bad_input(fmt::format("{}: metadata padding is {}; allowed is \"-1\", or no such key",
                                 path, in_quotes(*padding)));
  }
  info.padded = padding.has_value();
  return info;
}

namespace {

template <class T>
void append(std::vector<T>& to, std::span<const std::byte> bytes) {
  const std::size_t old = to.size();
  to.resize(old + bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(to.data() + old, bytes.data(), bytes.size());
}

// BF16 or F32, the same in every shard.
Status append_weights(const TensorView& view, bool first, TraceTensors& tensors) {
  if (first && view.dtype == Dtype::kBf16) tensors.topk_weights = std::vector<Bf16>();
  if (first && view.dtype == Dtype::kF32) tensors.topk_weights = std::vector<F32>();
  auto* bf16 = std::get_if<std::vector<Bf16>>(&tensors.topk_weights);
  auto* f32 = std::get_if<std::vector<F32>>(&tensors.topk_weights);
  if (bf16 && view.dtype == Dtype::kBf16) {
    append(*bf16, view.bytes);
  } else if (f32 && view.dtype == Dtype::kF32) {
    append(*f32, view.bytes);
  } else {
    return bad_input(fmt::format("tensor {} has dtype {}, the shards before have {}",
                                 in_quotes(view.name), dtype_name(view.dtype),
                                 bf16  ? "BF16"
                                 : f32 ? "F32"
                                       : "no weights"));
  }
  return Done{};
}

}  // namespace

Status append_tensors(const TensorFile& file, const std::string& suffix, TraceInfo& info,
                      TraceTensors& tensors) {
  const bool first = tensors.topk_ids.empty();
  ASSAY_TRY(const TensorView ids, file.tensor("topk_ids" + suffix));
  const auto layers = static_cast<std::uint64_t>(info.num_layers);
  ASSAY_CHECK(ids.expect({Dtype::kI16}, {{"tokens"}, {"layers", layers}, {"top_k"}}));
  const std::uint64_t tokens = ids.shape[0], top_k = ids.shape[2];
  const auto allowed_k =
      first ? static_cast<std::uint64_t>(info.num_experts) : static_cast<std::uint64_t>(info.top_k);
  if (top_k < (first ? 1 : allowed_k) || top_k > allowed_k) {
    return bad_input(
        fmt::format("tensor {} has shape {}; allowed for its last axis, top_k, are {} "
                    "to {}",
                    in_quotes(ids.name), shape_text(ids.shape), first ? 1 : allowed_k, allowed_k));
  }
  info.top_k = static_cast<std::int32_t>(top_k);
  append(tensors.topk_ids, ids.bytes);

  const std::string weights_name = "topk_weights" + suffix;
  if (file.has(weights_name)) {
    ASSAY_TRY(const TensorView weights, file.tensor(weights_name));
    ASSAY_CHECK(weights.expect({Dtype::kBf16, Dtype::kF32},
                               {{"tokens", tokens}, {"layers", layers}, {"top_k", top_k}}));
    ASSAY_CHECK(append_weights(weights, first, tensors));
  } else if (tensors.topk_weights.index() != 0) {
    return file.tensor(weights_name).error();
  }
  struct Column {
    const char* name;
    std::vector<std::int32_t>* values;
  };
  for (const auto& [name, values] :
       {Column{"request", &tensors.request}, Column{"step", &tensors.step},
        Column{"position", &tensors.position}}) {
    ASSAY_TRY(const TensorView view, file.tensor(name + suffix));
    ASSAY_CHECK(view.expect({Dtype::kI32}, {{"tokens", tokens}}));
    append(*values, view.bytes);
  }
  return Done{};
}

void add_tensors(const Trace& trace, std::int64_t begin, std::int64_t end,
                 const std::string& suffix, TensorFileWriter& writer) {
  const TraceTensors& all = trace.tensors();
  const auto first = static_cast<std::size_t>(begin),
             tokens = static_cast<std::size_t>(end - begin);
  const auto layers = static_cast<std::size_t>(trace.num_layers());
  const auto top_k = static_cast<std::size_t>(trace.top_k()), row = layers * top_k;
  const auto part = [&](const auto& values, std::size_t width) {
    return std::as_bytes(std::span(values).subspan(first * width, tokens * width));
  };
  for (const auto& [key, value] : info_metadata(trace.info())) writer.set_metadata(key, value);
  const Shape shape{tokens, layers, top_k};
  writer.add("topk_ids" + suffix, Dtype::kI16, shape, part(all.topk_ids, row));
  if (const auto* bf16 = std::get_if<std::vector<Bf16>>(&all.topk_weights))
    writer.add("topk_weights" + suffix, Dtype::kBf16, shape, part(*bf16, row));
  if (const auto* f32 = std::get_if<std::vector<F32>>(&all.topk_weights))
    writer.add("topk_weights" + suffix, Dtype::kF32, shape, part(*f32, row));
  writer.add("request" + suffix, Dtype::kI32, {tokens}, part(all.request, 1));
  writer.add("step" + suffix, Dtype::kI32, {tokens}, part(all.step, 1));
  writer.add("position" + suffix, Dtype::kI32, {tokens}, part(all.position, 1));
}

std::map<std::string, std::string> info_metadata(const TraceInfo& info) {
  std::map<std::string, std::string> metadata = {{"model", info.model},
                                                 {"licence", info.licence},
                                                 {"source", info.source},
                                                 {"num_experts", std::to_string(info.num_experts)},
                                                 {"hidden_size", std::to_string(info.hidden_size)},
                                                 {"layers", std::to_string(info.num_layers)}};
  if (info.padded) metadata["padding"] = "-1";
  return metadata;
}

}  // namespace assay::traces
