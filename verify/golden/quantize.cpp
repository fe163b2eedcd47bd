// assay golden quantize: a matrix to narrow elements with a scale per block, by a named recipe. The
// bits are model/numerics/quantize; this file decides the shapes of y and scale, and that every
// other recipe is tried on a wrong output.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "model/core/text.hpp"
#include "model/numerics/quantize/quantize.hpp"
#include "verify/golden/compare.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {
namespace {

namespace quantize = numerics::quantize;
using quantize::Recipe;
using quantize::ScaleLayout;

constexpr std::pair<std::string_view, ScaleLayout> kLayouts[] = {
    {"linear", ScaleLayout::kLinear}, {"128x4", ScaleLayout::k128x4}, {"8x4", ScaleLayout::k8x4}};
constexpr std::string_view kLayoutNames = "linear, 128x4 and 8x4";

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : quantize::recipes()) names.emplace_back(recipe.name);
  return names;
}

struct Problem {
  const Recipe* recipe = nullptr;
  ScaleLayout layout = ScaleLayout::kLinear;
  TensorView x;
  std::size_t rows = 1, columns = 1;
  std::optional<F32> global_scale;
};

Expected<Problem> read_problem(const GoldenInput& in) {
  Problem p;
  p.recipe = quantize::find_recipe(in.text("recipe"));
  if (p.recipe == nullptr)
    return bad_input(fmt::format("recipe is {}; allowed are {}", in_quotes(in.text("recipe")),
                                 joined(recipe_names())));
  bool known = false;
  for (const auto& [name, layout] : kLayouts) {
    if (name != in.text("scale_layout")) continue;
    p.layout = layout;
    known = true;
  }
  if (!known)
    return bad_input(fmt::format("scale_layout is {}; allowed are {}",
                                 in_quotes(in.text("scale_layout")), kLayoutNames));
  ASSAY_TRY(p.x, in.file->tensor("x"));
  const bool has_dtype =
      p.x.dtype == Dtype::kF32 || p.x.dtype == Dtype::kF16 || p.x.dtype == Dtype::kBf16;
  if (!has_dtype || p.x.shape.empty())
    return bad_input(
        fmt::format("{}: tensor x is {} {}; allowed are F32, F16 and BF16 with an "
                    "axis at least",
                    in.file->path(), dtype_name(p.x.dtype), shape_text(p.x.shape)));
  p.columns = p.x.shape.back();
  for (std::size_t i = 0; i + 1 < p.x.shape.size(); ++i) p.rows *= p.x.shape[i];
  if (in.file->has("global_scale")) {
    ASSAY_TRY(const TensorView scale, in.file->tensor("global_scale"));
    ASSAY_TRY(const auto value, scale.as<F32>());
    if (value.size() != 1)
      return bad_input(fmt::format("{}: global_scale has shape {}; it is one number",
                                   in.file->path(), shape_text(scale.shape)));
    p.global_scale = value[0];
  }
  return p;
}

template <class T>
Expected<quantize::Quantized> run(const Problem& p, const Recipe& recipe, ScaleLayout layout) {
  const std::vector<T> values = Elements<T>(p.x.bytes).copy();
  const quantize::Source source{p.rows, p.columns, std::span<const T>(values)};
  return quantize::quantize(recipe, source, layout, p.global_scale);
}

Expected<GoldenAnswer> compute(const Problem& p, const Recipe& recipe, ScaleLayout layout) {
  auto result = p.x.dtype == Dtype::kF32   ? run<F32>(p, recipe, layout)
                : p.x.dtype == Dtype::kF16 ? run<F16>(p, recipe, layout)
                                           : run<Bf16>(p, recipe, layout);
  if (!result) return result.error();
  const quantize::Quantized& q = *result;
  GoldenTensor y{.name = "y", .shape = p.x.shape};
  y.dtype = recipe.element == quantize::Element::kE4m3   ? Dtype::kF8E4m3
            : recipe.element == quantize::Element::kE5m2 ? Dtype::kF8E5m2
                                                         : Dtype::kF4;
  y.bytes = bytes_of(std::span<const std::uint8_t>(q.elements));
  y.format = element_format(y.dtype);
  y.axes = plain_axes(y.shape.size());
  y.clause = "NUM-6.10";
  GoldenTensor scale{.name = "scale"};
  scale.dtype = recipe.scale_format == quantize::ScaleFormat::kF32     ? Dtype::kF32
                : recipe.scale_format == quantize::ScaleFormat::kUe8m0 ? Dtype::kF8E8m0
                                                                       : Dtype::kF8E4m3;
  scale.bytes = bytes_of(std::span<const std::uint8_t>(q.scales));
  scale.format = element_format(scale.dtype);
  scale.clause = "NUM-6.3";
  scale.only_size = layout != ScaleLayout::kLinear;
  if (layout == ScaleLayout::kLinear) {
    scale.shape = p.x.shape;
    scale.shape.back() = q.grid.blocks;
    scale.axes = scale.shape.size() == 2 ? std::vector<std::string>{"row", "block"}
                                         : plain_axes(scale.shape.size());
  } else {
    // Padding exists to fill tiles; kernels need not write it (SPEC NUM-6.3).
    scale.shape = {q.grid.count()};
    scale.compared.assign(q.grid.count(), 0);
    auto place = std::make_shared<std::vector<std::uint64_t>>(q.grid.count());
    for (std::size_t row = 0; row < q.grid.rows; ++row) {
      for (std::size_t block = 0; block < q.grid.blocks; ++block) {
        scale.compared[q.grid.offset(row, block)] = 1;
        (*place)[q.grid.offset(row, block)] = row * q.grid.blocks + block;
      }
    }
    scale.where = [place, blocks = q.grid.blocks](std::uint64_t i) {
      const std::uint64_t at = (*place)[i];
      return std::vector<Coordinate>{{"row", static_cast<std::int64_t>(at / blocks)},
                                     {"block", static_cast<std::int64_t>(at % blocks)},
                                     {"offset", static_cast<std::int64_t>(i)}};
    };
  }
  GoldenAnswer answer;
  answer.rule = fmt::format("recipe {}", recipe.name);
  // The scale speaks first: with a wrong one, wrong elements follow.
  answer.tensors.push_back(std::move(scale));
  answer.tensors.push_back(std::move(y));
  answer.grade = static_cast<Grade>(recipe.grade);
  answer.source = std::string(recipe.source);
  return answer;
}

Expected<GoldenAnswer> legal(const GoldenInput& in, const TensorFile*) {
  ASSAY_TRY(const Problem p, read_problem(in));
  auto answer = compute(p, *p.recipe, p.layout);
  if (!answer) return answer.error().within(in.file->path());
  return answer;
}

// A recipe for another element or scale format cannot have made these tensors, and one that wants
// or lacks the global scale is refused: neither fits.
std::vector<GoldenRule> rules_of(const GoldenInput& in, const TensorFile& got) {
  const auto problem = read_problem(in);
  CONTRACT(problem.has_value(), "the comparison has read it");
  std::vector<GoldenRule> rules;
  const auto add = [&](std::string sentence, const Recipe& recipe, ScaleLayout layout) {
    rules.push_back({std::move(sentence), [p = *problem, &recipe, layout, &got] {
                       const auto answer = compute(p, recipe, layout);
                       return answer && agrees(*answer, got);
                     }});
  };
  for (const Recipe& recipe : quantize::recipes()) {
    if (&recipe != problem->recipe)
      add(fmt::format("recipe {} fits instead", recipe.name), recipe, problem->layout);
  }
  for (const auto& [name, layout] : kLayouts) {
    if (layout != problem->layout)
      add(fmt::format("fits instead: the scales in layout {}", name), *problem->recipe, layout);
  }
  return rules;
}

}  // namespace

GoldenOp quantize_op() {
  static const std::string names = joined(recipe_names());
  GoldenOp op;
  op.name = "quantize";
  op.profile_key = "recipe";
  op.parameters = {{"recipe", names, true}, {"scale_layout", kLayoutNames, false, "linear"}};
  op.inputs = {"x", "global_scale"};
  op.legal = legal;
  op.rules = rules_of;
  op.profiles = recipe_names;
  return op;
}

}  // namespace assay::verify
