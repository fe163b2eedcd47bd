// How sure a stated fact is, in two scales that every table of facts shares (profiles of kernels,
// rows of instructions): where the statement comes from, and what a verdict may claim on its
// strength.
#pragma once

#include <cstdint>
#include <string_view>

namespace assay {

enum class Evidence : std::uint8_t { kMeasured, kReadFromSource, kPublished, kInferred };
// bits: reproduced on hardware with zero differences. bits-claimed: complete, but nobody has run it
// here. decisions: the choices are known, the arithmetic between them is not. values: a bound only.
enum class Grade : std::uint8_t { kBits, kBitsClaimed, kDecisions, kValues };

constexpr std::string_view evidence_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::kMeasured:
      return "measured";
    case Evidence::kReadFromSource:
      return "read from source";
    case Evidence::kPublished:
      return "published";
    case Evidence::kInferred:
      return "inferred";
  }
  return "?";
}

constexpr std::string_view grade_name(Grade grade) {
  switch (grade) {
    case Grade::kBits:
      return "bits";
    case Grade::kBitsClaimed:
      return "bits-claimed";
    case Grade::kDecisions:
      return "decisions";
    case Grade::kValues:
      return "values";
  }
  return "?";
}

}  // namespace assay
