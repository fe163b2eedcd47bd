// Names, chains, promotion and errors, and the vector paths against the scalar one on every
// instruction set that this machine has.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <vector>

#include <hwy/targets.h>

#include "model/core/prng.hpp"
#include "model/core/testing.hpp"
#include "model/numerics/tensor_core/mma_simd.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

using namespace assay;
using namespace assay::numerics;

namespace {

template <class T>
struct Tile {
  int m, n, k;
  std::vector<T> a, b;
  std::vector<F32> c, d;
  MmaProblem<T> problem() {
    MmaProblem<T> p;
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = a.data();
    p.b = b.data();
    p.c = c.data();
    p.d = d.data();
    return p;
  }
};

// style 0: raw bits; 1: exponents near each other; 2: the largest significands, so that sums are
// largest; 3: exponents near each other whose place follows the seed, so that 40 seeds walk the
// alignment over both ends of what the vectors handle themselves.
template <class T>
Tile<T> random_tile(const Rule& rule, int m, int n, int k, int style, std::uint64_t seed) {
  Tile<T> tile{m, n, k, {}, {}, {}, {}};
  const FormatShape s = shape_of(rule.a);
  const int low_bits = s.fraction_bits + (rule.a == OperandFormat::kTf32 ? 13 : 0);
  const int place = style == 3 ? -80 + 4 * static_cast<int>(seed % 40) : 0;
  const auto operand = [&] {
    std::uint64_t bits = splitmix64(seed);
    if (style == 0) return static_cast<T>(bits);
    const int near = s.bias + place - 2 + static_cast<int>((bits >> 40) % 5);
    const auto field = static_cast<std::uint64_t>(
        style == 2 ? s.bias : std::clamp(near, 0, (1 << s.exponent_bits) - 1));
    if (style == 2) bits |= (std::uint64_t{1} << low_bits) - 1;  // largest significands
    bits &= ~(((std::uint64_t{1} << s.exponent_bits) - 1) << low_bits);
    if (style == 2) bits &= ~(std::uint64_t{1} << (low_bits + s.exponent_bits));
    return static_cast<T>(bits | field << low_bits);
  };
  for (int i = 0; i < m * k; ++i) tile.a.push_back(operand());
  for (int i = 0; i < n * k; ++i) tile.b.push_back(operand());
  for (int i = 0; i < m * n; ++i) {
    const std::uint64_t r = splitmix64(seed);
    F32 c{static_cast<std::uint32_t>(r)};
    if (style == 1) c = F32{(c.bits & 0x807FFFFFu) | (120u + (c.bits >> 23) % 16) << 23};
    if (style == 2) c = F32{0x3FFFFFFF};
    if (style == 3) {
      const int exponent =
          std::clamp(127 + 2 * place + static_cast<int>((r >> 40) % 40) - 32, 0, 254);
      c = F32{(c.bits & 0x807FFFFFu) | static_cast<std::uint32_t>(exponent) << 23};
    }
    if (r >> 62 == 0) c = F32{0};
    tile.c.push_back(rule.output == OutputFormat::kF16 ? widen(cvt_rn_f16_f32(c)) : c);
  }
  tile.d.resize(tile.c.size());
  return tile;
}

template <class T>
int differences(const Instruction& instruction, int style, std::uint64_t seed) {
  const int k = instruction.arithmetic.k;
  Tile<T> tile = random_tile<T>(instruction.arithmetic.rule, 5, 37, 3 * k, style, seed);
  REQUIRE(mma(instruction, tile.problem(), MmaPath::kBest).has_value());
  int wrong = 0;
  for (int i = 0; i < tile.m; ++i) {
    for (int j = 0; j < tile.n; ++j) {
      const auto at = static_cast<std::size_t>(i * tile.n + j);
      const F32 want = dot(instruction, &tile.a[static_cast<std::size_t>(i * tile.k)],
                           &tile.b[static_cast<std::size_t>(j * tile.k)], tile.k, tile.c[at]);
      wrong += !same_bits(want, tile.d[at]);
    }
  }
  return wrong;
}

int differences(const Instruction& instruction, int style, std::uint64_t seed) {
  switch (instruction.arithmetic.rule.a) {
    case OperandFormat::kTf32:
      return differences<std::uint32_t>(instruction, style, seed);
    case OperandFormat::kF16:
    case OperandFormat::kBf16:
      return differences<std::uint16_t>(instruction, style, seed);
    default:
      return differences<std::uint8_t>(instruction, style, seed);
  }
}

const Instruction& bf16() { return **require_instruction("wgmma.k16.f32.bf16.bf16", Arch::kSm90a); }

}  // namespace

TEST_CASE("vectors give the bits of the scalar path on every instruction set", "[NUM-4.11]") {
  int vector_rows = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const Instruction& instruction : instructions()) {
      if (!simd::supports(instruction.arithmetic)) continue;
      ++vector_rows;
      CAPTURE(hwy::TargetName(target), instruction.name(), arch_name(instruction.arch));
      for (int style = 0; style < 3; ++style)
        for (std::uint64_t seed = 1; seed < 4; ++seed)
          REQUIRE(differences(instruction, style, seed) == 0);
      for (std::uint64_t seed = 0; seed < 40; ++seed)
        REQUIRE(differences(instruction, 3, seed) == 0);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  REQUIRE(vector_rows > 0);
}

TEST_CASE("rows without a vector kernel take the scalar path", "[NUM-4.11]") {
  for (const Instruction& instruction : instructions()) {
    if (simd::supports(instruction.arithmetic) ||
        instruction.arithmetic.rule.scale != ScaleFormat::kNone)
      continue;
    CAPTURE(instruction.name());
    REQUIRE(differences(instruction, 1, 7) == 0);
  }
}

TEST_CASE("an instruction is found by its short name and by PTX's", "[NUM-4.8]") {
  const Instruction* wanted = find_instruction("wgmma.k16.f32.bf16.bf16", Arch::kSm90a);
  REQUIRE(wanted != nullptr);
  CHECK(find_instruction("wgmma.m64n8k16.f32.bf16.bf16", Arch::kSm90a) == wanted);
  CHECK(find_instruction("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", Arch::kSm90a) ==
        wanted);
  CHECK(find_instruction("wgmma.f32.bf16.bf16", Arch::kSm90a) == wanted);
  const Instruction* mma16 = find_instruction("mma.sync.m16n8k16.f32.f16.f16", Arch::kSm90a);
  REQUIRE(mma16 != nullptr);
  CHECK(find_instruction("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", Arch::kSm90a) ==
        mma16);
  CHECK(find_instruction("mma.sync.m16n8k8.f32.f16.f16", Arch::kSm90a)->arithmetic.k == 8);
  for (const char* wrong :
       {"wgmma.m64n12k16.f32.bf16.bf16", "wgmma.m128n8k16.f32.bf16.bf16",
        "wgmma.m64n8k32.f32.bf16.bf16", "wgmma.m64n264k16.f32.bf16.bf16", "wgmma.f16.bf16.bf16",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16", "wgmma.sp.m64n8k16.f32.bf16.bf16",
        "mma.sync.satfinite.m16n8k16.f32.f16.f16", "", "."}) {
    CAPTURE(wrong);
    CHECK(find_instruction(wrong, Arch::kSm90a) == nullptr);
  }
  CHECK(find_instruction("wgmma.k16.f32.bf16.bf16", Arch::kSm100a) == nullptr);
  CHECK(find_instruction("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3",
                         Arch::kSm100a) != nullptr);
  const auto missing = require_instruction("wgmma.k16.f32.bf16.f16", Arch::kSm90a);
  REQUIRE(!missing);
  CHECK(missing.error().sentence.find("wgmma.k16.f32.bf16.bf16") != std::string::npos);
  for (const Instruction& row : instructions()) {
    CAPTURE(row.name());
    CHECK(find_instruction(row.name(), row.arch) == &row);
  }
}

TEST_CASE("a longer k is a chain, lowest k first, and a promotion restarts it",
          "[NUM-4.5][NUM-4.7]") {
  const Instruction& fp8 = **require_instruction("wgmma.k32.f32.e4m3.e4m3", Arch::kSm90a);
  Tile<std::uint8_t> tile = random_tile<std::uint8_t>(fp8.arithmetic.rule, 3, 4, 512, 1, 11);
  std::vector<F32> promoted(12);
  auto problem = tile.problem();
  REQUIRE(mma(fp8, problem));
  problem.d = promoted.data();
  problem.promotion.interval_k = 128;
  REQUIRE(mma(fp8, problem));
  int different = 0;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) {
      const auto at = static_cast<std::size_t>(i * 4 + j);
      const std::uint8_t* a = &tile.a[static_cast<std::size_t>(i * 512)];
      const std::uint8_t* b = &tile.b[static_cast<std::size_t>(j * 512)];
      F32 chain = tile.c[at];
      for (int k = 0; k < 512; k += 32)
        chain = instruction_dot(fp8.arithmetic, a + k, b + k, chain);
      CHECK(tile.d[at].bits == chain.bits);
      F32 sum = tile.c[at];
      for (int k = 0; k < 512; k += 128)
        sum = add_rn(sum, dot(fp8, a + k, b + k, 128, F32{0}), false);
      CHECK(promoted[at].bits == sum.bits);
      different += chain.bits != sum.bits;
    }
  }
  CHECK(different > 0);  // the two are not the same arithmetic
}

TEST_CASE("no c means scale-d 0: the sum starts from +0", "[NUM-4.5]") {
  Tile<std::uint16_t> tile = random_tile<std::uint16_t>(bf16().arithmetic.rule, 4, 8, 32, 1, 3);
  std::fill(tile.c.begin(), tile.c.end(), F32{0});
  REQUIRE(mma(bf16(), tile.problem()));
  const std::vector<F32> with_zero = tile.d;
  auto problem = tile.problem();
  problem.c = nullptr;
  REQUIRE(mma(bf16(), problem));
  for (std::size_t i = 0; i < with_zero.size(); ++i) CHECK(same_bits(with_zero[i], tile.d[i]));
}

TEST_CASE("rows and columns of zeros have the scalar path's bits, whatever c is", "[NUM-4.11]") {
  for (const Instruction& row : instructions()) {
    if (row.arch != Arch::kSm90a || row.family != "wgmma" || row.arithmetic.k != 16) continue;
    Tile<std::uint16_t> tile = random_tile<std::uint16_t>(row.arithmetic.rule, 6, 24, 64, 1, 11);
    // Zeros of both signs in whole rows, whole columns and half of a chain.
    for (int i = 0; i < 64; ++i) {
      tile.a[static_cast<std::size_t>(i)] = i % 2 == 0 ? 0x8000 : 0;
      for (const int column : {1, 5, 6, 23}) tile.b[static_cast<std::size_t>(column * 64 + i)] = 0;
      if (i < 32) tile.a[static_cast<std::size_t>(64 + i)] = 0;
    }
    // The smallest c of either destination type among them: it must survive.
    const bool f32 = row.arithmetic.rule.output == OutputFormat::kF32;
    const F32 smallest{f32 ? 1u : 0xB3800000u};
    const F32 values[] = {{0}, {0x80000000u}, {0x3F800000u}, smallest, {0x7FFFFFFFu}};
    for (std::size_t i = 0; i < tile.c.size(); ++i) tile.c[i] = values[i % 5];
    REQUIRE(mma(row, tile.problem(), MmaPath::kScalar));
    const std::vector<F32> expected = tile.d;
    REQUIRE(mma(row, tile.problem()));
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(expected[i], tile.d[i]));
  }
}

TEST_CASE("a problem that the instruction cannot run is refused with a sentence", "[NUM-4.8]") {
  Tile<std::uint16_t> tile = random_tile<std::uint16_t>(bf16().arithmetic.rule, 4, 8, 32, 1, 3);
  const auto refused = [&](auto change, const char* part) {
    auto problem = tile.problem();
    change(problem);
    const Status done = mma(bf16(), problem);
    REQUIRE(!done);
    INFO(done.error().sentence);
    CHECK(done.error().sentence.find(part) != std::string::npos);
  };
  refused([](auto& p) { p.k = 24; }, "k is 24; allowed are multiples of 16");
  refused([](auto& p) { p.m = 0; }, "m 0");
  refused([](auto& p) { p.promotion.interval_k = 24; }, "promotion interval is 24");
  const std::uint8_t scale = 127;
  refused([&](auto& p) { p.scale_a = p.scale_b = &scale; }, "takes no scales");
  const Instruction& f16 = **require_instruction("wgmma.k16.f16.f16.f16", Arch::kSm90a);
  std::fill(tile.c.begin(), tile.c.end(), F32{0x3F800000});
  tile.c[9] = F32{0x3F800001};
  const Status done = mma(f16, tile.problem());
  REQUIRE(!done);
  CHECK(done.error().sentence.find("c[1,1]") != std::string::npos);
  MmaProblem<std::uint8_t> bytes;
  bytes.m = bytes.n = 1;
  bytes.k = 16;
  REQUIRE(!mma(bf16(), bytes));
}

// Not run by default: prints multiply-adds per second and core, chains of 8 (budgets: 4 G with
// AVX-512, 2 G with AVX2, 0.25 G scalar).
TEST_CASE("rate of exact bf16 sums", "[.bench]") {
  Tile<std::uint16_t> tile =
      random_tile<std::uint16_t>(bf16().arithmetic.rule, 256, 256, 128, 1, 5);
  const auto rate = [&](MmaPath path) {
    double best = 1e30;
    for (int repeat = 0; repeat < 9; ++repeat) {
      timespec start, end;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
      REQUIRE(mma(bf16(), tile.problem(), path));
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
      best = std::min(best, static_cast<double>(end.tv_sec - start.tv_sec) +
                                1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec));
    }
    return 1e-9 * tile.m * tile.n * tile.k / best;
  };
  std::printf("scalar %.2f G multiply-adds/s\n", rate(MmaPath::kScalar));
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    std::printf("%s %.2f G multiply-adds/s\n", hwy::TargetName(target), rate(MmaPath::kBest));
  }
  hwy::SetSupportedTargetsForTest(0);
}
