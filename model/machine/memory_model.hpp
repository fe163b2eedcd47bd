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

struct ThreadPlace {
  RankId rank;
  std::uint32_t stream = 0;
  std::uint64_t grid = 0;  // one number per launch, ascending in launch order
  std::uint32_t cta = 0;
  std::uint32_t thread = 0;
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

// What ends a run with RunStatus::kFault. nullptr is "nothing wrong".
struct Fault {
  std::string sentence;
};
using MaybeFault = std::unique_ptr<Fault>;

class MemoryModel {
 public:
  virtual ~MemoryModel() = default;

  // `value` has event.bytes bytes: 1, 2, 4, 8 or 16. A 16-byte access is four 4-byte elements; the
  // machine itself splits it where a switch falls into its middle (kWordsFirst), and then asks for
  // single words. A model may additionally let its words arrive separately.
  virtual MaybeFault load(const MemoryEvent& event, std::byte* value) = 0;
  virtual MaybeFault store(const MemoryEvent& event, const std::byte* value) = 0;
  // 4 or 8 bytes. `old` receives what was there before. `compare` is for kCompareAndSwap only.
  virtual MaybeFault rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand,
                         std::uint64_t compare, std::uint64_t& old) = 0;
  virtual void fence(const MemoryEvent& event) = 0;

  // wait_until (SPEC MAC-2.2). `satisfied` says whether some readable value ends the wait, and
  // which the thread takes if it runs now; it is asked at the start, whenever a store has touched
  // the word, and again when the thread is chosen. When nothing satisfies, `seen` is what a report
  // shows.
  virtual MaybeFault await(const MemoryEvent& event, const Await& await, bool& satisfied,
                           std::uint64_t& seen) = 0;

  // The host has written / is about to read bytes of Memory directly.
  virtual void host_wrote(Address first, std::uint64_t bytes) = 0;
  virtual void host_reads(Address first, std::uint64_t bytes) = 0;

  // Structure. A grid is one launch of a kernel; `grid_end` comes when its last thread has ended
  // and before the next node of its stream starts. Host nodes and host access are ordered like a
  // grid of one thread with system-wide fences at both ends.
  virtual void grid_begin(RankId rank, std::uint32_t stream, std::uint64_t grid) = 0;
  virtual void grid_end(RankId rank, std::uint32_t stream, std::uint64_t grid) = 0;
  virtual void thread_begin(ThreadSlot slot, const ThreadPlace& place) = 0;
  virtual void thread_end(ThreadSlot slot) = 0;
  virtual void barrier(std::span<const ThreadSlot> threads) = 0;
};

// Sequential consistency: one memory, every operation takes effect when it is scheduled. It lets
// the machine go around it: pages it has handed to Memory::cache are read and written by SimOps
// directly.
class SequentialMemory final : public MemoryModel {
 public:
  explicit SequentialMemory(Memory& memory) : memory_(memory) {}

  MaybeFault load(const MemoryEvent& event, std::byte* value) override;
  MaybeFault store(const MemoryEvent& event, const std::byte* value) override;
  MaybeFault rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand, std::uint64_t compare,
                 std::uint64_t& old) override;
  void fence(const MemoryEvent&) override {}
  MaybeFault await(const MemoryEvent& event, const Await& await, bool& satisfied,
                   std::uint64_t& seen) override;

  void host_wrote(Address, std::uint64_t) override {}
  void host_reads(Address, std::uint64_t) override {}
  void grid_begin(RankId, std::uint32_t, std::uint64_t) override {}
  void grid_end(RankId, std::uint32_t, std::uint64_t) override {}
  void thread_begin(ThreadSlot, const ThreadPlace&) override {}
  void thread_end(ThreadSlot) override {}
  void barrier(std::span<const ThreadSlot>) override {}

 private:
  Memory& memory_;
};

// The sentence of an illegal access, without the place in the program:
// "store of 16 bytes at 0x...: 'recv' of rank 2 ends 8 bytes earlier".
std::string trouble_sentence(const Memory& memory, const MemoryEvent& event, const char* verb,
                             Trouble trouble);

}  // namespace assay::machine
