// Counting. Decides SPEC ATT-9.1 and ATT-9.2.
#include "model/attention/work.hpp"

#include <fmt/format.h>

namespace assay::attention {

Expected<Work> work_of(const CallShape& s) {
  for (const auto& [name, value] : {std::pair<const char*, std::int64_t>{"batch", s.batch},
                                    {"q_heads", s.q_heads},
                                    {"kv_heads", s.kv_heads},
                                    {"head_dim", s.head_dim},
                                    {"v_dim", s.v_dim},
                                    {"q_len", s.q_len},
                                    {"kv_len", s.kv_len},
                                    {"element_bytes", s.element_bytes},
                                    {"out_element_bytes", s.out_element_bytes}})
    if (value <= 0) return bad_input(fmt::format("{} is {}; it must be positive", name, value));
  if (s.q_heads % s.kv_heads != 0)
    return bad_input(
        fmt::format("q_heads is {}, which kv_heads {} does not divide", s.q_heads, s.kv_heads));
  // All counts are whole numbers far below 2^53 for calls that fit a GPU, hence exact in doubles.
  double seen = 0;
  for (std::int32_t row = 0; row < s.q_len; ++row)
    seen += visible_keys(s.mask, row, s.kv_len).count();
  const double batch = static_cast<double>(s.batch);
  const double per_pair = 2.0 * (s.head_dim + s.v_dim);
  Work w;
  w.pairs = batch * s.q_heads * seen;
  w.flops = w.pairs * per_pair;
  w.flops_dense = batch * s.q_heads * per_pair * s.q_len * s.kv_len;
  w.flops_halved = w.flops_dense / 2;
  const double keys = batch * s.kv_heads * s.kv_len;
  const double rows = batch * s.q_heads * s.q_len;
  w.k_bytes = keys * s.head_dim * s.element_bytes;
  w.v_bytes = keys * s.v_dim * s.element_bytes;
  w.q_bytes = rows * s.head_dim * s.element_bytes;
  w.out_bytes = rows * s.v_dim * s.out_element_bytes;
  return w;
}

}  // namespace assay::attention
