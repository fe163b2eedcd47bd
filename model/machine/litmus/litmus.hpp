// Litmus tests: programs of a few instructions each, with a question about what they may leave
// behind, written as text (SPEC MAC-8.1). One set of files says what the simulated machine must
// show (run_model.hpp), what the axioms of PTX permit (axioms.hpp) and what a GPU may be seen to do
// (cuda/probe/litmus_probe). This header decides the meaning of a test as a value and reads it from
// text; it executes nothing.
//
//   test MP
//   about the flag is there: is the data?
//   locations x y
//   P0 rank 0 cta 0
//     st.relaxed.sys x 1
//     {REL}
//     st.relaxed.sys y 1
//   P1 rank 1 cta 0
//     ld.relaxed.sys r0 y
//     {ACQ}
//     ld.relaxed.sys r1 x
//   exists P1:r0=1 & P1:r1=0
//   case plain  REL= ACQ= : allowed ; PTX 8.8: no release pattern
//   case fences REL=fence.release.sys ACQ=fence.acquire.sys : forbidden ; PTX 8.10.6
//
// A `case` fills the {NAMES}; a line that becomes empty is no instruction. Memory starts as zero.
// Verdicts: allowed, forbidden, race (two conflicting accesses that are neither ordered nor morally
// strong), unexplored (PTX allows it, the machine does not show it: SPEC MAC-8.4). One word is for
// every kernel boundary; `ptx=race flush=forbidden pdl=race` says them one by one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/core.hpp"
#include "model/core/ops.hpp"
#include "model/machine/run.hpp"

namespace assay::machine::litmus {

enum class Op : std::uint8_t {
  kLoad,
  kStore,
  kAtomAdd,
  kAtomCas,
  kRedAdd,
  kFence,
  kAliasFence,  // fence.proxy.alias
  kAwait,       // polls until the comparison holds
  kBarrier,     // bar.sync 0
  kShuffle,     // shfl.sync.idx: the value of another lane's register, no memory order
  kVoteAny,     // vote.sync.any of a register, no memory order
  kLaunchDependents,
  kWaitForGrid,
};

// The name of an address: a location, or a second virtual address of one.
struct Name {
  std::string text;
  std::uint32_t location = 0;
  bool is_alias = false;
};

struct Instruction {
  Op op = Op::kFence;
  Order order = Order::kWeak;
  Scope scope = Scope::kNone;
  std::uint32_t name = 0;   // index into Test::names
  std::uint32_t word = 0;   // 32-bit word of the location
  std::uint32_t words = 1;  // 4 for .v4
  // Stored or added; cas: value[0] is desired and value[1] expected; await: value[0].
  std::array<std::uint32_t, 4> value{};
  std::array<std::uint32_t, 4> reg{};  // destinations
  std::uint32_t source_reg = 0;        // shuffle, vote
  std::uint32_t lane = 0;              // shuffle
  bool until_equal = true;             // await: == or !=
  std::string text;
};

// Where a thread runs. A rank has one stream, which runs its kernels in ascending order.
struct Place {
  std::uint32_t rank = 0, kernel = 0, cta = 0, thread = 0;
};

struct ThreadCode {
  std::string name;
  Place place;
  std::uint32_t num_registers = 0;
  std::vector<Instruction> code;
};

struct Location {
  std::string name;
  std::uint32_t words = 1;  // 1 or 4
};

// What an execution leaves behind: every register of every thread, in order, and then the final
// value of the memory words that the condition names.
struct Observable {
  bool is_register = true;
  std::uint32_t thread = 0, reg = 0;     // register
  std::uint32_t location = 0, word = 0;  // memory
  std::string text;                      // "P1:r0" or "x"
};

struct Comparison {
  std::uint32_t observable = 0;
  std::uint32_t value = 0;
  bool equal = true;
};

enum class Verdict : std::uint8_t { kAllowed, kForbidden, kRace, kUnexplored };
const char* verdict_name(Verdict verdict);
inline constexpr std::array<Boundary, 3> kBoundaries{Boundary::kPtx, Boundary::kFlush,
                                                     Boundary::kPdl};
const char* boundary_name(Boundary boundary);

struct Test {
  std::string name;  // "MP.fences"
  std::string about;
  std::string file;
  std::uint32_t line = 0;  // of the case
  std::vector<Location> locations;
  std::vector<Name> names;
  std::vector<ThreadCode> threads;
  std::vector<Observable> observables;
  std::vector<Comparison> exists;     // all of them
  std::array<Verdict, 3> expected{};  // by Boundary
  std::string source;

  Verdict verdict(Boundary boundary) const { return expected[static_cast<std::size_t>(boundary)]; }
  // Whether the boundary of kernels can matter at all.
  bool has_several_kernels() const;
  std::uint32_t num_ranks() const;
};

// An outcome is 4 bits per observable, the first lowest. Values in a test are at most 14; 15 is
// anything else that a machine might show.
using Outcome = std::uint64_t;
inline constexpr std::uint32_t kMaxObservables = 16;
inline constexpr std::uint32_t kMaxValue = 14;
inline constexpr std::uint32_t kOtherValue = 15;
inline constexpr std::uint32_t kMaxThreads = 8;

constexpr Outcome with_value(Outcome outcome, std::uint32_t observable, std::uint32_t value) {
  return outcome | Outcome{value > kMaxValue ? kOtherValue : value} << (4 * observable);
}
constexpr std::uint32_t value_of(Outcome outcome, std::uint32_t observable) {
  return static_cast<std::uint32_t>(outcome >> (4 * observable) & 15);
}
bool satisfies_exists(const Test& test, Outcome outcome);
std::string outcome_text(const Test& test, Outcome outcome);  // "P1:r0=1 P1:r1=0"

// Reads one file. The error names file, line, the offending text and what is allowed.
Expected<std::vector<Test>> parse_litmus(std::string_view text, const std::string& file);
Expected<std::vector<Test>> read_litmus_files(const std::vector<std::string>& paths);

}  // namespace assay::machine::litmus
