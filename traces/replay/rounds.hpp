// A trace cut into rounds: one per (step, layer), its tokens placed on ranks, its payload rows
// filled with bytes that name where they belong. Decides SPEC TRC-3.1 to TRC-3.3: what of a round
// comes from the trace (picks, weights, who is in a step) and what is made up because no trace has
// it (hidden states, scales).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/core/expected.hpp"
#include "model/moe/buffer_sizes.hpp"
#include "model/moe/profile.hpp"
#include "traces/format/trace.hpp"
#include "traces/replay/token_placement.hpp"
#include "verify/subject/round.hpp"

namespace assay::traces {

// Half-open; without an end, to the last. Steps are the numbers in the trace, layers are positions.
struct Selection {
  std::int64_t begin = 0;
  std::optional<std::int64_t> end;
};

struct RoundsSetup {
  std::int32_t ep_size = 1;
  moe::Recipe recipe = moe::Recipe::kBf16;
  const moe::CombineProfile* profile = nullptr;  // nullptr: default_combine_profile()
  TokenPlacement placement = TokenPlacement::kContiguous;
  Selection steps, layers;
  std::optional<std::int32_t> hidden_size;  // nothing: the model's own
  // Slots per source. Nothing: in each step what the fullest rank needs (SPEC TRC-3.2).
  std::optional<std::int32_t> max_tokens_per_rank;
  std::uint64_t seed = 1;  // of payload bytes and schedules
  std::string subject_options;
};

class Rounds {
 public:
  // The trace must outlive the result. Errors: an ep_size, hidden size or recipe that does not fit
  // the trace, a selection without a round, a rank with more tokens than max_tokens_per_rank.
  static Expected<Rounds> make(const Trace& trace, const RoundsSetup& setup);

  // What every group that replays these rounds is created with.
  const verify::GroupSetup& group() const { return group_; }
  const RoundsSetup& setup() const { return setup_; }
  std::span<const moe::Payload> payloads() const { return payloads_; }
  std::int64_t num_steps() const { return static_cast<std::int64_t>(steps_.size()); }
  std::int32_t num_layers() const { return last_layer_ - first_layer_; }
  std::int64_t num_rounds() const { return num_steps() * num_layers(); }
  // The number in the trace of the i-th selected step; the position in the trace of the i-th layer.
  std::int32_t step_number(std::int64_t step) const;
  std::int32_t layer_number(std::int32_t layer) const { return first_layer_ + layer; }

  // Round (step, layer), both counted within the selection. Reuses what `round` holds; the same for
  // the same arguments.
  void fill(std::int64_t step, std::int32_t layer, verify::Round& round) const;

 private:
  struct Step {
    std::int32_t number = 0;
    std::int32_t max_tokens_per_rank = 1;
    std::vector<std::vector<std::int64_t>> tokens;  // [rank] -> positions in the trace
  };
  Rounds() = default;
  Status collect_steps();
  Step place_step(std::int32_t number, std::span<const std::int64_t> tokens,
                  std::span<const std::int32_t> requests) const;
  Status check_fits(const Step& step) const;
  void fill_weights(const Step& step, std::int32_t layer, std::uint64_t key,
                    verify::RoundPayload& rows) const;

  const Trace* trace_ = nullptr;
  RoundsSetup setup_;
  verify::GroupSetup group_;
  std::vector<moe::Payload> payloads_;
  std::vector<Step> steps_;  // ascending
  std::int32_t first_layer_ = 0;
  std::int32_t last_layer_ = 0;  // one past
};

// Two numbers and a seed into 64 bits that differ wherever they do (SPEC TRC-3.3).
std::uint64_t mix(std::uint64_t seed, std::int64_t a, std::int64_t b);

}  // namespace assay::traces
