// A program to explore: a protocol, a case and where its weak spots are (group width, residency,
// boundary, generations). Every execution runs all rounds of all ranks back to back, one stream per
// rank, with nothing in between that orders ranks but the protocol itself: dispatch, sanitize,
// experts (a kernel with weak loads), combine. Inputs of all rounds are there before the run; the
// output of each round has a buffer of its own. Decides SPEC VER-8.1; which interleavings are run
// is search.hpp, what is right is judge.hpp.
//
//   ASSAY_TRY(const Program program, Program::make(setup));
//   const Execution done = program.run({}, std::move(parts));
//   if (done.finding) ...
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/machine/machine.hpp"
#include "verify/explore/judge.hpp"
#include "verify/explore/kernels.hpp"
#include "verify/explore/truth.hpp"

namespace assay::verify {

using one_sided::Protocol;
std::string_view protocol_name(Protocol protocol);
Expected<Protocol> parse_protocol(std::string_view name);

// Misuses of a right protocol, each a hole that somebody's code had (SPEC VER-8.7).
enum class Variant : std::uint8_t {
  kNone,
  kTwoStreams,     // two layers share a workspace on two streams
  kSkippedRound,   // the last rank leaves out the second round
  kTwoHandles,     // two handles, each with a phase of its own, over one group's buffers
  kMovingRows,     // the rows that combine pulls lie behind the round's payloads
  kOneGeneration,  // Sentinel with one generation of slots fewer than it has
  // No misuse, but a peer that stops; the others' waits run out (SPEC VER-8.9).
  kFirstRankSilent,  // rank 0 launches nothing
  kFirstRankLeaves,  // rank 0 launches nothing behind its first dispatch
};
constexpr bool is_failing(Variant v) {
  return v == Variant::kFirstRankSilent || v == Variant::kFirstRankLeaves;
}

struct ProgramSetup {
  Protocol protocol = Protocol::kFence;
  GroupSetup group;
  std::vector<Round> rounds;
  std::uint32_t group_size = 1;  // lanes of a CTA
  std::uint32_t ctas = 0;        // of a Sentinel kernel; 0: as many as it would have on a GPU
  std::uint32_t parts_log2 = 0;  // 2^parts_log2 CTAs of combine by Fence share a row (SPEC KER-2.7)
  std::uint32_t resident_ctas = std::numeric_limits<std::uint32_t>::max();
  machine::Boundary boundary = machine::Boundary::kPtx;
  bool sequential = false;  // sequential memory in place of PTX's
  Variant variant = Variant::kNone;
  // Under kSentinel: rounds of more tokens per rank go by Fence; nothing: none does.
  std::optional<std::int32_t> sentinel_max_tokens;
  const ExploreKernels* kernels = nullptr;  // nullptr: our own
};

struct Mutation {
  Site site = Site::kNone;
  Weakening how = Weakening::kNone;
};

struct Execution {
  std::optional<Mismatch> finding;
  machine::RunResult result;
  std::array<SiteUse, kNumSites> used{};
};

// Immutable once made; run may be called from several threads at once.
class Program {
 public:
  // Errors: no legal request, a top_k that is not compiled, a protocol that does not serve it.
  static Expected<Program> make(ProgramSetup setup);
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;
  ~Program();

  Execution run(const Mutation& mutation, machine::MachineParts parts) const;

  const ProgramSetup& setup() const;
  std::int32_t num_ranks() const { return setup().group.ep_size; }

 private:
  struct Impl;
  explicit Program(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace assay::verify
