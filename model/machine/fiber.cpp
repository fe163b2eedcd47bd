// Fibers over Boost.Context with pooled stacks, and the sanitizers' switch annotations.
#include "model/machine/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <new>

#include "model/core/contract.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define ASSAY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASSAY_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define ASSAY_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ASSAY_TSAN 1
#endif
#endif

#ifdef ASSAY_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ASSAY_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace assay::machine {

namespace context = boost::context::detail;

namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// Stacks are mapped sixteen at a time; the kernel backs a page when it is first touched, so a large
// stack costs address space only.
constexpr std::size_t kStacksPerSlab = 16;

// A guard page splits a mapping in two, and Linux allows a process 65,530 mappings by default. Half
// of them guard the first 16,384 stacks; the rest of a larger crowd runs unguarded, on the same
// code.
constexpr std::size_t kGuardedSlabs = 65530 / 2 / 2 / kStacksPerSlab;

// AddressSanitizer puts red zones around every local.
#ifdef ASSAY_ASAN
constexpr std::size_t kSanitizerFactor = 4;
#else
constexpr std::size_t kSanitizerFactor = 1;
#endif

}  // namespace

std::size_t StackPool::rounded(std::size_t stack_bytes) {
  return (stack_bytes * kSanitizerFactor + page_bytes() - 1) / page_bytes() * page_bytes();
}

StackPool::StackPool(std::size_t stack_bytes) : stack_bytes_(rounded(stack_bytes)) {
  CONTRACT(stack_bytes >= 4 * page_bytes(), "a fiber stack is at least four pages", stack_bytes);
}

StackPool::~StackPool() {
  for (std::byte* slab : slabs_) munmap(slab, kStacksPerSlab * (stack_bytes_ + page_bytes()));
}

std::byte* StackPool::take() {
  if (free_.empty()) grow();
  std::byte* stack = free_.back();
  free_.pop_back();
  return stack;
}

void StackPool::grow() {
  const std::size_t step = stack_bytes_ + page_bytes();
  void* slab = mmap(nullptr, kStacksPerSlab * step, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) throw std::bad_alloc();
  slabs_.push_back(static_cast<std::byte*>(slab));
  for (std::size_t i = kStacksPerSlab; i-- > 0;) {
    std::byte* guard = slabs_.back() + i * step;
    if (slabs_.size() <= kGuardedSlabs)
      CONTRACT(mprotect(guard, page_bytes(), PROT_NONE) == 0, "cannot guard a fiber stack",
               slabs_.size());
    free_.push_back(guard + page_bytes());
  }
}

// Runs on the fiber's own stack. The first switch hands over the Fiber.
struct Fiber::Trampoline {
  static void enter(context::transfer_t from) {
    Fiber& self = *static_cast<Fiber*>(from.data);
    self.host_context_ = from.fctx;
#ifdef ASSAY_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &self.host_stack_, &self.host_stack_bytes_);
#endif
    self.entry_(self.argument_);
    self.finished_ = true;
    self.switch_to_host(true);
  }
};

void Fiber::start(StackPool& pool, Entry entry, void* argument) {
  CONTRACT(stack_ == nullptr, "a fiber is started once");
  stack_ = pool.take();
  stack_bytes_ = pool.stack_bytes();
  entry_ = entry;
  argument_ = argument;
  finished_ = false;
  // Stacks lie a whole number of pages apart. Without a colour of their own, the few lines that
  // every fiber touches at a switch would all compete for the same sets of the first-level cache.
  const std::size_t color = pool.next_color();
  context_ = context::make_fcontext(stack_ + stack_bytes_ - color, stack_bytes_ - color,
                                    &Trampoline::enter);
#ifdef ASSAY_TSAN
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

void Fiber::resume() {
#ifdef ASSAY_ASAN
  __sanitizer_start_switch_fiber(&host_fake_stack_, stack_, stack_bytes_);
#endif
#ifdef ASSAY_TSAN
  tsan_host_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, 0);
#endif
  context_ = context::jump_fcontext(context_, this).fctx;
#ifdef ASSAY_ASAN
  __sanitizer_finish_switch_fiber(host_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::suspend() { switch_to_host(false); }

void Fiber::switch_to_host(bool for_good) {
#ifdef ASSAY_ASAN
  // A null place to save to frees the fake stack: the fiber does not come back.
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, host_stack_, host_stack_bytes_);
#else
  static_cast<void>(for_good);
#endif
#ifdef ASSAY_TSAN
  __tsan_switch_to_fiber(tsan_host_fiber_, 0);
#endif
  host_context_ = context::jump_fcontext(host_context_, this).fctx;
#ifdef ASSAY_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &host_stack_, &host_stack_bytes_);
#endif
}

void Fiber::recycle(StackPool& pool) {
  CONTRACT(stack_ != nullptr && finished_, "only a finished fiber gives its stack back");
#ifdef ASSAY_ASAN
  // The frames that were alive at the last switch left their red zones behind.
  __asan_unpoison_memory_region(stack_, stack_bytes_);
#endif
#ifdef ASSAY_TSAN
  __tsan_destroy_fiber(tsan_fiber_);
  tsan_fiber_ = nullptr;
#endif
  pool.give(stack_);
  stack_ = nullptr;
  finished_ = false;
}

}  // namespace assay::machine
