// The C interface over workers: options, one host thread per device, and what happens to a group
// whose round failed. What a device does is cuda_worker.cpp's.
#include "verify/subject/cuda_subject.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "cuda/launch/group.hpp"
#include "model/core/case_text.hpp"
#include "model/core/text.hpp"
#include "verify/subject/cuda_pool.hpp"
#include "verify/subject/cuda_worker.hpp"
#include "verify/subject/kernels_options.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

namespace {

Expected<CudaOptions> parse_options(std::string_view text) {
  static constexpr std::string_view kKeys[] = {
      "ranks",   "threads", "timeout_ms", "delay_us", "skew_us",     "graph",
      "overlap", "replays", "protocol",   "slots",    "first_epoch", "sentinel_max_tokens"};
  const auto parsed = parse_key_values(text, kKeys);
  if (!parsed) return unsupported(parsed.error().sentence);
  CudaOptions options;
  const std::pair<std::string_view, std::uint32_t*> numbers[] = {
      {"threads", &options.threads},   {"timeout_ms", &options.timeout_ms},
      {"delay_us", &options.delay_us}, {"skew_us", &options.skew_us},
      {"replays", &options.replays},
  };
  for (const auto& [key, value] : *parsed) {
    if (key == "ranks") {
      ASSAY_TRY(options.ranks, parse_ranks(value));
    } else if (key == "protocol") {
      ASSAY_TRY(options.protocol.choice, parse_protocol_choice(value));
    } else if (key == "slots") {
      ASSAY_TRY(options.ordered_slots, parse_slots(value));
    } else if (key == "graph" || key == "overlap") {
      ASSAY_TRY(const std::uint32_t on, parse_integer<std::uint32_t>(key, value, 0, 1));
      (key == "graph" ? options.graph : options.overlap) = on != 0;
    } else if (key == "first_epoch") {
      ASSAY_TRY(options.first_epoch, parse_integer<std::uint32_t>(key, value, 0, 0xFFFFFFFEu));
      if (options.first_epoch % 2 != 0)
        return bad_input("option first_epoch is odd; a round begins at an even one");
    } else if (key == "sentinel_max_tokens") {
      ASSAY_TRY(options.protocol.sentinel_max_tokens,
                parse_integer<std::int32_t>(key, value, 1, 0x7FFFFFFF));
    } else {
      const bool may_be_0 = key != "timeout_ms";
      for (const auto& [name, number] : numbers)
        if (name == key) {
          ASSAY_TRY(*number, parse_integer<std::uint32_t>(key, value, may_be_0 ? 0 : 1,
                                                          name == "threads" ? 1024 : 1'000'000));
        }
    }
  }
  return options;
}

// Whether a mutant's kernels are among those that a group's rounds launch.
bool has_wrong_kernel(const cuda::KernelRequest& request) {
  for (int i = 0; i < cuda::kSteps; ++i) {
    const auto step = static_cast<cuda::Step>(i);
    const bool launched = step < cuda::Step::kSentinelDispatch || request.sentinel;
    if (launched &&
        request.find(step, request).single != cuda::find_own_kernels(step, request).single)
      return true;
  }
  return false;
}

class CudaGroup {
 public:
  static Expected<std::unique_ptr<CudaGroup>> make(const assay_group_config& config,
                                                   const CudaOptions& options,
                                                   cuda::FindKernels find) {
    if (config.first_rank != 0 || config.num_local_ranks != config.ep_size)
      return unsupported("the CUDA subject holds all ranks of a group in one process");
    ASSAY_TRY(
        GroupPlan plan,
        plan_group(config, options.protocol.sentinel_max_tokens_of(config.max_tokens_per_rank)));
    plan.ordered_slots = options.ordered_slots;
    cuda::KernelRequest request{config.top_k, plan.sum, plan.rows, plan.pulled, plan.out};
    request.sentinel = plan.workspace.protocol_of(1) == one_sided::Protocol::kSentinel;
    request.find = find;
    if (find != &cuda::find_own_kernels && !has_wrong_kernel(request))
      return unsupported(
          fmt::format("this mutant has no kernel for top_k {} with this arithmetic, format and "
                      "protocol",
                      config.top_k));
    ASSAY_CHECK(cuda::OneSidedKernels::find(request));  // before anything is allocated
    // NCCL makes no symmetric window for a group of one.
    const bool emulate = options.ranks == "emulated" || config.ep_size == 1 ||
                         (options.ranks == "auto" && cuda::device_count() < config.ep_size);
    if (emulate && config.ep_size > cuda::kRanksPerLaunch)
      return unsupported(fmt::format("{} ranks on one device; a launch holds at most {}",
                                     config.ep_size, cuda::kRanksPerLaunch));
    const DeviceTurn alone = DeviceTurn::alone();
    ASSAY_TRY(const std::shared_ptr<CudaPlace> place,
              take_place(emulate ? Seats::kOneEmulated : Seats::kRankEach, config.ep_size,
                         plan.workspace.window_bytes()));
    ASSAY_TRY(cuda::OneSidedGroup group,
              cuda::OneSidedGroup::make(place->communicator, plan.workspace, request,
                                        options.threads, *place->memory));
    std::unique_ptr<CudaGroup> made(
        new CudaGroup(std::move(plan), options, place, std::move(group)));
    for (auto& worker : made->workers_) ASSAY_CHECK(worker->prepare());
    ASSAY_CHECK(made->group_.recover());  // control words are not poison
    for (auto& worker : made->workers_) ASSAY_CHECK(worker->start());
    return Expected<std::unique_ptr<CudaGroup>>(std::move(made));
  }

  int slot_rule(std::int32_t max_tokens_per_rank) const {
    return plan_.slot_rule(max_tokens_per_rank);
  }

  Status run(std::span<const assay_round> rounds, assay_experts experts, void* context) {
    ASSAY_TRY(const std::vector<RoundPlan> plans, plan_rounds(plan_, rounds));
    if (!workers_[0]->has_reserved(rounds)) {
      const DeviceTurn alone = DeviceTurn::alone();
      for (auto& worker : workers_) ASSAY_CHECK(worker->reserve(rounds));
    }
    const DeviceTurn turn(blocks_of(rounds));
    std::vector<std::optional<Error>> errors(workers_.size());
    failed_ = false;
    std::vector<std::thread> threads;
    for (std::size_t w = 1; w < workers_.size(); ++w)
      threads.emplace_back([&, w] { errors[w] = run_worker(w, rounds, plans, experts, context); });
    errors[0] = run_worker(0, rounds, plans, experts, context);
    for (std::thread& thread : threads) thread.join();
    for (const auto& error : errors)
      if (error) return after(*error);
    return Done{};
  }

 private:
  CudaGroup(GroupPlan plan, const CudaOptions& options, std::shared_ptr<CudaPlace> place,
            cuda::OneSidedGroup group)
      : plan_(std::move(plan)),
        options_(options),
        place_(std::move(place)),
        group_(std::move(group)) {
    const std::int32_t here = place_->communicator.is_emulated() ? plan_.config.ep_size : 1;
    std::int32_t first = 0;
    for (CudaSeat& seat : place_->seats) {
      workers_.push_back(std::make_unique<CudaWorker>(plan_, options_, group_, seat, first, here));
      first += here;
    }
  }

  // All rounds at one device's pace. A failure elsewhere ends it at the next step.
  std::optional<Error> run_worker(std::size_t w, std::span<const assay_round> rounds,
                                  std::span<const RoundPlan> plans, assay_experts experts,
                                  void* context) {
    CudaWorker& worker = *workers_[w];
    const auto one_round = [&](std::size_t i) -> Status {
      ASSAY_CHECK(worker.dispatch(rounds[i], plans[i]));
      ASSAY_CHECK(worker.receive(rounds[i], plans[i]));
      for (const RankId rank : worker.ranks(plans[i]))
        experts(context, static_cast<std::int32_t>(i), rank.value());
      return worker.combine(rounds[i], plans[i]);
    };
    for (std::size_t i = 0; i < rounds.size() && !failed_; ++i) {
      const Status status = one_round(i);
      if (status) continue;
      failed_ = true;
      return status.error();
    }
    return std::nullopt;
  }

  // A failed round: what all ranks say of it, and a group that can go on (SPEC CUD-4.4).
  Error after(const Error& error) {
    for (auto& worker : workers_)
      if (!worker->is_idle()) place_->usable = false;
    if (!place_->usable) return error;
    const Status all = group_.check();
    if (all) return error;
    const Status recovered = group_.recover();
    if (!recovered) {
      place_->usable = false;
      return all.error().within(recovered.error().sentence);
    }
    return all.error();
  }

  // Of the fullest device, in any round: as many as Sentinel's dispatch has, or Fence's combine.
  std::uint32_t blocks_of(std::span<const assay_round> rounds) const {
    const auto ep = static_cast<std::uint32_t>(plan_.config.ep_size);
    const bool emulated = place_->communicator.is_emulated();
    std::uint32_t most = 1;
    for (const assay_round& round : rounds) {
      std::uint32_t by_sentinel = 0, by_fence = 0;
      for (std::uint32_t rank = 0; rank < ep; ++rank) {
        const std::uint32_t tokens = tokens_of(round, RankId(static_cast<std::int32_t>(rank)));
        const std::uint32_t blocks = group_.kernels().sentinel_blocks(
            emulated ? ep : 1, ep, static_cast<std::uint32_t>(round.max_tokens_per_rank), tokens);
        by_sentinel = emulated ? by_sentinel + blocks : std::max(by_sentinel, blocks);
        by_fence = emulated ? by_fence + std::max(tokens, 1u) : std::max({by_fence, tokens, 1u});
      }
      most = std::max({most, by_sentinel, by_fence << CudaWorker::most_parts_log2(by_fence)});
    }
    return most;
  }

  GroupPlan plan_;
  CudaOptions options_;
  std::shared_ptr<CudaPlace> place_;
  cuda::OneSidedGroup group_;
  std::vector<std::unique_ptr<CudaWorker>> workers_;
  std::atomic<bool> failed_{false};
};

int create_own(const assay_group_config* config, void** group, assay_message* message) {
  return cuda_create(&cuda::find_own_kernels, config, group, message);
}

}  // namespace

int cuda_create(cuda::FindKernels find, const assay_group_config* config, void** group,
                assay_message* message) {
  separate_queues();
  *group = nullptr;
  if (cuda::device_count() == 0)
    return tell(unsupported("this machine has no CUDA device"), message);
  const auto options = parse_options(config->options == nullptr ? "" : config->options);
  if (!options) return tell(options.error(), message, ASSAY_BAD_OPTIONS);
  auto made = CudaGroup::make(*config, *options, find);
  if (!made) return tell(made.error(), message);
  *group = (*std::move(made)).release();
  return ASSAY_OK;
}

int cuda_run(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
             void* context, assay_message* message) {
  const Status ran = static_cast<CudaGroup*>(group)->run(
      {rounds, static_cast<std::size_t>(num_rounds)}, experts, context);
  return ran ? ASSAY_OK : tell(ran.error(), message);
}

void cuda_destroy(void* group) { delete static_cast<CudaGroup*>(group); }

int cuda_slot_rule(void* group, int32_t max_tokens_per_rank) {
  return static_cast<const CudaGroup*>(group)->slot_rule(max_tokens_per_rank);
}

const assay_subject& cuda_subject() {
  static const assay_subject subject{ASSAY_SUBJECT_ABI_VERSION,
                                     sizeof(assay_subject),
                                     "cuda",
                                     &create_own,
                                     &cuda_run,
                                     &cuda_destroy,
                                     &cuda_slot_rule};
  return subject;
}

}  // namespace assay::verify
