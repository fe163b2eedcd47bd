// Lays out the report, line by line and field by field. Wraps lines, cuts lists and what would fill
// the page, never the command.
#include "verify/compare/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/core/contract.hpp"

namespace assay::verify {

namespace {

constexpr std::size_t kLinesMax = 40;
constexpr std::size_t kColumnsMax = 160;
constexpr std::size_t kOthersMax = 5;  // further mismatches, one line each
constexpr std::size_t kDiagnosesMax = 6;
constexpr std::size_t kReasonsMax = 8;

// "MISMATCH   combine.bits ..." with the words in one column.
std::string line(std::string_view word, std::string_view rest) {
  return fmt::format("{:<10} {}", word, rest);
}

std::string show_where(const Mismatch& mismatch) {
  std::string text;
  for (const Coordinate& place : mismatch.where)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", place.name, place.value);
  return text;
}

std::string show_values(const Values& values) {
  return fmt::format("got {}  expected {}  {}", show_value(values.format, values.got),
                     show_value(values.format, values.expected),
                     show_distance(values.format, values.got, values.expected));
}

std::string show_term(const Mismatch& mismatch, const Term& term) {
  if (!term.rank) return fmt::format("k{} hole", term.k);
  return fmt::format("k{} r{} {}", term.k, *term.rank, show_value(mismatch.term_format, term.bits));
}

void add_terms(const Mismatch& mismatch, std::vector<std::string>& lines) {
  if (mismatch.terms.empty()) return;
  // Four to a line: 22 terms are six lines.
  std::string text;
  std::size_t in_line = 0;
  bool first = true;
  const auto flush = [&] {
    if (text.empty()) return;
    lines.push_back(line(first ? "TERMS" : "", text));
    first = false;
    text.clear();
    in_line = 0;
  };
  for (const Term& term : mismatch.terms) {
    text += (in_line == 0 ? "" : " | ") + show_term(mismatch, term);
    if (++in_line == 4) flush();
  }
  flush();
  if (!mismatch.order.empty()) lines.push_back(line("ORDER", mismatch.order));
  if (mismatch.sums.empty() || mismatch.sums.size() > 8) return;
  std::string sums;
  for (const std::uint32_t bits : mismatch.sums)
    sums += (sums.empty() ? "" : " | ") + show_value(ElementFormat::kF32, bits);
  lines.push_back(line("SUMS", sums));
}

void add_first(const Mismatch& mismatch, std::vector<std::string>& lines) {
  lines.push_back(line("WHAT", mismatch.sentence));
  if (!mismatch.where.empty()) lines.push_back(line("FIRST", show_where(mismatch)));
  if (mismatch.values) lines.push_back(line("VALUES", show_values(*mismatch.values)));
  add_terms(mismatch, lines);
  for (std::size_t i = 0; i < std::min(kDiagnosesMax, mismatch.diagnoses.size()); ++i)
    lines.push_back(line(i == 0 ? "DIAGNOSIS" : "", mismatch.diagnoses[i]));
  // Patterns are of elements: what has neither a place nor values was held against none.
  if (mismatch.diagnoses.empty() && (!mismatch.where.empty() || mismatch.values))
    lines.push_back(line("DIAGNOSIS", "no known pattern fits"));
  if (mismatch.ulp) lines.push_back(line("ULP", mismatch.ulp->print()));
}

void add_others(const Report& report, std::vector<std::string>& lines) {
  for (std::size_t i = 1; i < std::min(report.mismatches.size(), kOthersMax + 1); ++i) {
    const Mismatch& other = report.mismatches[i];
    lines.push_back(line(i == 1 ? "ALSO" : "",
                         fmt::format("{} {}: {} of {} {}; {}", other.check, other.clause,
                                     other.wrong, other.total, other.unit, other.sentence)));
  }
  if (report.mismatches.size() > kOthersMax + 1) {
    lines.push_back(
        line("", fmt::format("and {} more", report.mismatches.size() - kOthersMax - 1)));
  }
}

std::string headline(const Report& report) {
  const std::string verdict(verdict_name(report.verdict));
  if (report.verdict != Verdict::kMismatch || report.mismatches.empty())
    return line(verdict, report.title);
  const Mismatch& first = report.mismatches.front();
  return line(verdict, fmt::format("{} ({}): {} of {} {} in {}", first.check, first.clause,
                                   first.wrong, first.total, first.unit, report.title));
}

// What was exercised, zeros left out; wrapped by hand because this is the longest line of all.
void add_coverage_lines(const Coverage& coverage, std::vector<std::string>& lines) {
  std::string text;
  bool first = true;
  const auto flush = [&] {
    if (!text.empty()) lines.push_back(line(first ? "COVERAGE" : "", text));
    first = false;
    text.clear();
  };
  for (const CoverageField& field : coverage_fields()) {
    if (coverage.*field.count == 0) continue;
    const std::string item = fmt::format("{} {}", coverage.*field.count, field.name);
    if (text.size() + item.size() > 86) flush();
    text += (text.empty() ? "" : ", ") + item;
  }
  flush();
  if (first) lines.push_back(line("COVERAGE", "nothing was exercised"));
}

std::string compared_line(const Report& report) {
  std::string text;
  for (const auto& [name, elements] : report.compared)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", elements, name);
  const bool nothing = std::all_of(report.compared.begin(), report.compared.end(),
                                   [](const auto& one) { return one.second == 0; });
  return line("COMPARED", nothing ? "nothing" : text);
}

// Broken at spaces, with what follows in the second column; a line of more parts than people read,
// or of a word that no line holds, is cut.
std::vector<std::string> wrapped(std::string text) {
  constexpr std::size_t kIndent = 11, kPartsMax = 5;
  std::vector<std::string> parts;
  while (text.size() > kColumnsMax) {
    const std::size_t space = text.rfind(' ', kColumnsMax);
    if (space == std::string::npos || space <= kIndent || parts.size() + 1 == kPartsMax) {
      text.resize(kColumnsMax - 3);
      text += "...";
      break;
    }
    parts.push_back(text.substr(0, space));
    text = std::string(kIndent, ' ') + text.substr(space + 1);
  }
  parts.push_back(std::move(text));
  return parts;
}

std::vector<std::string> wrapped_lines(const std::vector<std::string>& lines) {
  std::vector<std::string> all;
  for (const std::string& one : lines) {
    std::vector<std::string> parts = wrapped(one);
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return all;
}

// For a POSIX shell (SPEC VER-3.3).
std::string shell_quoted(const std::string& word) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-+=.,:/@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  if (word.find_first_of("\"\\$`!") == std::string::npos) return '"' + word + '"';
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

nlohmann::ordered_json values_json(const Values& values) {
  return {{"format", format_name(values.format)},
          {"got_bits", fmt::format("0x{:x}", values.got)},
          {"expected_bits", fmt::format("0x{:x}", values.expected)},
          {"got", show_value(values.format, values.got)},
          {"expected", show_value(values.format, values.expected)},
          {"distance", show_distance(values.format, values.got, values.expected)}};
}

nlohmann::ordered_json mismatch_json(const Mismatch& mismatch) {
  nlohmann::ordered_json json{{"check", mismatch.check}, {"clause", mismatch.clause},
                              {"wrong", mismatch.wrong}, {"total", mismatch.total},
                              {"unit", mismatch.unit},   {"what", mismatch.sentence}};
  nlohmann::ordered_json where = nlohmann::ordered_json::object();
  for (const Coordinate& place : mismatch.where) where[place.name] = place.value;
  json["first"] = std::move(where);
  if (mismatch.values) json["values"] = values_json(*mismatch.values);
  if (!mismatch.terms.empty()) {
    nlohmann::ordered_json terms = nlohmann::ordered_json::array();
    for (const Term& term : mismatch.terms) {
      nlohmann::ordered_json one{{"k", term.k}, {"rank", nullptr}};
      if (term.rank) {
        one["rank"] = *term.rank;
        one["bits"] = fmt::format("0x{:x}", term.bits);
        one["value"] = show_value(mismatch.term_format, term.bits);
      }
      terms.push_back(std::move(one));
    }
    json["terms"] = std::move(terms);
    json["order"] = mismatch.order;
    nlohmann::ordered_json sums = nlohmann::ordered_json::array();
    for (const std::uint32_t bits : mismatch.sums)
      sums.push_back(show_value(ElementFormat::kF32, bits));
    json["sums"] = std::move(sums);
  }
  json["diagnosis"] = mismatch.diagnoses;
  if (mismatch.ulp) json["ulp"] = mismatch.ulp->print();
  return json;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kConforms:
      return "CONFORMS";
    case Verdict::kMismatch:
      return "MISMATCH";
    case Verdict::kMistrusted:
      return "MISTRUSTED";
    case Verdict::kUnsupported:
      return "UNSUPPORTED";
  }
  CONTRACT(false, static_cast<int>(verdict));
}

int exit_code(Verdict verdict) {
  switch (verdict) {
    case Verdict::kConforms:
      return 0;
    case Verdict::kMismatch:
      return 1;
    case Verdict::kMistrusted:
      return 1;
    case Verdict::kUnsupported:
      return 3;
  }
  CONTRACT(false, static_cast<int>(verdict));
}

std::string Repro::print() const {
  std::string text = "assay " + verb;
  for (const std::string& argument : arguments) text.append(" ").append(shell_quoted(argument));
  for (const auto& [flag, value] : flags) {
    text.append(" ").append(flag);
    if (!value.empty()) text.append(" ").append(shell_quoted(value));
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> oracle_provenance() {
#if defined(__clang__)
  const std::string compiler = fmt::format("clang {}.{}", __clang_major__, __clang_minor__);
#else
  const std::string compiler = fmt::format("gcc {}.{}", __GNUC__, __GNUC_MINOR__);
#endif
  return {{"oracle", "assay " ASSAY_VERSION " (" + compiler + ")"}};
}

std::vector<std::pair<std::string, std::string>> group_provenance(const Subject& subject,
                                                                  const GroupSetup& setup) {
  const moe::CombineProfile& profile =
      setup.profile == nullptr ? moe::default_combine_profile() : *setup.profile;
  std::vector<std::pair<std::string, std::string>> list{
      {"subject", fmt::format("{} ({})", subject.spec(), subject.name())},
      {"profile", fmt::format("{} ({}), grade {}, evidence {}", profile.name, profile.variant,
                              grade_name(profile.grade), evidence_name(profile.evidence))},
      {"schedule seed", std::to_string(setup.seed)}};
  if (!setup.options.empty()) list.emplace_back("options", setup.options);
  return list;
}

std::string to_text(const Report& report) {
  std::vector<std::string> lines{headline(report)};
  for (std::size_t i = 0; i < std::min(report.reasons.size(), kReasonsMax); ++i)
    lines.push_back(line(i == 0 ? "REASON" : "", report.reasons[i]));
  if (report.reasons.size() > kReasonsMax)
    lines.push_back(line("", fmt::format("and {} more", report.reasons.size() - kReasonsMax)));
  if (!report.mismatches.empty()) add_first(report.mismatches.front(), lines);
  add_others(report, lines);
  if (report.mismatching_rounds > 0) {
    lines.push_back(line("ROUNDS", fmt::format("{} of {} mismatch", report.mismatching_rounds,
                                               report.coverage.rounds)));
  }
  if (report.compared.empty())
    add_coverage_lines(report.coverage, lines);
  else
    lines.push_back(compared_line(report));
  std::vector<std::string> tail;
  for (const auto& [name, value] : report.provenance)
    tail.push_back(line(tail.empty() ? "FROM" : "", name + ": " + value));
  lines = wrapped_lines(lines);
  tail = wrapped_lines(tail);
  // The command is never cut: half a command repeats nothing (SPEC VER-3.2).
  const std::string repro = report.repro.flags.empty() && report.repro.arguments.empty()
                                ? ""
                                : line("REPRO:", report.repro.print()) + "\n";
  const std::size_t room = kLinesMax - (repro.empty() ? 0 : 1);
  if (lines.size() + tail.size() > room) {
    const std::size_t kept = room - std::min(tail.size(), std::size_t{6});
    lines.resize(std::min(lines.size(), kept));
    tail.resize(std::min(tail.size(), room - lines.size()));
  }
  std::string text;
  for (const std::string& one : lines) text += one + "\n";
  for (const std::string& one : tail) text += one + "\n";
  return text + repro;
}

nlohmann::ordered_json to_json(const Report& report) {
  nlohmann::ordered_json json{{"verdict", verdict_name(report.verdict)},
                              {"exit_code", exit_code(report.verdict)},
                              {"title", report.title},
                              {"reasons", report.reasons},
                              {"mismatching_rounds", report.mismatching_rounds}};
  json["mismatches"] = nlohmann::ordered_json::array();
  for (const Mismatch& mismatch : report.mismatches)
    json["mismatches"].push_back(mismatch_json(mismatch));
  nlohmann::ordered_json counts = nlohmann::ordered_json::object();
  if (report.compared.empty()) {
    for (const CoverageField& field : coverage_fields())
      counts[field.name] = report.coverage.*field.count;
  }
  for (const auto& [name, elements] : report.compared) counts[name] = elements;
  json[report.compared.empty() ? "coverage" : "compared"] = std::move(counts);
  nlohmann::ordered_json provenance = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.provenance) provenance[name] = value;
  json["provenance"] = std::move(provenance);
  json["repro"] = report.repro.print();
  return json;
}

}  // namespace assay::verify
