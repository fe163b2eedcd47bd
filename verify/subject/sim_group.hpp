// A group of simulated ranks: its machine, its windows and what a round enqueues. Internal to the
// simulated subject.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/core/expected.hpp"
#include "model/machine/machine.hpp"
#include "verify/subject/one_sided_plan.hpp"
#include "verify/subject/sim_kernels.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

struct SimOptions {
  std::uint32_t group_size = 4;
  std::uint32_t resident_ctas = 0xFFFFFFFFu;
  std::uint32_t first_epoch = 0;
  std::uint32_t longest_run = 64;
  bool timeouts_fire = false;
  ProtocolOption protocol;
  bool ordered_slots = false;
};

class SimGroup {
 public:
  // Errors: a configuration the simulated machine cannot hold, or kernels without the instantiation
  // it asks for (unsupported).
  static Expected<std::unique_ptr<SimGroup>> make(const SimKernels& kernels,
                                                  const assay_group_config& config,
                                                  const SimOptions& options);
  // All rounds on all living ranks. An error says why the kernels did not get through: deadlock
  // with who waits for what, a fault with its site, or a status word.
  Status run(std::span<const assay_round> rounds, assay_experts experts, void* context);
  // What all ranks do together after a failure, and what creation does first: control words start
  // over, slots and cells are armed, and nobody goes on before everybody is done (SPEC KER-6.7).
  void initialise();
  int slot_rule(std::int32_t max_tokens_per_rank) const {
    return plan_.slot_rule(max_tokens_per_rank);
  }

 private:
  SimGroup(const SimKernels& kernels, GroupPlan plan, const SimOptions& options);

  void enqueue_fence(const assay_round& round, const RoundPlan& plan, std::int32_t index,
                     RankId rank, const std::function<void()>& experts);
  void enqueue_sentinel(const assay_round& round, const RoundPlan& plan, RankId rank,
                        const std::function<void()>& experts);
  template <class Body, class Params>
  void enqueue(RankId rank, const char* name, std::uint32_t groups, Body body,
               const Params& params);
  void enqueue_rank(const assay_round& round, const RoundPlan& plan, std::int32_t index,
                    RankId rank, assay_experts experts, void* context);
  void write_inputs(const assay_round& round, const RoundPlan& plan, RankId rank);
  void enqueue_expert_lists(const RoundPlan& plan, RankId rank);
  void read_more(const RoundPlan& plan, RankId rank);
  void read_received(const assay_round& round, const RoundPlan& plan, RankId rank);
  void write_expert_rows(const assay_round& round, const RoundPlan& plan, RankId rank);
  bool holds_token(const assay_round& round, const RoundPlan& plan, RankId rank,
                   std::uint64_t source, std::uint64_t slot);
  void note(const Status& status, const char* what);  // of a host node, reported when run ends
  Status check_status_words();
  const RankMemory& memory_of(RankId rank) const {
    return memory_[static_cast<std::size_t>(rank.value())];
  }

  const SimKernels& kernels_;
  GroupPlan plan_;
  SimOptions options_;
  machine::Machine machine_;
  std::vector<RankMemory> memory_;
  Status late_error_ = Done{};
};

}  // namespace assay::verify
