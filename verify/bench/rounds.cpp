// Set-up and chains of a row's rounds.
#include "verify/bench/rounds.hpp"

#include "model/moe/profile.hpp"

namespace assay::verify::bench {

namespace {

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

Expected<std::unique_ptr<Rounds>> Rounds::make(const cuda::Communicator& communicator,
                                               std::optional<cuda::SymmetricMemory>& memory,
                                               const RowRequest& request, bool sentinel,
                                               const BenchOptions& options) {
  const Model& model = request.model;
  ASSAY_TRY(RoundData data, RoundData::make(request, communicator.ep_size()));
  assay_group_config config{};
  config.struct_size = sizeof config;
  config.ep_size = communicator.ep_size();
  config.num_local_ranks = config.ep_size;
  config.num_experts = model.num_experts;
  config.top_k = model.top_k;
  config.hidden_size = model.hidden_size;
  config.max_tokens_per_rank = request.batch;
  config.max_payload_bytes_total = static_cast<std::int32_t>(data.row_bytes());
  config.invalid_expert_id = -1;
  config.combine_dtype = ASSAY_DTYPE_BF16;
  const std::string profile(moe::default_combine_profile().name);
  config.profile = profile.c_str();
  ASSAY_TRY(GroupPlan plan, plan_group(config, sentinel ? request.batch : 0));
  cuda::KernelRequest kernels{config.top_k, plan.sum, plan.rows, plan.pulled, plan.out};
  kernels.sentinel = sentinel;
  ASSAY_CHECK(window_of(communicator, plan.workspace.window_bytes(), memory));
  ASSAY_TRY(
      cuda::OneSidedGroup group,
      cuda::OneSidedGroup::make(communicator, plan.workspace, kernels, options.threads, *memory));
  std::unique_ptr<Rounds> made(
      new Rounds(request, options, std::move(data), std::move(plan), std::move(group)));
  ASSAY_CHECK(made->fill());
  return Expected<std::unique_ptr<Rounds>>(std::move(made));
}

Status Rounds::fill() {
  const auto ep = static_cast<std::size_t>(plan_.config.ep_size);
  num_tokens_.assign(ep, request_.batch);
  no_tokens_.assign(ep, 0);
  round_.struct_size = sizeof round_;
  round_.max_tokens_per_rank = request_.batch;
  round_.num_payloads = static_cast<std::int32_t>(data_.payloads().size());
  round_.payloads = data_.payloads().data();
  round_.num_tokens = num_tokens_.data();
  ASSAY_TRY(round_plan_, plan_round(plan_, round_));
  const std::uint64_t ids_bytes =
      (u64(request_.batch) * u64(plan_.config.top_k) * 4 + 255) / 256 * 256;
  const auto offsets = plan_.workspace.offsets();
  for (std::size_t rank = 0; rank < ep; ++rank) {
    RankPlaces places;
    places.device = group_.communicator().local_ranks()[rank].device;
    cuda::DeviceScope scope(places.device);
    ASSAY_TRY(cuda::DeviceMemory inputs,
              cuda::DeviceMemory::make(ids_bytes + plan_.payload_bytes(), "payload rows"));
    ASSAY_TRY(cuda::DeviceMemory out, cuda::DeviceMemory::make(data_.out_bytes(), "combined rows"));
    memory_.push_back(
        {group_.windows()[rank], inputs.address(), inputs.address().at(ids_bytes), out.address()});
    const Address own = group_.own(rank);
    places.topk_ids = inputs.address();
    for (std::size_t i = 0; i < round_plan_.payload_at.size(); ++i) {
      places.payload_rows.push_back(memory_[rank].payload_rows.at(round_plan_.payload_from_at[i]));
      places.recv.push_back(own.at(round_plan_.payload_at[i]));
    }
    places.target_rank = own.at(offsets.target_rank);
    places.target_slot = own.at(offsets.target_slot);
    places.expert_out = own.at(plan_.workspace.rows_offset());
    places.out = out.address();
    ASSAY_CHECK(data_.fill(rank, places));
    places_.push_back(std::move(places));
    inputs_.push_back(std::move(inputs));
    out_.push_back(std::move(out));
  }
  return Done{};
}

Status Rounds::enqueue(std::size_t rank, cudaStream_t stream, bool dispatch_tokens,
                       bool combine_tokens) {
  const RankId id(static_cast<std::int32_t>(rank));
  const cuda::LaunchedRank launched{id, 0};
  cuda::LaunchConfig launch;
  launch.threads = options_.threads;
  launch.overlaps = options_.overlap;
  if (group_.communicator().is_emulated())
    launch.launches_beside = static_cast<std::uint32_t>(plan_.config.ep_size) - 1;
  launch.timeout_ns = 2'000'000'000;
  launch.stream.handle = stream;
  assay_round with = round_, without = round_;
  without.num_tokens = no_tokens_.data();
  const assay_round& sent = dispatch_tokens ? with : without;
  const assay_round& summed = combine_tokens ? with : without;
  const cuda::OneSidedKernels& kernels = group_.kernels();
  if (round_plan_.protocol == one_sided::Protocol::kSentinel) {
    const auto dispatch = sentinel_dispatch_params(plan_, round_plan_, sent, id, memory_[rank]);
    ASSAY_CHECK(kernels.dispatch(std::span(&launched, 1), std::span(&dispatch, 1), launch));
    const auto combine = sentinel_combine_params(plan_, round_plan_, summed, id, memory_[rank]);
    return kernels.combine(std::span(&launched, 1), std::span(&combine, 1), launch);
  }
  const auto dispatch = dispatch_params(plan_, round_plan_, sent, id, memory_[rank]);
  ASSAY_CHECK(kernels.dispatch(std::span(&launched, 1), std::span(&dispatch, 1), launch));
  const auto combine = combine_params(plan_, round_plan_, summed, id, memory_[rank]);
  return kernels.combine(std::span(&launched, 1), std::span(&combine, 1), launch);
}

Expected<std::vector<double>> Rounds::chain(Stopwatch& watch, bool dispatch_tokens,
                                            bool combine_tokens, int repeats) {
  ASSAY_TRY(std::vector<double> times,
            watch.time_each(
                [&](std::size_t rank) -> Status {
                  for (std::int32_t i = 0; i < options_.rounds; ++i)
                    ASSAY_CHECK(enqueue(rank, watch.stream(rank), dispatch_tokens, combine_tokens));
                  return Done{};
                },
                repeats));
  ASSAY_CHECK(group_.check());
  for (double& time : times) time /= options_.rounds;
  return times;
}

Expected<ProtocolTimes> Rounds::time(Stopwatch& watch) {
  ProtocolTimes result;
  if (round_plan_.protocol == one_sided::Protocol::kFence) {
    ASSAY_TRY(const auto empty, chain(watch, false, false, 1));
    ASSAY_TRY(const auto dispatch, chain(watch, true, false, 1));
    // A dispatch without tokens leaves the tables of the last one: combine pulls its rows.
    ASSAY_TRY(const auto combine, chain(watch, false, true, 1));
    result.empty = fastest(empty);
    result.dispatch = fastest(dispatch) - result.empty / 2;
    result.combine = fastest(combine) - result.empty / 2;
  }
  ASSAY_TRY(result.all_rounds, chain(watch, true, true, options_.repeats));
  result.round = fastest(result.all_rounds);
  return result;
}

Expected<std::int64_t> Rounds::check(const Stopwatch& watch) {
  ASSAY_CHECK(watch.wait());
  return data_.check(places_, moe::default_combine_profile().arithmetic);
}

Status window_of(const cuda::Communicator& communicator, std::uint64_t bytes,
                 std::optional<cuda::SymmetricMemory>& memory) {
  if (memory && memory->bytes_per_rank() >= bytes) return Done{};
  memory.reset();
  ASSAY_TRY(memory, communicator.allocate(bytes));
  return Done{};
}

}  // namespace assay::verify::bench
