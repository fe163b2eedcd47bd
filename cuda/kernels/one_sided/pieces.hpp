// How Fence's dispatch moves a token: the longest payload of 16-byte pieces as vectors, several of
// a thread under way at once, the others in pieces of the widest size that each allows, a team of
// threads for each. Decides who moves what (SPEC KER-1.4), not where to.
#pragma once

#include "cuda/kernels/one_sided/rows.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// One piece of 16, 8, 4, 2 or 1 bytes, in the low bytes of a vector. What is loaded is not looked
// at, so that lanes with pieces of several sizes wait once.
template <Ops O>
ASSAY_HD Vec16 load_piece(O& ops, Site site, Address from, std::uint32_t bytes) {
  Vec16 piece{};
  if (bytes == 16) {
    piece = ops.load(as<Vec16>, weak, site, from);
  } else if (bytes == 8) {
    const std::uint64_t word = ops.load(as<std::uint64_t>, weak, site, from);
    piece.word[0] = static_cast<std::uint32_t>(word);
    piece.word[1] = static_cast<std::uint32_t>(word >> 32);
  } else if (bytes == 4) {
    piece.word[0] = ops.load(as<std::uint32_t>, weak, site, from);
  } else if (bytes == 2) {
    piece.word[0] = ops.load(as<std::uint16_t>, weak, site, from);
  } else {
    piece.word[0] = ops.load(as<std::uint8_t>, weak, site, from);
  }
  return piece;
}

template <class Piece, int kCopies, class A, Ops O>
ASSAY_HD void store_to_all(O& ops, A access, Site site, const Address (&to)[kCopies],
                           std::uint32_t present, Piece piece) {
  ASSAY_UNROLL
  for (int k = 0; k < kCopies; ++k)
    if ((present >> k) & 1) ops.store(access, site, to[k], piece);
}

// Piece `number` of piece_bytes to every copy.
template <int kCopies, class A, Ops O>
ASSAY_HD void store_piece(O& ops, A access, Site site, const RowCopies<kCopies>& copies,
                          std::uint32_t number, const Vec16& piece) {
  Address to[kCopies];
  ASSAY_UNROLL
  for (int k = 0; k < kCopies; ++k)
    to[k] = copies.row[k].at(std::uint64_t{number} * copies.piece_bytes);
  const std::uint32_t low = piece.word[0];
  if (copies.piece_bytes == 16)
    store_to_all(ops, access, site, to, copies.present, piece);
  else if (copies.piece_bytes == 8)
    store_to_all(ops, access, site, to, copies.present, low | std::uint64_t{piece.word[1]} << 32);
  else if (copies.piece_bytes == 4)
    store_to_all(ops, access, site, to, copies.present, low);
  else if (copies.piece_bytes == 2)
    store_to_all(ops, access, site, to, copies.present, static_cast<std::uint16_t>(low));
  else
    store_to_all(ops, access, site, to, copies.present, static_cast<std::uint8_t>(low));
}

// The vectors of a token's longest payload of 16-byte pieces.
struct WholeRow {
  const DispatchParams& p;
  std::uint32_t token;
  Site read;
  ASSAY_HD std::uint32_t vectors() const { return p.vectors.whole.count; }
  ASSAY_HD WholeVectors whole() const { return {0, p.vectors.whole.count}; }
  ASSAY_HD Address whole_row() const {
    const PayloadParams& payload = p.payload[p.vectors.whole_payload];
    return payload.rows.at(std::uint64_t{token} * payload.bytes_per_token);
  }
};

// The pieces of a token's other payloads. Each payload has a team of neighbouring threads, so that
// those that run together do the same; the last threads come first, as they have the fewest whole
// vectors. A thread's first piece can be under way before it is known where it goes.
struct OtherRows {
  const DispatchParams& p;
  std::uint32_t token;
  Site read;
  Vec16 first = {};

  // A thread's place among the teams. A group with fewer threads is one team.
  struct Place {
    std::uint32_t team, teams, lane, lanes;
  };
  template <Ops O>
  ASSAY_HD static Place place(O& ops) {
    const std::uint32_t size = ops.group_size(), from_last = size - 1 - ops.thread();
    if (size < kPieceTeam) return {0, 1, from_last, size};
    return {from_last / kPieceTeam, size / kPieceTeam, from_last % kPieceTeam, kPieceTeam};
  }
  ASSAY_HD std::uint32_t others() const {
    return p.num_payloads - (p.vectors.whole.count != 0 ? 1 : 0);
  }
  ASSAY_HD std::uint32_t payload_of(std::uint32_t other) const {
    return other + (p.vectors.whole.count != 0 && other >= p.vectors.whole_payload ? 1 : 0);
  }
  template <Ops O>
  ASSAY_HD Vec16 piece(O& ops, std::uint32_t payload, std::uint32_t number) const {
    const PayloadParams& from = p.payload[payload];
    return load_piece(ops, read,
                      from.rows.at(std::uint64_t{token} * from.bytes_per_token +
                                   std::uint64_t{number} * from.vector_bytes),
                      from.vector_bytes);
  }
  template <Ops O>
  ASSAY_HD void load(O& ops) {
    const Place at = place(ops);
    if (at.team >= at.teams || at.team >= others()) return;
    const std::uint32_t payload = payload_of(at.team);
    if (at.lane < pieces_of(p.payload[payload])) first = piece(ops, payload, at.lane);
  }
  // Calls use(payload, number, piece) for all pieces of this thread's, of which load() has loaded
  // the first: one of each payload of its team, then its share of long rows, on which the whole
  // group is at work.
  template <Ops O, class Use>
  ASSAY_HD void each(O& ops, const Use& use) const {
    const Place at = place(ops);
    if (at.team < at.teams) {
      ASSAY_NO_UNROLL
      for (std::uint32_t other = at.team; other < others(); other += at.teams) {
        const std::uint32_t payload = payload_of(other);
        if (at.lane >= pieces_of(p.payload[payload])) continue;
        use(payload, at.lane, other == at.team ? first : piece(ops, payload, at.lane));
      }
    }
    if (p.vectors.most_other_pieces <= at.lanes) return;
    ASSAY_NO_UNROLL
    for (std::uint32_t other = 0; other < others(); ++other) {
      const std::uint32_t payload = payload_of(other);
      ASSAY_NO_UNROLL
      for (std::uint32_t number = at.lanes + ops.thread(); number < pieces_of(p.payload[payload]);
           number += ops.group_size())
        use(payload, number, piece(ops, payload, number));
    }
  }
};

}  // namespace bodies
}  // namespace assay::one_sided
