// Jobs as threads over one path: in any order of arrival, after a job that died, and alone.
#include "cuda/launch/rendezvous.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"

namespace assay::cuda {
namespace {

using Message = std::vector<std::byte>;

Message message_of(const char* text) {
  Message message(std::strlen(text));
  std::memcpy(message.data(), text, message.size());
  return message;
}

// All ranks of a job; rank r comes delays_ms[r] late.
std::vector<Message> meet(const std::string& path, const std::vector<int>& delays_ms,
                          const Message& message) {
  std::vector<Message> got(delays_ms.size());
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < delays_ms.size(); ++r)
    ranks.emplace_back([&, r] {
      std::this_thread::sleep_for(std::chrono::milliseconds(delays_ms[r]));
      const auto answer =
          receive_from_rank_0({path, static_cast<int>(r), static_cast<int>(delays_ms.size()), 5000},
                              r == 0 ? message : Message{});
      if (answer) got[r] = *answer;
    });
  for (std::thread& rank : ranks) rank.join();
  return got;
}

bool exists(const std::string& file) { return ::access(file.c_str(), F_OK) == 0; }

TEST_CASE("every rank gets rank 0's message, whoever comes first", "[CUD-1.2]") {
  const testing::TempDir directory;
  const std::string path = directory.file("id");
  const Message message = message_of("the id of this job");
  for (const auto& delays : {std::vector<int>{0, 0, 0, 0}, {60, 0, 30, 0}, {0, 40, 0, 80}, {0}}) {
    for (const Message& got : meet(path, delays, message)) CHECK(got == message);
    for (std::size_t r = 0; r < delays.size(); ++r)
      CHECK_FALSE(exists(path + "." + std::to_string(r)));
  }
}

TEST_CASE("what a job that died left behind is not taken for this job's", "[CUD-1.2]") {
  const testing::TempDir directory;
  const std::string path = directory.file("id");
  // An answer with numbers for all ranks, and requests that nobody will take.
  for (int rank = 0; rank < 3; ++rank) {
    std::ofstream out(path + "." + std::to_string(rank), std::ios::binary);
    const std::uint64_t numbers[4] = {0, 77, 78, 79};
    out.write(reinterpret_cast<const char*>(numbers), rank == 0 ? 32 : 8);
  }
  const Message message = message_of("fresh");
  for (const auto& delays : {std::vector<int>{0, 50, 100}, {100, 0, 0}})
    for (const Message& got : meet(path, delays, message)) CHECK(got == message);
}

TEST_CASE("who does not come is named, and the wait ends", "[CUD-1.2]") {
  const testing::TempDir directory;
  const std::string path = directory.file("id");
  const auto alone = receive_from_rank_0({path, 0, 3, 50}, message_of("x"));
  REQUIRE_FALSE(alone.has_value());
  CHECK(alone.error().sentence.find("2 of 3 processes") != std::string::npos);
  const auto orphan = receive_from_rank_0({path, 2, 3, 50}, {});
  REQUIRE_FALSE(orphan.has_value());
  CHECK(orphan.error().sentence.find("rank 0 did not answer rank 2") != std::string::npos);
  CHECK_FALSE(exists(path + ".2"));
  const auto nowhere = receive_from_rank_0({directory.file("none/id"), 1, 2, 50}, {});
  REQUIRE_FALSE(nowhere.has_value());
  CHECK(nowhere.error().sentence.find("cannot be written") != std::string::npos);
}

}  // namespace
}  // namespace assay::cuda
