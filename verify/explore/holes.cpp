// The misuses, beside the patched bodies.
#include "verify/explore/holes.hpp"

namespace assay::verify {

namespace {

constexpr Hole kMisuses[] = {
    {"two_streams", "two layers share a workspace on two streams of a rank", "KER-2.5",
     "explore.isolation", Protocol::kFence, Variant::kTwoStreams, nullptr},
    {"skipped_round", "a rank leaves out a round, and the others wait for its epoch", "KER-2.2",
     "explore.isolation", Protocol::kFence, Variant::kSkippedRound, nullptr},
    {"two_handles", "two handles count epochs of their own over one group's flags", "KER-2.5",
     "explore.isolation", Protocol::kFence, Variant::kTwoHandles, nullptr},
    {"moving_rows", "the rows that peers pull lie behind the round's payloads", "KER-2.1",
     "explore.reuse", Protocol::kFence, Variant::kMovingRows, nullptr,
     "ep=2 experts=2 top_k=2 hidden=32 max_tokens=2 tokens=2 rounds=2"},
    {"one_generation", "Sentinel's slots have one generation fewer", "KER-6.4", "explore.progress",
     Protocol::kSentinel, Variant::kOneGeneration, nullptr},
    {"sentinel_skipped_round", "a rank leaves out a round, and the others wait for its headers",
     "KER-6.2", "explore.isolation", Protocol::kSentinel, Variant::kSkippedRound, nullptr},
    {"sentinel_two_streams", "two layers share Sentinel's workspace on two streams of a rank",
     "KER-6.4", "explore.isolation", Protocol::kSentinel, Variant::kTwoStreams, nullptr},
};

const std::vector<Hole>& all_holes() {
  static const std::vector<Hole> all = [] {
    std::vector<Hole> made(patched_holes().begin(), patched_holes().end());
    made.insert(made.end(), std::begin(kMisuses), std::end(kMisuses));
    return made;
  }();
  return all;
}

}  // namespace

std::vector<Hole> holes(Protocol protocol) {
  std::vector<Hole> chosen;
  for (const Hole& hole : all_holes())
    if (hole.protocol == protocol) chosen.push_back(hole);
  return chosen;
}

const Hole* find_hole(std::string_view name) {
  for (const Hole& hole : all_holes())
    if (hole.name == name) return &hole;
  return nullptr;
}

}  // namespace assay::verify
