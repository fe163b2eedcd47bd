// assay golden convert: one number format to another, as PTX's cvt does it. The bits are
// model/numerics/convert.hpp; this file decides the words for rounding and overflow, which of the
// conversions were measured, and what a wrong array is tried against.
#include <fmt/format.h>

#include <memory>

#include "model/core/text.hpp"
#include "model/numerics/convert.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {
namespace {

using numerics::Overflow;
using numerics::Rounding;

// What a value becomes; the rounding and overflow apply where To is narrower than f32.
struct Conversion {
  Dtype to = Dtype::kF32;
  Rounding rounding = Rounding::kNearestEven;
  Overflow overflow = Overflow::kInfinity;
};

struct Problem {
  TensorView x;
  Conversion conversion;
};

struct Target {
  std::string_view name;
  Dtype dtype;
  Overflow usual;  // of PTX's instructions: the 8-bit and narrower ones saturate only
};
constexpr Target kTargets[] = {
    {"f32", Dtype::kF32, Overflow::kInfinity},     {"bf16", Dtype::kBf16, Overflow::kInfinity},
    {"f16", Dtype::kF16, Overflow::kInfinity},     {"e4m3", Dtype::kF8E4m3, Overflow::kSaturate},
    {"e5m2", Dtype::kF8E5m2, Overflow::kSaturate}, {"e2m1", Dtype::kF4, Overflow::kSaturate},
    {"ue8m0", Dtype::kF8E8m0, Overflow::kSaturate}};
constexpr std::string_view kTargetNames = "f32, bf16, f16, e4m3, e5m2, e2m1 and ue8m0";
constexpr std::pair<std::string_view, Rounding> kRoundings[] = {{"rn", Rounding::kNearestEven},
                                                                {"rz", Rounding::kTowardZero},
                                                                {"rp", Rounding::kUp},
                                                                {"rm", Rounding::kDown}};
constexpr std::string_view kRoundingNames =
    "rn (nearest even), rz (toward zero), rp (up) and rm (down)";

std::string_view rounding_name(Rounding rounding) {
  for (const auto& [name, value] : kRoundings)
    if (value == rounding) return name;
  return "?";
}

std::string_view target_name(Dtype dtype) {
  for (const Target& target : kTargets)
    if (target.dtype == dtype) return target.name;
  return "?";
}

Expected<Conversion> read_conversion(const GoldenInput& in) {
  Conversion conversion;
  const Target* target = nullptr;
  for (const Target& candidate : kTargets)
    if (candidate.name == in.text("to")) target = &candidate;
  if (target == nullptr)
    return bad_input(
        fmt::format("to is {}; allowed are {}", in_quotes(in.text("to")), kTargetNames));
  conversion.to = target->dtype;
  conversion.overflow = target->usual;
  const bool power = target->dtype == Dtype::kF8E8m0;
  conversion.rounding = power ? Rounding::kUp : Rounding::kNearestEven;
  if (in.has("rounding")) {
    bool known = false;
    for (const auto& [name, value] : kRoundings) {
      if (name != in.text("rounding")) continue;
      conversion.rounding = value;
      known = !power || value == Rounding::kUp || value == Rounding::kTowardZero;
    }
    if (!known)
      return bad_input(fmt::format("rounding is {}; allowed are {}", in_quotes(in.text("rounding")),
                                   power ? "rp and rz for ue8m0" : kRoundingNames));
  }
  if (in.has("satfinite")) {
    ASSAY_TRY(const auto saturate, in.integer<std::int32_t>("satfinite", 0, 1));
    conversion.overflow = saturate != 0 ? Overflow::kSaturate : Overflow::kInfinity;
  }
  return conversion;
}

Expected<Problem> read_problem(const GoldenInput& in) {
  Problem p;
  ASSAY_TRY(p.conversion, read_conversion(in));
  ASSAY_TRY(p.x, in.file->tensor("x"));
  switch (p.x.dtype) {
    case Dtype::kF32:
    case Dtype::kF16:
    case Dtype::kBf16:
    case Dtype::kF8E4m3:
    case Dtype::kF8E5m2:
      break;
    default:
      return bad_input(
          fmt::format("{}: tensor x is {}; allowed are F32, F16, BF16, F8_E4M3 and "
                      "F8_E5M2",
                      in.file->path(), dtype_name(p.x.dtype)));
  }
  if (p.conversion.to == Dtype::kF4 && (p.x.shape.empty() || p.x.shape.back() % 2 != 0))
    return bad_input(
        fmt::format("{}: x has shape {}; for e2m1 its last axis must be even, since "
                    "two elements share a byte",
                    in.file->path(), shape_text(p.x.shape)));
  return p;
}

// Widening is exact, so every conversion is one rounding of the widened value (SPEC NUM-2.6).
F32 widened(const TensorView& x, std::uint64_t index) {
  const std::uint32_t bits =
      load_element(element_format(x.dtype), x.bytes.data(), static_cast<std::int64_t>(index));
  switch (x.dtype) {
    case Dtype::kF16:
      return numerics::widen(F16{static_cast<std::uint16_t>(bits)});
    case Dtype::kBf16:
      return numerics::widen(Bf16{static_cast<std::uint16_t>(bits)});
    case Dtype::kF8E4m3:
      return numerics::widen(E4m3{static_cast<std::uint8_t>(bits)});
    case Dtype::kF8E5m2:
      return numerics::widen(E5m2{static_cast<std::uint8_t>(bits)});
    default:
      return F32{bits};
  }
}

std::uint32_t converted(const Conversion& how, F32 x) {
  switch (how.to) {
    case Dtype::kBf16:
      return numerics::narrow<Bf16>(x, how.rounding, how.overflow).bits;
    case Dtype::kF16:
      return numerics::narrow<F16>(x, how.rounding, how.overflow).bits;
    case Dtype::kF8E4m3:
      return numerics::narrow<E4m3>(x, how.rounding, how.overflow).bits;
    case Dtype::kF8E5m2:
      return numerics::narrow<E5m2>(x, how.rounding, how.overflow).bits;
    case Dtype::kF4:
      return numerics::narrow<E2m1>(x, how.rounding, how.overflow).bits;
    case Dtype::kF8E8m0:
      return numerics::narrow<Ue8m0>(x, how.rounding, how.overflow).bits;
    default:
      return x.bits;
  }
}

// What the H200 sweeps covered (SPEC NUM-2, the evidence file): every f32 input of these.
bool is_measured(const Problem& p) {
  const Conversion& c = p.conversion;
  const Dtype from = p.x.dtype;
  if (c.to == Dtype::kF32) return from != Dtype::kBf16;
  if (c.to == Dtype::kF16 && (from == Dtype::kF8E4m3 || from == Dtype::kF8E5m2))
    return c.rounding == Rounding::kNearestEven && c.overflow == Overflow::kInfinity;
  if (from != Dtype::kF32) return false;
  if (c.to == Dtype::kBf16 || c.to == Dtype::kF16)
    return c.overflow == Overflow::kInfinity &&
           (c.rounding == Rounding::kNearestEven || c.rounding == Rounding::kTowardZero);
  return (c.to == Dtype::kF8E4m3 || c.to == Dtype::kF8E5m2) && c.overflow == Overflow::kSaturate &&
         c.rounding == Rounding::kNearestEven;
}

std::string describe(const Conversion& c) {
  if (c.to == Dtype::kF32) return "widening";
  return fmt::format("cvt.{}{}", rounding_name(c.rounding),
                     c.overflow == Overflow::kSaturate ? ".satfinite" : "");
}

Expected<GoldenAnswer> legal(const GoldenInput& in, const TensorFile*) {
  ASSAY_TRY(const Problem p, read_problem(in));
  GoldenTensor y{.name = "y", .dtype = p.conversion.to, .shape = p.x.shape};
  y.format = element_format(y.dtype);
  y.axes = plain_axes(y.shape.size());
  y.clause = y.dtype == Dtype::kF32 ? "NUM-1.2" : y.dtype == Dtype::kF8E8m0 ? "NUM-2.4" : "NUM-2.1";
  const std::uint64_t count = p.x.num_elements();
  const std::size_t width = static_cast<std::size_t>(format_bytes(y.format));
  const bool packed = y.dtype == Dtype::kF4;
  y.bytes.resize(packed ? count / 2 : count * width);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = converted(p.conversion, widened(p.x, i));
    if (packed)
      y.bytes[i / 2] |= static_cast<std::byte>(bits << (i % 2 * 4));
    else
      std::memcpy(y.bytes.data() + i * width, &bits, width);
  }
  GoldenAnswer answer;
  answer.rule = fmt::format("{} from {} to {}", describe(p.conversion), dtype_name(p.x.dtype),
                            target_name(y.dtype));
  answer.grade = is_measured(p) ? Grade::kBits : Grade::kBitsClaimed;
  answer.source = is_measured(p) ? "all inputs measured on an H200, NUM-2"
                                 : "documented, not measured here, NUM-2";
  answer.tensors.push_back(std::move(y));
  return answer;
}

// --- which other rule fits ---------------------------------------------------------------------

std::vector<GoldenRule> rules_of(const GoldenInput& in, const TensorFile& got) {
  const auto problem = read_problem(in);
  const auto found = got.tensor("y");
  CONTRACT(problem.has_value() && found.has_value(), "the comparison has read them");
  const Conversion own = problem->conversion;
  std::vector<GoldenRule> rules;
  const auto add = [&](std::string sentence, std::function<std::uint32_t(F32)> function) {
    rules.push_back({std::move(sentence),
                     [x = problem->x, y = *found, to = own.to, function = std::move(function)] {
                       for (std::uint64_t i = 0; i < x.num_elements(); ++i) {
                         const std::uint32_t bits = load_element(element_format(to), y.bytes.data(),
                                                                 static_cast<std::int64_t>(i));
                         if (function(widened(x, i)) != bits) return false;
                       }
                       return true;
                     }});
  };
  for (const auto& [name, rounding] : kRoundings) {
    for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
      const Conversion other{own.to, rounding, overflow};
      const bool power = own.to == Dtype::kF8E8m0;
      if (own.to == Dtype::kF32 || (rounding == own.rounding && overflow == own.overflow)) continue;
      if (power && (rounding == Rounding::kNearestEven || rounding == Rounding::kDown)) continue;
      add(fmt::format("{} fits instead", describe(other)),
          [other](F32 x) { return converted(other, x); });
    }
  }
  add("fits instead: subnormal inputs flushed to zero",
      [own](F32 x) { return converted(own, numerics::flush_subnormal(x)); });
  if (own.to == Dtype::kBf16)
    add("fits instead: the upper half of the f32 bits, NaN included",
        [](F32 x) { return x.bits >> 16; });
  return rules;
}

}  // namespace

GoldenOp convert_op() {
  GoldenOp op;
  op.name = "convert";
  op.parameters = {{"to", kTargetNames, true},
                   {"rounding", kRoundingNames},
                   {"satfinite", "0 and 1", false, std::nullopt, ParameterForm::kFlag}};
  op.inputs = {"x"};
  op.legal = legal;
  op.rules = rules_of;
  return op;
}

}  // namespace assay::verify
