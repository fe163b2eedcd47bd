// assay golden attention: output, LSE and decisions of one attention call by a named profile. The
// bits are model/attention, the verdict verify/attention/judge.hpp, what a file holds
// attention_input.hpp; this file decides names and shapes of outputs and how a verdict is told
// (SPEC VER-21.8 to VER-21.10).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "model/core/text.hpp"
#include "verify/attention/judge.hpp"
#include "verify/attention/subject.hpp"
#include "verify/golden/attention_input.hpp"
#include "verify/golden/golden.hpp"

namespace assay::verify {

using namespace assay::attention;

namespace {

// A decision takes a byte and its margin four: 5 GiB in all.
constexpr std::uint64_t kCellsMax = std::uint64_t{1} << 30;
constexpr std::size_t kTiesTold = 4;

int all_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

std::string_view lse_name(LseForm form) { return form == LseForm::kLn ? "lse_ln" : "lse_log2"; }

std::string rule_of(const Resolved& r) {
  return fmt::format("profile {}, {}", r.profile->name, r.profile->covers);
}

std::string source_of(const Resolved& r) {
  return fmt::format("{}; assay profiles --profile {} has each field's",
                     evidence_name(r.profile->evidence), r.profile->name);
}

// What decisions are about, for the metadata: "assay.unit_rows" and so on.
std::vector<std::pair<std::string, std::string>> unit_metadata(const Resolved& r) {
  return {{"assay.unit_rows", std::to_string(r.tile.unit_rows)},
          {"assay.kv_tile", std::to_string(r.tile.kv_tile)},
          {"assay.unit_packing", r.skip.packing == Packing::kHeadRows ? "head_rows" : "group_rows"},
          {"assay.zeroing_rows", std::to_string(r.skip.zeroing_rows)}};
}

Shape with(Shape shape, std::initializer_list<std::uint64_t> more) {
  shape.insert(shape.end(), more.begin(), more.end());
  return shape;
}

// --- golden --------------------------------------------------------------------------------------

// Before anything is computed: an upper bound of [b, unit head, unit, tile].
Status check_cells(const Problem& p, const Emulator& emulator) {
  std::array<std::uint64_t, 3> extents{p.requests.size(), 0, 0};
  for (const Unit& unit : emulator.units()) {
    extents[1] = std::max(extents[1], static_cast<std::uint64_t>(unit.head) + 1);
    extents[2] = std::max(extents[2], static_cast<std::uint64_t>(unit.index) + 1);
  }
  const TileShape& tile = emulator.resolved().tile;
  std::int64_t keys = 0;  // those that a diagonal passes beyond kv_len included
  for (const Request& r : p.requests)
    keys = std::max({keys, std::int64_t{r.kv_len},
                     std::int64_t{r.q_len} + r.q_offset + tile.unit_rows * tile.schedule_units});
  const std::uint64_t tiles = static_cast<std::uint64_t>(keys / tile.kv_tile) + 1;
  std::uint64_t cells = tiles;
  for (const std::uint64_t extent : extents) {
    if (extent != 0 && cells > kCellsMax / extent)
      return unsupported(fmt::format(
          "decision would have more than {} cells: {} requests, {} heads, {} units, {} tiles",
          kCellsMax, extents[0], extents[1], extents[2], tiles));
    cells *= extent;
  }
  return Done{};
}

// Rows of requests go to their place in [b, lq] or [total]; the others are zero and not compared.
template <class T>
std::vector<std::byte> placed(const FileInput& input, const std::vector<T>& packed,
                              std::size_t per_row) {
  std::vector<std::byte> bytes(input.rows() * per_row * sizeof(T));
  std::size_t from = 0;
  for (std::size_t i = 0; i < input.problem.requests.size(); ++i) {
    const std::size_t count = static_cast<std::size_t>(input.problem.requests[i].q_len) * per_row;
    if (count > 0)
      std::memcpy(bytes.data() + input.first_row[i] * per_row * sizeof(T), packed.data() + from,
                  count * sizeof(T));
    from += count;
  }
  return bytes;
}

// Margins of tiles that were asked, in log2 units; 0 for others.
std::vector<float> margins(const Emulator& emulator, const Emulation& emulation,
                           const DecisionMap& map) {
  std::vector<float> values(map.cells.size(), 0.0f);
  for (std::size_t i = 0; i < emulation.units.size(); ++i) {
    const Unit& unit = emulator.units()[i];
    const std::size_t row = (unit.request * static_cast<std::size_t>(map.extents[1]) +
                             static_cast<std::size_t>(unit.head)) *
                                static_cast<std::size_t>(map.extents[2]) +
                            static_cast<std::size_t>(unit.index);
    for (const TileTrace& tile : emulation.units[i].tiles) {
      if (tile.asked)
        values[row * static_cast<std::size_t>(map.extents[3]) +
               static_cast<std::size_t>(tile.tile)] = tile.margin_log2;
    }
  }
  return values;
}

// A golden file checks itself (SPEC VER-7.2). Where bits are known that is so by construction; at a
// weaker grade its check holds it against the truth, and what that cannot judge is not written.
Status check_itself(const Profile& profile, const Problem& p, const Emulator& emulator,
                    const Emulation& result, const DecisionMap& map) {
  if (judges_bits(emulator.resolved().grade) || result.out.empty()) return Done{};
  AttentionJudgeOptions options;
  options.threads = all_threads();
  options.explain = false;
  ASSAY_TRY(const AttentionJudgement judged,
            judge_attention(profile, p, {result.out, result.lse, &map}, options));
  const std::string what = fmt::format(
      "profile {} is of grade {}, and the file could not check "
      "itself",
      profile.name, grade_name(judged.grade));
  if (judged.too_large && judged.too_large->scale_limit > 0)
    return bad_input(fmt::format(
        "scale is {}: scores reach {:.3g}, so that the bound of outputs is as wide as "
        "the values; {}; "
        "for these tensors allowed are scales up to about {:.2g}",
        real_text(p.scale), judged.too_large->largest, what, judged.too_large->scale_limit));
  if (!judged.mismatches.empty())
    return unsupported(fmt::format("{}: {}", what, judged.mismatches.front().sentence));
  if (judged.verdict == AttentionVerdict::kNotJudged)
    return unsupported(fmt::format("{}: {}", what, judged.reason));
  return Done{};
}

Expected<GoldenAnswer> legal(const GoldenInput& in, const TensorFile*) {
  ASSAY_TRY(const Profile* profile, find_profile(in.text("profile")));
  ASSAY_TRY(const auto input, read_attention(in));
  const Problem& p = input->problem;
  ASSAY_TRY(const Emulator emulator, Emulator::make(*profile, p));
  ASSAY_CHECK(check_cells(p, emulator));
  ASSAY_TRY(const Emulation result, emulate(*profile, p, {all_threads()}));
  const Resolved& r = emulator.resolved();
  const DecisionMap map = decision_map(emulator, result);
  if (const Status sound = check_itself(*profile, p, emulator, result, map); !sound)
    return sound.error().within(in.file->path());
  GoldenAnswer answer;
  answer.rule = rule_of(r);
  answer.grade = r.grade;
  answer.source = source_of(r);
  answer.metadata = unit_metadata(r);
  const auto heads = static_cast<std::uint64_t>(p.q_heads),
             dim = static_cast<std::uint64_t>(p.v_dim);
  GoldenTensor out{.name = "out", .dtype = p.out_dtype};
  out.shape = with(input->rows_shape, {heads, dim});
  out.bytes = placed(*input, result.out, heads * dim);
  answer.tensors.push_back(std::move(out));
  if (r.softmax.lse != LseForm::kNone) {
    GoldenTensor lse{.name = std::string(lse_name(r.softmax.lse)), .dtype = Dtype::kF32};
    lse.shape = with(input->rows_shape, {heads});
    lse.bytes = placed(*input, result.lse, heads);
    answer.tensors.push_back(std::move(lse));
    answer.metadata.emplace_back("assay.lse", r.skip.dense_only ? "dense" : "pruned");
  }
  GoldenTensor decision{.name = "decision", .dtype = Dtype::kU8};
  for (const int extent : map.extents) decision.shape.push_back(static_cast<std::uint64_t>(extent));
  decision.bytes = bytes_of(std::span<const std::uint8_t>(map.cells));
  GoldenTensor margin{.name = "margin", .dtype = Dtype::kF32, .shape = decision.shape};
  margin.bytes = bytes_of(std::span<const float>(margins(emulator, result, map)));
  answer.tensors.push_back(std::move(decision));
  answer.tensors.push_back(std::move(margin));
  return answer;
}

// --- check ---------------------------------------------------------------------------------------

// The outputs of a file, as the judge takes them.
struct Got {
  std::vector<std::uint16_t> out;
  std::vector<F32> lse;
  DecisionMap decision;
  bool has_decision = false;
};

template <class T>
std::vector<T> gathered(const FileInput& input, const TensorView& view, std::size_t per_row) {
  std::vector<T> packed;
  for (std::size_t i = 0; i < input.problem.requests.size(); ++i) {
    const std::size_t count = static_cast<std::size_t>(input.problem.requests[i].q_len) * per_row;
    const std::size_t at = packed.size();
    packed.resize(at + count);
    if (count > 0)
      std::memcpy(&packed[at], view.bytes.data() + input.first_row[i] * per_row * sizeof(T),
                  count * sizeof(T));
  }
  return packed;
}

Status expect(const TensorFile& file, const TensorView& view, Dtype dtype, const Shape& shape) {
  if (view.dtype == dtype && view.shape == shape) return Done{};
  return bad_input(fmt::format("{}: tensor {} is {} {}; expected is {} {}", file.path(), view.name,
                               dtype_name(view.dtype), shape_text(view.shape), dtype_name(dtype),
                               shape_text(shape)));
}

// Decisions about other units than the profile's cannot be compared.
Status check_unit_metadata(const TensorFile& got, const Resolved& r) {
  for (const auto& [key, value] : unit_metadata(r)) {
    const auto has = got.metadata(key);
    if (has && *has != value)
      return bad_input(fmt::format("{}: its decision is for {} {}; the profile decides for {}",
                                   got.path(), key, in_quotes(*has), value));
  }
  return Done{};
}

Status read_decision(const TensorFile& file, const Emulator& emulator, Got& got) {
  ASSAY_TRY(const TensorView view, file.tensor("decision"));
  const Status shape = view.expect({Dtype::kU8}, {{"request"}, {"unit head"}, {"unit"}, {"tile"}});
  if (!shape) return shape.error().within(file.path());
  ASSAY_CHECK(check_unit_metadata(file, emulator.resolved()));
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (view.shape[axis] > kCellsMax)
      return bad_input(fmt::format("{}: tensor decision has shape {}; allowed are axes up to {}",
                                   file.path(), shape_text(view.shape), kCellsMax));
    got.decision.extents[axis] = static_cast<int>(view.shape[axis]);
  }
  got.decision.cells = Elements<std::uint8_t>(view.bytes).copy();
  got.has_decision = true;
  return Done{};
}

Expected<Got> read_got(const FileInput& input, const Emulator& emulator, const TensorFile& file) {
  const Problem& p = input.problem;
  const LseForm form = emulator.resolved().softmax.lse;
  const auto heads = static_cast<std::uint64_t>(p.q_heads),
             dim = static_cast<std::uint64_t>(p.v_dim);
  Got got;
  ASSAY_TRY(const TensorView out, file.tensor("out"));
  ASSAY_CHECK(expect(file, out, p.out_dtype, with(input.rows_shape, {heads, dim})));
  got.out = gathered<std::uint16_t>(input, out, heads * dim);
  if (form != LseForm::kNone && file.has(lse_name(form))) {
    ASSAY_TRY(const TensorView lse, file.tensor(lse_name(form)));
    ASSAY_CHECK(expect(file, lse, Dtype::kF32, with(input.rows_shape, {heads})));
    got.lse = gathered<F32>(input, lse, heads);
  }
  if (file.has("decision")) ASSAY_CHECK(read_decision(file, emulator, got));
  return got;
}

// What was given and not looked at.
void tell_ignored(const TensorFile& file, LseForm form, std::vector<std::string> ignored,
                  GoldenComparison& found) {
  for (const LseForm other : {LseForm::kLog2, LseForm::kLn}) {
    if (other != form && file.has(lse_name(other)))
      ignored.push_back(
          fmt::format("{} not judged: the profile does not write it", lse_name(other)));
  }
  if (!ignored.empty()) found.notes.emplace_back("left out", joined(ignored, "; "));
}

void tell_ties(const AttentionJudgement& judged, GoldenComparison& found) {
  if (judged.ties.empty()) return;
  found.reasons.push_back(
      fmt::format("{} near-tie decisions were taken the other way, which roundings can do:",
                  judged.ties.size()));
  for (std::size_t i = 0; i < std::min(judged.ties.size(), kTiesTold); ++i)
    found.reasons.push_back(tie_text(judged.ties[i]));
  if (judged.ties.size() > kTiesTold)
    found.reasons.push_back(fmt::format("and {} more", judged.ties.size() - kTiesTold));
}

// Outputs against the profile, told as a comparison. `path`: of the outputs, for errors.
Expected<GoldenComparison> judge(const Profile& profile, const FileInput& input,
                                 const Emulator& emulator, const AttentionOutputs& outputs,
                                 const std::string& path, bool explain,
                                 AttentionJudgement& judged) {
  AttentionJudgeOptions options;
  options.threads = all_threads();
  options.explain = explain;
  auto judgement = judge_attention(profile, input.problem, outputs, options);
  if (!judgement) return judgement.error().within(path);
  judged = *std::move(judgement);
  GoldenComparison found{.rule = rule_of(emulator.resolved()),
                         .grade = judged.grade,
                         .source = source_of(emulator.resolved())};
  found.mismatches = std::move(judged.mismatches);
  found.compared = std::move(judged.compared);
  found.unjudged = judged.reason;
  found.vacuous = outputs.out.empty() ? "there is no element to compare" : judged.vacuous;
  if (judged.verdict == AttentionVerdict::kEqualUpToTies)
    found.less_than_bits = "up to near-tie decisions";
  if (judged.verdict == AttentionVerdict::kWithinGrade)
    found.less_than_bits = "decisions, outputs within the bound";
  tell_ties(judged, found);
  // SPEC VER-21.9.
  found.notes.emplace_back("verdict", std::string(attention_verdict_name(judged.verdict)));
  const Counters& c = judged.counters;
  found.notes.emplace_back(
      "tiles", fmt::format("{} visited, {} asked, {} skipped, {} partly zeroed, "
                           "{} near-ties",
                           c.visited, c.asked, c.skipped, c.partly_zeroed, c.near_ties));
  return found;
}

Expected<GoldenComparison> compare(const GoldenInput& in, const TensorFile& file, bool explain) {
  ASSAY_TRY(const Profile* profile, find_profile(in.text("profile")));
  ASSAY_TRY(const auto input, read_attention(in));
  ASSAY_TRY(const Emulator emulator, Emulator::make(*profile, input->problem));
  ASSAY_TRY(const Got got, read_got(*input, emulator, file));
  AttentionJudgement judged;
  ASSAY_TRY(GoldenComparison found,
            judge(*profile, *input, emulator,
                  {got.out, got.lse, got.has_decision ? &got.decision : nullptr}, file.path(),
                  explain, judged));
  tell_ignored(file, emulator.resolved().softmax.lse, std::move(judged.notes), found);
  return found;
}

Mismatch wrong_run(std::string check, std::string sentence) {
  Mismatch mismatch;
  mismatch.check = std::move(check);
  mismatch.clause = "VER-22.4";
  mismatch.sentence = std::move(sentence);
  mismatch.unit = "calls";
  mismatch.wrong = mismatch.total = 1;
  return mismatch;
}

// SPEC VER-25.7.
Expected<GoldenComparison> compare_subject(const GoldenInput& in, const std::string& subject,
                                           bool explain) {
  ASSAY_TRY(const Profile* profile, find_profile(in.text("profile")));
  ASSAY_TRY(const auto input, read_attention(in));
  ASSAY_TRY(const Emulator emulator, Emulator::make(*profile, input->problem));
  ASSAY_TRY(const auto loaded, load_attention_subject(subject, std::nullopt, false));
  AttentionRun run = loaded->run(*profile, input->problem, all_threads());
  GoldenComparison found{.rule = rule_of(emulator.resolved()),
                         .grade = emulator.resolved().grade,
                         .source = source_of(emulator.resolved())};
  if (run.state == AttentionRun::State::kUnsupported) {
    found.unjudged = run.message;
    return found;
  }
  if (run.state == AttentionRun::State::kFailed) {
    found.mismatches.push_back(wrong_run("attention.run", "the subject failed: " + run.message));
    return found;
  }
  const AttentionAnswer& got = run.answer;
  AttentionJudgement judged;
  ASSAY_TRY(found, judge(*profile, *input, emulator,
                         {got.out, got.lse, got.decision ? &*got.decision : nullptr},
                         loaded->name(), explain, judged));
  const Counters& c = judged.counters;
  if (found.mismatches.empty() && judged.ties.empty() && got.visited && got.skipped) {
    found.compared.emplace_back("counters", 2);
    if (*got.visited != c.visited || *got.skipped != c.skipped)
      found.mismatches.push_back(wrong_run(
          "attention.counters",
          fmt::format("the counters say {} tiles visited and {} skipped; the profile visits {} "
                      "and skips {}",
                      *got.visited, *got.skipped, c.visited, c.skipped)));
  }
  return found;
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const Profile& profile : profiles()) names.emplace_back(profile.name);
  return names;
}

}  // namespace

GoldenOp attention_op() {
  static const std::string names = joined(profile_names());
  GoldenOp op;
  op.name = "attention";
  op.profile_key = "profile";
  op.parameters = attention_parameters(names);
  op.inputs = file_tensors();
  op.recorded_schema = "assay.capture";  // SPEC VER-21.12
  op.legal = legal;
  op.compare = compare;
  op.compare_subject = compare_subject;
  op.profiles = profile_names;
  return op;
}

}  // namespace assay::verify
