// An index beside its shards, as Hugging Face spells them: "weight_map" says which file holds which
// tensor, so tensors of shard 2 are named "<name>.00002" (SPEC TRC-1.7).
#include "traces/format/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "model/core/mapped_file.hpp"
#include "model/core/text.hpp"
#include "traces/format/trace_tensors.hpp"

namespace assay::traces {
namespace {

constexpr std::int64_t kShardsMax = 99'999;  // five digits in names

struct Index {
  std::map<std::string, std::string> metadata;    // numbers as their text
  std::map<std::string, std::string> weight_map;  // tensor -> file beside the index
};

Expected<Trace> open_shards(const std::string& index_path);
Expected<Index> read_index(const std::string& path);
Expected<std::string> shard_file(const Index& index, std::int64_t shard, std::int64_t shards);
std::string shard_suffix(std::int64_t shard) { return fmt::format(".{:05}", shard); }

}  // namespace

Expected<Trace> open_trace_shards(const std::string& index_path) {
  Expected<Trace> trace = open_shards(index_path);
  if (!trace) return in_file(trace.error(), index_path);
  return trace;
}

Expected<std::string> write_trace_shards(const Trace& trace, const std::string& path,
                                         std::int64_t tokens_per_shard) {
  constexpr std::string_view kEnd = ".safetensors";
  const std::size_t stem = path.size() - std::min(path.size(), kEnd.size());
  if (path.substr(stem) != kEnd)
    return bad_input(fmt::format("{} does not end in {}", in_quotes(path), in_quotes(kEnd)));
  if (tokens_per_shard < 1) {
    return bad_input(
        fmt::format("tokens per shard is {}; allowed are 1 and more", tokens_per_shard));
  }
  const std::int64_t tokens = trace.num_tokens();
  const std::int64_t shards = (tokens - 1) / tokens_per_shard + 1;
  if (shards > kShardsMax) {
    return bad_input(fmt::format("{} tokens in shards of {} are {} shards; allowed are 1 to {}",
                                 tokens, tokens_per_shard, shards, kShardsMax));
  }
  // Without an index there is no trace: shards of an older trace can never be read with new ones.
  const std::string index_path = path.substr(0, stem) + std::string(kTraceIndexSuffix);
  if (utf8_prefix_bytes(index_path) != index_path.size())
    return bad_input(fmt::format("{} is not UTF-8, which an index cannot name", in_quotes(path)));
  std::error_code removed;
  std::filesystem::remove(index_path, removed);
  nlohmann::json index;
  std::uint64_t bytes = 0;
  for (std::int64_t shard = 1; shard <= shards; ++shard) {
    const std::string file =
        fmt::format("{}-{:05}-of-{:05}{}", path.substr(0, stem), shard, shards, kEnd);
    const std::string base = file.substr(file.find_last_of('/') + 1);
    const std::int64_t begin = (shard - 1) * tokens_per_shard;
    TensorFileWriter writer;
    writer.set_schema(kTraceSchema, kTraceVersion);
    writer.set_metadata(std::string(kTraceShardKey), fmt::format("{}/{}", shard, shards));
    add_tensors(trace, begin, std::min(tokens, begin + tokens_per_shard), shard_suffix(shard),
                writer);
    ASSAY_CHECK(writer.write(file));
    ASSAY_TRY(const TensorFile written, TensorFile::open(file));
    for (const TensorView& tensor : written.tensors()) {
      index["weight_map"][std::string(tensor.name)] = base;
      bytes += tensor.bytes.size();
    }
  }
  for (const auto& [key, value] : info_metadata(trace.info())) index["metadata"][key] = value;
  index["metadata"]["schema"] = kTraceSchema;
  index["metadata"]["version"] = std::to_string(kTraceVersion);
  index["metadata"]["total_size"] = bytes;
  const std::string text = index.dump(2) + "\n";
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  ASSAY_CHECK(write_file(index_path, {&part, 1}));
  return index_path;
}

namespace {

Expected<Trace> open_shards(const std::string& index_path) {
  ASSAY_TRY(const Index index, read_index(index_path));
  const auto required = [&](std::string_view key) -> Expected<std::string> {
    const auto found = index.metadata.find(std::string(key));
    if (found != index.metadata.end()) return found->second;
    return bad_input(fmt::format("no metadata key {}", in_quotes(key)));
  };
  ASSAY_TRY(const std::string schema, required("schema"));
  ASSAY_TRY(const std::string version, required("version"));
  if (schema != kTraceSchema || version != std::to_string(kTraceVersion)) {
    return bad_input(fmt::format("is of schema {} version {}; allowed is {} version {}",
                                 in_quotes(schema), in_quotes(version), in_quotes(kTraceSchema),
                                 kTraceVersion));
  }
  std::optional<std::string> padding;
  if (index.metadata.count("padding")) padding = index.metadata.at("padding");
  ASSAY_TRY(TraceInfo info, parse_info(index_path, required, padding));

  std::int64_t shards = 0;
  while (index.weight_map.count("topk_ids" + shard_suffix(shards + 1))) ++shards;
  const std::string folder = index_path.substr(0, index_path.find_last_of('/') + 1);
  TraceTensors tensors;
  std::size_t mapped = 0;
  for (std::int64_t shard = 1; shard <= shards; ++shard) {
    ASSAY_TRY(const std::string name, shard_file(index, shard, shards));
    ASSAY_TRY(const TensorFile file, TensorFile::open(folder + name));
    ASSAY_CHECK(file.schema_version(kTraceSchema, kTraceVersion));
    ASSAY_TRY(const std::string number, file.require_metadata(kTraceShardKey));
    if (number != fmt::format("{}/{}", shard, shards)) {
      return bad_input(fmt::format("{} is shard {}; the index has it as {}/{}", in_quotes(name),
                                   in_quotes(number), shard, shards));
    }
    for (const auto& [key, value] : info_metadata(info)) {
      ASSAY_TRY(const std::string got, file.require_metadata(key));
      if (got == value) continue;
      return bad_input(fmt::format("{} has metadata {} {}; the index has {}", in_quotes(name), key,
                                   in_quotes(got), in_quotes(value)));
    }
    auto appended = append_tensors(file, shard_suffix(shard), info, tensors);
    if (!appended) return appended.error().within(in_quotes(name));
    for (const TraceTensorName& tensor : kTraceTensors)
      mapped += file.has(std::string(tensor.name) + shard_suffix(shard));
  }
  const auto own = static_cast<std::size_t>(
      std::count_if(index.weight_map.begin(), index.weight_map.end(),
                    [](const auto& entry) { return entry.first.rfind(kForeignPrefix, 0) != 0; }));
  if (shards == 0 || own != mapped) {
    return bad_input(
        fmt::format("names {} tensors; {} shards without a gap, from 00001 on, hold {} "
                    "that a trace has",
                    own, shards, mapped));
  }
  return Trace::make(std::move(info), std::move(tensors));
}

// The one file that holds all tensors of a shard.
Expected<std::string> shard_file(const Index& index, std::int64_t shard, std::int64_t shards) {
  std::optional<std::string> file;
  for (const TraceTensorName& tensor : kTraceTensors) {
    const std::string name = std::string(tensor.name) + shard_suffix(shard);
    const auto entry = index.weight_map.find(name);
    if (entry == index.weight_map.end()) {
      if (!tensor.required) continue;
      return bad_input(
          fmt::format("weight_map has no {}, but it has {} shards", in_quotes(name), shards));
    }
    if (file && *file != entry->second) {
      return bad_input(
          fmt::format("weight_map puts {} into {} and other tensors of the shard into "
                      "{}; allowed is one file",
                      in_quotes(name), in_quotes(entry->second), in_quotes(*file)));
    }
    file = entry->second;
  }
  // A name with a slash could leave the folder of the index.
  if (file->empty() || file->find('/') != std::string::npos) {
    return bad_input(
        fmt::format("weight_map names the file {}; allowed are names in the folder of "
                    "the index",
                    in_quotes(*file)));
  }
  return *file;
}

// One of the two maps; values are strings, or numbers where `numbers` allows them.
Status read_map(const nlohmann::json& object, const char* name, bool numbers,
                std::map<std::string, std::string>& to) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_object())
    return bad_input(fmt::format("has no object \"{}\"", name));
  for (const auto& [key, value] : found->items()) {
    if (value.is_string()) {
      to[key] = value.get<std::string>();
    } else if (numbers && value.is_number_unsigned()) {
      to[key] = value.dump();
    } else {
      return bad_input(fmt::format("{} of {} is neither text{}", in_quotes(key), name,
                                   numbers ? " nor a count" : ""));
    }
  }
  return Done{};
}

Expected<Index> read_index(const std::string& path) {
  ASSAY_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  const char* text = reinterpret_cast<const char*>(bytes.data());
  // A DOM keeps the last of two equal keys, where another reader may keep the first.
  std::vector<std::set<std::string>> keys;
  std::optional<std::string> twice;
  const auto event = [&](int, nlohmann::json::parse_event_t what, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (what == Event::object_start) keys.emplace_back();
    if (what == Event::object_end) keys.pop_back();
    if (what == Event::key && !keys.back().insert(parsed.get<std::string>()).second && !twice)
      twice = parsed.get<std::string>();
    return true;
  };
  const nlohmann::json json = nlohmann::json::parse(text, text + bytes.size(), event, false);
  if (json.is_discarded() || !json.is_object()) return bad_input("is not a JSON object");
  if (twice) return bad_input(fmt::format("has the key {} twice in one object", in_quotes(*twice)));
  Index index;
  ASSAY_CHECK(read_map(json, "metadata", true, index.metadata));
  ASSAY_CHECK(read_map(json, "weight_map", false, index.weight_map));
  return index;
}

}  // namespace
}  // namespace assay::traces
