// Cases of long problems and the comparison of their answers: no GPU is needed. See long.hpp.
#include "verify/attention/long.hpp"

#include <fmt/format.h>

#include <charconv>

#include "model/core/case_text.hpp"
#include "model/core/text.hpp"

namespace assay::verify {
namespace {

Mismatch mismatch(std::string_view what, const char* clause, std::string sentence,
                  std::vector<Coordinate> where) {
  Mismatch m;
  m.check = fmt::format("attention.{}", what);
  m.clause = clause;
  m.sentence = std::move(sentence);
  m.where = std::move(where);
  return m;
}

ElementFormat out_format(const attention::Emulator& emulator) {
  return emulator.problem().out_dtype == Dtype::kF16 ? ElementFormat::kF16 : ElementFormat::kBf16;
}

Mismatch wrong_out(const attention::Emulator& emulator, std::int64_t element, std::uint32_t got,
                   std::uint32_t expected, std::int64_t wrong, std::int64_t total) {
  const std::int64_t dim = emulator.problem().v_dim, heads = emulator.problem().q_heads;
  Mismatch m = mismatch("out", "ATT-6.2", "the output has other bits than the emulation",
                        {{"row", element / dim / heads},
                         {"head", element / dim % heads},
                         {"element", element % dim}});
  m.values = Values{out_format(emulator), got, expected};
  m.wrong = wrong;
  m.total = total;
  m.unit = "elements";
  return m;
}

Mismatch wrong_lse(const attention::Emulator& emulator, std::int64_t at, F32 got, F32 expected,
                   std::int64_t wrong, std::int64_t total) {
  const std::int64_t heads = emulator.problem().q_heads;
  Mismatch m = mismatch("lse", "ATT-6.2", "the LSE has other bits than the emulation",
                        {{"row", at / heads}, {"head", at % heads}});
  m.values = Values{ElementFormat::kF32, got.bits, expected.bits};
  m.wrong = wrong;
  m.total = total;
  return m;
}

Mismatch wrong_decision(std::int64_t head, std::int64_t unit, std::int64_t tile, int got,
                        int expected, std::int64_t wrong, std::int64_t total) {
  static constexpr const char* kNames[] = {"not visited", "kept", "skipped"};
  const auto name = [](int cell) { return cell < 3 ? kNames[cell] : "no decision"; };
  Mismatch m =
      mismatch("decision", "ATT-5.5",
               fmt::format("the tile was {}; the emulation says {}", name(got), name(expected)),
               {{"head", head}, {"unit", unit}, {"tile", tile}});
  m.wrong = wrong;
  m.total = total;
  m.unit = "tiles";
  return m;
}

// What a unit's decisions are, as the map has them.
std::vector<std::uint8_t> cells_of(const attention::UnitResult& unit, std::int32_t tiles) {
  std::vector<std::uint8_t> cells(static_cast<std::size_t>(tiles), 0);
  for (const attention::TileTrace& tile : unit.tiles)
    cells[static_cast<std::size_t>(tile.tile)] = static_cast<std::uint8_t>(tile.decision);
  return cells;
}

Expected<double> parse_share(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value < 1))
    return bad_input(
        fmt::format("sparsity is {}; allowed are numbers from 0 to below 1", in_quotes(text)));
  return value;
}

Status parse_field(const KeyValue& field, LongCase& c) {
  const auto word = [&](std::string_view no, std::string_view yes, bool& value) -> Status {
    if (field.value != no && field.value != yes)
      return bad_input(fmt::format("{} is {}; allowed are {} and {}", field.key,
                                   in_quotes(field.value), no, yes));
    value = field.value == yes;
    return Done{};
  };
  const auto number = [&](std::int32_t least, std::int32_t most) {
    return parse_integer<std::int32_t>(field.key, field.value, least, most);
  };
  if (field.key == "kernel") return word("prefill", "decode", c.decode);
  if (field.key == "mask") return word("full", "causal", c.causal);
  if (field.key == "pattern") return word("units", "tiles", c.whole_tiles);
  if (field.key == "dtype") {
    for (const Dtype one : {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3}) {
      if (dtype_name(one) != field.value) continue;
      c.dtype = one;
      return Done{};
    }
    return bad_input(
        fmt::format("dtype is {}; allowed are BF16, F16 and F8_E4M3", in_quotes(field.value)));
  }
  if (field.key == "heads") {
    const std::size_t slash = field.value.find('/');
    ASSAY_TRY(c.q_heads,
              parse_integer<std::int32_t>("heads", field.value.substr(0, slash), 1, 256));
    c.kv_heads = c.q_heads;
    if (slash == std::string_view::npos) return Done{};
    ASSAY_TRY(c.kv_heads,
              parse_integer<std::int32_t>("heads", field.value.substr(slash + 1), 1, 256));
    return Done{};
  }
  if (field.key == "sparsity") {
    ASSAY_TRY(c.sparsity, parse_share(field.value));
  } else if (field.key == "dim") {
    ASSAY_TRY(c.dim, number(64, 256));
  } else if (field.key == "length") {
    ASSAY_TRY(c.length, number(128, 1 << 20));
  } else if (field.key == "rows") {
    ASSAY_TRY(c.rows, number(0, 1 << 20));
  } else if (field.key == "samples") {
    ASSAY_TRY(c.samples, number(0, 10000));
  } else {
    ASSAY_TRY(c.seed, parse_integer<std::uint64_t>("seed", field.value, 0, ~std::uint64_t{0}));
  }
  return Done{};
}

}  // namespace

Expected<LongCase> parse_long_case(std::string_view text, LongCase c) {
  static constexpr std::string_view kKeys[] = {"kernel",  "rows",    "dtype", "heads",
                                               "dim",     "length",  "mask",  "sparsity",
                                               "pattern", "samples", "seed"};
  ASSAY_TRY(const std::vector<KeyValue> fields, parse_key_values(text, kKeys));
  for (const KeyValue& field : fields) ASSAY_CHECK(parse_field(field, c));
  if (c.q_heads % c.kv_heads != 0)
    return bad_input(fmt::format("heads is {}/{}; the first must be a multiple of the second",
                                 c.q_heads, c.kv_heads));
  if (rows_of(c) > c.length)
    return bad_input(
        fmt::format("rows is {} and length {}; allowed are at most as many", c.rows, c.length));
  return c;
}

std::int32_t rows_of(const LongCase& c) { return c.rows > 0 ? c.rows : c.decode ? 4 : c.length; }

std::string print(const LongCase& c) {
  return fmt::format(
      "kernel={} dtype={} heads={}/{} dim={} rows={} length={} mask={} sparsity={} pattern={} "
      "samples={} seed={}",
      c.decode ? "decode" : "prefill", dtype_name(c.dtype), c.q_heads, c.kv_heads, c.dim,
      rows_of(c), c.length, c.causal ? "causal" : "full", c.sparsity,
      c.whole_tiles ? "tiles" : "units", c.samples, c.seed);
}

// The first is small enough to be run often; the second is the benchmark's shape.
std::vector<LongCase> long_cases() {
  LongCase small, shape, full, fp8, decode, decode_fp8;
  shape.q_heads = 64;
  shape.kv_heads = 4;
  full.causal = false;
  full.dtype = Dtype::kF16;
  full.q_heads = 2;
  fp8.dtype = Dtype::kF8E4m3;
  fp8.q_heads = 4;
  fp8.whole_tiles = true;
  decode.decode = true;
  decode.q_heads = 64;
  decode.kv_heads = 4;
  decode.whole_tiles = true;  // heads that share keys decide together
  decode.samples = 4;
  decode_fp8 = decode;
  decode_fp8.dtype = Dtype::kF8E4m3;
  decode_fp8.rows = 1;
  return {small, shape, full, fp8, decode, decode_fp8};
}

void compare_whole(const attention::Emulator& emulator, const attention::Emulation& expected,
                   std::int32_t tiles, const LongAnswer& got, std::vector<Mismatch>& mismatches) {
  const auto size = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
  CONTRACT(got.out.size() == expected.out.size() && got.lse.size() == expected.lse.size(),
           got.out.size(), expected.out.size());
  const auto heads = static_cast<std::size_t>(emulator.units().back().head) + 1;
  const auto units = expected.units.size() / heads;
  CONTRACT(got.decisions.size() == heads * units * static_cast<std::size_t>(tiles),
           got.decisions.size());
  std::int64_t wrong = 0, first = -1, first_unit = -1, first_tile = -1;
  std::vector<std::uint64_t> counters(2 * heads, 0);
  for (std::size_t i = 0; i < expected.units.size(); ++i) {
    const std::vector<std::uint8_t> cells = cells_of(expected.units[i], tiles);
    const auto mine =
        got.decisions.subspan(i * static_cast<std::size_t>(tiles), static_cast<std::size_t>(tiles));
    const auto head = static_cast<std::size_t>(emulator.units()[i].head);
    for (std::size_t tile = 0; tile < cells.size(); ++tile) {
      counters[2 * head] += cells[tile] != 0;
      counters[2 * head + 1] += cells[tile] == 2;
      if (cells[tile] == mine[tile] || wrong++ > 0) continue;
      first_unit = static_cast<std::int64_t>(i);
      first_tile = static_cast<std::int64_t>(tile);
    }
  }
  if (wrong > 0) {
    const auto& unit = emulator.units()[static_cast<std::size_t>(first_unit)];
    const auto at = static_cast<std::size_t>(first_unit * tiles + first_tile);
    mismatches.push_back(
        wrong_decision(unit.head, unit.index, first_tile, got.decisions[at],
                       cells_of(expected.units[static_cast<std::size_t>(first_unit)],
                                tiles)[static_cast<std::size_t>(first_tile)],
                       wrong, expected.counters.visited));
  }
  wrong = 0;
  for (std::size_t i = 0; i < expected.out.size(); ++i)
    if (got.out[i] != expected.out[i] && wrong++ == 0) first = static_cast<std::int64_t>(i);
  if (wrong > 0) {
    const auto at = static_cast<std::size_t>(first);
    mismatches.push_back(
        wrong_out(emulator, first, got.out[at], expected.out[at], wrong, size(expected.out)));
  }
  wrong = 0;
  for (std::size_t i = 0; i < expected.lse.size(); ++i)
    if (got.lse[i].bits != expected.lse[i].bits && wrong++ == 0)
      first = static_cast<std::int64_t>(i);
  if (wrong > 0) {
    const auto at = static_cast<std::size_t>(first);
    mismatches.push_back(
        wrong_lse(emulator, first, got.lse[at], expected.lse[at], wrong, size(expected.lse)));
  }
  for (std::size_t i = 0; i < counters.size(); ++i) {
    if (got.counters[i] == counters[i]) continue;
    mismatches.push_back(
        mismatch("counters", "ATT-5.5",
                 fmt::format("the counter says {} tiles {}; the emulation says {}", got.counters[i],
                             i % 2 == 0 ? "visited" : "skipped", counters[i]),
                 {{"head", static_cast<std::int64_t>(i / 2)}}));
    break;
  }
}

void compare_unit(const attention::Emulator& emulator, const attention::UnitResult& expected,
                  std::int32_t units, std::int32_t tiles, const LongAnswer& got,
                  std::vector<Mismatch>& mismatches) {
  const auto dim = static_cast<std::size_t>(emulator.problem().v_dim);
  const auto heads = static_cast<std::size_t>(emulator.problem().q_heads);
  for (std::size_t i = 0; i < expected.rows.size(); ++i) {
    const attention::UnitRow& row = expected.rows[i];
    const std::size_t at =
        static_cast<std::size_t>(row.token) * heads + static_cast<std::size_t>(row.q_head);
    for (std::size_t d = 0; d < dim; ++d) {
      const std::uint16_t want = expected.out[i * dim + d];
      if (got.out[at * dim + d] == want) continue;
      mismatches.push_back(wrong_out(emulator, static_cast<std::int64_t>(at * dim + d),
                                     got.out[at * dim + d], want, 1,
                                     static_cast<std::int64_t>(expected.out.size())));
      return;
    }
    if (got.lse[at].bits == row.lse.bits) continue;
    mismatches.push_back(wrong_lse(emulator, static_cast<std::int64_t>(at), got.lse[at], row.lse, 1,
                                   static_cast<std::int64_t>(expected.rows.size())));
    return;
  }
  const std::vector<std::uint8_t> cells = cells_of(expected, tiles);
  const std::size_t first =
      (static_cast<std::size_t>(expected.unit.head) * static_cast<std::size_t>(units) +
       static_cast<std::size_t>(expected.unit.index)) *
      static_cast<std::size_t>(tiles);
  for (std::size_t tile = 0; tile < cells.size(); ++tile) {
    if (got.decisions[first + tile] == cells[tile]) continue;
    mismatches.push_back(wrong_decision(expected.unit.head, expected.unit.index,
                                        static_cast<std::int64_t>(tile),
                                        got.decisions[first + tile], cells[tile], 1,
                                        static_cast<std::int64_t>(expected.tiles.size())));
    return;
  }
}

}  // namespace assay::verify
