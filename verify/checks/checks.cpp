// The table of checks, and how a view finds the rows that checks ask for.
#include "verify/checks/checks.hpp"

#include <array>

#include "model/core/contract.hpp"

namespace assay::verify {

namespace {

constexpr std::array<Check, 11> kChecks{{
    {"progress", "VER-2.3", "a run ends in time and calls the experts of every living rank once",
     nullptr},
    {"memory.bounds", "VER-1.3", "nothing is written before or after an output buffer",
     check_memory_bounds},
    {"memory.inputs", "VER-1.3", "inputs and expert rows are left as they were",
     check_memory_inputs},
    {"dispatch.targets", "MOE-2.1", "every pick goes to the only legal rank, and into a legal slot",
     check_dispatch_targets},
    {"dispatch.counters", "MOE-2.4", "recv_counters are the numbers of rows, not of picks",
     check_dispatch_counters},
    {"round.isolation", "VER-2.5", "no byte of an earlier round is left where a new one belongs",
     check_round_isolation},
    {"dispatch.rows", "MOE-2.6", "every row arrives whole, in the slot that was recorded for it",
     check_dispatch_rows},
    {"dispatch.padding", "MOE-2.7", "rows without a token are untouched, their ids invalid",
     check_dispatch_padding},
    {"dispatch.statistics", "MOE-2.10", "every rank has what every living rank told it",
     check_dispatch_statistics},
    {"dispatch.lists", "MOE-2.8", "slot lists name the rows of each local expert, in order",
     check_dispatch_lists},
    {"combine.bits", "MOE-3.1", "combined rows have the profile's bits", check_combine_bits},
}};

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

std::span<const std::int32_t> int32s(const OutputBuffer& buffer) {
  // Buffers start at a multiple of 64 bytes.
  return {reinterpret_cast<const std::int32_t*>(buffer.data),
          static_cast<std::size_t>(buffer.size) / sizeof(std::int32_t)};
}

}  // namespace

std::span<const Check> checks() { return kChecks; }

const Check& find_check(std::string_view name) {
  for (const Check& check : kChecks)
    if (check.name == name) return check;
  CONTRACT(false, name);
}

Mismatch mismatch_of(std::string_view check, std::string sentence, std::vector<Coordinate> where) {
  const Check& row = find_check(check);
  Mismatch mismatch;
  mismatch.check = std::string(row.name);
  mismatch.clause = std::string(row.clause);
  mismatch.sentence = std::move(sentence);
  mismatch.where = std::move(where);
  return mismatch;
}

std::int64_t RoundView::out_row_bytes() const {
  return moe::dtype_bytes(combine->out_dtype()) * setup->hidden_size;
}

std::int64_t RoundView::expert_row_bytes() const {
  return moe::dtype_bytes(setup->combine_dtype) * setup->hidden_size;
}

const std::byte* RoundView::source_rows(std::size_t payload, RankId src) const {
  if (payloads[payload].holds_expert_ids)
    return reinterpret_cast<const std::byte*>(round->topk_ids[index(src)].data());
  return round->payloads[payload].rows[index(src)].data();
}

const std::byte* RoundView::source_row(std::size_t payload, RankId src, TokenId token) const {
  return source_rows(payload, src) + payloads[payload].bytes_per_token * token.value();
}

const std::byte* RoundView::recv_row(std::size_t payload, RankId dst, RankId src,
                                     SlotId slot) const {
  return recv[payload][index(dst)].data +
         moe::recv_row_offset(*legal, payloads[payload], src, slot);
}

const std::byte* RoundView::expert_row(RankId dst, RankId src, SlotId slot) const {
  const std::int64_t row = std::int64_t{src.value()} * max_tokens() + slot.value();
  return expert_out[index(dst)].data + row * expert_row_bytes();
}

const std::byte* RoundView::out_row(RankId src, TokenId token) const {
  return out[index(src)].data + out_row_bytes() * token.value();
}

std::span<const std::int32_t> RoundView::counters_of(RankId dst) const {
  return int32s(recv_counters[index(dst)]);
}

std::span<const std::int32_t> RoundView::statistics_of(RankId dst) const {
  return int32s(statistics[index(dst)]);
}

std::span<const std::int32_t> RoundView::list_offsets_of(RankId dst) const {
  return int32s(list_offsets[index(dst)]);
}

std::span<const std::int32_t> RoundView::list_entries_of(RankId dst) const {
  return int32s(list_entries[index(dst)]);
}

std::span<const std::int32_t> RoundView::target_ranks_of(RankId src) const {
  return int32s(target_rank[index(src)]);
}

std::span<const std::int32_t> RoundView::target_slots_of(RankId src) const {
  return int32s(target_slot[index(src)]);
}

std::vector<const std::byte*> RoundView::terms_of(RankId src, TokenId token) const {
  std::vector<const std::byte*> terms(static_cast<std::size_t>(joined->top_k()), nullptr);
  for (TopKIndex k{0}; k.value() < joined->top_k(); k = k.next()) {
    if (const auto target = joined->target(src, token, k))
      terms[static_cast<std::size_t>(k.value())] = expert_row(target->rank, src, target->slot);
  }
  return terms;
}

}  // namespace assay::verify
