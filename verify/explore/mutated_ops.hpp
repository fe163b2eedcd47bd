// An Ops around an Ops that drops or weakens one named operation of a body while it runs: a fence,
// a barrier, a wait, a store, an order, a scope. Decides what each weakening does (SPEC VER-8.6);
// which of them apply to a body is not listed anywhere, it is read off the operations that a run
// performed (SiteLog). The bodies themselves contain no mutant code, and are compiled once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "model/core/ops.hpp"
#include "model/machine/machine.hpp"

namespace assay::verify {

enum class Weakening : std::uint8_t {
  kNone,
  kDrop,     // the operation does not happen; a wait looks once and goes on
  kAcquire,  // acq_rel loses its release half
  kRelease,  // acq_rel loses its acquire half
  kRelaxed,  // acquire, release, acq_rel become relaxed; an sc fence becomes acq_rel
  kWeak,     // no order and no scope; an atomic becomes a load and a store
  kGpu,      // sys becomes gpu
  kCta,      // sys, gpu and cluster become cta
};

// What one named place of a body did when it ran; Operation::kNone if it never did.
struct SiteUse {
  machine::Operation operation = machine::Operation::kNone;
  Order order = Order::kWeak;
  Scope scope = Scope::kNone;
};

inline constexpr std::size_t kNumSites = 1
#define ASSAY_SITE(name) +1
#include "model/core/sites.def"
#undef ASSAY_SITE
    ;

// Of one execution: what is weakened, and what was performed. Shared by all its threads.
struct MutationState {
  Site site = Site::kNone;
  Weakening how = Weakening::kNone;
  std::array<SiteUse, kNumSites> used{};
  std::uint64_t last_flag = 0;  // newest 64-bit word that anybody stored with an order
};

template <Ops Base>
class MutatedOps {
 public:
  MutatedOps(Base& base, MutationState& state) : base_(base), state_(state) {}

  RankId rank() const { return base_.rank(); }
  std::uint32_t cta() const { return base_.cta(); }
  std::uint32_t num_ctas() const { return base_.num_ctas(); }
  std::uint32_t thread() const { return base_.thread(); }
  std::uint32_t group_size() const { return base_.group_size(); }

  template <Word T, Order O, Scope S>
  T load(As<T>, Access<O, S> access, Site site, Address address) {
    note(machine::Operation::kLoad, access, site);
    if (hits(site)) [[unlikely]] {
      T value{};
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_load(weaker)) value = base_.load(as<T>, weaker, site, address);
      });
      return value;
    }
    return base_.load(as<T>, access, site, address);
  }

  template <Word T, Order O, Scope S>
  void store(Access<O, S> access, Site site, Address address, T value) {
    note(machine::Operation::kStore, access, site);
    if constexpr (sizeof(T) == 8 && O != Order::kWeak) state_.last_flag = value;
    if (hits(site)) [[unlikely]] {
      if (state_.how == Weakening::kDrop) return;
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_store(weaker)) base_.store(weaker, site, address, value);
      });
      return;
    }
    base_.store(access, site, address, value);
  }

  template <Word T, Order O, Scope S, std::size_t N>
  void load_batch(Access<O, S> access, Site site, const Address (&addresses)[N],
                  std::uint32_t present, T (&out)[N]) {
    note(machine::Operation::kLoad, access, site);
    if (hits(site)) [[unlikely]] {
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_load(weaker)) base_.load_batch(weaker, site, addresses, present, out);
      });
      return;
    }
    base_.load_batch(access, site, addresses, present, out);
  }

  template <Order O, Scope S, class T>
  T atomic_add(Access<O, S> access, Site site, Address address, T value) {
    note(machine::Operation::kRmw, access, site);
    if (hits(site)) [[unlikely]] {
      if (state_.how == Weakening::kWeak) {
        const T old = base_.load(as<T>, weak, site, address);
        base_.store(weak, site, address, static_cast<T>(old + value));
        return old;
      }
      T old{};
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_rmw(weaker)) old = base_.atomic_add(weaker, site, address, value);
      });
      return old;
    }
    return base_.atomic_add(access, site, address, value);
  }

  template <Order O, Scope S, class T>
  T atomic_cas(Access<O, S> access, Site site, Address address, T expected, T desired) {
    note(machine::Operation::kRmw, access, site);
    if (hits(site)) [[unlikely]] {
      if (state_.how == Weakening::kWeak) {
        const T old = base_.load(as<T>, weak, site, address);
        if (old == expected) base_.store(weak, site, address, desired);
        return old;
      }
      T old{};
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_rmw(weaker))
          old = base_.atomic_cas(weaker, site, address, expected, desired);
      });
      return old;
    }
    return base_.atomic_cas(access, site, address, expected, desired);
  }

  template <Order O, Scope S>
  void fence(Access<O, S> access, Site site) {
    note(machine::Operation::kFence, access, site);
    if (hits(site)) [[unlikely]] {
      if (state_.how == Weakening::kDrop) return;
      if (O == Order::kSc && state_.how == Weakening::kRelaxed)
        return base_.fence(Access<Order::kAcqRel, S>{}, site);
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_fence(weaker)) base_.fence(weaker, site);
      });
      return;
    }
    base_.fence(access, site);
  }

  std::uint32_t shared_load(Site site, SharedWord word) { return base_.shared_load(site, word); }
  void shared_store(Site site, SharedWord word, std::uint32_t value) {
    base_.shared_store(site, word, value);
  }

  void barrier(Site site) {
    state_.used[static_cast<std::size_t>(site)].operation = machine::Operation::kBarrier;
    if (hits(site)) [[unlikely]]
      return;
    base_.barrier(site);
  }
  void launch_dependents(Site site) { base_.launch_dependents(site); }
  void wait_for_grid(Site site) {
    state_.used[static_cast<std::size_t>(site)].operation = machine::Operation::kWaitForGrid;
    if (hits(site)) [[unlikely]]
      return;
    base_.wait_for_grid(site);
  }

  template <Word T, Order O, Scope S>
  Awaited wait_until(As<T>, Access<O, S> access, Site site, Address address, const Await& await) {
    note(machine::Operation::kAwait, access, site);
    if (hits(site)) [[unlikely]] {
      if (state_.how == Weakening::kDrop) return look_once<T>(access, site, address, await);
      Awaited got;
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_poll(weaker)) got = base_.wait_until(as<T>, weaker, site, address, await);
      });
      return got;
    }
    return base_.wait_until(as<T>, access, site, address, await);
  }

  template <Order O, Scope S, std::size_t N>
  Awaited wait_for_words(Access<O, S> access, Site site, const Address (&addresses)[N],
                         std::uint32_t present, const Await& await, Vec16 (&out)[N]) {
    note(machine::Operation::kAwait, access, site);
    if (hits(site)) [[unlikely]] {
      if (state_.how == Weakening::kDrop) {
        base_.load_batch(access, site, addresses, present, out);
        return {};
      }
      Awaited got;
      with_weaker(access, [&](auto weaker) {
        if constexpr (is_poll(weaker))
          got = base_.wait_for_words(weaker, site, addresses, present, await, out);
      });
      return got;
    }
    return base_.wait_for_words(access, site, addresses, present, await, out);
  }

  template <bool Flush>
  F32 add_f32(Ftz<Flush> ftz, F32 a, F32 b) {
    return base_.add_f32(ftz, a, b);
  }
  Bf16 add_bf16(Bf16 a, Bf16 b) { return base_.add_bf16(a, b); }
  F16 add_f16(F16 a, F16 b) { return base_.add_f16(a, b); }
  F32 widen_bf16(Bf16 x) { return base_.widen_bf16(x); }
  F32 widen_f16(F16 x) { return base_.widen_f16(x); }
  F32 widen_e4m3(E4m3 x) { return base_.widen_e4m3(x); }
  Bf16 narrow_bf16(F32 x) { return base_.narrow_bf16(x); }
  F16 narrow_f16(F32 x) { return base_.narrow_f16(x); }
  E4m3 narrow_e4m3(F32 x) { return base_.narrow_e4m3(x); }

 private:
  template <Order O, Scope S>
  static constexpr bool is_load(Access<O, S>) {
    return O == Order::kWeak || O == Order::kRelaxed || O == Order::kAcquire;
  }
  template <Order O, Scope S>
  static constexpr bool is_store(Access<O, S>) {
    return O == Order::kWeak || O == Order::kRelaxed || O == Order::kRelease;
  }
  template <Order O, Scope S>
  static constexpr bool is_rmw(Access<O, S>) {
    return O != Order::kWeak && O != Order::kSc;
  }
  template <Order O, Scope S>
  static constexpr bool is_fence(Access<O, S>) {
    return O != Order::kWeak && O != Order::kRelaxed;
  }
  template <Order O, Scope S>
  static constexpr bool is_poll(Access<O, S>) {
    return O == Order::kRelaxed || O == Order::kAcquire;
  }

  bool hits(Site site) const { return site == state_.site; }

  template <Order O, Scope S>
  void note(machine::Operation operation, Access<O, S>, Site site) {
    state_.used[static_cast<std::size_t>(site)] = {operation, O, S};
  }

  // Calls `perform` with the access that is left of `access`. A combination that an operation has
  // not (a weak poll) is never asked for: applicable() in mutants.cpp says what is.
  template <Order O, Scope S, class F>
  void with_weaker(Access<O, S> access, F&& perform) {
    if constexpr (O == Order::kWeak) {
      perform(access);
    } else {
      switch (state_.how) {
        case Weakening::kAcquire:
          return perform(Access<Order::kAcquire, S>{});
        case Weakening::kRelease:
          return perform(Access<Order::kRelease, S>{});
        case Weakening::kRelaxed:
          return perform(Access<Order::kRelaxed, S>{});
        case Weakening::kWeak:
          return perform(weak);
        case Weakening::kGpu:
          return perform(Access<O, Scope::kGpu>{});
        case Weakening::kCta:
          return perform(Access<O, Scope::kCta>{});
        case Weakening::kNone:
        case Weakening::kDrop:
          return perform(access);
      }
    }
  }

  // A wait that is gone: one look, taken for an end of the wait. For an equality wait the rest of
  // the word is what a well-behaved peer would have sent, or every drop would only be a wrong
  // digest.
  template <Word T, Order O, Scope S>
  Awaited look_once(Access<O, S> access, Site site, Address address, const Await& await) {
    const auto seen = static_cast<std::uint64_t>(base_.load(as<T>, access, site, address));
    if (await.until == Until::kDiffers || satisfies(await, seen)) return {seen, false};
    return {(state_.last_flag & ~await.mask) | await.expected, false};
  }

  Base& base_;
  MutationState& state_;
};

using ExploreOps = MutatedOps<machine::SimOps>;
static_assert(Ops<ExploreOps>, "kernel bodies are explored through it");

}  // namespace assay::verify
