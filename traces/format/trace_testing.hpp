// For tests only: small traces, from a RapidCheck generator or by hand.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "model/core/testing.hpp"
#include "traces/format/trace.hpp"

namespace assay::traces::testing {

struct Parts {
  TraceInfo info;
  TraceTensors tensors;
};

// `tokens` tokens over requests 0, 1, 2 in lockstep, two layers, top-2 of 4, BF16 weights.
inline Parts small_parts(std::int32_t tokens = 6) {
  Parts parts;
  parts.info = {"toy", "CC0-1.0", "made by hand", 4, 16, 2, 2, false};
  std::vector<Bf16> weights;
  for (std::int32_t i = 0; i < tokens; ++i) {
    parts.tensors.request.push_back(i % 3);
    parts.tensors.step.push_back(i / 3);
    parts.tensors.position.push_back(10 + i / 3);
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      parts.tensors.topk_ids.push_back(static_cast<std::int16_t>((i + layer) % 4));
      parts.tensors.topk_ids.push_back(static_cast<std::int16_t>((i + layer + 1) % 4));
      weights.insert(weights.end(), {Bf16{0x3f40}, Bf16{0x3e80}});  // 0.75, 0.25
    }
  }
  parts.tensors.topk_weights = weights;
  return parts;
}

inline Expected<Trace> make(const Parts& parts) { return Trace::make(parts.info, parts.tensors); }

// Any well-formed trace: 1 to 12 tokens, all three kinds of weights, sometimes padded.
inline rc::Gen<Parts> any_parts() {
  return rc::gen::exec([] {
    Parts parts;
    TraceInfo& info = parts.info;
    const auto number = [](std::int32_t low, std::int32_t high) {
      return *rc::gen::inRange<std::int32_t>(low, high + 1);
    };
    info = {"m\"\n\u00e9",   "l",          "s", 0,
            number(1, 4096), number(1, 3), 0,   *rc::gen::arbitrary<bool>()};
    info.top_k = number(1, 4);
    info.num_experts = number(info.top_k, info.top_k + 5);
    const std::int32_t tokens = number(1, 12);
    std::vector<std::int16_t> ids(static_cast<std::size_t>(info.num_experts));
    std::iota(ids.begin(), ids.end(), std::int16_t{0});
    std::vector<F32> weights;
    for (std::int32_t token = 0; token < tokens; ++token) {
      parts.tensors.request.push_back(number(0, 3));
      parts.tensors.step.push_back(number(0, 4));
      parts.tensors.position.push_back(token);
      for (std::int32_t layer = 0; layer < info.num_layers; ++layer) {
        for (std::int32_t k = 0; k < info.top_k; ++k) {
          const auto other = number(k, info.num_experts - 1);
          std::swap(ids[static_cast<std::size_t>(k)], ids[static_cast<std::size_t>(other)]);
          const bool none = info.padded && number(0, 3) == 0;
          parts.tensors.topk_ids.push_back(none ? std::int16_t{-1}
                                                : ids[static_cast<std::size_t>(k)]);
          const auto bits = static_cast<std::uint32_t>(number(0, 0x7f7f)) << 16;
          weights.push_back({none ? 0u : bits});
        }
      }
    }
    const std::int32_t kind = number(0, 2);
    if (kind == 1) {
      std::vector<Bf16> narrow;
      for (const F32 weight : weights)
        narrow.push_back({static_cast<std::uint16_t>(weight.bits >> 16)});
      parts.tensors.topk_weights = narrow;
    }
    if (kind == 2) {
      for (F32& weight : weights)
        if (weight.bits != 0) weight.bits |= 0x1234;
      parts.tensors.topk_weights = weights;
    }
    return parts;
  });
}

// Fails unless `result` is an error whose sentence has all of `pieces`.
template <class T>
void require_error(const Expected<T>& result, std::initializer_list<std::string> pieces) {
  REQUIRE_FALSE(result.has_value());
  INFO(result.error().sentence);
  CHECK(result.error().kind == ErrorKind::kBadInput);
  for (const std::string& piece : pieces) {
    INFO("must contain: " << piece);
    CHECK(result.error().sentence.find(piece) != std::string::npos);
  }
}

}  // namespace assay::traces::testing
