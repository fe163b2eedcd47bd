// The table of attention mutants. Decides SPEC VER-24.1: what each changes and who must notice.
#include "verify/attention/mutants.hpp"

#include <fmt/format.h>

#include "model/core/text.hpp"

namespace assay::verify {
namespace {

using namespace attention;

constexpr std::string_view kPrefill = "assay-prefill-sm90";
constexpr std::string_view kDecode = "assay-decode-sm90";
constexpr std::string_view kFmha = "trtllm-fmha_v2-sm90";
constexpr std::string_view kFa3 = "fa3-dense-sm90";

// Fields, who decides.
const AttentionMutant kVotes[] = {
    {"not_strict", "compares with <= for <", kPrefill, "tie",
     [](Profile& p) { p.skip.strict = false; }},
    {"maximum_raised_on_skip", "a skipped tile raises the running maximum, and lambda may exceed 1",
     kFmha, "forgets",
     [](Profile& p) {
       p.skip.max_on_skip = MaxOnSkip::kRaise;
       p.skip.above_one = LambdaAboveOne::kAllow;
     }},
    {"first_tile_skippable", "compares after raising the maximum, the first tile too", kFmha,
     "lambda_above_one",
     [](Profile& p) {
       p.skip.kept_first = 0;
       p.skip.reference = Reference::kInclusive;
       p.skip.above_one = LambdaAboveOne::kAllow;
     }},
    {"no_clamp", "lambda above 1 as it is", kPrefill, "maximum_kept",
     [](Profile& p) { p.skip.above_one = LambdaAboveOne::kAllow; }},
    {"padding_votes", "rows that fill a unit up vote", kPrefill, "padding_vote",
     [](Profile& p) { p.skip.padding_rows = PaddingRows::kVote; }},
    {"neighbours_leak", "loads what lies behind the lengths", kPrefill, "poison",
     [](Profile& p) { p.skip.padding_fill = PaddingFill::kNeighbour; }},
    {"lambda_by_batch_max", "divides a factor by the batch's longest length", kPrefill,
     "own_length", [](Profile& p) { p.skip.lambda_length = LambdaLength::kBatchMax; }},
    {"factor_not_divided", "takes a factor for lambda", kPrefill, "own_length",
     [](Profile& p) { p.skip.lambda_length = LambdaLength::kNone; }},
    {"vote_on_raw_scores", "the vote forgets the scale", kFmha, "certificate",
     [](Profile& p) { p.skip.compare = Compare::kExp; }},
    {"split_count_matters", "every split has a maximum of its own", kDecode, "splits",
     [](Profile& p) { p.skip.split = Split::kStrided; }},
    {"heads_decide_together", "heads that share keys share a unit", kPrefill, "heads_alone",
     [](Profile& p) { p.skip.packing = Packing::kGroupRows; }},
};

// Fields, what is computed.
const AttentionMutant kArithmetic[] = {
    {"boundary_mask_missing", "hidden keys have score 0", kPrefill, "ones",
     [](Profile& p) { p.skip.fill = F32{0}; }},
    {"finite_sentinel", "no score may be below -100000", kPrefill, "extreme",
     [](Profile& p) { p.skip.initial_max = p.skip.fill = F32{0xC7C35000u}; }},
    {"maximum_from_zero", "the running maximum starts from 0", kPrefill, "shift",
     [](Profile& p) { p.skip.initial_max = F32{0}; }},
    {"stale_maximum", "a maximum that rises a little is kept, and fp8 P saturates", kPrefill,
     "rising", [](Profile& p) { p.skip.lazy_log2 = 8; }},
    {"nan_dropped", "maxima pass NaN over", kPrefill, "nan_seen",
     [](Profile& p) {
       p.softmax.max_nan = numerics::NanRule::kDrop;
       if (p.fp8) p.fp8->max_nan = numerics::NanRule::kDrop;
     }},
    {"empty_rows_unguarded", "nothing guards a maximum that is the fill value", kPrefill, "no_keys",
     [](Profile& p) { p.softmax.empty = EmptyGuard::kNever; }},
    {"zero_sum_divided", "divides by a sum of 0", kDecode, "no_keys",
     [](Profile& p) { p.softmax.zero_sum = ZeroSum::kInfinite; }},
    {"rz_for_rn", "the exponent's fma rounds toward zero", kPrefill, kBitsProperty,
     [](Profile& p) { p.softmax.exp = ExpForm::kFmaRz; }},
    {"rn_for_rz", "the exponent's fma rounds to nearest", kFmha, kBitsProperty,
     [](Profile& p) { p.softmax.exp = ExpForm::kFmaRn; }},
    {"sum_tree", "row sums in another order", kPrefill, kBitsProperty,
     [](Profile& p) { p.softmax.tree = SumTree::kThreadRunning; }},
    {"token_sum_tree", "row sums over tokens in another order", kDecode, kBitsProperty,
     [](Profile& p) { p.softmax.tree = SumTree::kTokensWarps; }},
    {"reciprocal_approx", "1 / sum by rcp.approx", kPrefill, kBitsProperty,
     [](Profile& p) { p.softmax.reciprocal = Reciprocal::kApprox; }},
    {"correction_form", "the correction's difference is multiplied, not its terms", kPrefill,
     kBitsProperty,
     [](Profile& p) { p.softmax.correction = CorrectionForm::kDifferenceTimesScale; }},
    {"missing_correction", "nothing is rescaled when the maximum rises", kPrefill, "rising",
     [](Profile& p) {
       p.softmax.correction = CorrectionForm::kNone;
       if (p.fp8) p.fp8->correction = CorrectionForm::kNone;
     }},
    {"sum_not_fused", "the running sum's product is rounded", kPrefill, kBitsProperty,
     [](Profile& p) { p.softmax.join = SumJoin::kMultiplyAdd; }},
    {"last_tile_first", "visits the last tile first", kPrefill, kBitsProperty,
     [](Profile& p) { p.skip.backward = true; }},
};

// What no field says.
const AttentionMutant kFaults[] = {
    {"wrong_request_rows", "every request reads the first one's keys", kPrefill, "ragged", nullptr,
     faults::wrong_request_rows},
    {"v_row_off_by_one", "P meets the value of the key before", kPrefill, "one_hot", nullptr,
     faults::v_row_off_by_one},
    {"page_index_ignored", "reads pages in the order of memory", kPrefill, "paged", nullptr,
     faults::page_index_ignored},
    {"offsets_in_32_bits", "offsets wrap at 2^31 elements", kPrefill, "large_offsets", nullptr,
     faults::offsets_in_32_bits},
    {"first_request_rules", "the first request's lambda for all", kPrefill, "thresholds", nullptr,
     faults::first_request_rules},
    {"silently_dense", "ignores the threshold", kPrefill, "trace", nullptr, faults::silently_dense},
    {"causal_for_full", "with a threshold, a full mask is served by the causal kernel", kPrefill,
     "mean", nullptr, faults::causal_for_full},
    {"top_left_for_bottom_right", "positions begin at 0", kDecode, "tail", nullptr,
     faults::top_left_for_bottom_right},
    {"last_key_missing", "the diagonal ends one key early", kPrefill, "mean", nullptr,
     faults::last_key_missing},
    {"tail_tile_dropped", "the last, partial tile is not visited", kPrefill, "edges", nullptr,
     faults::tail_tile_dropped},
    {"rows_beyond_four", "query rows from 4 on are rows 0 to 3 again", kDecode, "tail", nullptr,
     faults::rows_beyond_four},
    {"heads_modulo", "query head j reads key head j mod n", kPrefill, "groups", nullptr,
     faults::heads_modulo},
    {"sinks_ignored", "sinks are not added", kPrefill, "sinks", nullptr, faults::sinks_ignored},
    {"empty_request_shifts", "an empty request shifts those behind it by a row", kPrefill,
     "zero_length", nullptr, faults::empty_request_shifts},
    {"scale_ignored", "the scale is always 1 / sqrt(dim)", kPrefill, "truth", nullptr,
     faults::scale_ignored},
    {"zero_is_tiny", "lambda = 0 is a small number", kPrefill, "lambda_zero", nullptr,
     faults::zero_is_tiny},
    {"nan_threshold_served", "a NaN threshold is no threshold", kPrefill, "refused", nullptr,
     faults::nan_threshold_served},
    {"wrong_base", "exp of a difference in log2 units", kPrefill, "certificate", nullptr,
     faults::wrong_base},
    {"not_repeatable", "every second run differs in one bit", kPrefill, "repeat", nullptr,
     faults::not_repeatable},
    {"first_tile_not_counted", "the visited counter begins after the first tile", kPrefill,
     "counts", nullptr, faults::first_tile_not_counted},
    {"lse_of_dense_sum", "LSE of all visible keys", kPrefill, "lse", nullptr,
     faults::lse_of_dense_sum},
    {"lse_of_other_base", "LSE in the other base", kFa3, "lse", nullptr, faults::lse_of_other_base},
    {"eight_lanes", "a row's sum over 8 lanes that hold it twice", kPrefill, "ones", nullptr,
     faults::eight_lanes},
    {"warp_votes_alone", "16 rows decide for themselves", kPrefill, "veto", nullptr,
     faults::warp_votes_alone},
    {"masked_tiles_counted", "units visit the tiles of their pair", kPrefill, "masked_tiles",
     nullptr, faults::masked_tiles_counted},
};

}  // namespace

std::span<const AttentionMutant> attention_mutants() {
  static const std::vector<AttentionMutant> list = [] {
    std::vector<AttentionMutant> all(std::begin(kVotes), std::end(kVotes));
    all.insert(all.end(), std::begin(kArithmetic), std::end(kArithmetic));
    all.insert(all.end(), std::begin(kFaults), std::end(kFaults));
    return all;
  }();
  return list;
}

Expected<const AttentionMutant*> find_attention_mutant(std::string_view name) {
  std::vector<std::string_view> names;
  for (const AttentionMutant& mutant : attention_mutants()) {
    if (mutant.name == name) return &mutant;
    names.push_back(mutant.name);
  }
  return bad_input(fmt::format("mutant is {}; attention has {}", in_quotes(name), joined(names)));
}

std::unique_ptr<AttentionSubject> mutant_subject(const AttentionMutant& mutant) {
  return std::make_unique<AttentionFunction>(
      "sim, mutant " + std::string(mutant.name),
      [mutant](const Profile& profile, const Problem& problem, int threads) {
        if (mutant.fault != nullptr) return mutant.fault(profile, problem, threads);
        Profile changed = profile;
        mutant.change(changed);
        return emulated(changed, problem, threads);
      });
}

}  // namespace assay::verify
