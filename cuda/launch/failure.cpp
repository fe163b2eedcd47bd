// Sentences about waits that failed.
#include "cuda/launch/failure.hpp"

#include <fmt/format.h>

#include <cstring>

namespace assay::cuda {

using one_sided::Failure;
using one_sided::StatusWord;

std::array<std::uint64_t, RankStatus::kWords> RankStatus::words() const {
  return {static_cast<std::uint64_t>(failure) | (std::uint64_t{epoch} << 32), peer, seen, expected};
}

RankStatus RankStatus::of_words(std::span<const std::uint64_t> words) {
  CONTRACT(words.size() == kWords, words.size());
  return {static_cast<Failure>(static_cast<std::uint32_t>(words[0])),
          static_cast<std::uint32_t>(words[0] >> 32), static_cast<std::uint32_t>(words[1]),
          words[2], words[3]};
}

RankStatus RankStatus::of_bytes(const std::byte* bytes) {
  RankStatus status;
  std::memcpy(&status.failure, bytes + StatusWord::kFailure, sizeof status.failure);
  std::memcpy(&status.epoch, bytes + StatusWord::kEpoch, sizeof status.epoch);
  std::memcpy(&status.peer, bytes + StatusWord::kPeer, sizeof status.peer);
  std::memcpy(&status.seen, bytes + StatusWord::kSeen, sizeof status.seen);
  std::memcpy(&status.expected, bytes + StatusWord::kExpected, sizeof status.expected);
  return status;
}

std::string sentence_of(RankId rank, const RankStatus& status) {
  // Dispatch and combine take turns, and the first dispatch is epoch 1 (SPEC KER-2.1).
  const std::uint32_t before = status.epoch - 1;
  return fmt::format(
      "rank {} gave up in the {} of round {}: {} {}: seen {:#018x}, expected {:#018x}",
      rank.value(), before % 2 == 0 ? "dispatch" : "combine", before / 2,
      status.failure == Failure::kTimeOut
          ? "no word in time from rank"
          : "other sizes, payloads, statistics or living ranks at rank",
      status.peer, status.seen, status.expected);
}

Status status_of_all(std::span<const RankStatus> by_rank) {
  constexpr int kTold = 4;
  int failed = 0;
  std::string told;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].failure == Failure::kNone) continue;
    if (failed++ < kTold)
      told += "; " + sentence_of(RankId(static_cast<std::int32_t>(rank)), by_rank[rank]);
  }
  if (failed == 0) return Done{};
  return bad_input(fmt::format("{} of {} ranks gave up{}{}", failed, by_rank.size(), told,
                               failed > kTold ? "; ..." : ""));
}

}  // namespace assay::cuda
