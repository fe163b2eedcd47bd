// The report against its golden text, its limits, and the command against a real shell.
#include "verify/compare/report.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "model/core/testing.hpp"

namespace assay::verify {
namespace {

Report example() {
  Mismatch first;
  first.check = "combine.bits";
  first.clause = "MOE-3.1";
  first.sentence = "rank 3 token 17 element 4096 has other bits than the profile demands";
  first.where = {{"round", 2}, {"rank", 3}, {"token", 17}, {"hidden", 4096}};
  first.values = Values{ElementFormat::kBf16, 0x3F81, 0x3F80};
  first.terms = {{0, 0, 0x3F80}, {1, 1, 0x3B80}, {2, std::nullopt, 0}, {3, 3, 0x3380}};
  first.order = "(0+1)+(2+3)";
  first.sums = {0x3F808000, 0x33800000, 0x3F808001};
  first.diagnoses = {"equals the expected bits if terms 1 and 2 are swapped: all 3 wrong rows fit"};
  first.wrong = 3;
  first.total = 917504;
  first.unit = "elements";
  UlpHistogram ulp;
  ulp.add_equal(917501);
  ulp.count[UlpHistogram::kOne] = 3;
  first.ulp = ulp;
  Mismatch second;
  second.check = "dispatch.padding";
  second.clause = "MOE-2.7";
  second.sentence = "rank 1 slot 4 of source 0 holds no token, but its row of 'hidden' was written";
  second.total = 96;
  second.unit = "padding rows";

  Report report;
  report.verdict = Verdict::kMismatch;
  report.title = "suite combine_bf16";
  report.mismatches = {first, second};
  report.mismatching_rounds = 1;
  report.coverage.rounds = 3;
  report.coverage.tokens = 120;
  report.coverage.rows = 300;
  report.provenance = {{"subject", "sim (assay one-sided)"}, {"profile", "assay-oneside (R2)"}};
  report.repro.flags = {{"--case", "ep=4 experts=32 top_k=4 hidden=8192"},
                        {"--profile", "assay-oneside"},
                        {"--subject", "sim"}};
  return report;
}

constexpr const char* kGolden =
    "MISMATCH   combine.bits (MOE-3.1): 3 of 917504 elements in suite combine_bf16\n"
    "WHAT       rank 3 token 17 element 4096 has other bits than the profile demands\n"
    "FIRST      round 2, rank 3, token 17, hidden 4096\n"
    "VALUES     got 0x3f81 (0x1.02p+0, 1.0078125)  expected 0x3f80 (0x1p+0, 1)  +1 ulp"
    " bf16\n"
    "TERMS      k0 r0 0x3f80 (0x1p+0, 1) | k1 r1 0x3b80 (0x1p-8, 0.00390625) | k2 hole |"
    " k3 r3 0x3380 (0x1p-24, 5.96046448e-08)\n"
    "ORDER      (0+1)+(2+3)\n"
    "SUMS       0x3f808000 (0x1.01p+0, 1.00390625) | 0x33800000 (0x1p-24,"
    " 5.96046448e-08) | 0x3f808001 (0x1.010002p+0, 1.00390637)\n"
    "DIAGNOSIS  equals the expected bits if terms 1 and 2 are swapped: all 3 wrong rows"
    " fit\n"
    "ULP        0:917501 1:3 2:0 3-8:0 >8:0 sign:0 nan/inf:0\n"
    "ALSO       dispatch.padding MOE-2.7: 1 of 96 padding rows; rank 1 slot 4 of source"
    " 0 holds no token, but its row of 'hidden' was written\n"
    "ROUNDS     1 of 3 mismatch\n"
    "COVERAGE   3 rounds, 120 tokens, 300 rows\n"
    "FROM       subject: sim (assay one-sided)\n"
    "           profile: assay-oneside (R2)\n"
    "REPRO:     assay verify --case \"ep=4 experts=32 top_k=4 hidden=8192\" --profile"
    " assay-oneside --subject sim\n";

TEST_CASE("the report reads as it always did", "[VER-3.2]") {
  CHECK(to_text(example()) == kGolden);
}

TEST_CASE("what has no place and was held against no pattern says neither", "[VER-3.2]") {
  Report report = example();
  Mismatch failed;
  failed.check = "attention.run";
  failed.sentence = "the subject failed: row 3 of request 1 is beyond memory";
  report.mismatches = {failed};
  const std::string text = to_text(report);
  CHECK(text.find("FIRST") == std::string::npos);
  CHECK(text.find("DIAGNOSIS") == std::string::npos);
  CHECK(text.find("row 3 of request 1") != std::string::npos);
  report.mismatches[0].where = {{"row", 3}};
  CHECK(to_text(report).find("FIRST      row 3\nDIAGNOSIS  no known pattern fits\n") !=
        std::string::npos);
}

TEST_CASE("JSON has what the text has", "[VER-3.3]") {
  const nlohmann::ordered_json json = to_json(example());
  CHECK(json["verdict"] == "MISMATCH");
  CHECK(json["exit_code"] == 1);
  CHECK(json["mismatches"].size() == 2);
  const auto& first = json["mismatches"][0];
  CHECK(first["first"]["hidden"] == 4096);
  CHECK(first["values"]["got_bits"] == "0x3f81");
  CHECK(first["values"]["distance"] == "+1 ulp bf16");
  CHECK(first["terms"][2]["rank"].is_null());
  CHECK(first["terms"][3]["bits"] == "0x3380");
  CHECK(first["sums"].size() == 3);
  CHECK(json["coverage"]["tokens"] == 120);
  CHECK(json["provenance"]["profile"] == "assay-oneside (R2)");
  CHECK(json["repro"] == example().repro.print());
}

TEST_CASE("a report is at most 40 lines of 160 columns and always ends in its command",
          "[VER-3.2]") {
  Report report = example();
  report.mismatches.reserve(64);  // `first` stays where it is
  Mismatch& first = report.mismatches.front();
  first.sentence = std::string(500, 'x');
  first.terms.clear();
  for (int k = 0; k < 22; ++k) first.terms.push_back({k, 200 + k, 0x3380});
  for (int i = 0; i < 30; ++i) {
    first.diagnoses.push_back("diagnosis " + std::to_string(i));
    report.reasons.push_back("reason " + std::to_string(i));
    report.mismatches.push_back(report.mismatches[1]);
    report.provenance.emplace_back("name" + std::to_string(i), std::string(300, 'v'));
  }
  for (const CoverageField& field : coverage_fields()) report.coverage.*field.count = 1'234'567'890;
  const std::string text = to_text(report);
  CHECK(std::count(text.begin(), text.end(), '\n') <= 40);
  std::size_t longest = 0;
  std::size_t start = 0;
  std::string last;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    last = text.substr(start, end - start);
    if (last.rfind("REPRO:", 0) != 0) longest = std::max(longest, last.size());
    start = end + 1;
  }
  CHECK(longest <= 160);
  CHECK(last == "REPRO:     " + report.repro.print());
}

TEST_CASE("a long reason goes on below, and is not cut", "[VER-3.2]") {
  Report report;
  report.title = "check";
  std::string names;
  for (int i = 0; i < 40; ++i) {
    if (i > 0) names += ", ";
    names += "profile-" + std::to_string(i);
  }
  report.reasons = {"profiles that fit: " + names, std::string(300, 'x')};
  for (int i = 2; i < 10; ++i) report.reasons.push_back("reason " + std::to_string(i));
  std::string words;  // line ends and indents aside
  for (const char c : to_text(report))
    if (c != '\n' && (c != ' ' || words.back() != ' '))
      words += c;
    else if (c == '\n')
      words += ' ';
  std::string text;
  for (const char c : words)
    if (c != ' ' || text.back() != ' ') text += c;
  CHECK(text.find("profiles that fit: " + names) != std::string::npos);
  CHECK(text.find("xxx...") != std::string::npos);  // no word of 300 letters fits
  CHECK(text.find("reason 7 and 2 more") != std::string::npos);
}

TEST_CASE("verdicts have fixed words and exit codes", "[VER-3.1]") {
  CHECK(verdict_name(Verdict::kConforms) == "CONFORMS");
  CHECK(verdict_name(Verdict::kMismatch) == "MISMATCH");
  CHECK(verdict_name(Verdict::kMistrusted) == "MISTRUSTED");
  CHECK(verdict_name(Verdict::kUnsupported) == "UNSUPPORTED");
  CHECK(exit_code(Verdict::kConforms) == 0);
  CHECK(exit_code(Verdict::kMismatch) == 1);
  CHECK(exit_code(Verdict::kMistrusted) == 1);
  CHECK(exit_code(Verdict::kUnsupported) == 3);
}

std::string shell_echo(const std::string& command) {
  // The shell itself says whether a line is quoted right: print one word per line.
  const std::string script = "printf '%s\\n' " + command;
  FILE* pipe = ::popen(script.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  ::pclose(pipe);
  return text;
}

TEST_CASE("a repro line survives a shell, whatever its words hold", "[VER-3.3]") {
  Repro repro;
  repro.verb = "replay";
  repro.arguments = {"my trace.csv", "it's", "a\"b", "$HOME", "`x`", "a\\b", "x!y", ""};
  repro.flags = {{"--case", "ep=4 experts=8"}, {"--allow-vacuous", ""}, {"--seed", "7"}};
  CHECK(shell_echo(repro.print()) ==
        "assay\nreplay\nmy trace.csv\nit's\na\"b\n$HOME\n`x`\na\\b\nx!y\n\n--case\nep=4 experts=8\n"
        "--allow-vacuous\n--seed\n7\n");
}

}  // namespace
}  // namespace assay::verify
