// Captured routing: which experts a router picked for each token in each layer, and which request,
// step and position the token belongs to. Decides what a well-formed trace is (SPEC TRC-1); a Trace
// that exists has passed every check, so nobody else looks at its values again. On which rank a
// token lives is no part of a trace: that is the replay's choice.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/core/bits.hpp"
#include "model/core/dtype.hpp"
#include "model/core/expected.hpp"

namespace assay::traces {

// What the metadata of a trace says. Limits: SPEC TRC-1.2.
struct TraceInfo {
  std::string model;    // as its publisher calls it
  std::string licence;  // under which the trace may be passed on
  std::string source;   // where it was captured, or came from
  std::int32_t num_experts = 0;
  std::int32_t hidden_size = 0;
  std::int32_t num_layers = 0;  // layers with experts, counted through
  std::int32_t top_k = 0;
  bool padded = false;  // id -1 may stand for "no pick" (SPEC TRC-1.4)

  friend bool operator==(const TraceInfo&, const TraceInfo&) = default;
};

// Nothing, BF16 or F32, [tokens, layers, top_k], row-major.
using TraceWeights = std::variant<std::monostate, std::vector<Bf16>, std::vector<F32>>;

// The tensors of a trace. Token order is file order.
struct TraceTensors {
  std::vector<std::int32_t> request;   // [tokens]
  std::vector<std::int32_t> step;      // [tokens], the batch that the token was part of
  std::vector<std::int32_t> position;  // [tokens], within its request, prompt included
  std::vector<std::int16_t> topk_ids;  // [tokens, layers, top_k], in the router's order
  TraceWeights topk_weights;
};

// The tokens of one step, in file order.
struct TokenGroup {
  std::int32_t step = 0;
  std::span<const std::int64_t> tokens;
};

class Trace {
 public:
  // Errors: every way in which `info` and `tensors` break SPEC TRC-1, with the token's request and
  // step, the layer and what is allowed.
  static Expected<Trace> make(TraceInfo info, TraceTensors tensors);

  const TraceInfo& info() const { return info_; }
  const TraceTensors& tensors() const { return tensors_; }
  std::int32_t num_experts() const { return info_.num_experts; }
  std::int32_t hidden_size() const { return info_.hidden_size; }
  std::int32_t num_layers() const { return info_.num_layers; }
  std::int32_t top_k() const { return info_.top_k; }
  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tensors_.step.size()); }

  // CONTRACT for all below: 0 <= token < num_tokens() and so on.
  std::int32_t request(std::int64_t token) const { return tensors_.request[at(token)]; }
  std::int32_t step(std::int64_t token) const { return tensors_.step[at(token)]; }
  std::int32_t position(std::int64_t token) const { return tensors_.position[at(token)]; }
  // [top_k], -1 where a padded trace has no pick.
  std::span<const std::int16_t> topk_ids(std::int64_t token, std::int32_t layer) const;
  std::int16_t topk_id(std::int64_t token, std::int32_t layer, std::int32_t k) const;

  bool has_weights() const { return tensors_.topk_weights.index() != 0; }
  // kBf16 or kF32. CONTRACT: has_weights().
  Dtype weights_dtype() const;
  // BF16 widens exactly. CONTRACT: has_weights().
  F32 topk_weight(std::int64_t token, std::int32_t layer, std::int32_t k) const;

  // Steps that have tokens, ascending: the order of a lockstep decode. Valid while the trace is,
  // also after a move.
  const std::vector<TokenGroup>& groups() const { return groups_; }

  Trace(Trace&&) noexcept = default;
  Trace& operator=(Trace&&) noexcept = default;
  Trace(const Trace&) = delete;  // groups_ points into by_step_
  Trace& operator=(const Trace&) = delete;

 private:
  Trace() = default;
  std::size_t at(std::int64_t token) const {
    CONTRACT(0 <= token && token < num_tokens(), token, num_tokens());
    return static_cast<std::size_t>(token);
  }
  std::size_t pick(std::int64_t token, std::int32_t layer, std::int32_t k) const {
    CONTRACT(0 <= layer && layer < num_layers() && 0 <= k && k < top_k(), layer, k);
    return (at(token) * static_cast<std::size_t>(num_layers()) + static_cast<std::size_t>(layer)) *
               static_cast<std::size_t>(top_k()) +
           static_cast<std::size_t>(k);
  }

  TraceInfo info_;
  TraceTensors tensors_;
  std::vector<std::int64_t> by_step_;  // all tokens, by step, then file order
  std::vector<TokenGroup> groups_;
};

// Same info and tensors, weights bit for bit.
bool same_trace(const Trace& a, const Trace& b);

// Limits of SPEC TRC-1.2. Ids are I16 and -1 is not an id, hence the first.
inline constexpr std::int32_t kTraceExpertsMax = 32767;
inline constexpr std::int32_t kTraceHiddenMax = 1 << 20;
inline constexpr std::int32_t kTraceLayersMax = 1 << 16;

}  // namespace assay::traces
