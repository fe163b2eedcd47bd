// Values of one byte, from rows of keys as the copy engine brings them to rows of columns, which
// the matrix instruction takes: V^T in rows of 128 bytes, keys permuted within sixteen as P's
// fragment holds them. Decides that order (SPEC CUD-6.8); a host runs one lane's share too, in
// tests.
#pragma once

#include <cstdint>

#include "cuda/ops/scalar.hpp"

namespace assay::attention_kernels {

using namespace assay::cuda;

// A byte of a chunk of 128-byte rows under the swizzle.
ASSAY_HD constexpr std::uint32_t swizzled_offset(int row, int byte) {
  return static_cast<std::uint32_t>(row * 128 + (((byte / 16) ^ (row % 8)) * 16) + byte % 16);
}

// A step moves 16 keys by 32 columns: lane (dq, q) = (lane % 8, lane / 8) takes columns 4 dq to
// 4 dq + 3 of the keys 2 q, 2 q + 1, 2 q + 8, 2 q + 9, which become bytes 4 q to 4 q + 3 of sixteen
// in rows 4 dq to 4 dq + 3. Lanes begin with different rows, so that neither loads nor stores of a
// warp meet in a bank. What a lane knows before the first step: offsets of keys 2 q and 2 q + 1,
// and of its rows, first one first. Steps only flip bits 4 to 6 of them and add.
struct TransposeLane {
  std::uint32_t from[2];
  std::uint32_t to[4];
  int first;
  ASSAY_HD constexpr explicit TransposeLane(int lane) : from{}, to{}, first(lane % 8 / 2) {
    const int dq = lane % 8, q = lane / 8;
    for (int j = 0; j < 2; ++j) from[j] = swizzled_offset(2 * q + j, 4 * dq);
    for (int i = 0; i < 4; ++i) to[i] = swizzled_offset(4 * dq + (first + i) % 4, 4 * q);
  }
};

// `memory` loads and stores words at offsets of a chunk of 128 columns, and of its 128 rows of V^T.
template <class Memory>
ASSAY_DEVICE inline void transpose_step(Memory& memory, const TransposeLane& lane, int sixteen,
                                        int columns) {
  std::uint32_t in[4];
  ASSAY_UNROLL
  for (int j = 0; j < 4; ++j)
    in[j] = memory.load((lane.from[j % 2] ^ static_cast<std::uint32_t>(columns)) +
                        static_cast<std::uint32_t>(16 * sixteen + j / 2 * 8) * 128);
  // Four by four bytes: column i of the words is row i of the result.
  const std::uint32_t low01 = bytes_of(in[0], in[1], 0x5140),
                      low23 = bytes_of(in[2], in[3], 0x5140);
  const std::uint32_t high01 = bytes_of(in[0], in[1], 0x7362),
                      high23 = bytes_of(in[2], in[3], 0x7362);
  std::uint32_t out[4] = {bytes_of(low01, low23, 0x5410), bytes_of(low01, low23, 0x7632),
                          bytes_of(high01, high23, 0x5410), bytes_of(high01, high23, 0x7632)};
  // out[i] becomes the word of row (first + i) % 4, without a run-time index.
  if (lane.first & 1) {
    const std::uint32_t word = out[0];
    out[0] = out[1];
    out[1] = out[2];
    out[2] = out[3];
    out[3] = word;
  }
  if (lane.first & 2) {
    const std::uint32_t word0 = out[0], word1 = out[1];
    out[0] = out[2];
    out[1] = out[3];
    out[2] = word0;
    out[3] = word1;
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    memory.store((lane.to[i] ^ static_cast<std::uint32_t>(16 * sixteen)) +
                     static_cast<std::uint32_t>(columns) * 128,
                 out[i]);
}

}  // namespace assay::attention_kernels
