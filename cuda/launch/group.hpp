// The workspace of a group of ranks: symmetric memory laid out for the one-sided protocol, on every
// local rank, from a collective creation to its end. Decides what is checked across ranks (SPEC
// CUD-2.1), what a failed round leaves behind and how ranks go on after it (SPEC CUD-4). Work on it
// is enqueued with OneSidedKernels on streams of the caller's.
//
// Start here: communicator.hpp (who the ranks are), this file, one_sided_launch.hpp (launching),
// device.hpp (streams and graphs).
//
//   ASSAY_TRY(auto communicator, Communicator::one_process(devices));
//   ASSAY_TRY(auto group, OneSidedGroup::make(communicator, workspace, request));
//   ... group.kernels().dispatch(...) and so on, on each local rank's stream ...
//   if (Status all = group.check(); !all) ASSAY_CHECK(group.recover());
#pragma once

#include <optional>
#include <vector>

#include "cuda/kernels/one_sided/workspace_layout.hpp"
#include "cuda/launch/communicator.hpp"
#include "cuda/launch/failure.hpp"
#include "cuda/launch/one_sided_launch.hpp"

namespace assay::cuda {

class OneSidedGroup {
 public:
  // Collective: every process calls it with the same workspace and request; that they are the same
  // is checked (SPEC CUD-2.1). Loads all kernels on all local devices, for up to `threads` per
  // block (0: as LaunchConfig has it).
  // Takes symmetric memory of at least workspace.window_bytes(), or allocates it.
  static Expected<OneSidedGroup> make(const Communicator& communicator,
                                      const one_sided::Workspace& workspace,
                                      const KernelRequest& request, std::uint32_t threads = 0,
                                      std::optional<SymmetricMemory> memory = std::nullopt);

  const Communicator& communicator() const { return communicator_; }
  const one_sided::Workspace& workspace() const { return workspace_; }
  const OneSidedKernels& kernels() const { return kernels_; }
  std::span<const Window> windows() const { return memory_.windows(); }
  // Local rank i's own window.
  Address own(std::size_t local) const {
    return windows()[local].of(communicator_.local_ranks()[local].rank);
  }

  // After the local streams have been waited for: what went wrong at this process's ranks.
  Expected<std::vector<RankStatus>> local_status() const;
  // Collective, after the local streams have been waited for: Done if no rank of the group failed,
  // else the same sentence at every rank (SPEC CUD-4.3).
  Status check() const;
  // Collective, after a failure and after the local streams have been waited for: control words as
  // at the start, at all ranks, before anybody goes on (SPEC CUD-4.4). What a round left in receive
  // buffers stays.
  Status recover() const;

 private:
  OneSidedGroup(Communicator communicator, one_sided::Workspace workspace, OneSidedKernels kernels,
                SymmetricMemory memory)
      : communicator_(std::move(communicator)),
        workspace_(std::move(workspace)),
        kernels_(kernels),
        memory_(std::move(memory)) {}
  Status reset() const;
  Status barrier() const;

  Communicator communicator_;
  one_sided::Workspace workspace_;
  OneSidedKernels kernels_;
  SymmetricMemory memory_;
};

}  // namespace assay::cuda
