// Faults of attention kernels that no field of a profile can say. Most give the profile another
// problem than the one asked for: what a kernel with wrong indices computes. Decides nothing about
// right kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "model/numerics/convert.hpp"
#include "verify/attention/mutants.hpp"

namespace assay::verify::faults {
namespace {

using attention::MaskKind;
using attention::Request;
using attention::Rows;
using attention::Threshold;

template <class Change>
AttentionRun with_requests(const Profile& profile, const Problem& problem, int threads,
                           const Change& change) {
  Problem wrong = problem;
  for (std::size_t i = 0; i < wrong.requests.size(); ++i) change(wrong.requests[i], i);
  return emulated(profile, wrong, threads);
}

// Rows of `heads` heads copied to storage of this object; at(i, head) says from where.
class Copies {
 public:
  template <class At>
  Rows rows(std::int64_t count, int heads, int dim, int element_bytes, const At& at) {
    const std::size_t bytes = static_cast<std::size_t>(dim * element_bytes);
    std::vector<std::byte>& to =
        storage_.emplace_back(static_cast<std::size_t>(count * heads) * bytes);
    for (std::int64_t i = 0; i < count; ++i)
      for (int h = 0; h < heads; ++h)
        std::memcpy(&to[static_cast<std::size_t>(i * heads + h) * bytes], at(i, h), bytes);
    return attention::contiguous_rows(to.data(), 0, count, heads, dim, element_bytes);
  }

 private:
  std::deque<std::vector<std::byte>> storage_;
};

std::uint16_t encode(Dtype dtype, double x) {
  const F32 f = numerics::from_float(static_cast<float>(x));
  return dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(f).bits
                              : numerics::cvt_rn_bf16_f32(f).bits;
}
double decode(Dtype dtype, std::uint16_t bits) {
  return attention::as_double(dtype == Dtype::kF16 ? numerics::widen(F16{bits})
                                                   : numerics::widen(Bf16{bits}));
}

// A profile with other tiles. The tiles live as long as the call.
template <class Change>
AttentionRun with_tiles(const Profile& profile, const Problem& problem, int threads,
                        const Change& change) {
  std::vector<attention::TileShape> tiles(profile.tiles.begin(), profile.tiles.end());
  Profile changed = profile;
  for (attention::TileShape& tile : tiles) change(tile, changed);
  changed.tiles = tiles;
  return emulated(changed, problem, threads);
}

}  // namespace

AttentionRun wrong_request_rows(const Profile& profile, const Problem& problem, int threads) {
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t) {
    if (problem.requests[0].k.available < r.kv_len) return;
    r.k = problem.requests[0].k;
    r.v = problem.requests[0].v;
  });
}

AttentionRun v_row_off_by_one(const Profile& profile, const Problem& problem, int threads) {
  Copies copies;
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t i) {
    const Rows& v = problem.requests[i].v;
    const int bytes = problem.element_bytes();
    r.v =
        copies.rows(r.kv_len, problem.kv_heads, problem.v_dim, bytes, [&](std::int64_t row, int h) {
          return v.row(h, std::max<std::int64_t>(row - 1, 0), bytes);
        });
  });
}

AttentionRun page_index_ignored(const Profile& profile, const Problem& problem, int threads) {
  std::vector<std::int32_t> identity(1 << 16);
  for (std::size_t i = 0; i < identity.size(); ++i) identity[i] = static_cast<std::int32_t>(i);
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t) {
    for (Rows* rows : {&r.k, &r.v})
      if (rows->block_table != nullptr) rows->block_table = identity.data();
  });
}

AttentionRun offsets_in_32_bits(const Profile& profile, const Problem& problem, int threads) {
  Copies copies;
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t) {
    const int bytes = problem.element_bytes();
    const auto truncated = [&](const Rows& from, int dim) {
      return copies.rows(r.kv_len, problem.kv_heads, dim, bytes, [&](std::int64_t row, int h) {
        const auto at = static_cast<std::int32_t>((from.row(h, row, bytes) - from.base) / bytes);
        return from.base + std::int64_t{at} * bytes;
      });
    };
    r.k = truncated(r.k, problem.head_dim);
    r.v = truncated(r.v, problem.v_dim);
  });
}

AttentionRun first_request_rules(const Profile& profile, const Problem& problem, int threads) {
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t) {
    const Request& first = problem.requests[0];
    r.threshold = first.threshold;
    if (first.threshold.kind == Threshold::Kind::kScaleFactor && first.kv_len > 0)
      r.threshold.value *= static_cast<float>(r.kv_len) / static_cast<float>(first.kv_len);
  });
}

AttentionRun silently_dense(const Profile& profile, const Problem& problem, int threads) {
  return with_requests(profile, problem, threads, [](Request& r, std::size_t) {
    if (r.threshold.value >= 0) r.threshold = {};
  });
}

AttentionRun causal_for_full(const Profile& profile, const Problem& problem, int threads) {
  Problem wrong = problem;
  for (const Request& r : problem.requests)
    if (r.threshold.kind != Threshold::Kind::kOff && wrong.mask == MaskKind::kFull)
      wrong.mask = MaskKind::kCausal;
  return emulated(profile, wrong, threads);
}

AttentionRun top_left_for_bottom_right(const Profile& profile, const Problem& problem,
                                       int threads) {
  return with_requests(profile, problem, threads, [](Request& r, std::size_t) { r.q_offset = 0; });
}

AttentionRun last_key_missing(const Profile& profile, const Problem& problem, int threads) {
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t) {
    if (problem.mask != MaskKind::kFull)
      --r.q_offset;
    else if (r.kv_len > 1 && problem.custom_mask.empty())
      --r.kv_len;
  });
}

AttentionRun tail_tile_dropped(const Profile& profile, const Problem& problem, int threads) {
  const auto resolved = attention::resolve(profile, problem);
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t) {
    const int tile = resolved ? resolved->tile.kv_tile : 1;
    if (r.kv_len > tile && problem.custom_mask.empty()) r.kv_len = r.kv_len / tile * tile;
  });
}

AttentionRun rows_beyond_four(const Profile& profile, const Problem& problem, int threads) {
  Copies copies;
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t i) {
    const Rows& q = problem.requests[i].q;
    const int bytes = problem.element_bytes();
    r.q = copies.rows(r.q_len, problem.q_heads, problem.head_dim, bytes,
                      [&](std::int64_t row, int h) { return q.row(h, row % 4, bytes); });
  });
}

AttentionRun heads_modulo(const Profile& profile, const Problem& problem, int threads) {
  Copies copies;
  Problem wrong = problem;
  wrong.kv_heads = problem.q_heads;
  const int bytes = problem.element_bytes();
  for (std::size_t i = 0; i < wrong.requests.size(); ++i) {
    const Request& r = problem.requests[i];
    const auto copy = [&](const Rows& rows, int dim) {
      return copies.rows(r.kv_len, problem.q_heads, dim, bytes, [&](std::int64_t row, int h) {
        return rows.row(h % problem.kv_heads, row, bytes);
      });
    };
    wrong.requests[i].k = copy(r.k, problem.head_dim);
    wrong.requests[i].v = copy(r.v, problem.v_dim);
  }
  return emulated(profile, wrong, threads);
}

AttentionRun sinks_ignored(const Profile& profile, const Problem& problem, int threads) {
  Problem wrong = problem;
  wrong.sinks = {};
  return emulated(profile, wrong, threads);
}

AttentionRun empty_request_shifts(const Profile& profile, const Problem& problem, int threads) {
  bool seen = false;
  return with_requests(profile, problem, threads, [&](Request& r, std::size_t i) {
    if (seen && r.q_len > 0) r.q.base -= r.q.row_stride * problem.element_bytes();
    seen |= problem.requests[i].q_len == 0 || problem.requests[i].kv_len == 0;
  });
}

AttentionRun scale_ignored(const Profile& profile, const Problem& problem, int threads) {
  Problem wrong = problem;
  wrong.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  return emulated(profile, wrong, threads);
}

AttentionRun zero_is_tiny(const Profile& profile, const Problem& problem, int threads) {
  return with_requests(profile, problem, threads, [](Request& r, std::size_t) {
    if (r.threshold.kind != Threshold::Kind::kOff) r.threshold.value += 1e-30f;
  });
}

AttentionRun nan_threshold_served(const Profile& profile, const Problem& problem, int threads) {
  return with_requests(profile, problem, threads, [](Request& r, std::size_t) {
    if (!(r.threshold.value >= 0)) r.threshold = {};
  });
}

// exp of a difference in log2 units.
AttentionRun wrong_base(const Profile& profile, const Problem& problem, int threads) {
  return with_requests(profile, problem, threads, [](Request& r, std::size_t) {
    r.threshold.value = std::pow(r.threshold.value, 0.6931472f);
  });
}

AttentionRun not_repeatable(const Profile& profile, const Problem& problem, int threads) {
  thread_local std::uint32_t calls = 0;  // of other threads would come between
  AttentionRun run = emulated(profile, problem, threads);
  if (!run.answer.out.empty() && calls++ % 2 == 1) run.answer.out.back() ^= 1;
  return run;
}

AttentionRun first_tile_not_counted(const Profile& profile, const Problem& problem, int threads) {
  AttentionRun run = emulated(profile, problem, threads);
  if (run.answer.visited && *run.answer.visited > 0) --*run.answer.visited;
  return run;
}

AttentionRun lse_of_dense_sum(const Profile& profile, const Problem& problem, int threads) {
  AttentionRun run = emulated(profile, problem, threads);
  run.answer.lse = silently_dense(profile, problem, threads).answer.lse;
  return run;
}

AttentionRun lse_of_other_base(const Profile& profile, const Problem& problem, int threads) {
  AttentionRun run = emulated(profile, problem, threads);
  const auto resolved = attention::resolve(profile, problem);
  const bool ln = resolved && resolved->softmax.lse == attention::LseForm::kLn;
  for (F32& lse : run.answer.lse)
    lse = numerics::mul_rn(lse, ln ? attention::kLog2E : attention::kLn2, false);
  return run;
}

// A row's sum over eight lanes where four hold it: twice what it is.
AttentionRun eight_lanes(const Profile& profile, const Problem& problem, int threads) {
  AttentionRun run = emulated(profile, problem, threads);
  for (std::uint16_t& bits : run.answer.out)
    bits = encode(problem.out_dtype, decode(problem.out_dtype, bits) / 2);
  for (F32& lse : run.answer.lse) lse = numerics::add_rn(lse, attention::kOne, false);
  return run;
}

AttentionRun warp_votes_alone(const Profile& profile, const Problem& problem, int threads) {
  return with_tiles(profile, problem, threads,
                    [](attention::TileShape& tile, Profile&) { tile.unit_rows = 16; });
}

AttentionRun masked_tiles_counted(const Profile& profile, const Problem& problem, int threads) {
  return with_tiles(profile, problem, threads, [](attention::TileShape& tile, Profile& changed) {
    tile.schedule_units = 2;
    changed.skip.range_of_schedule = true;
  });
}

}  // namespace assay::verify::faults
