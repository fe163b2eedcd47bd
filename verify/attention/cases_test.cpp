// Attention cases: text and back, refusals, and that laying rows out anew changes none of them.
#include "verify/attention/cases.hpp"

#include <cstring>
#include <vector>

#include "model/core/testing.hpp"
#include "verify/attention/check.hpp"

namespace {

using namespace assay;
using namespace assay::verify;
using assay::testing::prop;

AttentionCase any_case() {
  const auto profiles = attention::profiles();
  const auto at = *rc::gen::inRange<std::size_t>(0, profiles.size());
  Dice dice(*rc::gen::arbitrary<std::uint64_t>());
  AttentionCase c = random_case(profiles[at], dice);
  if (dice.below(3) == 0)
    c.threshold = {attention::Threshold::Kind::kScaleFactor, dice.normal() + 4};
  if (dice.below(3) == 0) c.scale = dice.normal() + 4;
  if (dice.below(3) == 0) c.v_scale = dice.normal() + 4;
  if (dice.below(5) == 0)
    c.threshold = {attention::Threshold::Kind::kLambda, std::numeric_limits<float>::infinity()};
  return c;
}

// The bytes of every row that a request has.
std::vector<std::byte> rows_of(const attention::Problem& p, std::size_t i) {
  std::vector<std::byte> all;
  const attention::Request& r = p.requests[i];
  const auto add = [&](const attention::Rows& rows, int count, int heads, int dim) {
    for (int row = 0; row < count; ++row)
      for (int h = 0; h < heads; ++h) {
        const std::byte* from = rows.row(h, row, p.element_bytes());
        all.insert(all.end(), from, from + dim * p.element_bytes());
      }
  };
  add(r.q, r.q_len, p.q_heads, p.head_dim);
  add(r.k, r.kv_len, p.kv_heads, p.head_dim);
  add(r.v, r.kv_len, p.kv_heads, p.v_dim);
  return all;
}

}  // namespace

TEST_CASE("an attention case is what its line says, and back", "[VER-22.1]") {
  prop("any case", [] {
    const AttentionCase c = any_case();
    const auto parsed = parse_attention_case(print(c));
    RC_ASSERT(parsed.has_value());
    RC_ASSERT(*parsed == c);
    RC_ASSERT(print(*parsed) == print(c));
  });
  const auto c = parse_attention_case(
      "q=64,1 kv=300,17 heads=4/2 dim=64 mask=window:20 lambda=0.02 contrast=8 seed=7 dtype=BF16");
  REQUIRE(c.has_value());
  REQUIRE(c->q == std::vector<std::int32_t>{64, 1});
  REQUIRE(c->v_dim == 64);
  REQUIRE(c->mask_size == 20);
  REQUIRE(c->threshold.value == 0.02f);
}

TEST_CASE("the defaults that the help tells are those of a case", "[VER-22.1]") {
  const auto told = parse_attention_case(
      "align=bottom_right custom=0 spread=1 contrast=0 block=128 page=0 splits=1 scale=0 "
      "v_scale=1");
  REQUIRE(told.has_value());
  CHECK(*told == AttentionCase{});
}

TEST_CASE("a line that is no attention case is refused with what is allowed", "[VER-22.1]") {
  const std::pair<const char*, const char*> wrong[] = {
      {"q=1 q=2", "q"},
      {"tokens=3", "tokens"},
      {"q=1,2 kv=3", "equally many"},
      {"heads=3/2", "multiple"},
      {"dim=0", "dim"},
      {"mask=diagonal", "chunked:N"},
      {"mask=window", "window:N"},
      {"mask=full:3", "mask"},
      {"mask=window:0", "N of mask=window:N is 0;"},
      {"lambda=1e-50", "\"1e-50\", which f32 does not hold"},
      {"factor=1e50", "\"1e50\", which f32 does not hold"},
      {"lambda=nan", "lambda"},
      {"lambda=-1", "lambda"},
      {"lambda=0.1 factor=2", "both"},
      {"dtype=F32", "F8_E4M3"},
      {"custom=2", "custom"},
      {"q=1048576 kv=1048576", "q * kv"},
      {"q=1 kv=1048576 dim=4096", "keys"},
      {"q=0 kv=1048576 heads=1024 dim=4096", "keys"},
      {"q=1048576 kv=0 heads=1024 dim=4096", "rows of q"},
      {"q=1 kv=1 heads=64 dim=1024 page=1048576", "pages"},
      {"q=65536 kv=8192 dim=4 custom=1", "custom"},
      {"q=1048576,0 kv=0,1048576 dim=64", "longest"},
      {"splits=0", "splits"},
      {"v_scale=0", "v_scale"},
      {"contrast=1e9", "contrast"},
  };
  for (const auto& [line, word] : wrong) {
    const auto parsed = parse_attention_case(line);
    CAPTURE(line);
    REQUIRE_FALSE(parsed.has_value());
    REQUIRE(parsed.error().sentence.find(word) != std::string::npos);
  }
}

TEST_CASE("a case of any number of requests is within the limits or refused", "[VER-22.1]") {
  const auto many = [](int requests, const std::string& q, const std::string& kv) {
    std::string text_q, text_kv;
    for (int i = 0; i < requests; ++i) {
      text_q += (i == 0 ? "" : ",") + q;
      text_kv += (i == 0 ? "" : ",") + kv;
    }
    return parse_attention_case("heads=1024/1 q=" + text_q + " kv=" + text_kv);
  };
  // A sum of 64 bits would be negative.
  for (const int requests : {9100, 16384, 60000})
    CHECK_FALSE(many(requests, "999999", "999999").has_value());
  CHECK(many(1, "8", "16").has_value());
  CHECK_FALSE(many(9100, "8", "16").has_value());
}

TEST_CASE("rows hold the same bytes however they are laid out", "[VER-22.2]") {
  prop("any case", [] {
    AttentionCase c = any_case();
    c.page = 0;
    const BuiltPtr b = build(c);
    const BuiltPtr again = build(c);
    const BuiltPtr gaps = with_gaps(*b, 40, nan_code(c.dtype));
    const BuiltPtr pages = in_pages(*b, 16, nan_code(c.dtype));
    RC_ASSERT(attention::check(b->problem).has_value());
    RC_ASSERT(attention::check(gaps->problem).has_value());
    RC_ASSERT(attention::check(pages->problem).has_value());
    std::vector<std::size_t> back;
    for (std::size_t i = c.q.size(); i > 0; --i) back.push_back(i - 1);
    const BuiltPtr turned = select(*b, back);
    for (std::size_t i = 0; i < c.q.size(); ++i) {
      const std::vector<std::byte> rows = rows_of(b->problem, i);
      RC_ASSERT(rows_of(again->problem, i) == rows);
      RC_ASSERT(rows_of(gaps->problem, i) == rows);
      RC_ASSERT(rows_of(pages->problem, i) == rows);
      RC_ASSERT(rows_of(turned->problem, c.q.size() - 1 - i) == rows);
    }
  });
}

TEST_CASE("random cases are legal for their profile, and smaller ones are smaller", "[VER-22.3]") {
  Dice dice(5);
  for (const attention::Profile& profile : attention::profiles())
    for (int i = 0; i < 50; ++i) {
      const AttentionCase c = random_case(profile, dice);
      REQUIRE(check_case(c).has_value());
      const BuiltPtr b = build(c);
      const auto emulator = attention::Emulator::make(profile, b->problem);
      CAPTURE(profile.name, print(c), emulator ? "" : emulator.error().sentence);
      REQUIRE(emulator.has_value());
      for (const AttentionCase& other : smaller(c)) {
        REQUIRE(check_case(other).has_value());
        REQUIRE_FALSE(other == c);
      }
    }
}

TEST_CASE("contrast puts every second block that many nats below", "[VER-22.2]") {
  const auto c = parse_attention_case("dtype=F16 q=64 kv=512 contrast=30 spread=0.1 dim=96");
  REQUIRE(c.has_value());
  const BuiltPtr b = build(*c);
  const auto truth = attention::truth(
      b->problem, [](std::size_t, int, std::int32_t, std::int32_t key) { return key / 128 == 1; });
  const auto high = attention::truth(
      b->problem, [](std::size_t, int, std::int32_t, std::int32_t key) { return key / 128 == 0; });
  for (std::size_t i = 0; i < truth->rows.size(); ++i) {
    const double gap = high->rows[i].lse_ln - truth->rows[i].lse_ln;
    REQUIRE(gap > 29);
    REQUIRE(gap < 31);
  }
}
