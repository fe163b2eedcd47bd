// Faults put into a memory model from outside, for the tests of this folder: each is a mistake that
// an implementation of PTX's rules could make, with the litmus tests that notice it.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "model/machine/litmus/forwarding_memory.hpp"

namespace assay::machine::litmus {

enum class ModelFault : std::uint8_t {
  kFencesIgnored,
  kScFencesWeak,     // fence.sc is fence.acq_rel
  kScopesIgnored,    // every scope is sys
  kAcquiresRelaxed,  // of loads and awaits
  kReleasesRelaxed,  // of stores
  kAtomicsRelaxed,   // orders of atomics
  kAtomicsSplit,     // a load and a store
  kBarriersIgnored,
  kGridWaitIgnored,  // griddepcontrol.wait orders nothing
};

struct NamedFault {
  ModelFault fault;
  const char* name;
  std::vector<const char*> noticed_by;
};

inline const NamedFault kFaults[] = {
    {ModelFault::kFencesIgnored,
     "fences ignored",
     {"MP.fences.sys", "S.acq_rel.gpu", "WRC.acq_rel.sys", "ISA2.gpu_then_sys", "SB.sc.sys",
      "BAR_send.release_behind", "RMW_chain.atom.fences", "HANDOFF.fences.relaxed",
      "STREAM_send.release"}},
    {ModelFault::kScFencesWeak,
     "fence.sc taken for fence.acq_rel",
     {"SB.sc.gpu", "R.sc.sys", "2+2W.sc.gpu", "RWC.sc.sys", "IRIW.sc.gpu", "Z6.0.sc.sys",
      "Z6.3.sc.sys", "SB_cta.sc"}},
    {ModelFault::kScopesIgnored,
     "scopes ignored",
     {"MP.gpu_fences_across", "MP.cta_fences", "MP.gpu_flag_across", "SB.sc.gpu_across",
      "ISA2.gpu_in_the_middle", "ADD.gpu_across", "BAR_send.release_gpu",
      "HANDOFF.gpu_release_in_b"}},
    {ModelFault::kAcquiresRelaxed,
     "acquire loads taken for relaxed ones",
     {"MP.relacq.gpu", "MP_await.weak.relacq.gpu", "MP_relaxed_then_acquire.sys",
      "HANDOFF.operations.relaxed", "RMW_chain_2.gpu"}},
    {ModelFault::kReleasesRelaxed,
     "release stores taken for relaxed ones",
     {"MP.relacq.sys", "MP_release_then_relaxed.same_place.gpu", "RMW_chain.atom.gpu",
      "HANDOFF.operations.weak"}},
    {ModelFault::kAtomicsRelaxed,
     "atomics taken for relaxed ones",
     {"TICKET.acq_rel.gpu", "RED_release.release.sys", "HANDOFF_ticket.acq_rel",
      "HANDOFF_red.weak"}},
    {ModelFault::kAtomicsSplit,
     "atomics taken for a load and a store",
     {"ADD.gpu", "ADD.sys", "ADD_store.gpu", "RMW_chain.atom.gpu"}},
    {ModelFault::kBarriersIgnored,
     "barriers order nothing",
     {"BAR.weak", "BAR_send.release_behind", "BAR_receive.acquire_before", "HANDOFF_bar.weak"}},
    {ModelFault::kGridWaitIgnored,
     "griddepcontrol.wait orders nothing",
     {"STREAM.trigger_before.wait", "STREAM_send.release.wait.weak"}},
};

class FaultyMemory final : public ForwardingMemory {
 public:
  FaultyMemory(ModelFault fault, std::unique_ptr<MemoryModel> inner)
      : ForwardingMemory(std::move(inner)), fault_(fault) {}

  MaybeFault load(const MemoryEvent& event, std::byte* value) override {
    return ForwardingMemory::load(changed(event), value);
  }
  MaybeFault store(const MemoryEvent& event, const std::byte* value) override {
    return ForwardingMemory::store(changed(event), value);
  }
  MaybeFault await(const MemoryEvent& event, const Await& await, Look look, bool& satisfied,
                   std::uint64_t& seen) override {
    return ForwardingMemory::await(changed(event), await, look, satisfied, seen);
  }
  void fence(const MemoryEvent& event) override {
    if (fault_ != ModelFault::kFencesIgnored) ForwardingMemory::fence(changed(event));
  }
  void barrier(std::span<const ThreadSlot> threads) override {
    if (fault_ != ModelFault::kBarriersIgnored) ForwardingMemory::barrier(threads);
  }
  void grid_waited(ThreadSlot slot) override {
    if (fault_ != ModelFault::kGridWaitIgnored) ForwardingMemory::grid_waited(slot);
  }
  MaybeFault rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand, std::uint64_t compare,
                 std::uint64_t& old) override {
    if (fault_ != ModelFault::kAtomicsSplit)
      return ForwardingMemory::rmw(changed(event), op, operand, compare, old);
    MemoryEvent half = event;
    half.operation = Operation::kLoad;
    half.order = has_acquire(event.order) ? Order::kAcquire : Order::kRelaxed;
    std::uint32_t value = 0;
    if (auto fault = ForwardingMemory::load(half, reinterpret_cast<std::byte*>(&value)))
      return fault;
    old = value;
    if (op == Rmw::kCompareAndSwap && old != compare) return nullptr;
    half.operation = Operation::kStore;
    half.order = has_release(event.order) ? Order::kRelease : Order::kRelaxed;
    value = static_cast<std::uint32_t>(op == Rmw::kAdd ? old + operand : operand);
    return ForwardingMemory::store(half, reinterpret_cast<const std::byte*>(&value));
  }

 private:
  static bool has_acquire(Order order) {
    return order == Order::kAcquire || order == Order::kAcqRel;
  }
  static bool has_release(Order order) {
    return order == Order::kRelease || order == Order::kAcqRel;
  }

  MemoryEvent changed(MemoryEvent event) const {
    const bool atomic = event.operation == Operation::kRmw;
    if (fault_ == ModelFault::kScFencesWeak && event.order == Order::kSc)
      event.order = Order::kAcqRel;
    if (fault_ == ModelFault::kScopesIgnored && event.scope != Scope::kNone)
      event.scope = Scope::kSys;
    if (event.operation == Operation::kFence) return event;
    if ((fault_ == ModelFault::kAcquiresRelaxed && event.order == Order::kAcquire && !atomic) ||
        (fault_ == ModelFault::kReleasesRelaxed && event.order == Order::kRelease && !atomic) ||
        (fault_ == ModelFault::kAtomicsRelaxed && atomic))
      event.order = Order::kRelaxed;
    return event;
  }

  const ModelFault fault_;
};

inline std::unique_ptr<MemoryModel> faulty_memory(ModelFault fault,
                                                  std::unique_ptr<MemoryModel> inner) {
  return std::make_unique<FaultyMemory>(fault, std::move(inner));
}

}  // namespace assay::machine::litmus
