// Two profiles written down a second time, as the kernels have them: 128 threads with registers of
// a matrix fragment, shuffles, one row of scores by one dot product at a time. The emulator must
// agree in every bit and every decision.
#include <array>
#include <vector>

#include "model/attention/attention_testing.hpp"
#include "model/numerics/warp_reduce.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;
using numerics::add_rn;
using numerics::ex2_approx_ftz;
using numerics::fma_rn;
using numerics::fma_rz;
using numerics::max_of;
using numerics::mul_rn;

constexpr std::array<std::size_t, 2> kQuad = {1, 2};
F32 minus(F32 x) { return F32{x.bits ^ 0x80000000u}; }
bool less(F32 a, F32 b) { return numerics::to_float(a) < numerics::to_float(b); }

// One 64-row unit: scores and P as [row][column], both decided per thread and shuffled in quads.
class Warpgroup {
 public:
  Warpgroup(const Problem& p, std::size_t request, int head, int unit, int kv_tile)
      : p_(p),
        r_(p.requests[request]),
        request_(request),
        head_(head),
        first_(unit * 64),
        n_(kv_tile) {
    qk_ = numerics::find_instruction(p.dtype == Dtype::kF16    ? "wgmma.k16.f32.f16.f16"
                                     : p.dtype == Dtype::kBf16 ? "wgmma.k16.f32.bf16.bf16"
                                                               : "wgmma.k32.f32.e4m3.e4m3",
                                     numerics::Arch::kSm90a);
    o.assign(static_cast<std::size_t>(64 * p.v_dim), F32{0});
    max.fill(F32{0xFF800000u});
    sum.fill(F32{0});
  }

  bool fp8() const { return p_.dtype == Dtype::kF8E4m3; }
  // Codes of either width, one to a cell.
  template <class Copy>
  std::vector<std::uint16_t> codes(int dim, const Copy& copy) const {
    std::vector<std::uint16_t> out(at(dim));
    if (!fp8()) {
      copy(reinterpret_cast<std::byte*>(out.data()));
      return out;
    }
    std::vector<std::byte> bytes(at(dim));
    copy(bytes.data());
    for (int d = 0; d < dim; ++d) out[at(d)] = static_cast<std::uint16_t>(bytes[at(d)]);
    return out;
  }
  std::vector<std::uint16_t> read(bool value, int row) const {
    return codes(value ? p_.v_dim : p_.head_dim, [&](std::byte* to) {
      if (value)
        copy_value(p_, r_, head_ / p_.group(), row, to);
      else
        copy_key(p_, r_, head_ / p_.group(), row, to);
    });
  }
  std::vector<std::uint16_t> query(int row, bool beyond) const {
    if (!valid(row) && !beyond) return std::vector<std::uint16_t>(at(p_.head_dim), 0);
    return codes(p_.head_dim, [&](std::byte* to) { copy_query(p_, r_, head_, first_ + row, to); });
  }

  bool valid(int row) const { return first_ + row < r_.q_len; }

  // s[row][column]; `beyond`: rows past the lengths are what memory holds, and a diagonal mask does
  // not look at kv_len.
  void scores(int tile, F32 fill, bool beyond) {
    s.assign(64, std::vector<F32>(static_cast<std::size_t>(n_)));
    std::vector<std::uint16_t> q, k;
    const auto append = [](std::vector<std::uint16_t>& to, const std::vector<std::uint16_t>& row) {
      to.insert(to.end(), row.begin(), row.end());
    };
    for (int row = 0; row < 64; ++row) append(q, query(row, beyond));
    for (int c = 0; c < n_; ++c) append(k, key(tile * n_ + c, false, beyond));
    const std::vector<F32> dots = products(64, n_, p_.head_dim, q, k, {});
    for (int row = 0; row < 64; ++row) {
      const int position = first_ + row + r_.q_offset;
      for (int c = 0; c < n_; ++c) {
        const int at_key = tile * n_ + c;
        bool seen = at_key < r_.kv_len;
        if (p_.mask != MaskKind::kFull) seen = at_key <= position && (seen || beyond);
        if (p_.mask == MaskKind::kWindow) seen &= at_key > position - p_.mask_size;
        if (p_.mask == MaskKind::kChunked)
          seen &= position >= 0 && at_key / p_.mask_size == position / p_.mask_size;
        s[at(row)][at(c)] = seen ? dots[at(row * n_ + c)] : fill;
      }
    }
  }

  // c + a b^T by the scalar path, one chain a result.
  template <class T>
  std::vector<F32> products_of(int m, int n, int k, const std::vector<T>& a,
                               const std::vector<T>& b, const std::vector<F32>& c) const {
    std::vector<F32> d(at(m * n));
    numerics::MmaProblem<T> problem;
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.a = a.data();
    problem.b = b.data();
    problem.c = c.empty() ? nullptr : c.data();
    problem.d = d.data();
    REQUIRE(numerics::mma(*qk_, problem, numerics::MmaPath::kScalar).has_value());
    return d;
  }
  std::vector<F32> products(int m, int n, int k, const std::vector<std::uint16_t>& a,
                            const std::vector<std::uint16_t>& b, const std::vector<F32>& c) const {
    if (!fp8()) return products_of(m, n, k, a, b, c);
    return products_of(m, n, k, std::vector<std::uint8_t>(a.begin(), a.end()),
                       std::vector<std::uint8_t>(b.begin(), b.end()), c);
  }
  std::vector<std::uint16_t> key(int index, bool value, bool beyond) const {
    if (index < r_.kv_len || beyond) return read(value, index);
    return std::vector<std::uint16_t>(at(value ? p_.v_dim : p_.head_dim), 0);
  }

  // Runs f(thread, mi) -> F32 for all threads, then the quad's butterfly; the result by row.
  template <class F, class Op>
  std::array<F32, 64> per_row(const F& f, const Op& op) const {
    std::array<F32, 64> rows{};
    for (int warp = 0; warp < 4; ++warp)
      for (int mi = 0; mi < 2; ++mi) {
        std::array<F32, 32> lanes{};
        for (int lane = 0; lane < 32; ++lane) lanes[at(lane)] = f(32 * warp + lane, mi);
        lanes = numerics::reduce_butterfly(lanes, kQuad, op);
        for (int lane = 0; lane < 32; ++lane)
          rows[at(row_of(32 * warp + lane, mi))] = lanes[at(lane)];
      }
    return rows;
  }
  static int row_of(int thread, int mi) { return thread / 32 * 16 + thread % 32 / 4 + 8 * mi; }
  // Register e of a thread's row.
  F32& element(std::vector<std::vector<F32>>& m, int thread, int mi, int e) const {
    return m[at(row_of(thread, mi))][at(e / 2 * 8 + thread % 4 * 2 + e % 2)];
  }
  int elements() const { return n_ / 4; }

  // P V of the tile, from c or from zero.
  std::vector<F32> product(int tile, const std::vector<F32>& c, bool beyond) const {
    std::vector<std::uint16_t> a, b(at(p_.v_dim * n_));
    for (const std::vector<F32>& row : s)
      for (const F32 x : row)
        a.push_back(fp8()                     ? numerics::cvt_rn_satfinite_e4m3(x).bits
                    : p_.dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(x).bits
                                              : numerics::cvt_rn_bf16_f32(x).bits);
    for (int column = 0; column < n_; ++column) {
      const std::vector<std::uint16_t> v = key(tile * n_ + column, true, beyond);
      for (int d = 0; d < p_.v_dim; ++d) b[at(d * n_ + column)] = v[at(d)];
    }
    return products(64, p_.v_dim, n_, a, b, c);
  }
  void correct(int row, F32 factor) {
    for (int d = 0; d < p_.v_dim; ++d) {
      F32& x = o[at(row * p_.v_dim + d)];
      x = mul_rn(x, factor, false);
    }
  }

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  std::vector<std::vector<F32>> s;
  std::vector<F32> o;
  std::array<F32, 64> max{}, sum{};
  std::array<std::array<F32, 2>, 128> running{};  // [thread][mi]
  std::vector<Decision> trace;
  const Problem& p_;
  const Request& r_;
  std::size_t request_;
  int head_, first_, n_;
  const numerics::Instruction* qk_;
};

F32 log2_scale(const Problem& p) {
  return mul_rn(numerics::from_float(p.scale), F32{0x3FB8AA3Bu}, false);
}

// SPEC ATT-6, per thread.
void assay_tile(Warpgroup& w, int tile, F32 delta, bool has_lambda) {
  const F32 scale = log2_scale(w.p_);
  w.scores(tile, F32{0xFF800000u}, false);
  const auto propagate = [](F32 a, F32 b) { return max_of(a, b, numerics::NanRule::kPropagate); };
  const std::array<F32, 64> local = w.per_row(
      [&](int t, int mi) {
        F32 m = w.element(w.s, t, mi, 0);
        for (int e = 1; e < w.elements(); ++e) m = propagate(m, w.element(w.s, t, mi, e));
        return m;
      },
      propagate);
  const bool first = w.trace.empty();
  bool skip = !first && has_lambda;
  for (int row = 0; row < 64 && skip; ++row) {
    if (!w.valid(row)) continue;
    const F32 limit = max_of(add_rn(w.max[w.at(row)], delta, false), F32{0xFF7FFFFFu});
    skip &= less(local[w.at(row)], limit);
  }
  w.trace.push_back(skip ? Decision::kSkipped : Decision::kKept);
  if (skip) return;
  // m * scale_log2, and in fp8 8 less of it: P is then 256 times larger.
  const auto scaled_of = [&](F32 m) {
    return w.fp8() ? fma_rn(m, scale, F32{0xC1000000u}, false) : mul_rn(m, scale, false);
  };
  std::array<F32, 64> correction{};
  for (int row = 0; row < 64; ++row) {
    const F32 old_max = w.max[w.at(row)];
    const F32 m = propagate(old_max, local[w.at(row)]);
    const F32 scaled = m.bits == 0xFF800000u ? F32{0} : scaled_of(m);
    correction[w.at(row)] = ex2_approx_ftz(add_rn(scaled_of(old_max), minus(scaled), false));
    for (F32& x : w.s[w.at(row)]) x = ex2_approx_ftz(fma_rn(x, scale, minus(scaled), false));
    w.max[w.at(row)] = m;
    if (!first && !w.fp8()) w.correct(row, correction[w.at(row)]);
  }
  for (int t = 0; t < 128; ++t)
    for (int mi = 0; mi < 2; ++mi) {
      F32 even = w.element(w.s, t, mi, 0), odd = w.element(w.s, t, mi, 1);
      for (int e = 2; e < w.elements(); e += 2) {
        even = add_rn(even, w.element(w.s, t, mi, e), false);
        odd = add_rn(odd, w.element(w.s, t, mi, e + 1), false);
      }
      F32& run = w.running[w.at(t)][w.at(mi)];
      const F32 both = add_rn(even, odd, false);
      run = first ? both : fma_rn(run, correction[w.at(w.row_of(t, mi))], both, false);
    }
  if (first || !w.fp8()) {
    w.o = w.product(tile, first ? std::vector<F32>() : w.o, false);
    return;
  }
  const std::vector<F32> part = w.product(tile, {}, false);
  for (std::size_t i = 0; i < part.size(); ++i)
    w.o[i] = fma_rn(w.o[i], correction[i / w.at(w.p_.v_dim)], part[i], false);
}

// TensorRT-LLM's compute_single_tile, per thread.
void fmha_tile(Warpgroup& w, int tile, F32 threshold, bool has_lambda) {
  const F32 scale = log2_scale(w.p_);
  w.scores(tile, F32{0xFF7FFFFFu}, true);
  const auto fmax = [](F32 a, F32 b) { return max_of(a, b); };
  const std::array<F32, 64> local = w.per_row(
      [&](int t, int mi) {
        F32 m = w.element(w.s, t, mi, 0);
        for (int e = 1; e < w.elements(); ++e) m = fmax(m, w.element(w.s, t, mi, e));
        return m;
      },
      fmax);
  const bool first = w.trace.empty();
  bool skip = !first && has_lambda;
  for (int row = 0; row < 64; ++row) {
    const F32 difference = add_rn(local[w.at(row)], minus(w.max[w.at(row)]), true);
    skip &= less(ex2_approx_ftz(mul_rn(difference, scale, true)), threshold);
  }
  w.trace.push_back(skip ? Decision::kSkipped : Decision::kKept);
  if (skip) return;
  const bool check = w.p_.mask == MaskKind::kWindow || w.p_.mask == MaskKind::kChunked;
  std::array<F32, 64> correction{};
  for (int row = 0; row < 64; ++row) {
    const F32 m = first ? local[w.at(row)] : fmax(local[w.at(row)], w.max[w.at(row)]);
    F32 scaled = w.fp8() ? fma_rn(m, scale, F32{0xC1000000u}, true) : mul_rn(m, scale, true);
    if (check && m.bits == 0xFF7FFFFFu) scaled = F32{0};
    for (F32& x : w.s[w.at(row)]) x = ex2_approx_ftz(fma_rz(x, scale, minus(scaled), true));
    if (!first) {
      correction[w.at(row)] =
          ex2_approx_ftz(mul_rn(add_rn(w.max[w.at(row)], minus(m), true), scale, true));
      w.correct(row, correction[w.at(row)]);
    }
    w.max[w.at(row)] = m;
  }
  const std::array<F32, 64> sums = w.per_row(
      [&](int t, int mi) {
        if (w.fp8()) {
          std::array<F32, 4> psum{};
          for (int e = 0; e < w.elements(); ++e)
            psum[w.at(e & 3)] = add_rn(psum[w.at(e & 3)], w.element(w.s, t, mi, e), true);
          return add_rn(add_rn(psum[0], psum[1], true), add_rn(psum[2], psum[3], true), true);
        }
        F32 sum = w.element(w.s, t, mi, 0);
        for (int e = 1; e < w.elements(); ++e) sum = add_rn(sum, w.element(w.s, t, mi, e), true);
        return sum;
      },
      [](F32 a, F32 b) { return add_rn(a, b, true); });
  for (int row = 0; row < 64; ++row) {
    F32& sum = w.sum[w.at(row)];
    sum = first ? sums[w.at(row)] : fma_rn(sum, correction[w.at(row)], sums[w.at(row)], true);
  }
  w.o = w.product(tile, first ? std::vector<F32>() : w.o, true);
}

std::uint16_t converted(const Problem& p, F32 x) {
  return p.out_dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(x).bits
                                    : numerics::cvt_rn_bf16_f32(x).bits;
}

void compare(const Emulator& emulator, const Unit& unit, const Warpgroup& w, const UnitResult& got,
             const std::array<F32, 64>& sums, bool ours) {
  REQUIRE(decisions(got) == w.trace);
  const Problem& p = w.p_;
  const F32 scale = log2_scale(p);
  for (std::size_t i = 0; i < got.rows.size(); ++i) {
    const int row = got.rows[i].token - w.first_;
    const F32 sum = sums[w.at(row)];
    const bool zero = numerics::is_zero(sum);
    F32 inverse = zero ? F32{ours ? 0u : 0x3F800000u} : numerics::rcp_approx_ftz(sum);
    if (ours && !zero) inverse = numerics::div_rn(F32{0x3F800000u}, sum, false);
    for (int d = 0; d < p.v_dim; ++d) {
      const F32 x = mul_rn(w.o[w.at(row * p.v_dim + d)], inverse, !ours);
      if (got.out[i * static_cast<std::size_t>(p.v_dim) + w.at(d)] != converted(p, x)) {
        CAPTURE(row, d, unit.head, unit.index, emulator.resolved().tile.kv_tile);
        FAIL("output bits differ");
      }
    }
    if (!ours) continue;
    const F32 max = w.max[w.at(row)];
    const F32 scaled =
        w.fp8() ? fma_rn(max, scale, F32{0xC1000000u}, false) : mul_rn(max, scale, false);
    const F32 lse = zero ? F32{0xFF800000u} : add_rn(scaled, numerics::lg2_approx_ftz(sum), false);
    REQUIRE(got.rows[i].lse.bits == lse.bits);
  }
}

Case small(const Case& from) {
  Case c = from;
  c.q_heads = c.kv_heads = 1;
  c.v_dim = 8;
  c.head_dim = 32;
  return c;
}

}  // namespace

TEST_CASE("our prefill profile, read a second time thread by thread",
          "[ATT-5.1][ATT-5.2][ATT-5.3][ATT-6.1][ATT-6.2][ATT-6.3]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  int kept = 0, skipped = 0;
  prop("any problem", [&] {
    const Case c = small(*cases(profile, {100, 400, 1}));
    const auto built = build(c);
    const auto emulator = Emulator::make(profile, built->problem);
    RC_ASSERT(emulator.has_value());
    for (const Unit& unit : emulator->units()) {
      const Problem& p = built->problem;
      const Request& r = p.requests[unit.request];
      Warpgroup w(p, unit.request, unit.head, unit.index, 128);
      F32 lambda = numerics::from_float(std::min(r.threshold.value, 1.0f));
      const F32 delta = mul_rn(numerics::lg2_approx_ftz(lambda),
                               numerics::div_rn(F32{0x3F800000u}, log2_scale(p), false), false);
      const int rows = std::min(64, r.q_len - unit.index * 64);
      const Range tiles = tiles_of_rows(p.mask_of(r), unit.index * 64, rows, r.kv_len, 128).visited;
      for (int tile = tiles.begin; tile < tiles.end; ++tile)
        assay_tile(w, tile, delta, r.threshold.kind != Threshold::Kind::kOff);
      const auto sums = w.per_row([&](int t, int mi) { return w.running[w.at(t)][w.at(mi)]; },
                                  [](F32 a, F32 b) { return add_rn(a, b, false); });
      compare(*emulator, unit, w, emulator->run(unit), sums, true);
      for (const Decision d : w.trace) ++(d == Decision::kKept ? kept : skipped);
    }
  });
  REQUIRE(kept > 100);
  REQUIRE(skipped > 10);
}

TEST_CASE("fmha_v2, read a second time thread by thread", "[ATT-5.2][ATT-5.3][ATT-7.1]") {
  const Profile& profile = profile_named("trtllm-fmha_v2-sm90");
  int kept = 0, skipped = 0;
  prop("any problem", [&] {
    Case c = small(*cases(profile, {100, 400, 1}));
    c.head_dim = 96;  // key tiles of 128, or of 256 in fp8
    c.bottom_right = true;
    for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
      c.kv_lens[i] = std::max(c.kv_lens[i], c.q_lens[i]);
      if (c.kv_lens[i] == 0) c.kv_lens[i] = c.q_lens[i] = 1;
    }
    const auto built = build(c);
    const auto emulator = Emulator::make(profile, built->problem);
    RC_ASSERT(emulator.has_value());
    for (const Unit& unit : emulator->units()) {
      const Problem& p = built->problem;
      const Request& r = p.requests[unit.request];
      const int n = p.dtype == Dtype::kF8E4m3 ? 256 : 128;
      Warpgroup w(p, unit.request, unit.head, unit.index, n);
      // The pair's first and last positions, as the loader computes them.
      const int start = unit.index / 2 * 128 + r.q_offset;
      int begin = 0, end = (r.kv_len + n - 1) / n;
      if (p.mask == MaskKind::kWindow) begin = std::max(0, start + 1 - p.mask_size) / n;
      if (p.mask == MaskKind::kChunked) begin = start / p.mask_size * p.mask_size / n;
      if (p.mask != MaskKind::kFull) end = (start + 127) / n + 1;
      for (int tile = begin; tile < end; ++tile)
        fmha_tile(w, tile, numerics::from_float(r.threshold.value),
                  r.threshold.kind != Threshold::Kind::kOff);
      compare(*emulator, unit, w, emulator->run(unit), w.sum, false);
      for (const Decision d : w.trace) ++(d == Decision::kKept ? kept : skipped);
    }
  });
  REQUIRE(kept > 100);
  REQUIRE(skipped > 10);
}
