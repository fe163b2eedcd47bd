// The table of properties and profiles in words. Decides how cells look (SPEC VER-23.4).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "model/core/contract.hpp"
#include "verify/attention/mutants.hpp"
#include "verify/attention/suite.hpp"

namespace assay::verify {
namespace {

using State = AttentionCell::State;

std::string_view mark(State state) {
  switch (state) {
    case State::kHolds:
      return "+";
    case State::kViolated:
      return "-";
    case State::kNotApplicable:
      return ".";
    case State::kNotPromised:
      return "(-)";
    case State::kUnsupported:
      return "u";
    case State::kMistrusted:
      return "?";
    case State::kMismatch:
      return "X";
  }
  CONTRACT(false, static_cast<int>(state));
}

// Broken at spaces; further lines are indented.
void wrap(std::string& text, const std::string& line, std::size_t indent) {
  constexpr std::size_t kColumns = 100;
  std::string rest = line;
  while (rest.size() > kColumns) {
    std::size_t at = rest.rfind(' ', kColumns);
    if (at == std::string::npos || at <= indent) at = kColumns;
    text += rest.substr(0, at) + "\n";
    rest = std::string(indent, ' ') + rest.substr(std::min(rest.size(), at + 1));
  }
  text += rest + "\n";
}

void add_grid(const AttentionTable& table, std::string& text) {
  text += "profiles:\n";
  for (std::size_t i = 0; i < table.profiles.size(); ++i)
    text += fmt::format("  {:>2} {}\n", i + 1, table.profiles[i]->name);
  text += fmt::format("{:<17}", "property");
  for (std::size_t i = 0; i < table.profiles.size(); ++i) text += fmt::format("{:>3}", i + 1);
  text += "\n";
  for (std::size_t row = 0; row < table.properties.size(); ++row) {
    text += fmt::format("{:<17}", table.properties[row]->name);
    for (std::size_t i = 0; i < table.profiles.size(); ++i)
      text += fmt::format("{:>3}", mark(table.at(row, i).state));
    text += fmt::format("  {}\n", table.properties[row]->title);
  }
  text +=
      "+ holds   - violated by design, seen   (-) not promised   . no meaning   "
      "u not served\n? proves too little   X not as predicted\n";
}

std::string numbers(const std::vector<std::size_t>& list) {
  std::string text;
  for (const std::size_t i : list) {
    if (!text.empty()) text += ',';
    text += std::to_string(i + 1);
  }
  return text;
}

// One line for each property and field that violates it, with the profiles that have it.
void add_design(const AttentionTable& table, std::string& text) {
  bool first = true;
  for (std::size_t row = 0; row < table.properties.size(); ++row) {
    std::map<std::string, std::vector<std::size_t>> by_field;
    for (std::size_t i = 0; i < table.profiles.size(); ++i) {
      const AttentionCell& cell = table.at(row, i);
      if (cell.state != State::kViolated && cell.state != State::kNotPromised) continue;
      std::string line = fmt::format("{} ({})", cell.prediction.field, cell.prediction.clause);
      if (cell.finding && cell.finding->violation && table.profiles.size() == 1)
        line += ": " + cell.finding->violation->sentence;
      by_field[line].push_back(i);
    }
    for (const auto& [line, list] : by_field) {
      if (first) text += "violated by design:\n";
      first = false;
      wrap(text, fmt::format("  {:<17}{}: {}", table.properties[row]->name, numbers(list), line),
           19);
    }
  }
}

void add_troubles(const AttentionTable& table, std::string& text) {
  for (const AttentionCell& cell : table.cells) {
    if (cell.state != State::kMistrusted && cell.state != State::kMismatch) continue;
    std::string why = cell.reason;
    if (cell.finding && cell.state == State::kMismatch)
      why = cell.finding->violation ? cell.finding->violation->sentence
                                    : cell.finding->bits->sentence;
    wrap(text,
         fmt::format("{} {} of {}: {}", mark(cell.state), cell.property->name, cell.profile->name,
                     why),
         4);
  }
}

nlohmann::ordered_json finding_json(const AttentionFinding& finding) {
  nlohmann::ordered_json json{{"case", print(finding.c)}};
  if (finding.violation) {
    json["what"] = finding.violation->sentence;
    nlohmann::ordered_json where = nlohmann::ordered_json::object();
    for (const Coordinate& place : finding.violation->where) where[place.name] = place.value;
    json["first"] = std::move(where);
  }
  if (finding.bits) json["bits"] = finding.bits->sentence;
  return json;
}

}  // namespace

std::string_view cell_name(State state) {
  switch (state) {
    case State::kHolds:
      return "holds";
    case State::kViolated:
      return "violated";
    case State::kNotApplicable:
      return "not_applicable";
    case State::kNotPromised:
      return "not_promised";
    case State::kUnsupported:
      return "unsupported";
    case State::kMistrusted:
      return "mistrusted";
    case State::kMismatch:
      return "mismatch";
  }
  CONTRACT(false, static_cast<int>(state));
}

std::string to_text(const AttentionTable& table) {
  std::string text;
  add_grid(table, text);
  add_design(table, text);
  add_troubles(table, text);
  return text;
}

nlohmann::ordered_json to_json(const AttentionTable& table) {
  nlohmann::ordered_json cells = nlohmann::ordered_json::array();
  for (const AttentionCell& cell : table.cells) {
    nlohmann::ordered_json json{{"property", cell.property->name}, {"profile", cell.profile->name},
                                {"state", cell_name(cell.state)},  {"cases", cell.cases},
                                {"declined", cell.declined},       {"kept", cell.coverage.kept},
                                {"skipped", cell.coverage.skipped}};
    if (!cell.prediction.field.empty()) {
      json["field"] = cell.prediction.field;
      json["clause"] = cell.prediction.clause;
    }
    if (!cell.turned_by.empty()) json["turned_by"] = cell.turned_by;
    if (!cell.reason.empty()) json["reason"] = cell.reason;
    if (cell.finding) json["finding"] = finding_json(*cell.finding);
    cells.push_back(std::move(json));
  }
  return cells;
}

Report worst_report(const AttentionTable& table, std::string_view mutant) {
  const AttentionCell& cell = table.worst();
  Report report;
  report.verdict = table.verdict();
  report.title =
      fmt::format("suite attention.{}, profile {}", cell.property->name, cell.profile->name);
  if (cell.finding && cell.state == State::kMismatch) {
    if (const auto& violation = cell.finding->violation) {
      Mismatch mismatch;
      mismatch.check = fmt::format("attention.{}", cell.property->name);
      mismatch.clause = cell.property->clause;
      mismatch.sentence = violation->sentence;
      mismatch.where = violation->where;
      mismatch.values = violation->values;
      mismatch.unit = "cases";
      mismatch.total = cell.cases;
      if (cell.finding->bits) mismatch.diagnoses = cell.finding->bits->diagnoses;
      report.mismatches.push_back(std::move(mismatch));
    }
    if (cell.finding->bits) report.mismatches.push_back(*cell.finding->bits);
  }
  if (!cell.reason.empty()) report.reasons.push_back(cell.reason);
  if (cell.state == State::kNotApplicable)
    report.reasons.push_back(
        fmt::format("the property has no meaning for this profile: {}", cell.prediction.field));
  if (cell.state == State::kNotPromised)
    report.reasons.push_back(
        fmt::format("the profile violates it by design ({}), so a subject need "
                    "not hold it",
                    cell.prediction.field));
  report.compared = {{"cases", cell.cases - cell.declined},
                     {"calls", cell.coverage.runs},
                     {"tiles kept", cell.coverage.kept},
                     {"tiles skipped", cell.coverage.skipped}};
  report.provenance = oracle_provenance();
  report.provenance.insert(report.provenance.begin(),
                           {{"subject", table.subject},
                            {"profile", fmt::format("{}, grade {}, evidence {}", cell.profile->name,
                                                    grade_name(cell.profile->grade),
                                                    evidence_name(cell.profile->evidence))}});
  report.repro.flags = {{"--suite", fmt::format("attention.{}", cell.property->name)},
                        {"--profile", std::string(cell.profile->name)}};
  if (table.subject == "cuda" || mutant.empty()) {
    if (table.subject != "sim") report.repro.flags.emplace_back("--subject", table.subject);
    if (!mutant.empty()) report.provenance.emplace_back("mutant", std::string(mutant));
  } else if (const auto found = find_attention_mutant(mutant)) {
    report.provenance.emplace_back("mutant", std::string((*found)->what));
  }
  if (!mutant.empty()) report.repro.flags.emplace_back("--mutant", std::string(mutant));
  if (cell.finding)
    report.repro.flags.emplace_back("--case", print(cell.finding->c));
  else if (table.options.only)
    report.repro.flags.emplace_back("--case", print(*table.options.only));
  return report;
}

}  // namespace assay::verify
