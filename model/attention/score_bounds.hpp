// Bounds on a tile's scores that make its skipping certain without the exact product, at a tenth of
// its cost. Decides SPEC ATT-5.11. A tile that is skipped leaves only its record, and the record
// names one row: that row's maximum is computed exactly, of the others it is enough to know that
// they agree and are more willing. Whatever is not certain is left to the exact product. The host's
// only; 16-bit inputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/attention/unit_scratch.hpp"

namespace assay::attention {

// approx[j * pitch + i] is about sum over d of keys[j, d] * queries_t[d, i], in f32 and any order;
// row_max[i] the largest of it over j. pitch is a multiple of 32; all numbers are finite.
void approximate_scores(const float* queries_t, int pitch, const float* keys, int key_count,
                        int dim, float* approx, float* row_max);
// The largest Euclidean norm of a row; NaN or Inf if there is one in it, or nearly so.
float largest_norm(const float* rows, int count, int dim);

// |exact - approximate| is at most this for the raw score of a query and a key of such norms, of
// 16-bit elements and a chain that apply() accepts (SPEC ATT-5.11).
double score_error(const UnitView& view, double query_norm, double key_norm);

// One unit's bounds; a unit's rows and keys come from its scratch.
class ScoreBounds {
 public:
  // Whether bounds can be had: a chain of 16-bit products that keeps at least 24 bits, and a
  // threshold between 2^-100 and 2^100.
  static bool apply(const UnitView& view);

  // Whether it pays to look: tiles are being skipped, or nobody knows yet. A look that is in vain
  // costs a tenth of the product.
  bool worth_a_look() const { return looked_ < 4 || 4 * settled_ >= looked_ || waited_ >= 8; }

  // The least willing row and its exact maximum, in the unit of scores, if all rows agree for
  // certain; else row is -1. `factor` is what raw scores are multiplied by for that unit.
  struct Settled {
    int row = -1;
    F32 local{0};
  };
  Settled settle(const UnitView& view, const UnitScratch<std::uint16_t>& scratch, int rows,
                 const RowState* states, F32 factor);
  void wait() { ++waited_; }
  std::int64_t settled() const { return settled_; }

 private:
  struct Bound {
    double lower = 0, upper = 0;  // of the margin
    double error = 0;             // of the row's scores
  };
  void prepare(const UnitView& view, const UnitScratch<std::uint16_t>& scratch, int rows);
  Bound bound_of(const UnitView& view, int row, F32 reference, double factor, double error) const;
  F32 exact_maximum(const UnitView& view, const UnitScratch<std::uint16_t>& scratch, int row,
                    double error, F32 factor, int& dots) const;

  int pitch_ = 0;
  std::vector<float> queries_t_, keys_, approx_, row_max_;
  std::vector<double> query_norms_;
  std::int64_t looked_ = 0, settled_ = 0, waited_ = 0;
};

}  // namespace assay::attention
