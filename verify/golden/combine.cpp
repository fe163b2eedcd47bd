// assay golden combine: the sum of each token's rows by a named profile. The bits are
// model/moe/combine.hpp; this file decides how rows are found in the file, and what a wrong output
// is tried against: other profiles, other orders of the terms (SPEC VER-7.3, VER-7.7).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "model/core/text.hpp"
#include "model/moe/buffer_sizes.hpp"
#include "model/moe/placement.hpp"
#include "model/moe/profile.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {
namespace {

using Rows = std::vector<const std::byte*>;  // per pick, null for a hole

struct Problem {
  const moe::CombineProfile* profile = nullptr;
  moe::CombineShape shape;
  std::uint64_t sources = 0;  // 0: rows [t, top_k, h] without an axis for sources
  std::uint64_t tokens = 0, top_k = 0, hidden = 0;
  std::vector<const std::byte*> rows;  // [sources * tokens, top_k]
  std::vector<std::int32_t> ranks;     // of each row, -1 for a hole

  std::uint64_t all_tokens() const { return std::max<std::uint64_t>(sources, 1) * tokens; }
  Rows rows_of(std::uint64_t token) const {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(token * top_k);
    return Rows(first, first + static_cast<std::ptrdiff_t>(top_k));
  }
};

Expected<moe::Dtype> row_dtype(const TensorView& view) {
  switch (view.dtype) {
    case Dtype::kBf16:
      return moe::Dtype::kBf16;
    case Dtype::kF16:
      return moe::Dtype::kF16;
    case Dtype::kF32:
      return moe::Dtype::kF32;
    case Dtype::kF8E4m3:
      return moe::Dtype::kE4m3;
    default:
      return bad_input(fmt::format("tensor {} is {}; allowed are BF16, F16, F32 and F8_E4M3",
                                   view.name, dtype_name(view.dtype)));
  }
}

Dtype file_dtype(moe::Dtype dtype) {
  switch (dtype) {
    case moe::Dtype::kBf16:
      return Dtype::kBf16;
    case moe::Dtype::kF16:
      return Dtype::kF16;
    case moe::Dtype::kF32:
      return Dtype::kF32;
    case moe::Dtype::kE4m3:
      return Dtype::kF8E4m3;
  }
  CONTRACT(false, static_cast<int>(dtype));
}

Status check_rank(const char* name, std::size_t i, std::int32_t rank, std::int64_t ep_size) {
  if (rank >= -1 && rank < ep_size) return Done{};
  return bad_input(
      fmt::format("{}[{}] is {}; allowed are -1 (no row) to {}", name, i, rank, ep_size - 1));
}

// rows [t, top_k, h] with target_rank [t, top_k].
Status read_rows(const GoldenInput& in, std::int64_t ep_size, Problem& p) {
  ASSAY_TRY(const TensorView rows, in.file->tensor("rows"));
  ASSAY_TRY(p.shape.dtype, row_dtype(rows));
  ASSAY_CHECK(rows.expect({rows.dtype}, {{"token"}, {"top_k"}, {"hidden"}}));
  p.tokens = rows.shape[0];
  p.top_k = rows.shape[1];
  p.hidden = rows.shape[2];
  ASSAY_TRY(const TensorView target, in.file->tensor("target_rank"));
  ASSAY_CHECK(target.expect({Dtype::kI32}, {{"token", p.tokens}, {"top_k", p.top_k}}));
  p.ranks = Elements<std::int32_t>(target.bytes).copy();
  const std::size_t bytes = p.hidden * static_cast<std::size_t>(dtype_bytes(p.shape.dtype));
  for (std::size_t i = 0; i < p.ranks.size(); ++i) {
    ASSAY_CHECK(check_rank("target_rank", i, p.ranks[i], ep_size));
    p.rows.push_back(p.ranks[i] < 0 ? nullptr : rows.bytes.data() + i * bytes);
  }
  return Done{};
}

// expert_out [dst, src, slot, h] with target_rank and target_slot [src, t, top_k].
Status read_expert_out(const GoldenInput& in, std::int64_t ep_size, Problem& p) {
  ASSAY_TRY(const TensorView out, in.file->tensor("expert_out"));
  ASSAY_TRY(p.shape.dtype, row_dtype(out));
  ASSAY_CHECK(out.expect({out.dtype}, {{"destination"}, {"source"}, {"slot"}, {"hidden"}}));
  const std::uint64_t ranks = out.shape[0];
  if (ranks != out.shape[1] || (in.has("ep_size") && static_cast<std::int64_t>(ranks) != ep_size))
    return bad_input(fmt::format(
        "tensor expert_out has shape {}; its first two axes are both the "
        "number of ranks{}",
        shape_text(out.shape), in.has("ep_size") ? ", ep_size " + in.text("ep_size") : ""));
  if (ranks < 1 || ranks > 256)
    return bad_input(fmt::format("tensor expert_out has {} ranks; allowed are 1 to 256", ranks));
  p.sources = ranks;
  p.hidden = out.shape[3];
  ASSAY_TRY(const TensorView rank, in.file->tensor("target_rank"));
  ASSAY_CHECK(rank.expect({Dtype::kI32}, {{"source", ranks}, {"token"}, {"top_k"}}));
  p.tokens = rank.shape[1];
  p.top_k = rank.shape[2];
  ASSAY_TRY(const TensorView slot, in.file->tensor("target_slot"));
  ASSAY_CHECK(
      slot.expect({Dtype::kI32}, {{"source", ranks}, {"token", p.tokens}, {"top_k", p.top_k}}));
  p.ranks = Elements<std::int32_t>(rank.bytes).copy();
  const Elements<std::int32_t> slots(slot.bytes);
  const std::uint64_t per_pair = out.shape[2];
  const std::size_t bytes = p.hidden * static_cast<std::size_t>(dtype_bytes(p.shape.dtype));
  for (std::size_t i = 0; i < p.ranks.size(); ++i) {
    ASSAY_CHECK(check_rank("target_rank", i, p.ranks[i], static_cast<std::int64_t>(ranks)));
    if (p.ranks[i] < 0) {
      p.rows.push_back(nullptr);
      continue;
    }
    if (slots[i] < 0 || static_cast<std::uint64_t>(slots[i]) >= per_pair)
      return bad_input(
          fmt::format("target_slot[{}] is {}; allowed are 0 to {} where target_rank "
                      "is not -1",
                      i, slots[i], static_cast<std::int64_t>(per_pair) - 1));
    const std::uint64_t src = i / (p.tokens * p.top_k);
    const std::uint64_t row = (static_cast<std::uint64_t>(p.ranks[i]) * ranks + src) * per_pair +
                              static_cast<std::uint64_t>(slots[i]);
    p.rows.push_back(out.bytes.data() + row * bytes);
  }
  return Done{};
}

Expected<Problem> read_problem(const GoldenInput& in) {
  Problem p;
  ASSAY_TRY(p.profile, moe::find_combine_profile(in.text("profile")));
  ASSAY_TRY(const auto low, in.integer<std::int32_t>("low_precision", 0, 1));
  p.shape.low_precision = low != 0;
  std::int64_t ep_size = moe::kMaxRanks;
  if (in.has("ep_size")) {
    ASSAY_TRY(ep_size, in.integer<std::int64_t>("ep_size", 1, moe::kMaxRanks));
  }
  if (in.has("num_experts")) {
    ASSAY_CHECK(in.integer<std::int32_t>("num_experts", 1, moe::kMaxExperts));
  }
  // No known combine weights rows or adds a bias: the experts do, before the wire (SPEC VER-7.3).
  for (const char* name : {"weights", "bias"}) {
    if (in.file->has(name))
      return unsupported(
          fmt::format("{} has {}, and profile {} adds rows as they are; without "
                      "that tensor its bits are known",
                      in.file->path(), name, p.profile->name));
  }
  if (in.file->has("rows") && in.file->has("expert_out"))
    return bad_input(fmt::format("{} has rows and expert_out; give one of them", in.file->path()));
  const Status read =
      in.file->has("expert_out") ? read_expert_out(in, ep_size, p) : read_rows(in, ep_size, p);
  if (!read) return read.error().within(in.file->path());
  p.shape.top_k = static_cast<std::int32_t>(std::min<std::uint64_t>(p.top_k, 1 << 20));
  if (p.hidden == 0 || p.hidden > static_cast<std::uint64_t>(moe::kMaxHiddenSize))
    return bad_input(fmt::format("{}: hidden is {}; allowed are 1 to {}", in.file->path(), p.hidden,
                                 moe::kMaxHiddenSize));
  return p;
}

std::size_t out_bytes(const Problem& p, const moe::Combine& combine) {
  return p.hidden * static_cast<std::size_t>(moe::dtype_bytes(combine.out_dtype()));
}

Expected<GoldenAnswer> legal(const GoldenInput& in, const TensorFile*) {
  ASSAY_TRY(const Problem p, read_problem(in));
  ASSAY_TRY(const moe::Combine combine, moe::Combine::make(p.profile->arithmetic, p.shape));
  const std::string_view own = moe::dtype_name(combine.out_dtype());
  if (in.has("out_dtype") && in.text("out_dtype") != own)
    return bad_input(
        fmt::format("out_dtype is {}; profile {} writes {} for such rows, allowed is "
                    "{}",
                    in_quotes(in.text("out_dtype")), p.profile->name, own, own));
  GoldenTensor out{.name = "out", .dtype = file_dtype(combine.out_dtype())};
  out.shape = {p.tokens, p.hidden};
  out.axes = {"token", "hidden"};
  if (p.sources > 0) {
    out.shape.insert(out.shape.begin(), p.sources);
    out.axes.insert(out.axes.begin(), "source");
  }
  const std::size_t bytes = out_bytes(p, combine);
  out.bytes.resize(p.all_tokens() * bytes);
  for (std::uint64_t token = 0; token < p.all_tokens(); ++token)
    combine.row(p.rows_of(token), static_cast<std::int64_t>(p.hidden),
                out.bytes.data() + token * bytes);
  out.format = element_format(out.dtype);
  out.clause = "MOE-3.1";
  GoldenAnswer answer;
  answer.tensors.push_back(std::move(out));
  answer.rule =
      fmt::format("profile {} ({}), {}", p.profile->name, p.profile->variant, p.profile->covers);
  answer.grade = static_cast<Grade>(p.profile->grade);
  answer.source = fmt::format("{}, MOE-3.9", evidence_name(p.profile->evidence));
  if (std::all_of(p.rows.begin(), p.rows.end(), [](auto row) { return row == nullptr; }))
    answer.vacuous = "no token has a row: every sum is of holes";
  return answer;
}

// --- which other rule fits ---------------------------------------------------------------------

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const moe::CombineProfile& profile : moe::combine_profiles())
    names.emplace_back(profile.name);
  return names;
}

using Change = std::function<void(Rows&)>;

// Every token's sum by `arithmetic`, its terms changed first, is what `got` holds.
bool fits(const Problem& p, const moe::CombineArithmetic& arithmetic, const Change& change,
          const TensorView& got) {
  const auto combine = moe::Combine::make(arithmetic, p.shape);
  if (!combine || file_dtype(combine->out_dtype()) != got.dtype) return false;
  std::vector<std::byte> out(out_bytes(p, *combine));
  for (std::uint64_t token = 0; token < p.all_tokens(); ++token) {
    Rows rows = p.rows_of(token);
    if (change) change(rows);
    combine->row(rows, static_cast<std::int64_t>(p.hidden), out.data());
    if (std::memcmp(out.data(), got.bytes.data() + token * out.size(), out.size()) != 0)
      return false;
  }
  return true;
}

std::vector<GoldenRule> rules_of(const GoldenInput& in, const TensorFile& got) {
  const auto read = read_problem(in);
  const auto out = got.tensor("out");
  CONTRACT(read.has_value() && out.has_value(), "the comparison has read them");
  const auto problem = std::make_shared<const Problem>(*read);
  std::vector<GoldenRule> rules;
  const auto add = [&](std::string sentence, moe::CombineArithmetic arithmetic, Change change,
                       int group = 0) {
    rules.push_back({std::move(sentence),
                     [problem, view = *out, arithmetic, change = std::move(change)] {
                       return fits(*problem, arithmetic, change, view);
                     },
                     group});
  };
  for (const moe::CombineProfile& profile : moe::combine_profiles()) {
    if (profile.name != problem->profile->name)
      add(fmt::format("profile {} ({}) fits instead", profile.name, profile.variant),
          profile.arithmetic, {});
  }
  const moe::CombineArithmetic own = problem->profile->arithmetic;
  add("fits instead: every token's terms added in reverse", own,
      [](Rows& rows) { std::reverse(rows.begin(), rows.end()); });
  // Other swaps follow from the symmetry of the tree: one is told.
  for (std::size_t i = 0; i < problem->top_k; ++i) {
    for (std::size_t j = i + 1; j < problem->top_k; ++j)
      add(
          fmt::format("fits instead: terms {} and {} of every token swapped", i, j), own,
          [i, j](Rows& rows) { std::swap(rows[i], rows[j]); }, 1);
  }
  return rules;
}

// The terms of the first wrong element in the order of the tree, with partial sums.
void explain(const GoldenInput& in, Mismatch& mismatch) {
  const auto problem = read_problem(in);
  if (!problem) return;
  const auto combine = moe::Combine::make(problem->profile->arithmetic, problem->shape);
  const auto token = mismatch.coordinate("token"), hidden = mismatch.coordinate("hidden");
  if (!combine || !token || !hidden) return;
  const std::uint64_t at =
      static_cast<std::uint64_t>(mismatch.coordinate("source").value_or(0)) * problem->tokens +
      static_cast<std::uint64_t>(*token);
  const Rows rows = problem->rows_of(at);
  mismatch.term_format = format_of(problem->shape.dtype);
  std::int32_t valid = 0;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    Term term;
    term.k = static_cast<std::int32_t>(k);
    if (rows[k] != nullptr) {
      ++valid;
      term.rank = problem->ranks[at * problem->top_k + k];
      term.bits = load_element(mismatch.term_format, rows[k], *hidden);
    }
    mismatch.terms.push_back(term);
  }
  const moe::CombineArithmetic& arithmetic = problem->profile->arithmetic;
  const bool compact = arithmetic.trees == moe::TreeTable::kCompact;
  const auto order =
      moe::tree_text(arithmetic.trees, compact ? valid : static_cast<std::int32_t>(rows.size()));
  mismatch.order = order.value_or("");
  for (const moe::SumStep& step : combine->explain(rows, *hidden))
    if (step.what == moe::SumStep::What::kSum) mismatch.sums.push_back(step.value.bits);
}

}  // namespace

GoldenOp combine_op() {
  static const std::string names = joined(profile_names());
  GoldenOp op;
  op.name = "combine";
  op.profile_key = "profile";
  op.parameters = {{"profile", names, true},
                   {"ep_size", "1 to 256", false, std::nullopt, ParameterForm::kInteger},
                   {"num_experts", "1 to 32768", false, std::nullopt, ParameterForm::kInteger},
                   {"low_precision", "0 and 1", false, "0", ParameterForm::kFlag},
                   {"out_dtype", "bf16, f16 and f32"}};
  op.inputs = {"rows", "expert_out", "target_rank", "target_slot"};
  op.legal = legal;
  op.rules = rules_of;
  op.profiles = profile_names;
  op.explain = explain;
  return op;
}

}  // namespace assay::verify
