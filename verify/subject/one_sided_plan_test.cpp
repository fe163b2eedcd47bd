// What a run's caller may ask for beyond dispatch and combine, as far as planning refuses it:
// before a kernel would read through a null pointer.
#include "verify/subject/one_sided_plan.hpp"

#include <functional>
#include <string>

#include "model/core/testing.hpp"

namespace assay::verify {
namespace {

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
