// What kernels are told of experts and of a token's bytes, and what a run's caller may ask for
// beyond dispatch and combine, as far as planning refuses it: before a kernel would read through a
// null pointer.
#include "verify/subject/one_sided_plan.hpp"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/core/testing.hpp"

namespace assay::verify {
namespace {

using one_sided::Reciprocal;

TEST_CASE("experts are divided by ranks with one multiplication, exactly", "[KER-1.1]") {
  // On both sides of every multiple, of every divisor that a split can have.
  bool all = true;
  for (std::uint32_t d = 1; d <= one_sided::kMaxExperts + 1u; ++d) {
    const Reciprocal by = Reciprocal::of(d);
    for (std::uint32_t multiple = d; multiple <= one_sided::kMaxExperts + 1u; multiple += d)
      all = all && by.times(multiple - 1) == multiple / d - 1 &&
            (multiple > one_sided::kMaxExperts || by.times(multiple) == multiple / d);
    all = all && by.times(0) == 0;
  }
  CHECK(all);
}

TEST_CASE("more experts than can be divided by are unsupported", "[KER-1.1]") {
  assay_group_config config{};
  config.struct_size = sizeof config;
  config.ep_size = config.num_local_ranks = 2;
  config.num_experts = 65'536;
  config.top_k = 2;
  config.hidden_size = 8;
  config.max_tokens_per_rank = 3;
  config.max_payload_bytes_total = 8;
  config.profile = "flashinfer-oneside@0.6.16";
  const auto refused = plan_group(config);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().kind == ErrorKind::kUnsupported);
  CHECK(refused.error().sentence == "65536 experts; our kernels have at most 65535");
  config.num_experts = 65'535;
  CHECK(plan_group(config).has_value());
}

one_sided::DispatchParams token_of(const std::vector<std::pair<std::uint32_t, int>>& payloads) {
  one_sided::DispatchParams params{};
  for (const auto& [bytes, vector] : payloads)
    params.payload[params.num_payloads++] = {Address{}, 0, bytes,
                                             static_cast<std::uint16_t>(vector)};
  describe_token(params);
  return params;
}

TEST_CASE("the longest payload of 16-byte pieces is shared out, the others have teams",
          "[KER-1.4]") {
  const auto token = token_of({{32, 4}, {160, 16}, {5120, 16}, {24, 8}});
  CHECK(token.vectors.whole.first == 12);  // as Sentinel numbers them: 2 and 10 come before
  CHECK(token.vectors.whole.count == 320);
  CHECK(token.vectors.whole_payload == 2);
  CHECK(token.vectors.count == 334);
  CHECK(token.vectors.most_other_pieces == 10);
  CHECK(vectors_and_teams(token) == 320 + 3 * 32);
  const auto odd = token_of({{5, 1}, {6, 2}});  // none has 16-byte pieces
  CHECK(odd.vectors.whole.count == 0);
  CHECK(odd.vectors.most_other_pieces == 5);
  CHECK(vectors_and_teams(odd) == 2 * 32);
}

// One round of two ranks that has two statistics and wants slot lists, with a payload of ids.
class Asking {
 public:
  static constexpr std::int32_t kRanks = 2, kTopK = 2;
  assay_round_more more{};
  bool has_more = true;

  Asking() {
    more.struct_size = sizeof more;
    more.num_statistics = 2;
    more.statistics = statistics;
    more.gathered_statistics = gathered;
    more.list_offsets = offsets;
    more.list_entries = entries;
  }

  // Why the round is refused; empty: it is not.
  std::string refusal() {
    assay_group_config config{};
    config.struct_size = sizeof config;
    config.ep_size = config.num_local_ranks = kRanks;
    config.num_experts = 4;
    config.top_k = kTopK;
    config.hidden_size = 8;
    config.max_tokens_per_rank = 3;
    config.max_payload_bytes_total = 4 * kTopK;
    config.profile = "flashinfer-oneside@0.6.16";
    config.more = [](void* context, std::int32_t) -> const assay_round_more* {
      const auto* self = static_cast<const Asking*>(context);
      return self->has_more ? &self->more : nullptr;
    };
    config.more_context = this;
    config.num_statistics = 2;
    config.expert_lists = 1;
    const auto group = plan_group(config);
    REQUIRE(group.has_value());
    const assay_payload payload{"topk_ids", 4 * kTopK, 1};
    assay_round round{};
    round.struct_size = sizeof round;
    round.max_tokens_per_rank = 3;
    round.num_payloads = 1;
    round.payloads = &payload;
    round.num_tokens = num_tokens;
    const auto plans = plan_rounds(*group, std::span(&round, 1));
    if (plans) return "";
    CHECK(plans.error().kind == ErrorKind::kBadInput);
    return plans.error().sentence;
  }

  std::int32_t words[16] = {};
  std::int32_t num_tokens[kRanks] = {3, 1};
  const std::int32_t* statistics[kRanks] = {words, words};
  std::int32_t* gathered[kRanks] = {words, words};
  std::int32_t* offsets[kRanks] = {words, words};
  std::int32_t* entries[kRanks] = {words, words};
};

std::string refusal(const std::function<void(Asking&)>& spoil) {
  Asking asking;
  spoil(asking);
  return asking.refusal();
}

TEST_CASE("a round that lacks a pointer of its statistics is refused with its name", "[VER-1.7]") {
  CHECK(refusal([](Asking&) {}) == "");
  CHECK(refusal([](Asking& a) { a.more.statistics = nullptr; }) ==
        "the round has statistics; statistics may not be null");
  CHECK(refusal([](Asking& a) { a.statistics[1] = nullptr; }) ==
        "the round has statistics; statistics[1] may not be null");
  CHECK(refusal([](Asking& a) { a.more.gathered_statistics = nullptr; }) ==
        "the round has statistics; gathered_statistics may not be null");
  CHECK(refusal([](Asking& a) { a.gathered[0] = nullptr; }) ==
        "the round has statistics; gathered_statistics[0] may not be null");
  // Where none travel they are not looked at.
  CHECK(refusal([](Asking& a) {
          a.more.num_statistics = 0;
          a.more.statistics = nullptr;
          a.more.gathered_statistics = nullptr;
        }) == "");
}

TEST_CASE("a round that lacks a pointer of its slot lists is refused with its name", "[VER-1.7]") {
  CHECK(refusal([](Asking& a) { a.more.list_entries = nullptr; }) ==
        "the round wants slot lists; list_entries may not be null");
  CHECK(refusal([](Asking& a) { a.entries[1] = nullptr; }) ==
        "the round wants slot lists; list_entries[1] may not be null");
  CHECK(refusal([](Asking& a) { a.offsets[0] = nullptr; }) ==
        "the round wants slot lists; list_offsets[0] may not be null");
  CHECK(refusal([](Asking& a) {
          a.more.list_offsets = nullptr;
          a.more.list_entries = nullptr;
        }) == "");
}

TEST_CASE("a round that asks for nothing more is one, and a smaller struct is refused",
          "[VER-1.7]") {
  CHECK(refusal([](Asking& a) { a.has_more = false; }) == "");
  CHECK(refusal([](Asking& a) { --a.more.struct_size; }) ==
        "assay_round_more has " + std::to_string(sizeof(assay_round_more) - 1) +
            " bytes; at least " + std::to_string(sizeof(assay_round_more)) + " are needed");
}

}  // namespace
}  // namespace assay::verify
