// What a trace may hold (SPEC TRC-1.2 to TRC-1.6).
#include "traces/format/trace.hpp"

#include <limits>

#include "traces/format/trace_testing.hpp"

namespace assay::traces {
namespace {

using testing::make;
using testing::Parts;
using testing::require_error;
using testing::small_parts;

TEST_CASE("a well-formed trace answers with what it was made of", "[TRC-1.3]") {
  assay::testing::prop("any parts", [] {
    const Parts parts = *testing::any_parts();
    const Expected<Trace> trace = make(parts);
    if (!trace) RC_FAIL(trace.error().sentence);
    std::size_t index = 0;
    for (std::int64_t token = 0; token < trace->num_tokens(); ++token) {
      for (std::int32_t layer = 0; layer < trace->num_layers(); ++layer) {
        for (std::int32_t k = 0; k < trace->top_k(); ++k, ++index) {
          RC_ASSERT(trace->topk_id(token, layer, k) == parts.tensors.topk_ids[index]);
          RC_ASSERT(trace->topk_ids(token, layer)[static_cast<std::size_t>(k)] ==
                    parts.tensors.topk_ids[index]);
        }
      }
    }
    RC_ASSERT(index == parts.tensors.topk_ids.size());
  });
}

TEST_CASE("the groups of a trace are its steps, ascending, with tokens in file order",
          "[TRC-1.6]") {
  assay::testing::prop("any parts", [] {
    const Parts parts = *testing::any_parts();
    Expected<Trace> made = make(parts);
    RC_ASSERT(made.has_value());
    const Trace trace = *std::move(made);  // groups survive a move
    std::int64_t seen = 0;
    std::int32_t step_before = -1;
    for (const TokenGroup& group : trace.groups()) {
      RC_ASSERT(group.step > step_before);
      step_before = group.step;
      std::int64_t token_before = -1;
      RC_ASSERT(!group.tokens.empty());
      for (const std::int64_t token : group.tokens) {
        RC_ASSERT(trace.step(token) == group.step);
        RC_ASSERT(token > token_before);
        token_before = token;
        ++seen;
      }
    }
    RC_ASSERT(seen == trace.num_tokens());
  });
}

TEST_CASE("sizes outside of the limits are refused", "[TRC-1.2]") {
  struct Case {
    std::int32_t TraceInfo::*field;
    std::int32_t value;
    const char* sentence;
  };
  for (const Case& c :
       {Case{&TraceInfo::num_experts, 32768, "num_experts is 32768; allowed are 1 to 32767"},
        Case{&TraceInfo::num_experts, 0, "num_experts is 0"},
        Case{&TraceInfo::hidden_size, 0, "hidden_size is 0"},
        Case{&TraceInfo::hidden_size, (1 << 20) + 1, "allowed are 1 to 1048576"},
        Case{&TraceInfo::num_layers, -1, "layers is -1"},
        Case{&TraceInfo::top_k, 5, "top_k is 5; allowed are 1 to 4"}}) {
    Parts parts = small_parts();
    parts.info.*c.field = c.value;
    require_error(make(parts), {c.sentence});
  }
  Parts unnamed = small_parts();
  unnamed.info.licence.clear();
  require_error(make(unnamed), {"licence is empty"});
}

TEST_CASE("tensors that do not fit together are refused", "[TRC-1.3]") {
  Parts parts = small_parts();
  parts.tensors.step.pop_back();
  require_error(make(parts), {"request has 6 tokens, step 5"});
  parts = small_parts();
  parts.tensors.topk_ids.pop_back();
  require_error(make(parts), {"topk_ids has 23 elements", "need 24"});
  parts = small_parts();
  std::get<std::vector<Bf16>>(parts.tensors.topk_weights).pop_back();
  require_error(make(parts), {"topk_weights has 23 elements; topk_ids has 24"});
  parts = small_parts(0);
  require_error(make(parts), {"0 tokens"});
  parts = small_parts();
  parts.tensors.topk_weights = std::vector<F32>();  // present but empty is not absent
  require_error(make(parts), {"topk_weights has 0 elements"});
}

TEST_CASE("an expert id outside of the model is refused at its place, for every code",
          "[TRC-1.4]") {
  // Element 21 of [6 tokens, 2 layers, 2]: token 5, layer 0; its neighbour picks expert 1.
  for (std::int32_t id = std::numeric_limits<std::int16_t>::min();
       id <= std::numeric_limits<std::int16_t>::max(); ++id) {
    for (const bool padded : {false, true}) {
      Parts parts = small_parts();
      parts.info.padded = padded;
      parts.tensors.topk_weights = {};
      parts.tensors.topk_ids[21] = static_cast<std::int16_t>(id);
      const Expected<Trace> trace = make(parts);
      const bool legal = id == 0 || id == 2 || id == 3 || (padded && id == -1);
      if (trace.has_value() == legal) continue;
      FAIL("id " << id << (legal ? " is refused" : " is accepted"));
    }
  }
  Parts parts = small_parts();
  parts.tensors.topk_ids[21] = 4;
  require_error(make(parts), {"request 2, step 1, layer 0: expert id 4; allowed are 0 to 3"});
  parts.tensors.topk_ids[21] = -1;
  require_error(make(parts), {"expert id -1", "only where padding is declared"});
}

TEST_CASE("a token that picks one expert twice in a layer is refused", "[TRC-1.4]") {
  Parts parts = small_parts();
  parts.tensors.topk_ids[3] = parts.tensors.topk_ids[2];
  require_error(make(parts), {"request 0, step 0, layer 1: expert 1 is picked twice"});
  parts = small_parts();
  parts.tensors.topk_ids[4] = parts.tensors.topk_ids[3];  // another row: legal
  parts.tensors.topk_ids[5] = 3;
  CHECK(make(parts).has_value());
  parts = small_parts();
  parts.info.padded = true;  // several absent picks are not one expert twice
  parts.tensors.topk_ids[2] = parts.tensors.topk_ids[3] = -1;
  parts.tensors.topk_weights = {};
  CHECK(make(parts).has_value());
}

TEST_CASE("of all 65,536 bf16 weights, the finite ones from 0 up are accepted", "[TRC-1.5]") {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    Parts parts = small_parts();
    std::get<std::vector<Bf16>>(parts.tensors.topk_weights)[7] = {static_cast<std::uint16_t>(bits)};
    const bool legal = bits <= 0x7f7f || bits == 0x8000;
    if (make(parts).has_value() == legal) continue;
    FAIL("weight bits " << bits << (legal ? " are refused" : " are accepted"));
  }
  Parts parts = small_parts();
  std::get<std::vector<Bf16>>(parts.tensors.topk_weights)[7] = {0x7fc0};
  require_error(make(parts), {"request 1, step 0, layer 1: weight nan (bits 0x7fc00000)"});
}

TEST_CASE("f32 weights beyond bf16 are checked in all bits", "[TRC-1.5]") {
  for (const auto& [bits, legal] :
       {std::pair{0x7f7fffffu, true}, std::pair{0x7f800000u, false}, std::pair{0x7f800001u, false},
        std::pair{0x80000001u, false}, std::pair{0x00000001u, true}}) {
    Parts parts = small_parts();
    std::vector<F32> weights(24, F32{0x3f000000});
    weights[23] = {bits};
    parts.tensors.topk_weights = weights;
    CAPTURE(bits);
    CHECK(make(parts).has_value() == legal);
  }
}

TEST_CASE("an absent pick has weight zero", "[TRC-1.5]") {
  Parts parts = small_parts();
  parts.info.padded = true;
  parts.tensors.topk_ids[9] = -1;
  require_error(make(parts), {"request 2, step 0, layer 0: weight 0.25 where there is no pick"});
  std::get<std::vector<Bf16>>(parts.tensors.topk_weights)[9] = {0};
  CHECK(make(parts).has_value());
}

TEST_CASE("a request is at one position of a step once", "[TRC-1.6]") {
  Parts parts = small_parts();
  parts.tensors.request[4] = 0;
  parts.tensors.step[4] = 0;  // a second token of request 0 in step 0: prefill, legal
  CHECK(make(parts).has_value());
  parts.tensors.position[4] = parts.tensors.position[0];
  require_error(make(parts), {"request 0 is at position 10 of step 0 twice"});
  parts = small_parts();
  parts.tensors.position[2] = -1;
  require_error(make(parts), {"token 2 has request 2, step 0, position -1"});
}

}  // namespace
}  // namespace assay::traces
