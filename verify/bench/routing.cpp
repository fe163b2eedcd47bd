// Models as data; routing to bytes.
#include "verify/bench/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/core/text.hpp"
#include "model/moe/dispatch.hpp"
#include "model/moe/placement.hpp"
#include "model/moe/routing.hpp"
#include "verify/bench/bench.hpp"

namespace assay::verify::bench {

std::span<const Model> models() {
  static const Model kModels[] = {
      {"deepseek_v3", 7168, 8, 256},
      {"deepseek_v4_1_flash", 5120, 6, 256},
      {"gpt_oss", 2880, 4, 128},
      {"kimi_k3", 3584, 16, 896},
  };
  return kModels;
}

Expected<Model> find_model(std::string_view name) {
  std::vector<std::string> names;
  for (const Model& model : models()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  return bad_input(fmt::format("model is {}; allowed are {}", in_quotes(name), joined(names)));
}

Expected<std::vector<std::int32_t>> perfect_router(const Model& model, std::int32_t ep_size,
                                                   std::int32_t num_tokens) {
  if (model.num_experts % ep_size != 0)
    return bad_input(
        fmt::format("perfect_router needs as many experts on every rank; {} has {} on "
                    "{} ranks",
                    model.name, model.num_experts, ep_size));
  const std::int32_t per_rank = model.num_experts / ep_size;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(num_tokens) *
                                static_cast<std::size_t>(model.top_k));
  for (std::size_t s = 0; s < ids.size(); ++s) {
    const auto flat = static_cast<std::int64_t>(s);
    ids[s] = static_cast<std::int32_t>(flat % ep_size * per_rank + flat / ep_size % per_rank);
  }
  return ids;
}

std::int64_t Traffic::busiest_rank() const {
  std::int64_t most = 0;
  for (std::int32_t rank = 0; rank < ep_size; ++rank) {
    std::int64_t out = 0, in = 0;
    for (std::int32_t peer = 0; peer < ep_size; ++peer) {
      if (peer == rank) continue;
      out += of(rank, peer);
      in += of(peer, rank);
    }
    most = std::max({most, out, in});
  }
  return most;
}

std::int64_t Traffic::remote() const {
  std::int64_t sum = 0;
  for (std::int32_t source = 0; source < ep_size; ++source)
    for (std::int32_t target = 0; target < ep_size; ++target)
      if (source != target) sum += of(source, target);
  return sum;
}

Expected<Traffic> dispatch_traffic(const Model& model, std::int32_t ep_size,
                                   std::span<const std::vector<std::int32_t>> topk_ids,
                                   std::int64_t row_bytes) {
  std::int32_t most = 1;
  for (const auto& ids : topk_ids)
    most = std::max(most, static_cast<std::int32_t>(ids.size()) / model.top_k);
  ASSAY_TRY(const moe::Placement placement, moe::Placement::contiguous(ep_size, model.num_experts));
  ASSAY_TRY(const moe::Routing routing, moe::Routing::make(model.top_k, most,
                                                           std::vector<std::vector<std::int32_t>>(
                                                               topk_ids.begin(), topk_ids.end())));
  ASSAY_TRY(const moe::DispatchPlan plan,
            moe::plan_dispatch(placement, routing, moe::SlotRule::kCanonical));
  Traffic traffic{ep_size, {}};
  for (std::int32_t source = 0; source < ep_size; ++source)
    for (std::int32_t target = 0; target < ep_size; ++target)
      traffic.bytes.push_back(row_bytes * plan.recv_counter(RankId(target), RankId(source)));
  return traffic;
}

Traffic returned(const Traffic& dispatch, std::int64_t dispatch_row_bytes,
                 std::int64_t combine_row_bytes) {
  Traffic back{dispatch.ep_size, {}};
  for (std::int32_t source = 0; source < dispatch.ep_size; ++source)
    for (std::int32_t target = 0; target < dispatch.ep_size; ++target)
      back.bytes.push_back(dispatch.of(target, source) / dispatch_row_bytes * combine_row_bytes);
  return back;
}

double logical_bandwidth(std::int64_t batch, std::int32_t ep_size, std::int32_t top_k,
                         std::int64_t row_bytes, double microseconds) {
  return static_cast<double>(batch * std::min(ep_size, top_k) * row_bytes) / microseconds * 1e-3;
}

double link_bandwidth(const Traffic& traffic, double microseconds) {
  return static_cast<double>(traffic.busiest_rank()) / microseconds * 1e-3;
}

bool Figure::is_near_known() const { return !known || std::abs(value - *known) <= 0.03 * *known; }

bool BenchResult::ceilings_hold() const {
  return std::all_of(ceilings.begin(), ceilings.end(), [](const Figure& figure) {
    return !figure.decides || figure.is_near_known();
  });
}

}  // namespace assay::verify::bench
