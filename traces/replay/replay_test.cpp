// The replayer end to end on small traces: which rounds it makes, that nothing depends on the
// number of threads, that a wrong kernel is found and found again by the line that the report
// prints.
#include "traces/replay/replay.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "model/core/testing.hpp"
#include "traces/readers/readers.hpp"
#include "verify/mutants/mutants.hpp"

namespace assay::traces {
namespace {

struct Shape {
  std::int32_t tokens_per_step = 6, steps = 5, layers = 3, experts = 8, top_k = 4;
  bool weights = true;
};

// Distinct picks, different in every (token, layer).
Trace small_trace(const Shape& shape) {
  TraceInfo info;
  info.model = "small", info.licence = "CC0-1.0", info.source = "this test";
  info.num_experts = shape.experts, info.hidden_size = 16;
  info.num_layers = shape.layers, info.top_k = shape.top_k;
  TraceTensors tensors;
  std::vector<Bf16> weights;
  for (std::int32_t step = 0; step < shape.steps; ++step) {
    // Fewer tokens from step to step: the stride of the receive buffers goes down with them.
    for (std::int32_t t = 0; t < std::max(1, shape.tokens_per_step - step); ++t) {
      tensors.request.push_back(10 + 3 * t);
      tensors.step.push_back(step);
      tensors.position.push_back(7 + step);
      for (std::int32_t layer = 0; layer < shape.layers; ++layer) {
        const std::uint64_t key = mix(1, 1000 * step + t, layer);
        const auto stride = static_cast<std::int32_t>(key >> 40 & 1) * 2 + 1;  // 1 or 3: odd
        for (std::int32_t k = 0; k < shape.top_k; ++k) {
          const auto first = static_cast<std::int32_t>(key & 0xFFFF);
          tensors.topk_ids.push_back(
              static_cast<std::int16_t>((first + k * stride) % shape.experts));
          weights.push_back(Bf16{static_cast<std::uint16_t>(0x3e00 + (key >> (16 + k)) % 0x80)});
        }
      }
    }
  }
  if (shape.weights) tensors.topk_weights = std::move(weights);
  Expected<Trace> trace = Trace::make(std::move(info), std::move(tensors));
  CONTRACT(trace.has_value(), trace ? "" : trace.error().sentence);
  return *std::move(trace);
}

ReplayResult run(const Trace& trace, const RoundsSetup& setup, std::int32_t jobs,
                 const char* mutant = "") {
  const Expected<Rounds> rounds = Rounds::make(trace, setup);
  INFO((rounds ? std::string() : rounds.error().sentence));
  REQUIRE(rounds.has_value());
  const auto subject =
      *mutant == 0 ? verify::load_subject("sim") : verify::load_subject("sim", mutant);
  REQUIRE(subject.has_value());
  auto result = replay(*rounds, *subject, {jobs, {}});
  INFO((result ? std::string() : result.error().sentence));
  REQUIRE(result.has_value());
  return *std::move(result);
}

std::string sentence_of(const Trace& trace, const RoundsSetup& setup) {
  const Expected<Rounds> rounds = Rounds::make(trace, setup);
  REQUIRE_FALSE(rounds.has_value());
  return rounds.error().sentence;
}

bool same(const ReplayResult& a, const ReplayResult& b) {
  const auto places = [](const ReplayResult& result) {
    std::vector<std::string> sentences;
    for (const ReplayMismatch& m : result.mismatches)
      sentences.push_back(std::to_string(m.step) + " " + std::to_string(m.layer) + " " +
                          m.mismatch.check + " " + m.mismatch.sentence);
    return sentences;
  };
  return a.rounds == b.rounds && a.mismatching_rounds == b.mismatching_rounds &&
         a.rounds_not_run == b.rounds_not_run && places(a) == places(b) &&
         a.statistics.rows_by_pair == b.statistics.rows_by_pair &&
         a.statistics.rank_imbalance.sum == b.statistics.rank_imbalance.sum &&
         a.statistics.expert_imbalance.sum == b.statistics.expert_imbalance.sum &&
         a.coverage.rows == b.coverage.rows;
}

TEST_CASE("a trace replays without a mismatch at any ep, recipe and placement", "[TRC-3.2]") {
  const Trace trace = small_trace({});
  for (const std::int32_t ep : {1, 2, 3, 5, 8}) {
    for (const auto recipe : {moe::Recipe::kBf16, moe::Recipe::kFp8Block128, moe::Recipe::kMxfp8,
                              moe::Recipe::kNvfp4}) {
      for (const auto placement :
           {TokenPlacement::kContiguous, TokenPlacement::kRoundRobin, TokenPlacement::kRequest}) {
        RoundsSetup setup;
        setup.ep_size = ep;
        setup.recipe = recipe;
        setup.placement = placement;
        // Scales of 128 elements need a hidden size that they divide.
        setup.hidden_size = recipe == moe::Recipe::kFp8Block128 ? 128 : 32;
        const ReplayResult result = run(trace, setup, 1);
        CAPTURE(ep, moe::recipe_name(recipe), token_placement_name(placement));
        CHECK(result.rounds == 15);
        CHECK(result.mismatching_rounds == 0);
        CHECK(result.statistics.tokens == 3 * (6 + 5 + 4 + 3 + 2));
        CHECK(result.statistics.picks == 4 * result.statistics.tokens);
      }
    }
  }
}

TEST_CASE("the stride of a round is what the fullest rank of its step needs", "[TRC-3.2]") {
  const Trace trace = small_trace({});
  RoundsSetup setup;
  setup.ep_size = 2;
  const Rounds rounds = Rounds::make(trace, setup).value();
  CHECK(rounds.group().max_tokens_per_rank == 3);
  verify::Round round;
  const std::vector<std::int32_t> needed = {3, 3, 2, 2, 1};
  for (std::int64_t step = 0; step < 5; ++step) {
    rounds.fill(step, 0, round);
    CHECK(round.max_tokens_per_rank == needed[static_cast<std::size_t>(step)]);
  }
  setup.max_tokens_per_rank = 4;
  Rounds::make(trace, setup).value().fill(4, 0, round);
  CHECK(round.max_tokens_per_rank == 4);
}

TEST_CASE("picks and weights of a round are those of the trace", "[TRC-3.3]") {
  const Trace trace = small_trace({});
  RoundsSetup setup;
  setup.ep_size = 2;
  setup.placement = TokenPlacement::kRoundRobin;
  setup.steps = {1, 2};
  setup.layers = {2, 3};
  const Rounds rounds = Rounds::make(trace, setup).value();
  REQUIRE(rounds.num_rounds() == 1);
  verify::Round round;
  rounds.fill(0, 0, round);
  // Step 1 has tokens 6 to 10 of the file; rank 1 gets the second and the fourth.
  const auto& ids = round.topk_ids[1];
  REQUIRE(ids.size() == 8);
  const auto& weights = round.payloads.back();
  REQUIRE(weights.payload.name == "topk_weights");
  for (std::size_t i = 0; i < 8; ++i) {
    const std::int64_t token = i < 4 ? 7 : 9;
    CHECK(ids[i] == trace.topk_id(token, 2, static_cast<std::int32_t>(i % 4)));
    std::uint32_t bits = 0;
    std::memcpy(&bits, weights.rows[1].data() + 4 * i, 4);
    CHECK(bits == trace.topk_weight(token, 2, static_cast<std::int32_t>(i % 4)).bits);
  }
}

TEST_CASE("no two rows of made-up bytes are equal, in a round or between rounds", "[TRC-3.3]") {
  const Trace trace = small_trace({});
  RoundsSetup setup;
  setup.ep_size = 3;
  const Rounds rounds = Rounds::make(trace, setup).value();
  std::set<std::string> rows;
  std::size_t num_rows = 0;
  verify::Round round;
  for (std::int64_t step = 0; step < rounds.num_steps(); ++step) {
    for (std::int32_t layer = 0; layer < rounds.num_layers(); ++layer) {
      rounds.fill(step, layer, round);
      const auto& hidden = round.payloads.front();
      REQUIRE(hidden.payload.name == "hidden");
      const auto bytes = static_cast<std::size_t>(hidden.payload.bytes_per_token);
      for (const auto& of_rank : hidden.rows) {
        for (std::size_t row = 0; row < of_rank.size(); row += bytes, ++num_rows)
          rows.emplace(reinterpret_cast<const char*>(of_rank.data()) + row, bytes);
      }
    }
  }
  CHECK(num_rows == 60);
  CHECK(rows.size() == num_rows);
}

TEST_CASE("a trace without weights replays with made-up ones", "[TRC-3.3]") {
  const Trace trace = small_trace({.weights = false});
  CHECK(run(trace, {}, 1).mismatching_rounds == 0);
}

TEST_CASE("results do not depend on the number of threads, right or wrong", "[TRC-3.4]") {
  const Trace trace = small_trace({.steps = 70});
  RoundsSetup setup;
  setup.ep_size = 4;
  for (const char* mutant : {"", "dedup_keeps_last", "counters_not_reset"}) {
    const ReplayResult one = run(trace, setup, 1, mutant);
    CAPTURE(mutant);
    CHECK((one.mismatching_rounds > 0) == (*mutant != 0));
    CHECK(same(one, run(trace, setup, 2, mutant)));
    CHECK(same(one, run(trace, setup, 7, mutant)));
  }
}

TEST_CASE("a replay finds every mutant that its rounds can tell from the right kernel",
          "[TRC-3.2]") {
  // What it takes where four ranks, top_k 4 and the default profile are not enough.
  const std::map<std::string, RoundsSetup> settings = {
      {"uneven_split_ignored", {.ep_size = 3}},
      {"hole_skipped", {.ep_size = 5, .hidden_size = 1024}},  // picks 4 5 6 7: ranks 2 2 3 4
      {"zero_token_rank_silent", {.ep_size = 8}},
      {"stride_rounded_up", {.max_tokens_per_rank = 5}},
      {"slot_not_atomic", {.subject_options = "longest_run=1"}},
      {"slots_reversed", {.subject_options = "slots=ordered"}},
      {"slots_from_counter", {.subject_options = "slots=ordered longest_run=1"}},
      {"ordered_count_missing", {.subject_options = "slots=ordered"}},
      {"sentinel_tail_not_armed", {.recipe = moe::Recipe::kMxfp8, .hidden_size = 36}},
      {"payload_tail_lost", {.recipe = moe::Recipe::kMxfp8, .hidden_size = 36}},
      {"f32_for_payload", {.profile = *moe::find_combine_profile("flashinfer-oneside@0.6.0")}},
      {"position_for_compact", {.profile = *moe::find_combine_profile("trtllm-oneside@compact")}}};
  // No trace has dead ranks, ids of num_experts or more, or 4 GiB of rows; a replay does not
  // combine in low precision, and asks for neither slot lists nor statistics.
  const std::set<std::string> out_of_reach = {
      "dead_count_kept",          "mask_ignored",
      "waits_for_dead_ranks",     "sentinel_waits_for_dead_ranks",
      "minus_one_to_rank_0",      "past_end_to_last_rank",
      "offset_in_32_bits",        "stage_truncates",
      "lists_duplicates_dropped", "lists_empty_by_sentinel",
      "lists_foreign_experts",    "lists_threads_reversed",
      "statistics_after_flags",   "statistics_of_another",
      "statistics_of_dead_ranks", "statistics_without_barrier"};
  const Trace trace = small_trace({.tokens_per_step = 7});
  const Trace top_12 = small_trace({.experts = 16, .top_k = 12});
  for (const verify::Mutant& mutant : verify::mutants()) {
    const auto found = settings.find(mutant.name);
    RoundsSetup setup;
    setup.ep_size = 4;
    if (found != settings.end()) {
      setup = found->second;
      if (setup.ep_size == 1) setup.ep_size = 4;
    }
    if (!setup.hidden_size) setup.hidden_size = 256;
    if (std::string(mutant.name).rfind("sentinel_", 0) == 0)
      setup.subject_options = "protocol=sentinel";
    const bool tree_for_fold = std::string(mutant.name) == "tree_for_fold";
    const ReplayResult result = run(tree_for_fold ? top_12 : trace, setup, 1, mutant.name);
    CAPTURE(mutant.name);
    CHECK((result.mismatching_rounds > 0) == (out_of_reach.count(mutant.name) == 0));
  }
}

TEST_CASE("replaying a segment up to the run of its mismatch finds the same mismatch",
          "[TRC-3.4]") {
  // More tokens in early steps, so that a later segment alone would need less capacity.
  const Trace trace = small_trace({.tokens_per_step = 9, .steps = 70});
  RoundsSetup setup;
  setup.ep_size = 4;
  for (const char* mutant : {"counters_not_reset", "dedup_keeps_last", "slot_not_atomic"}) {
    const ReplayResult whole = run(trace, setup, 1, mutant);
    CAPTURE(mutant);
    REQUIRE_FALSE(whole.mismatches.empty());
    for (const ReplayMismatch& found : {whole.mismatches.front(), whole.mismatches.back()}) {
      RoundsSetup part = setup;
      part.steps = {found.first_step, found.last_step + 1};
      part.layers = {found.layer, found.layer + 1};
      const ReplayResult again = run(trace, part, 1, mutant);
      const auto same_again = [&](const ReplayMismatch& m) {
        return m.step == found.step && m.mismatch.sentence == found.mismatch.sentence;
      };
      CAPTURE(found.step, found.layer, found.mismatch.sentence);
      CHECK(std::any_of(again.mismatches.begin(), again.mismatches.end(), same_again));
    }
  }
}

TEST_CASE("a replay that does not fit its trace is refused with the values", "[TRC-3.2]") {
  const Trace trace = small_trace({});
  const auto has = [](const std::string& sentence, const std::string& part) {
    INFO(sentence << " must contain " << part);
    CHECK(sentence.find(part) != std::string::npos);
  };
  RoundsSetup setup;
  setup.ep_size = 9;
  has(sentence_of(trace, setup), "9");
  setup.ep_size = 2;
  setup.max_tokens_per_rank = 2;
  has(sentence_of(trace, setup), "max_tokens is 2, but step 0 puts 3 tokens on rank 0");
  setup.max_tokens_per_rank = {};
  setup.steps = {5, {}};
  has(sentence_of(trace, setup), "steps are 5:; the trace has steps 0 to 4");
  setup.steps = {0, 6};
  has(sentence_of(trace, setup), "steps are 0:6");
  setup.steps = {};
  setup.layers = {3, 4};
  has(sentence_of(trace, setup), "layers are 3:4; the trace has layers 0 to 2");
}

TEST_CASE("progress counts every round once", "[TRC-3.2]") {
  const Trace trace = small_trace({.steps = 70});
  const Rounds rounds = Rounds::make(trace, {}).value();
  const auto subject = verify::load_subject("sim").value();
  std::atomic<std::int64_t> done{0};
  const auto result = replay(rounds, subject, {2, [&](std::int64_t count) { done += count; }});
  REQUIRE(result.has_value());
  CHECK(done == 210);
}

// What the README beside the file says about it; printed digits, so half of the last one is
// allowed.
TEST_CASE("statistics of a published decode batch are those that its publisher states",
          "[TRC-3.5]") {
  const char* directory = std::getenv("ASSAY_EXTRA_DATA");
  if (directory == nullptr) {
    WARN("skipped: ASSAY_EXTRA_DATA is not set");
    return;
  }
  const auto file = std::filesystem::path(directory) / "traces" / "gptoss20b_decode_batch.csv";
  const auto trace = read_trace(file.string());
  INFO((trace ? std::string() : trace.error().sentence));
  REQUIRE(trace.has_value());
  RoundsSetup setup;
  setup.ep_size = 8;
  const Rounds rounds = Rounds::make(*trace, setup).value();
  CHECK(rounds.num_rounds() == 1344);
  CHECK(rounds.group().hidden_size == 2880);
  const Statistics statistics = statistics_of(rounds).value();
  CHECK(statistics.rounds == 1344);
  CHECK(std::abs(statistics.empty_pair_fraction() - 0.083) < 0.0005);
  CHECK(std::abs(statistics.empty_rank_fraction() - 0.041) < 0.0005 + 1e-9);
  CHECK(std::abs(statistics.ranks_per_token() - 3.59) < 0.005);
  CHECK(std::abs(statistics.empty_expert_fraction() - 0.191) < 0.0005);
  CHECK(std::abs(statistics.busiest_expert.mean() - 31) < 0.5);
  CHECK(statistics.busiest_expert.worst == 64);
}

}  // namespace
}  // namespace assay::traces
