// On GPUs: dispatch, slot lists, the grouped GEMM that gathers through them, combine, with nothing
// copied in between, against the model bit by bit. Experts are computed a second time here, from
// what the model says that each rank received.
#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "cuda/launch/device.hpp"
#include "cuda/launch/expert_gemm.hpp"
#include "cuda/launch/group.hpp"
#include "model/core/testing.hpp"
#include "model/moe/moe.hpp"
#include "verify/gen/gen.hpp"
#include "verify/gen/routing_gen.hpp"
#include "verify/subject/abi_round.hpp"
#include "verify/subject/expert_gemm_reference.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {
namespace {

using Bits = testing::Bf16Bits;

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }
std::string sentence(const Status& status) { return status ? "" : status.error().sentence; }

// From -1.76 to 1.76: finite, so that no NaN hides a difference; products and sums round.
std::vector<Bits> values(std::uint64_t key, std::size_t count) {
  std::vector<Bits> all;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = (static_cast<float>(hash(key, i) % 33) - 16.0f) * 0.11f;
    all.push_back(static_cast<Bits>(std::bit_cast<std::uint32_t>(value) >> 16));
  }
  return all;
}

// The rounds of a case on the ranks of a communicator.
class GemmRounds {
 public:
  GemmRounds(const cuda::Communicator& communicator, Scenario scenario, bool sentinel)
      : scenario_(std::move(scenario)), ep_(scenario_.setup.ep_size) {
    GroupSetup& setup = scenario_.setup;
    auto plan = plan_group(abi_config(setup), sentinel ? setup.max_tokens_per_rank : 0);
    REQUIRE(plan.has_value());
    plan_.emplace(*std::move(plan));
    cuda::KernelRequest request{setup.top_k, plan_->sum, plan_->rows, plan_->pulled, plan_->out};
    request.sentinel = sentinel;
    auto group = cuda::OneSidedGroup::make(communicator, plan_->workspace, request);
    INFO((group ? "" : group.error().sentence));
    REQUIRE(group.has_value());
    group_.emplace(*std::move(group));
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next()) seats_.push_back(make_seat(rank));
  }

  void run(std::int32_t number) {
    fill_round(scenario_, number, round_);
    for (std::size_t src = 0; src < round_.payloads[payload_named("hidden")].rows.size(); ++src) {
      std::vector<std::byte>& rows = round_.payloads[payload_named("hidden")].rows[src];
      const auto finite = values(hash(static_cast<std::uint64_t>(number), src), rows.size() / 2);
      std::memcpy(rows.data(), finite.data(), rows.size());
    }
    name_round();
    auto round_plan = plan_round(*plan_, abi_);
    REQUIRE(round_plan.has_value());
    write_inputs(*round_plan);
    REQUIRE(sentence(enqueue(*round_plan)) == "");
    for (const Seat& seat : seats_) {
      cuda::DeviceScope scope(seat.device);
      REQUIRE(sentence(cuda::wait_for(seat.stream, std::chrono::seconds(20), "a round")) == "");
    }
    REQUIRE(sentence(group_->check()) == "");
    check(*round_plan);
  }

 private:
  struct Seat {
    int device = 0;
    cuda::OwnStream stream;
    cuda::DeviceMemory inputs, out, offsets, entries, weights, products, entry_of;
    RankMemory memory;
    std::vector<Bits> matrices;  // [local experts, h out, h in]
  };

  std::uint64_t hidden() const { return static_cast<std::uint64_t>(scenario_.setup.hidden_size); }
  std::uint64_t top_k() const { return static_cast<std::uint64_t>(scenario_.setup.top_k); }
  std::uint64_t rows() const {  // at capacity
    return static_cast<std::uint64_t>(ep_) *
           static_cast<std::uint64_t>(scenario_.setup.max_tokens_per_rank);
  }

  static cuda::DeviceMemory device_memory(std::uint64_t bytes) {
    auto memory = cuda::DeviceMemory::make(bytes, "a test");
    REQUIRE(memory.has_value());
    return *std::move(memory);
  }

  Seat make_seat(RankId rank) {
    Seat seat;
    seat.device = group_->communicator().local_ranks()[index(rank)].device;
    cuda::DeviceScope scope(seat.device);
    auto stream = cuda::OwnStream::make();
    REQUIRE(stream.has_value());
    seat.stream = *std::move(stream);
    const auto tokens = static_cast<std::uint64_t>(scenario_.setup.max_tokens_per_rank);
    const std::uint64_t ids_bytes = (tokens * top_k() * 4 + 255) / 256 * 256;
    seat.inputs = device_memory(ids_bytes + plan_->payload_bytes());
    seat.out = device_memory(tokens * plan_->out_row_bytes());
    seat.offsets = device_memory((plan_->most_local_experts() + 1) * 4);
    seat.entries = device_memory(rows() * top_k() * 8);
    seat.products = device_memory(rows() * top_k() * hidden() * 4);
    seat.entry_of = device_memory(rows() * top_k() * 4);
    seat.matrices = values(hash(7, index(rank)), plan_->most_local_experts() * hidden() * hidden());
    seat.weights = device_memory(seat.matrices.size() * 2);
    REQUIRE(sentence(cuda::copy_to_device(seat.weights.data(), seat.matrices.data(),
                                          seat.matrices.size() * 2, "weights")) == "");
    seat.memory = {group_->windows()[index(rank)],
                   seat.inputs.address(),
                   seat.inputs.address().at(ids_bytes),
                   seat.out.address(),
                   {},
                   seat.offsets.address(),
                   seat.entries.address()};
    return seat;
  }

  // The round in the C interface's words, for plan_round.
  void name_round() {
    payloads_.clear();
    num_tokens_.clear();
    for (const RoundPayload& entry : round_.payloads)
      payloads_.push_back({entry.payload.name.c_str(),
                           static_cast<std::uint32_t>(entry.payload.bytes_per_token),
                           entry.payload.holds_expert_ids ? 1 : 0});
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next())
      num_tokens_.push_back(round_.num_tokens(rank, scenario_.setup.top_k));
    abi_ = {};
    abi_.struct_size = sizeof abi_;
    abi_.max_tokens_per_rank = round_.max_tokens_per_rank;
    abi_.num_payloads = static_cast<std::int32_t>(payloads_.size());
    abi_.payloads = payloads_.data();
    abi_.num_tokens = num_tokens_.data();
  }

  const void* payload_rows(std::size_t p, RankId rank) const {
    return round_.payloads[p].payload.holds_expert_ids
               ? static_cast<const void*>(round_.topk_ids[index(rank)].data())
               : round_.payloads[p].rows[index(rank)].data();
  }

  // Rows for combine start as NaN: one that the experts leave out shows.
  void write_inputs(const RoundPlan& plan) {
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next()) {
      const Seat& seat = seats_[index(rank)];
      cuda::DeviceScope scope(seat.device);
      REQUIRE(cudaMemset(cuda::pointer(group_->own(index(rank)).at(plan_->workspace.rows_offset())),
                         0xFF, rows() * plan_->row_bytes()) == cudaSuccess);
      const auto tokens = static_cast<std::uint64_t>(num_tokens_[index(rank)]);
      const auto& ids = round_.topk_ids[index(rank)];
      REQUIRE(sentence(cuda::copy_to_device(cuda::pointer(seat.memory.topk_ids), ids.data(),
                                            ids.size() * 4, "ids")) == "");
      for (std::size_t p = 0; p < payloads_.size(); ++p)
        REQUIRE(sentence(cuda::copy_to_device(
                    cuda::pointer(seat.memory.payload_rows.at(plan.payload_from_at[p])),
                    payload_rows(p, rank), tokens * payloads_[p].bytes_per_token, "rows")) == "");
    }
  }

  // Calls enqueue(ranks, params, launch) once per device, with params(rank) of its ranks.
  template <class Params, class Enqueue>
  Status on_each_device(const Params& params, const Enqueue& enqueue) {
    std::vector<cuda::LaunchedRank> ranks;
    std::vector<decltype(params(RankId(0)))> all;
    const bool emulated = group_->communicator().is_emulated();
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next()) {
      ranks.push_back({rank, 0});
      all.push_back(params(rank));
      if (emulated && rank.value() + 1 < ep_) continue;
      const Seat& seat = stream_seat(rank);
      cuda::DeviceScope scope(seat.device);
      cuda::LaunchConfig launch;
      launch.stream = seat.stream.stream();
      ASSAY_CHECK(enqueue(ranks, std::span<const typename decltype(all)::value_type>(all), launch));
      ranks.clear();
      all.clear();
    }
    return Done{};
  }
  // Ranks of one device share a stream.
  const Seat& stream_seat(RankId rank) const {
    return seats_[group_->communicator().is_emulated() ? 0 : index(rank)];
  }

  Status enqueue(const RoundPlan& plan) {
    const cuda::OneSidedKernels& kernels = group_->kernels();
    const bool sentinel = plan.protocol == one_sided::Protocol::kSentinel;
    const auto memory = [&](RankId rank) { return seats_[index(rank)].memory; };
    if (sentinel) {
      ASSAY_CHECK(on_each_device(
          [&](RankId r) { return sentinel_dispatch_params(*plan_, plan, abi_, r, memory(r)); },
          [&](auto r, auto p, auto c) { return kernels.dispatch(r, p, c); }));
    } else {
      ASSAY_CHECK(on_each_device(
          [&](RankId r) { return dispatch_params(*plan_, plan, abi_, r, memory(r)); },
          [&](auto r, auto p, auto c) { return kernels.dispatch(r, p, c); }));
      ASSAY_CHECK(
          on_each_device([&](RankId r) { return sanitize_params(*plan_, plan, memory(r)); },
                         [&](auto r, auto p, auto c) { return kernels.sanitize(r, p, c); }));
    }
    ASSAY_CHECK(
        on_each_device([&](RankId r) { return expert_list_params(*plan_, plan, r, memory(r)); },
                       [&](auto r, auto p, auto c) { return kernels.list_experts(r, p, c); }));
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next()) {
      cuda::DeviceScope scope(stream_seat(rank).device);
      ASSAY_CHECK(
          cuda::enqueue_expert_gemm(gemm_of(plan, rank), stream_seat(rank).stream.stream()));
    }
    if (sentinel)
      return on_each_device(
          [&](RankId r) { return sentinel_combine_params(*plan_, plan, abi_, r, memory(r)); },
          [&](auto r, auto p, auto c) { return kernels.combine(r, p, c); });
    return on_each_device(
        [&](RankId r) { return combine_params(*plan_, plan, abi_, r, memory(r)); },
        [&](auto r, auto p, auto c) { return kernels.combine(r, p, c); });
  }

  std::size_t payload_named(std::string_view name) const {
    for (std::size_t p = 0; p < round_.payloads.size(); ++p)
      if (round_.payloads[p].payload.name == name) return p;
    FAIL("no such payload");
    return 0;
  }

  cuda::ExpertGemm gemm_of(const RoundPlan& plan, RankId rank) const {
    const one_sided::ExpertListParams lists =
        expert_list_params(*plan_, plan, rank, seats_[index(rank)].memory);
    const Address own = group_->own(index(rank));
    cuda::ExpertGemm gemm;
    gemm.hidden_size = static_cast<std::uint32_t>(hidden());
    gemm.top_k = lists.top_k;
    gemm.first_expert = lists.first_expert;
    gemm.num_local_experts = lists.num_local_experts;
    gemm.rows = own.at(plan.payload_at[payload_named("hidden")]);
    gemm.ids = own.at(lists.ids_offset);
    gemm.router_weights = own.at(plan.payload_at[payload_named("topk_weights")]);
    gemm.list_offsets = lists.offsets;
    gemm.list_entries = lists.entries;
    gemm.weights = seats_[index(rank)].weights.address();
    gemm.products = seats_[index(rank)].products.address();
    gemm.entry_of = seats_[index(rank)].entry_of.address();
    gemm.out = own.at(plan_->workspace.rows_offset());
    return gemm;
  }

  template <class T>
  std::vector<T> read(RankId rank, Address from, std::uint64_t count) const {
    cuda::DeviceScope scope(seats_[index(rank)].device);
    std::vector<T> host(count);
    REQUIRE(cudaMemcpy(host.data(), cuda::pointer(from), count * sizeof(T),
                       cudaMemcpyDeviceToHost) == cudaSuccess);
    return host;
  }

  void check(const RoundPlan& plan) {
    const auto placement = moe::Placement::contiguous(ep_, scenario_.setup.num_experts);
    const auto routing =
        moe::Routing::make(scenario_.setup.top_k, round_.max_tokens_per_rank, round_.topk_ids);
    REQUIRE(placement.has_value());
    REQUIRE(routing.has_value());
    const moe::SlotRule rule = plan.protocol == one_sided::Protocol::kSentinel
                                   ? moe::SlotRule::kTokenIndex
                                   : moe::SlotRule::kCounterAnyOrder;
    const auto legal = moe::plan_dispatch(*placement, *routing, rule);
    REQUIRE(legal.has_value());
    const moe::DispatchPlan joined = with_slots(*legal, plan);
    const testing::HostExperts host{*placement,
                                    *routing,
                                    joined,
                                    hidden(),
                                    round_.payloads[payload_named("hidden")].rows,
                                    round_.payloads[payload_named("topk_weights")].rows};
    std::vector<std::vector<std::byte>> expert_rows;
    std::vector<const std::byte*> experts;
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next()) {
      check_lists(moe::list_expert_slots(*placement, *routing, joined, rank), rank);
      expert_rows.push_back(host.rows_of(rank, seats_[index(rank)].matrices));
    }
    for (const auto& rows : expert_rows) experts.push_back(rows.data());
    const auto combine = moe::Combine::make(moe::default_combine_profile().arithmetic,
                                            {.top_k = scenario_.setup.top_k});
    REQUIRE(combine.has_value());
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next()) {
      const auto tokens = static_cast<std::uint64_t>(num_tokens_[index(rank)]);
      if (tokens == 0) continue;
      std::vector<Bits> out(tokens * hidden());
      combine->rank(joined, rank, experts, static_cast<std::int64_t>(hidden()),
                    reinterpret_cast<std::byte*>(out.data()));
      CHECK(read<Bits>(rank, seats_[index(rank)].memory.out, out.size()) == out);
    }
  }

  moe::DispatchPlan with_slots(const moe::DispatchPlan& legal, const RoundPlan& plan) const {
    std::vector<std::vector<std::int32_t>> ranks, slots, counters;
    for (RankId rank{0}; rank.value() < ep_; rank = rank.next()) {
      const Address own = group_->own(index(rank));
      const auto picks = static_cast<std::uint64_t>(num_tokens_[index(rank)]) * top_k();
      ranks.push_back(read<std::int32_t>(rank, own.at(plan.group.at.target_rank), picks));
      slots.push_back(read<std::int32_t>(rank, own.at(plan.group.at.target_slot), picks));
      // Sentinel's are back at zero behind combine.
      const auto counted = legal.recv_counters(rank);
      counters.emplace_back(counted.begin(), counted.end());
    }
    moe::ObservedTargets observed;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      observed.target_rank.push_back(ranks[r]);
      observed.target_slot.push_back(slots[r]);
      observed.recv_counters.push_back(counters[r]);
    }
    const auto violation = moe::find_target_violation(legal, observed);
    INFO((violation ? violation->sentence : ""));
    REQUIRE(!violation.has_value());
    return moe::with_observed_slots(legal, observed);
  }

  void check_lists(const moe::ExpertLists& lists, RankId rank) const {
    const Seat& seat = seats_[index(rank)];
    const auto offsets = read<std::uint32_t>(rank, seat.memory.list_offsets, lists.offsets.size());
    CHECK(std::equal(offsets.begin(), offsets.end(), lists.offsets.begin(), lists.offsets.end()));
    std::vector<std::uint64_t> entries;
    for (const moe::ExpertSlot& slot : lists.entries)
      entries.push_back(one_sided::ListEntry::make(
          static_cast<std::uint64_t>(slot.src.value()) *
                  static_cast<std::uint64_t>(round_.max_tokens_per_rank) +
              static_cast<std::uint64_t>(slot.slot.value()),
          static_cast<std::uint32_t>(slot.k.value())));
    CHECK(read<std::uint64_t>(rank, seat.memory.list_entries, entries.size()) == entries);
  }

  Scenario scenario_;
  std::int32_t ep_;
  std::optional<GroupPlan> plan_;
  std::optional<cuda::OneSidedGroup> group_;
  std::vector<Seat> seats_;
  Round round_;
  std::vector<assay_payload> payloads_;
  std::vector<std::int32_t> num_tokens_;
  assay_round abi_{};
};

// A rank with one expert more than others, picks of dead ends, experts picked twice, ranks without
// tokens, a hidden size that fills no tile.
TEST_CASE("experts that gather through slot lists give the model's bits", "[CUD-10.1][KER-1.9]") {
  std::vector<cuda::Communicator> communicators;
  for (const std::int32_t ep : {1, 4}) {
    auto emulated = cuda::Communicator::emulated(ep, 0);
    REQUIRE(emulated.has_value());
    communicators.push_back(*emulated);
  }
  std::vector<int> devices;
  for (int device = 0; device < cuda::device_count(); ++device) devices.push_back(device);
  if (devices.size() > 1) communicators.push_back(*cuda::Communicator::one_process(devices));
  for (const cuda::Communicator& communicator : communicators) {
    MoeCase c;
    c.ep = communicator.ep_size();
    c.experts = 3 * c.ep + 1;
    c.top_k = 4;
    c.hidden = 104;
    c.max_tokens = 19;
    c.rounds = 4;
    c.tokens.clear();
    for (std::int32_t rank = 0; rank < c.ep; ++rank) c.tokens.push_back(c.max_tokens - rank);
    for (const bool sentinel : {false, true}) {
      INFO(c.ep << " ranks, " << (sentinel ? "Sentinel" : "Fence"));
      auto scenario = make_scenario(c, {.routing = Axes::Routing::kDuplicates,
                                        .invalid_percent = 15,
                                        .zero_token_ranks = true,
                                        .changing_max = true,
                                        .expert_lists = true});
      REQUIRE(scenario.has_value());
      GemmRounds rounds(communicator, *std::move(scenario), sentinel);
      for (std::int32_t round = 0; round < c.rounds; ++round) rounds.run(round);
    }
  }
}

}  // namespace
}  // namespace assay::verify
