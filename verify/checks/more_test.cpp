// The checks of what a round asks for beyond dispatch and combine are seen to fail, on the
// simulated kernels with one thing spoiled before the experts are called; and subjects that serve
// no more are skipped.
#include <functional>
#include <utility>
#include <vector>

#include "model/core/testing.hpp"
#include "model/moe/statistics.hpp"
#include "verify/gen/gen.hpp"
#include "verify/subject/sim_subject.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {
namespace {

// Between the caller and the simulated kernels. State is global: the C interface has no room for a
// context in its table, and tests run one at a time.
struct Between {
  std::function<void(const assay_round_more&)> spoil;
  assay_group_config config{};  // the caller's
  std::vector<const assay_round_more*> more;
  assay_experts experts = nullptr;
  void* context = nullptr;
};
Between between;

int create(const assay_group_config* config, void** group, assay_message* message) {
  between.config = *config;
  assay_group_config own = *config;
  own.more = [](void*, std::int32_t round) {
    const assay_round_more* more = between.config.more(between.config.more_context, round);
    between.more.push_back(more);
    return more;
  };
  return simulated_subject().create(&own, group, message);
}

int run(void* group, const assay_round* rounds, std::int32_t num_rounds, assay_experts experts,
        void* context, assay_message* message) {
  between.more.clear();
  between.experts = experts;
  between.context = context;
  const auto spoil = [](void*, std::int32_t round, std::int32_t rank) {
    if (rank == 1 && between.spoil) between.spoil(*between.more[static_cast<std::size_t>(round)]);
    between.experts(between.context, round, rank);
  };
  return simulated_subject().run(group, rounds, num_rounds, spoil, nullptr, message);
}

constexpr Axes kMore{.statistics = true, .expert_lists = true};

Outcome outcome_of(const Subject& subject) {
  auto c = parse_moe_case("ep=3 experts=7 top_k=4 hidden=8 max_tokens=5 tokens=5,4,3 rounds=2",
                          MoeCase{});
  REQUIRE(c.has_value());
  const auto scenario = make_scenario(*c, kMore);
  REQUIRE(scenario.has_value());
  auto outcome = run_scenario(subject, *scenario);
  REQUIRE(outcome.has_value());
  return *std::move(outcome);
}

Outcome spoiled_by(std::function<void(const assay_round_more&)> spoil) {
  static constexpr assay_subject kTable{ASSAY_SUBJECT_ABI_VERSION,
                                        sizeof(assay_subject),
                                        "between",
                                        create,
                                        run,
                                        &sim_destroy,
                                        &sim_slot_rule};
  between.spoil = std::move(spoil);
  const auto subject = Subject::wrap(&kTable, "between");
  REQUIRE(subject.has_value());
  return outcome_of(*subject);
}

const Mismatch& first_of(const Outcome& outcome) {
  REQUIRE(outcome.state == Outcome::State::kMismatch);
  return outcome.mismatches.front();
}

bool says(const Mismatch& mismatch, std::string_view text) {
  for (const std::string& diagnosis : mismatch.diagnoses)
    if (diagnosis.find(text) != std::string::npos) return true;
  return mismatch.sentence.find(text) != std::string::npos;
}

TEST_CASE("statistics of dead ranks are zero, those of living ones as they were told",
          "[MOE-2.10]") {
  const std::vector<std::vector<std::int32_t>> told{{1, -2}, {3, 4}, {5, 6}};
  moe::RankMask alive = moe::RankMask::all();
  alive.set_alive(RankId(1), false);
  CHECK(moe::gathered_statistics(told, alive) == std::vector<std::int32_t>{1, -2, 0, 0, 5, 6});
  CHECK(moe::gathered_statistics(told, moe::RankMask::all()) ==
        std::vector<std::int32_t>{1, -2, 3, 4, 5, 6});
  CHECK(moe::gathered_statistics({}, alive).empty());
}

TEST_CASE("the simulated kernels conform, so that the faults below are the only ones",
          "[MOE-2.10][MOE-2.8]") {
  const Outcome outcome = spoiled_by({});
  CHECK(outcome.state == Outcome::State::kConforms);
  CHECK(outcome.coverage.statistics_words > 0);
  CHECK(outcome.coverage.list_entries > 0);
}

TEST_CASE("a statistic that is another rank's is dispatch.statistics and says whose",
          "[MOE-2.10][VER-2.6]") {
  const Outcome outcome = spoiled_by([](const assay_round_more& more) {
    for (std::int32_t i = 0; i < more.num_statistics; ++i)
      more.gathered_statistics[1][i] = more.statistics[2][i];
  });
  const Mismatch& mismatch = first_of(outcome);
  CHECK(mismatch.check == "dispatch.statistics");
  CHECK(mismatch.coordinate("rank") == 1);
  CHECK(mismatch.coordinate("source") == 0);
  CHECK(says(mismatch, "the words of rank 2"));
}

TEST_CASE("a list in another order, a wrong offset and an entry too many are dispatch.lists",
          "[MOE-2.8][VER-2.6]") {
  const auto swap_entries = [](const assay_round_more& more) {
    const std::int32_t* offsets = more.list_offsets[1];
    std::int32_t e = 0;
    while (offsets[e + 1] - offsets[e] < 2) ++e;
    std::int32_t* entry = more.list_entries[1] + 2 * offsets[e];
    std::swap(entry[0], entry[2]);
    std::swap(entry[1], entry[3]);
  };
  Outcome outcome = spoiled_by(swap_entries);
  CHECK(first_of(outcome).check == "dispatch.lists");
  CHECK(first_of(outcome).coordinate("entry") == 0);
  CHECK(says(first_of(outcome), "in another order"));

  outcome = spoiled_by([](const assay_round_more& more) { more.list_offsets[1][1] += 1; });
  CHECK(first_of(outcome).check == "dispatch.lists");
  CHECK(says(first_of(outcome), "begins at entry"));

  outcome = spoiled_by([](const assay_round_more& more) {
    more.list_entries[1][2 * more.list_offsets[1][2]] = 7;  // rank 1 has two experts
  });
  CHECK(first_of(outcome).check == "dispatch.lists");
  CHECK(says(first_of(outcome), "wrote behind the last"));
}

int create_mute(const assay_group_config* config, void** group, assay_message* message) {
  assay_group_config without = *config;
  without.more = nullptr;
  return simulated_subject().create(&without, group, message);
}

TEST_CASE("a subject that does not ask for more is skipped", "[VER-1.7]") {
  static constexpr assay_subject kMute{ASSAY_SUBJECT_ABI_VERSION,
                                       sizeof(assay_subject),
                                       "mute",
                                       create_mute,
                                       &sim_run,
                                       &sim_destroy,
                                       &sim_slot_rule};
  const auto subject = Subject::wrap(&kMute, "mute");
  REQUIRE(subject.has_value());
  const Outcome outcome = outcome_of(*subject);
  CHECK(outcome.state == Outcome::State::kUnsupported);
  CHECK(outcome.unsupported.find("did not ask") != std::string::npos);
}

}  // namespace
}  // namespace assay::verify
