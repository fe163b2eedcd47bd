// Status words as kernels leave them, and what is said of them.
#include "cuda/launch/failure.hpp"

#include <cstring>
#include <vector>

#include "model/core/testing.hpp"

namespace assay::cuda {
namespace {

using one_sided::Failure;
using one_sided::StatusWord;

TEST_CASE("a failed wait is told with round, phase, peer, seen and expected", "[CUD-4.1]") {
  RankStatus status{Failure::kTimeOut, 16, 3, 0x0000000700000001, 0x0000000700000010};
  CHECK(sentence_of(RankId(2), status) ==
        "rank 2 gave up in the combine of round 7: no word in time from rank 3: seen "
        "0x0000000700000001, expected 0x0000000700000010");
  status.epoch = 1;
  status.failure = Failure::kOtherLayout;
  CHECK(sentence_of(RankId(0), status).find("dispatch of round 0: other sizes") !=
        std::string::npos);
  status.epoch = 0;  // epochs wrap: the combine before the first dispatch
  CHECK(sentence_of(RankId(0), status).find("combine of round 2147483647") != std::string::npos);
}

TEST_CASE("a status word survives the way from a kernel to all ranks", "[CUD-4.3]") {
  std::byte bytes[StatusWord::kBytes] = {};
  const std::uint32_t failure = 1, epoch = 0xFFFFFFF0u, peer = 255;
  const std::uint64_t seen = 0x0123456789ABCDEF, expected = 0xFEDCBA9876543210;
  std::memcpy(bytes + StatusWord::kFailure, &failure, 4);
  std::memcpy(bytes + StatusWord::kEpoch, &epoch, 4);
  std::memcpy(bytes + StatusWord::kPeer, &peer, 4);
  std::memcpy(bytes + StatusWord::kSeen, &seen, 8);
  std::memcpy(bytes + StatusWord::kExpected, &expected, 8);
  const auto words = RankStatus::of_bytes(bytes).words();
  const RankStatus back = RankStatus::of_words(words);
  CHECK(back.failure == Failure::kTimeOut);
  CHECK(back.epoch == epoch);
  CHECK(back.peer == peer);
  CHECK(back.seen == seen);
  CHECK(back.expected == expected);
}

TEST_CASE("the failure of one rank is the failure of all, and the first few are told",
          "[CUD-4.3]") {
  std::vector<RankStatus> ranks(8);
  CHECK(status_of_all(ranks).has_value());
  ranks[5] = {Failure::kTimeOut, 2, 1, 0, 2};
  const Status one = status_of_all(ranks);
  REQUIRE_FALSE(one.has_value());
  CHECK(one.error().sentence.find("1 of 8 ranks gave up; rank 5") == 0);
  for (RankStatus& rank : ranks) rank = ranks[5];
  const std::string all = status_of_all(ranks).error().sentence;
  CHECK(all.find("8 of 8") == 0);
  CHECK(all.find("rank 3 gave up") != std::string::npos);
  CHECK(all.find("rank 4 gave up") == std::string::npos);
  CHECK(all.substr(all.size() - 3) == "...");
}

}  // namespace
}  // namespace assay::cuda
