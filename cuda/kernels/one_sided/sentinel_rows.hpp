// Rows on the wire of Sentinel: as whole 16-byte vectors, XORed with a key so that no 32-bit word
// is the sentinel, received when no word is the sentinel any more. Decides padding, key and how a
// row becomes bytes again (SPEC KER-6.1, KER-6.3); where rows land is sentinel_dispatch.hpp's and
// sentinel_combine.hpp's.
#pragma once

#include "cuda/kernels/one_sided/barrier.hpp"
#include "cuda/kernels/one_sided/reduce.hpp"
#include "cuda/kernels/one_sided/rows.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

inline constexpr Vec16 kArmed{{kSentinel, kSentinel, kSentinel, kSentinel}};
inline constexpr std::uint64_t kHeaderBytes = sizeof(Vec16);

ASSAY_HD constexpr Vec16 with_key(Vec16 vector, std::uint32_t key) {
  for (std::uint32_t& word : vector.word) word ^= key;
  return vector;
}

// What a wait on slots and cells waits for: no word is the sentinel.
ASSAY_HD constexpr Await until_written(std::uint32_t phase, RankId peer) {
  Await await;
  await.expected = kSentinel;
  await.until = Until::kDiffers;
  await.epoch = phase + 1;
  await.peer = peer;
  return await;
}

// An expert's row as it crosses in format Wire: its bytes, or its elements as e4m3 (SPEC KER-4.3).
template <BitFormat Wire>
struct ExpertRow {
  static constexpr bool kAsE4m3 = sizeof(Wire) == 1;
  static constexpr Site read = Site::kSentinelCombineReadRow;
  Address row;
  RowFormat from;  // where kAsE4m3; otherwise Wire
  std::uint32_t hidden_size;
  std::uint32_t piece_bytes;
  ASSAY_HD ExpertRow(const SentinelCombineParams& p, std::uint64_t index, Address own)
      : row(own.at(p.combine.rows_offset + index * p.combine.hidden_size * element_bytes(p.rows))),
        from(p.rows),
        hidden_size(p.combine.hidden_size),
        piece_bytes(p.pull_bytes) {}
  ASSAY_HD std::uint32_t vectors() const {
    return static_cast<std::uint32_t>(landing_vectors(hidden_size * sizeof(Wire)));
  }
  ASSAY_HD WholeVectors whole() const {
    return {0, !kAsE4m3 && piece_bytes == sizeof(Vec16) ? vectors() : 0};
  }
  ASSAY_HD Address whole_row() const { return row; }
  template <Ops O>
  ASSAY_HD Vec16 vector(O& ops, std::uint32_t v) const {
    if constexpr (!kAsE4m3) {
      return load_row_vector(ops, read, {row, hidden_size * sizeof(Wire), piece_bytes}, v);
    } else {
      if (from == RowFormat::kBf16) return narrowed<Bf16>(ops, v);
      if (from == RowFormat::kF16) return narrowed<F16>(ops, v);
      return narrowed<F32>(ops, v);
    }
  }

 private:
  ASSAY_HD static constexpr std::uint64_t element_bytes(RowFormat format) {
    return !kAsE4m3 ? sizeof(Wire) : format == RowFormat::kF32 ? 4 : 2;
  }
  // 16 elements, by whole vectors where the row is made of them.
  template <BitFormat In, Ops O>
  ASSAY_HD Vec16 narrowed(O& ops, std::uint32_t v) const {
    using Bits = decltype(In::bits);
    constexpr int kVectors = static_cast<int>(sizeof(In));
    constexpr int kPerVector = static_cast<int>(sizeof(Vec16) / sizeof(In));
    const std::uint64_t first = std::uint64_t{v} * sizeof(Vec16);
    std::uint64_t half[2] = {};  // elements past the row's end stay zero
    const auto put = [&](std::uint32_t e, In x) {
      const E4m3 y = ops.narrow_e4m3(InF32<false>::from(ops, x));
      const std::uint64_t bits = std::uint64_t{y.bits} << (8 * (e % 8));
      half[0] |= e < 8 ? bits : 0;
      half[1] |= e < 8 ? 0 : bits;
    };
    if (piece_bytes == sizeof(Vec16)) {
      Vec16 wide[kVectors] = {};
      ASSAY_UNROLL
      for (int i = 0; i < kVectors; ++i)
        if (first + static_cast<std::uint64_t>(i * kPerVector) < hidden_size)
          wide[i] = ops.load(
              as<Vec16>, weak, read,
              row.at((std::uint64_t{v} * kVectors + static_cast<unsigned>(i)) * sizeof(Vec16)));
      ASSAY_UNROLL
      for (int e = 0; e < static_cast<int>(sizeof(Vec16)); ++e)
        put(static_cast<std::uint32_t>(e), element<In>(wide[e / kPerVector], e % kPerVector));
    } else {
      ASSAY_NO_UNROLL
      for (std::uint32_t e = 0; e < sizeof(Vec16) && first + e < hidden_size; ++e)
        put(e, In{ops.load(as<Bits>, weak, read, row.at((first + e) * sizeof(In)))});
    }
    return Vec16{{static_cast<std::uint32_t>(half[0]), static_cast<std::uint32_t>(half[0] >> 32),
                  static_cast<std::uint32_t>(half[1]), static_cast<std::uint32_t>(half[1] >> 32)}};
  }
};

// Which keys would make a sentinel of some word, one shared word per key that is being tried. Three
// sets take turns: while one is read, the next is ready, and the one after it is emptied; so rows
// in a row need one barrier each.
struct BadKeys {
  static constexpr std::uint32_t kTried = 32;
  static constexpr std::uint32_t kSets = 3;
  static constexpr std::uint32_t kWords = kSets * kTried;
  std::uint32_t first_word;  // of the shared words that hold the sets
  std::uint32_t turn = 0;
  ASSAY_HD constexpr SharedWord word(std::uint32_t key, std::uint32_t turns_later = 0) const {
    return {first_word + (turn + turns_later) % kSets * kTried + key};
  }
};
struct KeySites {
  Site share, scanned, tried;
};

// Empties a set; a barrier must follow before keys are marked in it.
template <Ops O>
ASSAY_HD void empty_set(O& ops, const BadKeys& bad, std::uint32_t turns_later, Site share) {
  for (std::uint32_t key = ops.thread(); key < BadKeys::kTried; key += ops.group_size())
    ops.shared_store(share, bad.word(key, turns_later), 0u);
}

// Key k makes a sentinel of word w if w ^ k is all ones, that is if k is ~w.
template <Ops O>
ASSAY_HD void mark_bad_keys(O& ops, const BadKeys& bad, Site share, std::uint32_t first_key,
                            const Vec16& vector) {
  for (const std::uint32_t word : vector.word) {
    const std::uint32_t key = ~word - first_key;
    if (key < BadKeys::kTried) ops.shared_store(share, bad.word(key), 1u);
  }
}

// Where a row goes: to the slots whose bit in `present` is set. Indexed by constants only.
template <int kTargets>
struct Slots {
  Address at[kTargets];
  std::uint32_t present = 0;
};

// A row that waits to be sent, from load() on.
template <class Rows>
struct Outgoing {
  InFlight<Rows, kSentinelInFlight> moving;

  // The first vectors; the others are loaded when it is their turn.
  template <Ops O>
  ASSAY_HD void load(O& ops) {
    moving.load(ops, ops.thread());
  }

  // Calls for every thread of the group: reads all vectors and agrees on the lowest key that makes
  // no sentinel; asks begin(key), once, for the slots, of which it stores the headers; then stores
  // all vectors with the key behind them. The two sets of keys that are next must be empty, before
  // a barrier. n words spoil at most n keys, so some try among n / kTried + 1 ends the search (SPEC
  // KER-6.3); the first does in all rows but those made to prevent it. Rows are read and sent by
  // the same code: all of it is fetched once in a launch, which takes longer than to run it.
  template <int kTargets, Ops O, class Begin>
  ASSAY_HD void send(O& ops, BadKeys& bad, KeySites sites, Site store, const Begin& begin) {
    const std::uint32_t vectors = moving.rows.vectors();
    const std::uint32_t tries = vectors / (BadKeys::kTried / 4) + 1;
    std::uint32_t loaded = ops.thread(), key = 0;
    Slots<kTargets> slots;
    bool chosen = false;
    for (std::uint32_t t = 0; t <= tries; ++t) {
      const std::uint32_t first_key = t * BadKeys::kTried;
      for (std::uint32_t first = ops.thread(); first < vectors; first += moving.step(ops)) {
        if (first != loaded) moving.load(ops, first);
        loaded = first;
        moving.each(ops, first, [&](std::uint32_t v, const Vec16& vector) {
          if (!chosen) return mark_bad_keys(ops, bad, sites.share, first_key, vector);
          const Vec16 escaped = with_key(vector, key);
          ASSAY_UNROLL
          for (int k = 0; k < kTargets; ++k)
            if ((slots.present >> k) & 1)
              ops.store(relaxed_sys, store,
                        slots.at[k].at(kHeaderBytes + std::uint64_t{v} * sizeof(Vec16)), escaped);
        });
      }
      if (chosen) break;
      ops.barrier(sites.scanned);
      for (std::uint32_t k = 0; k < BadKeys::kTried && !chosen; ++k) {
        chosen = ops.shared_load(sites.share, bad.word(k)) == 0;
        key = first_key + k;
      }
      if (chosen) {
        slots = begin(key);
      } else {
        ops.barrier(sites.tried);
        empty_set(ops, bad, 0, sites.share);
        ops.barrier(sites.tried);
      }
    }
    empty_set(ops, bad, 2, sites.share);
    bad.turn = (bad.turn + 1) % BadKeys::kSets;
  }
};

// Shared words with which every launch of Sentinel begins, ahead of a kernel's own.
struct SentinelShared {
  static constexpr SharedWord failed() { return {0}; }
  static constexpr SharedWord ticket() { return {1}; }
  static constexpr std::uint32_t kBadKeys = 2;
  static constexpr std::uint32_t kCells = kBadKeys + BadKeys::kWords;  // combine's
  static constexpr std::uint32_t kCellsWords = 66;
  static constexpr std::uint32_t kWords = kCells + kCellsWords;
};
// Whether the groups of a launch take tickets: not if all of them wait, as where all are resident.
template <Ops O>
ASSAY_HD bool takes_tickets(O& ops, const SentinelParams& sentinel) {
  return sentinel.waiters < ops.num_ctas();
}

// Tells the group what thread 0 has learnt, and empties the first sets of keys. The caller's next
// barrier must come before any of it is looked at.
template <Ops O>
ASSAY_HD void share_arrival(O& ops, const Arrival& arrival, const BadKeys& bad, Site share) {
  if (ops.thread() == 0) {
    ops.shared_store(share, SentinelShared::ticket(), arrival.taken);
    ops.shared_store(share, SentinelShared::failed(), arrival.failed);
  }
  empty_set(ops, bad, 0, share);
  empty_set(ops, bad, 1, share);
}

// This group's number among those that wait, or `waiters` for a group that only sends: all groups
// but the last `waiters` to start (SPEC KER-6.5).
template <Ops O>
ASSAY_HD std::uint32_t waiter_number(O& ops, const SentinelParams& sentinel, Site share) {
  if (!takes_tickets(ops, sentinel)) return ops.cta();
  const std::uint32_t ticket = ops.shared_load(share, SentinelShared::ticket());
  const std::uint32_t senders = ops.num_ctas() - sentinel.waiters;
  return ticket < senders ? sentinel.waiters : ticket - senders;
}

}  // namespace bodies
}  // namespace assay::one_sided
