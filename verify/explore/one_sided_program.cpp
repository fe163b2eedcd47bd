// Our one-sided protocols as programs: dispatch, sanitize, experts, combine per round by Fence;
// dispatch, experts, combine by Sentinel. Also the workspace that a collective initialisation
// leaves, and where rows and control words lie.
#include <algorithm>

#include "verify/explore/protocol_parts.hpp"

namespace assay::verify {

namespace {

using machine::SimOps;

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }
std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// Where the second handle of Variant::kTwoHandles keeps its phase: in the padding behind the
// first's.
constexpr std::uint64_t kSecondPhase = 8;

class OneSidedProgram {
 public:
  OneSidedProgram(const ProtocolInput& in, Prepared& out) : in_(in), out_(out) {}

  void prepare() {
    prepare_workspace();
    for (std::size_t r = 0; r < in_.rounds.size(); ++r)
      for (RankId rank{0}; rank.value() < ep(); rank = rank.next()) add_round(r, rank);
    for (RankId rank{0}; rank.value() < ep(); rank = rank.next()) name_regions(rank);
    for (RankId rank{0}; rank.value() < ep(); rank = rank.next()) find_untouched(rank);
  }

 private:
  std::int32_t ep() const { return in_.setup.group.ep_size; }
  Variant variant() const { return in_.setup.variant; }
  std::uint64_t max_of(std::size_t r) const { return u64(in_.rounds[r]->max_tokens_per_rank); }

  RoundPlan plan_of(std::size_t r) const {
    RoundPlan plan = in_.round_plans[r];
    if (variant() == Variant::kTwoHandles && r % 2 == 1) plan.group.at.phase += kSecondPhase;
    return plan;
  }

  std::uint64_t rows_at(std::size_t r) const {
    if (variant() != Variant::kMovingRows) return in_.plan.workspace.rows_offset();
    const std::uint64_t end = in_.round_plans[r].payload_at.back() +
                              u64(ep()) * max_of(r) * 4 * u64(in_.setup.group.top_k);
    return (end + 127) / 128 * 128;
  }

  void prepare_workspace() {
    const Window window = in_.memory.window;
    const auto zeroed = in_.plan.workspace.zeroed_ranges();
    const std::vector<one_sided::WindowRange> ranges(zeroed.begin(), zeroed.end());
    const auto armed_span = in_.plan.workspace.armed_ranges();
    const std::vector<one_sided::WindowRange> armed(armed_span.begin(), armed_span.end());
    const bool two_phases = variant() == Variant::kTwoHandles;
    const std::uint64_t second = in_.plan.workspace.offsets().phase + kSecondPhase;
    out_.before.push_back([=, ep = ep()](machine::Machine& machine) {
      for (RankId rank{0}; rank.value() < ep; rank = rank.next()) {
        for (const one_sided::WindowRange& range : ranges)
          machine.fill(window.of(rank).at(range.offset_bytes), range.bytes, std::byte{0});
        for (const one_sided::WindowRange& range : armed)
          machine.fill(window.of(rank).at(range.offset_bytes), range.bytes, std::byte{0xFF});
        if (two_phases) machine.fill(window.of(rank).at(second), 4, std::byte{0});
      }
    });
  }

  // Whether `rank` has stopped before it launches this kernel of round `r`.
  bool has_stopped(RankId rank, std::size_t r, bool dispatch) const {
    if (rank.value() != 0) return false;
    if (variant() == Variant::kFirstRankSilent) return true;
    return variant() == Variant::kFirstRankLeaves && (r > 0 || !dispatch);
  }

  // Whether nothing has failed before the experts of round `r`.
  bool experts_run(std::size_t r) const {
    return !is_failing(variant()) || (variant() == Variant::kFirstRankLeaves && r == 0);
  }

  void add_round(std::size_t r, RankId rank) {
    if (variant() == Variant::kSkippedRound && r == 1 && rank.value() == ep() - 1) return;
    const RoundPlan plan = plan_of(r);
    const RankMemory& memory = in_.memory.of[r][index(rank)];
    const ExploreKernels& kernels = *in_.setup.kernels;
    const std::uint32_t tokens = tokens_of(*in_.rounds[r], rank);
    std::uint32_t stream = 0;
    if (variant() == Variant::kTwoStreams) {
      stream = static_cast<std::uint32_t>(r % 2);
      out_.streams_per_rank = 2;
    }
    const auto add = [&](std::string_view name, std::uint32_t ctas, auto kernel,
                         const auto& params) {
      if (has_stopped(rank, r, name == "dispatch")) return;
      out_.launches.push_back({rank, stream, kernel_name(name, r), ctas,
                               [kernel, params](SimOps& sim, Running& running) {
                                 ExploreOps ops(sim, running.mutation);
                                 kernel(ops, params);
                               }});
    };
    const int top_k = in_.setup.group.top_k;
    const auto add_experts = [&] {
      if (!experts_run(r) || has_stopped(rank, r, false)) return;
      out_.launches.push_back(
          {rank, stream, kernel_name("experts", r), 1,
           ExpertsKernel{r, &out_.evidence.rounds[r], memory.window.of(rank), plan.recv_counters_at,
                         plan.payload_at, rows_at(r), plan.group.at.statistics}});
    };
    if (plan.protocol == Protocol::kSentinel) {
      const std::uint32_t groups =
          in_.setup.ctas != 0 ? in_.setup.ctas : sentinel_groups(in_.plan, tokens);
      const std::uint32_t waiters = std::min(groups, in_.setup.resident_ctas);
      add("dispatch", groups, kernels.sentinel_dispatch(top_k),
          sentinel_dispatch_params(in_.plan, plan, *in_.rounds[r], rank, memory, waiters));
      add_experts();
      add("combine", groups, kernels.sentinel_combine(top_k),
          sentinel_combine_params(in_.plan, plan, *in_.rounds[r], rank, memory, waiters));
      return;
    }
    add("dispatch", std::max(tokens, 1u), kernels.dispatch(top_k),
        dispatch_params(in_.plan, plan, *in_.rounds[r], rank, memory));
    add("sanitize", 1, kernels.sanitize, sanitize_params(in_.plan, plan, memory));
    add_experts();
    auto combine = combine_params(in_.plan, plan, *in_.rounds[r], rank, memory);
    combine.rows_offset = rows_at(r);
    combine.parts_log2 = in_.setup.parts_log2;
    add("combine", groups_of(combine), kernels.combine(top_k), combine);
  }

  // For reports, and for what the judge looks at when a run has ended.
  void name_regions(RankId rank) {
    Evidence& evidence = out_.evidence;
    const Address own = in_.memory.window.of(rank);
    const bool one_shape = std::all_of(in_.rounds.begin(), in_.rounds.end(), [&](const auto* r) {
      return r->max_tokens_per_rank == in_.rounds[0]->max_tokens_per_rank;
    });
    for (std::size_t p = 0; one_shape && p < in_.round_plans[0].payload_at.size(); ++p) {
      const std::uint64_t row = in_.rounds[0]->payloads[p].bytes_per_token;
      evidence.regions.push_back({std::string("received ") + in_.rounds[0]->payloads[p].name,
                                  own.at(in_.round_plans[0].payload_at[p]),
                                  u64(ep()) * max_of(0) * row, rank, -1, row, max_of(0)});
    }
    for (const auto& placed : in_.plan.workspace.layout().regions()) {
      const bool words = placed.name.find("flags") != std::string::npos ||
                         placed.name.find("counters") != std::string::npos;
      NamedRegion region{placed.name, own.at(placed.offset_bytes), placed.bytes, rank, -1, 0, 0};
      if (words) {
        region.row_bytes = placed.name.find("flags") != std::string::npos ? 8 : 4;
        region.rows_per_source = 1;
      }
      if (placed.name == "expert_rows" && one_shape && variant() != Variant::kMovingRows) {
        region.row_bytes = in_.plan.row_bytes();
        region.rows_per_source = max_of(0);
      }
      evidence.regions.push_back(std::move(region));
    }
    evidence.status.push_back(own.at(in_.plan.workspace.offsets().status));
    evidence.out.resize(in_.rounds.size());
    for (std::size_t r = 0; r < in_.rounds.size(); ++r) {
      const RankMemory& memory = in_.memory.of[r][index(rank)];
      const std::uint64_t out_bytes = tokens_of(*in_.rounds[r], rank) * in_.plan.out_row_bytes();
      evidence.out[r].push_back(memory.out);
      evidence.regions.push_back({"combined rows", memory.out, out_bytes, rank,
                                  static_cast<std::int32_t>(r), in_.plan.out_row_bytes(), 0});
    }
    if (is_failing(variant())) {
      const bool silent = variant() == Variant::kFirstRankSilent;
      if (rank.value() != 0) evidence.given_up.push_back({rank, RankId(0), silent ? 1u : 2u});
      evidence.rounds_combined = silent ? 0 : 1;
      return;  // words stay as the failure left them
    }
    const one_sided::WorkspaceOffsets at = in_.plan.workspace.offsets();
    const auto word = [&](std::uint64_t offset, std::uint32_t value, const char* what) {
      evidence.final_words.push_back({own.at(offset), value, what, rank});
    };
    std::uint32_t by_sentinel = 0;
    for (const RoundPlan& plan : in_.round_plans)
      by_sentinel += plan.protocol == Protocol::kSentinel ? 1 : 0;
    const auto by_fence = static_cast<std::uint32_t>(in_.rounds.size()) - by_sentinel;
    if (variant() == Variant::kNone) word(at.phase, 2 * by_fence, "the phase");
    word(at.sentinel.dispatch_phase, 2 * by_sentinel, "Sentinel's phase");
    word(at.sentinel.dispatch_ticket, 0, "the ticket of Sentinel's dispatch");
    for (std::int32_t source = 0; source < ep(); ++source)
      word(at.sentinel.recv_counters + 4 * u64(source), 0, "a receive counter of Sentinel");
    for (const one_sided::WindowRange& range : in_.plan.workspace.armed_ranges())
      evidence.armed.push_back({own.at(range.offset_bytes), range.bytes});
    word(at.dispatch_ticket, 0, "dispatch's ticket");
    for (std::int32_t target = 0; target < ep(); ++target)
      word(at.send_counters + 4 * u64(target), 0, "a send counter");
    std::uint64_t tokens = 0;
    for (const auto* round : in_.rounds)
      tokens = std::max<std::uint64_t>(tokens, tokens_of(*round, rank));
    for (std::uint64_t pick = tokens * u64(in_.setup.group.top_k);
         pick < u64(in_.setup.group.max_tokens_per_rank) * u64(in_.setup.group.top_k); ++pick) {
      word(at.target_rank + 4 * pick, 0, "the target rank of a token that is none");
      word(at.target_slot + 4 * pick, 0, "the target slot of a token that is none");
    }
  }

  // The window without what the rounds may write (SPEC VER-8.3).
  void find_untouched(RankId rank) {
    const one_sided::WorkspaceOffsets at = in_.plan.workspace.offsets();
    std::vector<bool> may(in_.plan.workspace.window_bytes(), false);
    const auto allow = [&](std::uint64_t first, std::uint64_t bytes) {
      std::fill_n(may.begin() + static_cast<std::ptrdiff_t>(first), bytes, true);
    };
    for (const one_sided::WindowRange& range : in_.plan.workspace.zeroed_ranges())
      allow(range.offset_bytes, range.bytes);
    for (const one_sided::WindowRange& range : in_.plan.workspace.armed_ranges())
      allow(range.offset_bytes, range.bytes);
    if (variant() == Variant::kTwoHandles) allow(at.phase + kSecondPhase, 4);
    allow(at.recv_counters, 4 * u64(ep()));
    for (std::size_t r = 0; r < in_.rounds.size(); ++r) {
      allow(at.statistics, 4 * u64(ep()) * u64(in_.setup.rounds[r].num_statistics()));
      const moe::DispatchPlan& legal = out_.evidence.rounds[r].plan;
      for (RankId src{0}; src.value() < ep(); src = src.next()) {
        const std::uint64_t first = index(src) * max_of(r);
        const auto allow_row = [&](std::uint64_t slot, bool ids_only) {
          if (!ids_only)
            allow(rows_at(r) + (first + slot) * in_.plan.row_bytes(), in_.plan.row_bytes());
          for (std::size_t p = 0; p < in_.round_plans[r].payload_at.size(); ++p) {
            const assay_payload& payload = in_.rounds[r]->payloads[p];
            if (ids_only && payload.holds_expert_ids == 0) continue;
            allow(in_.round_plans[r].payload_at[p] + (first + slot) * payload.bytes_per_token,
                  payload.bytes_per_token);
          }
        };
        // Canonical slots are those that any legal order fills.
        for (const auto& row : legal.rows(rank, src))
          allow_row(static_cast<std::uint64_t>(row.slot.value()), false);
        for (std::uint64_t slot = 0; slot < max_of(r); ++slot) allow_row(slot, true);
      }
      if (in_.round_plans[r].protocol == Protocol::kSentinel)
        allow(at.sentinel.picks, 4 * u64(ep()) * max_of(r));
    }
    const Address own = in_.memory.window.of(rank);
    for (std::size_t byte = 0; byte < may.size();) {
      const auto begin = byte;
      while (byte < may.size() && may[byte] == may[begin]) ++byte;
      if (!may[begin]) out_.evidence.untouched.push_back({own.at(begin), byte - begin});
    }
  }

  const ProtocolInput& in_;
  Prepared& out_;
};

}  // namespace

void prepare_one_sided(const ProtocolInput& input, Prepared& prepared) {
  OneSidedProgram(input, prepared).prepare();
}

}  // namespace assay::verify
