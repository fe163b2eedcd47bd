// combine.bits: every combined row has exactly the bits of the profile, given the rows that experts
// returned. Decides how the first wrong element is told: values, terms in order, distances. It
// judges combine alone: experts ran on what was received, right or wrong.
#include <fmt/format.h>

#include <algorithm>

#include "verify/checks/checks.hpp"
#include "verify/checks/explain_out.hpp"
#include "verify/checks/row_mismatch.hpp"

namespace assay::verify {

namespace {

std::string order_of(const RoundView& view, RankId src, TokenId token) {
  const moe::CombineArithmetic& arithmetic = view.combine->arithmetic();
  std::int32_t terms = view.setup->top_k;
  if (arithmetic.trees == moe::TreeTable::kCompact) {
    terms = 0;
    for (TopKIndex k{0}; k.value() < view.setup->top_k; k = k.next())
      terms += view.joined->target(src, token, k) ? 1 : 0;
  }
  return std::string(moe::tree_text(arithmetic.trees, terms).value_or(""));
}

// All elements of the round against the legal ones. Only runs when something is wrong.
UlpHistogram histogram_of(const RoundView& view, std::int64_t& elements, std::int64_t& wrong) {
  const ElementFormat format = format_of(view.combine->out_dtype());
  UlpHistogram histogram;
  std::vector<std::byte> legal(static_cast<std::size_t>(view.out_row_bytes()));
  histogram.add_equal((view.num_out - view.num_wrong_out) * view.setup->hidden_size);
  for (const WrongOut& row : view.wrong_out) {
    view.combine->row(view.terms_of(row.src, row.token), view.setup->hidden_size, legal.data());
    const std::byte* got = view.out_row(row.src, row.token);
    for (std::int64_t h = 0; h < view.setup->hidden_size; ++h)
      histogram.add(format, load_element(format, got, h), load_element(format, legal.data(), h));
  }
  elements = view.num_out * view.setup->hidden_size;
  wrong = histogram.different();
  return histogram;
}

}  // namespace

Mismatch out_mismatch(const RoundView& view, std::string_view check, const WrongOut& wrong) {
  const ElementFormat format = format_of(view.combine->out_dtype());
  const ElementFormat term_format = format_of(view.setup->combine_dtype);
  const auto terms = view.terms_of(wrong.src, wrong.token);
  std::vector<std::byte> legal(static_cast<std::size_t>(view.out_row_bytes()));
  view.combine->row(terms, view.setup->hidden_size, legal.data());
  const std::byte* got = view.out_row(wrong.src, wrong.token);
  std::int64_t hidden = 0;
  while (load_element(format, got, hidden) == load_element(format, legal.data(), hidden)) ++hidden;

  Mismatch mismatch =
      mismatch_of(check,
                  fmt::format("rank {} token {} element {} has other bits than the profile demands",
                              wrong.src.value(), wrong.token.value(), hidden),
                  {{"round", view.number},
                   {"rank", wrong.src.value()},
                   {"token", wrong.token.value()},
                   {"hidden", hidden}});
  mismatch.values =
      Values{format, load_element(format, got, hidden), load_element(format, legal.data(), hidden)};
  for (std::size_t k = 0; k < terms.size(); ++k) {
    Term term;
    term.k = static_cast<std::int32_t>(k);
    if (const auto target = view.joined->target(wrong.src, wrong.token, TopKIndex(term.k))) {
      term.rank = target->rank.value();
      term.bits = load_element(term_format, terms[k], hidden);
    }
    mismatch.terms.push_back(term);
  }
  mismatch.term_format = term_format;
  mismatch.order = order_of(view, wrong.src, wrong.token);
  for (const moe::SumStep& step : view.combine->explain(terms, hidden))
    if (step.what == moe::SumStep::What::kSum) mismatch.sums.push_back(step.value.bits);
  mismatch.diagnoses = explain_out(view, wrong);
  return mismatch;
}

void check_combine_bits(const RoundView& view, std::vector<Mismatch>& found) {
  const auto first = std::find_if(view.wrong_out.begin(), view.wrong_out.end(),
                                  [](const WrongOut& wrong) { return !wrong.stale; });
  if (first == view.wrong_out.end()) return;
  Mismatch mismatch = out_mismatch(view, "combine.bits", *first);
  mismatch.ulp = histogram_of(view, mismatch.total, mismatch.wrong);
  mismatch.unit = "elements";
  if (!view.lost.empty()) {
    mismatch.diagnoses.push_back(
        fmt::format("{} tokens are not judged: their rows arrived nowhere", view.lost.size()));
  }
  found.push_back(std::move(mismatch));
}

}  // namespace assay::verify
