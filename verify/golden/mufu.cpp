// assay golden mufu: the special functions of the hardware over an array. Which bits they give is
// model/numerics/special; this file decides which other functions a wrong array is tried against.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "model/numerics/convert.hpp"
#include "model/numerics/special/fast_math.hpp"
#include "model/numerics/special/polynomial.hpp"
#include "model/numerics/special/special.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {
namespace {

using numerics::Mufu;

struct Problem {
  Mufu function = Mufu::kEx2;
  TensorView x;
};

Expected<Problem> read_problem(const GoldenInput& in) {
  Problem p;
  ASSAY_TRY(p.function, numerics::parse_mufu(in.text("function")));
  ASSAY_TRY(p.x, in.file->tensor("x"));
  ASSAY_TRY(const auto values, p.x.as<F32>());
  (void)values;
  return p;
}

std::string instruction_name(Mufu function) {
  return fmt::format("{}.approx{}.f32", numerics::mufu_name(function),
                     function == Mufu::kTanh ? "" : ".ftz");
}

Expected<GoldenAnswer> legal(const GoldenInput& in, const TensorFile*) {
  ASSAY_TRY(const Problem p, read_problem(in));
  const std::vector<F32> x = Elements<F32>(p.x.bytes).copy();
  std::vector<F32> y(x.size());
  numerics::mufu(p.function, x, y);
  GoldenTensor out{.name = "y", .dtype = Dtype::kF32, .shape = p.x.shape};
  out.bytes = bytes_of(std::span<const F32>(y));
  out.format = ElementFormat::kF32;
  out.axes = plain_axes(p.x.shape.size());
  out.clause = p.function == Mufu::kTanh ? "NUM-5.9" : "NUM-5.1";
  GoldenAnswer answer;
  answer.tensors.push_back(std::move(out));
  answer.rule = instruction_name(p.function);
  answer.grade = Grade::kBits;
  answer.source = "all 2^32 inputs measured on an H200, NUM-5.1 and NUM-5.9";
  return answer;
}

// --- which other rule fits ---------------------------------------------------------------------

// Nearest f32, by way of the host's long double (64 significant bits on x86): a guess for a
// diagnosis, never an expected value. NaN results have no bits of their own here.
F32 correctly_rounded(Mufu function, F32 x) {
  const long double wide = numerics::to_float(x);
  switch (function) {
    case Mufu::kEx2:
      return numerics::from_float(static_cast<float>(std::exp2(wide)));
    case Mufu::kRcp:
      return numerics::from_float(static_cast<float>(1 / wide));
    case Mufu::kRsqrt:
      return numerics::from_float(static_cast<float>(1 / std::sqrt(wide)));
    case Mufu::kLg2:
      return numerics::from_float(static_cast<float>(std::log2(wide)));
    case Mufu::kTanh:
      return numerics::from_float(static_cast<float>(std::tanh(wide)));
  }
  return x;
}

F32 correctly_rounded_ftz(Mufu function, F32 x) {
  return numerics::flush_subnormal(correctly_rounded(function, numerics::flush_subnormal(x)));
}

using Function = F32 (*)(F32);

// The same function as the compiler spells it without .ftz; null where there is no such form.
Function compiler_form(Mufu function) {
  switch (function) {
    case Mufu::kEx2:
      return [](F32 x) { return numerics::ex2_approx(x); };
    case Mufu::kRcp:
      return [](F32 x) { return numerics::rcp_approx(x); };
    case Mufu::kRsqrt:
      return [](F32 x) { return numerics::rsqrt_approx(x); };
    case Mufu::kLg2:
      return [](F32 x) { return numerics::lg2_approx(x); };
    case Mufu::kTanh:
      break;
  }
  return nullptr;
}

bool is_function(const TensorView& x, const TensorView& y, bool any_nan,
                 const std::function<F32(F32)>& function) {
  const Elements<F32> in(x.bytes), out(y.bytes);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const F32 want = function(in[i]);
    const bool both_nan = any_nan && numerics::is_nan(want) && numerics::is_nan(out[i]);
    if (!both_nan && !same_bits(want, out[i])) return false;
  }
  return true;
}

std::vector<GoldenRule> rules_of(const GoldenInput& in, const TensorFile& got) {
  const auto problem = read_problem(in);
  const auto found = got.tensor("y");
  CONTRACT(problem.has_value() && found.has_value(), "the comparison has read them");
  const TensorView x = problem->x, y = *found;
  const Mufu own = problem->function;
  std::vector<GoldenRule> rules;
  const auto add = [&](std::string sentence, bool any_nan, std::function<F32(F32)> function) {
    rules.push_back({std::move(sentence), [x, y, any_nan, function = std::move(function)] {
                       return is_function(x, y, any_nan, function);
                     }});
  };
  add("fits instead: the correctly rounded function (a library's, not the hardware's), NaN of any "
      "bits",
      true, [own](F32 v) { return correctly_rounded(own, v); });
  add("fits instead: the correctly rounded function with subnormals flushed, NaN of any bits", true,
      [own](F32 v) { return correctly_rounded_ftz(own, v); });
  if (const Function form = compiler_form(own)) {
    add(fmt::format("fits instead: {}.approx.f32 without .ftz, as the compiler builds it",
                    numerics::mufu_name(own)),
        false, form);
  }
  if (own == Mufu::kEx2)
    add("fits instead: the degree-3 polynomial exponential", false,
        [](F32 v) { return numerics::ex2_polynomial(v); });
  for (const Mufu other : {Mufu::kEx2, Mufu::kRcp, Mufu::kRsqrt, Mufu::kLg2, Mufu::kTanh}) {
    if (other == own) continue;
    add(fmt::format("function {} fits instead", numerics::mufu_name(other)), false,
        [other](F32 v) { return numerics::mufu(other, v); });
  }
  return rules;
}

}  // namespace

GoldenOp mufu_op() {
  GoldenOp op;
  op.name = "mufu";
  op.parameters = {{"function", "ex2, rcp, rsqrt, lg2 and tanh", true}};
  op.inputs = {"x"};
  op.legal = legal;
  op.rules = rules_of;
  return op;
}

}  // namespace assay::verify
