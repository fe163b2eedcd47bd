// The vector loops of score_bounds.hpp, compiled once per instruction set by Highway and chosen at
// run time. Decides nothing: sums in any order, which the bounds allow for.
#include <cmath>
#include <cstddef>
#include <limits>

#include "model/attention/score_bounds.hpp"
#include "model/core/contract.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/attention/score_bounds_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace assay::attention {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;  // two vectors divide every pitch
using V = hn::Vec<D>;

// Four keys by two vectors of queries.
HWY_INLINE void block(const float* queries_t, std::size_t pitch, const float* keys, std::size_t dim,
                      float* approx, V& max0, V& max1) {
  const D d;
  const std::size_t n = hn::Lanes(d);
  V s00 = hn::Zero(d), s01 = s00, s10 = s00, s11 = s00;
  V s20 = s00, s21 = s00, s30 = s00, s31 = s00;
  for (std::size_t l = 0; l < dim; ++l) {
    const V q0 = hn::LoadU(d, queries_t + l * pitch);
    const V q1 = hn::LoadU(d, queries_t + l * pitch + n);
    const V k0 = hn::Set(d, keys[l]), k1 = hn::Set(d, keys[dim + l]);
    const V k2 = hn::Set(d, keys[2 * dim + l]), k3 = hn::Set(d, keys[3 * dim + l]);
    s00 = hn::MulAdd(k0, q0, s00);
    s01 = hn::MulAdd(k0, q1, s01);
    s10 = hn::MulAdd(k1, q0, s10);
    s11 = hn::MulAdd(k1, q1, s11);
    s20 = hn::MulAdd(k2, q0, s20);
    s21 = hn::MulAdd(k2, q1, s21);
    s30 = hn::MulAdd(k3, q0, s30);
    s31 = hn::MulAdd(k3, q1, s31);
  }
  const auto put = [&](std::size_t key, V a, V b) {
    hn::StoreU(a, d, approx + key * pitch);
    hn::StoreU(b, d, approx + key * pitch + n);
    max0 = hn::Max(max0, a);
    max1 = hn::Max(max1, b);
  };
  put(0, s00, s01);
  put(1, s10, s11);
  put(2, s20, s21);
  put(3, s30, s31);
}

void scores(const float* queries_t, std::size_t pitch, const float* keys, std::size_t key_count,
            std::size_t dim, float* approx, float* row_max) {
  const D d;
  const std::size_t n = hn::Lanes(d);
  for (std::size_t i = 0; i < pitch; i += 2 * n) {
    V max0 = hn::Set(d, -std::numeric_limits<float>::infinity());
    V max1 = max0;
    for (std::size_t j = 0; j < key_count; j += 4)
      block(queries_t + i, pitch, keys + j * dim, dim, approx + j * pitch + i, max0, max1);
    hn::StoreU(max0, d, row_max + i);
    hn::StoreU(max1, d, row_max + i + n);
  }
}

float norm(const float* rows, std::size_t count, std::size_t dim) {
  const D d;
  const std::size_t n = hn::Lanes(d);
  float largest = 0;
  bool nan = false;
  for (std::size_t i = 0; i < count; ++i) {
    V sum = hn::Zero(d);
    const float* row = rows + i * dim;
    for (std::size_t l = 0; l < dim; l += n) {  // dim is a multiple of 16
      const V x = hn::LoadU(d, row + l);
      sum = hn::MulAdd(x, x, sum);
    }
    const float total = hn::GetLane(hn::SumOfLanes(d, sum));
    nan = nan || std::isnan(total);
    if (total > largest) largest = total;
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : std::sqrt(largest);
}

}  // namespace HWY_NAMESPACE
}  // namespace assay::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace assay::attention {

HWY_EXPORT(scores);
HWY_EXPORT(norm);

void approximate_scores(const float* queries_t, int pitch, const float* keys, int key_count,
                        int dim, float* approx, float* row_max) {
  CONTRACT(pitch % 32 == 0 && key_count % 4 == 0, pitch, key_count);
  HWY_DYNAMIC_DISPATCH(scores)
  (queries_t, static_cast<std::size_t>(pitch), keys, static_cast<std::size_t>(key_count),
   static_cast<std::size_t>(dim), approx, row_max);
}

float largest_norm(const float* rows, int count, int dim) {
  CONTRACT(dim % 16 == 0, dim);
  return HWY_DYNAMIC_DISPATCH(norm)(rows, static_cast<std::size_t>(count),
                                    static_cast<std::size_t>(dim));
}

}  // namespace assay::attention
#endif  // HWY_ONCE
