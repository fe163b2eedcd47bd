// From a checked decode to its kernels' parameters, and onto the stream (SPEC CUD-7.2, CUD-7.5).
#include <fmt/format.h>

#include <algorithm>

#include "cuda/kernels/attention/decode_params.cuh"
#include "cuda/launch/attention_fill.hpp"
#include "cuda/launch/attention_launch.hpp"
#include "cuda/launch/decode_kernels.hpp"
#include "cuda/launch/decode_sizes.hpp"
#include "cuda/launch/device.hpp"

namespace assay::cuda {
namespace {

using attention_kernels::DecodeParams;
using attention_kernels::PieceEnd;

void fill_decode(const AttentionCall& c, const DecodeSizes& sizes, DecodeParams& p) {
  p.q = c.q.data;
  p.q_request_stride = c.q.request_stride;
  p.q_row_stride = c.q.row_stride;
  p.q_head_stride = c.q.head_stride;
  p.kv_heads = c.kv_heads;
  p.q_len_most = static_cast<std::int32_t>(sizes.q_len);
  p.kv_len_most = static_cast<std::int32_t>(sizes.kv_len);
  p.out_f16 = c.out_dtype == Dtype::kF16;
  p.partials = {static_cast<std::int32_t>(sizes.units), static_cast<std::int32_t>(sizes.chunks),
                static_cast<std::int32_t>(sizes.rows)};
  auto* const partials = static_cast<std::byte*>(c.workspace) + kDecodePartialsAt;
  p.partial_ends = reinterpret_cast<PieceEnd*>(partials);
  p.partial_out = reinterpret_cast<float*>(
      partials + static_cast<std::size_t>(sizes.entries * sizes.rows) * sizeof(PieceEnd));
}

// `early`: the kernel may begin while the one before it still runs, and waits for it inside.
Status launch(const void* function, std::int64_t blocks, int threads, int shared_bytes, bool early,
              DecodeParams& params, cudaStream_t on, const char* what) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(blocks)),
                                  dim3(static_cast<unsigned>(threads)),
                                  static_cast<std::size_t>(shared_bytes),
                                  on,
                                  &attribute,
                                  early ? 1u : 0u};
  void* arguments[] = {&params};
  ASSAY_CUDA(cudaLaunchKernelExC(&config, function, arguments), what);
  return Done{};
}

}  // namespace

Status launch_decode(const AttentionCall& call, Stream stream) {
  ASSAY_CHECK(check_decode(call));
  return launch_decode_kernel(call, find_decode_kernel(call), {}, stream);
}

Status launch_decode_kernel(const AttentionCall& call, const DecodeKernel& kernel,
                            const DecodeSplit& split, Stream stream) {
  ASSAY_CHECK(check_decode(call));
  if (kernel.function == nullptr)
    return unsupported(fmt::format("this build has no decode kernel for {} and head_dim {}",
                                   dtype_name(call.dtype), call.head_dim));
  const auto on = static_cast<cudaStream_t>(stream.handle);
  if (call.decisions != nullptr) {
    const std::size_t cells = static_cast<std::size_t>(call.requests) *
                              static_cast<std::size_t>(call.kv_heads) *
                              static_cast<std::size_t>(call.decision_units) *
                              static_cast<std::size_t>(call.decision_tiles);
    ASSAY_CUDA(cudaMemsetAsync(call.decisions, 0, cells, on), "zeroing decisions");
  }
  const DecodeSizes sizes = decode_sizes(call);
  const std::int64_t units = std::int64_t{call.requests} * call.kv_heads * sizes.units;
  if (units == 0) return Done{};
  ASSAY_TRY(const AttentionDevice device, hopper("decode"));
  const std::int64_t room =
      split.blocks > 0 ? split.blocks : std::int64_t{device.multiprocessors} * kernel.blocks;
  const std::int64_t each = split.chunks_per_piece > 0
                                ? split.chunks_per_piece
                                : decode_chunks_per_piece(units, sizes.chunks, room);
  const std::int64_t splits = (sizes.chunks + each - 1) / each;
  const std::int64_t work = units * splits;

  DecodeParams params{};
  ASSAY_CHECK(fill_params(call, device, kDecodeKvTile, 1, kernel.fetch_bytes, params.call));
  fill_decode(call, sizes, params);
  params.chunks_per_piece = static_cast<std::int32_t>(each);
  ASSAY_CUDA(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kernel.shared_bytes),
             "preparing the decode kernel");
  // Where every block has one piece, nobody asks for another.
  params.takes_more = work > room;
  if (params.takes_more != 0)
    ASSAY_CUDA(cudaMemsetAsync(params.call.next_work, 0, sizeof *params.call.next_work, on),
               "zeroing the count of work");
  // Behind a kernel only, not behind zeroing.
  const bool early = kernel.begins_early && params.takes_more == 0 && call.decisions == nullptr;
  ASSAY_CHECK(launch(kernel.function, std::min(work, room), kernel.threads, kernel.shared_bytes,
                     early, params, on, "launching the decode kernel"));
  if (splits == 1) return Done{};
  const std::int64_t warps =
      attention_kernels::merge_warps(call.requests, call.kv_heads, params.partials, call.head_dim);
  return launch(kernel.merge, (warps + kernel.merge_warps - 1) / kernel.merge_warps,
                kernel.merge_warps * 32, 0, true, params, on, "launching the merge kernel");
}

int decode_rows(const AttentionCall& call) {
  const DecodeSizes sizes = decode_sizes(call);
  return static_cast<int>(sizes.units > 1 ? attention_kernels::kUnitRows : sizes.rows);
}

DecodeKernel find_decode_kernel(const AttentionCall& call) {
  const int rows = decode_rows(call);
  switch (call.dtype) {
    case Dtype::kBf16:
      return find_decode_kernel_bf16(call.head_dim, rows);
    case Dtype::kF16:
      return find_decode_kernel_f16(call.head_dim, rows);
    case Dtype::kF8E4m3:
      return find_decode_kernel_fp8(call.head_dim, rows);
    default:
      return {};
  }
}

}  // namespace assay::cuda
