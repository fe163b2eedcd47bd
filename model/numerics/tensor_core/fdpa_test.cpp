// The integer algorithms against a second statement of them in double precision, and the corner
// rules one by one.
#include <cmath>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

using namespace assay;
using namespace assay::numerics;

namespace {

// The value of an operand's bits as a double, from the definition of a binary format.
double value_of(OperandFormat format, std::uint32_t bits) {
  const FormatShape s = shape_of(format);
  if (format == OperandFormat::kTf32) bits >>= 13;
  const int field = static_cast<int>(bits >> s.fraction_bits) & ((1 << s.exponent_bits) - 1);
  const int fraction = static_cast<int>(bits & ((1u << s.fraction_bits) - 1));
  const double magnitude =
      field == 0 ? std::ldexp(fraction, 1 - s.bias - s.fraction_bits)
                 : std::ldexp(fraction + (1 << s.fraction_bits), field - s.bias - s.fraction_bits);
  return (bits >> (s.fraction_bits + s.exponent_bits)) & 1 ? -magnitude : magnitude;
}

// floor(log2 |x|), not below the format's smallest exponent.
int exponent_of(double x, int smallest) {
  return x == 0 ? smallest : std::max(smallest, std::ilogb(x));
}

int smallest_exponent(OperandFormat format) { return 1 - shape_of(format).bias; }

double scale_value(ScaleFormat format, std::uint8_t code) {
  return format == ScaleFormat::kUe4m3 ? std::fabs(value_of(OperandFormat::kE4m3, code))
                                       : std::ldexp(1.0, code - 127);
}

// One block by the published description, in doubles: every intermediate is below 2^53 units.
F32 reference_block(const Rule& rule, const std::vector<std::uint32_t>& a,
                    const std::vector<std::uint32_t>& b, F32 c, Scales scales) {
  std::vector<double> term;
  std::vector<int> exponent;
  for (int first = 0; first < rule.products; first += rule.group) {
    double sum = 0;
    bool all_zero = true;
    int e = 0;
    for (int i = first; i < first + rule.group; ++i) {
      const double x = value_of(rule.a, a[static_cast<std::size_t>(i)]);
      const double y = value_of(rule.b, b[static_cast<std::size_t>(i)]);
      sum += x * y;
      all_zero &= x * y == 0;
      e = exponent_of(x, smallest_exponent(rule.a)) + exponent_of(y, smallest_exponent(rule.b));
    }
    if (rule.group > 1) e = 0;
    if (rule.scale != ScaleFormat::kNone) {
      const double sa = scale_value(rule.scale, scales.a[first / rule.scale_block]);
      const double sb = scale_value(rule.scale, scales.b[first / rule.scale_block]);
      const int smallest = rule.scale == ScaleFormat::kUe4m3 ? -6 : -127;
      e += exponent_of(sa, smallest) + exponent_of(sb, smallest);
      sum *= sa;
      sum *= sb;
      all_zero |= sa == 0 || sb == 0;
    }
    term.push_back(sum);
    exponent.push_back(all_zero ? rule.zero_exponent : e);
  }
  const double c_value = static_cast<double>(std::bit_cast<float>(c.bits));
  term.push_back(c_value);
  exponent.push_back(c_value == 0
                         ? rule.zero_exponent
                         : exponent_of(c_value, rule.output == OutputFormat::kF16 ? -14 : -126));
  int top = exponent[0];
  for (const int e : exponent) top = std::max(top, e);
  double units = 0;
  for (const double t : term) units += std::trunc(std::ldexp(t, rule.fraction_bits - top));
  const double sum = std::ldexp(units, top - rule.fraction_bits);
  if (sum == 0) return F32{0};
  const bool f16 = rule.output == OutputFormat::kF16;
  const int precision = f16 ? 11 : rule.output == OutputFormat::kE8m13 ? 14 : 24;
  const int quantum = exponent_of(sum, f16 ? -14 : -126) - precision + 1;
  const double steps = std::ldexp(sum, -quantum);
  const double rounded = std::ldexp(f16 ? std::nearbyint(steps) : std::trunc(steps), quantum);
  if (std::fabs(rounded) >= std::ldexp(1.0, f16 ? 16 : 128))
    return F32{(sum < 0 ? 0x80000000u : 0u) | 0x7F800000u};
  const float result = static_cast<float>(rounded);
  return F32{std::bit_cast<std::uint32_t>(result)};
}

std::uint32_t operand_mask(OperandFormat format) {
  const FormatShape s = shape_of(format);
  if (format == OperandFormat::kTf32) return 0xFFFFFFFFu;
  return static_cast<std::uint32_t>((std::uint64_t{1} << (1 + s.exponent_bits + s.fraction_bits)) -
                                    1);
}

bool is_finite(OperandFormat format, std::uint32_t bits) {
  return decode(format, bits).number_class == NumberClass::kFinite;
}

// A finite operand. Half of the time its exponent is near `centre`, so that terms overlap.
std::uint32_t random_operand(OperandFormat format, std::uint32_t random, int centre) {
  const FormatShape s = shape_of(format);
  std::uint32_t bits = random & operand_mask(format);
  if (random >> 31) {
    const int spread = static_cast<int>(random >> 27 & 7) - 4;
    const int top = (1 << s.exponent_bits) - 2;
    const int field = std::min(std::max(centre % (top + 1) + spread, 0), top);
    const int shift = s.fraction_bits + (format == OperandFormat::kTf32 ? 13 : 0);
    const std::uint32_t field_mask = ((1u << s.exponent_bits) - 1) << shift;
    bits = (bits & ~field_mask) | (static_cast<std::uint32_t>(field) << shift);
  }
  if ((random & 0x1F) == 3) bits &= ~(operand_mask(format) >> 1);  // now and then a zero
  while (!is_finite(format, bits)) bits = (bits * 2654435761u + 12345u) & operand_mask(format);
  return bits;
}

const Instruction& row(const char* name, Arch arch) {
  const auto found = require_instruction(name, arch);
  if (!found) FAIL(found.error().sentence);
  return **found;
}

constexpr std::uint32_t kOneBf16 = 0x3F80, kMinusOneBf16 = 0xBF80, kInfBf16 = 0x7F80;

F32 bf16_dot(std::vector<std::uint32_t> a, std::vector<std::uint32_t> b, std::uint32_t c) {
  a.resize(16, 0);
  b.resize(16, 0);
  return dot(row("wgmma.m64n8k16.f32.bf16.bf16", Arch::kSm90a), a.data(), b.data(), 16, F32{c});
}

}  // namespace

TEST_CASE("every row of the table agrees with the description in double precision",
          "[NUM-4.1][NUM-4.2][NUM-4.3][NUM-4.4]") {
  int nonzero = 0;
  for (const Instruction& instruction : instructions()) {
    if (instruction.arithmetic.lowering != Lowering::kNative) continue;
    const Rule& rule = instruction.arithmetic.rule;
    CAPTURE(instruction.name(), arch_name(instruction.arch));
    testing::prop("one block", [&] {
      const auto random = *rc::gen::container<std::vector<std::uint32_t>>(
          static_cast<std::size_t>(2 * rule.products + 12), rc::gen::arbitrary<std::uint32_t>());
      // RapidCheck grows integers with the size; spread them over all 32 bits.
      const auto word = [&](int i) {
        const std::uint64_t x =
            (random[static_cast<std::size_t>(i)] + 77u * static_cast<unsigned>(i)) *
            0x9E3779B97F4A7C15ull;
        return static_cast<std::uint32_t>(x >> 32);
      };
      const int centre = static_cast<int>(word(0) >> 8 & 0xFF);
      std::vector<std::uint32_t> a, b;
      for (int i = 0; i < rule.products; ++i) {
        a.push_back(random_operand(rule.a, word(2 * i + 1), centre));
        b.push_back(random_operand(rule.b, word(2 * i + 2), centre));
      }
      std::vector<std::uint8_t> scale_a, scale_b;
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t x = word(2 * rule.products + 2 + i);
        const std::uint32_t base = rule.scale == ScaleFormat::kUe8m0 ? 120 + (x & 15) : x & 0x7E;
        scale_a.push_back(static_cast<std::uint8_t>(base));
        scale_b.push_back(static_cast<std::uint8_t>(
            rule.scale == ScaleFormat::kUe8m0 ? 250 - base : x >> 8 & 0xFE));
      }
      F32 c{0};
      const std::uint32_t c_word = word(2 * rule.products + 7);
      if (rule.output == OutputFormat::kF16)
        c = widen(F16{static_cast<std::uint16_t>(c_word & 0xFBFF)});
      else if (c_word & 1)
        c = F32{(c_word & 0x807FFFFFu) | ((100 + (c_word >> 25 & 31)) << 23)};
      const Scales scales =
          rule.scale == ScaleFormat::kNone ? Scales{} : Scales{scale_a.data(), scale_b.data()};
      Arithmetic one = instruction.arithmetic;
      one.k = rule.products;
      const F32 got = instruction_dot(one, a.data(), b.data(), c, scales);
      const F32 want = reference_block(rule, a, b, c, scales);
      RC_ASSERT((got.bits & 0x7FFFFFFFu) == (want.bits & 0x7FFFFFFFu));
      if (got.bits & 0x7FFFFFFFu) RC_ASSERT(got.bits == want.bits);
      nonzero += got.bits != 0;
    });
  }
  REQUIRE(nonzero > 10000);
}

TEST_CASE("NaN and Inf follow the operands, not the sum", "[NUM-4.4]") {
  const std::uint32_t nan = 0x7FFFFFFF, inf = 0x7F800000, minus_inf = 0xFF800000;
  CHECK(bf16_dot({0x7FC1}, {kOneBf16}, 0).bits == nan);
  CHECK(bf16_dot({0xFF81}, {0}, 0).bits == nan);
  CHECK(bf16_dot({kInfBf16}, {0}, 0).bits == nan);
  CHECK(bf16_dot({kInfBf16}, {kOneBf16}, 0).bits == inf);
  CHECK(bf16_dot({kInfBf16}, {kMinusOneBf16}, 0).bits == minus_inf);
  CHECK(bf16_dot({kInfBf16, kInfBf16}, {kOneBf16, kMinusOneBf16}, 0).bits == nan);
  CHECK(bf16_dot({kInfBf16}, {kOneBf16}, minus_inf).bits == nan);
  CHECK(bf16_dot({kOneBf16}, {kOneBf16}, minus_inf).bits == minus_inf);
  CHECK(bf16_dot({kOneBf16}, {kOneBf16}, 0xFFC12345).bits == nan);
  // Products beyond fp32 may cancel; only the sum overflows, and to Inf although rounding is RZ.
  CHECK(bf16_dot({0x7F00, 0xFF00}, {0x7F00, 0x7F00}, 0).bits == 0);
  CHECK(bf16_dot({0x7F00}, {0x7F00}, 0).bits == inf);
  CHECK(bf16_dot({0x7F7F, 0x7F7F}, {kOneBf16, kOneBf16}, 0).bits == inf);
}

TEST_CASE("tf32 operands lose their low 13 bits, so some NaNs read as Inf", "[NUM-4.2]") {
  const Instruction& tf32 = row("wgmma.m64n8k8.f32.tf32.tf32", Arch::kSm90a);
  std::vector<std::uint32_t> a(8, 0), b(8, 0);
  a[0] = 0x7F800001;
  b[0] = 0x3F800000;
  CHECK(dot(tf32, a.data(), b.data(), 8, F32{0}).bits == 0x7F800000);
  a[0] = 0x7F802000;
  CHECK(dot(tf32, a.data(), b.data(), 8, F32{0}).bits == 0x7FFFFFFF);
  a[0] = 0x3F801FFF;
  CHECK(dot(tf32, a.data(), b.data(), 8, F32{0}).bits == 0x3F800000);
}

TEST_CASE("a zero term holds the alignment up at e_zero", "[NUM-4.2]") {
  // 2^-150 + 2^-151 + ... + 2^-158 + 2^-159 + 2^-159 is exactly the smallest fp32, 2^-149. With F
  // 25 under e_zero -133 nothing below 2^-158 is kept, so the last two are lost, and with them the
  // sum.
  std::vector<std::uint32_t> a(16, 0), b(16, 0);
  for (int i = 0; i < 11; ++i) {
    a[static_cast<std::size_t>(i)] = 0x0001;  // 2^-133
    const int exponent = i < 10 ? -17 - i : -26;
    b[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(127 + exponent) << 7;
  }
  CHECK(bf16_dot(a, b, 0).bits == 0);
  Arithmetic lower = row("wgmma.m64n8k16.f32.bf16.bf16", Arch::kSm90a).arithmetic;
  lower.rule.zero_exponent = -134;
  CHECK(instruction_dot(lower, a.data(), b.data(), F32{0}).bits == 1);
}

TEST_CASE("a zero result is +0, whatever the signs that led to it", "[NUM-4.4]") {
  const std::vector<std::uint32_t> minus_zero(16, 0x8000), one(16, kOneBf16);
  CHECK(bf16_dot(minus_zero, one, 0x80000000u).bits == 0);
  CHECK(bf16_dot({kOneBf16, kMinusOneBf16}, {kOneBf16, kOneBf16}, 0x80000000u).bits == 0);
  // A negative sum below half the smallest fp16, and one below the smallest fp32.
  const std::vector<std::uint32_t> tiny(16, 0x8001), small(16, 0x0001);
  CHECK(
      dot(row("wgmma.k16.f16.f16.f16", Arch::kSm90a), tiny.data(), small.data(), 16, F32{0}).bits ==
      0);
  CHECK(bf16_dot({0x8001}, {0x3580}, 0).bits == 0);
}

TEST_CASE("a group whose products cancel keeps its scales' exponent", "[NUM-4.3]") {
  const Instruction& nvf4 = row("tcgen05.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0", Arch::kSm100a);
  std::vector<std::uint8_t> a(64, 0), b(64, 2);
  a[0] = 2;
  a[1] = 10;  // 1 - 1 in group 0
  a[32] = 1;  // 0.5 in group 2
  std::vector<std::uint8_t> scale_a = {150, 110}, scale_b = {150, 110};
  const F32 cancelled =
      dot(nvf4, a.data(), b.data(), 64, F32{0}, Scales{scale_a.data(), scale_b.data()});
  // 0.5 * 2^-34 lies 81 binades below the cancelled group's 2^46: cut off.
  CHECK(cancelled.bits == 0);
  a[0] = a[1] = 0;
  const F32 alone =
      dot(nvf4, a.data(), b.data(), 64, F32{0}, Scales{scale_a.data(), scale_b.data()});
  CHECK(std::bit_cast<float>(alone.bits) == 0x1p-35f);
}
