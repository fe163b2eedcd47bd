// What happened in one run, for people: a record of every operation, printed as lanes of threads or
// written as a trace that Perfetto and chrome://tracing open (SPEC MAC-7.10). Decides how a
// counterexample looks; what it is, is its schedule.
//
//   RunRecord record;
//   const auto outcome = replay(counterexample.schedule, execute, &record);
//   fmt::print("{}", print_timeline(record));
//   write_file("trace.json", chrome_trace(record));
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "model/machine/observer.hpp"
#include "model/machine/run.hpp"

namespace assay::machine {

// An observer that keeps everything. One record observes one machine.
class RunRecord final : public Observer {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct Lane {  // where a thread was: the same place in later kernels is the same lane
    RankId rank;
    std::uint32_t stream = 0;
    std::uint32_t cta = 0;
    std::uint32_t thread = 0;
    bool is_host = false;
  };
  enum class Kind : std::uint8_t { kOperation, kWaitBegins, kBarrier, kBegin, kEnd, kHost };
  struct Happening {
    Kind kind = Kind::kOperation;
    std::uint64_t step = 0;
    std::size_t lane = 0;
    MemoryEvent event{};
    std::string where;   // "flags of rank 1 + 16"; of a barrier, who passes
    std::string value;   // read or written; "old -> new" for an atomic
    std::string kernel;  // kBegin, kHost: its name
    bool timed_out = false;
    bool writes = false;
    std::size_t waited_since = kNone;     // an await: its kWaitBegins, if it had to wait
    std::vector<std::size_t> reads_from;  // happenings whose write was read
    bool reads_old = false;               // although a newer write could be read
    bool lands_early = false;             // a store before an older one in coherence order
  };

  const std::vector<Lane>& lanes() const { return lanes_; }
  const std::vector<Happening>& happenings() const { return happenings_; }
  const RunResult& result() const { return result_; }

  void run_began(const Memory& memory) override { memory_ = &memory; }
  void run_ended(const RunResult& result) override { result_ = result; }
  void step_began(std::uint64_t step, RunnableId who) override;
  void performed(const Performed& what) override;
  void wait_began(const MemoryEvent& event, const Await& await, std::uint64_t seen) override;
  void barrier_arrived(ThreadSlot slot, Site site) override;
  void barrier_passed(std::span<const ThreadSlot> threads, Site site) override;
  void grid_began(const ThreadPlace& place, const std::string& name, bool, bool) override;
  void thread_began(ThreadSlot slot, const ThreadPlace& place) override;
  void thread_ended(ThreadSlot slot) override;
  void host_node_ran(RankId rank, std::uint32_t stream, const std::string& name) override;

 private:
  Happening& add(Kind kind, std::size_t lane);
  std::size_t lane_of(const Lane& lane);
  void link_reads(Happening& reader, const Performed& what);
  std::size_t last_write(std::uint64_t first, std::uint32_t bytes, std::uint64_t step) const;

  const Memory* memory_ = nullptr;
  std::uint64_t step_ = 0;
  std::vector<Lane> lanes_;
  std::vector<std::size_t> lane_of_slot_;
  std::vector<std::string> kernel_of_grid_;
  std::vector<std::size_t> wait_of_slot_;
  struct Write {
    std::uint64_t first;
    std::uint32_t bytes;
    std::uint64_t step;
    std::size_t happening;
  };
  std::vector<Write> writes_;
  std::vector<Happening> happenings_;
  RunResult result_;
};

// One row per operation, one lane per thread; the text begins in its thread's lane. A thread begins
// "as t3" if the schedule string calls it so: the numbers of ended threads are used again. Repeated
// operations of one thread at one site share a row. Of a long run only what leads to its end is
// shown: the last rows, reads of old writes, and the writes that these have read.
std::string print_timeline(const RunRecord& record, std::size_t max_rows = 60);

// Chrome's trace event format, JSON object form: a process per rank, a thread per lane, an arrow
// from each write to its reads. A microsecond of the trace is one operation, not time.
std::string chrome_trace(const RunRecord& record);

}  // namespace assay::machine
