// For the tests of this folder: all litmus tests, read once, and a line per wrong verdict.
#pragma once

#include <string>
#include <vector>

#include "model/core/testing.hpp"
#include "model/machine/litmus/litmus.hpp"
#include "model/machine/litmus/litmus_path.hpp"

namespace assay::machine::litmus::testing {

inline const std::vector<Test>& all_tests() {
  static const std::vector<Test> tests = [] {
    auto read = read_litmus_files({ASSAY_LITMUS_TESTS});
    if (!read) FAIL(read.error().sentence);
    return *std::move(read);
  }();
  return tests;
}

// Where kernel boundaries cannot matter, one stands for all.
inline std::vector<Boundary> boundaries_of(const Test& test) {
  if (!test.has_several_kernels()) return {Boundary::kPtx};
  return {kBoundaries.begin(), kBoundaries.end()};
}

inline std::string wrong_verdict(const Test& test, Boundary boundary, Verdict got, Verdict wanted) {
  return test.file + " line " + std::to_string(test.line) + ": " + test.name + " (" +
         boundary_name(boundary) + ") is " + verdict_name(got) + ", expected " +
         verdict_name(wanted) + "\n";
}

}  // namespace assay::machine::litmus::testing
