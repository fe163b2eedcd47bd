// Tiles: checks the problem, splits it at promotions, and runs it on the scalar path (which is
// dot() in a loop) or on panels of vectors. Decides the errors of mma(); no bit is decided here.
#include <algorithm>
#include <bit>
#include <vector>

#include <hwy/aligned_allocator.h>

#include "model/numerics/tensor_core/mma_simd.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

namespace assay::numerics {
namespace {

std::size_t at(int row, int column, int columns) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
         static_cast<std::size_t>(column);
}

int operand_bytes(OperandFormat format) {
  switch (format) {
    case OperandFormat::kTf32:
      return 4;
    case OperandFormat::kF16:
    case OperandFormat::kBf16:
      return 2;
    default:
      return 1;
  }
}

bool is_f16_value(F32 x) { return is_nan(x) || widen(cvt_rn_f16_f32(x)).bits == x.bits; }

template <class T>
Status check(const Instruction& instruction, const MmaProblem<T>& p) {
  const Arithmetic& arithmetic = instruction.arithmetic;
  const int step = p.promotion.interval_k ? p.promotion.interval_k : arithmetic.k;
  if (p.m < 1 || p.n < 1 || p.k < 1)
    return bad_input("mma of m " + std::to_string(p.m) + ", n " + std::to_string(p.n) + ", k " +
                     std::to_string(p.k) + "; allowed are 1 and more");
  if (step % arithmetic.k != 0 || step < 0)
    return bad_input("the promotion interval is " + std::to_string(step) +
                     "; allowed are multiples of " + std::to_string(arithmetic.k) + ", the k of " +
                     instruction.name());
  if (p.k % step != 0)
    return bad_input("k is " + std::to_string(p.k) + "; allowed are multiples of " +
                     std::to_string(step));
  if (operand_bytes(arithmetic.rule.a) != static_cast<int>(sizeof(T)))
    return bad_input("operands of " + instruction.name() + " have " +
                     std::to_string(8 * operand_bytes(arithmetic.rule.a)) + " bits, not " +
                     std::to_string(8 * sizeof(T)));
  if (arithmetic.rule.scale != ScaleFormat::kNone && (!p.scale_a || !p.scale_b))
    return bad_input(instruction.name() + " needs scale_a and scale_b");
  if (arithmetic.rule.scale == ScaleFormat::kNone && (p.scale_a || p.scale_b))
    return bad_input(instruction.name() + " takes no scales");
  if (arithmetic.rule.output == OutputFormat::kF16 && p.c != nullptr && !p.promotion.interval_k) {
    for (std::size_t i = 0; i < at(p.m, 0, p.n); ++i) {
      if (!is_f16_value(p.c[i]))
        return bad_input("c[" + std::to_string(i / static_cast<std::size_t>(p.n)) + "," +
                         std::to_string(i % static_cast<std::size_t>(p.n)) + "] has bits " +
                         std::to_string(p.c[i].bits) + "; allowed are fp16 values, since " +
                         instruction.name() + " accumulates in fp16");
    }
  }
  return Done{};
}

// The scalar path for rules without scales, lowering or deviations, on operands decoded once per
// row instead of once per product. The formats are constants here: the algorithm is fdpa()'s own
// text, and the compiler drops what cannot happen.
template <OperandFormat kA, OperandFormat kB, class T>
void scalar_rows(const Rule& rule, const MmaProblem<T>& p, int first, int count, const F32* c,
                 F32* d) {
  Rule plain;
  plain.a = kA;
  plain.b = kB;
  plain.output = rule.output;
  plain.rounding = rule.rounding;
  plain.products = rule.products;
  plain.fraction_bits = rule.fraction_bits;
  plain.zero_exponent = rule.zero_exponent;
  const auto decode_rows = [&](OperandFormat format, const T* bits, int rows) {
    std::vector<Decoded> decoded(at(rows, 0, count));
    for (int i = 0; i < rows; ++i)
      for (int l = 0; l < count; ++l)
        decoded[at(i, l, count)] = decode(format, bits[at(i, first + l, p.k)]);
    return decoded;
  };
  const std::vector<Decoded> a = decode_rows(kA, p.a, p.m);
  const std::vector<Decoded> b = decode_rows(kB, p.b, p.n);
  for (int i = 0; i < p.m; ++i) {
    for (int j = 0; j < p.n; ++j) {
      F32 sum = c ? c[at(i, j, p.n)] : F32{0};
      for (int l = 0; l < count; l += plain.products) {
        const Decoded* row_a = &a[at(i, l, count)];
        const Decoded* row_b = &b[at(j, l, count)];
        const auto term = [&](int q) { return product(plain, row_a[q], row_b[q]); };
        sum = fdpa(plain, plain.products, term, sum);
      }
      d[at(i, j, p.n)] = sum;
    }
  }
}

// d = c + the chain over k in [first, first + count).
template <class T>
void scalar_chain(const Instruction& instruction, const MmaProblem<T>& p, int first, int count,
                  const F32* c, F32* d) {
  using enum OperandFormat;
  const Rule& rule = instruction.arithmetic.rule;
  if (simd::supports(instruction.arithmetic) && rule.a == rule.b) {
    switch (rule.a) {
      case kF16:
        return scalar_rows<kF16, kF16>(rule, p, first, count, c, d);
      case kBf16:
        return scalar_rows<kBf16, kBf16>(rule, p, first, count, c, d);
      case kTf32:
        return scalar_rows<kTf32, kTf32>(rule, p, first, count, c, d);
      case kE4m3:
        return scalar_rows<kE4m3, kE4m3>(rule, p, first, count, c, d);
      case kE5m2:
        return scalar_rows<kE5m2, kE5m2>(rule, p, first, count, c, d);
      default:
        break;
    }
  }
  const int block = std::max(rule.scale_block, 1);
  for (int i = 0; i < p.m; ++i) {
    for (int j = 0; j < p.n; ++j) {
      Scales scales;
      if (p.scale_a) {
        scales.a = p.scale_a + at(i, first / block, p.k / block);
        scales.b = p.scale_b + at(j, first / block, p.k / block);
      }
      d[at(i, j, p.n)] = dot(instruction, p.a + at(i, first, p.k), p.b + at(j, first, p.k), count,
                             c ? c[at(i, j, p.n)] : F32{0}, scales);
    }
  }
}

template <OperandFormat kFormat>
simd::Prepared prepare(std::uint32_t bits) {
  const Decoded d = decode(kFormat, bits);
  simd::Prepared out;
  if (d.number_class != NumberClass::kFinite) {
    out.exponent = simd::kSpecialExponent;
  } else if (d.significand != 0) {
    out.exponent = d.exponent;
    // bf16 and tf32 are cut-off fp32. The others have exponents that fp32 holds as normal numbers.
    if (kFormat == OperandFormat::kBf16) {
      out.value = std::bit_cast<float>(bits << 16);
    } else if (kFormat == OperandFormat::kTf32) {
      out.value = std::bit_cast<float>(bits & ~0x1FFFu);
    } else {
      const int exponent = d.exponent - shape_of(kFormat).fraction_bits;
      out.value = static_cast<float>(d.significand) *
                  std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
      if (d.negative) out.value = -out.value;
    }
  }
  return out;
}

// Prepares `count` operands that lie next to each other; the outputs lie `stride` apart.
template <OperandFormat kFormat, class T>
void prepare_row(const T* bits, int count, int stride, float* value, std::int32_t* exponent) {
  for (int i = 0; i < count; ++i) {
    const simd::Prepared x = prepare<kFormat>(bits[i]);
    value[at(i, 0, stride)] = x.value;
    exponent[at(i, 0, stride)] = x.exponent;
  }
}

template <class T>
void prepare_row(OperandFormat format, const T* bits, int count, int stride, float* value,
                 std::int32_t* exponent) {
  using enum OperandFormat;
  switch (format) {
    case kF16:
      return prepare_row<kF16>(bits, count, stride, value, exponent);
    case kBf16:
      return prepare_row<kBf16>(bits, count, stride, value, exponent);
    case kTf32:
      return prepare_row<kTf32>(bits, count, stride, value, exponent);
    case kE4m3:
      return prepare_row<kE4m3>(bits, count, stride, value, exponent);
    case kE5m2:
      return prepare_row<kE5m2>(bits, count, stride, value, exponent);
    case kE3m2:
      return prepare_row<kE3m2>(bits, count, stride, value, exponent);
    case kE2m3:
      return prepare_row<kE2m3>(bits, count, stride, value, exponent);
    case kE2m1:
      return prepare_row<kE2m1>(bits, count, stride, value, exponent);
  }
}

// The scalar block for one lane of a panel, when the vectors cannot be used.
template <class T>
struct PanelContext {
  const Rule* rule;
  const MmaProblem<T>* problem;
  int first_k;       // of the chain
  int first_column;  // of the panel

  static F32 exact_block(const void* context, int row, int lane, int first, F32 c) {
    const PanelContext& self = *static_cast<const PanelContext*>(context);
    const MmaProblem<T>& p = *self.problem;
    const int column = self.first_column + lane;
    if (column >= p.n) return F32{0};
    const T* a = p.a + at(row, self.first_k + first, p.k);
    const T* b = p.b + at(column, self.first_k + first, p.k);
    const Rule& rule = *self.rule;
    const auto term = [&](int i) {
      return product(rule, decode(rule.a, a[i]), decode(rule.b, b[i]));
    };
    return fdpa(rule, rule.products, term, c);
  }
};

template <class T>
void simd_chain(const Instruction& instruction, const MmaProblem<T>& p, int first, int count,
                const F32* c, F32* d) {
  const Rule& rule = instruction.arithmetic.rule;
  const int lanes = simd::lanes();
  const std::size_t a_size = at(p.m, 0, count);
  const std::size_t b_size = at(count, 0, lanes);
  const auto a_value = hwy::AllocateAligned<float>(a_size);
  const auto a_exponent = hwy::AllocateAligned<std::int32_t>(a_size);
  const auto b_value = hwy::AllocateAligned<float>(b_size);
  const auto b_exponent = hwy::AllocateAligned<std::int32_t>(b_size);
  const auto tile = hwy::AllocateAligned<std::uint32_t>(at(p.m, 0, lanes));
  for (int i = 0; i < p.m; ++i) {
    prepare_row(rule.a, p.a + at(i, first, p.k), count, 1, &a_value[at(i, 0, count)],
                &a_exponent[at(i, 0, count)]);
  }
  for (int column = 0; column < p.n; column += lanes) {
    const int width = std::min(lanes, p.n - column);
    if (width < lanes) {  // columns that do not exist are zeros
      std::fill_n(b_value.get(), b_size, 0.0f);
      std::fill_n(b_exponent.get(), b_size, simd::kZeroExponent);
    }
    for (int lane = 0; lane < lanes; ++lane) {
      if (lane < width) {
        prepare_row(rule.b, p.b + at(column + lane, first, p.k), count, lanes, b_value.get() + lane,
                    b_exponent.get() + lane);
      }
    }
    for (int i = 0; i < p.m; ++i) {
      for (int lane = 0; lane < lanes; ++lane)
        tile[at(i, lane, lanes)] = c && lane < width ? c[at(i, column + lane, p.n)].bits : 0;
    }
    const PanelContext<T> context{&rule, &p, first, column};
    simd::Panel panel;
    panel.arithmetic = &instruction.arithmetic;
    panel.m = p.m;
    panel.k = count;
    panel.a_value = a_value.get();
    panel.a_exponent = a_exponent.get();
    panel.b_value = b_value.get();
    panel.b_exponent = b_exponent.get();
    panel.d = tile.get();
    panel.exact_block = &PanelContext<T>::exact_block;
    panel.context = &context;
    simd::run_panel(panel);
    for (int i = 0; i < p.m; ++i)
      for (int lane = 0; lane < width; ++lane)
        d[at(i, column + lane, p.n)] = F32{tile[at(i, lane, lanes)]};
  }
}

template <class T>
Status run(const Instruction& instruction, const MmaProblem<T>& p, MmaPath path) {
  ASSAY_CHECK(check(instruction, p));
  const bool vectors = path == MmaPath::kBest && simd::supports(instruction.arithmetic);
  const auto chain = [&](int first, int count, const F32* c, F32* d) {
    if (vectors)
      simd_chain(instruction, p, first, count, c, d);
    else
      scalar_chain(instruction, p, first, count, c, d);
  };
  const int interval = p.promotion.interval_k;
  if (interval == 0) {
    chain(0, p.k, p.c, p.d);
    return Done{};
  }
  std::vector<F32> partial(at(p.m, 0, p.n));
  for (int first = 0; first < p.k; first += interval) {
    chain(first, interval, nullptr, partial.data());
    for (std::size_t i = 0; i < partial.size(); ++i) {
      const F32 before = first != 0 ? p.d[i] : p.c ? p.c[i] : F32{0};
      p.d[i] = promote(before, partial[i], p.promotion);
    }
  }
  return Done{};
}

}  // namespace

Status mma(const Instruction& instruction, const MmaProblem<std::uint8_t>& problem, MmaPath path) {
  return run(instruction, problem, path);
}
Status mma(const Instruction& instruction, const MmaProblem<std::uint16_t>& problem, MmaPath path) {
  return run(instruction, problem, path);
}
Status mma(const Instruction& instruction, const MmaProblem<std::uint32_t>& problem, MmaPath path) {
  return run(instruction, problem, path);
}

std::string_view mma_simd_target() { return simd::target_name(); }

}  // namespace assay::numerics
