// Sizes of a decode kernel by element type, head size and rows: stages, blocks of a multiprocessor,
// and where everything lies in shared memory. Host and device; the launcher asks it for sizes.
// Decides SPEC CUD-7.1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attention/decode_plan.hpp"
#include "model/core/bits.hpp"

namespace assay::attention_kernels {

// What changes speed and no bit.
struct DecodeTuning {
  int key_stages = 3;
  int entries = 3;  // of P and values
  int blocks = 2;   // of a multiprocessor
  bool q_in_registers = true;
};
// Two blocks a multiprocessor hide each other's latencies, where registers and stages allow. What
// is left of 227 KiB, or of half of them, is stages.
constexpr DecodeTuning decode_tuning(int element_bytes, int dim, int rows) {
  const int tile_bytes = kDecodeTile * dim * element_bytes;
  if (rows <= 16) {
    if (tile_bytes <= 8192) return {5, 5, 2, true};
    if (dim <= 128) return {3, 3, 2, true};
    return tile_bytes <= 16384 ? DecodeTuning{6, 6, 1, true} : DecodeTuning{3, 3, 1, true};
  }
  if (tile_bytes <= 8192) return {8, 6, 1, false};
  return tile_bytes <= 16384 ? DecodeTuning{6, 4, 1, false} : DecodeTuning{3, 2, 1, false};
}

// T: Bf16, F16 or, not at d 64, E4m3. kRowsMost: packed query rows that a unit may have, 16 or 64.
template <class T, int kDim, int kRowsMost,
          DecodeTuning kTuning = decode_tuning(static_cast<int>(sizeof(T)), kDim, kRowsMost)>
struct DecodeShape {
  using Element = T;
  static constexpr bool kFp8 = sizeof(T) == 1;
  static_assert(kDim == 128 || kDim == 256 || (kDim == 64 && !kFp8));
  static_assert(kRowsMost == 16 || kRowsMost == 64);
  static constexpr int kHeadDim = kDim;
  static constexpr int kRows = kRowsMost;
  static constexpr int kKeyStages = kTuning.key_stages;
  static constexpr int kEntries = kTuning.entries;
  static constexpr int kBlocks = kTuning.blocks;
  static constexpr bool kQueriesInRegisters = kTuning.q_in_registers;
  static constexpr int kQueryStages = kQueriesInRegisters ? 2 : 1;
  static constexpr int kItems = 4;
  static constexpr int kWarps = 10;  // keys, values, four of scores, four of products
  static constexpr int kThreads = kWarps * 32;

  // Tensors lie in chunks of 128 bytes of columns, each a block of rows, 128-byte swizzled.
  static constexpr int kChunkColumns = 128 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kDim / kChunkColumns;
  static constexpr int kTileChunkBytes = kDecodeTile * 128;
  static constexpr int kTileBytes = kChunks * kTileChunkBytes;
  static constexpr int kQueryChunkBytes = kRows * 128;
  static constexpr int kQueryBytes = kChunks * kQueryChunkBytes;
  // P: rows of 64 keys in 16 bits, swizzled likewise. At the end of a piece, sums and maxima.
  static constexpr int kProbabilityBytes = kRows * 128;

  static constexpr int kKeysAt = 0;
  static constexpr int kValuesAt = kKeysAt + kKeyStages * kTileBytes;
  static constexpr int kQueriesAt = kValuesAt + kEntries * kTileBytes;
  static constexpr int kProbabilitiesAt = kQueriesAt + kQueryStages * kQueryBytes;
  static constexpr int kCorrectionsAt = kProbabilitiesAt + kEntries * kProbabilityBytes;
  static constexpr int kMaximaAt = kCorrectionsAt + kEntries * kRows * 4;  // [2][4 warps][rows]
  static constexpr int kBarriersAt = kMaximaAt + 2 * 4 * kRows * 4;
  // Barriers of 8 bytes, in this order.
  static constexpr int kQueriesFull = 0;
  static constexpr int kQueriesFree = kQueriesFull + kQueryStages;
  static constexpr int kKeysFull = kQueriesFree + kQueryStages;
  static constexpr int kKeysFree = kKeysFull + kKeyStages;
  static constexpr int kEntryFull = kKeysFree + kKeyStages;
  static constexpr int kEntryFree = kEntryFull + kEntries;
  static constexpr int kValuesFull = kEntryFree + kEntries;
  static constexpr int kTailFull = kValuesFull + kEntries;
  static constexpr int kItemFull = kTailFull + 1;
  static constexpr int kItemFree = kItemFull + kItems;
  static constexpr int kBarriers = kItemFree + kItems;
  static constexpr int kEntryTilesAt = kBarriersAt + kBarriers * 8;  // [entries]
  static constexpr int kItemsAt = kEntryTilesAt + (kEntries * 4 + 15) / 16 * 16;
  static constexpr int kSharedBytes = kItemsAt + kItems * static_cast<int>(sizeof(DecodeItem));
  // The swizzle needs atoms at multiples of 1024, which dynamic shared memory does not promise.
  static constexpr int kAllocatedBytes = kSharedBytes + 1024;
  // 228 KiB a multiprocessor, 1 KiB of which each block's is the system's.
  static_assert(kAllocatedBytes <= 228 * 1024 / kBlocks - 1024, "shared memory of sm_90");
};

}  // namespace assay::attention_kernels
