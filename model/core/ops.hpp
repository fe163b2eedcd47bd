// The Ops concept: the only way a one-sided kernel body touches memory, its neighbours or a bit
// that reaches an output. A body is a template over Ops; cuda/ops maps each operation to one PTX
// instruction, model/machine turns it into an event. So the text that is explored under adversarial
// schedules is the text that runs on NVLink. This file decides spelling, not semantics: orders and
// scopes are PTX's (SPEC MAC-2), arithmetic is model/numerics (SPEC NUM).
//
// Rules a body keeps (tools/lint checks them): no pointers, no built-in thread indices, no operator
// on floating values, every access names its order, scope and site, every wait has a budget.
#pragma once

#include <concepts>
#include <cstdint>

#include "model/core/bits.hpp"
#include "model/core/id.hpp"
#include "model/core/platform.hpp"

namespace assay {

// A place in global memory: on a GPU a generic address, in the machine a simulated 64-bit one. It
// can be moved by bytes and compared, never dereferenced. All byte offsets are 64-bit (SPEC
// MAC-1.1).
struct Address {
  std::uint64_t raw = 0;
  ASSAY_HD constexpr Address at(std::uint64_t offset_bytes) const {
    return Address{raw + offset_bytes};
  }
  // As two words of shared memory.
  ASSAY_HD constexpr std::uint32_t low() const { return static_cast<std::uint32_t>(raw); }
  ASSAY_HD constexpr std::uint32_t high() const { return static_cast<std::uint32_t>(raw >> 32); }
  ASSAY_HD static constexpr Address of_words(std::uint32_t low, std::uint32_t high) {
    return Address{low | std::uint64_t{high} << 32};
  }
  friend ASSAY_HD constexpr bool operator==(Address a, Address b) { return a.raw == b.raw; }
};

// The memory of all ranks of a group: rank r's window starts `stride_bytes` after rank r-1's. This
// is how NCCL's LSA team lays out a symmetric window, and a rank reaches its own window the same
// way.
struct Window {
  Address first;
  std::uint64_t stride_bytes = 0;
  ASSAY_HD constexpr Address of(RankId rank) const {
    return first.at(static_cast<std::uint64_t>(rank.value()) * stride_bytes);
  }
};

// A 32-bit word of the group's (CTA's) shared memory.
struct SharedWord {
  std::uint32_t index = 0;
};

enum class Order : std::uint8_t { kWeak, kRelaxed, kAcquire, kRelease, kAcqRel, kSc };
enum class Scope : std::uint8_t { kNone, kCta, kCluster, kGpu, kSys };

// Order and scope are part of the type, because they select the instruction.
template <Order O, Scope S>
struct Access {
  static constexpr Order kOrder = O;
  static constexpr Scope kScope = S;
};
inline constexpr Access<Order::kWeak, Scope::kNone> weak{};
inline constexpr Access<Order::kRelaxed, Scope::kCta> relaxed_cta{};
inline constexpr Access<Order::kRelaxed, Scope::kGpu> relaxed_gpu{};
inline constexpr Access<Order::kRelaxed, Scope::kSys> relaxed_sys{};
inline constexpr Access<Order::kAcquire, Scope::kCta> acquire_cta{};
inline constexpr Access<Order::kAcquire, Scope::kGpu> acquire_gpu{};
inline constexpr Access<Order::kAcquire, Scope::kSys> acquire_sys{};
inline constexpr Access<Order::kRelease, Scope::kCta> release_cta{};
inline constexpr Access<Order::kRelease, Scope::kGpu> release_gpu{};
inline constexpr Access<Order::kRelease, Scope::kSys> release_sys{};
inline constexpr Access<Order::kAcqRel, Scope::kCta> acq_rel_cta{};
inline constexpr Access<Order::kAcqRel, Scope::kGpu> acq_rel_gpu{};
inline constexpr Access<Order::kAcqRel, Scope::kSys> acq_rel_sys{};
inline constexpr Access<Order::kSc, Scope::kCta> sc_cta{};
inline constexpr Access<Order::kSc, Scope::kGpu> sc_gpu{};
inline constexpr Access<Order::kSc, Scope::kSys> sc_sys{};

// What moves in one access. A Vec16 is four 32-bit elements; its atomicity is that of its element,
// so a reader may see some of its words before others (SPEC MAC-1.4).
struct Vec16 {
  std::uint32_t word[4];
};
template <class T>
concept Word = std::same_as<T, std::uint8_t> || std::same_as<T, std::uint16_t> ||
    std::same_as<T, std::uint32_t> || std::same_as<T, std::uint64_t> || std::same_as<T, Vec16>;

// Selects the word type of a load without the `template` keyword: ops.load(as<Vec16>, ...).
template <Word T>
struct As {
  using type = T;
};
template <Word T>
inline constexpr As<T> as{};

// Every operation of a body that another thread can notice has a name, used by race reports,
// timelines, generated mutants and SPEC citations. The text form is site_name() in ops.cpp.
enum class Site : std::uint16_t {
  kNone = 0,
#define ASSAY_SITE(name) k##name,
#include "model/core/sites.def"
#undef ASSAY_SITE
};
const char* site_name(Site site);  // "DispatchRelease"; "None" for kNone

// What a wait waits for: it ends when (seen & mask) equals `expected`, or differs from it. The rest
// is for the report of a wait that does not end (DESIGN 8: round, phase, peer, seen, expected).
enum class Until : std::uint8_t { kEquals, kDiffers };
struct Await {
  std::uint64_t mask = ~std::uint64_t{0};
  std::uint64_t expected = 0;
  std::uint32_t epoch = 0;
  RankId peer{-1};
  Until until = Until::kEquals;
};
ASSAY_HD constexpr bool satisfies(const Await& await, std::uint64_t seen) {
  return ((seen & await.mask) == await.expected) == (await.until == Until::kEquals);
}
struct Awaited {
  std::uint64_t seen = 0;
  bool timed_out = false;
};

// Flush-to-zero is part of an instruction's name (add.ftz.f32), so it is a type here.
template <bool Flush>
struct Ftz {
  static constexpr bool kFlush = Flush;
};
inline constexpr Ftz<false> keep_subnormals{};
inline constexpr Ftz<true> flush_subnormals{};

// What a body may ask of its Ops. One Ops object belongs to one thread.
//   identity   rank() cta() num_ctas() thread() group_size()    (a group is a CTA)
//   memory     load store load_batch atomic_add atomic_cas fence (global memory)
//              shared_load shared_store                          (the group's own words)
//   waiting    barrier (all threads of the group), wait_until and wait_for_words (bounded, and they
//              name what they wait for), launch_dependents and wait_for_grid (programmatic launch:
//              this group no longer holds back the next kernel; what is before this kernel has
//              ended)
//   numbers    add_f32 add_bf16 add_f16 widen_* narrow_*         (one PTX instruction each)
// load_batch issues N loads before any is used; lanes whose bit in `present` is 0 keep the value
// that `out` came with. barrier orders memory within the group; shared words carry values only
// across a barrier. wait_for_words waits until every 32-bit word of every vector named in `present`
// satisfies `await`, with all vectors in flight at once, and returns their words; words arrive one
// by one, and each is the value with which its own wait ended.
template <class O>
concept Ops = requires(O& ops, Address address, SharedWord shared, Await await, Vec16 vec,
                       std::uint32_t u32, std::uint64_t u64, const Address (&addresses)[2],
                       Vec16 (&vecs)[2], F32 f32, Bf16 bf16, F16 f16, E4m3 e4m3, RankId peer) {
  { ops.rank() } -> std::same_as<RankId>;
  { ops.cta() } -> std::same_as<std::uint32_t>;
  { ops.num_ctas() } -> std::same_as<std::uint32_t>;
  { ops.thread() } -> std::same_as<std::uint32_t>;
  { ops.group_size() } -> std::same_as<std::uint32_t>;

  { ops.load(as<Vec16>, relaxed_sys, Site::kNone, address) } -> std::same_as<Vec16>;
  { ops.load(as<std::uint8_t>, weak, Site::kNone, address) } -> std::same_as<std::uint8_t>;
  { ops.store(relaxed_sys, Site::kNone, address, vec) } -> std::same_as<void>;
  { ops.store(weak, Site::kNone, address, u32) } -> std::same_as<void>;
  { ops.load_batch(relaxed_sys, Site::kNone, addresses, u32, vecs) } -> std::same_as<void>;
  { ops.atomic_add(acq_rel_gpu, Site::kNone, address, u32) } -> std::same_as<std::uint32_t>;
  { ops.atomic_cas(relaxed_gpu, Site::kNone, address, u32, u32) } -> std::same_as<std::uint32_t>;
  { ops.fence(acq_rel_sys, Site::kNone) } -> std::same_as<void>;
  { ops.shared_load(Site::kNone, shared) } -> std::same_as<std::uint32_t>;
  { ops.shared_store(Site::kNone, shared, u32) } -> std::same_as<void>;

  { ops.barrier(Site::kNone) } -> std::same_as<void>;
  { ops.launch_dependents(Site::kNone) } -> std::same_as<void>;
  { ops.wait_for_grid(Site::kNone) } -> std::same_as<void>;
  {
    ops.wait_until(as<std::uint64_t>, relaxed_sys, Site::kNone, address, await)
    } -> std::same_as<Awaited>;
  {
    ops.wait_for_words(relaxed_sys, Site::kNone, addresses, u32, await, vecs)
    } -> std::same_as<Awaited>;

  { ops.add_f32(flush_subnormals, f32, f32) } -> std::same_as<F32>;
  { ops.add_f32(keep_subnormals, f32, f32) } -> std::same_as<F32>;
  { ops.add_bf16(bf16, bf16) } -> std::same_as<Bf16>;
  { ops.add_f16(f16, f16) } -> std::same_as<F16>;
  { ops.widen_bf16(bf16) } -> std::same_as<F32>;
  { ops.widen_f16(f16) } -> std::same_as<F32>;
  { ops.widen_e4m3(e4m3) } -> std::same_as<F32>;
  { ops.narrow_bf16(f32) } -> std::same_as<Bf16>;
  { ops.narrow_f16(f32) } -> std::same_as<F16>;
  { ops.narrow_e4m3(f32) } -> std::same_as<E4m3>;
};

}  // namespace assay
