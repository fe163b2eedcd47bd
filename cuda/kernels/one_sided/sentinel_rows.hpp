// Rows on the wire of Sentinel: as whole 16-byte vectors, XORed with a key so that no 32-bit word
// is the sentinel, received when no word is the sentinel any more. Decides padding, key and how a
// row becomes bytes again (SPEC KER-6.1, KER-6.3); where rows land is sentinel_dispatch.hpp's and
// sentinel_combine.hpp's.
#pragma once

#include "cuda/kernels/one_sided/barrier.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

inline constexpr Vec16 kArmed{{kSentinel, kSentinel, kSentinel, kSentinel}};
inline constexpr std::uint64_t kHeaderBytes = sizeof(Vec16);
// Vectors that a thread has in flight at once; 256 threads keep rows of 16 KiB in registers.
inline constexpr int kInFlight = 4;

// Whole vectors of a row of so many bytes.
ASSAY_HD constexpr std::uint64_t landing_vectors(std::uint64_t bytes) {
  return (bytes + sizeof(Vec16) - 1) / sizeof(Vec16);
}

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

// A row of bytes in this rank's own memory, moved in pieces of the widest size that it allows.
struct RowBytes {
  Address row;
  std::uint64_t bytes;
  std::uint32_t piece_bytes;
};

template <class Piece, Ops O>
ASSAY_HD Vec16 load_pieces(O& ops, Site site, const RowBytes& row, std::uint64_t first) {
  if constexpr (sizeof(Piece) == sizeof(Vec16)) {
    return ops.load(as<Vec16>, weak, site, row.row.at(first));
  } else {
    Vec16 vector{};  // bytes past the row's end stay zero
    ASSAY_UNROLL
    for (std::uint64_t at = 0; at < sizeof(Vec16); at += sizeof(Piece)) {
      if (first + at >= row.bytes) break;
      const std::uint64_t piece = ops.load(as<Piece>, weak, site, row.row.at(first + at));
      vector.word[at / 4] |= static_cast<std::uint32_t>(piece << (8 * (at % 4)));
      if constexpr (sizeof(Piece) == 8)
        vector.word[at / 4 + 1] = static_cast<std::uint32_t>(piece >> 32);
    }
    return vector;
  }
}

template <class Piece, Ops O>
ASSAY_HD void store_pieces(O& ops, Site site, const RowBytes& row, std::uint64_t first,
                           const Vec16& vector) {
  if constexpr (sizeof(Piece) == sizeof(Vec16)) {
    ops.store(weak, site, row.row.at(first), vector);
  } else {
    ASSAY_UNROLL
    for (std::uint64_t at = 0; at < sizeof(Vec16); at += sizeof(Piece)) {
      if (first + at >= row.bytes) break;
      std::uint64_t piece = vector.word[at / 4];
      if constexpr (sizeof(Piece) == 8) piece |= std::uint64_t{vector.word[at / 4 + 1]} << 32;
      ops.store(weak, site, row.row.at(first + at), static_cast<Piece>(piece >> (8 * (at % 4))));
    }
  }
}

// Vector `v` of a row, zero-padded.
template <Ops O>
ASSAY_HD Vec16 load_row_vector(O& ops, Site site, const RowBytes& row, std::uint64_t v) {
  const std::uint64_t first = v * sizeof(Vec16);
  switch (row.piece_bytes) {
    case 16:
      return load_pieces<Vec16>(ops, site, row, first);
    case 8:
      return load_pieces<std::uint64_t>(ops, site, row, first);
    case 4:
      return load_pieces<std::uint32_t>(ops, site, row, first);
    case 2:
      return load_pieces<std::uint16_t>(ops, site, row, first);
    default:
      return load_pieces<std::uint8_t>(ops, site, row, first);
  }
}

// The bytes of vector `v` that the row has.
template <Ops O>
ASSAY_HD void store_row_vector(O& ops, Site site, const RowBytes& row, std::uint64_t v,
                               const Vec16& vector) {
  const std::uint64_t first = v * sizeof(Vec16);
  switch (row.piece_bytes) {
    case 16:
      return store_pieces<Vec16>(ops, site, row, first, vector);
    case 8:
      return store_pieces<std::uint64_t>(ops, site, row, first, vector);
    case 4:
      return store_pieces<std::uint32_t>(ops, site, row, first, vector);
    case 2:
      return store_pieces<std::uint16_t>(ops, site, row, first, vector);
    default:
      return store_pieces<std::uint8_t>(ops, site, row, first, vector);
  }
}

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

// A row that waits to be sent: its vectors, of which this thread keeps the first few, and the key
// with which they travel. `Rows` has vectors() and vector(ops, v).
template <class Rows>
struct Outgoing {
  const Rows& rows;
  std::uint32_t key = 0;
  Vec16 kept[kInFlight] = {};

  // Calls for every thread of the group: reads all vectors and agrees on the lowest key that makes
  // no sentinel. The two sets that are next must be empty, before a barrier. n words spoil at most
  // n keys, so some try among n / kTried + 1 ends the search (SPEC KER-6.3); the first does in all
  // rows but those made to prevent it.
  template <Ops O>
  ASSAY_HD void choose_key(O& ops, BadKeys& bad, KeySites sites) {
    const std::uint64_t vectors = rows.vectors();
    ASSAY_UNROLL
    for (int i = 0; i < kInFlight; ++i)
      if (index(ops, i) < vectors) kept[i] = rows.vector(ops, index(ops, i));
    const std::uint64_t tries = vectors * 4 / BadKeys::kTried + 1;
    bool found = false;
    for (std::uint64_t t = 0; t < tries && !found; ++t) {
      const auto first_key = static_cast<std::uint32_t>(t * BadKeys::kTried);
      if (t > 0) {
        ops.barrier(sites.tried);
        empty_set(ops, bad, 0, sites.share);
        ops.barrier(sites.tried);
      }
      ASSAY_UNROLL
      for (int i = 0; i < kInFlight; ++i)
        if (index(ops, i) < vectors) mark_bad_keys(ops, bad, sites.share, first_key, kept[i]);
      for (std::uint64_t v = index(ops, kInFlight); v < vectors; v += ops.group_size())
        mark_bad_keys(ops, bad, sites.share, first_key, rows.vector(ops, v));
      ops.barrier(sites.scanned);
      for (std::uint32_t k = 0; k < BadKeys::kTried && !found; ++k) {
        found = ops.shared_load(sites.share, bad.word(k)) == 0;
        key = first_key + k;
      }
    }
    empty_set(ops, bad, 2, sites.share);
    bad.turn = (bad.turn + 1) % BadKeys::kSets;
  }

  // Stores all vectors, with the key, behind the headers of `slot` where `present` says so.
  template <int kTargets, Ops O>
  ASSAY_HD void send(O& ops, Site site, std::uint32_t present, const Address (&slot)[kTargets]) {
    const std::uint64_t vectors = rows.vectors();
    ASSAY_UNROLL
    for (int i = 0; i < kInFlight; ++i)
      if (index(ops, i) < vectors) store(ops, site, present, slot, index(ops, i), kept[i]);
    for (std::uint64_t v = index(ops, kInFlight); v < vectors; v += ops.group_size())
      store(ops, site, present, slot, v, rows.vector(ops, v));
  }

 private:
  template <Ops O>
  ASSAY_HD std::uint64_t index(O& ops, int turn) const {
    return ops.thread() + static_cast<std::uint64_t>(turn) * ops.group_size();
  }
  template <int kTargets, Ops O>
  ASSAY_HD void store(O& ops, Site site, std::uint32_t present, const Address (&slot)[kTargets],
                      std::uint64_t v, const Vec16& vector) const {
    const Vec16 escaped = with_key(vector, key);
    ASSAY_UNROLL
    for (int k = 0; k < kTargets; ++k)
      if ((present >> k) & 1)
        ops.store(relaxed_sys, site, slot[k].at(kHeaderBytes + v * sizeof(Vec16)), escaped);
  }
};

// Shared words with which every launch of Sentinel begins, ahead of a kernel's own.
struct SentinelShared {
  static constexpr SharedWord failed() { return {0}; }
  static constexpr SharedWord ticket() { return {1}; }
  static constexpr std::uint32_t kBadKeys = 2;
  static constexpr std::uint32_t kWords = kBadKeys + BadKeys::kWords;
};
struct LaunchSites {
  Site status, ticket, share;
};

// Thread 0 learns whether the workspace has failed and how many groups came before this one; the
// caller's next barrier tells the others. The ticket orders nothing but the roles (SPEC KER-6.5).
template <Ops O>
ASSAY_HD void begin_launch(O& ops, const GroupParams& group, std::uint64_t ticket_offset,
                           const BadKeys& bad, LaunchSites sites) {
  const Address own = group.window.of(ops.rank());
  if (ops.thread() == 0) {
    ops.shared_store(
        sites.share, SentinelShared::ticket(),
        ops.atomic_add(relaxed_gpu, sites.ticket, own.at(ticket_offset), std::uint32_t{1}));
    ops.shared_store(
        sites.share, SentinelShared::failed(),
        ops.load(as<std::uint32_t>, relaxed_gpu, sites.status, own.at(group.at.status)));
  }
  empty_set(ops, bad, 0, sites.share);
  empty_set(ops, bad, 1, sites.share);
}

// This group's number among those that wait, or `waiters` for a group that only sends: all groups
// but the last `waiters` to start (SPEC KER-6.5).
template <Ops O>
ASSAY_HD std::uint32_t waiter_number(O& ops, std::uint32_t waiters, Site share) {
  const std::uint32_t ticket = ops.shared_load(share, SentinelShared::ticket());
  const std::uint32_t senders = ops.num_ctas() - waiters;
  return ticket < senders ? waiters : ticket - senders;
}

}  // namespace bodies
}  // namespace assay::one_sided
