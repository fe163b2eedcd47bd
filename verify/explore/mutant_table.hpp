// The proof that the searches can find anything: every ordering mutant and every hole of a protocol
// against the searches that the protocol itself comes through. Decides the verdict (SPEC VER-8.8):
// CONFORMS when the protocol survives all of them, each search kills something, every hole is found
// by the check that is named for it, and every mutant is killed or is listed as one that changes
// nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/compare/report.hpp"
#include "verify/explore/ordering.hpp"
#include "verify/explore/search.hpp"

namespace assay::verify {

struct SearchRow {
  std::string search;  // "a"
  std::string title;
  machine::Boundary boundary = machine::Boundary::kPtx;
  std::uint64_t executions = 0;
  std::uint64_t blocked = 0;
  std::uint64_t steps = 0;
  double seconds = 0;
  bool exhaustive = true;
  bool exhausted = false;  // of a random one: all its executions were run
  std::string found;       // the check that spoke against the protocol itself; empty is well
  std::int64_t kills = 0;
};

struct MutantRow {
  enum class Kind : std::uint8_t { kGenerated, kHole };
  enum class Fate : std::uint8_t { kKilled, kChangesNothing, kSurvived };
  Kind kind = Kind::kGenerated;
  Fate fate = Fate::kSurvived;
  std::string name;
  std::string remark;  // a hole's title; why a mutant changes nothing
  // Of the first search that killed it.
  std::string search;
  machine::Boundary boundary = machine::Boundary::kPtx;
  std::string check;
  std::string sentence;
  std::uint64_t executions = 0;  // of the exhaustive search, up to the counterexample
  double random_mean = 0;        // executions, over trials; the limit where nothing was found
  double pct_mean = 0;
  std::uint64_t steps = 0;  // of the minimised schedule
  std::uint64_t switches = 0;
  std::string schedule;
  std::string killed_by;  // all searches and checks: "a:explore.reuse c:explore.complete"
};

struct MutantOptions {
  double search_seconds_max = 60;
  std::uint32_t minimise_executions = 200;
  std::int32_t trials = 5;  // of random and PCT, per mutant
  std::uint64_t trial_executions_max = 200;
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

struct MutantReport {
  Protocol protocol = Protocol::kFence;
  Verdict verdict = Verdict::kConforms;
  std::vector<std::string> reasons;  // why CONFORMS is not said
  std::vector<SearchRow> searches;
  std::vector<MutantRow> mutants;  // generated ones, then holes
  std::int64_t killed = 0;
  std::int64_t change_nothing = 0;
  double seconds = 0;
};

// Errors: none that a caller could cause; a search whose case is not served.
Expected<MutantReport> run_mutants(Protocol protocol, const MutantOptions& options = {});

std::string_view boundary_name(machine::Boundary boundary);  // "ptx", "flush", "pdl"

}  // namespace assay::verify
