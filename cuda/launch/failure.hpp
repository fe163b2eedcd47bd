// What a kernel's status word says, and what all status words of a group say together, as
// sentences. Decides how a failed wait is told: round, phase, peer, seen and expected (SPEC
// CUD-4.1), and that every rank tells the failure of any (SPEC CUD-4.3). Needs no CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "cuda/kernels/one_sided/workspace.hpp"
#include "model/core/expected.hpp"
#include "model/core/id.hpp"

namespace assay::cuda {

// The status word of one rank, as it lies in its window.
struct RankStatus {
  one_sided::Failure failure = one_sided::Failure::kNone;
  std::uint32_t epoch = 0;
  std::uint32_t peer = 0;
  std::uint64_t seen = 0;
  std::uint64_t expected = 0;

  static constexpr std::size_t kWords = 4;  // as ranks exchange it
  std::array<std::uint64_t, kWords> words() const;
  static RankStatus of_words(std::span<const std::uint64_t> words);
  static RankStatus of_bytes(const std::byte* bytes);  // [StatusWord::kBytes]
};

// "rank 2 gave up in the combine of round 7: no word from rank 3 in time: ...". Rounds count from
// 0, from the group's start or its last recovery.
std::string sentence_of(RankId rank, const RankStatus& status);

// Done if no rank failed. Else how many did, and the sentences of the first few.
Status status_of_all(std::span<const RankStatus> by_rank);

}  // namespace assay::cuda
