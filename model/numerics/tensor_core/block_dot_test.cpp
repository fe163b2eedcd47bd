// Blocks in 32-bit integers against fdpa(), for every instruction that has them: raw bits,
// exponents near each other, largest sums, and alignments that walk over the ends of the normal
// numbers.
#include "model/numerics/tensor_core/block_dot.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "model/core/prng.hpp"
#include "model/core/testing.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

using namespace assay;
using namespace assay::numerics;

namespace {

// Style 0: raw bits; 1: exponents within 5 of `place`; 2: largest significands; 3: as 1, with
// zeros.
std::uint32_t operand(OperandFormat format, int style, int place, std::uint64_t& seed) {
  const FormatShape s = shape_of(format);
  const std::uint64_t r = splitmix64(seed);
  auto bits = static_cast<std::uint32_t>(r);
  const std::uint32_t width = static_cast<std::uint32_t>(1 + s.exponent_bits + s.fraction_bits);
  bits &= (1u << width) - 1;
  if (style == 0) return bits;
  if (style == 3 && r >> 61 == 0) return 0;
  const int top = (1 << s.exponent_bits) - 1;
  const int field = std::clamp(s.bias + place - 2 + static_cast<int>((r >> 40) % 5), 0, top);
  bits &= ~(static_cast<std::uint32_t>(top) << s.fraction_bits);
  bits |= static_cast<std::uint32_t>(style == 2 ? s.bias : field) << s.fraction_bits;
  if (style == 2) bits |= (1u << s.fraction_bits) - 1;
  if (style == 2) bits &= (1u << (width - 1)) - 1;  // all of one sign
  return bits;
}

F32 accumulator_for(const Rule& rule, int style, int place, std::uint64_t& seed) {
  const std::uint64_t r = splitmix64(seed);
  auto bits = static_cast<std::uint32_t>(r);
  if (r >> 61 == 0) return F32{bits & 0x80000000u};
  const int exponent = std::clamp(127 + 2 * place + static_cast<int>((r >> 40) % 40) - 32, 0, 254);
  if (style != 0) bits = (bits & 0x807FFFFFu) | static_cast<std::uint32_t>(exponent) << 23;
  if (style == 2) bits = 0x3FFFFFFFu;
  return F32{rule.output == OutputFormat::kE8m13 && r >> 60 != 1 ? bits & ~0x3FFu : bits};
}

template <int kProducts>
BlockResult by_integers(const Rule& rule, const std::vector<std::uint32_t>& a,
                        const std::vector<std::uint32_t>& b, F32 c) {
  std::vector<BlockOperand> x, y;
  for (const std::uint32_t bits : a) x.push_back(block_operand(rule, true, bits));
  for (const std::uint32_t bits : b) y.push_back(block_operand(rule, false, bits));
  return block_dot<kProducts>(rule, x.data(), y.data(), c);
}

BlockResult by_integers(const Rule& rule, const std::vector<std::uint32_t>& a,
                        const std::vector<std::uint32_t>& b, F32 c) {
  if (rule.products == 8) return by_integers<8>(rule, a, b, c);
  if (rule.products == 16) return by_integers<16>(rule, a, b, c);
  return by_integers<32>(rule, a, b, c);
}

}  // namespace

TEST_CASE("blocks in 32-bit integers have the bits of fdpa, and know nearly all ordinary ones",
          "[NUM-4.12]") {
  std::set<std::string> rules;
  std::set<int> block_sizes;
  std::uint64_t seed = 1;
  for (const Instruction& instruction : instructions()) {
    if (!has_block_dot(instruction.arithmetic)) continue;
    const Rule& rule = instruction.arithmetic.rule;
    rules.insert(instruction.name());
    block_sizes.insert(rule.products);
    int known = 0, ordinary = 0, wrong = 0;
    for (int round = 0; round < 2000; ++round) {
      const int style = round % 4;
      const int place = style == 1 ? round / 4 % 3 : -80 + round / 4 % 160;
      std::vector<std::uint32_t> a, b;
      for (int i = 0; i < rule.products; ++i) {
        a.push_back(operand(rule.a, style, place, seed));
        b.push_back(operand(rule.b, style, place, seed));
      }
      const F32 c = accumulator_for(rule, style, place, seed);
      const BlockResult got = by_integers(rule, a, b, c);
      wrong += got.known && got.value.bits != exact_block(rule, a.data(), b.data(), c).bits;
      ordinary += style == 1;
      known += style == 1 && got.known;
    }
    CAPTURE(instruction.name(), known, ordinary);
    REQUIRE(wrong == 0);
    REQUIRE(known > ordinary * 9 / 10);
  }
  REQUIRE(rules.count("wgmma.k16.f32.bf16.bf16") == 1);
  REQUIRE(rules.count("wgmma.k32.f32.e4m3.e4m3") == 1);
  REQUIRE(rules.count("tcgen05.kind::f8f6f4.k32.f32.e4m3.e4m3") == 1);
  REQUIRE(block_sizes == std::set<int>{8, 16, 32});
}

TEST_CASE("a block of zeros is +0, and zeros do not hide a special operand", "[NUM-4.12]") {
  const Instruction* bf16 = find_instruction("wgmma.m64n8k16.f32.bf16.bf16", Arch::kSm90a);
  const Rule& rule = bf16->arithmetic.rule;
  std::vector<std::uint32_t> a(16, 0), b(16, 0);
  for (const std::uint32_t c : {0u, 0x80000000u}) {
    const BlockResult zero = by_integers(rule, a, b, F32{c});
    REQUIRE(zero.known);
    REQUIRE(zero.value.bits == 0u);
  }
  for (const std::uint32_t special : {0x7F80u, 0xFF80u, 0x7FC0u}) {
    a[3] = special;  // times zero
    REQUIRE_FALSE(by_integers(rule, a, b, F32{0}).known);
  }
  a[3] = 0;
  for (const std::uint32_t c : {0x7F800000u, 0xFF800000u, 0x7FC00000u, 1u})
    REQUIRE_FALSE(by_integers(rule, a, b, F32{c}).known);
}
