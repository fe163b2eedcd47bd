// Every check is seen to fail, on a subject with one fault, and to name the place and the cause.
// Sums are combine_bits_test.cpp's.
#include "verify/checks/checks.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "model/core/testing.hpp"
#include "verify/checks/spoiled_rounds.hpp"

namespace assay::verify {
namespace {

using testing::Block;
using testing::block_with;
using testing::first_of;
using testing::now;
using testing::outcome_of;
using testing::recv_row;
using testing::says;
using testing::swap_rows;

TEST_CASE("the example plugin conforms, so that the faults below are the only ones", "[VER-2.1]") {
  const Outcome outcome = outcome_of({});
  CHECK(outcome.state == Outcome::State::kConforms);
  CHECK(outcome.coverage.rounds == 3);
  CHECK(outcome.coverage.duplicate_picks > 0);
}

TEST_CASE("checks are named once and each has a clause and a title", "[VER-2.1]") {
  std::map<std::string_view, int> names;
  for (const Check& check : checks()) {
    ++names[check.name];
    CHECK(!check.clause.empty());
    CHECK(!check.title.empty());
  }
  for (const auto& [name, count] : names) CHECK(count == 1);
}

TEST_CASE("whole rows in each other's slot are dispatch.rows and name the slot", "[VER-2.4]") {
  Block block{};
  const Outcome outcome = outcome_of({.after_dispatch = [&](const assay_round& r, auto number) {
    if (!now(number)) return;
    block = block_with(r, 3);
    for (int p = 0; p < r.num_payloads; ++p) swap_rows(r, p, block, 0, 2);
  }});
  const Mismatch& mismatch = first_of(outcome);
  CHECK(mismatch.check == "dispatch.rows");
  CHECK(mismatch.coordinate("round") == 1);
  CHECK(mismatch.coordinate("rank") == block.dst);
  CHECK(mismatch.coordinate("source") == block.src);
  CHECK(mismatch.coordinate("slot") == 0);
  CHECK(says(mismatch, "belongs in slot 2"));
}

TEST_CASE("rows mixed by column are seen, although every column holds the right values",
          "[VER-2.4]") {
  const Outcome outcome = outcome_of({.after_dispatch = [&](const assay_round& r, auto number) {
    if (!now(number)) return;
    const Block block = block_with(r, 2);
    const auto x = recv_row(r, 0, block.dst, block.src, 0);
    const auto y = recv_row(r, 0, block.dst, block.src, 1);
    std::swap_ranges(x.begin(), x.begin() + 16, y.begin());
  }});
  const Mismatch& mismatch = first_of(outcome);
  CHECK(mismatch.check == "dispatch.rows");
  CHECK(mismatch.wrong == 2);
  CHECK(says(mismatch, "mixed by column: its 2 chunks of 16 bytes"));
}

TEST_CASE("tail bytes that were never written are told from where on", "[VER-2.6]") {
  const Outcome outcome = outcome_of({.after_dispatch = [&](const assay_round& r, auto number) {
    if (!now(number)) return;
    const Block block = block_with(r, 1);
    const auto padding = recv_row(r, 0, block.dst, block.src, r.max_tokens_per_rank - 1);
    const auto row = recv_row(r, 0, block.dst, block.src, 0);
    std::copy(padding.begin() + 28, padding.end(), row.begin() + 28);
  }});
  const Mismatch& mismatch = first_of(outcome);
  CHECK(mismatch.check == "dispatch.rows");
  CHECK(mismatch.coordinate("byte") == 28);
  CHECK(says(mismatch, "tail bytes lost from byte 28 on: the tail of 4 bytes was never written"));
}

TEST_CASE("a row of the round before is round.isolation, not merely a wrong row", "[VER-2.5]") {
  std::vector<std::byte> before;
  const auto spoil = [&](const assay_round& r, std::int64_t number) {
    const Block block = block_with(r, 1);
    const auto row = recv_row(r, 0, block.dst, block.src, 0);
    if (now(number)) std::copy(before.begin(), before.end(), row.begin());
    before.assign(row.begin(), row.end());
  };
  const Mismatch mismatch = first_of(outcome_of({.after_dispatch = spoil}));
  CHECK(mismatch.check == "round.isolation");
  CHECK(says(mismatch, "stale: it is the row of source"));
  CHECK(says(mismatch, "of round 0"));
}

TEST_CASE("a new head with a tail of the round before is round.isolation", "[VER-2.5]") {
  std::vector<std::byte> before;
  const auto spoil = [&](const assay_round& r, std::int64_t number) {
    const Block block = block_with(r, 1);
    const auto row = recv_row(r, 0, block.dst, block.src, 0);
    const std::vector<std::byte> fresh(row.begin(), row.end());
    if (now(number)) std::copy(before.begin() + 8, before.end(), row.begin() + 8);
    before = fresh;
  };
  const Mismatch mismatch = first_of(outcome_of({.after_dispatch = spoil}));
  CHECK(mismatch.check == "round.isolation");
  CHECK(says(mismatch, "stale: from byte 8 on it is what lay there in round 0"));
}

TEST_CASE("counters that count picks are dispatch.counters and are called that", "[VER-2.6]") {
  const auto spoil = [](const assay_round& r, std::int64_t) {
    const assay_group_config& c = testing::config();
    for (int dst = 0; dst < c.ep_size; ++dst) {
      for (int src = 0; src < c.ep_size; ++src) {
        int picks = 0;
        for (int i = 0; i < r.num_tokens[src] * c.top_k; ++i)
          picks += r.topk_ids[src][i] / (c.num_experts / c.ep_size) == dst ? 1 : 0;
        r.recv_counters[dst][src] = picks;
      }
    }
  };
  // After combine, so that the experts still see the right ones.
  const Mismatch mismatch = first_of(outcome_of({.after_combine = spoil}));
  CHECK(mismatch.check == "dispatch.counters");
  CHECK(says(mismatch, "counts picks, not rows"));
}

TEST_CASE("counters that are not reset are told from others", "[VER-2.6]") {
  std::map<std::pair<int, int>, int> before;
  const auto spoil = [&](const assay_round& r, std::int64_t) {
    for (int dst = 0; dst < testing::config().ep_size; ++dst) {
      for (int src = 0; src < testing::config().ep_size; ++src) {
        int& last = before[{dst, src}];
        std::swap(last, r.recv_counters[dst][src]);
        r.recv_counters[dst][src] += last;
      }
    }
  };
  const Mismatch mismatch = first_of(outcome_of({.after_combine = spoil}));
  CHECK(mismatch.check == "dispatch.counters");
  CHECK(mismatch.coordinate("round") == 1);
  CHECK(says(mismatch, "counters were not reset"));
}

// Moves each row's target from its first pick to its last one.
void keep_last(const assay_round& r, std::int64_t) {
  const assay_group_config& c = testing::config();
  for (int rank = 0; rank < c.ep_size; ++rank) {
    const auto target = testing::targets(r, rank, c.top_k);
    const auto slot = testing::slots(r, rank, c.top_k);
    for (int token = 0; token < r.num_tokens[rank]; ++token) {
      for (int k = 0; k < c.top_k; ++k) {
        const auto from = static_cast<std::size_t>(token * c.top_k + k);
        const int owner = r.topk_ids[rank][from] / (c.num_experts / c.ep_size);
        if (target[from] < 0) continue;
        for (int later = c.top_k - 1; later > k; --later) {
          const auto to = static_cast<std::size_t>(token * c.top_k + later);
          if (r.topk_ids[rank][to] / (c.num_experts / c.ep_size) != owner) continue;
          if (target[to] >= 0) break;
          std::swap(target[from], target[to]);
          std::swap(slot[from], slot[to]);
          break;
        }
      }
    }
  }
}

TEST_CASE("a dedup that keeps the last pick is dispatch.targets and is called that", "[VER-2.6]") {
  const Mismatch mismatch = first_of(outcome_of({.after_dispatch = keep_last}));
  CHECK(mismatch.check == "dispatch.targets");
  CHECK(says(mismatch, "when the last of several picks at one rank sends the row"));
}

TEST_CASE("slots that are one too large are dispatch.targets under the slot clause", "[VER-2.6]") {
  const Mismatch mismatch =
      first_of(outcome_of({.after_combine = [](const assay_round& r, std::int64_t) {
        for (int rank = 0; rank < testing::config().ep_size; ++rank) {
          for (std::int32_t& slot : testing::slots(r, rank, testing::config().top_k))
            slot += slot < 0 ? 0 : 1;
        }
      }}));
  CHECK(mismatch.check == "dispatch.targets");
  CHECK(mismatch.clause == "MOE-2.3");
  CHECK(says(mismatch, "all slots are one too large"));
}

TEST_CASE("with illegal slots rows are joined by content and combine is still judged",
          "[VER-2.4]") {
  // Slots of two tokens recorded the wrong way round are legal slots: rows show it. Two tokens in
  // one slot are illegal: content shows that all rows are right.
  const Outcome outcome = outcome_of({.after_combine = [](const assay_round& r, auto number) {
    if (!now(number)) return;
    const Block block = block_with(r, 2);
    const auto target = testing::targets(r, block.src, testing::config().top_k);
    const auto slot = testing::slots(r, block.src, testing::config().top_k);
    for (std::size_t i = 0; i < target.size(); ++i)
      if (target[i] == block.dst) slot[i] = 0;
  }});
  CHECK(first_of(outcome).check == "dispatch.targets");
  CHECK(outcome.mismatches.size() == 1);
}

TEST_CASE("padding ids that were left alone are dispatch.padding", "[VER-2.6]") {
  const Mismatch mismatch =
      first_of(outcome_of({.after_dispatch = [](const assay_round& r, std::int64_t number) {
        if (!now(number)) return;
        for (int p = 0; p < r.num_payloads; ++p) {
          if (r.payloads[p].holds_expert_ids == 0) continue;
          const auto row = recv_row(r, p, 0, 1, r.max_tokens_per_rank - 1);
          std::fill(row.begin(), row.end(), std::byte{0});
        }
      }}));
  CHECK(mismatch.check == "dispatch.padding");
  CHECK(mismatch.coordinate("slot") == 7);
  CHECK(mismatch.values->got == 0);
  CHECK(says(mismatch, "all zero"));
}

TEST_CASE("a payload row written where no token is, is dispatch.padding and named", "[VER-2.6]") {
  const Mismatch mismatch =
      first_of(outcome_of({.after_dispatch = [](const assay_round& r, std::int64_t number) {
        if (!now(number)) return;
        const Block block = block_with(r, 1);
        const auto from = recv_row(r, 0, block.dst, block.src, 0);
        const auto to = recv_row(r, 0, block.dst, block.src, r.max_tokens_per_rank - 1);
        std::copy(from.begin(), from.end(), to.begin());
      }}));
  CHECK(mismatch.check == "dispatch.padding");
  CHECK(says(mismatch, "belongs in slot 0"));
}

TEST_CASE("a byte behind or before an output buffer is memory.bounds", "[VER-1.3]") {
  const Mismatch behind =
      first_of(outcome_of({.after_combine = [](const assay_round& r, std::int64_t number) {
        if (now(number)) static_cast<char*>(r.out[1])[r.num_tokens[1] * 16 * 2 + 5] = 1;
      }}));
  CHECK(behind.check == "memory.bounds");
  CHECK(behind.coordinate("rank") == 1);
  CHECK(behind.sentence.find("behind out of rank 1") != std::string::npos);
  const Mismatch before =
      first_of(outcome_of({.after_combine = [](const assay_round& r, std::int64_t number) {
        if (now(number)) static_cast<char*>(r.recv[0][2])[-1] = 1;
      }}));
  CHECK(before.check == "memory.bounds");
  CHECK(before.coordinate("byte") == -1);
}

TEST_CASE("an input that changed is memory.inputs", "[VER-1.3]") {
  const Mismatch expert_rows =
      first_of(outcome_of({.after_combine = [](const assay_round& r, std::int64_t number) {
        if (now(number)) const_cast<char*>(static_cast<const char*>(r.expert_out[0]))[0] ^= 1;
      }}));
  CHECK(expert_rows.check == "memory.inputs");
  CHECK(expert_rows.coordinate("rank") == 0);
  const Mismatch ids =
      first_of(outcome_of({.after_combine = [](const assay_round& r, std::int64_t number) {
        if (now(number)) const_cast<std::int32_t*>(r.topk_ids[2])[1] ^= 1;
      }}));
  CHECK(ids.check == "memory.inputs");
  CHECK(ids.coordinate("rank") == 2);
}

TEST_CASE("a subject that fails, or calls experts too often or never, makes no progress",
          "[VER-2.3]") {
  const Mismatch failed = first_of(
      outcome_of({.return_code = ASSAY_FAILED, .message = "rank 2 waits for rank 1's flag"}));
  CHECK(failed.check == "progress");
  CHECK(failed.sentence == "rank 2 waits for rank 1's flag");
  CHECK(first_of(outcome_of({.calls_of_experts = 2})).check == "progress");
  CHECK(first_of(outcome_of({.calls_of_experts = 0})).check == "progress");
}

TEST_CASE("what was received before a run failed is judged, and told before the failure",
          "[VER-2.3]") {
  const Outcome outcome = outcome_of({.after_combine =
                                          [](const assay_round& r, std::int64_t) {
                                            testing::slots(r, 0, 4)[0] = 100;
                                            static_cast<std::uint16_t*>(r.out[0])[0] ^= 1;
                                          },
                                      .return_code = ASSAY_FAILED,
                                      .message = "combine read outside the window"});
  REQUIRE(outcome.mismatches.size() == 2);
  CHECK(outcome.mismatches[0].check == "dispatch.targets");
  CHECK(outcome.mismatches[1].check == "progress");
}

TEST_CASE("a subject that declines is unsupported and gives its reason", "[VER-2.3]") {
  const Outcome outcome =
      outcome_of({.return_code = ASSAY_UNSUPPORTED, .message = "not on Tuesdays"});
  CHECK(outcome.state == Outcome::State::kUnsupported);
  CHECK(outcome.unsupported == "not on Tuesdays");
}

}  // namespace
}  // namespace assay::verify
