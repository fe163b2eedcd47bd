// See attention_maps.hpp.
#include "cuda/launch/attention_maps.hpp"

#include <fmt/format.h>

#include "cuda/launch/device.hpp"

namespace assay::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

Expected<Encode> encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;  // the release that has it
  ASSAY_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                              cudaEnableDefault, &found),
             "asking the driver for cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    return unsupported("the driver has no cuTensorMapEncodeTiled; CUDA 12 or newer is needed");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

Status tensor_map(std::string_view name, const AttentionRows& rows, Dtype dtype, int head_dim,
                  int heads, std::int64_t requests, int box_rows, int fetch_bytes,
                  CUtensorMap& map) {
  static const Expected<Encode> encode = encoder();
  if (!encode) return encode.error();
  const cuuint64_t bytes = dtype_bits(dtype) / 8;
  // A stride along an axis of one is not used, but must be legal.
  const auto stride = [&](std::int64_t extent, std::int64_t elements) -> cuuint64_t {
    return extent > 1 ? static_cast<cuuint64_t>(elements) * bytes
                      : static_cast<cuuint64_t>(head_dim) * bytes;
  };
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(head_dim),
                                 static_cast<cuuint64_t>(rows.rows), static_cast<cuuint64_t>(heads),
                                 static_cast<cuuint64_t>(requests)};
  const cuuint64_t strides[3] = {stride(rows.rows, rows.row_stride),
                                 stride(heads, rows.head_stride),
                                 stride(requests, rows.request_stride)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(128 / bytes),
                             static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  // Bytes are moved as they are; only their number counts.
  const CUresult result =
      (*encode)(&map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                4, const_cast<void*>(rows.data), extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                fetch_bytes == 256   ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                : fetch_bytes == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                     : CU_TENSOR_MAP_L2_PROMOTION_NONE,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return bad_input(fmt::format(
        "the driver refuses a map of {} (error {}): {} elements, {} rows, {} heads, {} requests, "
        "strides {}, {} and {} bytes",
        name, static_cast<int>(result), head_dim, rows.rows, heads, requests, strides[0],
        strides[1], strides[2]));
  return Done{};
}

}  // namespace assay::cuda
