// Moving and reading rows by the widest vector that alignment allows. Decides how bytes move, not
// where to: a row goes to its targets whole, tail included (SPEC KER-1.4).
#pragma once

#include "cuda/kernels/one_sided/params.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Where one token goes: for pick k, if present, row `row[k]` of rank `rank[k]`. Indexed by
// constants only, so that it stays in registers.
template <int kTopK>
struct RowTargets {
  std::uint32_t present = 0;
  RankId rank[kTopK] = {};
  std::uint64_t row[kTopK] = {};
  ASSAY_HD void add(int k, RankId target, std::uint64_t target_row) {
    present |= 1u << k;
    rank[k] = target;
    row[k] = target_row;
  }
};

// Loads each vector of the token's row once and stores it at every target.
template <class WordType, int kTopK, Ops O>
ASSAY_HD void copy_row_by(O& ops, const Window& window, const PayloadParams& payload,
                          std::uint32_t token, const RowTargets<kTopK>& targets) {
  const std::uint64_t bytes = payload.bytes_per_token;
  const Address source = payload.rows.at(std::uint64_t{token} * bytes);
  Address target[kTopK];
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k)
    target[k] = window.of(targets.rank[k]).at(payload.recv_offset + targets.row[k] * bytes);

  const std::uint64_t vectors = bytes / sizeof(WordType);
  for (std::uint64_t v = ops.thread(); v < vectors; v += ops.group_size()) {
    const WordType word =
        ops.load(as<WordType>, weak, Site::kDispatchReadPayload, source.at(v * sizeof(WordType)));
    ASSAY_UNROLL
    for (int k = 0; k < kTopK; ++k)
      if ((targets.present >> k) & 1)
        ops.store(relaxed_sys, Site::kDispatchStorePayload, target[k].at(v * sizeof(WordType)),
                  word);
  }
}

template <int kTopK, Ops O>
ASSAY_HD void copy_row(O& ops, const Window& window, const PayloadParams& payload,
                       std::uint32_t token, const RowTargets<kTopK>& targets) {
  switch (payload.vector_bytes) {
    case 16:
      return copy_row_by<Vec16, kTopK>(ops, window, payload, token, targets);
    case 8:
      return copy_row_by<std::uint64_t, kTopK>(ops, window, payload, token, targets);
    case 4:
      return copy_row_by<std::uint32_t, kTopK>(ops, window, payload, token, targets);
    case 2:
      return copy_row_by<std::uint16_t, kTopK>(ops, window, payload, token, targets);
    default:
      return copy_row_by<std::uint8_t, kTopK>(ops, window, payload, token, targets);
  }
}

// Element e of a vector, lowest address first.
template <BitFormat T, class WordType>
ASSAY_HD constexpr T element(const WordType& word, int e) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  using Bits = decltype(T::bits);
  if constexpr (sizeof(WordType) == sizeof(Vec16)) {
    return T{static_cast<Bits>(word.word[e * kBits / 32] >> (e * kBits % 32))};
  } else {
    return T{static_cast<Bits>(word >> (e * kBits % (8 * static_cast<int>(sizeof(WordType)))))};
  }
}

// Stores kCount elements that lie side by side, by the widest words that their size gives.
template <int kCount, BitFormat T, Ops O>
ASSAY_HD void store_elements(O& ops, Site site, Address address, const T (&elements)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  if constexpr (kBytes >= 16) {
    ASSAY_UNROLL
    for (int v = 0; v < kBytes / 16; ++v) {
      Vec16 vector{};
      ASSAY_UNROLL
      for (int e = 0; e < 4 * kPerWord; ++e)
        vector.word[e / kPerWord] |= static_cast<std::uint32_t>(elements[v * 4 * kPerWord + e].bits)
                                     << (32 / kPerWord * (e % kPerWord));
      ops.store(weak, site, address.at(static_cast<std::uint64_t>(v) * 16), vector);
    }
  } else if constexpr (kBytes >= 4) {
    ASSAY_UNROLL
    for (int w = 0; w < kBytes / 4; ++w) {
      std::uint32_t word = 0;
      ASSAY_UNROLL
      for (int e = 0; e < kPerWord; ++e)
        word |= static_cast<std::uint32_t>(elements[w * kPerWord + e].bits) << (32 / kPerWord * e);
      ops.store(weak, site, address.at(static_cast<std::uint64_t>(w) * 4), word);
    }
  } else {
    ASSAY_UNROLL
    for (int e = 0; e < kCount; ++e)
      ops.store(weak, site, address.at(static_cast<std::uint64_t>(e) * sizeof(T)),
                elements[e].bits);
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
