// Start here: how long dispatch and combine take on real GPUs, and how long they could take. One
// row per (model, batch, recipe, router): rounds chained in one graph per GPU, against the fastest
// way to move the same bytes between the same GPUs, the sum of the parts' latencies and NCCL's
// collectives, all in the same run. Decides what is timed and how it is normalised (SPEC VER-20);
// how a kernel works is cuda/kernels. Exists only in builds with nvcc.
//
//   routing.hpp   models, routers, and the bytes that a routing moves
//   rounds.hpp    dispatch and combine, chained and timed; foreign_rounds.hpp: somebody else's
//   round_data.hpp    what is sent and compared
//   wire.hpp      ceilings, latencies of the parts, NCCL
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/core/expected.hpp"
#include "verify/bench/routing.hpp"

namespace assay::verify::bench {

// A figure and what it must be near to (SPEC VER-20.4).
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> known;  // on this kind of machine; nothing: not known for it
  bool decides = true;          // whether a ceiling of some row is taken this way
  bool is_near_known() const;   // within 3 %; true where nothing is known
};

// Tokens of ranks that share a GPU, whose blocks wait for each other (SPEC VER-20.8): an H200 holds
// 528 blocks of 256 threads of up to 64 registers, and beside a combine that waits stands the next
// dispatch, which waits for it.
inline constexpr std::size_t kTogether = 256;

struct BenchOptions {
  std::vector<int> devices;   // one rank each
  bool emulated = false;      // all ranks on devices[0], a stream each: no wire (SPEC VER-20.8)
  std::int32_t rounds = 100;  // chained in one graph
  std::int32_t repeats = 3;   // of a graph; the fastest counts, all are told
  std::uint32_t threads = 0;  // of a group; 0: the launcher's choice
  bool overlap = true;        // kernels come to the device before the last one has ended
  bool sentinel = true;       // rows of Sentinel, to the batches it serves
  std::int32_t sentinel_max_tokens = 512;
  bool nccl = true;
  bool ceilings = true;  // of each row's own pattern
  // Somebody's kernels beside ours (SPEC VER-20.7): "kernels:FILE", or none. Their sums are held to
  // the profile.
  std::string kernels, kernels_profile, kernels_options;
  std::function<void(const std::string&)> progress;
};

struct RowRequest {
  Model model;
  std::int32_t batch = 1;  // tokens per rank
  moe::Recipe recipe = moe::Recipe::kBf16;
  std::string router;                               // "perfect_router", "trace"
  std::vector<std::vector<std::int32_t>> topk_ids;  // [rank] -> [batch, top_k]
};

// All times in microseconds per round, the slowest rank's.
struct ProtocolTimes {
  double round = 0;     // dispatch + combine
  double dispatch = 0;  // alone (SPEC VER-20.2)
  double combine = 0;
  double empty = 0;                // a round without tokens
  std::vector<double> all_rounds;  // of every repeat
};

struct BenchRow {
  RowRequest request;
  Traffic dispatch_traffic, combine_traffic;
  std::int64_t dispatch_row_bytes = 0;
  std::optional<ProtocolTimes> fence, sentinel;
  std::string fence_reason, sentinel_reason;  // why there is none
  // Microseconds for the same bytes by the fastest way of multiprocessors, and which; of a dispatch
  // also by the copy engine. 0: not taken.
  double dispatch_ceiling = 0, combine_ceiling = 0, dispatch_copy_engine = 0;
  std::string dispatch_mover, combine_mover;
  std::vector<double> foreign_rounds;  // of every repeat; none: not taken, for the reason
  std::string foreign_reason;
  double nccl_all_gather_reduce_scatter = 0, nccl_all_to_all = 0;  // microseconds; 0: not taken
  std::string nccl_reason;
  std::int64_t checked_tokens = 0;  // of the last round, bit for bit
};

// The least that a round of one token can take by either protocol, in microseconds (SPEC
// VER-20.5).
struct Floors {
  double fence = 0, sentinel = 0;
};

struct BenchResult {
  std::string device_name, driver, cuda, nccl, foreign_name;
  std::vector<Figure> ceilings;  // known patterns
  std::vector<Figure> parts;     // latencies
  std::vector<BenchRow> rows;
  Floors floors;
  bool ceilings_hold() const;
};

// What can be said without a GPU. Errors: fewer than two ranks, more tokens than ranks on one GPU
// may have, an unknown profile, a file that is no library of kernels.
Status check_bench(const BenchOptions& options, std::span<const RowRequest> rows);

// Errors: those of check_bench, fewer devices than asked for, no peer access, a wrong bit of our
// own; of somebody's kernels bad options, and what makes every later time a wrong one: a round that
// does not end, or leaves a device in error.
Expected<BenchResult> run_bench(const BenchOptions& options, std::vector<RowRequest> rows);

}  // namespace assay::verify::bench
