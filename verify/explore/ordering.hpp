// Which ordering mutants a program has: every operation that its bodies performed, with everything
// that can be taken from it. Nothing lists them; a new fence in a body is a new mutant. Beside them
// the ones that nothing can detect, each with its reason (equivalent.def). Decides SPEC VER-8.6.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verify/explore/program.hpp"

namespace assay::verify {

// "DispatchRelease.drop", "DispatchTicket.relaxed", "DispatchFlag.gpu".
std::string mutation_name(const Mutation& mutation);
// Errors list what is allowed after the dot, or the sites of `used`.
Expected<Mutation> parse_mutation(std::string_view name);

// What can be taken from an operation, the boldest first.
std::vector<Weakening> weakenings_of(const SiteUse& use);

// All mutations of the sites that a run used, in the order of sites.def.
std::vector<Mutation> ordering_mutants(std::span<const SiteUse> used);

// A mutation that no search can detect, because it changes nothing that the protocol promises.
struct Equivalent {
  std::string_view name;
  std::string_view clause;
  std::string_view reason;
};
std::span<const Equivalent> equivalents();
const Equivalent* find_equivalent(std::string_view name);

}  // namespace assay::verify
