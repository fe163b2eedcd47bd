// See compare.hpp.
#include "verify/golden/compare.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace assay::verify {
namespace {

bool is_float(ElementFormat format) {
  return format != ElementFormat::kBytes && format != ElementFormat::kInt32 &&
         format != ElementFormat::kUe8m0;
}

bool is_u8_stand_in(const GoldenTensor& legal, const TensorView& got) {
  if (got.dtype != Dtype::kU8 || got.shape.empty()) return false;
  Shape shape = legal.shape;
  if (legal.dtype == Dtype::kF4) {
    if (shape.empty() || shape.back() % 2 != 0) return false;
    shape.back() /= 2;
  } else if (dtype_bits(legal.dtype) != 8) {
    return false;
  }
  return legal.only_size ? got.bytes.size() == legal.bytes.size() : got.shape == shape;
}

std::vector<Coordinate> place_of(const GoldenTensor& tensor, std::uint64_t index) {
  if (tensor.where) return tensor.where(index);
  std::vector<Coordinate> where(tensor.shape.size());
  for (std::size_t axis = tensor.shape.size(); axis-- > 0;) {
    where[axis] = {tensor.axes[axis], static_cast<std::int64_t>(index % tensor.shape[axis])};
    index /= tensor.shape[axis];
  }
  return where;
}

std::uint32_t element(ElementFormat format, std::span<const std::byte> bytes, std::uint64_t index) {
  return load_element(format, bytes.data(), static_cast<std::int64_t>(index));
}

bool is_compared(const GoldenTensor& tensor, std::uint64_t index) {
  return tensor.compared.empty() || tensor.compared[index] != 0;
}

}  // namespace

Expected<TensorView> find_got(const GoldenTensor& legal, const TensorFile& got) {
  auto found = got.tensor(legal.name);
  if (!found) return found.error();
  const TensorView view = *found;
  if (is_u8_stand_in(legal, view)) return view;
  const bool size_fits =
      legal.only_size ? view.bytes.size() == legal.bytes.size() : view.shape == legal.shape;
  if (view.dtype == legal.dtype && size_fits) return view;
  return bad_input(fmt::format("{}: tensor {} is {} {}; expected is {} {}", got.path(), legal.name,
                               dtype_name(view.dtype), shape_text(view.shape),
                               dtype_name(legal.dtype), shape_text(legal.shape)));
}

std::uint64_t compared_elements(const GoldenTensor& legal) {
  if (legal.compared.empty()) return legal.num_elements();
  return static_cast<std::uint64_t>(
      std::count_if(legal.compared.begin(), legal.compared.end(), [](auto c) { return c != 0; }));
}

std::optional<Mismatch> first_difference(const GoldenTensor& legal, const TensorView& got,
                                         const std::string& check) {
  Mismatch mismatch;
  UlpHistogram histogram;
  mismatch.wrong = 0;
  for (std::uint64_t i = 0; i < legal.num_elements(); ++i) {
    if (!is_compared(legal, i)) continue;
    const std::uint32_t expected = element(legal.format, legal.bytes, i);
    const std::uint32_t actual = element(legal.format, got.bytes, i);
    if (is_float(legal.format)) histogram.add(legal.format, actual, expected);
    if (actual == expected) continue;
    if (mismatch.wrong++ > 0) continue;
    mismatch.where = place_of(legal, i);
    mismatch.values = verify::Values{legal.format, actual, expected};
  }
  if (mismatch.wrong == 0) return std::nullopt;
  mismatch.check = check;
  mismatch.clause = legal.clause;
  mismatch.sentence = fmt::format("tensor {} has other bits than the only legal ones", legal.name);
  mismatch.total = static_cast<std::int64_t>(compared_elements(legal));
  mismatch.unit = legal.format == ElementFormat::kBytes ? "bytes" : "elements";
  if (is_float(legal.format)) mismatch.ulp = histogram;
  return mismatch;
}

bool agrees(const GoldenAnswer& answer, const TensorFile& got) {
  if (!answer.findings.empty()) return false;
  for (const GoldenTensor& tensor : answer.tensors) {
    if (tensor.optional && !got.has(tensor.name)) continue;
    const auto view = find_got(tensor, got);
    if (!view) return false;
    for (std::uint64_t i = 0; i < tensor.num_elements(); ++i) {
      if (is_compared(tensor, i) &&
          element(tensor.format, tensor.bytes, i) != element(tensor.format, view->bytes, i))
        return false;
    }
  }
  return true;
}

}  // namespace assay::verify
