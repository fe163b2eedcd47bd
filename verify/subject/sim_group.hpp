// A group of simulated ranks: its machine, its windows and what a round enqueues. Internal to the
// simulated subject.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cuda/kernels/one_sided/workspace_layout.hpp"
#include "model/core/expected.hpp"
#include "model/machine/machine.hpp"
#include "model/moe/profile.hpp"
#include "verify/subject/sim_kernels.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

struct SimOptions {
  std::uint32_t group_size = 4;
  std::uint32_t resident_ctas = 0xFFFFFFFFu;
  std::uint32_t first_epoch = 0;
  std::uint32_t longest_run = 64;
  bool timeouts_fire = false;
};

class SimGroup {
 public:
  // Errors: a configuration the simulated machine cannot hold, or kernels without the instantiation
  // it asks for (unsupported).
  static Expected<std::unique_ptr<SimGroup>> make(const SimKernels& kernels,
                                                  const assay_group_config& config,
                                                  const SimOptions& options);
  // All rounds on all living ranks. An error says why the kernels did not get through: deadlock with
  // who waits for what, a fault with its site, or a status word.
  Status run(std::span<const assay_round> rounds, assay_experts experts, void* context);

 private:
  SimGroup(const SimKernels& kernels, const assay_group_config& config, const SimOptions& options,
           const one_sided::Workspace& workspace, const moe::CombineArithmetic& arithmetic);

  // One rank's own memory: inputs that kernels read, outputs that they write.
  struct RankMemory {
    Address topk_ids;
    Address payload_rows;  // all payloads of a round, each 16-byte aligned
    Address out;
  };
  struct RoundPlan;  // everything about a round that is equal on all ranks

  Status check_round(const assay_round& round) const;
  RoundPlan plan_round(const assay_round& round) const;
  void enqueue_rank(const assay_round& round, const RoundPlan& plan, std::int32_t index,
                    RankId rank, assay_experts experts, void* context);
  void write_inputs(const assay_round& round, const RoundPlan& plan, RankId rank);
  void read_received(const assay_round& round, const RoundPlan& plan, RankId rank);
  void write_expert_rows(const assay_round& round, RankId rank);
  Status check_status_words();

  const SimKernels& kernels_;
  assay_group_config config_;
  SimOptions options_;
  one_sided::Workspace workspace_;
  one_sided::Sum sum_;
  one_sided::RowFormat rows_;    // of expert_out
  one_sided::RowFormat pulled_;  // of what combine pulls
  machine::Machine machine_;
  Window window_;
  std::vector<RankMemory> memory_;
  Status late_error_ = Done{};  // of a host node, reported when run ends
};

}  // namespace assay::verify
