// From a checked call to a kernel's parameters, and onto the stream (SPEC CUD-6.2, CUD-6.7).
#include "cuda/launch/attention_launch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/launch/attention_fill.hpp"
#include "cuda/launch/attention_kernels.hpp"
#include "cuda/launch/attention_maps.hpp"
#include "cuda/launch/device.hpp"

namespace assay::cuda {
namespace {

using attention_kernels::OffsetRule;
using attention_kernels::PrefillParams;

// The longest request of the key side, as far as the host knows.
std::int64_t kv_len_bound(const AttentionCall& c) {
  if (c.lengths.kv_len_max > 0) return c.lengths.kv_len_max;
  if (c.pages.block_table != nullptr) return c.pages.table_stride * c.k.rows;
  return c.lengths.first_kv != nullptr && c.requests > 0
             ? std::max<std::int64_t>(1, c.k.rows / c.requests)
             : c.k.rows;
}

// Heads whose keys and values fill at most half of L2: the rest is what other blocks still read and
// what the halves of the cache hold twice (SPEC CUD-6.2).
int section_heads(const AttentionCall& c, std::int64_t l2_bytes) {
  const std::int64_t row = std::int64_t{c.head_dim} * dtype_bits(c.dtype) / 8;
  const std::int64_t bytes = std::max<std::int64_t>(1, kv_len_bound(c) * row * 2);
  const std::int64_t kv_heads = std::clamp<std::int64_t>(l2_bytes / 2 / bytes, 1, c.kv_heads);
  return static_cast<int>(kv_heads) * (c.q_heads / c.kv_heads);
}

// At least as many pieces of work as there are.
std::int64_t work_bound(const AttentionCall& c, int rows_per_work) {
  const auto tiles = [&](std::int64_t rows) { return (rows + rows_per_work - 1) / rows_per_work; };
  const std::int64_t longest =
      c.lengths.q_len_max > 0 ? std::min<std::int64_t>(c.lengths.q_len_max, c.q.rows) : c.q.rows;
  std::int64_t bound = tiles(longest) * c.requests;
  if (c.lengths.first_q != nullptr) bound = std::min(bound, tiles(c.q.rows) + c.requests);
  return bound * c.q_heads;
}

}  // namespace

Expected<AttentionDevice> hopper(std::string_view kernel) {
  AttentionDevice d;
  ASSAY_CUDA(cudaGetDevice(&d.index), "asking for the current device");
  const auto ask = [&](cudaDeviceAttr attribute) {
    int value = 0;
    cudaDeviceGetAttribute(&value, attribute, d.index);
    return value;
  };
  const int major = ask(cudaDevAttrComputeCapabilityMajor);
  const int minor = ask(cudaDevAttrComputeCapabilityMinor);
  if (major != 9 || minor != 0)
    return unsupported(
        fmt::format("device {} is sm_{}{}; the {} kernel needs sm_90, whose "
                    "matrix instructions no other architecture has",
                    d.index, major, minor, kernel));
  d.multiprocessors = ask(cudaDevAttrMultiProcessorCount);
  d.l2_bytes = ask(cudaDevAttrL2CacheSize);
  return d;
}

Status fill_params(const AttentionCall& c, const AttentionDevice& device, int tile, int cluster,
                   int fetch_bytes, PrefillParams& p) {
  const bool packed_q = c.lengths.first_q != nullptr;
  const bool packed_kv = c.lengths.first_kv != nullptr;
  const bool paged = c.pages.block_table != nullptr;
  ASSAY_CHECK(tensor_map("q", c.q, c.dtype, c.head_dim, c.q_heads, packed_q ? 1 : c.requests,
                         attention_kernels::kUnitRows, fetch_bytes, p.q));
  const int share = tile / cluster;
  const int box_rows = paged ? static_cast<int>(std::min<std::int64_t>(c.k.rows, share)) : share;
  const std::int64_t kv_requests = paged ? c.pages.num_pages : packed_kv ? 1 : c.requests;
  // Without a key nothing is loaded, but a map must be of something.
  const bool no_keys = c.k.rows == 0;
  ASSAY_CHECK(tensor_map("k", no_keys ? c.q : c.k, c.dtype, c.head_dim, no_keys ? 1 : c.kv_heads,
                         no_keys ? 1 : kv_requests, box_rows, fetch_bytes, p.k));
  ASSAY_CHECK(tensor_map("v", no_keys ? c.q : c.v, c.dtype, c.head_dim, no_keys ? 1 : c.kv_heads,
                         no_keys ? 1 : kv_requests, box_rows, fetch_bytes, p.v));
  p.out = static_cast<std::uint16_t*>(const_cast<void*>(c.out.data));
  p.out_request_stride = c.out.request_stride;
  p.out_row_stride = c.out.row_stride;
  p.out_head_stride = c.out.head_stride;
  p.lse = static_cast<float*>(const_cast<void*>(c.lse.data));
  p.lse_request_stride = c.lse.request_stride;
  p.lse_row_stride = c.lse.row_stride;
  p.lse_head_stride = c.lse.head_stride;

  const AttentionLengths& l = c.lengths;
  const std::int64_t kv_rows = paged ? c.pages.table_stride * c.k.rows : c.k.rows;
  p.lengths.first_q = l.first_q;
  p.lengths.first_kv = l.first_kv;
  p.lengths.q_len = l.q_len;
  p.lengths.kv_len = l.kv_len;
  p.lengths.q_offset = l.q_offset;
  p.lengths.q_len_all = static_cast<std::int32_t>(c.q.rows);
  p.lengths.kv_len_all = paged ? l.kv_len_max : static_cast<std::int32_t>(kv_rows);
  p.lengths.q_rows = static_cast<std::int32_t>(c.q.rows);
  p.lengths.kv_rows = static_cast<std::int32_t>(kv_rows);
  p.lengths.offset_rule = c.offset == AttentionOffset::kBottomRight ? OffsetRule::kBottomRight
                          : c.offset == AttentionOffset::kTopLeft   ? OffsetRule::kTopLeft
                                                                    : OffsetRule::kGiven;
  if (paged) {
    p.pages.table = c.pages.block_table;
    p.pages.table_stride = static_cast<std::int32_t>(c.pages.table_stride);
    p.pages.num_pages = static_cast<std::int32_t>(c.pages.num_pages);
    p.pages.page_rows = static_cast<std::int32_t>(c.k.rows);
  }
  p.pages.box_rows = box_rows;
  p.threshold.factors = c.threshold_values;
  p.threshold.factor = c.threshold_value;
  p.threshold.divides = c.threshold == AttentionThreshold::kFactor;
  p.threshold.enabled = c.threshold != AttentionThreshold::kOff;
  p.mask = c.mask;
  p.mask_size = c.mask_size;
  p.requests = c.requests;
  p.q_heads = c.q_heads;
  p.group = c.q_heads / c.kv_heads;
  p.section_heads = section_heads(c, device.l2_bytes);
  p.cluster = cluster;
  // log2(e) and the order of the products are SPEC ATT-5.1's.
  p.scale_log2 = c.scale * 1.4426950216293335f;
  p.scale_log2_inverse = 1.0f / p.scale_log2;
  p.v_scale = c.v_scale;
  p.next_work = static_cast<std::uint32_t*>(c.workspace);
  p.counters = c.counters;
  p.decisions = c.decisions;
  p.decision_units = c.decision_units;
  p.decision_tiles = c.decision_tiles;
  p.timeout_ns = c.timeout_ns;
  p.record = c.record;
  return Done{};
}

PrefillMode prefill_mode(const AttentionCall& call) {
  if (call.decisions != nullptr) return PrefillMode::kTrace;
  return call.threshold == AttentionThreshold::kOff ? PrefillMode::kDense : PrefillMode::kSkip;
}

Status launch_prefill(const AttentionCall& call, Stream stream) {
  return launch_prefill_kernel(call, find_prefill_kernel(call), stream);
}

Status launch_prefill_kernel(const AttentionCall& call, const PrefillKernel& kernel,
                             Stream stream) {
  ASSAY_CHECK(check_prefill(call));
  if (kernel.function == nullptr)
    return unsupported(fmt::format("this build has no prefill kernel for {} and head_dim {}",
                                   dtype_name(call.dtype), call.head_dim));
  const auto on = static_cast<cudaStream_t>(stream.handle);
  if (call.decisions != nullptr) {
    const std::size_t cells = static_cast<std::size_t>(call.requests) *
                              static_cast<std::size_t>(call.q_heads) *
                              static_cast<std::size_t>(call.decision_units) *
                              static_cast<std::size_t>(call.decision_tiles);
    ASSAY_CUDA(cudaMemsetAsync(call.decisions, 0, cells, on), "zeroing decisions");
  }
  const std::int64_t work = work_bound(call, kernel.rows_per_work);
  if (work == 0) return Done{};
  ASSAY_TRY(const AttentionDevice device, hopper("prefill"));
  PrefillParams params{};
  // Neighbours of an even group read the same keys (SPEC CUD-6.9).
  const int cluster =
      call.q_heads / call.kv_heads % kernel.max_cluster == 0 ? kernel.max_cluster : 1;
  ASSAY_CHECK(fill_params(call, device, prefill_kv_tile(call.head_dim), cluster, 256, params));
  ASSAY_CUDA(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kernel.shared_bytes),
             "preparing the prefill kernel");
  ASSAY_CUDA(cudaMemsetAsync(params.next_work, 0, sizeof *params.next_work, on),
             "zeroing the count of work");
  const std::int64_t room = device.multiprocessors / cluster * cluster;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(std::min(work, room))),
                                  dim3(static_cast<unsigned>(kernel.threads)),
                                  static_cast<std::size_t>(kernel.shared_bytes),
                                  on,
                                  &attribute,
                                  cluster > 1 ? 1u : 0u};
  void* arguments[] = {&params};
  ASSAY_CUDA(cudaLaunchKernelExC(&config, kernel.function, arguments),
             "launching the prefill kernel");
  return Done{};
}

PrefillKernel find_prefill_kernel(const AttentionCall& call) {
  const PrefillMode mode = prefill_mode(call);
  if (call.dtype == Dtype::kF8E4m3)
    return find_prefill_kernel_fp8(call.out_dtype, call.head_dim, mode);
  switch (call.head_dim) {
    case 64:
      return find_prefill_kernel_64(call.dtype, mode);
    case 128:
      return find_prefill_kernel_128(call.dtype, mode);
    case 256:
      return find_prefill_kernel_256(call.dtype, mode);
    default:
      return {};
  }
}

}  // namespace assay::cuda
