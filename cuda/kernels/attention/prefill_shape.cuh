// Sizes of a prefill kernel by element type and head size: tiles, stages, registers, and where
// everything lies in shared memory. Host and device; the launcher asks it for sizes. Decides SPEC
// CUD-6.1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attention/plan.hpp"
#include "model/core/bits.hpp"

namespace assay::attention_kernels {

// What changes speed and no bit. The benchmark measures others than the one that is launched.
struct Tuning {
  int units = 2;  // warpgroups that compute: 2, or 3, which share the registers of 2
  int key_stages = 3;
  int value_stages = 3;
  bool queries_in_registers = true;  // or in shared memory; 16-bit types and 2 units only
};
// What 227 KiB and a thread's registers hold: scores and output of three units, of which each waits
// for its own product, or of two with a product pending, at most 256 columns.
constexpr Tuning tuning_of(int dim, bool fp8) {
  if (dim > 128) return {2, 2, 2, false};
  return fp8 ? Tuning{3, 3, 3, false} : Tuning{3, 3, 2, false};
}

// kDim: of queries, keys and values. T, theirs: Bf16, F16 or, not at d 64, E4m3. OutT: Bf16 or F16.
template <class T, int kDim, class OutT = T, Tuning kTuning = tuning_of(kDim, sizeof(T) == 1)>
struct PrefillShape {
  using Element = T;
  using Out = OutT;
  static constexpr bool kFp8 = sizeof(T) == 1;
  static_assert(kDim == 128 || kDim == 256 || (kDim == 64 && !kFp8));
  static constexpr int kHeadDim = kDim;
  static constexpr int kTile = kDim > 128 ? 64 : 128;  // SPEC ATT-6.1
  static constexpr int kUnits = kTuning.units;         // warpgroups that compute
  static constexpr int kRows = kUnits * kUnitRows;     // of queries
  // Whether a tile's product is waited for before the next tile's scores; else it runs behind them.
  static constexpr bool kInTurn = kFp8 || kUnits == 3;
  static constexpr int kKeyStages = kTuning.key_stages;
  static constexpr int kValueStages = kTuning.value_stages;
  static constexpr bool kQueriesInRegisters = kTuning.queries_in_registers && !kInTurn;

  // Parts of a product that runs in turn: while one runs, the next one's exponentials are computed.
  static constexpr int kProductParts = kInTurn && !kFp8 ? 2 : 1;
  // Columns of an e4m3 product at a time: as many as the scores' registers hold beside P.
  static constexpr int kPartColumns = 64;

  // A block is launched with so many registers for each thread, and setmaxnreg gives to some what
  // others gave back: an increase beyond that sum would wait for ever.
  static constexpr int kThreads = (kUnits + 1) * 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kComputeRegisters = kUnits == 3 ? 160 : 232;
  static constexpr int kFetchRegisters = kUnits == 3 ? 32 : 40;
  static_assert(kUnits * kComputeRegisters + kFetchRegisters <= (kUnits + 1) * kLaunchRegisters);

  // Tensors lie in chunks of 128 bytes of columns, each a block of rows.
  static constexpr int kChunkColumns = 128 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kDim / kChunkColumns;
  static constexpr int kQueryChunkBytes = kUnitRows * 128;
  static constexpr int kTileChunkBytes = kTile * 128;
  static constexpr int kQueryBytes = kChunks * kQueryChunkBytes;  // of one unit
  static constexpr int kTileBytes = kChunks * kTileChunkBytes;    // of keys or of values

  static constexpr int kQueriesAt = 0;
  static constexpr int kKeysAt = kQueriesAt + kUnits * kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + kKeyStages * kTileBytes;
  // The matrix instruction takes fp8 values only with keys contiguous: rows of V^T, 128 bytes each.
  static constexpr int kTransposedBytes = kFp8 ? kDim * 128 : 0;
  static constexpr int kTransposedAt = kValuesAt + kValueStages * kTileBytes;
  static constexpr int kBarriersAt = kTransposedAt + kValueStages * kTransposedBytes;
  // Barriers of 8 bytes, in this order.
  static constexpr int kQueriesFull = 0;
  static constexpr int kQueriesFree = kQueriesFull + kUnits;
  static constexpr int kKeysFull = kQueriesFree + kUnits;
  static constexpr int kKeysFree = kKeysFull + kKeyStages;
  static constexpr int kValuesFull = kKeysFree + kKeyStages;
  static constexpr int kValuesFree = kValuesFull + kValueStages;
  static constexpr int kTransposedFull = kValuesFree + kValueStages;
  static constexpr int kTransposedFree = kTransposedFull + kValueStages;
  static constexpr int kTailFull = kTransposedFree + kValueStages;
  static constexpr int kWorkFull = kTailFull + kValueStages;
  static constexpr int kWorkFree = kWorkFull + 2;
  static constexpr int kNextFull = kWorkFree + 2;
  static constexpr int kDone = kNextFull + 2;
  static constexpr int kBarriers = kDone + 1;
  static constexpr int kWorkAt = kBarriersAt + kBarriers * 8;
  // Beside them, which piece of work it is, from the cluster's first block.
  static constexpr int kNextAt = kWorkAt + 2 * static_cast<int>(sizeof(Work<kUnits>));
  static constexpr int kSharedBytes = kNextAt + 2 * 4;
  // The swizzle needs atoms at multiples of 1024, which dynamic shared memory does not promise.
  static constexpr int kAllocatedBytes = kSharedBytes + 1024;
  static_assert(kAllocatedBytes <= 227 * 1024, "shared memory of a block on sm_90");
};

}  // namespace assay::attention_kernels
