// The header of a safetensors file, parsed from hostile bytes. Decides what is refused and with
// which sentence (SPEC COR-2.3); safetensors.hpp is what users include.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/dtype.hpp"
#include "model/core/expected.hpp"

namespace assay {

// Longest header that is read (SPEC COR-2.3), and most axes of a tensor (COR-2.3).
inline constexpr std::uint64_t kTensorHeaderBytesMax = 100'000'000;
inline constexpr std::size_t kTensorAxesMax = 64;
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

struct TensorHeader {
  std::vector<TensorEntry> tensors;  // by ascending offset; together they cover the data exactly
  std::map<std::string, std::string, std::less<>> metadata;
  std::size_t data_at = 0;  // where the data begins in the file
};

// Parses the start of a whole file. What it returns can be indexed without further checks.
Expected<TensorHeader> parse_tensor_file(std::span<const std::byte> file);

// The same for the JSON text alone, followed by `data_bytes` bytes of data.
Expected<TensorHeader> parse_tensor_header(std::string_view json, std::uint64_t data_bytes);

}  // namespace assay
