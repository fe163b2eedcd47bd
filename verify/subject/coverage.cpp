// Counting what the plan of a round asks for.
#include "verify/subject/coverage.hpp"

#include "verify/checks/checks.hpp"

namespace assay::verify {

namespace {

constexpr CoverageField kFields[] = {
    {"rounds", &Coverage::rounds},
    {"tokens", &Coverage::tokens},
    {"picks", &Coverage::picks},
    {"rows", &Coverage::rows},
    {"remote_rows", &Coverage::remote_rows},
    {"duplicate_picks", &Coverage::duplicate_picks},
    {"invalid_picks", &Coverage::invalid_picks},
    {"masked_picks", &Coverage::masked_picks},
    {"zero_token_ranks", &Coverage::zero_token_ranks},
    {"pairs", &Coverage::pairs},
    {"empty_pairs", &Coverage::empty_pairs},
    {"ranks", &Coverage::ranks},
    {"empty_ranks", &Coverage::empty_ranks},
    {"padding_rows", &Coverage::padding_rows},
    {"tokens_with_holes", &Coverage::tokens_with_holes},
    {"tokens_without_rows", &Coverage::tokens_without_rows},
    {"max_changes", &Coverage::max_changes},
    {"payload_changes", &Coverage::payload_changes},
    {"mask_changes", &Coverage::mask_changes},
    {"dispatch_bytes", &Coverage::dispatch_bytes},
    {"statistics_words", &Coverage::statistics_words},
    {"list_entries", &Coverage::list_entries},
    {"combine_elements", &Coverage::combine_elements},
    {"nan_elements", &Coverage::nan_elements},
};

void add_token(const RoundView& view, RankId src, TokenId token, Coverage& coverage) {
  std::int32_t terms = 0;
  const auto ids = view.routing->topk_ids(src, token);
  for (TopKIndex k{0}; k.value() < view.routing->top_k(); k = k.next()) {
    if (const auto target = view.legal->target(src, token, k)) {
      ++terms;
      coverage.remote_rows += target->rank == src ? 0 : 1;
      continue;
    }
    const auto place = view.placement->place_of_wire(ids[static_cast<std::size_t>(k.value())]);
    if (!place)
      ++coverage.invalid_picks;
    else if (!view.is_alive(*view.placement->rank_of(*place)))
      ++coverage.masked_picks;
    else
      ++coverage.duplicate_picks;
  }
  coverage.picks += view.routing->top_k();
  coverage.rows += terms;
  coverage.tokens_without_rows += terms == 0 ? 1 : 0;
  coverage.tokens_with_holes += terms > 0 && terms < view.routing->top_k() ? 1 : 0;
}

void add_destination(const RoundView& view, RankId dst, Coverage& coverage) {
  std::int64_t rows = 0;
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
    if (!view.is_alive(src)) continue;
    const std::int32_t of_pair = view.legal->recv_counter(dst, src);
    ++coverage.pairs;
    coverage.empty_pairs += of_pair == 0 ? 1 : 0;
    rows += of_pair;
  }
  ++coverage.ranks;
  coverage.empty_ranks += rows == 0 ? 1 : 0;
  coverage.padding_rows += std::int64_t{view.ep_size()} * view.max_tokens() - rows;
}

std::int64_t count_nan(const RoundView& view, RankId src) {
  const ElementFormat format = format_of(view.combine->out_dtype());
  const OutputBuffer& out = view.out[static_cast<std::size_t>(src.value())];
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < out.size / format_bytes(format); ++i)
    count += is_nan(format, load_element(format, out.data, i)) ? 1 : 0;
  return count;
}

bool same_payloads(const RoundView& a, const RoundView& b) {
  if (a.payloads.size() != b.payloads.size()) return false;
  for (std::size_t p = 0; p < a.payloads.size(); ++p) {
    if (a.payloads[p].name != b.payloads[p].name ||
        a.payloads[p].bytes_per_token != b.payloads[p].bytes_per_token)
      return false;
  }
  return true;
}

}  // namespace

CoverageFields coverage_fields() { return {std::begin(kFields), std::end(kFields)}; }

Coverage& Coverage::operator+=(const Coverage& other) {
  for (const CoverageField& field : coverage_fields()) this->*field.count += other.*field.count;
  return *this;
}

void add_coverage(const RoundView& view, Coverage& coverage) {
  ++coverage.rounds;
  std::int64_t rows_before = coverage.rows;
  for (RankId rank{0}; rank.value() < view.ep_size(); rank = rank.next()) {
    if (!view.is_alive(rank)) continue;
    const std::int32_t tokens = view.num_tokens(rank);
    coverage.tokens += tokens;
    coverage.zero_token_ranks += tokens == 0 ? 1 : 0;
    coverage.combine_elements += std::int64_t{tokens} * view.setup->hidden_size;
    if (view.setup->nan_and_inf) coverage.nan_elements += count_nan(view, rank);
    for (TokenId token{0}; token.value() < tokens; token = token.next())
      add_token(view, rank, token, coverage);
    add_destination(view, rank, coverage);
    if (!view.statistics.empty())
      coverage.statistics_words += static_cast<std::int64_t>(view.statistics_of(rank).size());
    if (!view.list_offsets.empty())
      coverage.list_entries += static_cast<std::int64_t>(
          moe::list_expert_slots(*view.placement, *view.routing, *view.legal, rank).entries.size());
  }
  std::int64_t row_bytes = 0;
  for (const moe::Payload& payload : view.payloads) row_bytes += payload.bytes_per_token;
  coverage.dispatch_bytes += (coverage.rows - rows_before) * row_bytes;
  if (view.previous == nullptr) return;
  coverage.max_changes += view.max_tokens() != view.previous->max_tokens() ? 1 : 0;
  coverage.payload_changes += same_payloads(view, *view.previous) ? 0 : 1;
  coverage.mask_changes += view.alive == view.previous->alive ? 0 : 1;
}

}  // namespace assay::verify
