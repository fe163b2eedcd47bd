// What the two GPT-OSS formats share: the sizes of the model, which their files do not state, and
// the gathering of rows (token, layer) that may come in any order (SPEC TRC-2.2, TRC-2.3). Not for
// use outside this folder.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/core/bits.hpp"
#include "model/core/expected.hpp"
#include "traces/format/trace.hpp"

namespace assay::traces::gptoss {

inline constexpr std::int32_t kNumExperts = 32;
inline constexpr std::int32_t kNumLayers = 24;
inline constexpr std::int32_t kTopK = 4;
inline constexpr std::int32_t kHiddenSize = 2880;

struct Row {
  std::int32_t request = 0, step = 0, position = 0, layer = 0;
  std::array<std::int16_t, kTopK> ids{};  // checked by the reader, which knows the line
  std::array<F32, kTopK> weights{};
};

class Gatherer {
 public:
  // `line` counts from 1. Errors: a (request, step, layer) that was there before.
  Status add(const Row& row, std::int64_t line);
  // Errors: no row at all, a layer of a token missing, a step of a request missing. Weights become
  // BF16 if that loses nothing (SPEC TRC-2.5).
  Expected<Trace> finish(const std::string& name);

 private:
  Status check_complete() const;
  std::unordered_map<std::uint64_t, std::size_t> token_of_;  // request, step -> token
  TraceTensors tensors_;
  std::vector<F32> weights_;
  std::vector<std::int64_t> lines_;  // [tokens, layers], 0 where there was no row
};

// A sentence unless an id is 0..31, or the ids are distinct, or a weight is finite and not below 0.
Status check_id(std::int64_t id);
Status check_distinct(const std::array<std::int16_t, kTopK>& ids);
Status check_weight(F32 weight);

}  // namespace assay::traces::gptoss
