// For tests of this folder only: dispatch computed a second time from its definition, random
// rounds, and a subject's recorded arrays. Decides nothing.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "model/moe/dispatch.hpp"
#include "model/moe/moe_testing.hpp"

namespace assay::moe {

using Ids = std::vector<std::vector<std::int32_t>>;  // [src] -> [t, k]

// A second computation of a plan, from the definition: for every source and destination the
// ascending list of tokens that pick an expert of the destination.
struct Naive {
  std::int32_t ep, experts, k, max;
  Ids ids;
  RankMask alive = RankMask::all();

  std::int32_t owner(std::int32_t id) const {
    if (id < 0 || id >= experts) return -1;
    std::int32_t first = 0;
    for (std::int32_t rank = 0; rank < ep; ++rank) {
      first += experts / ep + (rank < experts % ep ? 1 : 0);
      if (id < first) return rank;
    }
    return -1;
  }
  std::vector<std::int32_t> tokens(std::int32_t dst, std::int32_t src) const {
    std::vector<std::int32_t> list;
    if (!alive.alive(RankId{dst}) || !alive.alive(RankId{src})) return list;
    const auto& mine = ids[static_cast<std::size_t>(src)];
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto token = static_cast<std::int32_t>(i) / k;
      if (owner(mine[i]) == dst && (list.empty() || list.back() != token)) list.push_back(token);
    }
    return list;
  }
  // Target rank and slot of a pick under a rule whose slots are fixed.
  std::pair<std::int32_t, std::int32_t> target(std::int32_t src, std::int32_t token,
                                               std::int32_t pick, bool by_token) const {
    const std::int32_t* const picks =
        ids[static_cast<std::size_t>(src)].data() + std::ptrdiff_t{token} * k;
    const std::int32_t dst = owner(picks[pick]);
    if (dst < 0) return {-1, -1};
    for (std::int32_t earlier = 0; earlier < pick; ++earlier)
      if (owner(picks[earlier]) == dst) return {-1, -1};
    const auto list = tokens(dst, src);
    const auto at = std::find(list.begin(), list.end(), token);
    if (at == list.end()) return {-1, -1};
    return {dst, by_token ? token : static_cast<std::int32_t>(at - list.begin())};
  }
};

// A random round of any shape, with everything that may be odd about it.
inline Naive arbitrary_round() {
  Naive naive{};
  naive.ep = *in_range(1, 9);
  naive.experts = naive.ep + *in_range(0, 20);
  naive.k = *in_range(1, 9);
  naive.max = *in_range(1, 7);
  const auto id = rc::gen::oneOf(in_range(0, naive.experts), in_range(0, naive.experts),
                                 rc::gen::element(-1, naive.experts, INT32_MIN, INT32_MAX));
  for (std::int32_t rank = 0; rank < naive.ep; ++rank) {
    const auto tokens = *in_range(0, naive.max + 1);
    naive.ids.push_back(*rc::gen::container<std::vector<std::int32_t>>(
        static_cast<std::size_t>(tokens * naive.k), id));
    naive.alive.set_alive(RankId{rank}, *in_range(0, 8) != 0);
  }
  return naive;
}

// A subject's arrays, owned.
struct Recorded {
  Ids rank, slot, counters;

  explicit Recorded(const DispatchPlan& plan) {
    const auto own = [](std::span<const std::int32_t> s) {
      return std::vector<std::int32_t>(s.begin(), s.end());
    };
    for (RankId r{0}; r.value() < plan.ep_size(); r = r.next()) {
      rank.push_back(own(plan.target_rank(r)));
      slot.push_back(own(plan.target_slot(r)));
      counters.push_back(own(plan.recv_counters(r)));
    }
  }
  ObservedTargets view() const {
    ObservedTargets observed;
    for (const auto& v : rank) observed.target_rank.emplace_back(v);
    for (const auto& v : slot) observed.target_slot.emplace_back(v);
    for (const auto& v : counters) observed.recv_counters.emplace_back(v);
    return observed;
  }
  // Renames the slots of every block by a random permutation, as atomics in any order would.
  void shuffle(const DispatchPlan& plan, std::uint32_t seed) {
    std::mt19937 random(seed);
    for (std::size_t src = 0; src < rank.size(); ++src)
      for (RankId dst{0}; dst.value() < plan.ep_size(); dst = dst.next()) {
        std::vector<std::int32_t> order(static_cast<std::size_t>(
            plan.recv_counter(dst, RankId{static_cast<std::int32_t>(src)})));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (std::size_t i = 0; i < rank[src].size(); ++i)
          if (rank[src][i] == dst.value())
            slot[src][i] = order[static_cast<std::size_t>(slot[src][i])];
      }
  }
};

}  // namespace assay::moe
