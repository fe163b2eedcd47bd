// Parsing of safetensors headers: JSON events into entries, then the checks that need all entries.
// The SAX interface is used because a DOM has already dropped duplicate keys, and because a header
// that nests deeper than the format's three levels is refused at the fourth bracket.
#include "model/core/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "model/core/text.hpp"

namespace assay {
namespace {

std::string tensor_text(std::string_view name) { return "tensor " + in_quotes(name); }

// Turns JSON events into entries. A callback that returns false ends the parse; `error` says why.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<Error> error;
  TensorHeader header;

  bool null() override { return refuse("null"); }
  bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {  // negative, or "-0"
    return refuse(value == 0 ? "-0" : std::to_string(value));
  }
  // Fractions, exponents and integers over 2^64-1 arrive here.
  bool number_float(number_float_t, const string_t& text) override { return refuse(text); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) return dimension(value);
    if (place_ == Place::kOffsets) return offset(value);
    return refuse(std::to_string(value));
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header.metadata.emplace(key_, std::move(value));
      return true;
    }
    if (place_ != Place::kTensor || field_ != Field::kDtype) return refuse(in_quotes(value));
    const auto dtype = dtype_named(value);
    if (!dtype) {
      return fail(fmt::format("{}: dtype {} is unknown; allowed are {}", tensor_text(entry_.name),
                              in_quotes(value), dtype_names()));
    }
    entry_.dtype = *dtype;
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::kMetadata) {
      key_ = value;
      if (header.metadata.count(value) == 0) return true;
      return fail(fmt::format("metadata key {} appears twice", in_quotes(value)));
    }
    if (place_ == Place::kTensor) return tensor_key(value);
    if (!names_.insert(value).second) {
      return fail(value == kMetadataKey ? std::string("__metadata__ appears twice")
                                        : tensor_text(value) + " appears twice");
    }
    entry_ = TensorEntry{};
    entry_.name = value;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kNames;
    } else if (place_ == Place::kNames) {
      place_ = entry_.name == kMetadataKey ? Place::kMetadata : Place::kTensor;
      seen_ = 0;
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      for (const Field field : {Field::kDtype, Field::kShape, Field::kOffsets}) {
        if ((seen_ & bit(field)) == 0) {
          return fail(fmt::format("{} has no {}", tensor_text(entry_.name), field_name(field)));
        }
      }
      header.tensors.push_back(std::move(entry_));
    }
    place_ = place_ == Place::kNames ? Place::kEnd : Place::kNames;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == Field::kDtype) return refuse("an array");
    place_ = field_ == Field::kShape ? Place::kShape : Place::kOffsets;
    num_offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      return fail(fmt::format("{}: data_offsets has {} entries; allowed are 2 (begin, end)",
                              tensor_text(entry_.name), num_offsets_));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    // The library's text is "[json.exception...] parse error at line l, column c: detail"; its
    // position counts from 1. The detail may quote a token of any length, so it is cut.
    std::string_view detail = exception.what();
    const std::size_t colon = detail.find(": ");
    if (colon != std::string_view::npos) detail.remove_prefix(colon + 2);
    return fail(fmt::format("header is not JSON at its byte {}: {}",
                            position == 0 ? 0 : position - 1, in_quotes(detail, 160)));
  }

 private:
  enum class Place { kStart, kNames, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Field { kDtype, kShape, kOffsets };

  static unsigned bit(Field field) { return 1u << static_cast<unsigned>(field); }
  static const char* field_name(Field field) {
    return field == Field::kDtype ? "dtype" : field == Field::kShape ? "shape" : "data_offsets";
  }

  bool fail(std::string sentence) {
    error = bad_input(std::move(sentence));
    return false;
  }

  bool tensor_key(const std::string& name) {
    for (const Field field : {Field::kDtype, Field::kShape, Field::kOffsets}) {
      if (name != field_name(field)) continue;
      if ((seen_ & bit(field)) != 0) {
        return fail(fmt::format("{}: {} appears twice", tensor_text(entry_.name), name));
      }
      seen_ |= bit(field);
      field_ = field;
      return true;
    }
    return fail(fmt::format("{}: key {} is unknown; allowed are dtype, shape, data_offsets",
                            tensor_text(entry_.name), in_quotes(name)));
  }

  bool dimension(std::uint64_t value) {
    if (entry_.shape.size() == kTensorAxesMax) {
      return fail(
          fmt::format("{}: shape has more than {} axes", tensor_text(entry_.name), kTensorAxesMax));
    }
    entry_.shape.push_back(value);
    return true;
  }

  bool offset(std::uint64_t value) {
    if (num_offsets_ == 0) entry_.begin = value;
    if (num_offsets_ == 1) entry_.end = value;
    ++num_offsets_;
    return true;
  }

  // The sentence for a value that may not stand where it stands.
  bool refuse(const std::string& value) {
    const std::string name = tensor_text(entry_.name);
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        return fail("header is " + value + "; allowed is one JSON object");
      case Place::kNames:
        if (entry_.name == kMetadataKey) {
          return fail("__metadata__ is " + value + "; allowed is an object of strings");
        }
        return fail(fmt::format("{} is {}; allowed is an object with dtype, shape and data_offsets",
                                name, value));
      case Place::kMetadata:
        return fail(
            fmt::format("metadata key {} is {}; allowed are strings", in_quotes(key_), value));
      case Place::kTensor:
        return fail(fmt::format("{}: {} is {}; allowed is {}", name, field_name(field_), value,
                                field_ == Field::kDtype ? "a string" : "an array of integers"));
      case Place::kShape:
        return fail(fmt::format("{}: shape[{}] is {}; allowed are integers from 0 to 2^64-1", name,
                                entry_.shape.size(), value));
      case Place::kOffsets:
        return fail(fmt::format("{}: data_offsets[{}] is {}; allowed are integers from 0 to 2^64-1",
                                name, num_offsets_, value));
    }
    return fail("header is malformed");
  }

  Place place_ = Place::kStart;
  Field field_ = Field::kDtype;
  unsigned seen_ = 0;  // fields of the current tensor, by bit()
  std::size_t num_offsets_ = 0;
  TensorEntry entry_;
  std::string key_;
  std::set<std::string> names_;
};

// Bytes that dtype and shape imply, or why there is no such number.
Expected<std::uint64_t> tensor_bytes(const TensorEntry& entry) {
  std::uint64_t bits = dtype_bits(entry.dtype);
  for (const std::uint64_t extent : entry.shape) {
    if (__builtin_mul_overflow(bits, extent, &bits)) {
      return bad_input(fmt::format("{}: shape [{}] of {} has more than 2^64-1 bits",
                                   tensor_text(entry.name), joined(entry.shape, ", "),
                                   dtype_name(entry.dtype)));
    }
  }
  if (bits % 8 != 0) {
    return bad_input(fmt::format("{}: shape [{}] of {} is {} bits, not a whole number of bytes",
                                 tensor_text(entry.name), joined(entry.shape, ", "),
                                 dtype_name(entry.dtype), bits));
  }
  return bits / 8;
}

Status check_extent(const TensorEntry& entry, std::uint64_t data_bytes) {
  const auto failed = [&](const std::string& why) {
    return bad_input(fmt::format("{}: data_offsets [{}, {}] {}", tensor_text(entry.name),
                                 entry.begin, entry.end, why));
  };
  if (entry.begin > entry.end) return failed("end before they begin");
  ASSAY_TRY(const std::uint64_t bytes, tensor_bytes(entry));
  if (entry.end - entry.begin != bytes) {
    return failed(fmt::format("span {} bytes, but shape [{}] of {} needs {}",
                              entry.end - entry.begin, joined(entry.shape, ", "),
                              dtype_name(entry.dtype), bytes));
  }
  if (entry.end > data_bytes) {
    return failed(
        fmt::format("end beyond the {} bytes of data in the file: it is truncated, or the "
                    "offsets are wrong",
                    data_bytes));
  }
  return Done{};
}

// The tensors, sorted by offset, must cover the data exactly: an overlap would let one write change
// two tensors, a hole could hide another file (SPEC COR-2.3).
Status check_cover(const std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& entry = tensors[i];
    if (entry.begin < covered) {
      const TensorEntry& before = tensors[i - 1];
      return bad_input(fmt::format("{} at bytes [{}, {}] overlaps {} at bytes [{}, {}]",
                                   tensor_text(entry.name), entry.begin, entry.end,
                                   tensor_text(before.name), before.begin, before.end));
    }
    if (entry.begin > covered) {
      return bad_input(fmt::format("bytes {} to {} before {} belong to no tensor", covered,
                                   entry.begin, tensor_text(entry.name)));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return bad_input(fmt::format("the last {} of {} bytes of data belong to no tensor",
                                 data_bytes - covered, data_bytes));
  }
  return Done{};
}

}  // namespace

Expected<TensorHeader> parse_tensor_file(std::span<const std::byte> file) {
  std::uint64_t header_bytes = 0;
  constexpr std::size_t kLengthBytes = sizeof(header_bytes);
  if (file.size() < kLengthBytes) {
    return bad_input(
        fmt::format("file has {} bytes; a tensor file begins with 8 bytes of header "
                    "length",
                    file.size()));
  }
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > kTensorHeaderBytesMax) {
    return bad_input(fmt::format("header length is {} bytes; allowed are at most {}", header_bytes,
                                 kTensorHeaderBytesMax));
  }
  if (header_bytes > file.size() - kLengthBytes) {
    return bad_input(
        fmt::format("header length is {} bytes, but only {} follow: the file is "
                    "truncated",
                    header_bytes, file.size() - kLengthBytes));
  }
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(header_bytes));
  const std::size_t data_at = kLengthBytes + json.size();
  ASSAY_TRY(TensorHeader header, parse_tensor_header(json, file.size() - data_at));
  header.data_at = data_at;
  return header;
}

Expected<TensorHeader> parse_tensor_header(std::string_view json, std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return bad_input(fmt::format("header begins with {}; allowed is {{",
                                 json.empty() ? "nothing" : in_quotes(json.substr(0, 1))));
  }
  const std::size_t valid = utf8_prefix_bytes(json);
  if (valid != json.size()) {
    return bad_input(fmt::format("header is not UTF-8 at its byte {} (0x{:02x})", valid,
                                 static_cast<unsigned char>(json[valid])));
  }
  // The JSON library takes a zero byte for the end of its input and would not see what follows.
  const std::size_t zero = json.find('\0');
  if (zero != std::string_view::npos) {
    return bad_input(fmt::format("header has a zero byte at its byte {}", zero));
  }
  HeaderEvents events;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  if (!parsed) {
    CONTRACT(events.error.has_value(), "the JSON parser stopped without saying why");
    return *std::move(events.error);
  }
  TensorHeader header = std::move(events.header);
  for (const TensorEntry& entry : header.tensors) ASSAY_CHECK(check_extent(entry, data_bytes));
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  ASSAY_CHECK(check_cover(header.tensors, data_bytes));
  return header;
}

}  // namespace assay
