// Attention on the current device: what a call is, its checks, and its launch. Decides SPEC CUD-6.5
// to CUD-6.7 and CUD-7.5: what is refused, in which words, and what a launch does to a stream.
// Which bits come out is the profile's (SPEC ATT-6). Needs neither NCCL nor, to check, a GPU.
//
//   AttentionCall call;
//   call.dtype = call.out_dtype = Dtype::kBf16; ...
//   ASSAY_CHECK(launch_prefill(call, stream));
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/launch/one_sided_launch.hpp"
#include "model/attention/tile_schedule.hpp"
#include "model/core/dtype.hpp"
#include "model/core/expected.hpp"

namespace assay::cuda {

struct WaitRecord;

// Rows of a tensor in device memory, strides in elements. Row i of head h of request r lies at
// r * request_stride + i * row_stride + h * head_stride; head_dim elements are contiguous. Packed:
// all requests' rows follow each other, AttentionLengths says where each begins, and
// request_stride is not used. Pages: "request" is a page.
struct AttentionRows {
  const void* data = nullptr;
  std::int64_t rows = 0;  // packed: of all requests; else of each request, or of a page
  std::int64_t row_stride = 0, head_stride = 0, request_stride = 0;
};

// Lengths and positions of requests. Arrays lie in device memory and are read by the kernel, so a
// recorded graph may be replayed with others; what they hold is forced into the tensors' rows, not
// refused (SPEC CUD-6.5).
struct AttentionLengths {
  const std::int32_t* first_q = nullptr;   // [requests + 1], ascending: q, out and lse are packed
  const std::int32_t* first_kv = nullptr;  // [requests + 1]: k and v are packed
  const std::int32_t* q_len = nullptr;     // [requests]; null: as first_q says, or q.rows
  const std::int32_t* kv_len =
      nullptr;  // [requests]; null: as first_kv says, k.rows, or kv_len_max
  const std::int32_t* q_offset = nullptr;  // [requests], with OffsetRule::kGiven
  std::int32_t q_len_max = 0;              // 0: whatever the rows hold; else nobody is longer
  std::int32_t kv_len_max = 0;  // likewise; with pages and without kv_len, everybody's length
};

// Position of query row 0 among the keys (SPEC ATT-1.1): kv_len - q_len, 0, or lengths.q_offset.
enum class AttentionOffset : std::uint8_t { kBottomRight, kTopLeft, kGiven };

// k and v in pages of page_rows rows: key i of request r lies in page
// block_table[r * table_stride + i / page_rows].
struct AttentionPages {
  const std::int32_t* block_table = nullptr;  // device memory; null: no pages
  std::int64_t table_stride = 0;
  std::int64_t num_pages = 0;
};

// kFactor: lambda = value / kv_len; kLambda: value is lambda. Values of 1 and more count as 1
// (SPEC ATT-6.3).
enum class AttentionThreshold : std::uint8_t { kOff, kFactor, kLambda };

struct AttentionCall {
  Dtype dtype = Dtype::kBf16;      // of q, k and v: BF16, F16 or F8_E4M3
  Dtype out_dtype = Dtype::kBf16;  // dtype; BF16 or F16 for F8_E4M3
  int requests = 1;
  int q_heads = 1;
  int kv_heads = 1;    // divides q_heads
  int head_dim = 128;  // 64 (not F8_E4M3), 128 or 256; of values too
  AttentionRows q, k, v;
  AttentionPages pages;
  AttentionLengths lengths;
  attention::MaskKind mask = attention::MaskKind::kFull;
  std::int32_t mask_size = 0;  // of windows and chunks
  AttentionOffset offset = AttentionOffset::kBottomRight;
  float scale = 0;  // of q . k, times the scales of q and k if they have any
  float v_scale = 1;

  AttentionThreshold threshold = AttentionThreshold::kOff;
  float threshold_value = 0;
  // [requests] in device memory instead of the value. NaN and negative ones skip nothing but tiles
  // that no row sees.
  const float* threshold_values = nullptr;

  AttentionRows out;  // rows and layout as q's
  AttentionRows lse;  // F32, log2 units; head_dim is 1; data null: none
  // [q_heads, 2], of a decode [kv_heads, 2], in device memory: tiles visited and tiles skipped are
  // added. Null: not counted.
  std::uint64_t* counters = nullptr;
  // [requests, q_heads, decision_units, decision_tiles], of a decode with kv_heads, in device
  // memory: 0 not visited, 1 kept, 2 skipped (SPEC ATT-5.5). Null: none, which is faster.
  std::uint8_t* decisions = nullptr;
  // At least the longest q_len / 64, of a decode q_len * (q_heads / kv_heads) / 64, rounded up.
  std::int32_t decision_units = 0;
  std::int32_t decision_tiles = 0;  // at least the longest kv_len / kv_tile, rounded up

  // kAttentionWorkspaceBytes, of a decode decode_workspace_bytes(), in device memory; calls that
  // may run at once need one each.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;            // of a decode
  std::uint64_t timeout_ns = 10'000'000'000;  // of one wait inside the kernel
  WaitRecord* record = nullptr;  // mapped host memory that tells which wait gave up, or null
};

inline constexpr std::size_t kAttentionWorkspaceBytes = 16;

// Keys in a tile of the prefill kernel's profile.
constexpr int prefill_kv_tile(int head_dim) { return head_dim > 128 ? 64 : 128; }

// Refuses what no kernel here can mean or serve, in a sentence. Reads no device memory.
Status check_prefill(const AttentionCall& call);

// Checks, and enqueues assay-prefill-sm90 on the stream: nothing is waited for, and all of it can
// be recorded in a graph, pointers and host values as they are now (SPEC CUD-6.7). Errors: those of
// check_prefill; unsupported: a device that is not sm_90; what CUDA says.
Status launch_prefill(const AttentionCall& call, Stream stream);

// Keys in a tile of the decode kernel's profile.
inline constexpr int kDecodeKvTile = 64;

// What a decode needs in call.workspace: room for the chunks of every request as long as the call
// allows, so give lengths.q_len_max and kv_len_max, which also choose the kernel: one for at most
// 16 rows, q_len_max * (q_heads / kv_heads), and one for more. 0 if the sizes are out of bounds,
// which check_decode says better.
std::size_t decode_workspace_bytes(const AttentionCall& call);

// Likewise for assay-decode-sm90. Queries are those of the last few tokens of each request; rows of
// heads that share keys are packed. Lengths in device memory are forced into q_len_max and
// kv_len_max too.
Status check_decode(const AttentionCall& call);
Status launch_decode(const AttentionCall& call, Stream stream);

}  // namespace assay::cuda
