// Properties of where rows lie and what lies beside them: what one request gives depends on nothing
// but that request. Decides what each expects of a profile (SPEC VER-23.3).
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "verify/attention/check.hpp"
#include "verify/attention/sparse.hpp"

namespace assay::verify {
namespace {

using namespace check;
using attention::LambdaLength;
using attention::MaskKind;
using attention::PaddingFill;
using attention::PaddingRows;
using attention::Threshold;

Prediction always(const Profile&) { return holds(); }

Prediction predict_poison(const Profile& p) {
  if (p.skip.padding_fill != PaddingFill::kZero)
    return violated("skip.padding_fill = neighbour or last_page", "ATT-2.3",
                    [](Profile& o) { o.skip.padding_fill = PaddingFill::kZero; });
  return holds();
}

// NaN and Inf behind every request, in unused slots of pages, and in pages of nobody.
void check_poison(Trial& t) {
  const BuiltPtr b = build(t.c());
  const std::uint32_t codes[] = {nan_code(t.c().dtype), infinity_code(t.c().dtype)};
  const BuiltPtr clean = with_gaps(*b, 300, 0), clean_pages = in_pages(*b, t.page(48), 0);
  const Trial::Ran* want = t.run(clean->problem);
  const Trial::Ran* want_pages = t.run(clean_pages->problem);
  for (const std::uint32_t code : codes) {
    const BuiltPtr dirty = with_gaps(*b, 300, code), pages = in_pages(*b, t.page(48), code);
    const Trial::Ran* ran = t.run(dirty->problem);
    if (ran == nullptr || !same_answer(t, *ran, *want, "what lies behind the lengths leaked"))
      return;
    ran = t.run(pages->problem);
    if (ran == nullptr || !same_answer(t, *ran, *want_pages, "unused slots of pages leaked"))
      return;
  }
}

std::vector<AttentionCase> poison_cases(const Profile& p) {
  AttentionCase c = ragged_case(p, false);
  c.kv = {300, 500, 70};
  c.contrast = 30;
  if (p.skip.diagonal_only) c.kv[2] = 128;  // keys_end is another property
  std::vector<AttentionCase> list = {
      c,
      with(c, [](AttentionCase& o) { o.mask = MaskKind::kCausal; }),
      // Where padding votes, only whole units skip.
      with(usual_case(p), [](AttentionCase& o) { o.kv = {500}; }),
  };
  return and_fp8(p, and_pairs(p, std::move(list)));
}

// Rows of a request in a batch depend on the batch where lambda does, or where the rows that fill a
// unit up vote and are the next request's.
Prediction predict_ragged(const Profile& p) {
  if (p.skip.lambda_length == LambdaLength::kBatchMax)
    return violated("skip.lambda_length = batch_max", "ATT-4.6",
                    [](Profile& o) { o.skip.lambda_length = LambdaLength::kRequest; });
  if (p.skip.padding_fill != PaddingFill::kZero && p.skip.padding_rows == PaddingRows::kVote)
    return violated("skip.padding_rows = vote, padding_fill = neighbour or last_page", "ATT-4.5",
                    [](Profile& o) { o.skip.padding_rows = PaddingRows::kAbstain; });
  return holds();
}

// Also whole units with lower blocks, so that something is skipped whatever lambda is divided by.
std::vector<AttentionCase> ragged_cases(const Profile& p) {
  return and_pairs(p, {ragged_case(p, false), with(ragged_case(p, true), [](AttentionCase& c) {
                         c.contrast = 30;
                         c.dim = 80;
                       })});
}

void check_ragged(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* together = t.run(b->problem);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < t.c().q.size(); ++i) {
    const BuiltPtr single = select(*b, std::vector<std::size_t>{i});
    const Trial::Ran* alone = t.run(single->problem);
    if (alone == nullptr) return;
    const std::int64_t rows = t.c().q[i];
    if (!same_rows(t, {*together, row}, {*alone, 0}, rows,
                   "a request alone has other bits than in the batch",
                   static_cast<std::int64_t>(i)))
      return;
    row += rows;
  }
}

Prediction predict_permutation(const Profile& p) {
  if (p.skip.padding_fill != PaddingFill::kZero && p.skip.padding_rows == PaddingRows::kVote)
    return violated("skip.padding_rows = vote, padding_fill = neighbour or last_page", "ATT-4.5",
                    [](Profile& o) { o.skip.padding_rows = PaddingRows::kAbstain; });
  return holds();
}

void check_permutation(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* ran = t.run(b->problem);
  std::vector<std::size_t> order(t.c().q.size());
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + 1, order.end());
  const BuiltPtr other = select(*b, order);
  const Trial::Ran* turned = t.run(other->problem);
  if (turned == nullptr) return;
  std::int64_t row = 0;
  for (const std::size_t i : order) {
    const std::int64_t rows = t.c().q[i];
    if (!same_rows(t, {*turned, row}, {*ran, b->problem.first_row(i)}, rows,
                   "another order of the batch gives a request other bits",
                   static_cast<std::int64_t>(i)))
      return;
    row += rows;
  }
}

void check_paged(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* want = t.run(b->problem);
  for (const std::int32_t page : {t.page(16), t.page(48)}) {
    const BuiltPtr pages = in_pages(*b, page, 0);
    const Trial::Ran* ran = t.run(pages->problem);
    if (ran == nullptr ||
        !same_answer(t, *ran, *want, fmt::format("pages of {} rows give other bits", page)))
      return;
  }
}

std::vector<AttentionCase> paged_cases(const Profile& p) {
  return and_pairs(
      p, {usual_case(p),
          with(usual_case(p), [](AttentionCase& c) { c.kv = {419}, c.dtype = Dtype::kBf16; }),
          // Tables of several requests.
          ragged_case(p, false)});
}

// The last third of the keys lies beyond 2^31 elements.
void check_large_offsets(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* want = t.run(b->problem);
  if (want == nullptr) return;
  const std::int64_t stride = (std::int64_t{1} << 30) / std::max(1, t.c().kv[0] / 3) + 8;
  const std::size_t reach = static_cast<std::size_t>(stride * (b->k.rows + 1)) *
                            std::max(b->k.element_bytes(), std::size_t{2});
  const SparseMemory k(reach), v(reach);
  if (!k.ok() || !v.ok()) return t.decline("the system has no address space for large strides");
  attention::Problem far = b->problem;
  far.requests[0].k = spread_rows(far.requests[0].k, b->k, stride, k);
  far.requests[0].v = spread_rows(far.requests[0].v, b->v, stride, v);
  const Trial::Ran* ran = t.run(far);
  if (ran != nullptr) same_answer(t, *ran, *want, "rows beyond 2^31 elements give other bits");
}

// Requests of no rows or no keys between two others.
void check_zero_length(Trial& t) {
  const BuiltPtr b = build(t.c());
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < t.c().q.size(); ++i)
    if (t.c().q[i] > 0 && t.c().kv[i] > 0) kept.push_back(i);
  const BuiltPtr without = select(*b, kept);
  const Trial::Ran* ran = t.run(b->problem);
  const Trial::Ran* want = t.run(without->problem);
  if (want == nullptr) return;
  std::int64_t row = 0;
  for (const std::size_t i : kept) {
    if (!same_rows(t, {*ran, b->problem.first_row(i)}, {*want, row}, t.c().q[i],
                   "a request of length zero changes the bits of others",
                   static_cast<std::int64_t>(i)))
      return;
    row += t.c().q[i];
  }
}

std::vector<AttentionCase> zero_length_cases(const Profile& p) {
  return {with(usual_case(p), [](AttentionCase& c) {
    const std::int32_t rows = c.q[0];
    c.q = {rows, 0, rows, rows};
    c.kv = {512, 100, 0, 300};
  })};
}

void check_repeat(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* want = t.run(b->problem);
  for (const int threads : {1, 2, 3}) {
    const Trial::Ran* ran = t.run(b->problem, threads);
    if (ran == nullptr ||
        !same_answer(t, *ran, *want,
                     fmt::format("another run, on {} threads, gives other bits", threads)))
      return;
  }
}

Prediction predict_thresholds(const Profile& p) { return skipping(p); }

// Three requests whose thresholds skip nothing, low blocks, and are off.
void check_thresholds(Trial& t) {
  if (t.c().q.size() != 3)
    return t.decline("the case has not three requests, for three thresholds");
  const BuiltPtr b = build(t.c());
  const Threshold thresholds[] = {
      {Threshold::Kind::kLambda, 1e-6f}, {Threshold::Kind::kLambda, 1e-2f}, {}};
  for (std::size_t i = 0; i < 3; ++i) b->problem.requests[i].threshold = thresholds[i];
  const Trial::Ran* together = t.run(b->problem);
  for (std::size_t i = 0; i < 3; ++i) {
    const BuiltPtr single = select(*b, std::vector<std::size_t>{i});
    const Trial::Ran* alone = t.run(single->problem);
    if (alone == nullptr) return;
    if (!same_rows(t, {*together, b->problem.first_row(i)}, {*alone, 0}, t.c().q[i],
                   "a request's own threshold gives other bits in a batch",
                   static_cast<std::int64_t>(i)))
      return;
  }
}

std::vector<AttentionCase> threshold_cases(const Profile& p) {
  return {with(usual_case(p), [](AttentionCase& c) {
    c.q = {c.q[0], c.q[0], c.q[0]};
    c.kv = {512, 512, 512};
    c.contrast = 8;
    c.dim = 80;
  })};
}

}  // namespace

std::vector<Property> layout_properties() {
  return {

      {"poison",
       "NaN and Inf behind lengths and in unused page slots change nothing",
       "ATT-2.3",
       true,
       predict_poison,
       poison_cases,
       false,
       check_poison,
       {"neighbours_leak"}},
      {"ragged",
       "Requests of a batch have the bits they have alone",
       "ATT-5.7",
       true,
       predict_ragged,
       ragged_cases,
       false,
       check_ragged,
       {"wrong_request_rows"}},
      {"permutation",
       "The order of the batch changes no request",
       "ATT-5.7",
       true,
       predict_permutation,
       ragged_cases,
       false,
       check_permutation,
       {"wrong_request_rows"}},
      {"paged",
       "Pages in any order have the bits of contiguous rows",
       "ATT-2.2",
       true,
       always,
       paged_cases,
       false,
       check_paged,
       {"page_index_ignored"}},
      {"large_offsets",
       "Rows beyond 2^31 elements are rows like others",
       "ATT-2.2",
       true,
       always,
       usual_only,
       false,
       check_large_offsets,
       {"offsets_in_32_bits"}},
      {"zero_length",
       "Requests without rows or keys change no other request",
       "ATT-2.1",
       true,
       always,
       zero_length_cases,
       false,
       check_zero_length,
       {"empty_request_shifts"}},
      {"repeat",
       "Another run, on any number of threads, has the same bits",
       "ATT-5.7",
       true,
       always,
       usual_only,
       false,
       check_repeat,
       {"not_repeatable"}},
      {"thresholds",
       "Every request has its own threshold",
       "ATT-2.4",
       true,
       predict_thresholds,
       threshold_cases,
       false,
       check_thresholds,
       {"first_request_rules"},
       true},

  };
}

}  // namespace assay::verify
