// The Ops of the simulated machine: every operation of a body becomes an event of one simulated
// thread. The common access is finished here, inline, from the rank's page cache; everything else
// (switches, faults, waiting, other memory models) is engine.cpp. A wrapper type may hold a SimOps&
// and forward to it. Decides which orders and scopes an operation may carry; what the numbers are
// is model/numerics.
#pragma once

#include <cstdint>

#include "model/core/ops.hpp"
#include "model/machine/engine.hpp"
#include "model/numerics/numerics.hpp"

namespace assay::machine {

class SimOps {
 public:
  SimOps(Engine& engine, Thread& thread)
      : engine_(engine),
        thread_(thread),
        cache_(engine.memory().cache_of(thread.cta->grid->rank)),
        grid_(*thread.cta->grid) {}
  SimOps(const SimOps&) = delete;
  SimOps& operator=(const SimOps&) = delete;

  RankId rank() const { return grid_.rank; }
  std::uint32_t cta() const { return thread_.cta->index; }
  std::uint32_t num_ctas() const { return grid_.kernel->num_ctas; }
  std::uint32_t thread() const { return thread_.index; }
  std::uint32_t group_size() const { return grid_.group_size; }

  template <Word T, Order O, Scope S>
  T load(As<T>, Access<O, S> access, Site site, Address address) {
    static_assert(O == Order::kWeak || O == Order::kRelaxed || O == Order::kAcquire,
                  "ld is weak, relaxed or acquire");
    T value;
    if (is_due(access)) [[unlikely]] {
      engine_.load_after_switch(thread_, event(Operation::kLoad, access, site, address, sizeof(T)),
                                &value);
    } else if (!load_cached(cache_, address, value)) [[unlikely]] {
      engine_.load(event(Operation::kLoad, access, site, address, sizeof(T)), &value);
    }
    return value;
  }

  template <Word T, Order O, Scope S>
  void store(Access<O, S> access, Site site, Address address, T value) {
    static_assert(O == Order::kWeak || O == Order::kRelaxed || O == Order::kRelease,
                  "st is weak, relaxed or release");
    if (is_due(access)) [[unlikely]] {
      engine_.store_after_switch(
          thread_, event(Operation::kStore, access, site, address, sizeof(T)), &value);
    } else if (!store_cached(cache_, address, value)) [[unlikely]] {
      engine_.store(event(Operation::kStore, access, site, address, sizeof(T)), &value);
    }
  }

  // Each load is an operation of its own: other threads may run between them.
  template <Word T, Order O, Scope S, std::size_t N>
  void load_batch(Access<O, S> access, Site site, const Address (&addresses)[N],
                  std::uint32_t present, T (&out)[N]) {
    static_assert(N <= 32, "`present` has 32 bits");
    for (std::size_t i = 0; i < N; ++i)
      if ((present >> i & 1) != 0) out[i] = load(as<T>, access, site, addresses[i]);
  }

  template <Order O, Scope S, class T>
  T atomic_add(Access<O, S> access, Site site, Address address, T value) {
    return rmw(access, site, address, Rmw::kAdd, value, T{0});
  }
  template <Order O, Scope S, class T>
  T atomic_cas(Access<O, S> access, Site site, Address address, T expected, T desired) {
    return rmw(access, site, address, Rmw::kCompareAndSwap, desired, expected);
  }

  template <Order O, Scope S>
  void fence(Access<O, S> access, Site site) {
    static_assert(O != Order::kWeak && O != Order::kRelaxed, "a fence orders something");
    const MemoryEvent fence_event = event(Operation::kFence, access, site, Address{}, 0);
    if (is_due(access)) [[unlikely]]
      engine_.switch_now(thread_, fence_event);
    engine_.fence(fence_event);
  }

  std::uint32_t shared_load(Site site, SharedWord word) {
    return engine_.shared_load(thread_, site, word);
  }
  void shared_store(Site site, SharedWord word, std::uint32_t value) {
    engine_.shared_store(thread_, site, word, value);
  }

  void barrier(Site site) { engine_.barrier(thread_, site); }
  void launch_dependents(Site site) { engine_.launch_dependents(thread_, site); }
  void wait_for_grid(Site site) { engine_.wait_for_grid(thread_, site); }

  template <Word T, Order O, Scope S>
  Awaited wait_until(As<T>, Access<O, S> access, Site site, Address address, const Await& await) {
    static_assert(sizeof(T) <= 8, "a wait compares at most 64 bits");
    static_assert(O == Order::kRelaxed || O == Order::kAcquire, "a wait polls with an order");
    return engine_.wait_until(thread_, event(Operation::kAwait, access, site, address, sizeof(T)),
                              await);
  }
  // Vectors that are complete already are read like by load_batch where pages may be read directly;
  // any other word is waited for on its own, since words arrive one by one.
  template <Order O, Scope S, std::size_t N>
  Awaited wait_for_words(Access<O, S> access, Site site, const Address (&addresses)[N],
                         std::uint32_t present, const Await& await, Vec16 (&out)[N]) {
    static_assert(N <= 32, "`present` has 32 bits");
    for (std::size_t i = 0; i < N; ++i) {
      if ((present >> i & 1) == 0) continue;
      if (!engine_.next_ordered_operation_is_due() && load_cached(cache_, addresses[i], out[i]) &&
          satisfies(await, out[i].word[0]) && satisfies(await, out[i].word[1]) &&
          satisfies(await, out[i].word[2]) && satisfies(await, out[i].word[3])) {
        static_cast<void>(is_due(access));  // counts it
        continue;
      }
      for (std::uint64_t w = 0; w < 4; ++w) {
        const Awaited got =
            wait_until(as<std::uint32_t>, access, site, addresses[i].at(w * 4), await);
        out[i].word[w] = static_cast<std::uint32_t>(got.seen);
        if (got.timed_out) return got;
      }
    }
    return {};
  }

  template <bool Flush>
  F32 add_f32(Ftz<Flush>, F32 a, F32 b) {
    return numerics::add_rn(a, b, Flush);
  }
  Bf16 add_bf16(Bf16 a, Bf16 b) { return numerics::add_rn(a, b); }
  F16 add_f16(F16 a, F16 b) { return numerics::add_rn(a, b); }
  F32 widen_bf16(Bf16 x) { return numerics::widen(x); }
  F32 widen_f16(F16 x) { return numerics::widen(x); }
  F32 widen_e4m3(E4m3 x) { return numerics::widen(x); }
  Bf16 narrow_bf16(F32 x) { return numerics::cvt_rn_bf16_f32(x); }
  F16 narrow_f16(F32 x) { return numerics::cvt_rn_f16_f32(x); }
  E4m3 narrow_e4m3(F32 x) { return numerics::cvt_rn_satfinite_e4m3(x); }

 private:
  template <Order O, Scope S>
  bool is_due(Access<O, S>) {
    static_assert((O == Order::kWeak) == (S == Scope::kNone), "weak accesses have no scope");
    if constexpr (O == Order::kWeak) {
      engine_.count_weak_access();
      return false;
    } else {
      return engine_.ordered_operation_is_due();
    }
  }

  template <Order O, Scope S>
  MemoryEvent event(Operation operation, Access<O, S>, Site site, Address address,
                    std::uint32_t bytes) const {
    return MemoryEvent{operation, thread_.slot, grid_.rank, site, O, S, address, bytes};
  }

  template <Order O, Scope S, class T>
  T rmw(Access<O, S> access, Site site, Address address, Rmw op, T operand, T compare) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atom works on 32 or 64 bits");
    static_assert(O != Order::kWeak && O != Order::kSc,
                  "atom is relaxed, acquire, release, acq_rel");
    const MemoryEvent atomic_event = event(Operation::kRmw, access, site, address, sizeof(T));
    if (is_due(access)) [[unlikely]]
      engine_.switch_now(thread_, atomic_event);
    return static_cast<T>(engine_.rmw(atomic_event, op, operand, compare));
  }

  Engine& engine_;
  Thread& thread_;
  PageCache& cache_;
  const Grid& grid_;
};

static_assert(Ops<SimOps>, "SimOps is what kernel bodies are instantiated with");

}  // namespace assay::machine
