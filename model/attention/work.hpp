// What one attention call costs, counted and not measured: multiply-adds of its two products, bytes
// it must read, and what leaving tiles out can save of them. Decides which count is meant by which
// name (SPEC ATT-9); times are a benchmark's business.
#pragma once

#include <cstdint>

#include "model/attention/tile_schedule.hpp"
#include "model/core/expected.hpp"

namespace assay::attention {

// `batch` requests of one shape.
struct CallShape {
  std::int64_t batch = 1;
  int q_heads = 1;
  int kv_heads = 1;  // divides q_heads
  int head_dim = 128;
  int v_dim = 128;
  std::int32_t q_len = 1;
  std::int32_t kv_len = 1;
  Mask mask;
  int element_bytes = 2;  // of q, k and v
  int out_element_bytes = 2;
};

// Both products, 2 operations a multiply-add. All heads and requests together.
struct Work {
  double pairs = 0;         // query rows times the keys that each sees
  double flops = 0;         // of those pairs: 2 * (head_dim + v_dim) each (SPEC ATT-9.1)
  double flops_dense = 0;   // of all q_len * kv_len pairs
  double flops_halved = 0;  // half of that: how causal calls are counted in published figures
  double k_bytes = 0;       // every key head once a request, whatever the group
  double v_bytes = 0;
  double q_bytes = 0;
  double out_bytes = 0;

  double kv_bytes() const { return k_bytes + v_bytes; }
};
// Errors: a size that is not positive, q_heads that kv_heads does not divide. Cost: q_len.
Expected<Work> work_of(const CallShape& shape);

// 1e12 of `count` a second.
inline double tera_per_second(double count, double time_us) { return count / time_us * 1e-6; }

// The most that leaving out the share `skipped` of tiles can gain where only the second half of the
// work (the product with V, or the bytes of V) falls away with a tile: 2 / (2 - skipped). Not a
// bound where the exponential, which falls away too, is what limits (SPEC ATT-9.3).
inline double speedup_bound(double skipped) { return 2 / (2 - skipped); }
// The inverse for people who can only count matrix instructions: which share was skipped if `ratio`
// of the dense run's instructions were issued.
inline double skipped_by_instructions(double ratio) { return 2 * (1 - ratio); }

}  // namespace assay::attention
