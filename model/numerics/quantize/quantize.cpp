// Finding the maximum of a block, writing its elements, and checking what callers ask for.
#include "model/numerics/quantize/quantize.hpp"

#include <string>

#include "model/core/contract.hpp"
#include "model/numerics/max_min.hpp"
#include "model/numerics/numerics.hpp"

namespace assay::numerics::quantize {

namespace {

constexpr F32 kOne{0x3F800000};
constexpr F32 kFloor{0x38D1B717};  // 1e-4f

// The largest magnitude as kernels with packed 16-bit pairs find it: one maximum over even columns,
// one over odd columns, then `even > odd ? even : odd`, which a NaN among the two decides for odd
// (SPEC NUM-6.2).
template <class T>
F32 packed_pairs_amax(std::span<const T> block) {
  T even = absolute(block[0]), odd = absolute(block[1]);
  for (std::size_t i = 2; i + 1 < block.size(); i += 2) {
    even = max_of(even, absolute(block[i]));
    odd = max_of(odd, absolute(block[i + 1]));
  }
  const bool even_is_larger = !is_nan(even) && !is_nan(odd) && even.bits > odd.bits;
  return widen(even_is_larger ? even : odd);
}

template <class T>
F32 find_amax(AmaxRule rule, std::span<const T> block) {
  if (rule == AmaxRule::kPackedPairs) return packed_pairs_amax(block);
  F32 amax = rule == AmaxRule::kFromFloor ? kFloor : F32{0};
  for (const T x : block) {
    const F32 m = absolute(widen(x));
    if (rule == AmaxRule::kPropagateNan && is_infinite(m)) return canonical_nan<F32>();
    amax = max_of(amax, m, rule == AmaxRule::kPropagateNan ? NanRule::kPropagate : NanRule::kDrop);
  }
  return amax;
}

std::uint8_t element_code(Element element, F32 x) {
  switch (element) {
    case Element::kE4m3:
      return cvt_rn_satfinite_e4m3(x).bits;
    case Element::kE5m2:
      return cvt_rn_satfinite_e5m2(x).bits;
    case Element::kE2m1:
      return cvt_rn_satfinite_e2m1(x).bits;
  }
  CONTRACT(false, "an element format without conversion");
  return 0;
}

F32 element_value(Element element, std::uint8_t code) {
  switch (element) {
    case Element::kE4m3:
      return widen(E4m3{code});
    case Element::kE5m2:
      return widen(E5m2{code});
    case Element::kE2m1:
      return widen(E2m1{code});
  }
  CONTRACT(false, "an element format without values");
  return {};
}

bool is_packed(const Recipe& recipe) { return recipe.element == Element::kE2m1; }

void store_scale(Quantized& q, ScaleFormat format, std::size_t index, std::uint32_t code) {
  const std::size_t bytes = scale_bytes(format);
  for (std::size_t i = 0; i < bytes; ++i) {
    q.scales[index * bytes + i] = static_cast<std::uint8_t>(code >> (8 * i));
  }
}

std::uint32_t load_scale(const Quantized& q, ScaleFormat format, std::size_t index) {
  const std::size_t bytes = scale_bytes(format);
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    code |= std::uint32_t{q.scales[index * bytes + i]} << (8 * i);
  }
  return code;
}

template <class T>
void quantize_rows(const Recipe& recipe, std::span<const T> values, F32 global_scale,
                   Quantized& q) {
  for (std::size_t row = 0; row < q.rows; ++row) {
    for (std::size_t block = 0; block < q.grid.blocks; ++block) {
      const std::size_t first = row * q.columns + block * recipe.block;
      const auto in = values.subspan(first, recipe.block);
      const BlockScale scale = block_scale(recipe, find_amax(recipe.amax, in), global_scale);
      store_scale(q, recipe.scale_format, q.grid.offset(row, block), scale.code);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const std::uint8_t code =
            element_code(recipe.element, mul_rn(widen(in[i]), scale.multiplier, recipe.flush));
        if (!is_packed(recipe)) {
          q.elements[first + i] = code;
        } else {
          q.elements[(first + i) / 2] |= static_cast<std::uint8_t>(code << (i % 2 * 4));
        }
      }
    }
  }
}

std::string named(const Recipe& recipe) { return "recipe " + std::string(recipe.name); }

Status check_global_scale(const Recipe& recipe, std::optional<F32> global_scale) {
  if (recipe.takes_global_scale() && !global_scale) {
    return bad_input(named(recipe) + " needs a global scale and none is given");
  }
  if (!recipe.takes_global_scale() && global_scale) {
    return bad_input(named(recipe) + " takes no global scale and one is given");
  }
  if (global_scale) {
    const F32 g = *global_scale;
    if (is_nan(g) || is_infinite(g) || is_negative(g) || is_zero(g)) {
      return bad_input("the global scale is " + std::to_string(to_float(g)) +
                       "; allowed are positive finite numbers");
    }
  }
  return Done{};
}

Status check_columns(const Recipe& recipe, std::size_t columns) {
  if (columns % recipe.block != 0) {
    return bad_input(std::to_string(columns) + " columns; " + named(recipe) +
                     " takes multiples of " + std::to_string(recipe.block));
  }
  return Done{};
}

}  // namespace

Expected<Quantized> quantize(const Recipe& recipe, const Source& source, ScaleLayout layout,
                             std::optional<F32> global_scale) {
  ASSAY_CHECK(check_columns(recipe, source.columns));
  ASSAY_CHECK(check_global_scale(recipe, global_scale));
  const std::size_t size = std::visit([](auto values) { return values.size(); }, source.values);
  if (size != source.rows * source.columns) {
    return bad_input(std::to_string(size) + " values; " + std::to_string(source.rows) +
                     " rows of " + std::to_string(source.columns) + " columns have " +
                     std::to_string(source.rows * source.columns));
  }
  if (recipe.sixteen_bit_only && std::holds_alternative<std::span<const F32>>(source.values)) {
    return bad_input("f32 values; " + named(recipe) + " takes f16 and bf16");
  }
  Quantized q;
  q.rows = source.rows;
  q.columns = source.columns;
  q.grid = {layout, source.rows, source.columns / recipe.block};
  q.elements.assign(is_packed(recipe) ? size / 2 : size, 0);
  q.scales.assign(q.grid.count() * scale_bytes(recipe.scale_format), 0);
  std::visit([&](auto values) { quantize_rows(recipe, values, global_scale.value_or(kOne), q); },
             source.values);
  return q;
}

Expected<std::vector<F32>> dequantize(const Recipe& recipe, const Quantized& q,
                                      std::optional<F32> global_scale) {
  ASSAY_CHECK(check_columns(recipe, q.columns));
  ASSAY_CHECK(check_global_scale(recipe, global_scale));
  const std::size_t size = q.rows * q.columns;
  const std::size_t element_bytes = is_packed(recipe) ? size / 2 : size;
  const std::size_t all_scale_bytes = q.grid.count() * scale_bytes(recipe.scale_format);
  if (q.grid.rows != q.rows || q.grid.blocks != q.columns / recipe.block ||
      q.elements.size() != element_bytes || q.scales.size() != all_scale_bytes) {
    return bad_input(std::to_string(q.elements.size()) + " bytes of elements and " +
                     std::to_string(q.scales.size()) + " of scales; " + named(recipe) + " has " +
                     std::to_string(element_bytes) + " and " + std::to_string(all_scale_bytes));
  }
  const F32 inverse_global = div_rn(kOne, global_scale.value_or(kOne), false);
  std::vector<F32> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t row = i / q.columns, block = i % q.columns / recipe.block;
    const F32 scale = scale_value(recipe.scale_format,
                                  load_scale(q, recipe.scale_format, q.grid.offset(row, block)));
    const std::uint8_t code =
        is_packed(recipe) ? (q.elements[i / 2] >> (i % 2 * 4)) & 0xF : q.elements[i];
    const F32 value = mul_rn(element_value(recipe.element, code), scale, false);
    values[i] = recipe.takes_global_scale() ? mul_rn(value, inverse_global, false) : value;
  }
  return values;
}

F32 te_global_scale(F32 tensor_amax) {
  const F32 scale = min_of(div_rn(F32{0x45280000}, tensor_amax, false),  // 448 * 6
                           F32{0x7F7FFFFF});
  return is_zero(tensor_amax) || is_zero(scale) ? kOne : scale;
}

}  // namespace assay::numerics::quantize
