// assay golden mma: tiles of a matrix instruction. What it computes is the table and the algorithm
// of model/numerics/tensor_core; this file decides the tensors' names, and which other rules a
// wrong tile is tried against (SPEC VER-7.7).
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "model/core/text.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {
namespace {

using numerics::Instruction;
using numerics::OperandFormat;
using Sizes = std::vector<Axis>;

struct Problem {
  const Instruction* instruction = nullptr;
  int tiles = 0, m = 0, n = 0, k = 0;
  TensorView a, b, c;
  std::optional<TensorView> scale_a, scale_b;
};

// One way to compute the tiles: the instruction's own, or a deviation.
struct Way {
  Instruction instruction;
  numerics::Promotion promotion;
  bool highest_k_first = false;
};

constexpr std::uint64_t kAxisMax = 1 << 24;  // indices of a tile are ints

Status check_operand(OperandFormat format, const TensorView& view,
                     std::initializer_list<Axis> axes) {
  switch (format) {
    case OperandFormat::kF16:
      return view.expect({Dtype::kF16}, axes);
    case OperandFormat::kBf16:
      return view.expect({Dtype::kBf16}, axes);
    case OperandFormat::kTf32:
      return view.expect({Dtype::kF32}, axes);
    case OperandFormat::kE4m3:
      return view.expect({Dtype::kF8E4m3}, axes);
    case OperandFormat::kE5m2:
      return view.expect({Dtype::kF8E5m2}, axes);
    case OperandFormat::kE2m1:  // packed, or one element in the low bits of a byte
      return view.expect({Dtype::kF4, Dtype::kU8}, axes);
    case OperandFormat::kE3m2:
    case OperandFormat::kE2m3:
      return view.expect({Dtype::kU8}, axes);
  }
  return Done{};
}

Expected<std::optional<TensorView>> read_scale(const GoldenInput& in, const Problem& p,
                                               const char* name, std::uint64_t rows) {
  const numerics::Rule& rule = p.instruction->arithmetic.rule;
  if (rule.scale == numerics::ScaleFormat::kNone) {
    if (in.file->has(name))
      return bad_input(fmt::format("{} has {}; {} takes no scales", in.file->path(), name,
                                   p.instruction->name()));
    return std::optional<TensorView>{};
  }
  ASSAY_TRY(const TensorView scale, in.file->tensor(name));
  const auto blocks = static_cast<std::uint64_t>(p.k / rule.scale_block);
  const Dtype own = rule.scale == numerics::ScaleFormat::kUe8m0 ? Dtype::kF8E8m0 : Dtype::kF8E4m3;
  ASSAY_CHECK(scale.expect(
      {own, Dtype::kU8},
      {{"tile", static_cast<std::uint64_t>(p.tiles)}, {"row", rows}, {"k block", blocks}}));
  return std::optional<TensorView>{scale};
}

Expected<Problem> read_problem(const GoldenInput& in) {
  Problem p;
  ASSAY_TRY(const numerics::Arch arch, numerics::parse_arch(in.text("arch")));
  ASSAY_TRY(p.instruction, numerics::require_instruction(in.text("instruction"), arch));
  ASSAY_TRY(p.a, in.file->tensor("a"));
  ASSAY_TRY(p.b, in.file->tensor("b"));
  ASSAY_TRY(p.c, in.file->tensor("c"));
  const numerics::Rule& rule = p.instruction->arithmetic.rule;
  ASSAY_CHECK(check_operand(rule.a, p.a, {{"tile"}, {"m"}, {"k"}}));
  const std::uint64_t tiles = p.a.shape[0], m = p.a.shape[1], k = p.a.shape[2];
  ASSAY_CHECK(check_operand(rule.b, p.b, {{"tile", tiles}, {"n"}, {"k", k}}));
  const std::uint64_t n = p.b.shape[1];
  ASSAY_CHECK(p.c.expect({Dtype::kF32}, {{"tile", tiles}, {"m", m}, {"n", n}}));
  for (const std::uint64_t size : {tiles, m, n, k}) {
    if (size > kAxisMax)
      return bad_input(fmt::format("{}: an axis of a or b is {}; allowed are up to {}",
                                   in.file->path(), size, kAxisMax));
  }
  p.tiles = static_cast<int>(tiles);
  p.m = static_cast<int>(m);
  p.n = static_cast<int>(n);
  p.k = static_cast<int>(k);
  if (p.k == 0 || p.k % p.instruction->arithmetic.k != 0)
    return bad_input(fmt::format("{}: k is {}; allowed are multiples of {}, the k of {}",
                                 in.file->path(), p.k, p.instruction->arithmetic.k,
                                 p.instruction->name()));
  ASSAY_TRY(p.scale_a, read_scale(in, p, "scale_a", m));
  ASSAY_TRY(p.scale_b, read_scale(in, p, "scale_b", n));
  return p;
}

// Operand bits of one tile, one T each.
template <class T>
std::vector<T> tile_operand(const TensorView& view, int tile, int rows, int k, int chain_k) {
  const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(k);
  const std::size_t first = static_cast<std::size_t>(tile) * count;
  std::vector<T> values(count);
  if (view.dtype == Dtype::kF4) {
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<T>(
          load_element(ElementFormat::kE2m1, view.bytes.data(), static_cast<int64_t>(first + i)));
  } else if (count > 0) {
    std::memcpy(values.data(), view.bytes.data() + first * sizeof(T), count * sizeof(T));
  }
  if (chain_k == 0) return values;
  // The instructions of a chain in reverse: blocks of chain_k, the last one first.
  std::vector<T> reversed(count);
  for (int row = 0; row < rows; ++row) {
    for (int at = 0; at < k; ++at) {
      const int from = (k / chain_k - 1 - at / chain_k) * chain_k + at % chain_k;
      reversed[static_cast<std::size_t>(row * k + at)] =
          values[static_cast<std::size_t>(row * k + from)];
    }
  }
  return reversed;
}

std::vector<std::uint8_t> tile_scale(const std::optional<TensorView>& view, int tile) {
  if (!view) return {};
  const std::size_t count = static_cast<std::size_t>(view->shape[1] * view->shape[2]);
  std::vector<std::uint8_t> codes(count);
  if (count > 0)
    std::memcpy(codes.data(), view->bytes.data() + static_cast<std::size_t>(tile) * count, count);
  return codes;
}

template <class T>
Expected<std::vector<F32>> run_tile(const Problem& p, const Way& way, int tile) {
  const int chain_k = way.highest_k_first ? way.instruction.arithmetic.k : 0;
  const std::vector<T> a = tile_operand<T>(p.a, tile, p.m, p.k, chain_k);
  const std::vector<T> b = tile_operand<T>(p.b, tile, p.n, p.k, chain_k);
  const std::vector<std::uint8_t> scale_a = tile_scale(p.scale_a, tile);
  const std::vector<std::uint8_t> scale_b = tile_scale(p.scale_b, tile);
  const std::size_t count = static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n);
  std::vector<F32> c(count), d(count);
  if (count == 0) return d;
  std::memcpy(c.data(), p.c.bytes.data() + static_cast<std::size_t>(tile) * count * 4, count * 4);
  numerics::MmaProblem<T> problem;
  problem.m = p.m;
  problem.n = p.n;
  problem.k = p.k;
  problem.a = a.data();
  problem.b = b.data();
  problem.c = c.data();
  problem.d = d.data();
  if (p.scale_a) problem.scale_a = scale_a.data();
  if (p.scale_b) problem.scale_b = scale_b.data();
  problem.promotion = way.promotion;
  const Status done = numerics::mma(way.instruction, problem);
  if (!done) return done.error().within(fmt::format("tile {}", tile));
  return d;
}

Expected<std::vector<F32>> compute_tile(const Problem& p, const Way& way, int tile) {
  switch (p.instruction->arithmetic.rule.a) {
    case OperandFormat::kTf32:
      return run_tile<std::uint32_t>(p, way, tile);
    case OperandFormat::kF16:
    case OperandFormat::kBf16:
      return run_tile<std::uint16_t>(p, way, tile);
    default:
      return run_tile<std::uint8_t>(p, way, tile);
  }
}

Expected<GoldenAnswer> legal(const GoldenInput& in, const TensorFile*) {
  ASSAY_TRY(const Problem p, read_problem(in));
  GoldenAnswer answer;
  GoldenTensor d{.name = "d", .dtype = Dtype::kF32};
  d.shape = {p.a.shape[0], p.a.shape[1], p.b.shape[1]};
  d.format = ElementFormat::kF32;
  d.axes = {"tile", "row", "column"};
  d.clause = "NUM-4.1";
  for (int tile = 0; tile < p.tiles; ++tile) {
    ASSAY_TRY(const auto values, compute_tile(p, {*p.instruction, {}, false}, tile));
    const auto bytes = std::as_bytes(std::span(values));
    d.bytes.insert(d.bytes.end(), bytes.begin(), bytes.end());
  }
  answer.tensors.push_back(std::move(d));
  answer.rule =
      fmt::format("{} on {}", p.instruction->name(), numerics::arch_name(p.instruction->arch));
  answer.grade = p.instruction->grade;
  answer.source =
      fmt::format("{}, {}", evidence_name(p.instruction->evidence), p.instruction->source);
  return answer;
}

// --- which other rule fits ---------------------------------------------------------------------

bool same_arithmetic(const numerics::Arithmetic& x, const numerics::Arithmetic& y) {
  const numerics::Rule &a = x.rule, &b = y.rule;
  return x.k == y.k && x.lowering == y.lowering && a.output == b.output &&
         a.products == b.products && a.fraction_bits == b.fraction_bits &&
         a.zero_exponent == b.zero_exponent && a.scale == b.scale &&
         a.scale_block == b.scale_block && a.group == b.group && a.rounding == b.rounding;
}

bool tiles_are(const Problem& p, const Way& way, const TensorView& got) {
  const std::size_t bytes = static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n) * 4;
  for (int tile = 0; tile < p.tiles; ++tile) {
    const auto values = compute_tile(p, way, tile);
    if (!values) return false;
    if (std::memcmp(values->data(), got.bytes.data() + static_cast<std::size_t>(tile) * bytes,
                    bytes) != 0)
      return false;
  }
  return true;
}

class Rules {
 public:
  Rules(Problem problem, TensorView got)
      : problem_(std::make_shared<Problem>(std::move(problem))), got_(got) {}

  void add(std::string sentence, Way way) {
    list.push_back({std::move(sentence), [problem = problem_, got = got_, way = std::move(way)] {
                      return tiles_are(*problem, way, got);
                    }});
  }
  // The instruction with its rule changed.
  template <class Change>
  void deviation(std::string sentence, Change change) {
    Way way{*problem_->instruction, {}, false};
    change(way.instruction.arithmetic.rule);
    add(std::move(sentence), std::move(way));
  }
  std::vector<GoldenRule> list;

 private:
  std::shared_ptr<Problem> problem_;
  TensorView got_;
};

void add_deviations(const Instruction& own, Rules& rules) {
  const numerics::Rule& rule = own.arithmetic.rule;
  for (const int step : {-2, -1, 1, 2}) {
    const int bits = rule.fraction_bits + step;
    rules.deviation(fmt::format("fits instead: {} fraction bits kept at the alignment (F {}), not "
                                "{}",
                                bits, bits, rule.fraction_bits),
                    [bits](numerics::Rule& r) { r.fraction_bits = bits; });
  }
  if (rule.rounding == numerics::Rounding::kTowardZero)
    rules.deviation("fits instead: results rounded to nearest even (RNE), not toward zero (RZ)",
                    [](numerics::Rule& r) { r.rounding = numerics::Rounding::kNearestEven; });
  else
    rules.deviation("fits instead: results rounded toward zero (RZ), not to nearest even (RNE)",
                    [](numerics::Rule& r) { r.rounding = numerics::Rounding::kTowardZero; });
  rules.deviation(
      "fits instead: terms aligned by a two's complement shift (floor), not by cutting "
      "the magnitude",
      [](numerics::Rule& r) { r.floor_alignment = true; });
  rules.deviation("fits instead: products of 2 or more renormalised before the alignment",
                  [](numerics::Rule& r) { r.renormalised_products = true; });
  rules.deviation("fits instead: c added late, by an ordinary f32 addition after the products",
                  [](numerics::Rule& r) { r.late_c = true; });
}

// Other instructions on the same operands, each arithmetic once.
void add_instructions(const Problem& p, Rules& rules) {
  const Instruction& own = *p.instruction;
  std::vector<const Instruction*> tried{&own};
  for (const Instruction& row : numerics::instructions()) {
    const numerics::Rule& rule = row.arithmetic.rule;
    if (rule.a != own.arithmetic.rule.a || rule.b != own.arithmetic.rule.b ||
        rule.scale != own.arithmetic.rule.scale ||
        rule.scale_block != own.arithmetic.rule.scale_block || p.k % row.arithmetic.k != 0)
      continue;
    bool known = false;
    for (const Instruction* earlier : tried)
      known |= same_arithmetic(earlier->arithmetic, row.arithmetic);
    if (known) continue;
    tried.push_back(&row);
    rules.add(
        fmt::format("instruction {} on {} fits instead", row.name(), numerics::arch_name(row.arch)),
        {row, {}, false});
  }
}

std::vector<GoldenRule> rules_of(const GoldenInput& in, const TensorFile& got) {
  const auto problem = read_problem(in);
  const auto d = got.tensor("d");
  CONTRACT(problem.has_value() && d.has_value(), "the comparison has read them");
  const Instruction& own = *problem->instruction;
  Rules rules(*problem, *d);
  add_deviations(own, rules);
  add_instructions(*problem, rules);
  const int k = own.arithmetic.k;
  if (problem->k > k && !problem->scale_a)
    rules.add("fits instead: the chain along k runs from the highest to the lowest",
              {own, {}, true});
  // After every single instruction it is a late c, which was tried.
  for (int interval = 2 * k; interval < problem->k; interval *= 2) {
    if (problem->k % interval != 0) continue;
    rules.add(fmt::format("fits instead: partial sums promoted to f32 after every {} of k (from "
                          "zero, added by an ordinary f32 addition)",
                          interval),
              {own, {interval, false}, false});
  }
  return rules.list;
}

}  // namespace

GoldenOp mma_op() {
  GoldenOp op;
  op.name = "mma";
  op.parameters = {
      {"instruction", "names like wgmma.m64n8k16.f32.bf16.bf16, short or in PTX's long form", true},
      {"arch", "sm_80, sm_89, sm_90a, sm_100a and sm_120", true}};
  op.inputs = {"a", "b", "c", "scale_a", "scale_b"};
  op.legal = legal;
  op.rules = rules_of;
  return op;
}

}  // namespace assay::verify
