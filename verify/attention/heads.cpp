// Properties of heads that share keys, and of several query rows at the end of a sequence. Decides
// what each expects of a profile (SPEC VER-23.3).
#include <fmt/format.h>

#include <algorithm>

#include "verify/attention/check.hpp"

namespace assay::verify {
namespace {

using namespace check;
using attention::MaskKind;

Prediction always(const Profile&) { return holds(); }

constexpr const char* kPaged = "the case has pages; key heads are copied of contiguous rows";

// Query heads that share a key head against the same heads with a copy of it each.
BuiltPtr with_own_keys(const Built& b) {
  auto to = std::make_unique<Built>();
  to->c = b.c;
  to->c.kv_heads = b.c.q_heads;
  to->problem = b.problem;
  to->problem.kv_heads = b.c.q_heads;
  to->custom = b.custom;
  to->sinks = b.sinks;
  to->q = b.q;
  to->first_q = b.first_q;
  to->first_kv = b.first_kv;
  for (const auto& [from, copy] : {std::pair{&b.k, &to->k}, std::pair{&b.v, &to->v}}) {
    *copy = Tensor(from->dtype, from->rows, b.c.q_heads, from->dim);
    const std::size_t bytes = static_cast<std::size_t>(from->dim) * from->element_bytes();
    for (std::int64_t i = 0; i < from->rows; ++i)
      for (std::int32_t h = 0; h < b.c.q_heads; ++h)
        std::copy_n(from->bytes.data() + static_cast<std::size_t>(i) * from->row_bytes() +
                        static_cast<std::size_t>(h / b.problem.group()) * bytes,
                    bytes, copy->row(i) + static_cast<std::size_t>(h) * bytes);
  }
  to->point_problem();
  return to;
}

void check_groups(Trial& t) {
  if (t.c().page > 0) return t.decline(kPaged);
  const BuiltPtr b = build(t.c());
  const BuiltPtr own = with_own_keys(*b);
  const Trial::Ran* ran = t.run(b->problem);
  const Trial::Ran* want = t.run(own->problem);
  if (want != nullptr)
    same_rows(t, {*ran, 0}, {*want, 0}, b->q.rows,
              "heads that share keys have other bits than heads with a copy of them");
}

std::vector<AttentionCase> group_cases(const Profile& p) {
  std::vector<AttentionCase> list;
  for (const std::int32_t group : {3, 5, 7, 12}) {
    AttentionCase c = usual_case(p);
    c.threshold = {};
    c.dim = 32;
    c.q = {is_decode(p) ? 2 : 33};
    c.kv = {200};
    c.q_heads = 2 * group;
    c.kv_heads = 2;
    c.spread = 1;
    c.contrast = 0;
    list.push_back(c);
  }
  return list;
}

Prediction predict_heads_alone(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (is_decode(p))
    return violated("skip.packing = group_rows", "ATT-1.3",
                    [](Profile& o) { o.skip.packing = attention::Packing::kHeadRows; });
  return holds();
}

// Once with heads that agree and once with every second head looking at the low blocks.
void check_heads_alone(Trial& t) {
  if (t.c().page > 0) return t.decline(kPaged);
  for (const bool agree : {true, false}) {
    const BuiltPtr b = build(t.c());
    for (std::int64_t row = 0; !agree && row < b->q.rows; ++row)
      for (std::int32_t h = 1; h < b->q.heads; h += 2) b->q.set(row, h, 0, -4);
    const BuiltPtr own = with_own_keys(*b);
    const Trial::Ran* ran = t.run(b->problem);
    const Trial::Ran* want = t.run(own->problem);
    if (want == nullptr ||
        !same_rows(t, {*ran, 0}, {*want, 0}, b->q.rows, "heads that share keys decide together"))
      return;
  }
}

std::vector<AttentionCase> heads_alone_cases(const Profile& p) {
  return {with(usual_case(p), [&](AttentionCase& c) {
    c.dim = 32;
    c.block = std::max(128, tile_of(p, c).kv_tile);
    c.kv = {4 * c.block};
    if (!is_decode(p)) c.q_heads = 4, c.kv_heads = 2;
    c.contrast = 12;  // what remains of a low block is still a number in f16
    c.spread = 0.3f;
  })};
}

// The last rows of a decode against single rows with as many keys as each sees.
void check_tail(Trial& t) {
  const BuiltPtr b = build(t.c());
  const attention::Problem& p = b->problem;
  const Trial::Ran* ran = t.run(p);
  for (std::int32_t row = 0; row < t.c().q[0]; ++row) {
    attention::Problem one = p;
    attention::Request& r = one.requests[0];
    r.q.base = r.q.row(0, row, p.element_bytes());
    r.q.available = r.q_len = 1;
    r.kv_len = p.requests[0].kv_len - t.c().q[0] + row + 1;
    r.q_offset = r.kv_len - 1;
    const Trial::Ran* want = t.run(one);
    if (want == nullptr) return;
    if (!same_rows(t, {*ran, row}, {*want, 0}, 1,
                   fmt::format("row {} of {} has other bits than alone", row, t.c().q[0])))
      return;
  }
}

std::vector<AttentionCase> tail_cases(const Profile& p) {
  std::vector<AttentionCase> list;
  for (const std::int32_t rows : {2, 5, 8}) {
    AttentionCase c = usual_case(p);
    c.threshold = {};
    c.mask = MaskKind::kCausal;
    c.q = {rows};
    c.kv = {131};
    c.dim = 32;
    c.q_heads = 4;
    c.spread = 1;
    c.contrast = 0;
    list.push_back(c);
  }
  return list;
}

}  // namespace

std::vector<Property> head_properties() {
  return {
      {"groups",
       "Without a threshold, heads that share keys have the bits of heads that do not",
       "ATT-1.3",
       false,
       always,
       group_cases,
       false,
       check_groups,
       {"heads_modulo"}},
      {"heads_alone",
       "With a threshold, no head's decision depends on another head",
       "ATT-1.3",
       true,
       predict_heads_alone,
       heads_alone_cases,
       false,
       check_heads_alone,
       {"heads_decide_together", "heads_modulo"},
       true},
      {"tail",
       "Several last rows have the bits they have one by one",
       "ATT-1.1",
       false,
       always,
       tail_cases,
       false,
       check_tail,
       {"top_left_for_bottom_right"}},
  };
}

}  // namespace assay::verify
