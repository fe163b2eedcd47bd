// Filling in the structs of subject.h.
#include "verify/subject/abi_round.hpp"

#include "model/core/contract.hpp"
#include "verify/checks/input_digest.hpp"

namespace assay::verify {

namespace {

std::int32_t abi_dtype(moe::Dtype dtype) {
  switch (dtype) {
    case moe::Dtype::kBf16:
      return ASSAY_DTYPE_BF16;
    case moe::Dtype::kF16:
      return ASSAY_DTYPE_F16;
    case moe::Dtype::kF32:
      return ASSAY_DTYPE_F32;
    case moe::Dtype::kE4m3:
      break;  // check_setup refuses it
  }
  CONTRACT(false, static_cast<int>(dtype));
}

std::int32_t* int32s(const OutputBuffer& buffer) {
  return reinterpret_cast<std::int32_t*>(buffer.data);  // buffers start at a multiple of 64 bytes
}

}  // namespace

void take_buffers(RoundView& view, BufferArena& arena, std::byte poison) {
  const std::int32_t ep = view.ep_size();
  const std::int64_t expert_rows = std::int64_t{ep} * view.max_tokens();
  for (const moe::Payload& payload : view.payloads) {
    auto& recv = view.recv.emplace_back();
    for (std::int32_t rank = 0; rank < ep; ++rank)
      recv.push_back(arena.take(moe::recv_bytes(*view.legal, payload), poison));
  }
  for (RankId rank{0}; rank.value() < ep; rank = rank.next()) {
    const std::int64_t tokens = view.num_tokens(rank);
    const std::int64_t picks_bytes = tokens * view.setup->top_k * 4;
    view.recv_counters.push_back(arena.take(std::int64_t{ep} * 4, poison));
    view.target_rank.push_back(arena.take(picks_bytes, poison));
    view.target_slot.push_back(arena.take(picks_bytes, poison));
    // The experts fill it as a whole.
    view.expert_out.push_back(arena.take(expert_rows * view.expert_row_bytes(), poison, false));
    view.out.push_back(arena.take(tokens * view.out_row_bytes(), poison));
    if (const std::int64_t words = std::int64_t{ep} * view.round->num_statistics(); words > 0)
      view.statistics.push_back(arena.take(words * 4, poison));
    if (view.setup->expert_lists) {
      view.list_offsets.push_back(
          arena.take((view.placement->experts_of(rank).count + 1) * std::int64_t{4}, poison));
      view.list_entries.push_back(arena.take(expert_rows * view.setup->top_k * 8, poison));
    }
    view.expert_calls.push_back(0);
    view.expert_digest.push_back(0);
    view.input_digest.push_back(input_digest(view, rank));
  }
}

namespace {

void point_at_more(const RoundView& view, AbiRound& abi) {
  assay_round_more& more = abi.more;
  more.struct_size = sizeof more;
  if (!view.statistics.empty()) {
    for (std::size_t rank = 0; rank < view.statistics.size(); ++rank) {
      abi.told.push_back(view.round->statistics[rank].data());
      abi.statistics.push_back(int32s(view.statistics[rank]));
    }
    more.num_statistics = view.round->num_statistics();
    more.statistics = abi.told.data();
    more.gathered_statistics = abi.statistics.data();
  }
  if (view.list_offsets.empty()) return;
  for (std::size_t rank = 0; rank < view.list_offsets.size(); ++rank) {
    abi.list_offsets.push_back(int32s(view.list_offsets[rank]));
    abi.list_entries.push_back(int32s(view.list_entries[rank]));
  }
  more.list_offsets = abi.list_offsets.data();
  more.list_entries = abi.list_entries.data();
}

}  // namespace

void point_at(const RoundView& view, AbiRound& abi) {
  const std::size_t payloads = view.payloads.size();
  abi.rows.resize(payloads);
  abi.recv.resize(payloads);
  for (std::size_t p = 0; p < payloads; ++p) {
    const moe::Payload& payload = view.payloads[p];
    abi.payloads.push_back({payload.name.c_str(),
                            static_cast<std::uint32_t>(payload.bytes_per_token),
                            payload.holds_expert_ids ? 1 : 0});
    for (RankId rank{0}; rank.value() < view.ep_size(); rank = rank.next()) {
      abi.recv[p].push_back(view.recv[p][static_cast<std::size_t>(rank.value())].data);
      abi.rows[p].push_back(view.source_rows(p, rank));
    }
    abi.rows_of.push_back(abi.rows[p].data());
    abi.recv_of.push_back(abi.recv[p].data());
  }
  for (std::size_t rank = 0; rank < view.out.size(); ++rank) {
    abi.num_tokens.push_back(view.num_tokens(RankId(static_cast<std::int32_t>(rank))));
    abi.topk_ids.push_back(view.round->topk_ids[rank].data());
    abi.recv_counters.push_back(int32s(view.recv_counters[rank]));
    abi.target_rank.push_back(int32s(view.target_rank[rank]));
    abi.target_slot.push_back(int32s(view.target_slot[rank]));
    abi.expert_out.push_back(view.expert_out[rank].data);
    abi.out.push_back(view.out[rank].data);
  }
  point_at_more(view, abi);
  assay_round& round = abi.round;
  round.struct_size = sizeof round;
  round.max_tokens_per_rank = view.max_tokens();
  round.num_payloads = static_cast<std::int32_t>(payloads);
  round.payloads = abi.payloads.data();
  round.rank_mask = view.alive == moe::RankMask::all() ? nullptr : view.alive.words().data();
  round.num_tokens = abi.num_tokens.data();
  round.topk_ids = abi.topk_ids.data();
  round.payload_rows = abi.rows_of.data();
  round.recv = abi.recv_of.data();
  round.recv_counters = abi.recv_counters.data();
  round.target_rank = abi.target_rank.data();
  round.target_slot = abi.target_slot.data();
  round.expert_out = abi.expert_out.data();
  round.out = abi.out.data();
}

assay_group_config abi_config(const GroupSetup& setup) {
  assay_group_config config{};
  config.struct_size = sizeof config;
  config.ep_size = setup.ep_size;
  config.first_rank = 0;
  config.num_local_ranks = setup.ep_size;
  config.num_experts = setup.num_experts;
  config.top_k = setup.top_k;
  config.hidden_size = setup.hidden_size;
  config.max_tokens_per_rank = setup.max_tokens_per_rank;
  config.max_payload_bytes_total = setup.max_payload_bytes_total;
  config.invalid_expert_id = setup.invalid_expert_id;
  config.combine_dtype = abi_dtype(setup.combine_dtype);
  config.low_precision_combine = setup.low_precision_combine ? 1 : 0;
  config.profile = setup.profile->name.data();  // a literal of the profile table
  config.options = setup.options.c_str();
  config.seed = setup.seed;
  config.num_statistics = setup.num_statistics;
  config.expert_lists = setup.expert_lists ? 1 : 0;
  return config;
}

}  // namespace assay::verify
