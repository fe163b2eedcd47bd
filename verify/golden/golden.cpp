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
Expected<std::vector<Mismatch>> compare(const GoldenOp& op, const GoldenInput& in,
                                        const GoldenAnswer& answer, const TensorFile& got) {
  std::vector<Mismatch> mismatches = answer.findings;
  for (const GoldenTensor& tensor : answer.tensors) {
    if (tensor.optional && !got.has(tensor.name)) continue;
    ASSAY_TRY(const TensorView view, find_got(tensor, got));
    if (auto found = first_difference(tensor, view, fmt::format("{}.{}", op.name, tensor.name)))
      mismatches.push_back(*std::move(found));
  }
  if (mismatches.empty()) return mismatches;
  std::set<int> told;
  for (const GoldenRule& rule : op.rules(in, got)) {
    if (rule.group != 0 && told.count(rule.group) != 0) continue;
    if (!rule.fits()) continue;
    told.insert(rule.group);
    mismatches.front().diagnoses.push_back(rule.sentence);
  }
  if (op.explain != nullptr) op.explain(in, mismatches.front());
  return mismatches;
}

Repro repro_of(const GoldenRequest& request, const std::string& got, bool allow_vacuous) {
  Repro repro;
  repro.verb = "check";
  repro.arguments = {request.op};
  repro.flags = {{"--in", request.in}, {"--got", got}};
  if (request.profile) repro.flags.emplace_back("--profile", *request.profile);
  for (const std::string& setting : request.settings) repro.flags.emplace_back("--set", setting);
  if (allow_vacuous) repro.flags.emplace_back("--allow-vacuous", "");
  return repro;
}

void describe(const GoldenOp& op, const GoldenInput& in, const GoldenAnswer& answer,
              const TensorFile& got, Report& report) {
  for (const GoldenTensor& tensor : answer.tensors) {
    if (!tensor.optional || got.has(tensor.name))
      report.compared.emplace_back(tensor.name,
                                   static_cast<std::int64_t>(compared_elements(tensor)));
  }
  report.provenance.emplace_back("rule", answer.rule);
  report.provenance.emplace_back(
      "grade", fmt::format("{}: {}", grade_name(answer.grade), claim_of(answer.grade)));
  report.provenance.emplace_back("source", answer.source);
  for (const auto& note : answer.notes) report.provenance.push_back(note);
  report.provenance.emplace_back("parameters", parameters_json(op, in));
  for (auto& line : oracle_provenance()) report.provenance.push_back(std::move(line));
}

void judge(const GoldenAnswer& answer, std::vector<Mismatch> mismatches, bool allow_vacuous,
           Report& report) {
  std::uint64_t elements = 0;
  for (const GoldenTensor& tensor : answer.tensors) elements += compared_elements(tensor);
  const std::string vacuous = elements == 0 ? "there is no element to compare" : answer.vacuous;
  if (!judges_bits(answer.grade)) {
    report.verdict = Verdict::kUnsupported;
    report.reasons.push_back(claim_of(answer.grade));
  } else if (!mismatches.empty()) {
    report.verdict = Verdict::kMismatch;
    report.mismatches = std::move(mismatches);
  } else if (!vacuous.empty()) {
    report.verdict = allow_vacuous ? Verdict::kConforms : Verdict::kMistrusted;
    report.reasons.push_back(vacuous);
  }
}

std::int64_t wrong_elements(const std::vector<Mismatch>& mismatches) {
  std::int64_t wrong = 0;
  for (const Mismatch& mismatch : mismatches) wrong += mismatch.wrong;
  return wrong;
}

// Every profile in turn. The report is that of the nearest: the first that fits, or else the one
// with the fewest wrong elements.
Expected<Report> check_any(const GoldenOp& op, const GoldenRequest& request, const TensorFile& file,
                           const TensorFile& got, bool allow_vacuous, Report report) {
  std::vector<std::string> fitting, impossible;
  std::optional<Error> last_error;
  std::optional<std::int64_t> fewest;
  Report nearest;
  for (const std::string& profile : op.profiles()) {
    ASSAY_TRY(const GoldenInput in, read_parameters(op, file, request.settings, profile));
    const auto answer = op.legal(in, &got);
    auto mismatches =
        answer ? compare(op, in, *answer, got) : Expected<std::vector<Mismatch>>(answer.error());
    if (!mismatches) {
      impossible.push_back(profile);
      last_error = mismatches.error();
      continue;
    }
    const std::int64_t wrong = wrong_elements(*mismatches);
    if (wrong == 0) fitting.push_back(profile);
    if (fewest && wrong >= *fewest) continue;
    fewest = wrong;
    nearest = report;
    // "X fits instead" is what the list says.
    for (Mismatch& mismatch : *mismatches) mismatch.diagnoses.clear();
    describe(op, in, *answer, got, nearest);
    judge(*answer, *std::move(mismatches), allow_vacuous, nearest);
  }
  if (!fewest) return *last_error;
  nearest.reasons.push_back(fitting.empty()
                                ? "no profile fits; the nearest is told below"
                                : fmt::format("profiles that fit: {}", joined(fitting)));
  if (!impossible.empty())
    nearest.reasons.push_back(fmt::format("not for these tensors: {}", joined(impossible)));
  return nearest;
}

}  // namespace

Expected<Report> check_golden(const GoldenRequest& request, const std::string& got_path,
                              bool allow_vacuous) {
  ASSAY_TRY(const GoldenOp* op, find_golden_op(request.op));
  ASSAY_TRY(const TensorFile file, open_golden(request.in, *op));
  ASSAY_TRY(const TensorFile got, open_golden(got_path, *op));
  Report report;
  report.title = fmt::format("check {} of {}", op->name, got_path);
  report.repro = repro_of(request, got_path, allow_vacuous);
  if (request.profile == "any" && op->profiles != nullptr)
    return check_any(*op, request, file, got, allow_vacuous, std::move(report));
  ASSAY_TRY(const GoldenInput in, read_parameters(*op, file, request.settings, request.profile));
  ASSAY_TRY(const GoldenAnswer answer, op->legal(in, &got));
  ASSAY_TRY(auto mismatches, compare(*op, in, answer, got));
  describe(*op, in, answer, got, report);
  judge(answer, std::move(mismatches), allow_vacuous, report);
  return report;
}

}  // namespace assay::verify
