// assay golden dispatch: targets, counters and receive buffers of one round. What is legal is
// model/moe/dispatch.hpp, what a file says dispatch_input.hpp; this file decides the tensors that
// are compared, and how a got file's own choice of slots is adopted: by the slots that it recorded,
// else by the content of whole rows (SPEC VER-7.6).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "verify/golden/compare.hpp"
#include "verify/golden/dispatch_input.hpp"
#include "verify/golden/join_rows.hpp"

namespace assay::verify {
namespace {

constexpr std::string_view kSlotRules = "counter, prefix, canonical and token_index";

// --- outputs -------------------------------------------------------------------------------------

// target_rank or target_slot [ep, t, top_k]: -1 where a rank has no such token, or is dead.
GoldenTensor target_tensor(const DispatchInput& p, const char* name,
                           std::span<const std::int32_t> (moe::DispatchPlan::*of)(RankId) const) {
  GoldenTensor out{.name = name, .dtype = Dtype::kI32};
  out.shape = {static_cast<std::uint64_t>(p.ep), static_cast<std::uint64_t>(p.tokens),
               static_cast<std::uint64_t>(p.top_k)};
  out.axes = {"source", "token", "k"};
  out.format = ElementFormat::kInt32;
  out.clause = of == &moe::DispatchPlan::target_rank ? "MOE-2.1" : "MOE-2.3";
  out.optional = true;
  std::vector<std::int32_t> values(p.picks() * static_cast<std::size_t>(p.ep), -1);
  out.compared.assign(values.size(), 0);
  for (std::int32_t src = 0; src < p.ep; ++src) {
    if (!p.plan->alive(RankId{src})) continue;
    const std::span<const std::int32_t> own = ((*p.plan).*of)(RankId{src});
    const std::size_t first = static_cast<std::size_t>(src) * p.picks();
    std::copy(own.begin(), own.end(), values.begin() + static_cast<std::ptrdiff_t>(first));
    std::fill_n(out.compared.begin() + static_cast<std::ptrdiff_t>(first), own.size(), 1);
  }
  out.bytes = bytes_of(std::span<const std::int32_t>(values));
  return out;
}

GoldenTensor counter_tensor(const DispatchInput& p) {
  GoldenTensor out{.name = "recv_counters", .dtype = Dtype::kI32};
  out.shape = {static_cast<std::uint64_t>(p.ep), static_cast<std::uint64_t>(p.ep)};
  out.axes = {"rank", "source"};
  out.format = ElementFormat::kInt32;
  out.clause = "MOE-2.4";
  std::vector<std::int32_t> values;
  for (RankId dst{0}; dst.value() < p.ep; dst = dst.next()) {
    for (const std::int32_t count : p.plan->recv_counters(dst)) {
      values.push_back(count);
      out.compared.push_back(p.plan->alive(dst));
    }
  }
  out.bytes = bytes_of(std::span<const std::int32_t>(values));
  return out;
}

// recv.<name> [dst, src, slot, ...]. Rows that hold no token are zero and not compared; those of
// the id payload hold the invalid id and are, where one is given (SPEC VER-7.3).
GoldenTensor recv_tensor(const DispatchInput& p, const DispatchRows& rows) {
  GoldenTensor out{.name = "recv." + rows.payload.name, .dtype = rows.view.dtype};
  const auto ep = static_cast<std::uint64_t>(p.ep), max = static_cast<std::uint64_t>(p.max_tokens);
  out.shape = {ep, ep, max};
  out.shape.insert(out.shape.end(), rows.view.shape.begin() + 2, rows.view.shape.end());
  out.format = element_format(out.dtype);
  const auto row_bytes = static_cast<std::uint64_t>(rows.payload.bytes_per_token);
  if (row_bytes % static_cast<std::uint64_t>(format_bytes(out.format)) != 0)
    out.format = ElementFormat::kBytes;
  const std::uint64_t per_row =
      out.format == ElementFormat::kE2m1
          ? row_bytes * 2
          : row_bytes / static_cast<std::uint64_t>(format_bytes(out.format));
  const char* unit = out.format == ElementFormat::kBytes ? "byte" : "element";
  out.where = [=](std::uint64_t i) {
    const std::uint64_t row = i / per_row;
    return std::vector<Coordinate>{{"rank", static_cast<std::int64_t>(row / max / ep)},
                                   {"source", static_cast<std::int64_t>(row / max % ep)},
                                   {"slot", static_cast<std::int64_t>(row % max)},
                                   {unit, static_cast<std::int64_t>(i % per_row)}};
  };
  out.clause = "MOE-2.6";
  const std::size_t per_rank = static_cast<std::size_t>(moe::recv_bytes(*p.plan, rows.payload));
  out.bytes.assign(per_rank * ep, std::byte{0});
  out.compared.assign(ep * ep * max * per_row, 0);
  for (RankId dst{0}; dst.value() < p.ep; dst = dst.next()) {
    if (!p.plan->alive(dst)) continue;
    const std::size_t first = static_cast<std::size_t>(dst.value()) * per_rank;
    moe::build_recv(*p.plan, dst, rows.payload, rows.sources, p.invalid_id.value_or(-1),
                    std::span(out.bytes).subspan(first, per_rank));
    for (RankId src{0}; src.value() < p.ep; src = src.next()) {
      for (SlotId slot{0}; slot.value() < p.max_tokens; slot = slot.next()) {
        if (!rows.payload.holds_expert_ids && !p.plan->source_of(dst, src, slot)) continue;
        const std::uint64_t row = (static_cast<std::uint64_t>(dst.value()) * ep +
                                   static_cast<std::uint64_t>(src.value())) *
                                      max +
                                  static_cast<std::uint64_t>(slot.value());
        std::fill_n(out.compared.begin() + static_cast<std::ptrdiff_t>(row * per_row), per_row, 1);
      }
    }
  }
  return out;
}

// --- the choices of a got file -------------------------------------------------------------------

// Targets as a file recorded them. Counters are compared like any tensor, so the legal ones stand
// here: a wrong counter does not make slots illegal.
struct Recorded {
  std::vector<std::int32_t> rank, slot;
  moe::ObservedTargets observed(const DispatchInput& p) const {
    moe::ObservedTargets out;
    for (std::int32_t r = 0; r < p.ep; ++r) {
      const std::size_t first = static_cast<std::size_t>(r) * p.picks();
      const std::size_t count =
          static_cast<std::size_t>(p.num_tokens[static_cast<std::size_t>(r)]) *
          static_cast<std::size_t>(p.top_k);
      out.target_rank.push_back(std::span(rank).subspan(first, count));
      out.target_slot.push_back(std::span(slot).subspan(first, count));
      out.recv_counters.push_back(p.plan->recv_counters(RankId{r}));
    }
    return out;
  }
};

Expected<std::vector<std::int32_t>> read_got(const GoldenTensor& legal, const TensorFile& got) {
  ASSAY_TRY(const TensorView view, find_got(legal, got));
  return Elements<std::int32_t>(view.bytes).copy();
}

Mismatch violation_mismatch(const moe::TargetViolation& violation) {
  Mismatch mismatch;
  mismatch.check = "dispatch.targets";
  mismatch.clause =
      violation.what == moe::TargetViolation::What::kTargetRank ? "MOE-2.1" : "MOE-2.3";
  mismatch.sentence = violation.sentence;
  mismatch.where.push_back({"rank", violation.rank.value()});
  if (violation.peer) mismatch.where.push_back({"destination", violation.peer->value()});
  if (violation.token) mismatch.where.push_back({"token", violation.token->value()});
  if (violation.k) mismatch.where.push_back({"k", violation.k->value()});
  mismatch.values = Values{ElementFormat::kInt32, static_cast<std::uint32_t>(violation.got),
                           static_cast<std::uint32_t>(violation.expected)};
  mismatch.unit = "rounds";
  return mismatch;
}

// Row `row` of every payload, one after the other: what is matched is the whole row.
std::string whole_row(const DispatchInput& p,
                      const std::vector<std::span<const std::byte>>& payloads, std::uint64_t row) {
  std::string text;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const auto size = static_cast<std::size_t>(p.payloads[i].payload.bytes_per_token);
    text.append(reinterpret_cast<const char*>(payloads[i].data() + row * size), size);
  }
  return text;
}

// Within every block of n rows, brings the legal rows into the order in which `got` holds them.
Status order_by_content(const DispatchInput& p, const TensorFile& got,
                        std::vector<GoldenTensor>& recv) {
  std::vector<std::span<const std::byte>> legal, observed;
  for (const GoldenTensor& tensor : recv) {
    ASSAY_TRY(const TensorView view, find_got(tensor, got));
    observed.push_back(view.bytes);
    legal.push_back(tensor.bytes);
  }
  const auto ep = static_cast<std::uint64_t>(p.ep), max = static_cast<std::uint64_t>(p.max_tokens);
  for (std::uint64_t pair = 0; pair < ep * ep; ++pair) {
    const RankId dst(static_cast<std::int32_t>(pair / ep));
    const RankId src(static_cast<std::int32_t>(pair % ep));
    std::vector<std::string> legal_rows, got_rows;
    for (std::int32_t slot = 0; slot < p.plan->recv_counter(dst, src); ++slot) {
      legal_rows.push_back(whole_row(p, legal, pair * max + static_cast<std::uint64_t>(slot)));
      got_rows.push_back(whole_row(p, observed, pair * max + static_cast<std::uint64_t>(slot)));
    }
    const std::vector<std::string> placed = join_rows(legal_rows, got_rows);
    for (std::size_t slot = 0; slot < placed.size(); ++slot) {
      const char* from = placed[slot].data();
      for (std::size_t i = 0; i < recv.size(); ++i) {
        const auto size = static_cast<std::size_t>(p.payloads[i].payload.bytes_per_token);
        std::memcpy(recv[i].bytes.data() + (pair * max + slot) * size, from, size);
        from += size;
      }
    }
  }
  return Done{};
}

// Adopts the recorded slots if they are legal, and says so; else says why not. True if adopted.
Expected<bool> adopt_slots(const TensorFile& got, DispatchInput& p, GoldenAnswer& answer) {
  const std::string otherwise = p.plan->slot_rule() == moe::SlotRule::kCounterAnyOrder
                                    ? "by the content of whole rows"
                                    : "by the slots that the rule demands";
  if (!got.has("target_rank") || !got.has("target_slot")) {
    answer.notes.emplace_back("join",
                              otherwise + ": target_rank and target_slot are not both recorded");
    return false;
  }
  Recorded recorded;
  ASSAY_TRY(recorded.rank,
            read_got(target_tensor(p, "target_rank", &moe::DispatchPlan::target_rank), got));
  ASSAY_TRY(recorded.slot,
            read_got(target_tensor(p, "target_slot", &moe::DispatchPlan::target_slot), got));
  const auto violation = moe::find_target_violation(*p.plan, recorded.observed(p));
  if (!violation) {
    p.plan = moe::with_observed_slots(*p.plan, recorded.observed(p));
    answer.notes.emplace_back("join", "by the recorded slots");
    return true;
  }
  answer.findings.push_back(violation_mismatch(*violation));
  answer.notes.emplace_back("join", otherwise + ": the recorded targets are not legal");
  return false;
}

Expected<GoldenAnswer> legal_of(DispatchInput p, const TensorFile* got) {
  GoldenAnswer answer;
  bool joined_by_slots = true;
  if (got != nullptr) {
    ASSAY_TRY(joined_by_slots, adopt_slots(*got, p, answer));
  }
  std::vector<GoldenTensor> recv;
  for (const DispatchRows& rows : p.payloads) recv.push_back(recv_tensor(p, rows));
  const bool free_slots = p.plan->slot_rule() == moe::SlotRule::kCounterAnyOrder;
  if (!joined_by_slots && free_slots) ASSAY_CHECK(order_by_content(p, *got, recv));
  // What is wrong with the targets has been found: comparing them with one of the legal choices
  // would only repeat it.
  if (joined_by_slots) {
    answer.tensors.push_back(target_tensor(p, "target_rank", &moe::DispatchPlan::target_rank));
    answer.tensors.push_back(target_tensor(p, "target_slot", &moe::DispatchPlan::target_slot));
  }
  answer.tensors.push_back(counter_tensor(p));
  for (GoldenTensor& tensor : recv) answer.tensors.push_back(std::move(tensor));
  answer.rule = fmt::format("dispatch of {} ranks, slot rule {}", p.ep,
                            moe::slot_rule_name(p.plan->slot_rule()));
  answer.grade = Grade::kBitsClaimed;
  answer.source = "read from source, MOE-2";
  if (p.plan->total_rows() == 0) answer.vacuous = "no token has a target: nothing was sent";
  return answer;
}

Expected<GoldenAnswer> legal(const GoldenInput& in, const TensorFile* got) {
  ASSAY_TRY(DispatchInput p, read_dispatch(in));
  return legal_of(std::move(p), got);
}

std::vector<GoldenRule> rules_of(const GoldenInput& in, const TensorFile& got) {
  std::vector<GoldenRule> rules;
  for (const moe::SlotRule rule :
       {moe::SlotRule::kCounterAnyOrder, moe::SlotRule::kPrefixScan, moe::SlotRule::kTokenIndex}) {
    if (moe::slot_rule_name(rule) == in.text("slot_rule")) continue;
    rules.push_back(
        {fmt::format("slot_rule={} fits instead", moe::slot_rule_name(rule)), [&in, &got, rule] {
           auto problem = read_dispatch(in, rule);
           if (!problem) return false;
           const auto answer = legal_of(*std::move(problem), &got);
           return answer && agrees(*answer, got);
         }});
  }
  return rules;
}

}  // namespace

GoldenOp dispatch_op() {
  GoldenOp op;
  op.name = "dispatch";
  op.parameters = {
      {"num_experts", "1 to 32768", true, std::nullopt, ParameterForm::kInteger},
      {"max_tokens_per_rank", "1 and more", true, std::nullopt, ParameterForm::kInteger},
      {"invalid_id", "numbers that name no expert", false, std::nullopt, ParameterForm::kInteger},
      {"slot_rule", kSlotRules, false, "counter"}};
  op.inputs = {"topk_ids", "num_tokens", kDispatchPayload, "physical_to_logical", "rank_mask"};
  op.legal = legal;
  op.rules = rules_of;
  return op;
}

}  // namespace assay::verify
