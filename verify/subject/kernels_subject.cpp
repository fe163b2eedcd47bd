// The C interface of a subject over somebody's kernels: options, a host thread per rank, and what
// becomes of a group whose round did not end.
#include "verify/subject/kernels_subject.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "model/core/case_text.hpp"
#include "model/core/text.hpp"
#include "model/moe/profile.hpp"
#include "verify/subject/cuda_pool.hpp"
#include "verify/subject/kernels_rank.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

namespace {

// One per process: the functions of a subject have no other way to know it.
std::optional<KernelsLibrary>& held_library() {
  static std::optional<KernelsLibrary> library;
  return library;
}

// Whether a round of somebody's kernels has not ended: nothing else runs behind it.
std::atomic<bool> something_hangs{false};

Expected<KernelsOptions> parse_options(std::string_view text) {
  static constexpr std::string_view kOwn[] = {"ranks",   "timeout_ms", "skew_us",  "graph",
                                              "replays", "together",   "keep_recv"};
  KernelsOptions options;
  const std::pair<std::string_view, std::uint32_t*> numbers[] = {
      {"timeout_ms", &options.timeout_ms},
      {"skew_us", &options.skew_us},
      {"replays", &options.replays},
      {"together", &options.together}};
  ASSAY_TRY(const std::vector<KeyValue> fields, parse_key_values(text));
  for (const auto& [key, value] : fields) {
    if (std::find(std::begin(kOwn), std::end(kOwn), key) == std::end(kOwn)) {
      options.others += fmt::format("{}{}={}", options.others.empty() ? "" : " ", key, value);
      continue;
    }
    if (key == "ranks") {
      ASSAY_TRY(options.ranks, parse_ranks(value));
    } else if (key == "graph" || key == "keep_recv") {
      ASSAY_TRY(const std::uint32_t on, parse_integer<std::uint32_t>(key, value, 0, 1));
      (key == "graph" ? options.graph : options.keep_recv) = on != 0;
    } else {
      for (const auto& [name, number] : numbers)
        if (name == key) {
          const std::uint32_t least = key == "timeout_ms" || key == "together" ? 1 : 0;
          ASSAY_TRY(*number, parse_integer<std::uint32_t>(key, value, least, 1'000'000));
        }
    }
  }
  return options;
}

bool out_is_bf16(const assay_group_config& config, const moe::CombineArithmetic& arithmetic) {
  return config.low_precision_combine != 0 &&
         arithmetic.low_precision_out == moe::CombineArithmetic::LowPrecisionOut::kBf16;
}

class ForeignGroup {
 public:
  static Expected<std::unique_ptr<ForeignGroup>> make(const assay_group_config& config,
                                                      const KernelsOptions& options) {
    if (config.first_rank != 0 || config.num_local_ranks != config.ep_size)
      return unsupported("these kernels run with all ranks of a group in one process");
    ASSAY_TRY(const moe::CombineProfile* profile, moe::find_combine_profile(config.profile));
    std::unique_ptr<ForeignGroup> made(new ForeignGroup(config, options));
    KernelsGroup& shared = made->shared_;
    shared.out_is_bf16 = out_is_bf16(config, profile->arithmetic);
    const KernelsLibrary& library = *held_library();
    ASSAY_TRY(const std::uint64_t bytes, library.window_bytes(shared.config));
    const bool emulate = options.ranks == "emulated" || config.ep_size == 1 ||
                         (options.ranks == "auto" && cuda::device_count() < config.ep_size);
    const DeviceTurn alone = DeviceTurn::alone();
    ASSAY_TRY(made->place_, take_place(emulate ? Seats::kRankEachEmulated : Seats::kRankEach,
                                       config.ep_size, bytes));
    for (std::int32_t rank = 0; rank < config.ep_size; ++rank) {
      cuda::DeviceScope scope(made->seat(rank).device);
      ASSAY_CUDA(cudaMemset(made->windows_of(rank)[static_cast<std::size_t>(rank)], 0, bytes),
                 "zeroing a window");
      ASSAY_CUDA(cudaDeviceSynchronize(), "zeroing a window");
    }
    for (std::int32_t rank = 0; rank < config.ep_size; ++rank) {
      cuda::DeviceScope scope(made->seat(rank).device);
      ASSAY_TRY(RankKernels kernels,
                RankKernels::make(library, shared.config, rank, made->windows_of(rank)));
      ASSAY_CUDA(cudaDeviceSynchronize(), "creating a rank");
      made->ranks_.push_back(
          std::make_unique<KernelsRank>(shared, std::move(kernels), made->seat(rank), rank));
    }
    return Expected<std::unique_ptr<ForeignGroup>>(std::move(made));
  }

  int slot_rule(std::int32_t max_tokens_per_rank) const {
    const auto rule = held_library()->slot_rule(shared_.config, max_tokens_per_rank);
    return rule ? *rule : -1;
  }

  Status run(std::span<const assay_round> rounds, assay_experts experts, void* context) {
    if (broken_) return bad_input("an earlier run of this group failed");
    ASSAY_CHECK(fits_together(rounds));
    std::vector<KernelsRank*> alive;
    for (auto& rank : ranks_)
      if (is_alive(rounds[0], rank->rank())) alive.push_back(rank.get());
    const DeviceTurn turn = DeviceTurn::alone();
    for (KernelsRank* rank : alive) ASSAY_CHECK(rank->reserve(rounds));
    std::vector<std::optional<Error>> errors(alive.size());
    failed_ = false;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < alive.size(); ++i)
      threads.emplace_back([&, i] { errors[i] = run_rank(*alive[i], rounds, experts, context); });
    for (std::thread& thread : threads) thread.join();
    for (const auto& error : errors)
      if (error) return after(*error, alive);
    return Done{};
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

  CudaSeat& seat(std::int32_t rank) { return place_->seats[static_cast<std::size_t>(rank)]; }

  // Every rank's memory, as this rank's device addresses it.
  std::vector<void*> windows_of(std::int32_t rank) const {
    const Window& own = place_->memory->windows()[static_cast<std::size_t>(rank)];
    std::vector<void*> windows;
    for (std::int32_t r = 0; r < shared_.config.ep_size; ++r)
      windows.push_back(cuda::pointer(own.of(RankId(r))));
    return windows;
  }

  static bool is_alive(const assay_round& round, std::int32_t rank) {
    return round.rank_mask == nullptr || (round.rank_mask[rank / 64] >> (rank % 64) & 1) != 0;
  }

  // Blocks that wait for each other must be resident together, and nobody but their author knows
  // how many there are: of all that were read, one per token at most.
  Status fits_together(std::span<const assay_round> rounds) const {
    if (!place_->communicator.is_emulated()) return Done{};
    for (const assay_round& round : rounds) {
      std::int64_t tokens = 0;
      for (std::int32_t rank = 0; rank < shared_.config.ep_size; ++rank)
        tokens += round.num_tokens[rank];
      if (tokens > shared_.options.together)
        return unsupported(
            fmt::format("{} tokens of ranks that share a device; option together allows {}", tokens,
                        shared_.options.together));
    }
    return Done{};
  }

  // All rounds at one rank's pace. A failure elsewhere ends it at the next round.
  std::optional<Error> run_rank(KernelsRank& rank, std::span<const assay_round> rounds,
                                assay_experts experts, void* context) {
    const auto one_round = [&](std::size_t i) -> Status {
      ASSAY_CHECK(rank.dispatch(rounds[i]));
      ASSAY_CHECK(rank.receive(rounds[i]));
      experts(context, static_cast<std::int32_t>(i), rank.rank());
      return rank.combine(rounds[i]);
    };
    for (std::size_t i = 0; i < rounds.size() && !failed_; ++i) {
      const Status status = one_round(i);
      if (status) continue;
      failed_ = true;
      return status.error();
    }
    return std::nullopt;
  }

  // What still runs keeps its memory, its state and the device.
  Error after(const Error& error, const std::vector<KernelsRank*>& alive) {
    broken_ = true;
    for (KernelsRank* rank : alive)
      if (!rank->is_idle()) {
        place_->usable = false;
        something_hangs = true;
      }
    if (!place_->usable)
      for (KernelsRank* rank : alive) rank->abandon();
    return error;
  }

  const std::string profile_;
  KernelsGroup shared_;
  std::shared_ptr<CudaPlace> place_;
  std::vector<std::unique_ptr<KernelsRank>> ranks_;
  std::atomic<bool> failed_{false};
  bool broken_ = false;
};

int create(const assay_group_config* config, void** group, assay_message* message) {
  *group = nullptr;
  if (cuda::device_count() == 0)
    return tell(unsupported("this machine has no CUDA device"), message);
  if (something_hangs)
    return tell(bad_input("an earlier round of these kernels has not ended; begin another process"),
                message);
  const auto options = parse_options(config->options == nullptr ? "" : config->options);
  if (!options) return tell(options.error(), message, ASSAY_BAD_OPTIONS);
  auto made = ForeignGroup::make(*config, *options);
  if (!made) return tell(made.error(), message);
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
  prepare_for_foreign_kernels();
  separate_queues();
  held = std::move(library);
  return &subject;
}

}  // namespace assay::verify
