// Names and applicability of weakenings, and the table of those that change nothing.
#include "verify/explore/ordering.hpp"

#include <fmt/format.h>

#include "model/core/text.hpp"

namespace assay::verify {

namespace {

using machine::Operation;

struct Word {
  Weakening how;
  std::string_view word;
};
constexpr Word kWords[] = {
    {Weakening::kDrop, "drop"},       {Weakening::kWeak, "weak"},
    {Weakening::kRelaxed, "relaxed"}, {Weakening::kAcquire, "acquire"},
    {Weakening::kRelease, "release"}, {Weakening::kCta, "cta"},
    {Weakening::kGpu, "gpu"},
};

constexpr Equivalent kEquivalents[] = {
#define ASSAY_EQUIVALENT(name, clause, reason) {name, clause, reason},
#include "verify/explore/equivalent.def"
#undef ASSAY_EQUIVALENT
};

}  // namespace

std::string mutation_name(const Mutation& mutation) {
  for (const Word& word : kWords)
    if (word.how == mutation.how) return fmt::format("{}.{}", site_name(mutation.site), word.word);
  return "none";
}

Expected<Mutation> parse_mutation(std::string_view name) {
  const std::size_t dot = name.find('.');
  const std::string_view site = name.substr(0, dot);
  std::string words;
  for (const Word& word : kWords)
    words += fmt::format("{}{}", words.empty() ? "" : ", ", word.word);
  for (std::size_t s = 1; s < kNumSites; ++s) {
    if (site != site_name(static_cast<Site>(s))) continue;
    if (dot != std::string_view::npos)
      for (const Word& word : kWords)
        if (name.substr(dot + 1) == word.word) return Mutation{static_cast<Site>(s), word.how};
    return bad_input(
        fmt::format("the mutant is {}; after the site and a dot come {}", in_quotes(name), words));
  }
  return bad_input(fmt::format(
      "there is no mutant {}; allowed are SITE.HOW, where SITE is an operation of the protocol "
      "(assay explore --mutants lists them) and HOW one of {}, and the holes of that list",
      in_quotes(name), words));
}

std::vector<Weakening> weakenings_of(const SiteUse& use) {
  std::vector<Weakening> ways;
  const auto add = [&](Weakening way) { ways.push_back(way); };
  const Operation op = use.operation;
  const bool waits = op == Operation::kAwait;
  const bool fence = op == Operation::kFence;
  if (op == Operation::kBarrier || op == Operation::kWaitForGrid || fence || waits ||
      op == Operation::kStore)
    add(Weakening::kDrop);
  if (use.order == Order::kWeak) return ways;  // barriers and weak accesses have no order to lose
  if (!fence && !waits) add(Weakening::kWeak);
  if (!fence && use.order != Order::kRelaxed) add(Weakening::kRelaxed);
  if (fence && use.order == Order::kSc) add(Weakening::kRelaxed);
  if (use.order == Order::kAcqRel) {
    add(Weakening::kAcquire);
    add(Weakening::kRelease);
  }
  if (use.scope != Scope::kCta) add(Weakening::kCta);
  if (use.scope == Scope::kSys) add(Weakening::kGpu);
  return ways;
}

std::vector<Mutation> ordering_mutants(std::span<const SiteUse> used) {
  std::vector<Mutation> mutants;
  for (std::size_t s = 1; s < used.size(); ++s)
    for (const Weakening how : weakenings_of(used[s]))
      mutants.push_back({static_cast<Site>(s), how});
  return mutants;
}

std::span<const Equivalent> equivalents() {
  // The table may be empty, which an array of C++ may not.
  return {std::begin(kEquivalents), std::end(kEquivalents)};
}

const Equivalent* find_equivalent(std::string_view name) {
  for (const Equivalent& equivalent : equivalents())
    if (equivalent.name == name) return &equivalent;
  return nullptr;
}

}  // namespace assay::verify
