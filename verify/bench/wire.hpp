// What the machine can do at best: bytes per second in a pattern, the latencies that a protocol is
// made of, and NCCL's collectives for the same bytes. Decides SPEC VER-20.4 (ceilings) and VER-20.5
// (the floor).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cuda/launch/communicator.hpp"
#include "verify/bench/bench.hpp"
#include "verify/bench/timing.hpp"

namespace assay::verify::bench {

// Names of the parts that floors are made of.
inline constexpr const char* kEmptyKernel = "empty kernel in a graph";
inline constexpr const char* kLocalLoad = "local load";
inline constexpr const char* kLocalAtomic = "local atomic, acq_rel";
inline constexpr const char* kPeerLoad = "peer load";
inline constexpr const char* kPeerStoreFence = "peer store and release fence";
inline constexpr const char* kReleaseFence = "release fence alone";
inline constexpr const char* kFlagRoundTrip = "flag round trip";

// Buffers on every device that all others reach, large enough for the patterns asked for.
class Wire {
 public:
  // bytes: of the largest pattern at one rank, in or out.
  static Expected<Wire> make(const cuda::Communicator& communicator, std::int64_t bytes);

  // Patterns whose speed on such machines is known: one pair, and all to all others.
  Expected<std::vector<Figure>> known_ceilings();
  Expected<std::vector<Figure>> parts();

  struct Ceiling {
    double microseconds = 0;
    std::string mover;
    double copy_engine = 0;  // microseconds of the copy engine; 0 where it was not asked
  };
  // The fastest way of multiprocessors to move `traffic` once. Pulling: every rank loads what comes
  // to it.
  Expected<Ceiling> ceiling(const Traffic& traffic, bool pulling);

  // NCCL in the place of a round: AllGather of every rank's payload rows and ReduceScatter of bf16
  // rows; grouped send and receive of the rows of `dispatch`, then of `combine`.
  struct Collectives {
    double all_gather_reduce_scatter = 0, all_to_all = 0;
  };
  Expected<Collectives> nccl(std::int64_t batch, std::int64_t row_bytes, std::int32_t hidden_size,
                             const Traffic& dispatch, const Traffic& combine);

 private:
  Wire(cuda::Communicator communicator, cuda::SymmetricMemory memory, Stopwatch watch)
      : communicator_(std::move(communicator)),
        memory_(std::move(memory)),
        watch_(std::move(watch)) {}
  enum class Way : std::uint8_t { kVector, kVector16, kBulk, kBulk16, kCopyEngine };
  static const char* way_name(Way way, bool pulling);
  Expected<double> move(const Traffic& traffic, bool pulling, Way way, int repeats);
  Address out_of(std::size_t rank) const;  // what this rank sends from
  Address in_of(std::size_t rank, std::size_t seen_from) const;

  cuda::Communicator communicator_;
  cuda::SymmetricMemory memory_;
  Stopwatch watch_;
  std::int64_t bytes_ = 0;
  std::vector<void*>
      nccl_;  // ncclComm_t, made when first asked for; they live as long as the process
};

}  // namespace assay::verify::bench
