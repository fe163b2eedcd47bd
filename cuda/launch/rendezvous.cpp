// Rank r > 0 writes a request with a fresh number to <path>.<r>, and removes it when <path>.0 holds
// an answer to that number. Rank 0 answers whatever numbers it finds, and again whenever one
// changes: a request of an earlier job is answered too, which nobody reads.
#include "cuda/launch/rendezvous.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

namespace assay::cuda {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPoll{5};

std::string file_of(const Rendezvous& meeting, int rank) {
  return meeting.path + "." + std::to_string(rank);
}

// As a whole or not at all: readers never see a part.
Status write_whole(const std::string& file, const void* data, std::size_t bytes) {
  const std::string part = fmt::format("{}.{}.part", file, ::getpid());
  std::ofstream out(part, std::ios::binary);
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  out.close();
  if (!out || std::rename(part.c_str(), file.c_str()) != 0) {
    std::remove(part.c_str());
    return bad_input("the rendezvous file " + file + " cannot be written");
  }
  return Done{};
}

std::optional<std::uint64_t> read_number(const std::string& file) {
  std::uint64_t number = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(&number), sizeof number)) return std::nullopt;
  return number;
}

// An answer: as many numbers as there are ranks (0 where none was asked), then the message.
std::vector<std::byte> answer_of(const std::vector<std::uint64_t>& numbers,
                                 const std::vector<std::byte>& message) {
  std::vector<std::byte> answer(numbers.size() * sizeof(std::uint64_t));
  std::memcpy(answer.data(), numbers.data(), answer.size());
  answer.insert(answer.end(), message.begin(), message.end());
  return answer;
}

Status serve(const Rendezvous& meeting, const std::vector<std::byte>& message,
             Clock::time_point deadline) {
  const auto size = static_cast<std::size_t>(meeting.size);
  std::vector<std::uint64_t> answered(size, 0);
  for (;;) {
    bool changed = false;
    int open = 0, missing = -1;
    for (int rank = 1; rank < meeting.size; ++rank) {
      std::uint64_t& last = answered[static_cast<std::size_t>(rank)];
      const auto number = read_number(file_of(meeting, rank));
      if (number && *number != last) {
        last = *number;
        changed = true;
      }
      if (number || last == 0) {  // not yet taken, or nobody asked yet
        ++open;
        if (missing < 0) missing = rank;
      }
    }
    if (changed) {
      const auto answer = answer_of(answered, message);
      ASSAY_CHECK(write_whole(file_of(meeting, 0), answer.data(), answer.size()));
    }
    if (open == 0) break;
    if (Clock::now() > deadline)
      return bad_input(
          fmt::format("{} of {} processes did not come to the rendezvous at {} within "
                      "{} ms; the first is rank {}",
                      open, meeting.size, meeting.path, meeting.timeout_ms, missing));
    std::this_thread::sleep_for(kPoll);
  }
  std::remove(file_of(meeting, 0).c_str());
  return Done{};
}

Expected<std::vector<std::byte>> ask(const Rendezvous& meeting, Clock::time_point deadline) {
  std::random_device random;
  const std::uint64_t number = ((std::uint64_t{random()} << 32) | random()) | 1;  // never 0
  const std::string own = file_of(meeting, meeting.rank);
  ASSAY_CHECK(write_whole(own, &number, sizeof number));
  const std::size_t header = static_cast<std::size_t>(meeting.size) * sizeof number;
  while (Clock::now() <= deadline) {
    std::ifstream in(file_of(meeting, 0), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::uint64_t answered = 0;
    if (text.size() >= header)
      std::memcpy(&answered, text.data() + static_cast<std::size_t>(meeting.rank) * sizeof number,
                  sizeof number);
    if (answered == number) {
      std::remove(own.c_str());
      std::vector<std::byte> message(text.size() - header);
      std::memcpy(message.data(), text.data() + header, message.size());
      return message;
    }
    std::this_thread::sleep_for(kPoll);
  }
  std::remove(own.c_str());
  return bad_input(fmt::format("rank 0 did not answer rank {} at {} within {} ms", meeting.rank,
                               file_of(meeting, 0), meeting.timeout_ms));
}

}  // namespace

Expected<std::vector<std::byte>> receive_from_rank_0(const Rendezvous& meeting,
                                                     const std::vector<std::byte>& message) {
  CONTRACT(meeting.rank >= 0 && meeting.rank < meeting.size, meeting.rank, meeting.size);
  const auto deadline = Clock::now() + std::chrono::milliseconds(meeting.timeout_ms);
  if (meeting.rank != 0) return ask(meeting, deadline);
  if (meeting.size > 1) ASSAY_CHECK(serve(meeting, message, deadline));
  return message;
}

}  // namespace assay::cuda
