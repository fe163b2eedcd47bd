// Tensor files: opening, looking up, writing. The header's checks are in safetensors_header.cpp.
#include "model/core/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <tuple>

#include "model/core/safetensors_header.hpp"
#include "model/core/text.hpp"

namespace assay {
namespace {

template <class Range>
std::string dtype_list(const Range& dtypes) {
  std::string text;
  for (const Dtype dtype : dtypes) {
    if (!text.empty()) text += " or ";
    text += dtype_name(dtype);
  }
  return text;
}

std::string axes_text(std::initializer_list<Axis> axes) {
  std::string text;
  for (const Axis& axis : axes) {
    if (!text.empty()) text += ", ";
    text += axis.size ? fmt::format("{}={}", axis.name, *axis.size) : std::string(axis.name);
  }
  return "[" + text + "]";
}

std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

Status check_utf8(std::string_view what, const std::string& text) {
  if (utf8_prefix_bytes(text) == text.size()) return Done{};
  return bad_input(fmt::format("{} {} is not UTF-8", what, in_quotes(text)));
}

}  // namespace

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", joined(shape, ", ")); }

Error TensorView::wrong_dtype(std::initializer_list<Dtype> expected) const {
  return bad_input(fmt::format("tensor {} has dtype {}; allowed is {}", in_quotes(name),
                               dtype_name(dtype), dtype_list(expected)));
}

Status TensorView::expect(std::initializer_list<Dtype> dtypes,
                          std::initializer_list<Axis> axes) const {
  if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) return wrong_dtype(dtypes);
  const bool fits = std::equal(
      axes.begin(), axes.end(), shape.begin(), shape.end(),
      [](const Axis& axis, std::uint64_t extent) { return !axis.size || *axis.size == extent; });
  if (fits) return Done{};
  return bad_input(fmt::format("tensor {} has shape {}; allowed is {}", in_quotes(name),
                               shape_text(shape), axes_text(axes)));
}

Expected<TensorFile> TensorFile::open(const std::string& path) {
  TensorFile file;
  file.path_ = path;
  ASSAY_TRY(file.file_, MappedFile::open(path));
  auto parsed = parse_tensor_file(file.file_.bytes());
  if (!parsed) return parsed.error().within(path);
  TensorHeader header = *std::move(parsed);
  const std::span<const std::byte> data = file.file_.bytes().subspan(header.data_at);
  for (TensorEntry& entry : header.tensors) {
    const auto at = file.by_name_.emplace(std::move(entry.name), file.tensors_.size()).first;
    // The name's characters belong to the map's node, which stays where it is when the file moves.
    file.tensors_.push_back({at->first, entry.dtype, std::move(entry.shape),
                             data.subspan(static_cast<std::size_t>(entry.begin),
                                          static_cast<std::size_t>(entry.end - entry.begin))});
  }
  file.metadata_ = std::move(header.metadata);
  return file;
}

Expected<TensorView> TensorFile::tensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return tensors_[found->second];
  std::string names;
  constexpr std::size_t kShown = 20;  // a sentence, not a listing
  for (std::size_t i = 0; i < std::min(tensors_.size(), kShown); ++i) {
    names += (i == 0 ? "" : ", ") + in_quotes(tensors_[i].name);
  }
  if (tensors_.size() > kShown) names += fmt::format(" and {} more", tensors_.size() - kShown);
  return bad_input(fmt::format("{}: no tensor {}; the file has {}", path_, in_quotes(name),
                               names.empty() ? "none" : names));
}

std::optional<std::string> TensorFile::metadata(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return std::nullopt;
  return found->second;
}

Expected<std::string> TensorFile::require_metadata(std::string_view key) const {
  if (auto value = metadata(key)) return *std::move(value);
  std::vector<std::string> keys;
  for (const auto& entry : metadata_) keys.push_back(in_quotes(entry.first));
  return bad_input(fmt::format("{}: no metadata key {}; the file has {}", path_, in_quotes(key),
                               keys.empty() ? "none" : joined(keys)));
}

Expected<std::uint32_t> TensorFile::schema_version(std::string_view schema,
                                                   std::uint32_t version_max) const {
  ASSAY_TRY(const std::string got_schema, require_metadata("schema"));
  if (got_schema != schema) {
    return bad_input(fmt::format("{}: schema is {}; allowed is {}", path_, in_quotes(got_schema),
                                 in_quotes(schema)));
  }
  ASSAY_TRY(const std::string text, require_metadata("version"));
  std::uint32_t version = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), version);
  const bool is_number = code == std::errc{} && end == text.data() + text.size();
  if (!is_number || version < 1 || version > version_max) {
    return bad_input(fmt::format("{}: version {} of schema {} is unknown; allowed are 1 to {}",
                                 path_, in_quotes(text), in_quotes(schema), version_max));
  }
  return version;
}

void TensorFileWriter::add(std::string name, Dtype dtype, Shape shape,
                           std::span<const std::byte> bytes) {
  entries_.push_back({std::move(name), dtype, std::move(shape), bytes});
}

void TensorFileWriter::set_metadata(std::string key, std::string value) {
  metadata_[std::move(key)] = std::move(value);
}

void TensorFileWriter::set_schema(std::string_view schema, std::uint32_t version) {
  set_metadata("schema", std::string(schema));
  set_metadata("version", std::to_string(version));
}

Status TensorFileWriter::write(const std::string& path) const {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries_) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    const auto width = [](const Entry* entry) { return dtype_bits(entry->dtype); };
    return std::make_tuple(width(b), std::string_view(a->name)) <
           std::make_tuple(width(a), std::string_view(b->name));
  });

  std::string json = "{";
  if (!metadata_.empty()) {
    std::vector<std::string> items;
    for (const auto& [key, value] : metadata_) {
      ASSAY_CHECK(check_utf8("metadata key", key));
      ASSAY_CHECK(check_utf8("metadata value", value));
      items.push_back(json_string(key) + ":" + json_string(value));
    }
    json += fmt::format("\"{}\":{{{}}}", kMetadataKey, joined(items, ","));
  }
  std::uint64_t offset = 0;
  std::vector<std::span<const std::byte>> parts(2);
  for (const Entry* entry : order) {
    ASSAY_CHECK(check_utf8("tensor name", entry->name));
    if (entry->name == kMetadataKey) return bad_input("a tensor may not be named __metadata__");
    json +=
        fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                    json.size() == 1 ? "" : ",", json_string(entry->name), dtype_name(entry->dtype),
                    joined(entry->shape, ","), offset, offset + entry->bytes.size());
    offset += entry->bytes.size();
    parts.push_back(entry->bytes);
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');  // data begins at a multiple of 8

  // The reader decides what may be written.
  const std::uint64_t length = json.size();
  if (length > kTensorHeaderBytesMax) {
    return bad_input(fmt::format("{}: header of {} bytes is too long; allowed are at most {}", path,
                                 length, kTensorHeaderBytesMax));
  }
  const auto readable = parse_tensor_header(json, offset);
  if (!readable) return readable.error().within(path);
  parts[0] = std::as_bytes(std::span(&length, 1));
  parts[1] = std::as_bytes(std::span(json.data(), json.size()));
  return write_file(path, parts);
}

}  // namespace assay
