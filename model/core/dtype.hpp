// The element types of tensor files, by the names that the safetensors format gives them, with
// their sizes in bits. Decides names and sizes; what an element's bits mean is model/numerics, and
// how sub-byte elements are packed is decided where they are encoded (SPEC COR-2.2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "model/core/bits.hpp"

namespace assay {

// ASSAY_DTYPE(enumerator, name in files, bits)
#define ASSAY_DTYPES(ASSAY_DTYPE)            \
  ASSAY_DTYPE(kBool, "BOOL", 8)              \
  ASSAY_DTYPE(kF4, "F4", 4)                  \
  ASSAY_DTYPE(kF6E2m3, "F6_E2M3", 6)         \
  ASSAY_DTYPE(kF6E3m2, "F6_E3M2", 6)         \
  ASSAY_DTYPE(kU8, "U8", 8)                  \
  ASSAY_DTYPE(kI8, "I8", 8)                  \
  ASSAY_DTYPE(kF8E5m2, "F8_E5M2", 8)         \
  ASSAY_DTYPE(kF8E4m3, "F8_E4M3", 8)         \
  ASSAY_DTYPE(kF8E8m0, "F8_E8M0", 8)         \
  ASSAY_DTYPE(kF8E4m3Fnuz, "F8_E4M3FNUZ", 8) \
  ASSAY_DTYPE(kF8E5m2Fnuz, "F8_E5M2FNUZ", 8) \
  ASSAY_DTYPE(kI16, "I16", 16)               \
  ASSAY_DTYPE(kU16, "U16", 16)               \
  ASSAY_DTYPE(kF16, "F16", 16)               \
  ASSAY_DTYPE(kBf16, "BF16", 16)             \
  ASSAY_DTYPE(kI32, "I32", 32)               \
  ASSAY_DTYPE(kU32, "U32", 32)               \
  ASSAY_DTYPE(kF32, "F32", 32)               \
  ASSAY_DTYPE(kC64, "C64", 64)               \
  ASSAY_DTYPE(kF64, "F64", 64)               \
  ASSAY_DTYPE(kI64, "I64", 64)               \
  ASSAY_DTYPE(kU64, "U64", 64)

enum class Dtype : std::uint8_t {
#define ASSAY_DTYPE(enumerator, name, bits) enumerator,
  ASSAY_DTYPES(ASSAY_DTYPE)
#undef ASSAY_DTYPE
};

inline constexpr Dtype kDtypes[] = {
#define ASSAY_DTYPE(enumerator, name, bits) Dtype::enumerator,
    ASSAY_DTYPES(ASSAY_DTYPE)
#undef ASSAY_DTYPE
};

constexpr unsigned dtype_bits(Dtype dtype) {
  switch (dtype) {
#define ASSAY_DTYPE(enumerator, name, bits) \
  case Dtype::enumerator:                   \
    return bits;
    ASSAY_DTYPES(ASSAY_DTYPE)
#undef ASSAY_DTYPE
  }
  return 0;
}

constexpr std::string_view dtype_name(Dtype dtype) {
  switch (dtype) {
#define ASSAY_DTYPE(enumerator, name, bits) \
  case Dtype::enumerator:                   \
    return name;
    ASSAY_DTYPES(ASSAY_DTYPE)
#undef ASSAY_DTYPE
  }
  return "?";
}

// The dtype of that exact name ("BF16"), if the format has one.
constexpr std::optional<Dtype> dtype_named(std::string_view name) {
  for (const Dtype dtype : kDtypes) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// All names, for sentences: "BOOL, F4, ...".
inline std::string dtype_names() {
  std::string names;
  for (const Dtype dtype : kDtypes) {
    if (!names.empty()) names += ", ";
    names += dtype_name(dtype);
  }
  return names;
}

// The dtype that a C++ type is stored as. The bit patterns of bits.hpp have one, and so have the
// arithmetic types; E2m1 has none because its elements share bytes.
template <class T>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, F32> || std::is_same_v<T, float>)
    return Dtype::kF32;
  else if constexpr (std::is_same_v<T, F16>)
    return Dtype::kF16;
  else if constexpr (std::is_same_v<T, Bf16>)
    return Dtype::kBf16;
  else if constexpr (std::is_same_v<T, E4m3>)
    return Dtype::kF8E4m3;
  else if constexpr (std::is_same_v<T, E5m2>)
    return Dtype::kF8E5m2;
  else if constexpr (std::is_same_v<T, Ue8m0>)
    return Dtype::kF8E8m0;
  else if constexpr (std::is_same_v<T, double>)
    return Dtype::kF64;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return Dtype::kU8;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return Dtype::kI8;
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return Dtype::kU16;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return Dtype::kI16;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return Dtype::kU32;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return Dtype::kI32;
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return Dtype::kU64;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return Dtype::kI64;
  else
    static_assert(!sizeof(T), "this type has no dtype in tensor files");
}

}  // namespace assay
