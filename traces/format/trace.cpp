// The checks of a trace. See trace.hpp.
#include "traces/format/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <tuple>

#include "model/core/text.hpp"

namespace assay::traces {
namespace {

Status check_info(const TraceInfo& info);
Status check_shapes(const TraceInfo& info, const TraceTensors& tensors);
Status check_tokens(const TraceTensors& tensors);
Status check_picks(const TraceInfo& info, const TraceTensors& tensors);
Status check_weights(const TraceInfo& info, const TraceTensors& tensors);

std::size_t size_of(const TraceWeights& weights) {
  if (const auto* bf16 = std::get_if<std::vector<Bf16>>(&weights)) return bf16->size();
  if (const auto* f32 = std::get_if<std::vector<F32>>(&weights)) return f32->size();
  return 0;
}

F32 widened(const TraceWeights& weights, std::size_t index) {
  if (const auto* bf16 = std::get_if<std::vector<Bf16>>(&weights))
    return F32{std::uint32_t{(*bf16)[index].bits} << 16};
  return std::get<std::vector<F32>>(weights)[index];
}

}  // namespace

Expected<Trace> Trace::make(TraceInfo info, TraceTensors tensors) {
  ASSAY_CHECK(check_info(info));
  ASSAY_CHECK(check_shapes(info, tensors));
  ASSAY_CHECK(check_tokens(tensors));
  ASSAY_CHECK(check_picks(info, tensors));
  ASSAY_CHECK(check_weights(info, tensors));
  Trace trace;
  trace.info_ = std::move(info);
  trace.tensors_ = std::move(tensors);

  const std::vector<std::int32_t>& step = trace.tensors_.step;
  trace.by_step_.resize(step.size());
  std::iota(trace.by_step_.begin(), trace.by_step_.end(), std::int64_t{0});
  std::stable_sort(trace.by_step_.begin(), trace.by_step_.end(),
                   [&](std::int64_t a, std::int64_t b) {
                     return step[static_cast<std::size_t>(a)] < step[static_cast<std::size_t>(b)];
                   });
  for (std::size_t begin = 0, end = 0; begin < step.size(); begin = end) {
    const std::int32_t number = trace.step(trace.by_step_[begin]);
    while (end < step.size() && trace.step(trace.by_step_[end]) == number) ++end;
    trace.groups_.push_back({number, std::span(trace.by_step_).subspan(begin, end - begin)});
  }
  return trace;
}

std::span<const std::int16_t> Trace::topk_ids(std::int64_t token, std::int32_t layer) const {
  return std::span(tensors_.topk_ids)
      .subspan(pick(token, layer, 0), static_cast<std::size_t>(top_k()));
}

std::int16_t Trace::topk_id(std::int64_t token, std::int32_t layer, std::int32_t k) const {
  return tensors_.topk_ids[pick(token, layer, k)];
}

Dtype Trace::weights_dtype() const {
  CONTRACT(has_weights());
  return std::holds_alternative<std::vector<Bf16>>(tensors_.topk_weights) ? Dtype::kBf16
                                                                          : Dtype::kF32;
}

F32 Trace::topk_weight(std::int64_t token, std::int32_t layer, std::int32_t k) const {
  CONTRACT(has_weights());
  return widened(tensors_.topk_weights, pick(token, layer, k));
}

bool same_trace(const Trace& a, const Trace& b) {
  const TraceTensors &x = a.tensors(), &y = b.tensors();
  if (a.info() != b.info() || x.request != y.request || x.step != y.step ||
      x.position != y.position || x.topk_ids != y.topk_ids ||
      x.topk_weights.index() != y.topk_weights.index())
    return false;
  for (std::size_t i = 0; i < size_of(x.topk_weights); ++i)
    if (!same_bits(widened(x.topk_weights, i), widened(y.topk_weights, i))) return false;
  return true;
}

namespace {

Status in_limits(const char* name, std::int64_t value, std::int64_t max) {
  if (1 <= value && value <= max) return Done{};
  return bad_input(fmt::format("{} is {}; allowed are 1 to {}", name, value, max));
}

Status check_info(const TraceInfo& info) {
  ASSAY_CHECK(in_limits("num_experts", info.num_experts, kTraceExpertsMax));
  ASSAY_CHECK(in_limits("hidden_size", info.hidden_size, kTraceHiddenMax));
  ASSAY_CHECK(in_limits("layers", info.num_layers, kTraceLayersMax));
  ASSAY_CHECK(in_limits("top_k", info.top_k, info.num_experts));
  for (const auto& [name, text] : {std::pair("model", std::string_view(info.model)),
                                   std::pair("licence", std::string_view(info.licence)),
                                   std::pair("source", std::string_view(info.source))}) {
    if (text.empty())
      return bad_input(fmt::format("{} is empty; a trace says what it is and where from", name));
  }
  return Done{};
}

// (SPEC TRC-1.3)
Status check_shapes(const TraceInfo& info, const TraceTensors& tensors) {
  const std::size_t tokens = tensors.request.size();
  if (tokens == 0) return bad_input("the trace has 0 tokens; allowed are 1 and more");
  if (tensors.step.size() != tokens || tensors.position.size() != tokens) {
    return bad_input(fmt::format("request has {} tokens, step {} and position {}; they are equal",
                                 tokens, tensors.step.size(), tensors.position.size()));
  }
  const std::size_t picks =
      tokens * static_cast<std::size_t>(info.num_layers) * static_cast<std::size_t>(info.top_k);
  if (tensors.topk_ids.size() != picks) {
    return bad_input(
        fmt::format("topk_ids has {} elements; {} tokens, {} layers and top_k {} need {}",
                    tensors.topk_ids.size(), tokens, info.num_layers, info.top_k, picks));
  }
  const bool weighted = tensors.topk_weights.index() != 0;
  if (weighted && size_of(tensors.topk_weights) != picks) {
    return bad_input(fmt::format("topk_weights has {} elements; topk_ids has {}",
                                 size_of(tensors.topk_weights), picks));
  }
  return Done{};
}

// (SPEC TRC-1.6)
Status check_tokens(const TraceTensors& tensors) {
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>> keys;
  keys.reserve(tensors.step.size());
  for (std::size_t i = 0; i < tensors.step.size(); ++i) {
    const auto key = std::tuple(tensors.request[i], tensors.step[i], tensors.position[i]);
    if (tensors.request[i] < 0 || tensors.step[i] < 0 || tensors.position[i] < 0) {
      return bad_input(
          fmt::format("token {} has request {}, step {}, position {}; allowed are 0 "
                      "and more",
                      i, tensors.request[i], tensors.step[i], tensors.position[i]));
    }
    keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return Done{};
  return bad_input(fmt::format("request {} is at position {} of step {} twice; allowed is once",
                               std::get<0>(*twice), std::get<2>(*twice), std::get<1>(*twice)));
}

// "request 3, step 7, layer 1" of element `index` of [tokens, layers, top_k].
std::string place(const TraceInfo& info, const TraceTensors& tensors, std::size_t index) {
  const std::size_t row = index / static_cast<std::size_t>(info.top_k);
  const std::size_t token = row / static_cast<std::size_t>(info.num_layers);
  return fmt::format("request {}, step {}, layer {}", tensors.request[token], tensors.step[token],
                     row % static_cast<std::size_t>(info.num_layers));
}

// (SPEC TRC-1.4)
Status check_picks(const TraceInfo& info, const TraceTensors& tensors) {
  const std::vector<std::int16_t>& ids = tensors.topk_ids;
  const auto top_k = static_cast<std::size_t>(info.top_k);
  // last_row[e]: one more than the last row that picked expert e. One pass, whatever top_k is.
  std::vector<std::size_t> last_row(static_cast<std::size_t>(info.num_experts), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == -1 && info.padded) continue;
    if (ids[i] < 0 || ids[i] >= info.num_experts) {
      return bad_input(fmt::format("{}: expert id {}; allowed are 0 to {}{}",
                                   place(info, tensors, i), ids[i], info.num_experts - 1,
                                   info.padded    ? ", or -1 for no pick"
                                   : ids[i] == -1 ? ", and -1 only where padding is declared"
                                                  : ""));
    }
    std::size_t& row = last_row[static_cast<std::size_t>(ids[i])];
    if (row == i / top_k + 1) {
      return bad_input(
          fmt::format("{}: expert {} is picked twice; the picks of a token are distinct",
                      place(info, tensors, i), ids[i]));
    }
    row = i / top_k + 1;
  }
  return Done{};
}

// (SPEC TRC-1.5)
Status check_weights(const TraceInfo& info, const TraceTensors& tensors) {
  constexpr std::uint32_t kInfinity = 0x7F800000, kMinusZero = 0x80000000;
  for (std::size_t i = 0; i < size_of(tensors.topk_weights); ++i) {
    const std::uint32_t bits = widened(tensors.topk_weights, i).bits;
    // As bit patterns, the finite values from 0 up lie below infinity.
    if (bits < kInfinity || bits == kMinusZero) {
      if (tensors.topk_ids[i] != -1 || bits == 0) continue;
      return bad_input(fmt::format("{}: weight {} where there is no pick; allowed is 0",
                                   place(info, tensors, i), std::bit_cast<float>(bits)));
    }
    return bad_input(
        fmt::format("{}: weight {} (bits {:#010x}); allowed are finite values from 0 up",
                    place(info, tensors, i), std::bit_cast<float>(bits), bits));
  }
  return Done{};
}

}  // namespace
}  // namespace assay::traces
