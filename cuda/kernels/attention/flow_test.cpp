// Every interleaving of a small prefill block, or of a cluster of two, whatever is visited and
// decided; what is looked for is in flow_search.cuh.
#include <random>

#include "cuda/kernels/attention/flow_search.cuh"

namespace assay::attention_kernels {
namespace {

using namespace testing;

const Range kRanges[] = {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 3}, {1, 2}, {2, 3}, {0, 4}};

TEST_CASE("no interleaving of a block's roles goes wrong, whatever is visited and decided",
          "[long][CUD-6.4]") {
  std::mt19937_64 random(20261130);
  std::size_t states = 0;
  int scenarios = 0;
  for (const Range first : kRanges) {
    for (const Range second : kRanges) {
      for (int time = 0; time < 4; ++time) {
        const Scenario s = scenario_of({work_with(first, second)}, random());
        for (const Kind kind : {Kind::kPending, Kind::kInTurn, Kind::kApart}) {
          // A role more makes many more states.
          if (kind == Kind::kApart && (time != 0 || s.works[0].all.count() > 3)) continue;
          Search search(s, Fault::kNone, kind);
          const auto wrong = search.run();
          INFO((wrong ? *wrong : ""));
          REQUIRE_FALSE(wrong.has_value());
          states += search.states();
        }
        ++scenarios;
      }
    }
  }
  CHECK(scenarios == 256);
  CHECK(states > 50'000);
}

TEST_CASE("several pieces of work follow each other without going wrong",
          "[long][CUD-6.3][CUD-6.4][CUD-6.8]") {
  std::mt19937_64 random(7);
  for (int time = 0; time < 30; ++time) {
    std::vector<SmallWork> works;
    const int count = 2 + static_cast<int>(random() % 3);
    for (int w = 0; w < count; ++w) {
      const auto range = [&] {
        const auto begin = static_cast<std::int32_t>(random() % 2);
        return Range{begin, begin + static_cast<std::int32_t>(random() % 3)};
      };
      works.push_back(work_with(range(), range()));
    }
    const Scenario s = scenario_of(works, random());
    for (const Kind kind : {Kind::kPending, Kind::kInTurn, Kind::kApart}) {
      if (kind == Kind::kApart && count > 2) continue;
      Search search(s, Fault::kNone, kind);
      const auto wrong = search.run();
      INFO((wrong ? *wrong : ""));
      REQUIRE_FALSE(wrong.has_value());
    }
  }
}

// Work for clusters: the pieces of a scenario follow each other.
const std::vector<std::vector<SmallWork>> kShared = {
    {work_with({0, 1}, {0, 0}), work_with({0, 0}, {0, 0}), work_with({0, 1}, {0, 1})},
    {work_with({0, 0}, {0, 0}), work_with({0, 0}, {0, 3})},
    {work_with({0, 0}, {0, 3}), work_with({0, 0}, {0, 0})},
    {work_with({0, 2}, {1, 2}), work_with({0, 0}, {0, 1})},
    {work_with({0, 1}, {0, 1}), work_with({0, 1}, {0, 2})},
};

TEST_CASE("no interleaving of two blocks that share their copies goes wrong",
          "[long][CUD-6.3][CUD-6.4][CUD-6.8][CUD-6.9]") {
  std::mt19937_64 random(11);
  std::size_t states = 0;
  for (const std::vector<SmallWork>& works : kShared) {
    for (const Kind kind : {Kind::kPending, Kind::kInTurn, Kind::kApart}) {
      // A role more makes many more states.
      const bool many = works[0].all.count() * works[1].all.count() > 0;
      if (many && kind == Kind::kApart) continue;
      const Scenario s = scenario_of(works, random());
      Search search(s, Fault::kNone, kind, 2);
      const auto wrong = search.run();
      INFO((wrong ? *wrong : ""));
      REQUIRE_FALSE(wrong.has_value());
      states += search.states();
    }
  }
  CHECK(states > 50'000);
}

TEST_CASE("the search notices what only blocks that share copies can do wrong", "[CUD-6.9]") {
  for (const Fault fault : {Fault::kReleasedAtHome, Fault::kSlotNotAwaited, Fault::kSlotLeftTooSoon,
                            Fault::kKeysNotAwaited, Fault::kReleaseTooEarly}) {
    for (const Kind kind : {Kind::kPending, Kind::kInTurn}) {
      bool found = false;
      std::mt19937_64 random(1);
      for (int time = 0; time < 4 && !found; ++time)
        for (const std::vector<SmallWork>& works : kShared)
          found = found || Search(scenario_of(works, random()), fault, kind, 2).run().has_value();
      INFO("fault " << static_cast<int>(fault) << " kind " << static_cast<int>(kind));
      CHECK(found);
    }
  }
}

TEST_CASE("the search notices planted faults", "[CUD-6.4]") {
  const std::vector<SmallWork> works = {work_with({0, 3}, {0, 4}), work_with({1, 3}, {0, 3})};
  for (const Fault fault :
       {Fault::kKeysNotAwaited, Fault::kReleasedUnfilled, Fault::kReleaseTooEarly,
        Fault::kQueriesNotAwaited, Fault::kTransposedNotAwaited}) {
    bool found = false;
    std::mt19937_64 random(1);
    for (int time = 0; time < 20 && !found; ++time) {
      const Scenario s = scenario_of(works, random());
      const Kind kind =
          fault == Fault::kTransposedNotAwaited || time % 2 != 0 ? Kind::kApart : Kind::kPending;
      found = Search(s, fault, kind).run().has_value();
    }
    INFO("fault " << static_cast<int>(fault));
    CHECK(found);
  }
}

}  // namespace
}  // namespace assay::attention_kernels
