// The stand-in for experts as a kernel: one group, rows dealt out to its lanes.
#include <cstring>

#include "verify/explore/protocol_parts.hpp"

namespace assay::verify {

namespace {

using machine::SimOps;

// By the widest words that the row's size allows; a row starts at a multiple of its size.
void load_row(SimOps& ops, Address from, std::span<std::byte> row) {
  const auto load = [&](auto word) {
    using T = decltype(word);
    for (std::size_t at = 0; at < row.size(); at += sizeof(T)) {
      const T value = ops.load(as<T>, weak, Site::kExpertsReadRow, from.at(at));
      std::memcpy(row.data() + at, &value, sizeof value);
    }
  };
  if (row.size() % 4 == 0) return load(std::uint32_t{});
  if (row.size() % 2 == 0) return load(std::uint16_t{});
  load(std::uint8_t{});
}

void store_row(SimOps& ops, Address to, std::span<const std::byte> row) {
  for (std::size_t at = 0; at < row.size(); at += 2) {
    std::uint16_t value = 0;  // bf16 elements
    std::memcpy(&value, row.data() + at, sizeof value);
    ops.store(weak, Site::kExpertsStoreRow, to.at(at), value);
  }
}

}  // namespace

void ExpertsKernel::operator()(SimOps& ops, Running& running) const {
  ops.wait_for_grid(Site::kExpertsWaitForGrid);
  const RankId me = ops.rank();
  const auto max = static_cast<std::uint32_t>(truth->plan.max_tokens_per_rank());
  std::vector<std::vector<std::byte>> rows;
  for (const moe::Payload& payload : truth->payloads)
    rows.emplace_back(static_cast<std::size_t>(payload.bytes_per_token));
  std::vector<std::span<const std::byte>> views(rows.begin(), rows.end());
  const auto ids = static_cast<std::size_t>(truth->ids_payload);
  for (RankId src{0}; src.value() < truth->plan.ep_size(); src = src.next()) {
    const auto s = static_cast<std::uint32_t>(src.value());
    const auto count = ops.load(as<std::uint32_t>, weak, Site::kExpertsReadCount,
                                own.at(counts_at + std::uint64_t{s} * 4));
    if (ops.thread() == 0) running.judge.received_count(round, me, src, count);
    // Words that arrive beside the counts, and are read like them.
    const auto words = static_cast<std::uint32_t>(truth->round.num_statistics());
    for (std::uint32_t i = ops.thread(); i < words; i += ops.group_size())
      running.judge.received_statistic(
          round, me, src, i,
          ops.load(as<std::uint32_t>, weak, Site::kExpertsReadCount,
                   own.at(statistics_at + (std::uint64_t{s} * words + i) * 4)));
    for (std::uint32_t slot = 0; slot < max; ++slot) {
      const std::uint64_t row = std::uint64_t{s} * max + slot;
      if (row % ops.group_size() != ops.thread()) continue;
      // By Fence the rows of a source are as many as it counted; by Sentinel a row stands where its
      // token's number says.
      const bool present =
          truth->plan.slot_rule() == moe::SlotRule::kTokenIndex
              ? truth->plan.source_of(me, src, SlotId(static_cast<std::int32_t>(slot))).has_value()
              : slot < count;
      for (std::size_t p = 0; p < rows.size(); ++p)
        if (present || p == ids)
          load_row(ops, own.at(payload_at[p] + row * rows[p].size()), rows[p]);
      if (!present) {
        for (std::size_t at = 0; at < rows[ids].size(); at += 4) {
          std::int32_t id = 0;
          std::memcpy(&id, rows[ids].data() + at, sizeof id);
          running.judge.padding_id(round, me, src, slot, id);
        }
        continue;
      }
      const auto token = running.judge.received_row(round, me, src, slot, views);
      if (!token.has_value()) continue;
      const auto expert_row = truth->expert_row(me, src, *token);
      store_row(ops, own.at(rows_at + row * expert_row.size()), expert_row);
    }
  }
}

}  // namespace assay::verify
