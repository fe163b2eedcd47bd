// What a check says when a subject is wrong: where in the domain, got and expected as bits, what it
// would take to explain the difference. A value, not an error (SPEC VER-2.1). This file decides the
// fields; how they are spelled is decided in report.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/compare/bits.hpp"

namespace assay::verify {

// One place in domain terms: {"rank", 3}, {"token", 17}, {"hidden", 4096}. Names are DESIGN's
// words: round, rank, source, slot, token, k, payload, hidden, byte.
struct Coordinate {
  std::string name;
  std::int64_t value = 0;
  friend bool operator==(const Coordinate&, const Coordinate&) = default;
};

// One term of a combined element, in the order in which terms are added.
struct Term {
  std::int32_t k = 0;
  std::optional<std::int32_t> rank;  // nothing: a hole, +0 where holes are added
  std::uint32_t bits = 0;            // in Mismatch::term_format
};

// Two values of one format. `format` "int32" is a plain number, "bytes" a byte.
struct Values {
  ElementFormat format = ElementFormat::kBytes;
  std::uint32_t got = 0;
  std::uint32_t expected = 0;
};

struct Mismatch {
  std::string check;              // "combine.bits"
  std::string clause;             // "MOE-3.2"
  std::string sentence;           // all of it for people, without a full stop
  std::vector<Coordinate> where;  // the first wrong place, outermost first
  std::optional<Values> values;
  std::vector<Term> terms;  // combine only, at most 22
  ElementFormat term_format = ElementFormat::kBf16;
  std::string order;                // the tree of the terms, "((0+1)+(2+3))", empty without terms
  std::vector<std::uint32_t> sums;  // partial sums in the order of the tree, f32 bits
  std::vector<std::string> diagnoses;  // one sentence per explanation that fits all or part
  // How much is wrong, in one unit: 3 of 917504 "elements", 1 of 64 "rows".
  std::int64_t wrong = 1;
  std::int64_t total = 1;
  std::string unit = "rows";
  std::optional<UlpHistogram> ulp;  // of all elements of the output, combine only

  std::optional<std::int64_t> coordinate(const std::string& name) const;
};

}  // namespace assay::verify
