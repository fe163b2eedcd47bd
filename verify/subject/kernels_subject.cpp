// The C interface of a subject over somebody's kernels: options, a host thread per rank, and what
// becomes of a group whose round did not end.
#include "verify/subject/kernels_subject.hpp"

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "model/core/text.hpp"
#include "model/moe/profile.hpp"
#include "verify/subject/cuda_pool.hpp"
#include "verify/subject/kernels_rank.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

namespace {

// One per process: the functions of a subject have no other way to know it. Never destroyed: its
// code may still run when the process ends.
std::optional<KernelsLibrary>& held_library() {
  static auto* const library = new std::optional<KernelsLibrary>;
  return *library;
}

// Why nothing more is run in this process; null: it is.
std::atomic<const char*> refusal{nullptr};
constexpr const char* kStillRuns =
    "an earlier round of these kernels has not ended; the rest needs another process";
constexpr const char* kLostDevice =
    "an earlier round of these kernels left the device in error; the rest needs another process";

class ForeignGroup {
 public:
  // `bad_options` becomes whether the error is the library's ASSAY_BAD_OPTIONS.
  static Expected<std::unique_ptr<ForeignGroup>> make(const assay_group_config& config,
                                                      const KernelsOptions& options,
                                                      bool& bad_options) {
    if (config.first_rank != 0 || config.num_local_ranks != config.ep_size)
      return unsupported("these kernels run with all ranks of a group in one process");
    ASSAY_TRY(const moe::CombineProfile* profile, moe::find_combine_profile(config.profile));
    std::unique_ptr<ForeignGroup> made(new ForeignGroup(config, options));
    KernelsGroup& shared = made->shared_;
    shared.out_is_bf16 = profile->arithmetic.out_is_bf16(config.low_precision_combine != 0);
    const KernelsLibrary& library = *held_library();
    ASSAY_TRY(const std::uint64_t bytes, library.window_bytes(shared.config, bad_options));
    const bool emulate = options.ranks == "emulated" || config.ep_size == 1 ||
                         (options.ranks == "auto" && cuda::device_count() < config.ep_size);
    ASSAY_CHECK(check_kernels_rounds(shared.config, options, emulate, {}));
    const DeviceTurn alone = DeviceTurn::alone();
    ASSAY_TRY(made->place_, take_place(emulate ? Seats::kRankEachEmulated : Seats::kRankEach,
                                       config.ep_size, bytes));
    CudaPlace& place = *made->place_;
    ASSAY_TRY(std::vector<DeviceKernels> kernels,
              create_ranks(library, shared.config, place.communicator, *place.memory, bytes,
                           bad_options));
    for (std::size_t rank = 0; rank < kernels.size(); ++rank)
      made->ranks_.push_back(std::make_unique<KernelsRank>(
          shared, std::move(kernels[rank]), place.seats[rank], static_cast<std::int32_t>(rank)));
    return Expected<std::unique_ptr<ForeignGroup>>(std::move(made));
  }

  int slot_rule(std::int32_t max_tokens_per_rank) const {
    return held_library()->slot_rule(shared_.config, max_tokens_per_rank);
  }

  Status run(std::span<const assay_round> rounds, assay_experts experts, void* context) {
    if (broken_) return bad_input("an earlier run of this group failed");
    if (refusal != nullptr) return unsupported(refusal.load());
    ASSAY_CHECK(check_kernels_rounds(shared_.config, shared_.options,
                                     place_->communicator.is_emulated(), rounds));
    slot_rules_.clear();
    for (const assay_round& round : rounds)
      slot_rules_.push_back(slot_rule(round.max_tokens_per_rank));
    std::vector<KernelsRank*> alive;
    for (auto& rank : ranks_)
      if (is_alive(rounds[0], RankId(rank->rank()))) alive.push_back(rank.get());
    const DeviceTurn turn = DeviceTurn::alone();
    for (KernelsRank* rank : alive)
      if (const Status reserved = rank->reserve(rounds); !reserved)
        return after(reserved.error(), alive);
    first_failure_.reset();
    std::vector<std::thread> threads;
    for (KernelsRank* rank : alive)
      threads.emplace_back([&, rank] { run_rank(*rank, rounds, experts, context); });
    for (std::thread& thread : threads) thread.join();
    return first_failure_ ? Status(after(*first_failure_, alive)) : Status(Done{});
  }

 private:
  ForeignGroup(const assay_group_config& config, const KernelsOptions& options)
      : profile_(config.profile) {
    shared_.options = options;
    shared_.seed = config.seed;
    assay_kernels_config& to = shared_.config;
    to = {};
    to.struct_size = sizeof to;
    to.ep_size = config.ep_size;
    to.num_experts = config.num_experts;
    to.top_k = config.top_k;
    to.hidden_size = config.hidden_size;
    to.max_tokens_per_rank = config.max_tokens_per_rank;
    to.max_payload_bytes_total = config.max_payload_bytes_total;
    to.invalid_expert_id = config.invalid_expert_id;
    to.combine_dtype = config.combine_dtype;
    to.low_precision_combine = config.low_precision_combine;
    to.profile = profile_.c_str();
    to.options = shared_.options.others.c_str();
  }

  // All rounds at one rank's pace. A failure elsewhere ends it at the next round.
  void run_rank(KernelsRank& rank, std::span<const assay_round> rounds, assay_experts experts,
                void* context) {
    const auto one_round = [&](std::size_t i) -> Status {
      ASSAY_CHECK(rank.dispatch(rounds[i]));
      ASSAY_CHECK(rank.receive(rounds[i], slot_rules_[i]));
      experts(context, static_cast<std::int32_t>(i), rank.rank());
      return rank.combine(rounds[i]);
    };
    for (std::size_t i = 0; i < rounds.size() && !has_failed(); ++i) {
      const Status status = one_round(i);
      if (status) continue;
      const std::lock_guard lock(mutex_);
      // What follows is what waited for it.
      if (!first_failure_) first_failure_ = status.error();
      return;
    }
  }

  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return first_failure_.has_value();
  }

  // What still runs keeps its memory, its states, its graphs and the device; and a device in error
  // would fail whatever comes next, for a reason that is not its own.
  Error after(const Error& error, const std::vector<KernelsRank*>& alive) {
    broken_ = true;
    for (const KernelsRank* rank : alive) {
      const cudaError_t state = rank->state();
      if (state == cudaSuccess) continue;
      place_->usable = false;
      refusal = state == cudaErrorNotReady ? kStillRuns : kLostDevice;
    }
    if (!place_->usable)
      for (auto& rank : ranks_) static_cast<void>(rank.release());
    return error;
  }

  const std::string profile_;
  KernelsGroup shared_;
  std::shared_ptr<CudaPlace> place_;
  std::vector<std::unique_ptr<KernelsRank>> ranks_;
  std::vector<int> slot_rules_;  // of the rounds of a run
  std::mutex mutex_;
  std::optional<Error> first_failure_;
  bool broken_ = false;
};

int create(const assay_group_config* config, void** group, assay_message* message) {
  *group = nullptr;
  if (cuda::device_count() == 0)
    return tell(unsupported("this machine has no CUDA device"), message);
  if (refusal != nullptr) return tell(unsupported(refusal.load()), message);
  const auto options = parse_kernels_options(config->options == nullptr ? "" : config->options);
  if (!options) return tell(options.error(), message, ASSAY_BAD_OPTIONS);
  bool bad_options = false;
  auto made = ForeignGroup::make(*config, *options, bad_options);
  if (!made) {
    const cudaError_t state = cudaStreamQuery(cudaStreamLegacy);
    if (state != cudaSuccess && state != cudaErrorNotReady) refusal = kLostDevice;
    return tell(made.error(), message, bad_options ? ASSAY_BAD_OPTIONS : ASSAY_FAILED);
  }
  *group = (*std::move(made)).release();
  return ASSAY_OK;
}

int run(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
        void* context, assay_message* message) {
  if (num_rounds == 0) return ASSAY_OK;
  const Status ran = static_cast<ForeignGroup*>(group)->run(
      {rounds, static_cast<std::size_t>(num_rounds)}, experts, context);
  return ran ? ASSAY_OK : tell(ran.error(), message);
}

void destroy(void* group) { delete static_cast<ForeignGroup*>(group); }

int slot_rule(void* group, int32_t max_tokens_per_rank) {
  return static_cast<const ForeignGroup*>(group)->slot_rule(max_tokens_per_rank);
}

}  // namespace

Expected<const assay_subject*> kernels_subject(KernelsLibrary library) {
  static const assay_subject subject{ASSAY_SUBJECT_ABI_VERSION,
                                     sizeof(assay_subject),
                                     "kernels",
                                     &create,
                                     &run,
                                     &destroy,
                                     &slot_rule};
  std::optional<KernelsLibrary>& held = held_library();
  if (held && held->spec() != library.spec())
    return bad_input(fmt::format("subject {}: this process holds {} already",
                                 in_quotes(library.spec()), in_quotes(held->spec())));
  separate_queues();
  held = std::move(library);
  return &subject;
}

}  // namespace assay::verify
