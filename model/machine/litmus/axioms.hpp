// What the axioms of PTX say about a litmus test: every candidate execution (which write each read
// reads from, the coherence order of each word, the order of the fence.sc) is built and kept if no
// axiom forbids it (SPEC MAC-8.2). It is the second opinion beside the simulated machine, written
// from the axioms alone: nothing runs here. Decides consistency of executions of at most
// kMaxThreads straight-line threads; it knows no progress and no values out of thin air.
#pragma once

#include <set>

#include "model/machine/litmus/litmus.hpp"

namespace assay::machine::litmus {

struct AxiomaticResult {
  std::set<Outcome> outcomes;    // of the consistent executions
  std::set<Outcome> sequential;  // of those that some interleaving of the threads explains
  bool race = false;             // some consistent execution has a data race
  std::uint64_t candidates = 0;
  std::uint64_t consistent = 0;
};

AxiomaticResult evaluate_axioms(const Test& test, Boundary boundary);

// What the axioms say about the condition of a test: race before anything else.
Verdict axiomatic_verdict(const Test& test, const AxiomaticResult& result);

}  // namespace assay::machine::litmus
