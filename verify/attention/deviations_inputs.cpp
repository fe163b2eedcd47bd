// Rules about what is read rather than how it is computed. See deviations.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "verify/attention/deviation_rules.hpp"

namespace assay::verify::deviation {

namespace {
constexpr std::size_t kRequestsMax = 8;  // whose rows are tried in place of another's
constexpr std::size_t kCopyBytesMax = std::size_t{1} << 28;  // of rows that are moved by one
}  // namespace

void input_rules(Rules& rules) {
  const Problem& p = rules.problem();
  if (!p.sinks.empty()) rules.add("the sinks are left out").problem.sinks = {};
  if (!p.alibi_slopes.empty()) rules.add("ALiBi is left out").problem.alibi_slopes = {};
  if (p.softcap > 0) rules.add("the soft cap is left out").problem.softcap = 0;
  if (!p.custom_mask.empty()) rules.add("the custom mask is left out").problem.custom_mask = {};
  constexpr std::array<std::pair<float Problem::*, const char*>, 3> kScales = {
      {{&Problem::q_scale, "q_scale"},
       {&Problem::k_scale, "k_scale"},
       {&Problem::v_scale, "v_scale"}}};
  for (const auto& [scale, name] : kScales) {
    if (p.*scale != 1) rules.add(fmt::format("{} is left out", name)).problem.*scale = 1;
  }
  const auto root = static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)));
  if (p.scale != root) rules.add("scale is 1 / sqrt(head_dim)").problem.scale = root;
  if (p.scale != 1) rules.add("scale is 1").problem.scale = 1;
  if (p.mask != MaskKind::kFull) {
    rules.add("no mask but the lengths").problem.mask = MaskKind::kFull;
    rules.each_request("the mask aligned at the top left", [](Request& r) { r.q_offset = 0; });
    rules.each_request("the mask aligned at the bottom right",
                       [](Request& r) { r.q_offset = r.kv_len - r.q_len; });
    rules.each_request("each row sees one key more", [](Request& r) { ++r.q_offset; });
    rules.each_request("each row sees one key fewer", [](Request& r) { --r.q_offset; });
  }
  if (p.mask != MaskKind::kCausal)
    rules.add("a causal mask at the same offset").problem.mask = MaskKind::kCausal;
  if (p.mask == MaskKind::kWindow || p.mask == MaskKind::kChunked) {
    rules.add("a window or chunk one key larger").problem.mask_size += 1;
    if (p.mask_size > 1) rules.add("a window or chunk one key smaller").problem.mask_size -= 1;
  }
  if (p.custom_mask.empty()) {  // whose size goes with kv_len
    rules.each_request("the last key is left out", [](Request& r) { r.kv_len -= r.kv_len > 0; });
    rules.each_request("one key beyond kv_len is read", [](Request& r) {
      const std::int64_t rows = std::min(r.k.available, r.v.available);
      if (r.kv_len < rows && (r.k_rope.base == nullptr || r.kv_len < r.k_rope.available))
        ++r.kv_len;
    });
  }
}

namespace {

// Every request's rows moved by one: row i is what was row i + step; zeros where there is none.
void moved(Rules& rules, std::string sentence, Rows Request::*tensor, int heads, int dim,
           int step) {
  const int bytes = rules.problem().element_bytes();
  std::size_t size = 0;
  for (const Request& r : rules.problem().requests)
    size += static_cast<std::size_t>((r.*tensor).available) * static_cast<std::size_t>(heads) *
            static_cast<std::size_t>(dim * bytes);
  if (size > kCopyBytesMax) return;
  AttentionDeviation& deviation = rules.add(std::move(sentence));
  for (Request& r : deviation.problem.requests) {
    const Rows from = r.*tensor;
    const std::size_t row_bytes = static_cast<std::size_t>(dim * bytes);
    const auto copy = std::make_shared<std::vector<std::byte>>(
        static_cast<std::size_t>(from.available) * static_cast<std::size_t>(heads) * row_bytes);
    std::byte* to = copy->data();
    for (std::int64_t i = 0; i < from.available; ++i) {
      for (int head = 0; head < heads; ++head, to += row_bytes) {
        if (const std::byte* row = from.row(head, i + step, bytes)) std::memcpy(to, row, row_bytes);
      }
    }
    r.*tensor = contiguous_rows(copy->data(), 0, from.available, heads, dim, bytes);
    deviation.storage.push_back(copy);
  }
}

}  // namespace

void row_rules(Rules& rules, std::size_t request) {
  const Problem& p = rules.problem();
  for (const int step : {1, -1}) {
    const char* where = step > 0 ? "the one behind" : "the one before";
    moved(rules, fmt::format("each row of V is {}", where), &Request::v, p.kv_heads, p.v_dim, step);
    moved(rules, fmt::format("each row of K is {}", where), &Request::k, p.kv_heads,
          p.head_dim - p.rope_dim, step);
    moved(rules, fmt::format("each row of Q is {}", where), &Request::q, p.q_heads, p.head_dim,
          step);
  }
  if (request >= p.requests.size()) return;
  for (std::size_t other = 0; other < std::min(p.requests.size(), kRequestsMax); ++other) {
    if (other == request) continue;
    const Request& from = p.requests[other];
    const Request& own = p.requests[request];
    if (from.q_len >= own.q_len && p.custom_mask.empty()) {
      Request& r = rules.add(fmt::format("request {} has the rows of request {}", request, other))
                       .problem.requests[request];
      r = from;
      r.q_len = own.q_len;
    }
    for (const bool keys : {true, false}) {
      const std::int64_t rows = keys ? from.k.available : from.v.available;
      if (rows < own.kv_len) continue;
      Request& r = rules
                       .add(fmt::format("request {} reads the {} of request {}", request,
                                        keys ? "keys and values" : "values", other))
                       .problem.requests[request];
      if (keys) r.k = from.k, r.k_rope = from.k_rope;
      r.v = from.v;
    }
  }
}

void lse_rules(Rules& rules) {
  const LseForm own = rules.softmax().lse;
  if (own == LseForm::kNone) return;
  const std::size_t first = rules.list.size();
  if (any_threshold(rules.problem()))
    rules.each_request("the LSE is that of the dense sum", [](Request& r) { r.threshold = {}; });
  rules.softmax_rule(
      own == LseForm::kLog2 ? "the LSE is natural" : "the LSE is to base 2",
      [](Softmax& s) { s.lse = s.lse == LseForm::kLog2 ? LseForm::kLn : LseForm::kLog2; });
  if (!rules.problem().sinks.empty()) rules.add("the LSE is without the sink").problem.sinks = {};
  for (std::size_t i = first; i < rules.list.size(); ++i) rules.list[i].lse_only = true;
}

}  // namespace assay::verify::deviation
