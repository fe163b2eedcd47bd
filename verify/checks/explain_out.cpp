// The guesses about a wrong sum, from whole profiles down to single terms. Each recomputes the row.
#include "verify/checks/explain_out.hpp"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <optional>

#include "verify/checks/stale.hpp"

namespace assay::verify {

namespace {

using Terms = std::vector<const std::byte*>;

bool equals(const RoundView& view, const moe::Combine& combine, const Terms& terms,
            const WrongOut& wrong) {
  std::vector<std::byte> row(static_cast<std::size_t>(view.out_row_bytes()));
  if (combine.out_dtype() != view.combine->out_dtype()) return false;
  combine.row(terms, view.setup->hidden_size, row.data());
  return std::memcmp(row.data(), view.out_row(wrong.src, wrong.token), row.size()) == 0;
}

constexpr const char* kThisRow = "this row fits";

// "all 3 wrong rows" when the guess holds for every one, else what it holds for: the first.
std::optional<std::string> reach(const RoundView& view, const WrongOut& first,
                                 const std::function<bool(const WrongOut&)>& guess) {
  if (!guess(first)) return std::nullopt;
  for (const WrongOut& wrong : view.wrong_out)
    if (!guess(wrong)) return kThisRow;
  return view.wrong_out.size() == 1 ? "the wrong row fits"
                                    : fmt::format("all {} wrong rows fit", view.wrong_out.size());
}

// Another profile's arithmetic on the same terms.
void guess_profiles(const RoundView& view, const WrongOut& first,
                    std::vector<std::string>& sentences) {
  // Profiles that differ in low precision only are one where it is off.
  const auto relevant = [&](moe::CombineArithmetic arithmetic) {
    if (!view.setup->low_precision_combine) {
      arithmetic.low_precision = moe::CombineArithmetic::LowPrecision::kNone;
      arithmetic.low_precision_out = moe::CombineArithmetic::LowPrecisionOut::kBf16;
    }
    return arithmetic;
  };
  std::vector<moe::CombineArithmetic> tried{relevant(view.combine->arithmetic())};
  for (const moe::CombineProfile& profile : moe::combine_profiles()) {
    const moe::CombineArithmetic arithmetic = relevant(profile.arithmetic);
    bool known = false;
    for (const auto& earlier : tried) known |= earlier == arithmetic;
    if (known) continue;
    tried.push_back(arithmetic);
    const auto other = moe::Combine::make(arithmetic, view.combine->shape());
    if (!other) continue;
    const auto fit = reach(view, first, [&](const WrongOut& wrong) {
      return equals(view, *other, view.terms_of(wrong.src, wrong.token), wrong);
    });
    if (fit) {
      sentences.push_back(
          fmt::format("profile {} ({}) fits instead: {}", profile.name, profile.variant, *fit));
    }
  }
}

// One field of the arithmetic changed, where no whole profile fits.
void guess_fields(const RoundView& view, const WrongOut& first,
                  std::vector<std::string>& sentences) {
  using Arithmetic = moe::CombineArithmetic;
  const Arithmetic actual = view.combine->arithmetic();
  struct Change {
    const char* sentence;
    Arithmetic arithmetic;
  };
  std::vector<Change> changes;
  Arithmetic other = actual;
  if (!view.setup->low_precision_combine) {  // which adds in f32 or not at all
    other.accumulate = actual.accumulate == Arithmetic::Accumulate::kF32
                           ? Arithmetic::Accumulate::kPayload
                           : Arithmetic::Accumulate::kF32;
    changes.push_back({other.accumulate == Arithmetic::Accumulate::kF32
                           ? "it fits when additions are in f32 with one rounding at the end"
                           : "it fits when every addition rounds to the payload's type",
                       other});
  }
  other = actual;
  other.flush_subnormals = !actual.flush_subnormals;
  changes.push_back({other.flush_subnormals ? "it fits when additions flush subnormals to zero"
                                            : "it fits when additions keep subnormals",
                     other});
  other = actual;
  other.holes = actual.holes == Arithmetic::Holes::kAddZero ? Arithmetic::Holes::kCompact
                                                            : Arithmetic::Holes::kAddZero;
  if (other.holes == Arithmetic::Holes::kCompact)
    other.trees = moe::TreeTable::kCompact;
  else
    other.trees = moe::TreeTable::kPosition;
  changes.push_back({other.holes == Arithmetic::Holes::kCompact
                         ? "it fits when holes are skipped and the valid terms move together"
                         : "it fits when holes are added as +0 in their position",
                     other});
  for (const Change& change : changes) {
    const auto combine = moe::Combine::make(change.arithmetic, view.combine->shape());
    if (!combine) continue;
    const auto fit = reach(view, first, [&](const WrongOut& wrong) {
      return equals(view, *combine, view.terms_of(wrong.src, wrong.token), wrong);
    });
    if (fit) sentences.push_back(fmt::format("{}: {}", change.sentence, *fit));
  }
  if (!view.setup->low_precision_combine) return;
  moe::CombineShape plain = view.combine->shape();
  plain.low_precision = false;
  const auto combine = moe::Combine::make(actual, plain);
  if (!combine) return;
  const auto fit = reach(view, first, [&](const WrongOut& wrong) {
    return equals(view, *combine, view.terms_of(wrong.src, wrong.token), wrong);
  });
  if (fit) sentences.push_back("it fits when rows are not rounded to e4m3: " + *fit);
}

// Terms in another order: two swapped, or all reversed.
void guess_order(const RoundView& view, const WrongOut& first,
                 std::vector<std::string>& sentences) {
  const std::size_t top_k = static_cast<std::size_t>(view.setup->top_k);
  const auto with = [&](const WrongOut& wrong, const std::function<void(Terms&)>& change) {
    Terms terms = view.terms_of(wrong.src, wrong.token);
    change(terms);
    return equals(view, *view.combine, terms, wrong);
  };
  const auto reversed = reach(view, first, [&](const WrongOut& wrong) {
    return with(wrong, [](Terms& terms) { terms = Terms(terms.rbegin(), terms.rend()); });
  });
  if (reversed)
    sentences.push_back("equals the expected bits if the terms are added in reverse: " + *reversed);
  // Several pairs may fit one row, few fit all of them: the best pair is told, and only one, since
  // others follow from the symmetry of the tree.
  std::string best;
  for (std::size_t i = 0; i < top_k; ++i) {
    for (std::size_t j = i + 1; j < top_k; ++j) {
      const auto fit = reach(view, first, [&](const WrongOut& wrong) {
        return with(wrong, [&](Terms& terms) { std::swap(terms[i], terms[j]); });
      });
      const bool all = fit && *fit != kThisRow;
      if (fit && (best.empty() || all)) {
        best =
            fmt::format("equals the expected bits if terms {} and {} are swapped: {}", i, j, *fit);
      }
      if (all) return sentences.push_back(best);
    }
  }
  if (!best.empty()) sentences.push_back(best);
}

// A term left out, or read from a neighbouring slot.
void guess_terms(const RoundView& view, const WrongOut& wrong,
                 std::vector<std::string>& sentences) {
  const Terms terms = view.terms_of(wrong.src, wrong.token);
  for (std::size_t k = 0; k < terms.size(); ++k) {
    const auto target =
        view.joined->target(wrong.src, wrong.token, TopKIndex(static_cast<std::int32_t>(k)));
    if (!target) continue;
    Terms other = terms;
    other[k] = nullptr;
    if (equals(view, *view.combine, other, wrong)) {
      sentences.push_back(
          fmt::format("it fits when term k{} of rank {} is left out", k, target->rank.value()));
      return;
    }
    for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
      for (const auto& row : view.joined->rows(target->rank, src)) {
        if (src == wrong.src && row.slot == target->slot) continue;
        other[k] = view.expert_row(target->rank, src, row.slot);
        if (!equals(view, *view.combine, other, wrong)) continue;
        sentences.push_back(fmt::format(
            "it fits when term k{} is read from source {} slot {} of rank {}; it lies in slot {}",
            k, src.value(), row.slot.value(), target->rank.value(), target->slot.value()));
        return;
      }
    }
  }
}

// The row of another token of the same rank.
void guess_token(const RoundView& view, const WrongOut& wrong,
                 std::vector<std::string>& sentences) {
  for (TokenId token{0}; token.value() < view.routing->num_tokens(wrong.src);
       token = token.next()) {
    if (token == wrong.token) continue;
    if (!equals(view, *view.combine, view.terms_of(wrong.src, token), wrong)) continue;
    sentences.push_back(fmt::format("it is the row of token {}", token.value()));
    return;
  }
}

void describe_bits(const RoundView& view, const WrongOut& wrong,
                   std::vector<std::string>& sentences) {
  const ElementFormat format = format_of(view.combine->out_dtype());
  const std::byte* got = view.out_row(wrong.src, wrong.token);
  std::vector<std::byte> legal(static_cast<std::size_t>(view.out_row_bytes()));
  view.combine->row(view.terms_of(wrong.src, wrong.token), view.setup->hidden_size, legal.data());
  std::int64_t first = -1;
  std::int64_t different = 0;
  std::int64_t last_equal = -1;
  bool only_sign = true;
  bool only_nan = true;
  for (std::int64_t h = 0; h < view.setup->hidden_size; ++h) {
    const std::uint32_t g = load_element(format, got, h);
    const std::uint32_t e = load_element(format, legal.data(), h);
    if (g == e) {
      last_equal = h;
      continue;
    }
    if (first < 0) first = h;
    ++different;
    UlpHistogram one;
    one.add(format, g, e);
    only_sign &= one.count[UlpHistogram::kZeroSign] == 1;
    only_nan &= is_nan(format, g) && !is_nan(format, e);
  }
  if (only_sign) sentences.push_back("only the sign of zero differs: -0 against +0");
  if (only_nan) {
    sentences.push_back(
        "NaN where no term is NaN: a row that holds no token was read (such rows are NaN)");
  }
  if (first > 0 && last_equal < first && different > 1)
    sentences.push_back(fmt::format("all elements from hidden {} on are wrong: a tail", first));
}

}  // namespace

std::vector<std::string> explain_out(const RoundView& view, const WrongOut& wrong) {
  std::vector<std::string> sentences;
  const OutputBuffer& out = view.out[static_cast<std::size_t>(wrong.src.value())];
  const std::span<const std::byte> got(view.out_row(wrong.src, wrong.token),
                                       static_cast<std::size_t>(view.out_row_bytes()));
  if (all_equal(got, out.poison)) return {"nothing was written there"};
  if (const auto stale = find_stale_out(view, wrong)) sentences.push_back(*stale);
  guess_profiles(view, wrong, sentences);
  if (sentences.empty()) guess_fields(view, wrong, sentences);
  if (sentences.empty()) guess_order(view, wrong, sentences);
  if (sentences.empty()) guess_terms(view, wrong, sentences);
  if (sentences.empty()) guess_token(view, wrong, sentences);
  describe_bits(view, wrong, sentences);
  return sentences;
}

}  // namespace assay::verify
