// One host thread per rank: copies in, launches, waits with a bound, copies out. Decides nothing
// about a round's parameters; those are one_sided_plan.cpp's.
#include "verify/subject/cuda_subject.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "cuda/launch/communicator.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/launch/one_sided_launch.hpp"
#include "model/core/case_text.hpp"
#include "model/machine/prng.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

namespace {

using cuda::DeviceMemory;
using cuda::DeviceScope;

struct CudaOptions {
  std::string ranks = "auto";
  std::uint32_t threads = 256;
  std::uint32_t timeout_ms = 10'000;
  std::uint32_t delay_us = 0;
};

Expected<CudaOptions> parse_options(std::string_view text) {
  static constexpr std::string_view kKeys[] = {"ranks", "threads", "timeout_ms", "delay_us"};
  const auto parsed = parse_key_values(text, kKeys);
  if (!parsed) return unsupported(parsed.error().sentence);
  const std::vector<KeyValue>& fields = *parsed;
  CudaOptions options;
  for (const auto& [key, value] : fields) {
    if (key == "ranks") {
      if (value != "auto" && value != "devices" && value != "emulated")
        return bad_input(
            fmt::format("option ranks is \"{}\"; allowed are auto, devices and "
                        "emulated",
                        value));
      options.ranks = value;
    } else {
      ASSAY_TRY(const std::uint32_t number,
                parse_integer<std::uint32_t>(key, value, key == "delay_us" ? 0 : 1, 3'600'000));
      (key == "threads"      ? options.threads
       : key == "timeout_ms" ? options.timeout_ms
                             : options.delay_us) = number;
    }
  }
  return options;
}

// One rank: its device, stream and memory, and a host thread's worth of work per round.
class CudaRank {
 public:
  CudaRank(const GroupPlan& plan, cuda::LocalRank place, Window window)
      : plan_(plan), place_(place) {
    memory_.window = window;
  }
  ~CudaRank() {
    DeviceScope scope(place_.device);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaRank(CudaRank&&) = delete;

  Status prepare(const CudaOptions& options, const cuda::OneSidedKernels& kernels) {
    DeviceScope scope(place_.device);
    ASSAY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    launch_.rank = place_.rank;
    launch_.threads = options.threads;
    launch_.timeout_ns = std::uint64_t{options.timeout_ms} * 1'000'000;
    launch_.stream.handle = stream_;
    const std::uint64_t tokens = static_cast<std::uint64_t>(plan_.config.max_tokens_per_rank);
    const std::uint64_t top_k = static_cast<std::uint64_t>(plan_.config.top_k);
    ASSAY_TRY(topk_ids_, DeviceMemory::make(tokens * top_k * 4, "topk_ids"));
    ASSAY_TRY(payload_rows_, DeviceMemory::make(plan_.payload_bytes(), "payload rows"));
    ASSAY_TRY(out_, DeviceMemory::make(tokens * plan_.out_row_bytes(), "combined rows"));
    memory_.topk_ids = topk_ids_.address();
    memory_.payload_rows = payload_rows_.address();
    memory_.out = out_.address();
    ASSAY_CHECK(kernels.load(options.threads));
    const Address own = memory_.window.of(place_.rank);
    ASSAY_CUDA(cudaMemset(pointer(own), kPoison, plan_.workspace.window_bytes()),
               "poisoning the workspace");
    for (const one_sided::ZeroedRange& range : plan_.workspace.zeroed_ranges())
      ASSAY_CUDA(cudaMemset(pointer(own.at(range.offset_bytes)), 0, range.bytes),
                 "initialising the workspace");
    ASSAY_CUDA(cudaDeviceSynchronize(), "initialising the workspace");
    return Done{};
  }

  // Everything of one round on this rank's stream, with the host waiting in between for the
  // experts. Other ranks' threads do the same at their own pace.
  Status round(const assay_round& round, const RoundPlan& plan, std::int32_t index,
               const cuda::OneSidedKernels& kernels, assay_experts experts, void* context,
               const std::function<void()>& pause) {
    DeviceScope scope(place_.device);
    ASSAY_CHECK(write_inputs(round, plan));
    pause();
    const auto dispatch = dispatch_params(plan_, plan, round, place_.rank, memory_);
    ASSAY_CHECK(kernels.dispatch(dispatch, launch_));
    if (plan.ids_payload >= 0) {
      const auto sanitize = sanitize_params(plan_, plan, memory_);
      ASSAY_CHECK(kernels.sanitize(sanitize, launch_));
    }
    ASSAY_CHECK(read_received(round, plan));
    pause();
    experts(context, index, place_.rank.value());
    ASSAY_CHECK(write_expert_rows(round));
    if (plan_.pulled == one_sided::RowFormat::kE4m3) {
      const auto stage = stage_params(plan_, plan, memory_);
      ASSAY_CHECK(kernels.stage(stage, launch_));
    }
    const auto combine = combine_params(plan_, plan, round, place_.rank, memory_);
    ASSAY_CHECK(kernels.combine(combine, launch_));
    ASSAY_CHECK(finish("combine"));
    ASSAY_CHECK(copy_out(round.out[local()], memory_.out,
                         tokens_of(round, place_.rank) * plan_.out_row_bytes()));
    ASSAY_CUDA(cudaStreamSynchronize(stream_), "copying combined rows");
    return Done{};
  }

  RankId rank() const { return place_.rank; }

 private:
  static constexpr int kPoison = 0xDB;
  static void* pointer(Address address) { return reinterpret_cast<void*>(address.raw); }
  std::size_t local() const { return static_cast<std::size_t>(place_.rank.value()); }

  Status copy_in(Address to, const void* from, std::uint64_t bytes) {
    if (bytes != 0)
      ASSAY_CUDA(cudaMemcpyAsync(pointer(to), from, bytes, cudaMemcpyHostToDevice, stream_),
                 "copy to the device");
    return Done{};
  }
  Status copy_out(void* to, Address from, std::uint64_t bytes) {
    if (bytes != 0)
      ASSAY_CUDA(cudaMemcpyAsync(to, pointer(from), bytes, cudaMemcpyDeviceToHost, stream_),
                 "copy from the device");
    return Done{};
  }

  // Waits for the stream, then looks at the status word: waits in kernels are bounded, so this
  // ends.
  Status finish(const char* phase) {
    ASSAY_CUDA(cudaStreamSynchronize(stream_),
               fmt::format("rank {} {}", place_.rank.value(), phase));
    std::byte status[one_sided::StatusWord::kBytes];
    ASSAY_CUDA(
        cudaMemcpy(status,
                   pointer(memory_.window.of(place_.rank).at(plan_.workspace.offsets().status)),
                   sizeof status, cudaMemcpyDeviceToHost),
        "reading the status word");
    return status_of(place_.rank, status);
  }

  Status write_inputs(const assay_round& round, const RoundPlan& plan) {
    const std::uint64_t tokens = tokens_of(round, place_.rank);
    ASSAY_CHECK(copy_in(memory_.topk_ids, round.topk_ids[local()],
                        tokens * static_cast<std::uint64_t>(plan_.config.top_k) * 4));
    for (std::size_t i = 0; i < plan.payload_from_at.size(); ++i)
      ASSAY_CHECK(copy_in(memory_.payload_rows.at(plan.payload_from_at[i]),
                          round.payload_rows[i][local()],
                          tokens * round.payloads[i].bytes_per_token));
    return Done{};
  }

  // Copies every row of the receive buffers and poisons them behind itself: no peer may write here
  // before this rank's combine has signalled. Rows that are still poison were not written.
  Status read_received(const assay_round& round, const RoundPlan& plan) {
    // A copy to pageable memory holds the context while it waits for the kernel before it; a rank
    // that shares the device could then not launch the kernel that this one waits for.
    ASSAY_CHECK(finish("dispatch"));
    const Address own = memory_.window.of(place_.rank);
    const auto at = plan_.workspace.offsets();
    const std::uint64_t ep = static_cast<std::uint64_t>(plan_.config.ep_size);
    const std::uint64_t picks = std::uint64_t{tokens_of(round, place_.rank)} *
                                static_cast<std::uint64_t>(plan_.config.top_k);
    ASSAY_CHECK(copy_out(round.recv_counters[local()], own.at(at.recv_counters), ep * 4));
    ASSAY_CHECK(copy_out(round.target_rank[local()], own.at(at.target_rank), picks * 4));
    ASSAY_CHECK(copy_out(round.target_slot[local()], own.at(at.target_slot), picks * 4));
    const std::uint64_t rows = ep * static_cast<std::uint64_t>(round.max_tokens_per_rank);
    for (std::size_t i = 0; i < plan.payload_at.size(); ++i) {
      const std::uint64_t row_bytes = round.payloads[i].bytes_per_token;
      landing_.resize(rows * row_bytes);
      ASSAY_CHECK(copy_out(landing_.data(), own.at(plan.payload_at[i]), landing_.size()));
      ASSAY_CUDA(
          cudaMemsetAsync(pointer(own.at(plan.payload_at[i])), kPoison, landing_.size(), stream_),
          "poisoning the receive buffer");
      ASSAY_CUDA(cudaStreamSynchronize(stream_), "copying received rows");
      auto* to = static_cast<std::byte*>(round.recv[i][local()]);
      // A short row may equal the poison: rows below the count are taken as they are.
      const std::uint64_t max = static_cast<std::uint64_t>(round.max_tokens_per_rank);
      for (std::uint64_t row = 0; row < rows; ++row)
        if (row % max < static_cast<std::uint32_t>(round.recv_counters[local()][row / max]) ||
            !is_poison(landing_.data() + row * row_bytes, row_bytes))
          std::memcpy(to + row * row_bytes, landing_.data() + row * row_bytes, row_bytes);
    }
    return Done{};
  }

  static bool is_poison(const std::byte* row, std::uint64_t bytes) {
    return row[0] == std::byte{kPoison} && std::memcmp(row, row + 1, bytes - 1) == 0;
  }

  Status write_expert_rows(const assay_round& round) {
    return copy_in(memory_.window.of(place_.rank).at(plan_.workspace.rows_offset()),
                   round.expert_out[local()],
                   static_cast<std::uint64_t>(plan_.config.ep_size) *
                       static_cast<std::uint64_t>(round.max_tokens_per_rank) * plan_.row_bytes());
  }

  const GroupPlan& plan_;
  cuda::LocalRank place_;
  cudaStream_t stream_ = nullptr;
  cuda::LaunchConfig launch_;
  RankMemory memory_;
  DeviceMemory topk_ids_, payload_rows_, out_;
  std::vector<std::byte> landing_;
};

class CudaGroup {
 public:
  static Expected<std::unique_ptr<CudaGroup>> make(const assay_group_config& config,
                                                   const CudaOptions& options) {
    if (config.first_rank != 0 || config.num_local_ranks != config.ep_size)
      return unsupported("the CUDA subject holds all ranks of a group in one process");
    ASSAY_TRY(GroupPlan plan, plan_group(config));
    ASSAY_TRY(
        const cuda::OneSidedKernels kernels,
        cuda::OneSidedKernels::find(config.top_k, plan.sum, plan.rows, plan.pulled, plan.out));
    // NCCL makes no symmetric window for a group of one.
    const bool emulate = options.ranks == "emulated" || config.ep_size == 1 ||
                         (options.ranks == "auto" && cuda::device_count() < config.ep_size);
    if (emulate && config.max_tokens_per_rank * config.ep_size > kEmulatedBlocks)
      return unsupported(
          fmt::format("{} ranks of {} tokens on one device: groups that wait for each "
                      "other must fit it together, at most {}",
                      config.ep_size, config.max_tokens_per_rank, kEmulatedBlocks));
    std::vector<int> devices;
    for (int device = 0; device < config.ep_size; ++device) devices.push_back(device);
    ASSAY_TRY(cuda::Communicator communicator, emulate
                                                   ? cuda::Communicator::emulated(config.ep_size, 0)
                                                   : cuda::Communicator::one_process(devices));
    ASSAY_TRY(cuda::SymmetricMemory memory, communicator.allocate(plan.workspace.window_bytes()));
    std::unique_ptr<CudaGroup> group(new CudaGroup(std::move(plan), options, kernels,
                                                   std::move(communicator), std::move(memory)));
    for (auto& rank : group->ranks_) ASSAY_CHECK(rank->prepare(options, group->kernels_));
    return Expected<std::unique_ptr<CudaGroup>>(std::move(group));
  }

  Status run(std::span<const assay_round> rounds, assay_experts experts, void* context) {
    std::vector<RoundPlan> plans;
    for (const assay_round& round : rounds) {
      ASSAY_TRY(RoundPlan plan, plan_round(plan_, round));
      plans.push_back(std::move(plan));
    }
    std::vector<std::optional<Error>> errors(ranks_.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] {
        std::uint64_t state = plan_.config.seed + r * 0x9E3779B97F4A7C15u;
        const auto pause = [&] {
          if (options_.delay_us != 0)
            std::this_thread::sleep_for(
                std::chrono::microseconds(machine::splitmix64(state) % (options_.delay_us + 1)));
        };
        for (std::size_t i = 0; i < rounds.size() && !errors[r]; ++i) {
          if (!plans[i].group.alive.has(static_cast<std::uint32_t>(ranks_[r]->rank().value())))
            continue;
          const Status status = ranks_[r]->round(rounds[i], plans[i], static_cast<std::int32_t>(i),
                                                 kernels_, experts, context, pause);
          if (!status) errors[r] = status.error();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& error : errors)
      if (error) return *error;
    return Done{};
  }

 private:
  // An H200 holds 132 groups of any of our kernels at the least (one per multiprocessor); ranks on
  // one device are separate launches that wait for each other, so all their groups must fit.
  static constexpr std::int32_t kEmulatedBlocks = 128;

  CudaGroup(GroupPlan plan, const CudaOptions& options, const cuda::OneSidedKernels& kernels,
            cuda::Communicator communicator, cuda::SymmetricMemory memory)
      : plan_(std::move(plan)),
        options_(options),
        kernels_(kernels),
        communicator_(std::move(communicator)),
        memory_(std::move(memory)) {
    for (std::size_t i = 0; i < communicator_.local_ranks().size(); ++i)
      ranks_.push_back(
          std::make_unique<CudaRank>(plan_, communicator_.local_ranks()[i], memory_.windows()[i]));
  }

  GroupPlan plan_;
  CudaOptions options_;
  cuda::OneSidedKernels kernels_;
  cuda::Communicator communicator_;
  cuda::SymmetricMemory memory_;
  std::vector<std::unique_ptr<CudaRank>> ranks_;
};

// Streams of ranks that share a device must not share a hardware queue: a waiting kernel in front
// would keep back the one it waits for. Read by CUDA at its start, 32 is the most.
void separate_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

int create(const assay_group_config* config, void** group, assay_message* message) {
  separate_queues();
  *group = nullptr;
  if (cuda::device_count() == 0)
    return tell(unsupported("this machine has no CUDA device"), message);
  const auto options = parse_options(config->options == nullptr ? "" : config->options);
  if (!options) return tell(options.error(), message, ASSAY_BAD_OPTIONS);
  auto made = CudaGroup::make(*config, *options);
  if (!made) return tell(made.error(), message);
  *group = (*std::move(made)).release();
  return ASSAY_OK;
}

int run(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
        void* context, assay_message* message) {
  const Status ran = static_cast<CudaGroup*>(group)->run(
      {rounds, static_cast<std::size_t>(num_rounds)}, experts, context);
  return ran ? ASSAY_OK : tell(ran.error(), message);
}

void destroy(void* group) { delete static_cast<CudaGroup*>(group); }

}  // namespace

const assay_subject& cuda_subject() {
  static const assay_subject subject{
      ASSAY_SUBJECT_ABI_VERSION, sizeof(assay_subject), "cuda", &create, &run, &destroy};
  return subject;
}

}  // namespace assay::verify
