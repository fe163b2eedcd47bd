// See decode_sizes.hpp.
#include "cuda/launch/decode_sizes.hpp"

#include <algorithm>

namespace assay::cuda {

DecodeSizes decode_sizes(const AttentionCall& c) {
  const auto least = [](std::int64_t limit, std::int64_t rows) {
    return limit > 0 ? std::min(limit, rows) : rows;
  };
  DecodeSizes s;
  const bool pages = c.pages.block_table != nullptr;
  s.q_len = least(c.lengths.q_len_max, c.q.rows);
  s.kv_len = least(c.lengths.kv_len_max, pages ? c.pages.table_stride * c.k.rows : c.k.rows);
  const std::int64_t rows = s.q_len * (c.q_heads / std::max(1, c.kv_heads));
  constexpr std::int64_t kUnit = attention_kernels::kUnitRows;
  constexpr std::int64_t kChunk = attention_kernels::kChunkTiles * attention_kernels::kDecodeTile;
  s.units = (rows + kUnit - 1) / kUnit;
  s.chunks = std::max<std::int64_t>(1, (s.kv_len + kChunk - 1) / kChunk);
  s.rows = (std::min(rows, kUnit) + 1) / 2 * 2;
  s.entries = s.chunks > 1 ? std::int64_t{c.requests} * c.kv_heads * s.units * s.chunks : 0;
  s.workspace_bytes = kDecodePartialsAt + static_cast<std::size_t>(s.entries * s.rows) *
                                              (static_cast<std::size_t>(c.head_dim) * 4 + 8);
  return s;
}

std::size_t decode_workspace_bytes(const AttentionCall& c) {
  return decode_sizes(c).workspace_bytes;
}

// Time in units of what memory needs for a chunk of one unit. Blocks that all have a piece share
// memory's rate, and so do fewer, down to half of them, whose copies in flight still cover its
// latency. A chunk that waits costs the writing and reading of 8 KiB beside 1 MiB of keys and
// values (16 rows, bf16, head_dim 128): 1/64. A merge costs 3 us beside the 0.24 us of a chunk at
// 4.4 TB/s: 12.
std::int64_t decode_chunks_per_piece(std::int64_t units, std::int64_t chunks, std::int64_t blocks) {
  constexpr std::int64_t kParts = 64, kMerge = 12 * kParts;
  std::int64_t best = chunks, least = -1;
  for (std::int64_t each = chunks; each >= 1; --each) {
    const std::int64_t splits = (chunks + each - 1) / each;
    const std::int64_t pieces = units * splits, rest = pieces % blocks;
    std::int64_t time = (pieces - rest) * each * kParts;
    if (rest != 0) time += std::max(rest, blocks / 2) * each * kParts;
    if (splits > 1) time += kMerge + units * (chunks - each);
    if (least >= 0 && time >= least) continue;
    least = time;
    best = each;
  }
  return best;
}

}  // namespace assay::cuda
