// Set-up, chains and checks of a row's rounds.
#include "verify/bench/rounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cuda/probe/wire.hpp"
#include "model/core/prng.hpp"
#include "model/moe/combine.hpp"
#include "model/moe/profile.hpp"

namespace assay::verify::bench {

namespace {

using cuda::pointer;

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// Bytes that depend on everything that could be mixed up.
void fill_bytes(std::uint64_t key, std::vector<std::byte>& bytes) {
  std::uint64_t state = key;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = splitmix64(state);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

}  // namespace

Expected<std::unique_ptr<Rounds>> Rounds::make(const cuda::Communicator& communicator,
                                               std::optional<cuda::SymmetricMemory>& memory,
                                               const RowRequest& request, bool sentinel,
                                               const BenchOptions& options) {
  const Model& model = request.model;
  ASSAY_TRY(const std::vector<moe::Payload> payloads,
            moe::recipe_payloads(request.recipe, model.hidden_size, model.top_k));
  std::int64_t row = 0;
  for (const moe::Payload& payload : payloads) row += payload.bytes_per_token;
  assay_group_config config{};
  config.struct_size = sizeof config;
  config.ep_size = communicator.ep_size();
  config.num_local_ranks = config.ep_size;
  config.num_experts = model.num_experts;
  config.top_k = model.top_k;
  config.hidden_size = model.hidden_size;
  config.max_tokens_per_rank = request.batch;
  config.max_payload_bytes_total = static_cast<std::int32_t>(row);
  config.invalid_expert_id = -1;
  config.combine_dtype = ASSAY_DTYPE_BF16;
  const std::string profile(moe::default_combine_profile().name);
  config.profile = profile.c_str();
  ASSAY_TRY(GroupPlan plan, plan_group(config, sentinel ? request.batch : 0));
  cuda::KernelRequest kernels{config.top_k, plan.sum, plan.rows, plan.pulled, plan.out};
  kernels.sentinel = sentinel;
  // One window for all rows, as large as the largest so far: it is registered once per growth.
  if (!memory || memory->bytes_per_rank() < plan.workspace.window_bytes()) {
    memory.reset();
    ASSAY_TRY(memory, communicator.allocate(plan.workspace.window_bytes()));
  }
  ASSAY_TRY(
      cuda::OneSidedGroup group,
      cuda::OneSidedGroup::make(communicator, plan.workspace, kernels, options.threads, *memory));
  std::unique_ptr<Rounds> made(new Rounds(request, options, std::move(plan), std::move(group)));
  made->dispatch_row_bytes_ = row;
  for (const moe::Payload& payload : payloads) made->names_.push_back(payload.name);
  for (std::size_t i = 0; i < payloads.size(); ++i)
    made->payloads_.push_back({made->names_[i].c_str(),
                               static_cast<std::uint32_t>(payloads[i].bytes_per_token),
                               payloads[i].holds_expert_ids ? 1 : 0});
  ASSAY_CHECK(made->fill());
  return Expected<std::unique_ptr<Rounds>>(std::move(made));
}

// Inputs and expert rows. Every expert row of a rank is the same, so that a sum does not depend on
// which slots a round took.
Status Rounds::fill() {
  const auto ep = static_cast<std::size_t>(plan_.config.ep_size);
  const std::uint64_t tokens = u64(request_.batch);
  num_tokens_.assign(ep, request_.batch);
  no_tokens_.assign(ep, 0);
  round_.struct_size = sizeof round_;
  round_.max_tokens_per_rank = request_.batch;
  round_.num_payloads = static_cast<std::int32_t>(payloads_.size());
  round_.payloads = payloads_.data();
  round_.num_tokens = num_tokens_.data();
  ASSAY_TRY(round_plan_, plan_round(plan_, round_));
  const std::uint64_t ids_bytes = (tokens * u64(plan_.config.top_k) * 4 + 255) / 256 * 256;
  for (std::size_t rank = 0; rank < ep; ++rank) {
    cuda::DeviceScope scope(group_.communicator().local_ranks()[rank].device);
    ASSAY_TRY(cuda::DeviceMemory inputs,
              cuda::DeviceMemory::make(ids_bytes + plan_.payload_bytes(), "payload rows"));
    ASSAY_TRY(cuda::DeviceMemory out,
              cuda::DeviceMemory::make(tokens * plan_.out_row_bytes(), "combined rows"));
    memory_.push_back(
        {group_.windows()[rank], inputs.address(), inputs.address().at(ids_bytes), out.address()});
    ASSAY_CHECK(cuda::copy_to_device(inputs.data(), request_.topk_ids[rank].data(),
                                     request_.topk_ids[rank].size() * 4, "copying ids"));
    for (std::size_t i = 0; i < payloads_.size(); ++i) {
      std::vector<std::byte> rows;
      rows.reserve(tokens * payloads_[i].bytes_per_token);
      for (std::int32_t token = 0; token < request_.batch; ++token) {
        const std::vector<std::byte> row = payload_row(i, rank, token);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      ASSAY_CHECK(cuda::copy_to_device(
          pointer(memory_[rank].payload_rows.at(round_plan_.payload_from_at[i])), rows.data(),
          rows.size(), "copying payload rows"));
    }
    const std::vector<std::byte> row = expert_row(rank);
    ASSAY_CHECK(cuda::copy_to_device(out.data(), row.data(), row.size(), "copying an expert row"));
    const Address rows_at = group_.own(rank).at(plan_.workspace.rows_offset());
    ASSAY_CUDA(probe::repeat_row(out.address().raw, rows_at.raw, row.size(), ep * tokens, nullptr),
               "filling expert rows");
    ASSAY_CUDA(cudaStreamSynchronize(nullptr), "filling expert rows");
    ASSAY_CUDA(cudaMemset(out.data(), 0xDB, out.bytes()), "poisoning combined rows");
    inputs_.push_back(std::move(inputs));
    out_.push_back(std::move(out));
  }
  return Done{};
}

std::vector<std::byte> Rounds::payload_row(std::size_t payload, std::size_t rank,
                                           std::int32_t token) const {
  std::vector<std::byte> row(payloads_[payload].bytes_per_token);
  if (payloads_[payload].holds_expert_ids != 0) {
    std::memcpy(row.data(),
                request_.topk_ids[rank].data() + std::int64_t{token} * request_.model.top_k,
                row.size());
  } else {
    fill_bytes((u64(token) << 24) | (rank << 8) | payload, row);
  }
  return row;
}

// bf16 numbers between 1/2 and 2 of either sign, another row at every rank.
std::vector<std::byte> Rounds::expert_row(std::size_t rank) const {
  std::vector<std::byte> row(plan_.row_bytes());
  fill_bytes(0x45787065727473u + rank, row);
  for (std::size_t at = 1; at < row.size(); at += 2)
    row[at] = (row[at] & std::byte{0x80}) | std::byte{0x3F};
  return row;
}

Status Rounds::enqueue(std::size_t rank, cudaStream_t stream, bool dispatch_tokens,
                       bool combine_tokens) {
  const RankId id(static_cast<std::int32_t>(rank));
  const cuda::LaunchedRank launched{id, 0};
  cuda::LaunchConfig launch;
  launch.threads = options_.threads;
  launch.overlaps = options_.overlap;
  launch.timeout_ns = 2'000'000'000;
  launch.stream.handle = stream;
  assay_round with = round_, without = round_;
  without.num_tokens = no_tokens_.data();
  const assay_round& sent = dispatch_tokens ? with : without;
  const assay_round& summed = combine_tokens ? with : without;
  const cuda::OneSidedKernels& kernels = group_.kernels();
  if (round_plan_.protocol == one_sided::Protocol::kSentinel) {
    const std::uint32_t waiters =
        std::min<std::uint32_t>(128, sentinel_groups(plan_, tokens_of(sent, id)));
    const auto dispatch =
        sentinel_dispatch_params(plan_, round_plan_, sent, id, memory_[rank], waiters);
    ASSAY_CHECK(kernels.dispatch(std::span(&launched, 1), std::span(&dispatch, 1), launch));
    const auto combine =
        sentinel_combine_params(plan_, round_plan_, summed, id, memory_[rank], waiters);
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
  const auto fastest = [](const std::vector<double>& times) {
    return *std::min_element(times.begin(), times.end());
  };
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

Expected<std::vector<std::byte>> Rounds::read(std::size_t rank, Address from,
                                              std::uint64_t bytes) const {
  cuda::DeviceScope scope(group_.communicator().local_ranks()[rank].device);
  std::vector<std::byte> got(bytes);
  ASSAY_CUDA(cudaMemcpy(got.data(), pointer(from), bytes, cudaMemcpyDeviceToHost), "reading a row");
  return got;
}

Expected<std::int64_t> Rounds::check(const Stopwatch& watch) {
  ASSAY_CHECK(watch.wait());
  constexpr std::int32_t kTokens = 16;  // of each rank, evenly spread
  const std::uint64_t picks = u64(request_.batch) * u64(plan_.config.top_k);
  std::int64_t checked = 0;
  for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
    std::vector<std::int32_t> target_rank(picks), target_slot(picks);
    const auto offsets = plan_.workspace.offsets();
    ASSAY_TRY(const auto ranks, read(rank, group_.own(rank).at(offsets.target_rank), picks * 4));
    ASSAY_TRY(const auto slots, read(rank, group_.own(rank).at(offsets.target_slot), picks * 4));
    std::memcpy(target_rank.data(), ranks.data(), ranks.size());
    std::memcpy(target_slot.data(), slots.data(), slots.size());
    const std::int32_t step = std::max(1, request_.batch / kTokens);
    for (std::int32_t token = request_.batch - 1; token >= 0; token -= step, ++checked)
      ASSAY_CHECK(check_token(rank, token, target_rank, target_slot));
  }
  return checked;
}

// Every row of the token at its target, and the sum of what came back.
Status Rounds::check_token(std::size_t rank, std::int32_t token,
                           std::span<const std::int32_t> target_rank,
                           std::span<const std::int32_t> target_slot) {
  const auto top_k = static_cast<std::size_t>(plan_.config.top_k);
  std::vector<std::vector<std::byte>> rows(top_k);
  std::vector<const std::byte*> leaves(top_k, nullptr);
  for (std::size_t k = 0; k < top_k; ++k) {
    const std::int32_t target = target_rank[static_cast<std::size_t>(token) * top_k + k];
    if (target < 0) continue;
    if (target >= plan_.config.ep_size)
      return bad_input(fmt::format("rank {} token {} pick {}: target rank {} of {}", rank, token, k,
                                   target, plan_.config.ep_size));
    const std::uint64_t row =
        rank * u64(request_.batch) + u64(target_slot[static_cast<std::size_t>(token) * top_k + k]);
    const auto at = static_cast<std::size_t>(target);
    for (std::size_t i = 0; i < payloads_.size(); ++i) {
      const std::vector<std::byte> sent = payload_row(i, rank, token);
      ASSAY_TRY(
          const auto got,
          read(at, group_.own(at).at(round_plan_.payload_at[i] + row * sent.size()), sent.size()));
      if (got != sent)
        return bad_input(
            fmt::format("rank {} token {}: payload {} arrived with other bytes at rank "
                        "{}, row {}",
                        rank, token, names_[i], target, row));
    }
    rows[k] = expert_row(at);
    leaves[k] = rows[k].data();
  }
  ASSAY_TRY(const moe::Combine combine,
            moe::Combine::make(moe::default_combine_profile().arithmetic,
                               {.top_k = plan_.config.top_k, .dtype = moe::Dtype::kBf16}));
  std::vector<std::byte> legal(plan_.out_row_bytes());
  combine.row(leaves, plan_.config.hidden_size, legal.data());
  ASSAY_TRY(const auto got,
            read(rank, memory_[rank].out.at(u64(token) * legal.size()), legal.size()));
  if (got != legal)
    return bad_input(fmt::format(
        "rank {} token {}: the combined row has other bits than the model's", rank, token));
  return Done{};
}

}  // namespace assay::verify::bench
