// Moving and reading rows, for both protocols: in vectors of 16 bytes, each in pieces of the widest
// size that its row allows, several vectors of a thread under way at once. Decides how bytes move,
// not where to: a row goes to its targets whole, tail included (SPEC KER-1.4).
#pragma once

#include "cuda/kernels/one_sided/params.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Vectors that a thread has in flight at once; 256 threads keep rows of 16 KiB in registers. Half
// of them by Sentinel, whose launches have few tokens: what counts there is how much code a group
// has to fetch, once in a launch.
inline constexpr int kInFlight = 4;
inline constexpr int kSentinelInFlight = 2;

// A row of bytes in this rank's own memory, read in pieces of the widest size that it allows.
struct RowBytes {
  Address row;
  std::uint64_t bytes;
  std::uint32_t piece_bytes;
};

// 4 bytes at a time keep all of a vector under way at once; less is seldom, and four times the
// code.
template <class Piece, Ops O>
ASSAY_HD Vec16 load_pieces(O& ops, Site site, const RowBytes& row, std::uint64_t first) {
  constexpr std::uint64_t kAtOnce = sizeof(Piece) >= 4 ? sizeof(Vec16) : 4;
  std::uint64_t half[2] = {};  // bytes past the row's end stay zero
  ASSAY_NO_UNROLL
  for (std::uint64_t part = 0; part < sizeof(Vec16); part += kAtOnce) {
    ASSAY_UNROLL
    for (std::uint64_t within = 0; within < kAtOnce; within += sizeof(Piece)) {
      const std::uint64_t at = part + within;
      if (first + at >= row.bytes) break;
      const std::uint64_t piece = ops.load(as<Piece>, weak, site, row.row.at(first + at));
      const std::uint64_t bits = piece << (8 * (at % 8));
      half[0] |= at < 8 ? bits : 0;
      half[1] |= at < 8 ? 0 : bits;
    }
  }
  return Vec16{{static_cast<std::uint32_t>(half[0]), static_cast<std::uint32_t>(half[0] >> 32),
                static_cast<std::uint32_t>(half[1]), static_cast<std::uint32_t>(half[1] >> 32)}};
}

// Vector `v` of a row, zero-padded.
template <Ops O>
ASSAY_HD Vec16 load_row_vector(O& ops, Site site, const RowBytes& row, std::uint64_t v) {
  const std::uint64_t first = v * sizeof(Vec16);
  switch (row.piece_bytes) {
    case 16:
      return ops.load(as<Vec16>, weak, site, row.row.at(first));
    case 8:  // as four, which take no longer: they are under way together
    case 4:
      return load_pieces<std::uint32_t>(ops, site, row, first);
    case 2:
      return load_pieces<std::uint16_t>(ops, site, row, first);
    default:
      return load_pieces<std::uint8_t>(ops, site, row, first);
  }
}

// Copies of one row: those whose bit in `present` is set. Indexed by constants only, so that they
// stay in registers.
template <int kCopies>
struct RowCopies {
  Address row[kCopies];
  std::uint32_t present;
  std::uint64_t bytes;
  std::uint32_t piece_bytes;  // of the widest size that all of them allow
};

template <class Piece, int kCopies, class A, Ops O>
ASSAY_HD void store_pieces(O& ops, A access, Site site, const RowCopies<kCopies>& copies,
                           std::uint64_t first, const Vec16& vector) {
  const std::uint64_t low = vector.word[0] | std::uint64_t{vector.word[1]} << 32;
  const std::uint64_t high = vector.word[2] | std::uint64_t{vector.word[3]} << 32;
  ASSAY_NO_UNROLL
  for (std::uint64_t at = 0; at < sizeof(Vec16); at += sizeof(Piece)) {
    if (first + at >= copies.bytes) break;
    const auto piece = static_cast<Piece>((at < 8 ? low : high) >> (8 * (at % 8)));
    ASSAY_UNROLL
    for (int k = 0; k < kCopies; ++k)
      if ((copies.present >> k) & 1) ops.store(access, site, copies.row[k].at(first + at), piece);
  }
}

// Vector `v` to every copy, of a row of whole vectors.
template <int kCopies, class A, Ops O>
ASSAY_HD void store_whole_vector(O& ops, A access, Site site, const RowCopies<kCopies>& copies,
                                 std::uint64_t v, const Vec16& vector) {
  ASSAY_UNROLL
  for (int k = 0; k < kCopies; ++k)
    if ((copies.present >> k) & 1)
      ops.store(access, site, copies.row[k].at(v * sizeof(Vec16)), vector);
}

// The bytes of vector `v` that the row has, to every copy.
template <int kCopies, class A, Ops O>
ASSAY_HD void store_row_vector(O& ops, A access, Site site, const RowCopies<kCopies>& copies,
                               std::uint64_t v, const Vec16& vector) {
  const std::uint64_t first = v * sizeof(Vec16);
  switch (copies.piece_bytes) {
    case 16:
      return store_whole_vector(ops, access, site, copies, v, vector);
    case 8:
      return store_pieces<std::uint64_t>(ops, access, site, copies, first, vector);
    case 4:
      return store_pieces<std::uint32_t>(ops, access, site, copies, first, vector);
    case 2:
      return store_pieces<std::uint16_t>(ops, access, site, copies, first, vector);
    default:
      return store_pieces<std::uint8_t>(ops, access, site, copies, first, vector);
  }
}

// The vectors of all payloads of a token (TokenVectors).
struct TokenRows {
  const DispatchParams& p;
  std::uint32_t token;
  Site read;
  ASSAY_HD std::uint32_t vectors() const { return p.vectors.count; }
  ASSAY_HD WholeVectors whole() const { return p.vectors.whole; }
  // The payload that vector `v` belongs to; v becomes the vector within its row.
  ASSAY_HD std::uint32_t payload_of(std::uint32_t& v) const {
    std::uint32_t i = 0;
    for (; i + 1 < p.num_payloads; ++i) {
      const auto here = static_cast<std::uint32_t>(landing_vectors(p.payload[i].bytes_per_token));
      if (v < here) break;
      v -= here;
    }
    return i;
  }
  ASSAY_HD Address whole_row() const { return row_of(p.vectors.whole_payload).row; }
  template <Ops O>
  ASSAY_HD Vec16 vector(O& ops, std::uint32_t v) const {
    const std::uint32_t payload = payload_of(v);
    return load_row_vector(ops, read, row_of(payload), v);
  }

 private:
  ASSAY_HD RowBytes row_of(std::uint32_t payload) const {
    const std::uint64_t bytes = p.payload[payload].bytes_per_token;
    return {p.payload[payload].rows.at(token * bytes), bytes, p.payload[payload].vector_bytes};
  }
};

// What a thread has of a row under way: from vector `first` on, every group_size-th. `Rows` has
// vectors(), how many there are, whole(), those that one load brings, whole_row(), where they lie,
// `read`, the site, and, where there are others than whole ones, vector(ops, v), which loads any.
// Loads of whole vectors are issued one behind the other; what uses a vector comes later, so that
// they take one latency together. All other vectors come behind them, one by one, by code that is
// there once.
template <class Rows, int kDepth>
struct InFlight {
  const Rows& rows;
  Vec16 kept[kDepth] = {};

  template <Ops O>
  ASSAY_HD void load(O& ops, std::uint32_t first) {
    const Address row = rows.whole_row();
    std::uint32_t others = 0;
    ASSAY_UNROLL
    for (int i = 0; i < kDepth; ++i) {
      const std::uint32_t v = index(ops, first, i);
      if (rows.whole().has(v))
        kept[i] = ops.load(as<Vec16>, weak, rows.read,
                           row.at(std::uint64_t{v - rows.whole().first} * sizeof(Vec16)));
      else if (v < rows.vectors())
        others |= 1u << i;
    }
    if constexpr (requires { rows.vector(ops, first); }) load_others(ops, first, others);
  }
  template <Ops O>
  ASSAY_HD void load_others(O& ops, std::uint32_t first, std::uint32_t others) {
    ASSAY_NO_UNROLL
    for (int i = 0; others >> i != 0; ++i) {
      if (((others >> i) & 1) == 0) continue;
      const Vec16 vector = rows.vector(ops, index(ops, first, i));
      ASSAY_UNROLL
      for (int j = 0; j < kDepth; ++j)  // kept[i] = vector, by constant indices
        if (j == i) kept[j] = vector;
    }
  }
  // Calls use(v, vector) for what load(ops, first) has loaded.
  template <Ops O, class Use>
  ASSAY_HD void each(O& ops, std::uint32_t first, const Use& use) const {
    ASSAY_UNROLL
    for (int i = 0; i < kDepth; ++i)
      if (index(ops, first, i) < rows.vectors()) use(index(ops, first, i), kept[i]);
  }
  // The same, but with others(v, vector) for vectors that are not whole.
  template <Ops O, class Whole, class Others>
  ASSAY_HD void each(O& ops, std::uint32_t first, const Whole& whole, const Others& other) const {
    std::uint32_t others = 0;
    ASSAY_UNROLL
    for (int i = 0; i < kDepth; ++i) {
      const std::uint32_t v = index(ops, first, i);
      if (rows.whole().has(v))
        whole(v, kept[i]);
      else if (v < rows.vectors())
        others |= 1u << i;
    }
    ASSAY_NO_UNROLL
    for (int i = 0; others >> i != 0; ++i) {
      if (((others >> i) & 1) == 0) continue;
      Vec16 vector{};
      ASSAY_UNROLL
      for (int j = 0; j < kDepth; ++j)  // vector = kept[i], by constant indices
        if (j == i) vector = kept[j];
      other(index(ops, first, i), vector);
    }
  }
  // The same for all vectors of this thread's, of which the first are loaded.
  template <Ops O, class Use>
  ASSAY_HD void all(O& ops, const Use& use) {
    for (std::uint32_t first = ops.thread();;) {
      each(ops, first, use);
      first += step(ops);
      if (first >= rows.vectors()) return;
      load(ops, first);
    }
  }

  template <Ops O>
  ASSAY_HD static std::uint32_t step(O& ops) {
    return static_cast<std::uint32_t>(kDepth) * ops.group_size();
  }

  template <Ops O>
  ASSAY_HD static std::uint32_t index(O& ops, std::uint32_t first, int turn) {
    return first + static_cast<std::uint32_t>(turn) * ops.group_size();
  }
};

// Element e of a vector, lowest address first.
template <BitFormat T, class WordType>
ASSAY_HD constexpr T element(const WordType& word, int e) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  using Bits = decltype(T::bits);
  if constexpr (sizeof(WordType) == sizeof(Vec16)) {
    return T{static_cast<Bits>(word.word[e * kBits / 32] >> (e * kBits % 32))};
  } else {
    return T{static_cast<Bits>(word >> (e * kBits % (8 * static_cast<int>(sizeof(WordType)))))};
  }
}

// Stores kCount elements that lie side by side, by the widest words that their size gives.
template <int kCount, BitFormat T, Ops O>
ASSAY_HD void store_elements(O& ops, Site site, Address address, const T (&elements)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  if constexpr (kBytes >= 16) {
    ASSAY_UNROLL
    for (int v = 0; v < kBytes / 16; ++v) {
      Vec16 vector{};
      ASSAY_UNROLL
      for (int e = 0; e < 4 * kPerWord; ++e)
        vector.word[e / kPerWord] |= static_cast<std::uint32_t>(elements[v * 4 * kPerWord + e].bits)
                                     << (32 / kPerWord * (e % kPerWord));
      ops.store(weak, site, address.at(static_cast<std::uint64_t>(v) * 16), vector);
    }
  } else if constexpr (kBytes >= 4) {
    ASSAY_UNROLL
    for (int w = 0; w < kBytes / 4; ++w) {
      std::uint32_t word = 0;
      ASSAY_UNROLL
      for (int e = 0; e < kPerWord; ++e)
        word |= static_cast<std::uint32_t>(elements[w * kPerWord + e].bits) << (32 / kPerWord * e);
      ops.store(weak, site, address.at(static_cast<std::uint64_t>(w) * 4), word);
    }
  } else {
    ASSAY_UNROLL
    for (int e = 0; e < kCount; ++e)
      ops.store(weak, site, address.at(static_cast<std::uint64_t>(e) * sizeof(T)),
                elements[e].bits);
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
