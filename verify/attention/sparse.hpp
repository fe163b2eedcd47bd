// Tensors whose rows lie so far apart that offsets do not fit 32 bits, in memory that is touched
// only where rows are. Decides nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verify/attention/cases.hpp"

namespace assay::verify {

// Address space for elements [-reach, reach) around `base()`, zero until written.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t reach_bytes);
  ~SparseMemory();
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool ok() const { return map_ != nullptr; }  // false: the system has not so much address space
  std::byte* base() const { return map_ + reach_; }

 private:
  std::byte* map_ = nullptr;
  std::size_t reach_;
};

// Copies a tensor's rows, `stride` elements apart, to memory that reaches beyond the last one.
// Returns `rows`, the tensor's rows of its first request or their pages, in that memory.
attention::Rows spread_rows(attention::Rows rows, const Tensor& tensor, std::int64_t stride,
                            const SparseMemory& memory);

}  // namespace assay::verify
