// Copies of rectangles, each one call of CUDA where its limits allow it.
#include "verify/subject/device_copies.hpp"

namespace assay::verify {

// Rectangles have a pitch below 2^31 (CUDA's limit); wider ones go row by row.
template <class Rectangle>
Status DeviceCopies::by_rows(std::uint64_t pitch, const Rectangle& rectangle) const {
  constexpr std::uint64_t kPitchMax = 0x7FFFFFFF;
  const auto rows = static_cast<std::size_t>(num_ranks);
  if (pitch <= kPitchMax) return rectangle(std::size_t{0}, rows);
  for (std::size_t row = 0; row < rows; ++row) ASSAY_CHECK(rectangle(row, std::size_t{1}));
  return Done{};
}

Status DeviceCopies::in(const DeviceArea& to, const std::byte* from, std::uint64_t bytes) const {
  if (bytes == 0) return Done{};
  return by_rows(to.pitch, [&](std::size_t row, std::size_t rows) -> Status {
    void* const target = cuda::pointer(to.first.at(row * to.pitch));
    const std::byte* const source = from + row * bytes;
    ASSAY_CUDA(rows == 1 ? cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream)
                         : cudaMemcpy2DAsync(target, to.pitch, source, bytes, bytes, rows,
                                             cudaMemcpyHostToDevice, stream),
               "copy to the device");
    return Done{};
  });
}

Status DeviceCopies::out(std::byte* to, const DeviceArea& from, std::uint64_t bytes) const {
  if (bytes == 0) return Done{};
  return by_rows(from.pitch, [&](std::size_t row, std::size_t rows) -> Status {
    std::byte* const target = to + row * bytes;
    const void* const source = cuda::pointer(from.first.at(row * from.pitch));
    ASSAY_CUDA(rows == 1 ? cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream)
                         : cudaMemcpy2DAsync(target, bytes, source, from.pitch, bytes, rows,
                                             cudaMemcpyDeviceToHost, stream),
               "copy from the device");
    return Done{};
  });
}

Status DeviceCopies::fill(const DeviceArea& area, int value, std::uint64_t bytes) const {
  if (bytes == 0) return Done{};
  return by_rows(area.pitch, [&](std::size_t row, std::size_t rows) -> Status {
    void* const target = cuda::pointer(area.first.at(row * area.pitch));
    ASSAY_CUDA(rows == 1 ? cudaMemsetAsync(target, value, bytes, stream)
                         : cudaMemset2DAsync(target, area.pitch, value, bytes, rows, stream),
               "filling device memory");
    return Done{};
  });
}

}  // namespace assay::verify
