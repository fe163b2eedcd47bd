// See dispatch_input.hpp.
#include "verify/golden/dispatch_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "model/core/text.hpp"

namespace assay::verify {
namespace {

constexpr std::string_view kIdPayload = "topk_ids";

Expected<moe::RankMask> read_mask(const GoldenInput& in, std::int32_t ep) {
  if (!in.file->has("rank_mask")) return moe::RankMask::all();
  ASSAY_TRY(const TensorView view, in.file->tensor("rank_mask"));
  ASSAY_CHECK(view.expect({Dtype::kU64}, {{"word", static_cast<std::uint64_t>((ep + 63) / 64)}}));
  const std::vector<std::uint64_t> words = Elements<std::uint64_t>(view.bytes).copy();
  return moe::RankMask::from_words(words.data(), ep);
}

Expected<moe::Placement> read_placement(const GoldenInput& in, std::int32_t ep) {
  ASSAY_TRY(const auto experts, in.integer<std::int32_t>("num_experts", 1, moe::kMaxExperts));
  if (!in.file->has("physical_to_logical")) return moe::Placement::contiguous(ep, experts);
  ASSAY_TRY(const TensorView view, in.file->tensor("physical_to_logical"));
  ASSAY_CHECK(view.expect({Dtype::kI32}, {{"place", static_cast<std::uint64_t>(experts)}}));
  const std::vector<std::int32_t> map = Elements<std::int32_t>(view.bytes).copy();
  const std::int64_t logical = std::int64_t{*std::max_element(map.begin(), map.end())} + 1;
  if (logical < 1 || logical > moe::kMaxExperts)
    return bad_input(fmt::format("physical_to_logical names expert {}; allowed are 0 to {}",
                                 logical - 1, moe::kMaxExperts - 1));
  return moe::Placement::replicated(ep, static_cast<std::int32_t>(logical), map);
}

// The payload tensors, in the order of their names.
Status read_payloads(const GoldenInput& in, DispatchInput& p) {
  for (const TensorView& view : in.file->tensors()) {
    if (view.name.substr(0, kDispatchPayload.size()) != kDispatchPayload) continue;
    DispatchRows rows;
    rows.view = view;
    rows.payload.name = std::string(view.name.substr(kDispatchPayload.size()));
    if (view.shape.size() < 2 || view.shape[0] != static_cast<std::uint64_t>(p.ep) ||
        view.shape[1] != static_cast<std::uint64_t>(p.tokens))
      return bad_input(
          fmt::format("tensor {} has shape {}; its first axes are those of topk_ids, "
                      "[{}, {}, ...]",
                      view.name, shape_text(view.shape), p.ep, p.tokens));
    std::uint64_t bits = dtype_bits(view.dtype);
    for (std::size_t axis = 2; axis < view.shape.size(); ++axis) bits *= view.shape[axis];
    if (bits == 0 || bits % 8 != 0)
      return bad_input(
          fmt::format("a row of tensor {} has {} bits; allowed are whole bytes, one "
                      "at least",
                      view.name, bits));
    // ep^2 * max_tokens rows can pass 64 bits with small files: refused, not wrapped.
    constexpr std::uint64_t kRecvBytesMax = std::uint64_t{1} << 36;  // 64 GiB
    const auto ep = static_cast<std::uint64_t>(p.ep);
    if (bits / 8 > kRecvBytesMax / static_cast<std::uint64_t>(p.max_tokens) / (ep * ep))
      return unsupported(fmt::format(
          "recv.{} would have {} x {} x {} rows of {} bytes; at most {} bytes are built",
          rows.payload.name, ep, ep, p.max_tokens, bits / 8, kRecvBytesMax));
    rows.payload.bytes_per_token = static_cast<std::int64_t>(bits / 8);
    rows.payload.holds_expert_ids = p.invalid_id && rows.payload.name == kIdPayload &&
                                    view.dtype == Dtype::kI32 && bits == 32u * p.top_k;
    for (std::int32_t src = 0; src < p.ep; ++src)
      rows.sources.push_back(view.bytes.data() + static_cast<std::size_t>(src) *
                                                     static_cast<std::size_t>(p.tokens) *
                                                     (bits / 8));
    p.payloads.push_back(std::move(rows));
  }
  std::sort(p.payloads.begin(), p.payloads.end(), [](const DispatchRows& a, const DispatchRows& b) {
    return a.payload.name < b.payload.name;
  });
  return Done{};
}

}  // namespace

Expected<DispatchInput> read_dispatch(const GoldenInput& in, std::optional<moe::SlotRule> other) {
  DispatchInput p;
  ASSAY_TRY(const moe::SlotRule rule, moe::parse_slot_rule(in.text("slot_rule")));
  ASSAY_TRY(const TensorView ids, in.file->tensor("topk_ids"));
  ASSAY_CHECK(ids.expect({Dtype::kI32}, {{"source"}, {"token"}, {"top_k"}}));
  for (const auto& [name, size, size_max] :
       {std::tuple{"ranks", ids.shape[0], std::uint64_t{moe::kMaxRanks}},
        std::tuple{"tokens", ids.shape[1], std::uint64_t{1} << 24},
        std::tuple{"top_k", ids.shape[2], std::uint64_t{moe::kMaxTopK}}}) {
    if (size < 1 || size > size_max)
      return bad_input(fmt::format("{}: topk_ids has shape {}; allowed are 1 to {} {}",
                                   in.file->path(), shape_text(ids.shape), size_max, name));
  }
  p.ep = static_cast<std::int32_t>(ids.shape[0]);
  p.tokens = static_cast<std::int32_t>(ids.shape[1]);
  p.top_k = static_cast<std::int32_t>(ids.shape[2]);
  ASSAY_TRY(p.max_tokens, in.integer<std::int32_t>("max_tokens_per_rank", 1, 1 << 24));
  ASSAY_TRY(const TensorView counts, in.file->tensor("num_tokens"));
  ASSAY_CHECK(counts.expect({Dtype::kI32}, {{"source", ids.shape[0]}}));
  p.num_tokens = Elements<std::int32_t>(counts.bytes).copy();
  ASSAY_TRY(const moe::Placement placement, read_placement(in, p.ep));
  if (in.has("invalid_id")) {
    ASSAY_TRY(p.invalid_id, in.integer<std::int32_t>("invalid_id", INT32_MIN, INT32_MAX));
    ASSAY_CHECK(moe::check_invalid_id(placement, *p.invalid_id));
  }
  const std::vector<std::int32_t> all = Elements<std::int32_t>(ids.bytes).copy();
  std::vector<std::vector<std::int32_t>> picks;
  for (std::int32_t src = 0; src < p.ep; ++src) {
    const std::int32_t count = p.num_tokens[static_cast<std::size_t>(src)];
    if (count < 0 || count > p.tokens)
      return bad_input(
          fmt::format("{}: num_tokens[{}] is {}; allowed are 0 to {}, the tokens of "
                      "topk_ids",
                      in.file->path(), src, count, p.tokens));
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(p.picks()) * src;
    picks.emplace_back(first, first + std::ptrdiff_t{count} * p.top_k);
  }
  ASSAY_TRY(const moe::Routing routing, moe::Routing::make(p.top_k, p.max_tokens, picks));
  ASSAY_TRY(const moe::RankMask mask, read_mask(in, p.ep));
  ASSAY_TRY(p.plan, moe::plan_dispatch(placement, routing, other.value_or(rule), mask));
  ASSAY_CHECK(read_payloads(in, p));
  return p;
}

}  // namespace assay::verify
