// For tests only: the experts of cuda/launch/expert_gemm.hpp computed on the host, from what the
// model says that a rank received. Decides nothing; the chains are SPEC CUD-10.1.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/moe/moe.hpp"
#include "model/numerics/numerics.hpp"

namespace assay::verify::testing {

using Bf16Bits = std::uint16_t;

inline float widen(Bf16Bits bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

struct HostExperts {
  const moe::Placement& placement;
  const moe::Routing& routing;
  const moe::DispatchPlan& plan;  // with the slots that rows really have
  std::uint64_t hidden_size;
  const std::vector<std::vector<std::byte>>& hidden;   // [src] -> bf16 [t, h]
  const std::vector<std::vector<std::byte>>& weights;  // [src] -> f32 [t, k], of the router

  // What the experts of a rank give back: bf16 [ep, max, h], all ones where no row is.
  // matrices: bf16 [local experts, h out, h in].
  std::vector<std::byte> rows_of(RankId rank, const std::vector<Bf16Bits>& matrices) const {
    const auto max = static_cast<std::uint64_t>(plan.max_tokens_per_rank());
    const auto all_rows = static_cast<std::uint64_t>(plan.ep_size()) * max;
    std::vector<std::byte> all(all_rows * hidden_size * 2, std::byte{0xFF});
    for (RankId src{0}; src.value() < plan.ep_size(); src = src.next())
      for (const auto& row : plan.rows(rank, src)) {
        const std::uint64_t at = static_cast<std::uint64_t>(src.value()) * max +
                                 static_cast<std::uint64_t>(row.slot.value());
        for (std::uint64_t n = 0; n < hidden_size; ++n) {
          const Bf16Bits sum = element(rank, src, row.token, n, matrices);
          std::memcpy(all.data() + (at * hidden_size + n) * 2, &sum, 2);
        }
      }
    return all;
  }

 private:
  Bf16Bits element(RankId rank, RankId src, TokenId token, std::uint64_t n,
                   const std::vector<Bf16Bits>& matrices) const {
    const auto s = static_cast<std::size_t>(src.value());
    const auto t = static_cast<std::size_t>(token.value());
    const auto ids = routing.topk_ids(src, token);
    const std::byte* const x = hidden[s].data() + t * hidden_size * 2;
    float sum = 0.0f;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const auto place = placement.place_of_wire(ids[k]);
      if (!place || placement.rank_of(*place) != rank) continue;
      const auto expert = static_cast<std::uint64_t>(placement.local_of(*place).value());
      const Bf16Bits* const line = matrices.data() + (expert * hidden_size + n) * hidden_size;
      float product = 0.0f;
      for (std::uint64_t d = 0; d < hidden_size; ++d) {
        Bf16Bits bits;
        std::memcpy(&bits, x + d * 2, 2);
        product = std::fma(widen(bits), widen(line[d]), product);
      }
      float weight;
      std::memcpy(&weight, weights[s].data() + (t * ids.size() + k) * 4, 4);
      sum = std::fma(weight, product, sum);
    }
    return numerics::cvt_rn_bf16_f32(F32{std::bit_cast<std::uint32_t>(sum)}).bits;
  }
};

}  // namespace assay::verify::testing
