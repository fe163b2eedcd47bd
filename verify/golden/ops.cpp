// The table of operations, and the small helpers that they share.
#include <fmt/format.h>

#include "model/core/text.hpp"
#include "verify/golden/golden.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {

std::span<const GoldenOp> golden_ops() {
  static const std::vector<GoldenOp> ops = {mma_op(),      mufu_op(),     convert_op(),
                                            quantize_op(), dispatch_op(), combine_op(),
                                            attention_op()};
  return ops;
}

std::string golden_op_names() {
  std::vector<std::string_view> names;
  for (const GoldenOp& op : golden_ops()) names.push_back(op.name);
  return joined(names);
}

Expected<const GoldenOp*> find_golden_op(std::string_view name) {
  for (const GoldenOp& op : golden_ops())
    if (op.name == name) return &op;
  return bad_input(fmt::format("OP is {}; allowed are {}", in_quotes(name), golden_op_names()));
}

ElementFormat element_format(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return ElementFormat::kF32;
    case Dtype::kF16:
      return ElementFormat::kF16;
    case Dtype::kBf16:
      return ElementFormat::kBf16;
    case Dtype::kF8E4m3:
      return ElementFormat::kE4m3;
    case Dtype::kF8E5m2:
      return ElementFormat::kE5m2;
    case Dtype::kF8E8m0:
      return ElementFormat::kUe8m0;
    case Dtype::kF4:
      return ElementFormat::kE2m1;
    case Dtype::kI32:
      return ElementFormat::kInt32;
    default:
      return ElementFormat::kBytes;
  }
}

std::vector<std::string> plain_axes(std::size_t rank) {
  if (rank == 1) return {"element"};
  if (rank == 2) return {"row", "column"};
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < rank; ++i) axes.push_back("axis" + std::to_string(i));
  return axes;
}

std::uint64_t GoldenTensor::num_elements() const {
  return format == ElementFormat::kE2m1
             ? bytes.size() * 2
             : bytes.size() / static_cast<std::size_t>(format_bytes(format));
}

}  // namespace assay::verify
