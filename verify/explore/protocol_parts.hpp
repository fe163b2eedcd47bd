// What a protocol contributes to a program: its kernels as nodes of streams, what its workspace
// holds before, and what the judge may expect of its memory. Internal to programs; decides nothing
// about executions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/explore/program.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

// What a running execution's kernels share.
struct Running {
  MutationState mutation;
  Judge judge;
};

// One node of a stream.
struct Launch {
  RankId rank;
  std::uint32_t stream = 0;
  std::string name;
  std::uint32_t num_ctas = 1;
  std::function<void(machine::SimOps&, Running&)> body;
};

struct ProgramMemory {
  Window window;
  std::vector<std::vector<RankMemory>> of;  // [round][rank]
};

struct ProtocolInput {
  const ProgramSetup& setup;
  const GroupPlan& plan;
  const std::vector<RoundPlan>& round_plans;
  const std::vector<const assay_round*>& rounds;
  const ProgramMemory& memory;
};

struct Prepared {
  std::uint64_t window_bytes = 0;
  std::uint64_t window_alignment = 1;
  std::uint32_t streams_per_rank = 1;
  std::vector<std::function<void(machine::Machine&)>> before;  // host writes, in every execution
  std::vector<Launch> launches;                                // in the order of enqueueing
  Evidence evidence;  // setup and rounds are there before a protocol fills in the rest
};

// "dispatch of round 2": what reports call a kernel, and what the judge reads the round from.
std::string kernel_name(std::string_view kernel, std::size_t round);

void prepare_one_sided(const ProtocolInput& input, Prepared& prepared);

// The experts: reads with weak loads what its rank received, tells the judge, and writes the expert
// row of every token that it recognises. Where rows lie is the protocol's business.
struct ExpertsKernel {
  std::size_t round = 0;
  const RoundTruth* truth = nullptr;
  Address own;                            // this rank's window
  std::uint64_t counts_at = 0;            // u32 [ep]: rows of each source, in the window
  std::vector<std::uint64_t> payload_at;  // [ep, max, bytes_per_token] each, in the window
  std::uint64_t rows_at = 0;              // expert rows [ep, max, h], in the window
  std::uint64_t statistics_at = 0;        // i32 [ep, words of the round], in the window
  void operator()(machine::SimOps& ops, Running& running) const;
};

}  // namespace assay::verify
