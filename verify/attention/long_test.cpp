// Long problems without a GPU: their lines, and that the comparison of a whole answer notices each
// kind of fault and says where it is.
#include "verify/attention/long.hpp"

#include "model/core/testing.hpp"
#include "verify/attention/cases.hpp"
#include "verify/attention/device_call.hpp"

namespace {

using namespace assay;
using namespace assay::verify;

// A short one of the same form.
struct Small {
  BuiltPtr built;
  std::optional<attention::Emulator> emulator;
  attention::Emulation expected;
  attention::DecisionMap map;
  std::vector<std::uint64_t> counters;

  Small() {
    AttentionCase c;
    c.q_heads = 2;
    c.dim = c.v_dim = 64;
    c.q = {200};
    c.kv = {700};
    c.mask = attention::MaskKind::kCausal;
    c.threshold = {attention::Threshold::Kind::kLambda, 1e-2f};
    c.contrast = 20;
    built = build(c);
    const attention::Profile& profile = **attention::find_profile(kPrefillProfile);
    emulator = *attention::Emulator::make(profile, built->problem);
    expected = *attention::emulate(profile, built->problem);
    map = attention::decision_map(*emulator, expected);
    counters.assign(4, 0);
    for (std::size_t i = 0; i < expected.units.size(); ++i)
      for (const attention::TileTrace& tile : expected.units[i].tiles) {
        const auto head = static_cast<std::size_t>(emulator->units()[i].head);
        ++counters[2 * head];
        counters[2 * head + 1] += tile.decision == attention::Decision::kSkipped;
      }
  }
  std::vector<Mismatch> compare() const {
    std::vector<Mismatch> wrong;
    compare_whole(*emulator, expected, map.extents[3], {out, lse, cells, counted}, wrong);
    return wrong;
  }
  // What a kernel gave.
  std::vector<std::uint16_t> out;
  std::vector<F32> lse;
  std::vector<std::uint8_t> cells;
  std::vector<std::uint64_t> counted;
  void answer_rightly() {
    out = expected.out;
    lse = expected.lse;
    cells = map.cells;
    counted = counters;
  }
};

std::int64_t place(const Mismatch& m, const char* axis) { return m.coordinate(axis).value_or(-1); }

}  // namespace

TEST_CASE("lines of long problems are read as they are printed", "[VER-25.8]") {
  for (const LongCase& c : long_cases()) {
    const auto read = parse_long_case(print(c));
    REQUIRE(read.has_value());
    CHECK(print(*read) == print(c));
  }
  for (const char* line : {"heads=8/3", "length=1", "sparsity=1", "mask=window", "dtype=F32", "x=1",
                           "pattern=rows", "sparsity=nan", "kernel=x", "rows=200 length=128"})
    CHECK_FALSE(parse_long_case(line).has_value());
  LongCase usual;
  usual.decode = true;
  CHECK(parse_long_case("length=4096", usual)->decode);
  CHECK_FALSE(parse_long_case("kernel=prefill", usual)->decode);
}

TEST_CASE("a whole answer is compared in every bit", "[VER-25.8]") {
  Small s;
  REQUIRE(s.expected.counters.skipped > 0);
  s.answer_rightly();
  REQUIRE(s.compare().empty());

  const std::size_t dim = 64;
  s.out[(131 * 2 + 1) * dim + 7] ^= 1;
  auto wrong = s.compare();
  REQUIRE(wrong.size() == 1);
  CHECK(wrong[0].check == "attention.out");
  CHECK(place(wrong[0], "row") == 131);
  CHECK(place(wrong[0], "head") == 1);
  CHECK(place(wrong[0], "element") == 7);
  CHECK(wrong[0].wrong == 1);

  s.answer_rightly();
  s.lse[199 * 2].bits ^= 1;
  wrong = s.compare();
  REQUIRE(wrong.size() == 1);
  CHECK(wrong[0].check == "attention.lse");
  CHECK(place(wrong[0], "row") == 199);

  s.answer_rightly();
  const std::size_t tiles = static_cast<std::size_t>(s.map.extents[3]);
  s.cells[(4 + 2) * tiles + 1] ^= 3;
  wrong = s.compare();
  REQUIRE(wrong.size() == 1);
  CHECK(wrong[0].check == "attention.decision");
  CHECK(place(wrong[0], "head") == 1);
  CHECK(place(wrong[0], "unit") == 2);
  CHECK(place(wrong[0], "tile") == 1);

  s.answer_rightly();
  ++s.counted[3];
  wrong = s.compare();
  REQUIRE(wrong.size() == 1);
  CHECK(wrong[0].check == "attention.counters");
  CHECK(place(wrong[0], "head") == 1);
}

TEST_CASE("a unit that the host emulates is compared in every bit", "[VER-25.8]") {
  Small s;
  const std::int32_t units = s.map.extents[2], tiles = s.map.extents[3];
  const attention::Unit unit{0, 1, 2};
  const attention::UnitResult want = s.emulator->run(unit);
  const auto compare = [&] {
    std::vector<Mismatch> wrong;
    compare_unit(*s.emulator, want, units, tiles, {s.out, s.lse, s.cells, s.counted}, wrong);
    return wrong;
  };
  s.answer_rightly();
  REQUIRE(compare().empty());
  s.out[(130 * 2 + 1) * 64] ^= 1;  // row 2 of the unit
  REQUIRE(compare().size() == 1);
  CHECK(place(compare()[0], "row") == 130);
  s.answer_rightly();
  s.out[(130 * 2) * 64] ^= 1;  // another head's
  CHECK(compare().empty());
  s.lse[130 * 2 + 1].bits ^= 1;
  REQUIRE(compare().size() == 1);
  CHECK(compare()[0].check == "attention.lse");
  s.answer_rightly();
  s.cells[static_cast<std::size_t>((units + 2) * tiles)] = 0;
  REQUIRE(compare().size() == 1);
  CHECK(compare()[0].check == "attention.decision");
}
