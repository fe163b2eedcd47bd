// memory.inputs: what a subject may only read is as it was. Decides SPEC VER-1.3 for inputs. Expert
// rows count: a combine that writes to them and then reads them would judge itself.
#include <fmt/format.h>

#include "verify/checks/checks.hpp"
#include "verify/checks/input_digest.hpp"

namespace assay::verify {

void check_memory_inputs(const RoundView& view, std::vector<Mismatch>& found) {
  std::optional<Mismatch> first;
  std::int64_t wrong = 0;
  const auto add = [&](RankId rank, const char* what) {
    ++wrong;
    if (first) return;
    first = mismatch_of("memory.inputs",
                        fmt::format("{} of rank {} changed while the subject ran; it may only be "
                                    "read",
                                    what, rank.value()),
                        {{"round", view.number}, {"rank", rank.value()}});
  };
  for (RankId rank{0}; rank.value() < view.ep_size(); rank = rank.next()) {
    const auto i = static_cast<std::size_t>(rank.value());
    if (input_digest(view, rank) != view.input_digest[i]) add(rank, "topk_ids or payload_rows");
    // Without a call of the experts the buffer is poison and nobody's input.
    if (view.expert_calls[i] == 1 && digest(view.expert_out[i]) != view.expert_digest[i])
      add(rank, "expert_out");
  }
  if (!first) return;
  first->wrong = wrong;
  first->total = 2 * view.ep_size();
  first->unit = "inputs";
  found.push_back(*std::move(first));
}

std::uint64_t input_digest(const RoundView& view, RankId rank) {
  const std::int64_t tokens = view.routing->num_tokens(rank);
  std::uint64_t result = 0;
  for (std::size_t p = 0; p < view.payloads.size(); ++p) {
    const std::int64_t bytes = tokens * view.payloads[p].bytes_per_token;
    if (bytes > 0)
      result = digest({view.source_rows(p, rank), static_cast<std::size_t>(bytes)}, result + p);
  }
  return result;
}

}  // namespace assay::verify
