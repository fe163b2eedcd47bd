// Equivalents of verify/mutants/attention that run without a GPU, at the one type and size that
// each of those is compiled for: the cases of their properties must still tell them from the right
// kernel.
#include <algorithm>
#include <deque>
#include <span>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/add.hpp"
#include "verify/attention/device_testing.hpp"
#include "verify/attention/mutants.hpp"
#include "verify/attention/suite.hpp"

namespace {

using namespace assay;
using namespace assay::verify;
using namespace assay::verify::testing;
using attention::Profile;

// A subject at the one shape that a wrong kernel is compiled for.
class Served : public AttentionFunction {
 public:
  Served(OneKernel kernel, Function function)
      : AttentionFunction("wrong", std::move(function)), kernel_(kernel) {}
  AttentionCase served(const AttentionCase& c) const override { return served_case(c, kernel_); }
  std::int32_t served_page(std::int32_t rows) const override { return verify::served_page(rows); }

 private:
  OneKernel kernel_;
};

struct Wrong {
  std::string_view property;
  void (*change)(Profile&);
  AttentionRun (*fault)(const Profile&, const Problem&, int) = nullptr;
};

void properties_notice(const Profile& profile, OneKernel kernel, std::span<const Wrong> list) {
  AttentionSuiteOptions options;
  options.budget_seconds = 0;
  for (const Wrong& wrong : list) {
    const Served subject(kernel, [&](const Profile& p, const Problem& problem, int threads) {
      if (wrong.fault != nullptr) return wrong.fault(p, problem, threads);
      Profile changed = p;
      wrong.change(changed);
      return emulated(changed, problem, threads);
    });
    const AttentionCell cell =
        run_attention_cell(**find_property(wrong.property), profile, subject, options);
    INFO(wrong.property << " " << cell.reason);
    CHECK(cell.state == AttentionCell::State::kMismatch);
    CHECK(cell.declined == 0);
  }
}

AttentionRun skips_not_visited(const Profile& p, const Problem& problem, int threads) {
  AttentionRun run = emulated(p, problem, threads);
  *run.answer.visited -= *run.answer.skipped;
  return run;
}
AttentionRun scale_of_values_forgotten(const Profile& p, const Problem& problem, int threads) {
  Problem wrong = problem;
  wrong.v_scale = 1;
  return emulated(p, wrong, threads);
}
// P of e4m3 is 2^8 times what it stands for.
AttentionRun lse_of_larger_sum(const Profile& p, const Problem& problem, int threads) {
  AttentionRun run = emulated(p, problem, threads);
  for (F32& lse : run.answer.lse) lse = numerics::add_rn(lse, numerics::from_float(8), false);
  return run;
}
// Every request's pages are the first one's, and beyond those its last.
AttentionRun first_table_for_all(const Profile& p, const Problem& problem, int threads) {
  Problem wrong = problem;
  std::vector<std::int32_t> table;
  for (Request& r : wrong.requests) {
    if (r.k.block_table == nullptr) continue;
    const Request& first = problem.requests[0];
    const auto pages = [](const Request& of) { return of.k.available / of.k.page_rows; };
    if (table.empty()) {
      for (std::int64_t i = 0; i < 1000; ++i)
        table.push_back(first.k.block_table[std::min(i, pages(first) - 1)]);
    }
    r.k.block_table = r.v.block_table = table.data();
  }
  return emulated(p, wrong, threads);
}
// Boxes of 16 rows all come from the page of their tile's first key.
AttentionRun first_page_of_tile(const Profile& p, const Problem& problem, int threads) {
  Problem wrong = problem;
  std::deque<std::vector<std::int32_t>> tables;
  for (Request& r : wrong.requests) {
    if (r.k.block_table == nullptr || r.k.page_rows >= 64) continue;
    const std::int64_t per_tile = 64 / r.k.page_rows;
    std::vector<std::int32_t>& table = tables.emplace_back();
    for (std::int64_t i = 0; i < r.k.available / r.k.page_rows; ++i)
      table.push_back(r.k.block_table[i / per_tile * per_tile]);
    r.k.block_table = r.v.block_table = table.data();
  }
  return emulated(p, wrong, threads);
}
// The second of two neighbours has what `wrong` gives.
AttentionRun second_of_pairs(AttentionRun run, const AttentionRun& wrong, const Problem& problem) {
  const auto dim = static_cast<std::size_t>(problem.v_dim);
  for (std::size_t at = dim; at < run.answer.out.size(); at += 2 * dim)
    std::copy_n(&wrong.answer.out[at], dim, &run.answer.out[at]);
  return run;
}
AttentionRun second_head_repeats(const Profile& p, const Problem& problem, int threads) {
  const AttentionRun right = emulated(p, problem, threads);
  AttentionRun shifted = right;
  const auto dim = static_cast<std::ptrdiff_t>(problem.v_dim);
  if (problem.q_heads % 2 != 0) return right;
  std::copy(right.answer.out.begin(), right.answer.out.end() - dim,
            shifted.answer.out.begin() + dim);
  return second_of_pairs(right, shifted, problem);
}
AttentionRun tail_leaks_in_second_head(const Profile& p, const Problem& problem, int threads) {
  AttentionRun right = emulated(p, problem, threads);
  if (problem.q_heads % 2 != 0) return right;
  Profile leaky = p;
  leaky.skip.padding_fill = attention::PaddingFill::kNeighbour;
  return second_of_pairs(std::move(right), emulated(leaky, problem, threads), problem);
}
// The queries of tokens and heads change places; without a mask, so do their outputs.
AttentionRun queries_by_token(const Profile& p, const Problem& problem, int threads) {
  AttentionRun run = emulated(p, problem, threads);
  const std::vector<std::uint16_t> right = run.answer.out;
  const auto dim = static_cast<std::size_t>(problem.v_dim);
  const int group = problem.group(), tokens = problem.requests[0].q_len;
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < problem.q_heads; ++h) {
      const int packed = t * group + h % group;
      const int from = packed % tokens * problem.q_heads + h / group * group + packed / tokens;
      std::copy_n(&right[static_cast<std::size_t>(from) * dim], dim,
                  &run.answer.out[static_cast<std::size_t>(t * problem.q_heads + h) * dim]);
    }
  return run;
}

}  // namespace

TEST_CASE("at bf16 and 128 elements, properties notice what the CUDA mutants do", "[VER-25.6]") {
  const Wrong list[] = {
      {"tie", [](Profile& p) { p.skip.strict = false; }},
      {"certificate", [](Profile& p) { p.skip.compare = attention::Compare::kExp; }},
      {"maximum_kept", [](Profile& p) { p.skip.above_one = attention::LambdaAboveOne::kAllow; }},
      {"own_length", [](Profile& p) { p.skip.lambda_length = attention::LambdaLength::kNone; }},
      {"thresholds", nullptr, faults::first_request_rules},
      {"veto", nullptr, faults::warp_votes_alone},
      {"padding_vote", [](Profile& p) { p.skip.padding_rows = attention::PaddingRows::kVote; }},
      {"trace", [](Profile& p) { p.skip.kept_first = 2; }},
      {"rising", [](Profile& p) { p.softmax.correction = attention::CorrectionForm::kNone; }},
      {"truth", [](Profile& p) { p.softmax.tree = attention::SumTree::kThreadRunning; }},
      {"truth", [](Profile& p) { p.softmax.exp = attention::ExpForm::kSubtractMultiply; }},
      {"lse", [](Profile& p) { p.softmax.lse = attention::LseForm::kLn; }},
      {"no_keys", [](Profile& p) { p.softmax.empty = attention::EmptyGuard::kNever; }},
      {"poison", [](Profile& p) { p.skip.padding_fill = attention::PaddingFill::kNeighbour; }},
      {"groups", nullptr, faults::heads_modulo},
      {"truth", nullptr, second_head_repeats},
      {"poison", nullptr, tail_leaks_in_second_head},
      {"paged", nullptr, faults::page_index_ignored},
      {"ragged", nullptr, faults::wrong_request_rows},
      {"counts", nullptr, faults::first_tile_not_counted},
  };
  properties_notice(prefill(), {DeviceKernel::kPrefill, Dtype::kBf16, 128}, list);
}

TEST_CASE("at 128 elements, properties notice what the CUDA mutants of a decode do", "[VER-25.6]") {
  const auto no_correction = [](Profile& p) {
    p.softmax.correction = p.fp8->correction = attention::CorrectionForm::kNone;
  };
  const Wrong list[] = {
      {"tie", [](Profile& p) { p.skip.strict = false; }},
      {"padding_vote", [](Profile& p) { p.skip.padding_rows = attention::PaddingRows::kVote; }},
      {"veto", nullptr, faults::warp_votes_alone},
      {"thresholds", nullptr, faults::first_request_rules},
      {"own_length", [](Profile& p) { p.skip.lambda_length = attention::LambdaLength::kBatchMax; }},
      {"splits", [](Profile& p) { p.skip.split = attention::Split::kNone; }},
      {"splits", [](Profile& p) { p.softmax.partial = attention::Partial::kF32; }},
      {"splits", nullptr, scale_of_values_forgotten},
      {"counts", nullptr, skips_not_visited},
      {"rising", no_correction},
      {"truth", [](Profile& p) { p.softmax.tree = attention::SumTree::kTokensWarps; }},
      {"no_keys", [](Profile& p) { p.softmax.empty = attention::EmptyGuard::kNever; }},
      {"lse", [](Profile& p) { p.softmax.lse = attention::LseForm::kLn; }},
      {"poison", [](Profile& p) { p.skip.padding_fill = attention::PaddingFill::kNeighbour; }},
      {"paged", nullptr, first_page_of_tile},
      {"paged", nullptr, first_table_for_all},
      {"groups", nullptr, queries_by_token},
      {"groups", nullptr, faults::heads_modulo},
  };
  properties_notice(decode(), {DeviceKernel::kDecode, Dtype::kBf16, 128}, list);
  const Wrong narrow[] = {
      {"rising", no_correction},
      {"lse", nullptr, lse_of_larger_sum},
  };
  properties_notice(decode(), {DeviceKernel::kDecode, Dtype::kF8E4m3, 128}, narrow);
}
