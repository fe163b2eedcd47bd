// The refusals of attention calls (SPEC CUD-6.5, CUD-7.5). Every sentence has the value and what is
// allowed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/launch/decode_sizes.hpp"

namespace assay::cuda {
namespace {

// The copy engine's maps (CUDA driver API, cuTensorMapEncodeTiled): addresses and strides are
// multiples of 16 bytes, strides below 2^40 bytes. Coordinates are 32-bit, and a tile may begin at
// the last row and reach beyond it.
constexpr std::int64_t kStrideBytes = 16;
constexpr std::int64_t kStrideBytesMax = (std::int64_t{1} << 40) - 1;
constexpr std::int64_t kRowsMax = (std::int64_t{1} << 31) - 1 - 4096;

// What checks need to know of a kernel.
struct Asked {
  std::string_view name;
  int tile;    // of keys
  int packed;  // query rows of a token that share a unit
};

std::string_view mask_name(attention::MaskKind kind) {
  switch (kind) {
    case attention::MaskKind::kFull:
      return "full";
    case attention::MaskKind::kCausal:
      return "causal";
    case attention::MaskKind::kWindow:
      return "window";
    case attention::MaskKind::kChunked:
      return "chunked";
  }
  return "?";
}

int bytes_of(Dtype dtype) { return static_cast<int>(dtype_bits(dtype) / 8); }

Status check_stride(std::string_view tensor, std::string_view axis, std::int64_t stride,
                    Dtype dtype) {
  const std::int64_t unit = kStrideBytes / bytes_of(dtype);
  const std::int64_t most = kStrideBytesMax / bytes_of(dtype);
  if (stride >= unit && stride <= most && stride % unit == 0) return Done{};
  return bad_input(
      fmt::format("the {} stride of {} is {} elements; allowed are multiples of {} from {} to {}",
                  axis, tensor, stride, unit, unit, most));
}

Status check_address(std::string_view what, const void* data, std::size_t alignment) {
  if (data == nullptr) return bad_input(fmt::format("{} is null", what));
  if (reinterpret_cast<std::uintptr_t>(data) % alignment == 0) return Done{};
  return bad_input(fmt::format("{} is at {}; allowed are multiples of {} bytes", what,
                               fmt::ptr(data), alignment));
}

// A stride along an axis of one is not looked at: libraries put anything there.
Status check_rows(std::string_view name, const AttentionRows& rows, Dtype dtype, int heads,
                  bool uses_request_stride) {
  if (rows.rows < 0 || rows.rows > kRowsMax)
    return bad_input(fmt::format("{} has {} rows; allowed are 0 to {}", name, rows.rows, kRowsMax));
  if (rows.rows == 0) return Done{};
  ASSAY_CHECK(check_address(name, rows.data, 16));
  if (rows.rows > 1) ASSAY_CHECK(check_stride(name, "row", rows.row_stride, dtype));
  if (heads > 1) ASSAY_CHECK(check_stride(name, "head", rows.head_stride, dtype));
  if (uses_request_stride) ASSAY_CHECK(check_stride(name, "request", rows.request_stride, dtype));
  return Done{};
}

Status check_shape(const AttentionCall& c, const Asked& asked) {
  const bool fp8 = c.dtype == Dtype::kF8E4m3;
  if (c.dtype != Dtype::kBf16 && c.dtype != Dtype::kF16 && !fp8)
    return unsupported(fmt::format("q, k and v are {}; the {} kernel has BF16, F16 and F8_E4M3",
                                   dtype_name(c.dtype), asked.name));
  if (c.out_dtype != Dtype::kBf16 && c.out_dtype != Dtype::kF16)
    return unsupported(fmt::format("out is {}; the {} kernel writes BF16 and F16",
                                   dtype_name(c.out_dtype), asked.name));
  if (!fp8 && c.out_dtype != c.dtype)
    return unsupported(
        fmt::format("out is {} and the inputs {}; the {} kernel writes 16-bit "
                    "inputs' own type",
                    dtype_name(c.out_dtype), dtype_name(c.dtype), asked.name));
  if (c.requests < 0)
    return bad_input(fmt::format("{} requests; allowed are 0 and more", c.requests));
  if (c.q_heads < 1 || c.kv_heads < 1 || c.q_heads % c.kv_heads != 0)
    return bad_input(
        fmt::format("{} query heads and {} key heads; allowed are positive numbers, "
                    "the first a multiple of the second",
                    c.q_heads, c.kv_heads));
  if (c.head_dim != 128 && c.head_dim != 256 && (c.head_dim != 64 || fp8))
    return unsupported(fmt::format("head_dim is {}; the {} kernel has {}128 and 256", c.head_dim,
                                   asked.name, fp8 ? "" : "64, "));
  if ((c.mask == attention::MaskKind::kWindow || c.mask == attention::MaskKind::kChunked) &&
      c.mask_size < 1)
    return bad_input(fmt::format("the {} mask's size is {}; allowed are 1 and more",
                                 mask_name(c.mask), c.mask_size));
  return Done{};
}

Status check_numbers(const AttentionCall& c) {
  const float scale_log2 = c.scale * 1.4426950216293335f;
  // Its reciprocal is computed too, and neither may be subnormal or infinite.
  if (!(c.scale > 0) || !std::isnormal(scale_log2) || !std::isnormal(1.0f / scale_log2))
    return bad_input(
        fmt::format("scale is {}; allowed are positive numbers that stay normal, and so do their "
                    "reciprocals, when multiplied by log2(e)",
                    c.scale));
  if (!(c.v_scale > 0) || std::isinf(c.v_scale))
    return bad_input(fmt::format("v_scale is {}; allowed are positive numbers", c.v_scale));
  if (c.threshold != AttentionThreshold::kOff && c.threshold_values == nullptr &&
      !(c.threshold_value >= 0))
    return bad_input(fmt::format("threshold is {}; allowed are 0 and more", c.threshold_value));
  return Done{};
}

Status check_pages(const AttentionCall& c, const Asked& asked) {
  if (c.pages.block_table == nullptr) return Done{};
  const std::int64_t page_rows = c.k.rows;
  const int tile = asked.tile;
  if (c.lengths.first_kv != nullptr)
    return bad_input("keys lie in pages, and lengths.first_kv says that they are packed");
  if (c.v.rows != page_rows)
    return bad_input(fmt::format("pages hold {} rows of k and {} of v; they must be equal",
                                 page_rows, c.v.rows));
  const bool within =
      page_rows >= 8 && page_rows % 8 == 0 && page_rows <= tile && tile % page_rows == 0;
  if (!within && !(page_rows > 0 && page_rows % tile == 0))
    return unsupported(
        fmt::format("pages hold {} rows; the {} kernel has 8, 16 and so on up "
                    "to its tile of {} keys, and multiples of that",
                    page_rows, asked.name, tile));
  if (c.pages.num_pages < 1 || c.pages.num_pages > kRowsMax)
    return bad_input(
        fmt::format("there are {} pages; allowed are 1 to {}", c.pages.num_pages, kRowsMax));
  if (c.pages.table_stride < 1 || c.pages.table_stride > kRowsMax / page_rows)
    return bad_input(fmt::format("the block table has {} entries per request; allowed are 1 to {}",
                                 c.pages.table_stride, kRowsMax / page_rows));
  if (c.lengths.kv_len == nullptr && c.lengths.kv_len_max < 1)
    return bad_input(
        "keys lie in pages, and neither lengths.kv_len nor lengths.kv_len_max is given");
  return Done{};
}

Status check_lengths(const AttentionCall& c) {
  const AttentionLengths& l = c.lengths;
  if (l.q_len_max < 0 || l.kv_len_max < 0)
    return bad_input(fmt::format("q_len_max is {} and kv_len_max {}; allowed are 0 and more",
                                 l.q_len_max, l.kv_len_max));
  if (c.pages.block_table == nullptr && c.k.rows != c.v.rows)
    return bad_input(fmt::format("k has {} rows and v {}; they must be equal", c.k.rows, c.v.rows));
  if (c.offset == AttentionOffset::kGiven && l.q_offset == nullptr)
    return bad_input("offsets are to be given, and lengths.q_offset is null");
  return Done{};
}

Status check_outputs(const AttentionCall& c, const Asked& asked) {
  const bool padded = c.lengths.first_q == nullptr;
  if (c.out.rows != c.q.rows)
    return bad_input(
        fmt::format("out has {} rows and q {}; they must be equal", c.out.rows, c.q.rows));
  ASSAY_CHECK(check_rows("out", c.out, c.out_dtype, c.q_heads, padded && c.requests > 1));
  if (c.lse.data != nullptr) {
    ASSAY_CHECK(check_address("lse", c.lse.data, 4));
    if (c.lse.rows != c.q.rows)
      return bad_input(
          fmt::format("lse has {} rows and q {}; they must be equal", c.lse.rows, c.q.rows));
    if (c.lse.row_stride < 0 || c.lse.head_stride < 0 || c.lse.request_stride < 0)
      return bad_input(
          fmt::format("lse has row stride {}, head stride {} and request stride {}; "
                      "allowed are 0 and more",
                      c.lse.row_stride, c.lse.head_stride, c.lse.request_stride));
  }
  if (c.counters != nullptr) ASSAY_CHECK(check_address("counters", c.counters, 8));
  ASSAY_CHECK(check_address("workspace", c.workspace, 4));
  if (c.decisions == nullptr) return Done{};
  const DecodeSizes most = decode_sizes(c);
  const std::int64_t units =
      (most.q_len * asked.packed + attention_kernels::kUnitRows - 1) / attention_kernels::kUnitRows;
  const std::int64_t tiles = (most.kv_len + asked.tile - 1) / asked.tile;
  if (c.decision_units < units || c.decision_tiles < tiles)
    return bad_input(
        fmt::format("decisions have {} units and {} tiles a head; q_len up to {} and "
                    "kv_len up to {} need {} and {}",
                    c.decision_units, c.decision_tiles, most.q_len, most.kv_len, units, tiles));
  return Done{};
}

// Work is counted in 32 bits, with the blocks of a device to spare.
Status check_work(const AttentionCall& c) {
  const std::int64_t per_head = c.q.rows / (2 * attention_kernels::kUnitRows) + 1;
  const std::int64_t tiles =
      c.lengths.first_q != nullptr ? per_head + c.requests : per_head * c.requests;
  if (tiles * c.q_heads <= std::int64_t{1} << 30) return Done{};
  return unsupported(
      fmt::format("{} query tiles of {} heads; at most 2^30 together", tiles, c.q_heads));
}

// Pieces are counted in 32 bits, and so are the packed rows of a request.
Status check_decode_work(const AttentionCall& c) {
  const DecodeSizes most = decode_sizes(c);
  if (most.q_len * (c.q_heads / c.kv_heads) > std::int64_t{1} << 30)
    return unsupported(fmt::format(
        "q_len up to {} for each of {} heads that share keys; at most 2^30 rows together",
        most.q_len, c.q_heads / c.kv_heads));
  if (most.units * most.chunks * c.kv_heads > (std::int64_t{1} << 30) / std::max(1, c.requests))
    return unsupported(fmt::format(
        "{} requests of {} key heads, {} units and {} chunks each; at most 2^30 together",
        c.requests, c.kv_heads, most.units, most.chunks));
  ASSAY_CHECK(check_address("workspace", c.workspace, 16));
  if (c.workspace_bytes >= most.workspace_bytes) return Done{};
  return bad_input(fmt::format(
      "workspace has {} bytes; {} requests of q_len up to {} and kv_len up to {} need {}",
      c.workspace_bytes, c.requests, most.q_len, most.kv_len, most.workspace_bytes));
}

Status check_call(const AttentionCall& c, const Asked& asked) {
  ASSAY_CHECK(check_shape(c, asked));
  ASSAY_CHECK(check_numbers(c));
  const bool several = c.requests > 1;
  ASSAY_CHECK(check_rows("q", c.q, c.dtype, c.q_heads, several && c.lengths.first_q == nullptr));
  const bool pages = c.pages.block_table != nullptr;
  ASSAY_CHECK(check_pages(c, asked));
  ASSAY_CHECK(check_rows("k", c.k, c.dtype, c.kv_heads,
                         pages || (several && c.lengths.first_kv == nullptr)));
  ASSAY_CHECK(check_rows("v", c.v, c.dtype, c.kv_heads,
                         pages || (several && c.lengths.first_kv == nullptr)));
  ASSAY_CHECK(check_lengths(c));
  return check_outputs(c, asked);
}

}  // namespace

Status check_prefill(const AttentionCall& c) {
  ASSAY_CHECK(check_call(c, {"prefill", prefill_kv_tile(c.head_dim), 1}));
  return check_work(c);
}

Status check_decode(const AttentionCall& c) {
  ASSAY_CHECK(
      check_call(c, {"decode", kDecodeKvTile, c.kv_heads > 0 ? c.q_heads / c.kv_heads : 1}));
  return check_decode_work(c);
}

}  // namespace assay::cuda
