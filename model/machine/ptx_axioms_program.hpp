// For tests: small straight-line programs that the axioms and the simulated memory both run, and
// the relations that the axioms speak of. Judges nothing: see ptx_axioms_testing.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <ostream>
#include <set>
#include <vector>

#include "model/core/ops.hpp"

namespace assay::machine::axioms {

struct Instruction {
  // A wait is a load that returns `compare`; executions in which it would not are none.
  enum Kind { kLoad, kStore, kAdd, kCas, kFence, kWait };
  Kind kind = kLoad;
  Order order = Order::kRelaxed;
  Scope scope = Scope::kSys;
  int location = 0;
  std::uint32_t value = 0;    // stored, added, or swapped in
  std::uint32_t compare = 0;  // kCas, kWait
  bool wide = false;          // of kX and kBehindX, with the same operands for both words
};
struct Thread {
  std::int32_t rank = 0;
  std::uint32_t cta = 0;
  std::vector<Instruction> instructions;
};
using Program = std::vector<Thread>;
// Words, 0 at first; the third lies behind the first.
inline constexpr int kX = 0;
inline constexpr int kBehindX = 2;
inline constexpr int kLocations = 3;

// What the reads returned, thread by thread, and what the locations hold in the end.
using Outcome = std::vector<std::uint32_t>;
struct Verdict {
  std::set<Outcome> outcomes;  // of executions without a race
  bool has_race = false;       // in some execution
};

inline bool is_atomic(const Instruction& is) {
  return is.kind == Instruction::kAdd || is.kind == Instruction::kCas;
}

inline std::ostream& operator<<(std::ostream& out, const Program& program) {
  static const char* const kinds[] = {"ld", "st", "add", "cas", "fence", "wait"};
  static const char* const orders[] = {"weak", "relaxed", "acquire", "release", "acq_rel", "sc"};
  static const char* const scopes[] = {"", ".cta", ".cluster", ".gpu", ".sys"};
  for (const Thread& thread : program) {
    out << "\n  rank " << thread.rank << " cta " << thread.cta << ":";
    for (const Instruction& i : thread.instructions) {
      out << " " << kinds[i.kind] << "." << orders[static_cast<int>(i.order)]
          << scopes[static_cast<int>(i.scope)];
      if (i.kind != Instruction::kFence)
        out << "["
            << "xyz"[i.location] << (i.wide ? "z" : "") << "]";
      const bool compares = i.kind == Instruction::kCas || i.kind == Instruction::kWait;
      if (compares) out << "," << i.compare;
      if (i.kind == Instruction::kStore || is_atomic(i)) out << "," << i.value;
      out << ";";
    }
  }
  return out;
}

// A relation over at most 16 events.
class Relation {
 public:
  void add(int from, int to) { rows_[from] |= static_cast<std::uint16_t>(1u << to); }
  bool has(int from, int to) const { return (rows_[from] >> to & 1) != 0; }
  void close() {
    for (int via = 0; via < 16; ++via)
      for (int from = 0; from < 16; ++from)
        if (has(from, via)) rows_[from] |= rows_[via];
  }
  bool is_irreflexive() const {
    for (int e = 0; e < 16; ++e)
      if (has(e, e)) return false;
    return true;
  }

 private:
  std::array<std::uint16_t, 16> rows_{};
};

}  // namespace assay::machine::axioms
