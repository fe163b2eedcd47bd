// Which ranks exist, on which device each one is, and memory that all of them reach. Three ways to
// make a group: several ranks emulated on one device, one process with a device per rank (NCCL),
// one process per rank (NCCL; rank and size from mpirun, srun or torchrun). Decides how symmetric
// memory is obtained and what is refused; flags and phases are the kernels'.
// A CUDA or NCCL call never stops a process for good: what needs peers is given up after a budget.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/core/expected.hpp"
#include "model/core/ops.hpp"

namespace assay::cuda {

struct LocalRank {
  RankId rank;
  int device = 0;
};

// Bytes per rank at one constant stride in the address space of each local rank. The window of
// local rank i, as kernels launched on its device address it, is windows()[i].
class SymmetricMemory {
 public:
  struct Impl;
  explicit SymmetricMemory(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::span<const Window> windows() const;
  std::uint64_t bytes_per_rank() const;

 private:
  std::shared_ptr<Impl> impl_;  // returned to NCCL with the last copy, before its communicator
};

class Communicator {
 public:
  // ep_size ranks on one device, which may share launches.
  static Expected<Communicator> emulated(std::int32_t ep_size, int device);
  // One rank per device, all in this process. Errors: unsupported without NCCL or peer access.
  static Expected<Communicator> one_process(std::span<const int> devices);
  // One rank in this process, which has its rank, size and local rank from a launcher (SPEC
  // CUD-1.1). Bootstrap by NCCL_COMM_ID=host:port, else through `id_path`, a path that all
  // processes share (SPEC CUD-1.2). Errors: variables that are missing, processes that do not come
  // within timeout_ms.
  static Expected<Communicator> from_environment(const std::string& id_path,
                                                 int timeout_ms = 60'000);

  std::int32_t ep_size() const;
  std::span<const LocalRank> local_ranks() const;
  bool is_emulated() const;

  // Collective: every process calls it with the same number. One NCCL window of all ranks, which
  // must be reachable by loads and stores from every device (an LSA team of the whole group).
  Expected<SymmetricMemory> allocate(std::uint64_t bytes_per_rank) const;

  // Collective: every process gives the words of its local ranks, [local rank, words], and gets
  // those of all, [ep, words]. What lies before it at one rank lies before what follows at all
  // others: a barrier of hosts. Errors: peers that do not answer; the communicator is of no use
  // then.
  Expected<std::vector<std::uint64_t>> gather(std::span<const std::uint64_t> of_local_ranks) const;

  struct Impl;

 private:
  explicit Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

// Devices that CUDA sees, 0 if there is no driver.
int device_count();

}  // namespace assay::cuda
