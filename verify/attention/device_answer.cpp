// What a launch wrote, as an answer; guards, poison and counters. See device_call.hpp; decides SPEC
// VER-25.4.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "verify/attention/device_call.hpp"

namespace assay::verify {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

std::size_t DeviceCall::out_row(std::size_t request, std::int32_t row) const {
  return size(first_out_[request] + row);
}

// Guards and nobody's rows must be as they were, everybody's must not. "": they are.
std::string DeviceCall::check_written(std::span<const std::byte> bytes) const {
  const auto poison = [&](std::size_t at, std::size_t count) {
    const auto part = bytes.subspan(at - written_.at, count);
    return std::all_of(part.begin(), part.end(), [](std::byte b) { return b == kPoison; });
  };
  std::size_t end = written_.at;
  const std::pair<const char*, const Span*> regions[] = {{"out", &out_},
                                                         {"lse", &lse_},
                                                         {"counters", &counters_},
                                                         {"decisions", &decisions_},
                                                         {"workspace", &workspace_}};
  const char* before = "out";
  for (const auto& [name, span] : regions) {
    if (span->bytes == 0) continue;
    if (!poison(end, span->at - end))
      return fmt::format("bytes between {} and {} were overwritten", before, name);
    end = span->at + span->bytes;
    before = name;
  }
  if (!poison(end, written_.at + written_.bytes - end))
    return fmt::format("bytes behind {} were overwritten", before);
  const std::size_t heads = size(problem_->q_heads),
                    row_bytes = heads * size(problem_->head_dim) * 2;
  std::vector<bool> owned(out_.bytes / row_bytes, false);
  for (std::size_t r = 0; r < problem_->requests.size(); ++r)
    for (std::int32_t i = 0; i < problem_->requests[r].q_len; ++i) {
      owned[out_row(r, i)] = true;
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t head_bytes = row_bytes / heads;
        if (poison(out_.at + out_row(r, i) * row_bytes + h * head_bytes, head_bytes))
          return fmt::format("out was not written at request {} row {} head {}", r, i, h);
        if (lse_.bytes != 0 && poison(lse_.at + (out_row(r, i) * heads + h) * 4, 4))
          return fmt::format("lse was not written at request {} row {} head {}", r, i, h);
      }
    }
  for (std::size_t row = 0; row < owned.size(); ++row) {
    if (owned[row]) continue;
    if (!poison(out_.at + row * row_bytes, row_bytes) ||
        (lse_.bytes != 0 && !poison(lse_.at + row * heads * 4, heads * 4)))
      return fmt::format("row {} of out or lse is no request's and was written", row);
  }
  return "";
}

// Per head, what the subject's totals cannot show.
std::string DeviceCall::check_counters(std::span<const std::byte> bytes,
                                       const attention::DecisionMap& map) const {
  std::vector<std::uint64_t> counters(size(unit_heads_) * 2);
  std::memcpy(counters.data(), bytes.data() + (counters_.at - written_.at), counters_.bytes);
  std::vector<std::uint64_t> told(counters.size(), 0);
  std::size_t cell = 0;
  for (int request = 0; request < map.extents[0]; ++request)
    for (int head = 0; head < map.extents[1]; ++head)
      for (int i = 0; i < map.extents[2] * map.extents[3]; ++i, ++cell) {
        told[size(head) * 2] += map.cells[cell] != 0;
        told[size(head) * 2 + 1] += map.cells[cell] == 2;
      }
  for (std::size_t head = 0; head < size(unit_heads_); ++head)
    for (const std::size_t which : {0, 1})
      if (counters[2 * head + which] != told[2 * head + which])
        return fmt::format("the counter of head {} says {} tiles {}, its decisions say {}", head,
                           counters[2 * head + which], which == 0 ? "visited" : "skipped",
                           told[2 * head + which]);
  return "";
}

AttentionRun DeviceCall::answer(std::span<const std::byte> bytes, bool traced) const {
  CONTRACT(bytes.size() == written_.bytes, bytes.size(), written_.bytes);
  AttentionRun run;
  const auto failed = [&](std::string why) {
    run.state = AttentionRun::State::kFailed;
    run.message = std::move(why);
    return run;
  };
  if (std::string wrong = check_written(bytes); !wrong.empty()) return failed(std::move(wrong));
  AttentionAnswer& a = run.answer;
  const std::size_t heads = size(problem_->q_heads), row = heads * size(problem_->head_dim);
  for (std::size_t r = 0; r < problem_->requests.size(); ++r) {
    const std::size_t rows = size(problem_->requests[r].q_len);
    if (rows == 0) continue;
    const auto take = [&](auto& to, const Span& span, std::size_t per_row) {
      const std::size_t element = sizeof(to[0]), at = to.size();
      to.resize(at + rows * per_row);
      std::memcpy(&to[at],
                  bytes.data() + (span.at - written_.at) + out_row(r, 0) * per_row * element,
                  rows * per_row * element);
    };
    take(a.out, out_, row);
    if (wants_lse_) take(a.lse, lse_, heads);
  }
  std::vector<std::uint64_t> counters(size(unit_heads_) * 2);
  std::memcpy(counters.data(), bytes.data() + (counters_.at - written_.at), counters_.bytes);
  a.visited = a.skipped = 0;
  for (std::size_t i = 0; i < counters.size(); i += 2) {
    *a.visited += static_cast<std::int64_t>(counters[i]);
    *a.skipped += static_cast<std::int64_t>(counters[i + 1]);
  }
  if (!traced) return run;
  attention::DecisionMap map;
  map.extents = extents_;
  const std::byte* const cells = bytes.data() + (decisions_.at - written_.at);
  for (int request = 0; request < extents_[0]; ++request)
    for (int head = 0; head < unit_heads_; ++head)
      for (int unit = 0; unit < call_.decision_units; ++unit)
        for (int tile = 0; tile < call_.decision_tiles; ++tile) {
          const std::size_t at =
              ((size(request) * size(unit_heads_) + size(head)) * size(call_.decision_units) +
               size(unit)) *
                  size(call_.decision_tiles) +
              size(tile);
          const auto cell = static_cast<std::uint8_t>(cells[at]);
          if (head < extents_[1] && unit < extents_[2] && tile < extents_[3])
            map.cells.push_back(cell);
          else if (cell != 0)
            return failed(
                fmt::format("the decision of request {} head {} unit {} tile {} is {}; "
                            "there is no such tile to decide",
                            request, head, unit, tile, cell));
        }
  if (std::string wrong = check_counters(bytes, map); !wrong.empty())
    return failed(std::move(wrong));
  a.decision = std::move(map);
  return run;
}

}  // namespace assay::verify
