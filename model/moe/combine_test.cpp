// Combine against the second computation in combine_testing.hpp: every order, pattern of holes,
// type and rule for zeros, NaN and subnormals.
#include <cstring>
#include <random>

#include "model/moe/combine_testing.hpp"
#include "model/moe/dispatch.hpp"

namespace assay::moe {
namespace {

using assay::testing::prop;

std::size_t first_difference(const Combine& combine, const std::vector<const Bytes*>& rows,
                             std::size_t hidden) {
  Bytes out(hidden * size_of(combine.out_dtype()));
  combine.row(pointers(rows), static_cast<std::int64_t>(hidden), out.data());
  for (std::size_t i = 0; i < hidden; ++i)
    if (bits_at(out, combine.out_dtype(), i) != naive_out(combine, rows, i)) return i;
  return hidden;
}

TEST_CASE("every arithmetic adds in its order, for every top_k and pattern of holes",
          "[MOE-3.1][MOE-3.2][MOE-3.3][MOE-3.4][MOE-3.5][MOE-3.6][MOE-3.7]") {
  std::mt19937 random(2);
  const std::size_t hidden = 48;
  for (const std::int32_t k : allowed_top_k())
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
      std::vector<Bytes> data;
      for (std::int32_t i = 0; i < k; ++i) data.push_back(odd_row(random, dtype, hidden));
      for (const CombineProfile& profile : combine_profiles()) {
        const auto combine =
            Combine::make(profile.arithmetic, {.top_k = k, .dtype = dtype}).value();
        // All patterns up to 8 picks; beyond, none, all, one hole, one row, and random ones.
        const std::uint32_t all = (1u << k) - 1;
        std::vector<std::uint32_t> patterns;
        if (k <= 8) {
          for (std::uint32_t holes = 0; holes <= all; ++holes) patterns.push_back(holes);
        } else {
          patterns = {0, all};
          for (std::int32_t i = 0; i < k; ++i) {
            patterns.push_back(1u << i);
            patterns.push_back(all ^ 1u << i);
            patterns.push_back(all & ~((2u << i) - 1));
            for (int more = 0; more < 4; ++more) patterns.push_back(random() & all);
          }
        }
        for (const std::uint32_t holes : patterns) {
          std::vector<const Bytes*> rows;
          for (std::int32_t i = 0; i < k; ++i)
            rows.push_back((holes >> i & 1) != 0 ? nullptr : &data[static_cast<std::size_t>(i)]);
          const std::size_t at = first_difference(combine, rows, hidden);
          if (at == hidden) continue;
          FAIL("profile " << profile.name << " top_k " << k << " " << dtype_name(dtype) << " holes "
                          << holes << " element " << at);
        }
      }
    }
}

TEST_CASE("rows of any length and alignment give the same bits", "[MOE-3.5]") {
  prop("hidden around the chunk size, pointers off by some bytes", [] {
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    const auto hidden = *rc::gen::element<std::size_t>(1, 2, 7, 511, 512, 513, 1024, 1500);
    const auto dtype = *rc::gen::element(Dtype::kBf16, Dtype::kF16, Dtype::kF32);
    const auto shift = *in_range<std::size_t>(0, 8);
    const auto& profile = *rc::gen::elementOf(
        std::vector<CombineProfile>(combine_profiles().begin(), combine_profiles().end()));
    const auto combine = Combine::make(profile.arithmetic, {.top_k = 4, .dtype = dtype}).value();
    std::vector<Bytes> shifted;
    std::vector<const Bytes*> rows;
    std::vector<Bytes> data;
    for (int i = 0; i < 4; ++i) data.push_back(odd_row(random, dtype, hidden));
    std::vector<const std::byte*> from;
    for (const Bytes& row : data) {
      rows.push_back(&row);
      shifted.emplace_back(shift);
      shifted.back().insert(shifted.back().end(), row.begin(), row.end());
    }
    for (const Bytes& row : shifted) from.push_back(row.data() + shift);
    Bytes out(shift + hidden * size_of(dtype) + 8, std::byte{0x5A});
    combine.row(from, static_cast<std::int64_t>(hidden), out.data() + shift);
    const Bytes got(out.begin() + static_cast<std::ptrdiff_t>(shift), out.end());
    for (std::size_t i = 0; i < hidden; ++i)
      RC_ASSERT(bits_at(got, dtype, i) == naive_out(combine, rows, i));
    for (std::size_t i = hidden * size_of(dtype); i < got.size(); ++i)
      RC_ASSERT(got[i] == std::byte{0x5A});
  });
}

TEST_CASE("what is not defined is refused with what is allowed", "[MOE-3.2][MOE-3.8]") {
  for (const std::int32_t k : {-1, 0, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20, 21, 23})
    CHECK(Combine::make(r3(), {.top_k = k}).error().sentence ==
          "top_k is " + std::to_string(k) +
              "; combine has an order of addition for 1, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 22");
  CHECK(Combine::make(r1(), {.top_k = 8, .low_precision = true}).error().sentence ==
        "this arithmetic has no low-precision combine; allowed is low_precision=0");
  CHECK(Combine::make(r2(), {.top_k = 8, .dtype = Dtype::kF32, .low_precision = true})
            .error()
            .sentence ==
        "low-precision combine takes bf16 or f16 rows, or e4m3 rows as on the wire; got f32");
  CHECK(Combine::make(r4(), {.top_k = 8, .dtype = Dtype::kE4m3, .low_precision = true})
            .error()
            .sentence ==
        "this arithmetic rounds to e4m3 at the reader, so its wire carries bf16 or "
        "f16 rows; got e4m3");
  CHECK(Combine::make(r2(), {.top_k = 8, .dtype = Dtype::kE4m3}).error().sentence ==
        "e4m3 rows are the wire form of a low-precision combine; set low_precision=1 or give bf16, "
        "f16 or f32 rows");
}

// --- signed zeros, NaN, subnormals: the rules in the small ---------------------------------------

std::uint32_t one_element(const Arithmetic& arithmetic, Dtype dtype,
                          const std::vector<std::optional<std::uint32_t>>& terms) {
  const auto combine =
      Combine::make(arithmetic, {.top_k = static_cast<std::int32_t>(terms.size()), .dtype = dtype})
          .value();
  std::vector<const std::byte*> rows;
  for (const auto& term : terms)
    rows.push_back(term ? reinterpret_cast<const std::byte*>(&*term) : nullptr);
  std::uint32_t out = 0;
  combine.row(rows, 1, reinterpret_cast<std::byte*>(&out));
  return out;
}

TEST_CASE("a hole is a +0 that is added, so it turns -0 into +0", "[MOE-3.4][MOE-3.7]") {
  const auto minus = std::optional<std::uint32_t>(0x8000);
  for (const Arithmetic& a : {r1(), r2(), r2_ftz(), r3()}) {
    CHECK(one_element(a, Dtype::kBf16, {minus, minus}) == 0x8000);
    CHECK(one_element(a, Dtype::kBf16, {minus, std::nullopt}) == 0);
    CHECK(one_element(a, Dtype::kBf16, {std::nullopt, std::nullopt}) == 0);
    CHECK(one_element(a, Dtype::kBf16, {std::nullopt}) == 0);
  }
  // A single pick: the position table has nothing to add, the compact table adds +0.
  CHECK(one_element(r1(), Dtype::kBf16, {minus}) == 0x8000);
  CHECK(one_element(r2(), Dtype::kBf16, {minus}) == 0x8000);
  CHECK(one_element(r3(), Dtype::kBf16, {minus}) == 0);
}

TEST_CASE("a copy keeps NaN bits, an addition or a conversion gives the canonical NaN",
          "[MOE-3.7]") {
  CHECK(one_element(r1(), Dtype::kBf16, {0xFFA5}) == 0xFFA5);
  CHECK(one_element(r2(), Dtype::kBf16, {0xFFA5}) == 0x7FFF);
  CHECK(one_element(r2(), Dtype::kF32, {0xFFA51234}) == 0xFFA51234);
  CHECK(one_element(r3(), Dtype::kF32, {0xFFA51234}) == 0x7FFFFFFF);
  CHECK(one_element(r1(), Dtype::kBf16, {0xFFA5, 0x3F80}) == 0x7FFF);
  CHECK(one_element(r2(), Dtype::kF16, {0x7C00, 0xFC00}) == 0x7FFF);
}

TEST_CASE("flushing reaches bf16 and f32 subnormals, but no f16 ones and no copy", "[MOE-3.6]") {
  CHECK(one_element(r2(), Dtype::kBf16, {0x0001, 0x8003}) == 0x8002);
  CHECK(one_element(r2_ftz(), Dtype::kBf16, {0x0001, 0x8003}) == 0);
  CHECK(one_element(r2_ftz(), Dtype::kBf16, {0x8001, 0x8003}) == 0x8000);
  CHECK(one_element(r2_ftz(), Dtype::kBf16, {0x0001}) == 0x0001);
  CHECK(one_element(r2_ftz(), Dtype::kF16, {0x0001, 0x8003}) == 0x8002);
  CHECK(one_element(r1_ftz(), Dtype::kBf16, {0x0001, 0x8003}) == 0x8002);
  CHECK(one_element(r1_ftz(), Dtype::kF32, {0x0001, 0x80000003}) == 0);
  CHECK(one_element(r1(), Dtype::kF32, {0x0001, 0x80000003}) == 0x80000002);
}

// --- low precision ------------------------------------------------------------------------------

TEST_CASE("rounding to e4m3 before or after the wire gives the same sum of bf16 rows",
          "[MOE-3.8]") {
  // Row k holds every bf16 code, rotated; both arithmetics flush, so only the place differs.
  std::vector<Bytes> data(8, Bytes(65536 * 2));
  for (std::uint32_t k = 0; k < 8; ++k)
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto code = static_cast<std::uint16_t>(i * (2 * k + 1) + 977 * k);
      std::memcpy(data[k].data() + std::size_t{2} * i, &code, 2);
    }
  std::vector<const std::byte*> rows;
  for (const Bytes& row : data) rows.push_back(row.data());
  Bytes sender(65536 * 2), reader(65536 * 2), plain(65536 * 2);
  const CombineShape shape{.top_k = 8, .low_precision = true};
  Combine::make(r2_ftz(), shape)->row(rows, 65536, sender.data());
  Combine::make(r4(), shape)->row(rows, 65536, reader.data());
  Combine::make(r2_ftz(), {.top_k = 8})->row(rows, 65536, plain.data());
  CHECK(sender == reader);
  CHECK(sender != plain);
}

TEST_CASE("low precision rounds every term to e4m3, saturating, and adds in f32", "[MOE-3.8]") {
  std::mt19937 random(5);
  const std::size_t hidden = 600;
  for (const CombineProfile& profile : combine_profiles()) {
    if (profile.arithmetic.low_precision == Arithmetic::LowPrecision::kNone) continue;
    const bool sender = profile.arithmetic.low_precision == Arithmetic::LowPrecision::kSenderE4m3;
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kE4m3}) {
      if (dtype == Dtype::kE4m3 && !sender) continue;
      const auto combine =
          Combine::make(profile.arithmetic, {.top_k = 8, .dtype = dtype, .low_precision = true})
              .value();
      const bool keeps =
          profile.arithmetic.low_precision_out == Arithmetic::LowPrecisionOut::kPayload &&
          dtype == Dtype::kF16;
      CHECK(combine.out_dtype() == (keeps ? Dtype::kF16 : Dtype::kBf16));
      std::vector<Bytes> data;
      for (int k = 0; k < 8; ++k) data.push_back(odd_row(random, dtype, hidden));
      std::vector<const Bytes*> rows;
      for (const Bytes& row : data) rows.push_back(random() % 3 == 0 ? nullptr : &row);
      CHECK(first_difference(combine, rows, hidden) == hidden);
    }
  }
}

TEST_CASE("rows that were rounded to e4m3 by hand sum like rows that combine rounds", "[MOE-3.8]") {
  std::mt19937 random(6);
  const std::size_t hidden = 512;
  std::vector<Bytes> bf16, e4m3;
  std::vector<const Bytes*> rows, wire;
  for (int k = 0; k < 6; ++k) {
    bf16.push_back(odd_row(random, Dtype::kBf16, hidden));
    e4m3.emplace_back();
    for (std::size_t i = 0; i < hidden; ++i)
      e4m3.back().push_back(
          static_cast<std::byte>(numerics::cvt_rn_satfinite_e4m3(
                                     widened(Dtype::kBf16, bits_at(bf16.back(), Dtype::kBf16, i)))
                                     .bits));
  }
  for (int k = 0; k < 6; ++k) {
    rows.push_back(&bf16[static_cast<std::size_t>(k)]);
    wire.push_back(&e4m3[static_cast<std::size_t>(k)]);
  }
  Bytes a(hidden * 2), b(hidden * 2);
  Combine::make(r2(), {.top_k = 6, .dtype = Dtype::kBf16, .low_precision = true})
      ->row(pointers(rows), static_cast<std::int64_t>(hidden), a.data());
  Combine::make(r2(), {.top_k = 6, .dtype = Dtype::kE4m3, .low_precision = true})
      ->row(pointers(wire), static_cast<std::int64_t>(hidden), b.data());
  CHECK(a == b);
}

// --- whole ranks, and the explanation -----------------------------------------------------------

TEST_CASE("combine of a rank is the sum of each token's own rows and of nothing else",
          "[MOE-3.4][MOE-4.4]") {
  prop("rank equals row by row", [] {
    const std::int32_t ep = *in_range(1, 6), max = *in_range(1, 6), hidden = *in_range(1, 40);
    const std::int32_t k = *rc::gen::element(1, 2, 4, 6, 8, 12);
    const std::int32_t experts = ep + *in_range(0, 12);
    std::vector<std::vector<std::int32_t>> ids;
    for (std::int32_t src = 0; src < ep; ++src)
      ids.push_back(*rc::gen::container<std::vector<std::int32_t>>(
          static_cast<std::size_t>(*in_range(0, max + 1) * k), in_range(-1, experts + 1)));
    const auto placement = Placement::contiguous(ep, experts);
    const auto routing = Routing::make(k, max, ids);
    const auto plan = plan_dispatch(*placement, *routing, SlotRule::kCanonical).value();
    const auto dtype = *rc::gen::element(Dtype::kBf16, Dtype::kF16, Dtype::kF32);
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    std::vector<Bytes> out_of;
    std::vector<const std::byte*> expert_out;
    const std::size_t row_bytes = static_cast<std::size_t>(hidden) * size_of(dtype);
    for (std::int32_t dst = 0; dst < ep; ++dst)
      out_of.push_back(odd_row(random, dtype, static_cast<std::size_t>(ep * max * hidden)));
    for (const Bytes& b : out_of) expert_out.push_back(b.data());
    const auto combine = Combine::make(r3(), {.top_k = k, .dtype = dtype}).value();
    for (RankId src{0}; src.value() < ep; src = src.next()) {
      const auto tokens = static_cast<std::size_t>(plan.num_tokens(src));
      Bytes out(tokens * row_bytes + 1, std::byte{0x77});
      combine.rank(plan, src, expert_out, hidden, out.data());
      RC_ASSERT(out.back() == std::byte{0x77});
      for (std::size_t token = 0; token < tokens; ++token) {
        std::vector<const std::byte*> rows;
        for (TopKIndex pick{0}; pick.value() < k; pick = pick.next()) {
          const auto target = plan.target(src, TokenId{static_cast<std::int32_t>(token)}, pick);
          rows.push_back(nullptr);
          if (target)
            rows.back() =
                expert_out[static_cast<std::size_t>(target->rank.value())] +
                static_cast<std::size_t>(src.value() * max + target->slot.value()) * row_bytes;
        }
        Bytes alone(row_bytes);
        combine.row(rows, hidden, alone.data());
        RC_ASSERT(std::memcmp(alone.data(), out.data() + token * row_bytes, row_bytes) == 0);
      }
    }
  });
}

TEST_CASE("the explanation of an element ends in its bits", "[MOE-3.5]") {
  std::mt19937 random(9);
  const std::size_t hidden = 32;
  for (const CombineProfile& profile : combine_profiles())
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32})
      for (const std::int32_t k : {2, 6, 12}) {
        const auto combine =
            Combine::make(profile.arithmetic, {.top_k = k, .dtype = dtype}).value();
        std::vector<Bytes> data;
        for (std::int32_t i = 0; i < k; ++i) data.push_back(odd_row(random, dtype, hidden));
        std::vector<const Bytes*> rows;
        for (const Bytes& row : data) rows.push_back(random() % 4 == 0 ? nullptr : &row);
        Bytes out(hidden * size_of(dtype));
        combine.row(pointers(rows), static_cast<std::int64_t>(hidden), out.data());
        for (std::size_t i = 0; i < hidden; ++i) {
          const auto steps = combine.explain(pointers(rows), static_cast<std::int64_t>(i));
          REQUIRE(steps.back().what == SumStep::What::kSum);
          REQUIRE(stored(dtype, steps.back().value) == bits_at(out, dtype, i));
        }
      }
}

}  // namespace
}  // namespace assay::moe
