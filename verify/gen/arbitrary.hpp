// For property tests: RapidCheck draws cases, shrinks them in case space and prints them as the
// command takes them. Decides nothing; the sizes and steps are cases.hpp.
//
//   prop("any case", [](const MoeCase& c) { ... });
#pragma once

#include <rapidcheck.h>

#include <ostream>

#include "model/core/case_text.hpp"
#include "verify/gen/cases.hpp"

namespace assay {

inline void showValue(const MoeCase& c, std::ostream& out) {
  out << "--case \"" << print(c) << '"';
}

}  // namespace assay

template <>
struct rc::Arbitrary<assay::MoeCase> {
  static Gen<assay::MoeCase> arbitrary() {
    // One random word decides the case, so that RapidCheck shrinks cases and not the word.
    const auto from_word =
        gen::map(gen::noShrink(gen::arbitrary<std::uint64_t>()),
                 [](std::uint64_t word) { return assay::verify::random_case({}, word, 0); });
    return gen::shrink(from_word, [](assay::MoeCase&& c) {
      return seq::fromContainer(assay::verify::smaller_cases(c));
    });
  }
};
