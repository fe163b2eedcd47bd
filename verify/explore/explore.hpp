// Start here: does a one-sided protocol keep its promises under every schedule of weak memory?
//
//   program.hpp        what runs: a protocol and a case, all rounds back to back
//   truth.hpp          what it must compute, by the spec route
//   judge.hpp          the properties as named checks
//   search.hpp         searches over schedules; the ones that every protocol comes through
//   mutated_ops.hpp    an Ops that drops or weakens one operation
//   ordering.hpp       which such mutants a program has, and which change nothing
//   holes.hpp          real faults of real protocols, as patches and misuses
//   mutant_table.hpp   everything against everything, with a verdict
//
// This folder decides SPEC VER-8. Schedules and memory are model/machine; protocols are
// cuda/kernels/one_sided.
#pragma once

#include "verify/explore/holes.hpp"
#include "verify/explore/mutant_table.hpp"
#include "verify/explore/ordering.hpp"
#include "verify/explore/program.hpp"
#include "verify/explore/search.hpp"
