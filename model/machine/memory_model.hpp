// Which value a load returns. MemoryModel is the question, asked once per memory operation with
// everything PTX makes it depend on (thread, site, order, scope, address, size); SequentialMemory
// is the answer "the newest write" (SPEC MAC-2.1). A weak model keeps histories of its own over the
// same Memory and asks the Scheduler which readable write a load returns and where a store lands.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/core/ops.hpp"
#include "model/machine/memory.hpp"
#include "model/machine/scheduler.hpp"

namespace assay::machine {

using ThreadSlot = std::uint32_t;  // a running thread; reused after thread_end

// One launch of a kernel. `programmatic`: it may run before its predecessor has ended (kPdl).
// `ticket` is what enqueue_ticket returned when it was enqueued.
struct GridPlace {
  RankId rank;
  std::uint32_t stream = 0;
  std::uint64_t grid = 0;  // one number per launch, ascending in launch order
  std::string kernel;
  bool programmatic = false;
  std::uint32_t ticket = 0;
};

struct ThreadPlace {
  RankId rank;
  std::uint32_t stream = 0;
  std::uint64_t grid = 0;
  std::uint32_t cta = 0;
  std::uint32_t thread = 0;
  std::uint32_t launch = 0;  // how many grids its stream had started before this one
};

enum class Operation : std::uint8_t {
  kNone,  // a thread that has not come to an ordered operation yet
  kLoad,
  kStore,
  kRmw,
  kFence,
  kAwait,
  kBarrier,
  kLaunchDependents,  // griddepcontrol.launch_dependents
  kWaitForGrid,       // griddepcontrol.wait
};

// One memory operation, as a body spells it.
struct MemoryEvent {
  Operation operation = Operation::kNone;
  ThreadSlot slot = 0;
  RankId rank;
  Site site = Site::kNone;
  Order order = Order::kWeak;
  Scope scope = Scope::kNone;
  Address address;
  std::uint32_t bytes = 0;
};

enum class Rmw : std::uint8_t { kAdd, kCompareAndSwap };
enum class Look : std::uint8_t { kLook, kTake };

// What ends a run with RunStatus::kFault. nullptr is "nothing wrong".
struct Fault {
  std::string sentence;
};
using MaybeFault = std::unique_ptr<Fault>;

class MemoryModel {
 public:
  virtual ~MemoryModel() = default;

  // Whether a switch may fall into the middle of a 16-byte access, so that the machine asks for
  // single words (kWordsFirst). A model in which each word has a history of its own needs no such
  // switch: whatever it would show, some choice of writes shows as well.
  virtual bool splits_vectors() const = 0;

  // `value` has event.bytes bytes: 1, 2, 4, 8 or 16. A 16-byte access is four 4-byte elements.
  virtual MaybeFault load(const MemoryEvent& event, std::byte* value) = 0;
  virtual MaybeFault store(const MemoryEvent& event, const std::byte* value) = 0;
  // 4 or 8 bytes. `old` receives what was there before. `compare` is for kCompareAndSwap only.
  virtual MaybeFault rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand,
                         std::uint64_t compare, std::uint64_t& old) = 0;
  virtual void fence(const MemoryEvent& event) = 0;

  // wait_until (SPEC MAC-2.2). `satisfied` says whether some readable value ends the wait. kTake is
  // the thread itself when it runs: it takes such a value, which `seen` receives. kLook changes
  // nothing: it is asked after every store that has touched the word, and for reports. When nothing
  // ends the wait, `seen` is what a report shows. A wait that has begun does not become a fault.
  virtual MaybeFault await(const MemoryEvent& event, const Await& await, Look look, bool& satisfied,
                           std::uint64_t& seen) = 0;

  // The host has written / is about to read bytes of Memory directly: from within a host node of
  // the stream named last by host_node_begin, or between runs.
  virtual void host_wrote(Address, std::uint64_t /*bytes*/) {}
  virtual void host_reads(Address, std::uint64_t /*bytes*/) {}

  // Structure; a model without histories needs none of it. stream_wakes comes before a stream that
  // had nothing to do gets its next node, stream_rests when nothing is queued behind the last.
  // grid_end comes in stream order, when the last thread of the grid has ended and so has
  // everything before it. grid_waited: the thread has come through wait_for_grid. run_ended: the
  // host has waited for all streams.
  virtual std::uint32_t enqueue_ticket() { return 0; }
  virtual void stream_wakes(RankId, std::uint32_t /*stream*/) {}
  virtual void stream_rests(RankId, std::uint32_t /*stream*/) {}
  virtual void host_node_begin(RankId, std::uint32_t /*stream*/, std::uint32_t /*ticket*/) {}
  virtual void host_node_end(RankId, std::uint32_t /*stream*/) {}
  virtual void grid_begin(const GridPlace&) {}
  virtual void grid_end(RankId, std::uint32_t /*stream*/, std::uint64_t /*grid*/) {}
  virtual void grid_waited(ThreadSlot) {}
  virtual void thread_begin(ThreadSlot, const ThreadPlace&) {}
  virtual void thread_end(ThreadSlot) {}
  virtual void barrier(std::span<const ThreadSlot>) {}
  virtual void run_ended() {}
};

// Sequential consistency: one memory, every operation takes effect when it is scheduled. It lets
// the machine go around it: pages it has handed to Memory::cache are read and written by SimOps
// directly.
class SequentialMemory final : public MemoryModel {
 public:
  explicit SequentialMemory(Memory& memory) : memory_(memory) {}

  bool splits_vectors() const override { return true; }
  MaybeFault load(const MemoryEvent& event, std::byte* value) override;
  MaybeFault store(const MemoryEvent& event, const std::byte* value) override;
  MaybeFault rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand, std::uint64_t compare,
                 std::uint64_t& old) override;
  void fence(const MemoryEvent&) override {}
  MaybeFault await(const MemoryEvent& event, const Await& await, Look look, bool& satisfied,
                   std::uint64_t& seen) override;

 private:
  Memory& memory_;
};

// Of an access that locate() has found legal: whether every byte was written, and the value of at
// most 8 of them.
bool all_written(const Page& page, std::uint64_t in_page, std::uint32_t bytes);
void mark_written(Page& page, std::uint64_t in_page, std::uint32_t bytes);
std::uint64_t read_word(const Page& page, std::uint64_t in_page, std::uint32_t bytes);

// The sentence of an illegal access, without the place in the program:
// "store of 16 bytes at 0x...: 'recv' of rank 2 ends 8 bytes earlier".
std::string trouble_sentence(const Memory& memory, const MemoryEvent& event, const char* verb,
                             Trouble trouble);

}  // namespace assay::machine
