// See progress.hpp.
#include "tools/cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace assay::tools {

Progress::Progress(std::string things, std::int64_t total)
    : things_(std::move(things)),
      total_(total),
      visible_(::isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (visible_ && drawn_ != std::chrono::steady_clock::time_point{}) std::fputs("\r\x1b[K", stderr);
}

void Progress::advance(std::int64_t count) {
  const std::int64_t done = done_.fetch_add(count) + count;
  if (!visible_) return;
  const std::unique_lock<std::mutex> lock(drawing_, std::try_to_lock);
  if (lock.owns_lock()) draw(done);
}

void Progress::draw(std::int64_t done) {
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::int64_t percent = total_ > 0 ? done * 100 / total_ : 100;
  const double left =
      done > 0 ? seconds * static_cast<double>(total_ - done) / static_cast<double>(done) : 0.0;
  const std::string line = fmt::format("\r\x1b[K{} of {} {} ({} %), {:.0f} s, about {:.0f} s left",
                                       done, total_, things_, percent, seconds, left);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace assay::tools
