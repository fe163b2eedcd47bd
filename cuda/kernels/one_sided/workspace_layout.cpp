// The declaration of the workspace: its regions, their alignment and what starts at zero.
#include "cuda/kernels/one_sided/workspace_layout.hpp"

#include <fmt/format.h>

#include "model/core/digest.hpp"

namespace assay::one_sided {

namespace {

// A widest vector access; payload regions keep this alignment so that a row's own size decides.
constexpr std::uint64_t kRowAlignment = 16;
// One line of the L2 cache: words that different ranks or groups write do not share one.
constexpr std::uint64_t kLineBytes = 128;

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::uint64_t round_up(std::uint64_t value) {
  return (value + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

// A slot holds a header and every payload padded to whole vectors: at most 15 bytes each, and the
// sum is whole vectors again.
std::uint64_t slot_bytes(const GroupCapacity& c) {
  const std::uint64_t padded = u64(c.payload_bytes_total) + (kRowAlignment - 1) * kMaxPayloads;
  return kRowAlignment + padded / kRowAlignment * kRowAlignment;
}

// A cell holds a header and one row as it crosses the wire.
std::uint64_t cell_bytes(const GroupCapacity& c) {
  return kRowAlignment + round_up(u64(c.staged_row_bytes > 0 ? c.staged_row_bytes : c.row_bytes));
}

// The number of rounds wraps at 2^31, so only a power of two keeps its turns there.
bool is_power_of_two(std::int32_t number) { return number >= 1 && (number & (number - 1)) == 0; }

}  // namespace

Expected<Workspace> Workspace::make(const GroupCapacity& c) {
  if (c.ep_size < 1 || c.ep_size > static_cast<std::int32_t>(kMaxRanks))
    return bad_input(fmt::format("ep_size is {}; allowed are 1 to {}", c.ep_size, kMaxRanks));
  if (c.top_k < 1 || c.max_tokens_per_rank < 1 || c.payload_bytes_total < 1 || c.row_bytes < 1 ||
      c.staged_row_bytes < 0 || c.num_statistics < 0)
    return bad_input(fmt::format(
        "a group's capacity has top_k {}, max_tokens_per_rank {}, {} payload bytes per token, {} "
        "bytes per row, {} per staged row and {} statistics; at least 1 is needed of each, 0 for "
        "the last two",
        c.top_k, c.max_tokens_per_rank, c.payload_bytes_total, c.row_bytes, c.staged_row_bytes,
        c.num_statistics));
  if (c.sentinel_max_tokens < 0 || c.sentinel_max_tokens > c.max_tokens_per_rank)
    return bad_input(
        fmt::format("sentinel_max_tokens is {}; allowed are 0 to the group's capacity {}",
                    c.sentinel_max_tokens, c.max_tokens_per_rank));
  if (!is_power_of_two(c.dispatch_generations) || !is_power_of_two(c.combine_generations))
    return bad_input(fmt::format("Sentinel's generations are {} and {}; allowed are powers of two",
                                 c.dispatch_generations, c.combine_generations));
  ASSAY_TRY(
      Layout layout,
      Layout::declare(
          "workspace",
          {{"ep", u64(c.ep_size)},
           {"max", u64(c.max_tokens_per_rank)},
           {"top_k", u64(c.top_k)},
           {"payload bytes", u64(c.payload_bytes_total)},
           {"payload padding", kRowAlignment * kMaxPayloads},
           {"row bytes", u64(c.row_bytes)},
           {"staged row bytes", u64(c.staged_row_bytes)},
           {"statistics", u64(c.num_statistics)},
           {"sentinel max", u64(c.sentinel_max_tokens)},
           {"generation", u64(c.dispatch_generations)},
           {"combine generation", u64(c.combine_generations)},
           {"slot bytes", slot_bytes(c)},
           {"cell bytes", cell_bytes(c)},
           {"sentinel padding", c.sentinel_max_tokens > 0 ? kRowAlignment * kMaxPayloads : 0}},
          {{"phase", 4, {}, kLineBytes, "two for each dispatch so far"},
           {"status", StatusWord::kBytes, {}, 32, "why a kernel gave up, zero if none did"},
           {"dispatch_ticket", 4, {}, kLineBytes, "groups of the running dispatch that are done"},
           {"combine_ticket", 4, {}, kLineBytes, "groups of the last combine that started"},
           {"dispatch_flags", 8, {"ep"}, kLineBytes, "flag word of each source"},
           {"combine_flags", 8, {"ep"}, kLineBytes, "flag word of each source"},
           {"send_counters",
            4,
            {"ep"},
            kLineBytes,
            "slots taken at each target, zero between rounds"},
           {"recv_counters", 4, {"ep"}, kLineBytes, "rows that came from each source"},
           {"statistics",
            4,
            {"ep", "statistics"},
            kLineBytes,
            "loads of experts as each source told them, [ep, words of the round]"},
           {"target_rank", 4, {"max", "top_k"}, kLineBytes, "-1 where nothing was sent"},
           {"target_slot", 4, {"max", "top_k"}, kLineBytes, "-1 where nothing was sent"},
           {"payload_rows",
            1,
            {"ep", "max", "payload bytes"},
            kLineBytes,
            "receive buffers: each payload of a round as [ep, max of the round, bytes]"},
           {"payload_padding",
            1,
            {"payload padding"},
            1,
            "room to start every payload at a multiple of 16 bytes"},
           {"expert_rows",
            1,
            {"ep", "max", "row bytes"},
            kLineBytes,
            "what the experts give back, [ep, max of the round, h]; peers pull from here"},
           {"staged_rows",
            1,
            {"ep", "max", "staged row bytes"},
            kLineBytes,
            "the same rows as e4m3, for a low-precision combine"},
           {"sentinel_dispatch_phase",
            4,
            {},
            kLineBytes,
            "kernels of Sentinel so far, as dispatch reads it; even"},
           {"sentinel_combine_phase", 4, {}, kLineBytes, "the same as combine reads it; odd"},
           {"sentinel_dispatch_ticket", 4, {}, kLineBytes, "groups of the dispatch that started"},
           {"sentinel_combine_ticket", 4, {}, kLineBytes, "groups of the combine that started"},
           {"sentinel_recv_counters",
            4,
            {"ep"},
            kLineBytes,
            "rows that came from each source, until combine"},
           {"sentinel_picks",
            4,
            {"ep", "sentinel max"},
            kLineBytes,
            "1 + the pick of each received row, 0 for none"},
           {"sentinel_rows",
            1,
            {"ep", "sentinel max", "payload bytes"},
            kLineBytes,
            "receive buffers: each payload of a round as [ep, max of the round, bytes]"},
           {"sentinel_padding",
            1,
            {"sentinel padding"},
            1,
            "room to start every payload at a multiple of 16 bytes"},
           {"sentinel_slots",
            1,
            {"generation", "ep", "sentinel max", "slot bytes"},
            kLineBytes,
            "where peers store headers and rows; armed"},
           {"sentinel_inbox",
            1,
            {"combine generation", "sentinel max", "top_k", "cell bytes"},
            kLineBytes,
            "where peers store rows that come back; armed"}}));
  Workspace workspace(std::move(layout));
  workspace.capacity_ = c;
  // Picks and targets are read before it is known whether the dispatch that writes them has failed.
  for (const char* name :
       {"phase", "status", "dispatch_ticket", "combine_ticket", "dispatch_flags", "combine_flags",
        "send_counters", "sentinel_dispatch_phase", "sentinel_combine_phase",
        "sentinel_dispatch_ticket", "sentinel_combine_ticket", "sentinel_recv_counters",
        "sentinel_picks", "target_rank", "target_slot"}) {
    const Layout::Placed& region = workspace.layout_.region(name);
    workspace.zeroed_.push_back({region.offset_bytes, region.bytes});
  }
  for (const char* name : {"sentinel_slots", "sentinel_inbox"}) {
    const Layout::Placed& region = workspace.layout_.region(name);
    if (region.bytes > 0) workspace.armed_.push_back({region.offset_bytes, region.bytes});
  }
  return workspace;
}

WorkspaceOffsets Workspace::offsets() const {
  const auto at = [&](const char* name) { return layout_.offset_bytes(name); };
  WorkspaceOffsets offsets{};
  offsets.phase = at("phase");
  offsets.status = at("status");
  offsets.dispatch_ticket = at("dispatch_ticket");
  offsets.combine_ticket = at("combine_ticket");
  offsets.dispatch_flags = at("dispatch_flags");
  offsets.combine_flags = at("combine_flags");
  offsets.send_counters = at("send_counters");
  offsets.recv_counters = at("recv_counters");
  offsets.statistics = at("statistics");
  offsets.target_rank = at("target_rank");
  offsets.target_slot = at("target_slot");
  offsets.sentinel = {at("sentinel_dispatch_phase"),  at("sentinel_combine_phase"),
                      at("sentinel_dispatch_ticket"), at("sentinel_combine_ticket"),
                      at("sentinel_recv_counters"),   at("sentinel_picks"),
                      at("sentinel_slots"),           at("sentinel_inbox")};
  return offsets;
}

std::uint64_t Workspace::recv_counters_offset(Protocol protocol) const {
  return layout_.offset_bytes(protocol == Protocol::kSentinel ? "sentinel_recv_counters"
                                                              : "recv_counters");
}

SentinelParams Workspace::sentinel_params() const {
  SentinelParams params{};
  params.slot_bytes = slot_bytes(capacity_);
  params.cell_bytes = cell_bytes(capacity_);
  params.slots_per_source = static_cast<std::uint32_t>(capacity_.sentinel_max_tokens);
  params.dispatch_generations = static_cast<std::uint32_t>(capacity_.dispatch_generations);
  params.combine_generations = static_cast<std::uint32_t>(capacity_.combine_generations);
  return params;
}

std::vector<std::uint64_t> Workspace::payload_offsets(const RoundShape& round) const {
  const bool sentinel = protocol_of(round.max_tokens_per_rank) == Protocol::kSentinel;
  std::vector<std::uint64_t> offsets;
  std::uint64_t next = layout_.offset_bytes(sentinel ? "sentinel_rows" : "payload_rows");
  for (const std::uint64_t bytes : round.payload_bytes) {
    offsets.push_back(next);
    next = round_up(next + u64(capacity_.ep_size) * u64(round.max_tokens_per_rank) * bytes);
  }
  const auto& room = layout_.region(sentinel ? "sentinel_padding" : "payload_padding");
  CONTRACT(next <= room.end_bytes(), next);
  return offsets;
}

std::vector<Workspace::FlagCell> Workspace::flags_after(std::uint32_t phase) const {
  std::vector<FlagCell> cells;
  for (std::uint64_t source = 0; source < u64(capacity_.ep_size); ++source) {
    cells.push_back(
        {layout_.offset_bytes("dispatch_flags") + 8 * source, FlagWord::make(0, phase - 1)});
    cells.push_back({layout_.offset_bytes("combine_flags") + 8 * source, FlagWord::make(0, phase)});
  }
  return cells;
}

std::uint32_t Workspace::round_digest(const RoundShape& round) const {
  Digest digest;
  digest.add(layout_.digest()).add(u64(round.num_experts)).add(u64(round.max_tokens_per_rank));
  digest.add(round.payload_bytes.size());
  for (const std::uint64_t bytes : round.payload_bytes) digest.add(bytes);
  for (const std::uint64_t word : round.alive.word) digest.add(word);
  digest.add(u64(round.num_statistics));
  return digest.value();
}

}  // namespace assay::one_sided
