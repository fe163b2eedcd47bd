// The two requests: write the legal output, compare one with it. See golden.hpp.
#include "verify/golden/golden.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "model/core/text.hpp"
#include "verify/golden/compare.hpp"
#include "verify/golden/request.hpp"

namespace assay::verify {
namespace {

bool reads(const GoldenOp& op, std::string_view tensor) {
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](std::string_view name) {
    return name.back() == '.' ? tensor.substr(0, name.size()) == name : tensor == name;
  });
}

Status check_not_any(const GoldenRequest& request) {
  if (request.profile != "any") return Done{};
  return bad_input("--profile any compares with every profile; golden computes by one, name it");
}

}  // namespace

std::string claim_of(Grade grade) {
  switch (grade) {
    case Grade::kBits:
      return "reproduced on hardware with zero differences";
    case Grade::kBitsClaimed:
      return "as its source says, not reproduced on hardware here: a mismatch can be ours";
    case Grade::kDecisions:
      return "only decisions are known, so no verdict about bits";
    case Grade::kValues:
      return "only an error bound is known, so no verdict about bits";
  }
  CONTRACT(false, static_cast<int>(grade));
}

bool judges_bits(Grade grade) { return grade == Grade::kBits || grade == Grade::kBitsClaimed; }

Expected<GoldenWritten> write_golden(const GoldenRequest& request, const std::string& out) {
  ASSAY_TRY(const GoldenOp* op, find_golden_op(request.op));
  ASSAY_CHECK(check_not_any(request));
  ASSAY_TRY(const TensorFile file, open_golden(request.in, *op));
  ASSAY_TRY(const GoldenInput in, read_parameters(*op, file, request.settings, request.profile));
  ASSAY_TRY(const GoldenAnswer answer, op->legal(in, nullptr));
  GoldenWritten written{answer.rule, answer.grade, claim_of(answer.grade), {}};
  TensorFileWriter writer;
  writer.set_schema(kGoldenSchema, kGoldenVersion);
  writer.set_metadata("assay.op", std::string(op->name));
  writer.set_metadata("assay.params", parameters_json(*op, in));
  writer.set_metadata("assay.rule", answer.rule);
  writer.set_metadata("assay.grade", std::string(grade_name(answer.grade)));
  writer.set_metadata("assay.source", answer.source);
  for (const auto& [key, value] : answer.metadata) writer.set_metadata(key, value);
  for (const GoldenTensor& tensor : answer.tensors) {
    writer.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
    written.tensors.push_back(
        fmt::format("{} {} {}", tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape)));
  }
  // The inputs travel along, and so the file checks itself.
  for (const TensorView& view : file.tensors())
    if (reads(*op, view.name))
      writer.add(std::string(view.name), view.dtype, view.shape, view.bytes);
  ASSAY_CHECK(writer.write(out));
  return written;
}

namespace {

// Compares every tensor and asks the operation's rules about what differs.
Expected<GoldenComparison> compare_tensors(const GoldenOp& op, const GoldenInput& in,
                                           const TensorFile& got, bool explain) {
  ASSAY_TRY(const GoldenAnswer answer, op.legal(in, &got));
  GoldenComparison found{.rule = answer.rule, .grade = answer.grade, .source = answer.source};
  found.notes = answer.notes;
  found.mismatches = answer.findings;
  std::int64_t elements = 0;
  for (const GoldenTensor& tensor : answer.tensors) {
    elements += static_cast<std::int64_t>(compared_elements(tensor));
    if (tensor.optional && !got.has(tensor.name)) continue;
    found.compared.emplace_back(tensor.name, static_cast<std::int64_t>(compared_elements(tensor)));
    ASSAY_TRY(const TensorView view, find_got(tensor, got));
    if (auto wrong = first_difference(tensor, view, fmt::format("{}.{}", op.name, tensor.name)))
      found.mismatches.push_back(*std::move(wrong));
  }
  found.vacuous = elements == 0 ? "there is no element to compare" : answer.vacuous;
  if (!judges_bits(answer.grade)) {
    found.unjudged = claim_of(answer.grade);
    found.mismatches.clear();
  }
  if (found.mismatches.empty()) return found;
  std::set<int> told;
  for (const GoldenRule& rule : explain ? op.rules(in, got) : std::vector<GoldenRule>{}) {
    if (rule.group != 0 && told.count(rule.group) != 0) continue;
    if (!rule.fits()) continue;
    told.insert(rule.group);
    found.mismatches.front().diagnoses.push_back(rule.sentence);
  }
  if (op.explain != nullptr) op.explain(in, found.mismatches.front());
  return found;
}

Expected<GoldenComparison> compare(const GoldenOp& op, const GoldenInput& in, const TensorFile& got,
                                   bool explain) {
  return op.compare != nullptr ? op.compare(in, got, explain)
                               : compare_tensors(op, in, got, explain);
}

// `from`: the flag that says whose outputs are judged, "--got" or "--subject".
Repro repro_of(const GoldenRequest& request, const char* from, const std::string& got,
               bool allow_vacuous) {
  Repro repro;
  repro.verb = "check";
  repro.arguments = {request.op};
  repro.flags = {{"--in", request.in}, {from, got}};
  if (request.profile) repro.flags.emplace_back("--profile", *request.profile);
  for (const std::string& setting : request.settings) repro.flags.emplace_back("--set", setting);
  if (allow_vacuous) repro.flags.emplace_back("--allow-vacuous", "");
  return repro;
}

void tell(const GoldenOp& op, const GoldenInput& in, GoldenComparison found, bool allow_vacuous,
          Report& report) {
  report.compared = std::move(found.compared);
  report.provenance.emplace_back("rule", found.rule);
  report.provenance.emplace_back(
      "grade", fmt::format("{}: {}", grade_name(found.grade), claim_of(found.grade)));
  report.provenance.emplace_back("source", found.source);
  for (const auto& note : found.notes) report.provenance.push_back(note);
  report.provenance.emplace_back("parameters", parameters_json(op, in));
  for (auto& line : oracle_provenance()) report.provenance.push_back(std::move(line));
  report.reasons = std::move(found.reasons);
  if (!found.mismatches.empty()) {
    report.verdict = Verdict::kMismatch;
    report.mismatches = std::move(found.mismatches);
  } else if (!found.unjudged.empty()) {
    report.verdict = Verdict::kUnsupported;
    report.reasons.push_back(found.unjudged);
  } else if (!found.vacuous.empty()) {
    report.verdict = allow_vacuous ? Verdict::kConforms : Verdict::kMistrusted;
    report.reasons.push_back(found.vacuous);
  }
}

// How near a profile is: the bits, what conforms without being every bit, the number of wrong
// elements; last, what could not be judged.
using Nearness = std::pair<int, std::int64_t>;
Nearness nearness_of(const GoldenComparison& found) {
  std::int64_t wrong = 0;
  for (const Mismatch& mismatch : found.mismatches) wrong += mismatch.wrong;
  if (wrong > 0) return {2, wrong};
  if (!found.unjudged.empty()) return {3, 0};
  return {found.less_than_bits.empty() ? 0 : 1, 0};
}

// Every profile in turn. The report is that of the nearest, the first of equals.
Expected<Report> check_any(const GoldenOp& op, const GoldenRequest& request, const TensorFile& file,
                           const TensorFile& got, bool allow_vacuous, const Report& title) {
  std::vector<std::string> fitting, roughly, unjudged;
  // What keeps profiles from being compared with these tensors, and which it keeps.
  std::vector<std::pair<Error, std::vector<std::string>>> impossible;
  std::optional<Nearness> nearest;
  std::string nearest_profile;
  Report report;
  for (const std::string& profile : op.profiles()) {
    ASSAY_TRY(const GoldenInput in, read_parameters(op, file, request.settings, profile));
    auto found = compare(op, in, got, false);
    if (!found) {
      const auto same = [&](const auto& one) {
        return one.first.sentence == found.error().sentence;
      };
      auto at = std::find_if(impossible.begin(), impossible.end(), same);
      if (at == impossible.end()) at = impossible.insert(at, {found.error(), {}});
      at->second.push_back(profile);
      continue;
    }
    const Nearness near = nearness_of(*found);
    if (near.first == 0) fitting.push_back(profile);
    if (near.first == 1) roughly.push_back(fmt::format("{} ({})", profile, found->less_than_bits));
    if (near.first == 3) unjudged.push_back(profile);
    if (nearest && near >= *nearest) continue;
    nearest = near;
    nearest_profile = profile;
    report = title;
    tell(op, in, *std::move(found), allow_vacuous, report);
  }
  if (!nearest) return impossible.back().first;
  if (nearest->first == 2) {  // no profile fits: what would explain the nearest?
    ASSAY_TRY(const GoldenInput in, read_parameters(op, file, request.settings, nearest_profile));
    ASSAY_TRY(GoldenComparison found, compare(op, in, got, true));
    report = title;
    tell(op, in, std::move(found), allow_vacuous, report);
  }
  if (!fitting.empty())
    report.reasons.push_back(fmt::format("profiles that fit: {}", joined(fitting)));
  else if (roughly.empty())
    report.reasons.push_back("no profile fits; the nearest is told below");
  if (!roughly.empty())
    report.reasons.push_back(fmt::format("fits less than bit by bit: {}", joined(roughly)));
  if (!unjudged.empty())
    report.reasons.push_back(
        fmt::format("not told apart, their bits are not known: {}", joined(unjudged)));
  for (const auto& [error, profiles] : impossible)
    report.reasons.push_back(
        fmt::format("not compared with {}: {}", joined(profiles), error.sentence));
  return report;
}

}  // namespace

Expected<Report> check_golden(const GoldenRequest& request, const std::string& got_path,
                              bool allow_vacuous) {
  ASSAY_TRY(const GoldenOp* op, find_golden_op(request.op));
  ASSAY_TRY(const TensorFile file, open_golden(request.in, *op));
  ASSAY_TRY(const TensorFile got, open_golden(got_path, *op));
  Report report;
  report.title = fmt::format("check {} of {}", op->name, got_path);
  report.repro = repro_of(request, "--got", got_path, allow_vacuous);
  if (request.profile == "any" && op->profiles != nullptr)
    return check_any(*op, request, file, got, allow_vacuous, report);
  ASSAY_TRY(const GoldenInput in, read_parameters(*op, file, request.settings, request.profile));
  ASSAY_TRY(GoldenComparison found, compare(*op, in, got, true));
  tell(*op, in, std::move(found), allow_vacuous, report);
  return report;
}

Expected<Report> check_golden_subject(const GoldenRequest& request, const std::string& subject,
                                      bool allow_vacuous) {
  ASSAY_TRY(const GoldenOp* op, find_golden_op(request.op));
  if (op->compare_subject == nullptr)
    return bad_input(
        fmt::format("--subject is of attention; {} is checked with --got FILE", op->name));
  if (request.profile == "any")
    return bad_input("--profile any compares one output with every profile; a subject needs one");
  ASSAY_TRY(const TensorFile file, open_golden(request.in, *op));
  ASSAY_TRY(const GoldenInput in, read_parameters(*op, file, request.settings, request.profile));
  Report report;
  report.title = fmt::format("check {} of subject {}", op->name, subject);
  report.repro = repro_of(request, "--subject", subject, allow_vacuous);
  ASSAY_TRY(GoldenComparison found, op->compare_subject(in, subject, true));
  tell(*op, in, std::move(found), allow_vacuous, report);
  return report;
}

}  // namespace assay::verify
