// Gathering rows into a trace. See gptoss.hpp.
#include "traces/readers/gptoss.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace assay::traces::gptoss {

Status Gatherer::add(const Row& row, std::int64_t line) {
  constexpr auto kLayers = static_cast<std::size_t>(kNumLayers);
  constexpr auto kPicks = static_cast<std::size_t>(kTopK);
  const std::uint64_t key = (std::uint64_t{static_cast<std::uint32_t>(row.request)} << 32) |
                            static_cast<std::uint32_t>(row.step);
  const auto [found, is_new] = token_of_.try_emplace(key, tensors_.step.size());
  const std::size_t token = found->second;
  if (is_new) {
    tensors_.request.push_back(row.request);
    tensors_.step.push_back(row.step);
    tensors_.position.push_back(row.position);
    lines_.resize(lines_.size() + kLayers);
    tensors_.topk_ids.resize(tensors_.topk_ids.size() + kLayers * kPicks);
    weights_.resize(weights_.size() + kLayers * kPicks);
  }
  const std::size_t at = token * kLayers + static_cast<std::size_t>(row.layer);
  if (lines_[at] != 0) {
    return bad_input(fmt::format("repeats request {}, step {}, layer {} of line {}", row.request,
                                 row.step, row.layer, lines_[at]));
  }
  lines_[at] = line;
  std::copy(row.ids.begin(), row.ids.end(),
            tensors_.topk_ids.begin() + static_cast<std::ptrdiff_t>(at * kPicks));
  std::copy(row.weights.begin(), row.weights.end(),
            weights_.begin() + static_cast<std::ptrdiff_t>(at * kPicks));
  return Done{};
}

Expected<Trace> Gatherer::finish(const std::string& name) {
  ASSAY_CHECK(check_complete());
  if (std::all_of(weights_.begin(), weights_.end(),
                  [](F32 weight) { return (weight.bits & 0xffff) == 0; })) {
    std::vector<Bf16> bf16;
    bf16.reserve(weights_.size());
    for (const F32 weight : weights_)
      bf16.push_back({static_cast<std::uint16_t>(weight.bits >> 16)});
    tensors_.topk_weights = std::move(bf16);
  } else {
    tensors_.topk_weights = std::move(weights_);
  }
  TraceInfo info;
  info.model = "gpt-oss-20b";
  info.licence = "not stated in the file";
  info.source = name;
  info.num_experts = kNumExperts;
  info.hidden_size = kHiddenSize;
  info.num_layers = kNumLayers;
  info.top_k = kTopK;
  return Trace::make(std::move(info), std::move(tensors_));
}

Status Gatherer::check_complete() const {
  if (tensors_.step.empty()) return bad_input("has no row of routing; allowed are 1 and more");
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i] != 0) continue;
    const std::size_t token = i / kNumLayers;
    const auto first = lines_.begin() + static_cast<std::ptrdiff_t>(token * kNumLayers);
    return bad_input(fmt::format(
        "has no row for request {}, step {}, layer {}, but has that token in line {}; every token "
        "has layers 0 to {}",
        tensors_.request[token], tensors_.step[token], i % kNumLayers,
        *std::find_if(first, first + kNumLayers, [](std::int64_t line) { return line != 0; }),
        kNumLayers - 1));
  }
  // A request that was decoded has all steps from 0 to its last one.
  for (std::size_t token = 0; token < tensors_.step.size(); ++token) {
    if (tensors_.step[token] == 0) continue;
    const std::uint64_t before =
        (std::uint64_t{static_cast<std::uint32_t>(tensors_.request[token])} << 32) |
        static_cast<std::uint32_t>(tensors_.step[token] - 1);
    if (token_of_.count(before) != 0) continue;
    return bad_input(
        fmt::format("line {}: request {} is at step {} but never at step {}; its steps "
                    "are 0, 1, 2 ... without a gap",
                    lines_[token * kNumLayers], tensors_.request[token], tensors_.step[token],
                    tensors_.step[token] - 1));
  }
  return Done{};
}

Status check_id(std::int64_t id) {
  if (0 <= id && id < kNumExperts) return Done{};
  return bad_input(fmt::format("expert id {}; allowed are 0 to {}", id, kNumExperts - 1));
}

Status check_distinct(const std::array<std::int16_t, kTopK>& ids) {
  for (std::size_t k = 1; k < ids.size(); ++k) {
    if (std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids[k]) ==
        ids.begin() + static_cast<std::ptrdiff_t>(k))
      continue;
    return bad_input(
        fmt::format("expert {} is picked twice; the picks of a token are distinct", ids[k]));
  }
  return Done{};
}

Status check_weight(F32 weight) {
  if (weight.bits < 0x7F800000 || weight.bits == 0x80000000) return Done{};
  return bad_input(fmt::format("weight {}; allowed are finite values from 0 up",
                               std::bit_cast<float>(weight.bits)));
}

}  // namespace assay::traces::gptoss
