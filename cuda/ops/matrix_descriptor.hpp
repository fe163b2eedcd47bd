// How the matrix instruction finds an operand in shared memory: 64 bits that name an address and
// two strides, for matrices with the 128-byte swizzle. Host and device; the tests read descriptors
// back. Decides which layouts there are (PTX ISA 9, "Matrix descriptor" and "Strides"; SPEC
// CUD-6.1).
#pragma once

#include <cstdint>

#include "model/core/platform.hpp"

namespace assay::cuda {

// Rows of 128 bytes, whose eight 16-byte pieces are permuted by the row's number modulo 8; eight
// rows are an atom of 1024 bytes, which is also the alignment.
inline constexpr int kSwizzleBytes = 128;
inline constexpr int kAtomBytes = 1024;

// `low` holds the address in units of 16 bytes in 14 bits and a stride in bits 16 to 29, `high` the
// other stride in bits 0 to 13 and the swizzle in bits 30 and 31. Adding to `low` moves within the
// matrix: a block's addresses end below the 256 KiB of the field.
struct MatrixDescriptor {
  std::uint32_t low, high;
  ASSAY_HD constexpr std::uint64_t at(int offset_bytes) const {
    return (std::uint64_t{high} << 32) | (low + static_cast<std::uint32_t>(offset_bytes / 16));
  }
};
inline constexpr std::uint32_t kSwizzle128 = 1u << 30;
// In a cluster, addresses of all blocks but the first have bits above those, which would be added
// to the stride (seen on an H200: the second block of two read columns 64 and up elsewhere).
ASSAY_HD constexpr std::uint32_t address_field(std::uint32_t shared_address) {
  return shared_address / 16 & 0x3FFF;
}

// Where k is contiguous (A = [m, k], B = [n, k]): rows of 128 bytes of k; the next eight rows are
// the next atom. An instruction's 32 bytes of k begin anywhere in the first row. The stride in
// `low` is not used.
ASSAY_HD constexpr MatrixDescriptor k_major(std::uint32_t shared_address) {
  return {address_field(shared_address) | 1u << 16, kAtomBytes / 16 | kSwizzle128};
}
// Where n is contiguous (B = [k, n] of 16-bit types): rows of 64 columns of n, one for each k; the
// next eight rows are the next atom, the next 64 columns begin kChunkBytes later.
template <int kChunkBytes>
ASSAY_HD constexpr MatrixDescriptor n_major(std::uint32_t shared_address) {
  static_assert(kChunkBytes % kAtomBytes == 0 && kChunkBytes / 16 < 0x4000);
  return {address_field(shared_address) | static_cast<std::uint32_t>(kChunkBytes / 16) << 16,
          kAtomBytes / 16 | kSwizzle128};
}

}  // namespace assay::cuda
