// What the litmus probe says about what it saw: a table, the answer for CTAs that hand a message on
// to the one that raises the flag (SPEC MAC-8.6), a verdict and JSON. Decides what counts: an
// outcome that the axioms do not allow is a mismatch; a data race is not judged; a run without any
// allowed outcome that no interleaving of the threads explains proves nothing and is MISTRUSTED
// (SPEC MAC-8.5).
#pragma once

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/launch/driver_version.hpp"
#include "cuda/probe/litmus_case.hpp"

namespace assay::litmus_probe {

class Report {
 public:
  // One placement; those of one test, number of GPUs and kind of launch follow each other.
  void add(const CaseInfo& test, const Configuration& configuration, const Seen& seen) {
    test_ = &test;
    configuration_ = configuration;
    run_.instances += seen.instances;
    run_.unfinished += seen.unfinished;
    std::uint64_t exists = 0;
    for (const auto& [outcome, count] : seen.outcomes) {
      run_.outcomes[outcome] += count;
      if (satisfies(test, outcome)) exists += count;
    }
    if (exists > 0)
      run_exists_at_ +=
          (run_exists_at_.empty() ? "" : ", ") + quoted(where()) + ": " + std::to_string(exists);
  }

  void end_run() {
    const CaseInfo& test = *test_;
    const int boundary = configuration_.programmatic ? 2 : 0;
    std::uint64_t exists = 0, beyond = 0, weak = 0, beyond_flush = 0;
    std::string outcomes;
    for (const auto& [outcome, count] : run_.outcomes) {
      if (satisfies(test, outcome)) exists += count;
      const bool allowed = test.race[boundary] || contains(test.allowed[boundary], outcome);
      if (!allowed) beyond += count;
      if (allowed && !test.race[boundary] && !contains(test.sequential, outcome)) weak += count;
      if (boundary == 0 && !test.race[1] && !contains(test.allowed[1], outcome))
        beyond_flush += count;
      outcomes += (outcomes.empty() ? "" : ", ") + quoted(text(test, outcome)) + ": " +
                  std::to_string(count);
    }
    const bool handoff = test.name.compare(0, 7, "HANDOFF") == 0 && configuration_.gpus == 2;
    if (handoff) handoffs_.push_back({test.name, test.verdict[boundary], run_.instances, exists});
    cases_ += run_.instances;
    mismatches_ += beyond;
    weak_ += weak;
    unfinished_ += run_.unfinished;
    beyond_flush_ += beyond_flush;
    const char* launch = configuration_.programmatic ? "programmatic" : "plain";
    std::printf("%-38s %-10s %d GPU %-12s %11llu instances, exists %9llu, weak %9llu%s\n",
                test.name.c_str(), test.verdict[boundary].c_str(), configuration_.gpus, launch,
                ull(run_.instances), ull(exists), ull(weak),
                beyond > 0            ? "  NOT ALLOWED"
                : run_.unfinished > 0 ? "  UNFINISHED"
                                      : "");
    std::fflush(stdout);
    runs_ << (first_run_ ? "" : ",\n") << "  {\"test\": " << quoted(test.name)
          << ", \"expected\": " << quoted(test.verdict[boundary])
          << ", \"gpus\": " << configuration_.gpus << ", \"launch\": " << quoted(launch)
          << ", \"instances\": " << run_.instances << ", \"exists\": " << exists
          << ", \"not_allowed\": " << beyond << ", \"weak\": " << weak
          << ", \"unfinished\": " << run_.unfinished << ", \"outcomes\": {" << outcomes
          << "}, \"exists_at\": {" << run_exists_at_ << "}}";
    first_run_ = false;
    run_ = Seen{};
    run_exists_at_.clear();
  }

  void gpu(const std::string& name) { gpus_ += (gpus_.empty() ? "" : ", ") + quoted(name); }
  void rounds_that_failed(std::uint32_t count) { rounds_that_failed_ = count; }

  // Prints the end of the table, writes the JSON and returns the exit code.
  int finish(const std::string& json, const std::string& command, int cuda) {
    for (const Handoff& h : handoffs_)
      std::printf("peer misses A's data: %-34s %-10s %llu of %llu\n", h.name.c_str(),
                  h.verdict.c_str(), ull(h.missed), ull(h.instances));
    const bool trusted = weak_ > 0 && unfinished_ == 0 && rounds_that_failed_ == 0;
    const char* verdict = mismatches_ > 0 ? "MISMATCH" : trusted ? "CONFORMS" : "MISTRUSTED";
    std::printf(
        "%s: %llu instances, %llu not allowed, %llu that only weak memory explains, %llu "
        "beyond `flush`, %llu unfinished, %u rounds without a common start\n",
        verdict, ull(cases_), ull(mismatches_), ull(weak_), ull(beyond_flush_), ull(unfinished_),
        rounds_that_failed_);
    if (!json.empty() && !write(json, command, cuda, verdict)) return 3;
    return mismatches_ == 0 && trusted ? 0 : 1;
  }

 private:
  struct Handoff {
    std::string name, verdict;
    std::uint64_t instances, missed;
  };

  static unsigned long long ull(std::uint64_t value) { return value; }

  static bool contains(const std::vector<std::uint64_t>& sorted, std::uint64_t outcome) {
    return std::binary_search(sorted.begin(), sorted.end(), outcome);
  }
  static bool satisfies(const CaseInfo& test, std::uint64_t outcome) {
    return std::all_of(test.exists.begin(), test.exists.end(), [&](const ComparisonInfo& c) {
      return ((outcome >> (4 * c.observable) & 15) == c.value) == c.equal;
    });
  }
  static std::string text(const CaseInfo& test, std::uint64_t outcome) {
    std::string out;
    for (std::size_t i = 0; i < test.texts.size(); ++i) {
      const auto value = outcome >> (4 * i) & 15;
      out +=
          (i == 0 ? "" : " ") + test.texts[i] + "=" + (value == 15 ? "?" : std::to_string(value));
    }
    return out;
  }
  static std::string quoted(const std::string& text) { return "\"" + text + "\""; }

  // "x0 y1": x lies on GPU 0, y on GPU 1.
  std::string where() const {
    std::string out;
    for (std::size_t l = 0; l < test_->locations.size(); ++l)
      out += (l == 0 ? "" : " ") + test_->locations[l].name +
             std::to_string(configuration_.placement >> l & 1);
    return out;
  }

  bool write(const std::string& json, const std::string& command, int cuda,
             const char* verdict) const {
    char date[16];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    std::ofstream out(json + ".part", std::ios::binary);
    out << "{\n \"what\": \"litmus tests on GPUs: what was seen, against what the axioms of the "
           "PTX memory model allow\",\n \"date\": "
        << quoted(date) << ",\n \"gpus\": [" << gpus_
        << "],\n \"driver\": " << quoted(cuda::driver_version()) << ",\n \"cuda\": \""
        << cuda / 1000 << "." << cuda % 1000 / 10 << "\",\n \"command\": " << quoted(command)
        << ",\n \"verdict\": " << quoted(verdict) << ",\n \"cases\": " << cases_
        << ",\n \"mismatches\": " << mismatches_ << ",\n \"weak_outcomes\": " << weak_
        << ",\n \"beyond_flush\": " << beyond_flush_ << ",\n \"unfinished\": " << unfinished_
        << ",\n \"handoff\": [";
    for (std::size_t i = 0; i < handoffs_.size(); ++i)
      out << (i == 0 ? "\n" : ",\n") << "  {\"test\": " << quoted(handoffs_[i].name)
          << ", \"expected\": " << quoted(handoffs_[i].verdict)
          << ", \"instances\": " << handoffs_[i].instances
          << ", \"peer_missed_the_data\": " << handoffs_[i].missed << "}";
    out << "\n ],\n \"runs\": [\n" << runs_.str() << "\n ]\n}\n";
    out.close();
    if (out && std::rename((json + ".part").c_str(), json.c_str()) == 0) return true;
    std::fprintf(stderr, "%s cannot be written\n", json.c_str());
    return false;
  }

  const CaseInfo* test_ = nullptr;
  Configuration configuration_;
  Seen run_;
  std::string run_exists_at_, gpus_;
  std::ostringstream runs_;
  bool first_run_ = true;
  std::uint64_t cases_ = 0, mismatches_ = 0, weak_ = 0, unfinished_ = 0, beyond_flush_ = 0;
  std::uint32_t rounds_that_failed_ = 0;
  std::vector<Handoff> handoffs_;
};

}  // namespace assay::litmus_probe
