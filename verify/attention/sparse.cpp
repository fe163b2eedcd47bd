// Address space without memory behind it. Decides nothing.
#include "verify/attention/sparse.hpp"

#include <sys/mman.h>

#include <cstring>

namespace assay::verify {

SparseMemory::SparseMemory(std::size_t reach_bytes) : reach_(reach_bytes) {
  void* map = ::mmap(nullptr, 2 * reach_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map != MAP_FAILED) map_ = static_cast<std::byte*>(map);
}

SparseMemory::~SparseMemory() {
  if (map_ != nullptr) ::munmap(map_, 2 * reach_);
}

attention::Rows spread_rows(attention::Rows rows, const Tensor& tensor, std::int64_t stride,
                            const SparseMemory& memory) {
  rows.base = memory.base();
  rows.row_stride = stride;
  rows.page_stride = rows.page_rows * stride;
  for (std::int64_t i = 0; i < tensor.rows; ++i)
    std::memcpy(memory.base() + i * stride * static_cast<std::int64_t>(tensor.element_bytes()),
                tensor.bytes.data() + static_cast<std::size_t>(i) * tensor.row_bytes(),
                tensor.row_bytes());
  return rows;
}

}  // namespace assay::verify
