// Simulated threads are fibers: a stack each, switched by hand, because nvcc refuses coroutines in
// bodies (DESIGN 5). Decides how a stack is obtained, guarded and switched, with the annotations
// that AddressSanitizer and ThreadSanitizer need; decides nothing about who runs.
#pragma once

#include <cstddef>
#include <vector>

namespace assay::machine {

// Stacks of one size, each with an inaccessible page below it, so that an overflow ends the process
// at once instead of corrupting a neighbour (beyond 16,000 stacks there are no such pages left).
// Freed stacks are reused first. AddressSanitizer builds make every stack four times as large.
class StackPool {
 public:
  explicit StackPool(std::size_t stack_bytes);
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  std::byte* take();  // lowest usable address
  void give(std::byte* stack) { free_.push_back(stack); }
  std::size_t stack_bytes() const { return stack_bytes_; }
  bool holds(std::size_t stack_bytes) const {
    return StackPool::rounded(stack_bytes) == stack_bytes_;
  }
  // Cycles through the multiples of five cache lines below one page (5 and 64 have no common
  // factor).
  std::size_t next_color() { return (color_ = (color_ + 320) % 4096); }

 private:
  static std::size_t rounded(std::size_t stack_bytes);
  void grow();
  std::size_t stack_bytes_;
  std::size_t color_ = 0;
  std::vector<std::byte*> free_;
  std::vector<std::byte*> slabs_;
};

// One fiber. The scheduler's side calls start once, then resume until finished(); the entry
// function calls suspend on its own fiber. Both sides must stay on one operating system thread.
class Fiber {
 public:
  using Entry = void (*)(void* argument);

  void start(StackPool& pool, Entry entry, void* argument);
  void resume();
  void suspend();
  bool started() const { return stack_ != nullptr; }
  bool finished() const { return finished_; }
  void recycle(
      StackPool& pool);  // after finished(): gives the stack back; start may be called again

 private:
  struct Trampoline;
  void switch_to_host(bool for_good);

  void* context_ = nullptr;       // where to continue the fiber
  void* host_context_ = nullptr;  // where to continue the scheduler's side
  std::byte* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  bool finished_ = false;
  // Used by sanitizer builds only; always present so that a mixed build keeps one layout.
  void* fake_stack_ = nullptr;
  void* host_fake_stack_ = nullptr;
  const void* host_stack_ = nullptr;
  std::size_t host_stack_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_host_fiber_ = nullptr;
};

}  // namespace assay::machine
