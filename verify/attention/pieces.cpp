// Properties of work in pieces: keys that are split, and a prefill in several calls. Decides what
// each expects of a profile (SPEC VER-23.3).
#include <fmt/format.h>

#include <algorithm>

#include "verify/attention/check.hpp"

namespace assay::verify {
namespace {

using namespace check;
using attention::LambdaLength;
using attention::MaskKind;
using attention::Split;
using attention::Threshold;

Prediction predict_splits(const Profile& p) {
  if (p.skip.split == Split::kNone) return not_applicable("does not split keys", "ATT-5.4");
  if (p.skip.split == Split::kStrided)
    return violated("skip.split = strided", "ATT-7.2",
                    [](Profile& o) { o.skip.split = Split::kNone; });
  return holds();
}

void check_splits(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* want = t.run(b->problem);
  for (const int splits : {2, 3, 8}) {
    attention::Problem p = b->problem;
    p.splits = splits;
    const Trial::Ran* ran = t.run(p);
    if (ran == nullptr ||
        !same_answer(t, *ran, *want, fmt::format("{} splits give other bits than 1", splits)))
      return;
  }
}

// Of a decode also: whole chunks that are low, so that a maximum which goes on where it should
// begin anew leaves all of one out; requests of one chunk beside those of several, several key
// heads, and pages; a window that begins within a chunk; rows enough that the order in which chunks
// meet shows in some LSE.
std::vector<AttentionCase> split_cases(const Profile& p) {
  const AttentionCase one = with(usual_case(p), [](AttentionCase& c) {
    c.dim = 32;
    c.q_heads = 8;
    c.kv = {4500};
    c.contrast = 4;
    c.threshold.value = 0.2f;
  });
  std::vector<AttentionCase> list = {one};
  if (!is_decode(p)) return list;
  list.push_back(with(one, [](AttentionCase& c) { c.block = 2048; }));
  list.push_back(with(one, [](AttentionCase& c) {
    c.kv_heads = 2;
    c.q = {2, 1, 3};
    c.kv = {4500, 300, 2100};
    c.mask = MaskKind::kCausal;
    c.page = 16;
  }));
  list.push_back(with(one, [](AttentionCase& c) {
    c.q = {3};
    c.kv = {5000};
    c.mask = MaskKind::kWindow;
    c.mask_size = 3000;
  }));
  list.push_back(with(one, [](AttentionCase& c) {
    c.q = {6};
    c.kv = {6200};
    c.spread = 1;
    c.contrast = 2;
    c.block = 2048;
  }));
  return and_fp8(p, std::move(list));
}

Prediction predict_chunked_factor(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (p.skip.lambda_length != LambdaLength::kNone)
    return violated(
        "skip.lambda_length = " +
            std::string(p.skip.lambda_length == LambdaLength::kRequest ? "request" : "batch_max"),
        "ATT-4.6", [](Profile& o) { o.skip.lambda_length = LambdaLength::kNone; });
  return holds();
}

// A prefill in two pieces, cut at units' edges, against one call.
void check_chunked(Trial& t) {
  if (t.c().q[0] != t.c().kv[0])
    return t.decline("the case is no prefill from key 0: q and kv of its first request differ");
  const BuiltPtr b = build(t.c());
  const attention::Problem& p = b->problem;
  const Trial::Ran* whole = t.run(p);
  const std::int32_t total = p.requests[0].q_len, unit = unit_tokens(t.profile(), t.c());
  for (std::int32_t cut = unit; cut < total; cut += std::max(unit, total / 3 / unit * unit)) {
    for (const std::int32_t begin : {0, cut}) {
      attention::Problem piece = p;
      attention::Request& r = piece.requests[0];
      r.q_len = begin == 0 ? cut : total - cut;
      r.q.base = r.q.row(0, begin, piece.element_bytes());
      r.q.available = r.q_len;
      r.kv_len = r.k.available = r.v.available = begin + r.q_len;
      r.q_offset = begin;
      const Trial::Ran* ran = t.run(piece);
      if (ran == nullptr || !same_rows(t, {*ran, 0}, {*whole, begin}, r.q_len,
                                       fmt::format("a prefill cut at row {} has other bits", cut)))
        return;
    }
  }
}

AttentionCase chunked_case(const Profile& p) {
  AttentionCase c = usual_case(p);
  c.dim = 80;
  c.mask = MaskKind::kCausal;
  if (is_decode(p)) c.q_heads = 4;
  c.q = c.kv = {420};
  c.spread = 0.05f;
  return c;
}
std::vector<AttentionCase> chunked_cases(const Profile& p) { return {chunked_case(p)}; }
// A low block is 8 nats below. ln lambda is -8.3 by all keys and -7.2 or -7.9 by the first third or
// two thirds of them, one of which sees a low block that is not kept unasked.
std::vector<AttentionCase> chunked_factor_cases(const Profile& p) {
  return {with(chunked_case(p), [&](AttentionCase& c) {
    if (p.skip.kept_first > 1) c.q = c.kv = {900};
    c.spread = 0.02f;
    c.contrast = 8;
    c.threshold = {Threshold::Kind::kScaleFactor,
                   static_cast<float>(c.kv[0]) * 2.485e-4f};  // exp(-8.3)
  })};
}

}  // namespace

std::vector<Property> piece_properties() {
  return {
      {"splits",
       "The number of splits changes nothing",
       "ATT-6.4",
       true,
       predict_splits,
       split_cases,
       false,
       check_splits,
       {"split_count_matters"},
       true},
      {"chunked",
       "A prefill in pieces has the bits of one shot, given lambda",
       "ATT-1.1",
       true,
       skipping,
       chunked_cases,
       false,
       check_chunked,
       {"top_left_for_bottom_right"},
       true},
      {"chunked_factor",
       "A prefill in pieces has the bits of one shot, given a scale factor",
       "ATT-4.6",
       true,
       predict_chunked_factor,
       chunked_factor_cases,
       false,
       check_chunked,
       {"top_left_for_bottom_right"},
       true},
  };
}

}  // namespace assay::verify
