// The report: one verdict with everything a kernel engineer needs to act on it, as text of at most
// 40 lines and as JSON with the same fields. Decides SPEC VER-3: the words, their exit codes, the
// order of lines, the REPRO line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "verify/compare/mismatch.hpp"
#include "verify/subject/driver.hpp"

namespace assay::verify {

enum class Verdict : std::uint8_t { kConforms, kMismatch, kMistrusted, kUnsupported };
std::string_view verdict_name(Verdict verdict);  // "CONFORMS", "MISMATCH", "MISTRUSTED", ...
int exit_code(Verdict verdict);                  // 0, 1, 1, 3 (SPEC VER-3.1)

// The command that repeats the finding. Fields that are empty are left out; quoting is the shell's.
struct Repro {
  std::string verb = "verify";
  std::vector<std::pair<std::string, std::string>> flags;  // {"--case", "ep=4 ..."} in print order
  std::vector<std::string> arguments;                      // after the verb: files
  std::string print() const;                               // "assay verify --case 'ep=4 ...' ..."
};

struct Report {
  Verdict verdict = Verdict::kConforms;
  std::string title;  // what was checked: "suite dispatch.shapes", "replay file.csv ep 8"
  std::vector<Mismatch> mismatches;  // the first is spelled out, the others get one line each
  std::int64_t mismatching_rounds = 0;
  // Why CONFORMS is not said: what a suite had to exercise and did not, or the subject's reason.
  std::vector<std::string> reasons;
  Coverage coverage;
  // What a comparison of files looked at: {"d", elements}. Told in place of the coverage, which
  // counts rounds of dispatch and combine.
  std::vector<std::pair<std::string, std::int64_t>> compared;
  // {"subject", "sim"}, {"profile", "... grade bits-claimed"}, {"oracle", "0.1.0"}, ... in print
  // order
  std::vector<std::pair<std::string, std::string>> provenance;
  Repro repro;
};

// Who speaks: version, compiler, instruction set do not change bits and are told all the same.
std::vector<std::pair<std::string, std::string>> oracle_provenance();
// Subject, profile with grade and evidence, slot rule, seed.
std::vector<std::pair<std::string, std::string>> group_provenance(const Subject& subject,
                                                                  const GroupSetup& setup);

std::string to_text(const Report& report);  // ends in a newline, at most 40 lines of 160 columns
nlohmann::ordered_json to_json(const Report& report);

}  // namespace assay::verify
