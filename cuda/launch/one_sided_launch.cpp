// Grids, blocks and the parameters that a launch copies. A launch of several ranks has its blocks
// side by side: rank i's begin where rank i - 1's end.
#include "cuda/launch/one_sided_launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cuda/kernels/one_sided/rows.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/launch/kernel_table.hpp"
#include "cuda/ops/rank_launch.hpp"

namespace assay::cuda {

using namespace assay::one_sided;

const char* step_name(Step step) {
  switch (step) {
    case Step::kOrderSlots:
      return "order slots";
    case Step::kDispatch:
      return "dispatch";
    case Step::kSanitize:
      return "sanitize";
    case Step::kExpertLists:
      return "slot lists";
    case Step::kStage:
      return "stage";
    case Step::kCombine:
      return "combine";
    case Step::kSentinelDispatch:
      return "Sentinel dispatch";
    case Step::kSentinelCombine:
      return "Sentinel combine";
  }
  return "?";
}

namespace {

std::uint64_t bytes_of(RowFormat format) {
  return format == RowFormat::kF32 ? 4 : format == RowFormat::kE4m3 ? 1 : 2;
}

}  // namespace

KernelPair find_own_kernels(Step step, const KernelRequest& request) {
  return {find_single_rank_kernel(step, request), find_several_ranks_kernel(step, request)};
}

Expected<OneSidedKernels> OneSidedKernels::find(const KernelRequest& request) {
  OneSidedKernels kernels;
  kernels.pulled_bytes_ = bytes_of(request.pulled);
  for (int i = 0; i < kSteps; ++i) {
    const auto step = static_cast<Step>(i);
    kernels.of(step) = request.find(step, request);
    if (kernels.of(step).single != nullptr && kernels.of(step).several != nullptr) continue;
    if (step == Step::kStage) continue;  // e4m3 rows need none
    if (step >= Step::kSentinelDispatch && !request.sentinel) continue;
    return unsupported(fmt::format("this build has no {} kernel for top_k {}{}", step_name(step),
                                   request.top_k,
                                   step == Step::kCombine || step == Step::kSentinelCombine
                                       ? " with this arithmetic and format"
                                       : ""));
  }
  return kernels;
}

namespace {

bool waits_for_peers(Step step) {
  return step == Step::kDispatch || step == Step::kCombine || step >= Step::kSentinelDispatch;
}

}  // namespace

Status OneSidedKernels::load(std::uint32_t threads) {
  int device = 0, processors = 0;
  ASSAY_CUDA(cudaGetDevice(&device), "asking for the current device");
  ASSAY_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
             "counting multiprocessors");
  multiprocessors_ = static_cast<std::uint32_t>(processors);
  for (int i = 0; i < kSteps; ++i) {
    const auto step = static_cast<Step>(i);
    for (const bool several : {false, true}) {
      const void* const function = several ? of(step).several : of(step).single;
      if (function == nullptr) continue;
      cudaFuncAttributes attributes{};  // asking for them loads the code (SPEC CUD-2.2)
      ASSAY_CUDA(cudaFuncGetAttributes(&attributes, function), "loading a one-sided kernel");
      const auto most = static_cast<std::uint32_t>(attributes.maxThreadsPerBlock);
      if (most < std::max(threads, kGroupThreads))
        return unsupported(
            fmt::format("the {} kernel runs with at most {} threads per block; {} are needed",
                        step_name(step), most, std::max(threads, kGroupThreads)));
      // The same code on every device.
      if (!several) most_threads_[static_cast<std::size_t>(i)] = most;
      if (waits_for_peers(step)) ASSAY_CHECK(note_resident(step, several, most));
    }
  }
  return Done{};
}

Status OneSidedKernels::note_resident(Step step, bool several, std::uint32_t most_threads) {
  const void* const function = several ? of(step).several : of(step).single;
  for (std::uint32_t warps = 1; warps <= most_threads / ResidentBlocks::kWarp; ++warps) {
    int per_processor = 0;
    ASSAY_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                   &per_processor, function, static_cast<int>(warps * ResidentBlocks::kWarp), 0),
               "asking how many blocks a multiprocessor holds");
    resident_of(step, several)
        .note(warps, static_cast<std::uint32_t>(per_processor) * multiprocessors_);
  }
  return Done{};
}

std::uint32_t OneSidedKernels::threads_for(Step step, std::uint64_t vectors,
                                           std::uint32_t groups) const {
  const std::uint32_t most = most_threads_[static_cast<std::size_t>(step)];
  CONTRACT(most != 0, step_name(step));  // load() comes first
  return group_threads(vectors, groups, most, multiprocessors_);
}

std::uint32_t OneSidedKernels::resident_blocks(Step step, std::size_t ranks,
                                               std::uint32_t threads) const {
  CONTRACT(waits_for_peers(step), step_name(step));
  return resident_[static_cast<std::size_t>(step)][ranks > 1 ? 1 : 0].of(threads);
}

namespace {

// One rank's part of a launch.
struct Grid {
  std::uint32_t blocks;
  // Of 16 bytes, that a group moves. Steps that share all rows out over a grid of their own size
  // say nothing, and have kGroupThreads.
  std::uint64_t vectors = kGroupThreads;
};

template <class Params>
concept BySentinel = requires(Params p) {
  p.sentinel.waiters;
};

// How many blocks of each rank wait; empty for a step that is not Sentinel's.
template <class Params>
Expected<std::vector<std::uint32_t>> waiters_by_rank(std::span<const Params> params,
                                                     std::span<const std::uint32_t> first_block,
                                                     const Residency& launch,
                                                     std::uint32_t multiprocessors) {
  std::vector<std::uint32_t> all;
  if constexpr (BySentinel<Params>) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      Residency own = launch;
      own.blocks = first_block[i + 1] - first_block[i];
      ASSAY_TRY(const std::uint32_t waiters,
                waiters_of(own, params[i].sentinel.waiters, params.size() == 1, multiprocessors));
      all.push_back(waiters);
    }
  }
  return all;
}

template <int kRanksMax, class Params>
Status enqueue(const void* kernel, std::span<const LaunchedRank> ranks,
               std::span<const Params> params, std::span<const std::uint32_t> first_block,
               std::span<const std::uint32_t> waiters, const LaunchConfig& config,
               std::uint32_t threads) {
  // Too large for a stack when there are many ranks; copied by the launch.
  const auto launch = std::make_unique<LaunchParams<Params, kRanksMax>>();
  launch->ranks.timeout_ns = config.timeout_ns;
  launch->ranks.num_ranks = static_cast<std::uint32_t>(ranks.size());
  std::copy(first_block.begin(), first_block.end(), launch->ranks.first_block);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    launch->ranks.rank[i] = ranks[i].rank;
    launch->ranks.delay_ns[i] = ranks[i].delay_ns;
    launch->params[i] = params[i];
    if constexpr (BySentinel<Params>) launch->params[i].sentinel.waiters = waiters[i];
  }
  void* arguments[] = {launch.get()};
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t how{dim3(first_block.back()),
                               dim3(threads),
                               0,
                               static_cast<cudaStream_t>(config.stream.handle),
                               &overlap,
                               config.overlaps ? 1u : 0u};
  ASSAY_CUDA(cudaLaunchKernelExC(&how, kernel, arguments), "kernel launch");
  return Done{};
}

}  // namespace

template <class Params, class GridOf>
Status OneSidedKernels::launch(Step step, std::span<const LaunchedRank> ranks,
                               std::span<const Params> params, const LaunchConfig& config,
                               const GridOf& grid_of) const {
  CONTRACT(ranks.size() == params.size() && !ranks.empty(), ranks.size(), params.size());
  if (ranks.size() > kRanksPerLaunch)
    return unsupported(fmt::format("{} ranks on one device; a launch holds at most {}",
                                   ranks.size(), kRanksPerLaunch));
  std::vector<std::uint32_t> first_block{0};
  for (const Params& one : params) first_block.push_back(first_block.back() + grid_of(one).blocks);
  const bool alone = ranks.size() == 1;
  const std::uint32_t threads = config.threads != 0 ? config.threads
                                : alone
                                    ? threads_for(step, grid_of(params[0]).vectors,
                                                  first_block.back() * (1 + config.launches_beside))
                                    : kGroupThreads;
  Residency all{step_name(step), first_block.back(), threads};
  if (waits_for_peers(step)) all.resident = resident_blocks(step, ranks.size(), threads);
  if (waits_for_peers(step) && !alone) ASSAY_CHECK(check_all_resident(all, ranks.size()));
  ASSAY_TRY(const std::vector<std::uint32_t> waiters,
            waiters_by_rank(params, first_block, all, multiprocessors_));
  if (alone)
    return enqueue<1>(of(step).single, ranks, params, first_block, waiters, config, threads);
  return enqueue<kRanksPerLaunch>(of(step).several, ranks, params, first_block, waiters, config,
                                  threads);
}

namespace {

std::uint32_t block_per_token(std::uint32_t num_tokens) { return std::max(num_tokens, 1u); }

}  // namespace

std::uint32_t OneSidedKernels::sentinel_blocks(std::size_t ranks, std::uint32_t ep_size,
                                               std::uint32_t max_tokens_per_rank,
                                               std::uint32_t num_tokens) const {
  return sentinel_groups_of(ep_size, max_tokens_per_rank, num_tokens,
                            ranks == 1 ? multiprocessors_ : 0);
}

Status OneSidedKernels::dispatch(std::span<const LaunchedRank> ranks,
                                 std::span<const DispatchParams> params,
                                 const LaunchConfig& config) const {
  return launch(Step::kDispatch, ranks, params, config, [](const DispatchParams& p) {
    return Grid{block_per_token(p.num_tokens), vectors_and_teams(p)};
  });
}
Status OneSidedKernels::combine(std::span<const LaunchedRank> ranks,
                                std::span<const CombineParams> params,
                                const LaunchConfig& config) const {
  CONTRACT(!params.empty());
  const std::uint64_t vectors = landing_vectors(params[0].hidden_size * pulled_bytes_);
  std::uint32_t tokens = 0;
  for (const CombineParams& p : params) tokens += block_per_token(p.num_tokens);
  const std::uint32_t parts_log2 = config.parts_log2.value_or(
      parts_log2_of(vectors, tokens * (1 + config.launches_beside), multiprocessors_));
  std::vector<CombineParams> in_parts(params.begin(), params.end());
  for (CombineParams& p : in_parts) p.parts_log2 = parts_log2;
  return launch(Step::kCombine, ranks, std::span<const CombineParams>(in_parts), config,
                [&](const CombineParams& p) {
                  return Grid{groups_of(p), vectors_of_part(vectors, parts_log2)};
                });
}
Status OneSidedKernels::dispatch(std::span<const LaunchedRank> ranks,
                                 std::span<const SentinelDispatchParams> params,
                                 const LaunchConfig& config) const {
  return launch(Step::kSentinelDispatch, ranks, params, config,
                [&](const SentinelDispatchParams& p) {
                  const DispatchParams& d = p.dispatch;
                  return Grid{sentinel_blocks(ranks.size(), d.group.ep_size,
                                              d.group.max_tokens_per_rank, d.num_tokens),
                              d.vectors.count + kPeerThreads};
                });
}
Status OneSidedKernels::combine(std::span<const LaunchedRank> ranks,
                                std::span<const SentinelCombineParams> params,
                                const LaunchConfig& config) const {
  return launch(Step::kSentinelCombine, ranks, params, config, [&](const SentinelCombineParams& p) {
    const CombineParams& c = p.combine;
    return Grid{
        sentinel_blocks(ranks.size(), c.group.ep_size, c.group.max_tokens_per_rank, c.num_tokens),
        landing_vectors(c.hidden_size * pulled_bytes_)};
  });
}

// Rows are shared out over the blocks; these grids fill a part of any device and need no more.
Status OneSidedKernels::sanitize(std::span<const LaunchedRank> ranks,
                                 std::span<const SanitizeParams> params,
                                 const LaunchConfig& config) const {
  return launch(Step::kSanitize, ranks, params, config,
                [](const SanitizeParams&) { return Grid{32}; });
}
Status OneSidedKernels::order_slots(std::span<const LaunchedRank> ranks,
                                    std::span<const OrderSlotsParams> params,
                                    const LaunchConfig& config) const {
  return launch(Step::kOrderSlots, ranks, params, config,
                [](const OrderSlotsParams& p) { return Grid{p.dispatch.group.ep_size}; });
}
Status OneSidedKernels::list_experts(std::span<const LaunchedRank> ranks,
                                     std::span<const ExpertListParams> params,
                                     const LaunchConfig& config) const {
  return launch(Step::kExpertLists, ranks, params, config,
                [](const ExpertListParams& p) { return Grid{p.num_local_experts}; });
}
Status OneSidedKernels::stage(std::span<const LaunchedRank> ranks,
                              std::span<const StageParams> params,
                              const LaunchConfig& config) const {
  return launch(Step::kStage, ranks, params, config, [](const StageParams&) { return Grid{64}; });
}

}  // namespace assay::cuda
