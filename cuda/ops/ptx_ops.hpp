// Ops on the GPU: each operation is one PTX instruction (a wait and a batch of loads are short
// sequences of them). Decides the spelling of every instruction a one-sided kernel executes, and
// nothing else: which one is used where is the body's text. Needs sm_90 or newer.
#pragma once

#include <cstdint>

#include "model/core/ops.hpp"

namespace assay::cuda {

// PTX prose of a type, for asm statements: suffix and register class.
#define ASSAY_PTX_LOAD(order_scope, suffix, constraint, type)  \
  asm volatile("ld." order_scope "global." suffix " %0, [%1];" \
               : constraint(value)                             \
               : "l"(a)                                        \
               : "memory")

struct PtxOps {
  RankId rank_;
  std::uint32_t cta_, num_ctas_;
  std::uint32_t* shared_;     // the group's words
  std::uint64_t timeout_ns_;  // budget of one wait

  __device__ RankId rank() const { return rank_; }
  __device__ std::uint32_t cta() const { return cta_; }
  __device__ std::uint32_t num_ctas() const { return num_ctas_; }
  __device__ std::uint32_t thread() const { return threadIdx.x; }
  __device__ std::uint32_t group_size() const { return blockDim.x; }

  // Loads: weak and relaxed at gpu or sys scope.
  template <Word T, Order O, Scope S>
  __device__ T load(As<T>, Access<O, S>, Site, Address address) const {
    const std::uint64_t a = address.raw;
    static_assert(O == Order::kWeak || O == Order::kRelaxed, "loads are weak or relaxed");
    if constexpr (sizeof(T) == 16) {
      Vec16 v;
      if constexpr (O == Order::kWeak)
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                     : "l"(a)
                     : "memory");
      else if constexpr (S == Scope::kGpu)
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                     : "l"(a)
                     : "memory");
      else
        asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                     : "l"(a)
                     : "memory");
      return v;
    } else if constexpr (sizeof(T) == 8) {
      std::uint64_t value;
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_LOAD("", "u64", "=l", T);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_LOAD("relaxed.gpu.", "u64", "=l", T);
      else
        ASSAY_PTX_LOAD("relaxed.sys.", "u64", "=l", T);
      return value;
    } else if constexpr (sizeof(T) == 4) {
      std::uint32_t value;
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_LOAD("", "u32", "=r", T);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_LOAD("relaxed.gpu.", "u32", "=r", T);
      else
        ASSAY_PTX_LOAD("relaxed.sys.", "u32", "=r", T);
      return value;
    } else if constexpr (sizeof(T) == 2) {
      std::uint16_t value;
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_LOAD("", "u16", "=h", T);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_LOAD("relaxed.gpu.", "u16", "=h", T);
      else
        ASSAY_PTX_LOAD("relaxed.sys.", "u16", "=h", T);
      return value;
    } else {
      std::uint32_t value;  // PTX has no 8-bit register class; the upper bits read as zero
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_LOAD("", "u8", "=r", T);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_LOAD("relaxed.gpu.", "u8", "=r", T);
      else
        ASSAY_PTX_LOAD("relaxed.sys.", "u8", "=r", T);
      return static_cast<T>(value);
    }
  }

#define ASSAY_PTX_STORE(order_scope, suffix, constraint, expression)                            \
  asm volatile("st." order_scope "global." suffix " [%0], %1;" ::"l"(a), constraint(expression) \
               : "memory")
  template <Word T, Order O, Scope S>
  __device__ void store(Access<O, S>, Site, Address address, T value) const {
    const std::uint64_t a = address.raw;
    static_assert(O == Order::kWeak || O == Order::kRelaxed, "stores are weak or relaxed");
    if constexpr (sizeof(T) == 16) {
      if constexpr (O == Order::kWeak)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(a), "r"(value.word[0]),
                     "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
                     : "memory");
      else if constexpr (S == Scope::kGpu)
        asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(a),
                     "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
                     : "memory");
      else
        asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(a),
                     "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
                     : "memory");
    } else if constexpr (sizeof(T) == 8) {
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_STORE("", "u64", "l", value);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_STORE("relaxed.gpu.", "u64", "l", value);
      else
        ASSAY_PTX_STORE("relaxed.sys.", "u64", "l", value);
    } else if constexpr (sizeof(T) == 4) {
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_STORE("", "u32", "r", value);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_STORE("relaxed.gpu.", "u32", "r", value);
      else
        ASSAY_PTX_STORE("relaxed.sys.", "u32", "r", value);
    } else if constexpr (sizeof(T) == 2) {
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_STORE("", "u16", "h", value);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_STORE("relaxed.gpu.", "u16", "h", value);
      else
        ASSAY_PTX_STORE("relaxed.sys.", "u16", "h", value);
    } else {
      const std::uint32_t wide = value;
      if constexpr (O == Order::kWeak)
        ASSAY_PTX_STORE("", "u8", "r", wide);
      else if constexpr (S == Scope::kGpu)
        ASSAY_PTX_STORE("relaxed.gpu.", "u8", "r", wide);
      else
        ASSAY_PTX_STORE("relaxed.sys.", "u8", "r", wide);
    }
  }
#undef ASSAY_PTX_LOAD
#undef ASSAY_PTX_STORE

  // All loads are issued before any value is used: `out` is only written.
  template <Order O, Scope S, int kCount, Word T>
  __device__ void load_batch(Access<O, S> access, Site site, const Address (&addresses)[kCount],
                             std::uint32_t present, T (&out)[kCount]) const {
    ASSAY_UNROLL
    for (int i = 0; i < kCount; ++i)
      if ((present >> i) & 1) out[i] = load(as<T>, access, site, addresses[i]);
  }

  template <Order O, Scope S>
  __device__ std::uint32_t atomic_add(Access<O, S>, Site, Address address,
                                      std::uint32_t value) const {
    std::uint32_t before;
    static_assert(S == Scope::kGpu, "atomics are at gpu scope");
    if constexpr (O == Order::kRelaxed)
      asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(address.raw), "r"(value)
                   : "memory");
    else
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(address.raw), "r"(value)
                   : "memory");
    return before;
  }
  template <Order O, Scope S>
  __device__ std::uint32_t atomic_cas(Access<O, S>, Site, Address address, std::uint32_t expected,
                                      std::uint32_t desired) const {
    static_assert(O == Order::kRelaxed && S == Scope::kGpu, "compare-and-swap is relaxed.gpu");
    std::uint32_t before;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(address.raw), "r"(expected), "r"(desired)
                 : "memory");
    return before;
  }
  template <Order O, Scope S>
  __device__ void fence(Access<O, S>, Site) const {
    static_assert(S == Scope::kSys, "fences are at system scope");
    if constexpr (O == Order::kRelease)
      asm volatile("fence.release.sys;" ::: "memory");
    else if constexpr (O == Order::kAcquire)
      asm volatile("fence.acquire.sys;" ::: "memory");
    else if constexpr (O == Order::kSc)
      asm volatile("fence.sc.sys;" ::: "memory");
    else
      asm volatile("fence.acq_rel.sys;" ::: "memory");
  }

  __device__ std::uint32_t shared_load(Site, SharedWord word) const { return shared_[word.index]; }
  __device__ void shared_store(Site, SharedWord word, std::uint32_t value) const {
    shared_[word.index] = value;
  }
  __device__ void barrier(Site) const { __syncthreads(); }
  // A kernel that was launched without the programmatic attribute passes both (PTX ISA 9.1,
  // griddepcontrol).
  __device__ void launch_dependents(Site) const {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
  __device__ void wait_for_grid(Site) const {
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }

  // Polls; the clock is read once per poll, which costs nothing beside the load.
  template <Word T, Order O, Scope S>
  __device__ Awaited wait_until(As<T> type, Access<O, S> access, Site site, Address address,
                                Await await) const {
    std::uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    for (;;) {
      const std::uint64_t seen = load(type, access, site, address);
      if (satisfies(await, seen)) return {seen, false};
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      if (now - start > timeout_ns_) return {seen, true};
    }
  }

  // Loads all vectors that are not complete, then looks at all of them, until none is left. A
  // vector that is complete is not loaded again. The clock is read only after a poll that found
  // something missing.
  template <Order O, Scope S, int kCount>
  __device__ Awaited wait_for_words(Access<O, S> access, Site site,
                                    const Address (&addresses)[kCount], std::uint32_t present,
                                    const Await& await, Vec16 (&out)[kCount]) const {
    std::uint64_t start = 0;
    for (std::uint32_t missing = present;;) {
      load_batch(access, site, addresses, missing, out);
      std::uint64_t seen = 0;
      ASSAY_UNROLL
      for (int i = 0; i < kCount; ++i) {
        if (((missing >> i) & 1) == 0) continue;
        bool complete = true;
        ASSAY_UNROLL
        for (int w = 0; w < 4; ++w) {
          if (satisfies(await, out[i].word[w])) continue;
          complete = false;
          seen = out[i].word[w];
        }
        if (complete) missing &= ~(1u << i);
      }
      if (missing == 0) return {0, false};
      std::uint64_t now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      if (start == 0) start = now;
      if (now - start > timeout_ns_) return {seen, true};
    }
  }

  template <bool kFlush>
  __device__ F32 add_f32(Ftz<kFlush>, F32 a, F32 b) const {
    F32 sum;
    if constexpr (kFlush)
      asm("{.reg .f32 x, y, z; mov.b32 x, %1; mov.b32 y, %2; add.rn.ftz.f32 z, x, y; "
          "mov.b32 %0, z;}"
          : "=r"(sum.bits)
          : "r"(a.bits), "r"(b.bits));
    else
      asm("{.reg .f32 x, y, z; mov.b32 x, %1; mov.b32 y, %2; add.rn.f32 z, x, y; "
          "mov.b32 %0, z;}"
          : "=r"(sum.bits)
          : "r"(a.bits), "r"(b.bits));
    return sum;
  }
  __device__ Bf16 add_bf16(Bf16 a, Bf16 b) const {
    Bf16 sum;
    asm("add.rn.bf16 %0, %1, %2;" : "=h"(sum.bits) : "h"(a.bits), "h"(b.bits));
    return sum;
  }
  __device__ F16 add_f16(F16 a, F16 b) const {
    F16 sum;
    asm("add.rn.f16 %0, %1, %2;" : "=h"(sum.bits) : "h"(a.bits), "h"(b.bits));
    return sum;
  }
  __device__ F32 widen_bf16(Bf16 x) const {
    F32 wide;
    asm("mov.b32 %0, {0, %1};" : "=r"(wide.bits) : "h"(x.bits));
    return wide;
  }
  __device__ F32 widen_f16(F16 x) const {
    F32 wide;
    asm("{.reg .f32 z; cvt.f32.f16 z, %1; mov.b32 %0, z;}" : "=r"(wide.bits) : "h"(x.bits));
    return wide;
  }
  __device__ F32 widen_e4m3(E4m3 x) const {
    const auto pair = static_cast<std::uint16_t>(x.bits);
    F32 wide;
    asm("{.reg .b32 p; .reg .b16 lo, hi; .reg .f32 z; cvt.rn.f16x2.e4m3x2 p, %1; "
        "mov.b32 {lo, hi}, p; cvt.f32.f16 z, lo; mov.b32 %0, z;}"
        : "=r"(wide.bits)
        : "h"(pair));
    return wide;
  }
  __device__ Bf16 narrow_bf16(F32 x) const {
    Bf16 narrow;
    asm("{.reg .f32 z; mov.b32 z, %1; cvt.rn.bf16.f32 %0, z;}" : "=h"(narrow.bits) : "r"(x.bits));
    return narrow;
  }
  __device__ F16 narrow_f16(F32 x) const {
    F16 narrow;
    asm("{.reg .f32 z; mov.b32 z, %1; cvt.rn.f16.f32 %0, z;}" : "=h"(narrow.bits) : "r"(x.bits));
    return narrow;
  }
  __device__ E4m3 narrow_e4m3(F32 x) const {
    std::uint16_t pair;
    asm("{.reg .f32 z, zero; mov.b32 z, %1; mov.f32 zero, 0f00000000; "
        "cvt.rn.satfinite.e4m3x2.f32 %0, zero, z;}"
        : "=h"(pair)
        : "r"(x.bits));
    return E4m3{static_cast<std::uint8_t>(pair & 0xFF)};
  }
};

}  // namespace assay::cuda
