// Our decode profile written down a second time as the kernel has it: keys are the rows of the
// score tile, four warps of 32 threads hold 16 keys each, chunks of keys meet at the end. The
// emulator must agree in every bit and every decision.
#include <array>
#include <vector>

#include "model/attention/attention_testing.hpp"
#include "model/numerics/warp_reduce.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;
using numerics::add_rn;
using numerics::div_rn;
using numerics::ex2_approx_ftz;
using numerics::fma_rn;
using numerics::mul_rn;

constexpr F32 kMinusInf{0xFF800000u};
std::size_t at(int i) { return static_cast<std::size_t>(i); }
F32 minus(F32 x) { return F32{x.bits ^ 0x80000000u}; }
F32 larger(F32 a, F32 b) { return numerics::max_of(a, b, numerics::NanRule::kPropagate); }

// One query row (a column of the score tile) over one chunk.
struct Chunk {
  F32 max = kMinusInf;
  std::array<std::array<F32, 8>, 4> running{};  // [warp][lane / 4]
  std::vector<F32> o;
};

// All rows of one key head of one request.
class Decode {
 public:
  Decode(const Problem& p, const Request& r, int kv_head) : p_(p), r_(r), kv_head_(kv_head) {
    instruction_ = numerics::find_instruction("mma.sync.k16.f32.bf16.bf16", numerics::Arch::kSm90a);
    scale_ = mul_rn(numerics::from_float(p.scale), F32{0x3FB8AA3Bu}, false);
    rows_ = r.q_len * p.group();
    lambda_on_ = r.threshold.kind != Threshold::Kind::kOff;
    const F32 lambda = numerics::from_float(std::min(r.threshold.value, 1.0f));
    delta_ =
        mul_rn(numerics::lg2_approx_ftz(lambda), div_rn(F32{0x3F800000u}, scale_, false), false);
  }

  void run(int chunk_keys) {
    for (int first = 0; first < r_.kv_len; first += chunk_keys) {
      std::vector<Chunk> chunk(at(rows_));
      bool started = false;
      for (int key = first; key < std::min(first + chunk_keys, r_.kv_len); key += 64) {
        if (!any_visible(key)) continue;
        tile(key, chunk, started);
        started = true;
      }
      if (started) chunks.push_back(std::move(chunk));
    }
  }

  // out bits [v_dim] and LSE of a row.
  std::pair<std::vector<std::uint16_t>, F32> merged(int row) const {
    F32 scaled = kMinusInf, base{0}, total{0};
    std::vector<F32> o(at(p_.v_dim), F32{0});
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const Chunk& chunk = chunks[c][at(row)];
      const F32 mine = mul_rn(chunk.max, scale_, false), before = scaled;
      scaled = larger(before, mine);
      base = scaled.bits == kMinusInf.bits ? F32{0} : scaled;
      const F32 old_weight = ex2_approx_ftz(add_rn(before, minus(base), false));
      const F32 weight = ex2_approx_ftz(add_rn(mine, minus(base), false));
      const auto joined = [&](F32 so_far, F32 part) {
        return c == 0 ? part : fma_rn(part, weight, mul_rn(so_far, old_weight, false), false);
      };
      total = joined(total, sum_of(chunk));
      for (int d = 0; d < p_.v_dim; ++d) o[at(d)] = joined(o[at(d)], chunk.o[at(d)]);
    }
    const bool zero = numerics::is_zero(total);
    const F32 inverse = zero ? F32{0} : div_rn(F32{0x3F800000u}, total, false);
    std::vector<std::uint16_t> out;
    for (const F32 x : o) out.push_back(numerics::cvt_rn_bf16_f32(mul_rn(x, inverse, false)).bits);
    return {out, zero ? kMinusInf : add_rn(base, numerics::lg2_approx_ftz(total), false)};
  }

  std::vector<std::vector<Chunk>> chunks;
  std::vector<Decision> trace;

 private:
  bool seen(int row, int key) const {
    return visible_keys(p_.mask_of(r_), row / p_.group(), r_.kv_len).contains(key);
  }
  bool any_visible(int key) const {
    for (int row = 0; row < rows_; ++row)
      for (int j = 0; j < 64; ++j)
        if (seen(row, key + j)) return true;
    return false;
  }

  std::vector<F32> product(int m, int n, int k, const std::vector<std::uint16_t>& a,
                           const std::vector<std::uint16_t>& b, const std::vector<F32>& c) const {
    std::vector<F32> d(at(m * n));
    numerics::MmaProblem<std::uint16_t> mma;
    mma.m = m;
    mma.n = n;
    mma.k = k;
    mma.a = a.data();
    mma.b = b.data();
    mma.c = c.empty() ? nullptr : c.data();
    mma.d = d.data();
    REQUIRE(numerics::mma(*instruction_, mma, numerics::MmaPath::kScalar).has_value());
    return d;
  }

  // K is the first operand: s[key][row], as the swapped instruction has it.
  void tile(int key, std::vector<Chunk>& chunk, bool started) {
    std::vector<std::uint16_t> k(at(64 * p_.head_dim), 0), v(at(64 * p_.v_dim), 0);
    for (int j = 0; j < 64 && key + j < r_.kv_len; ++j) {
      copy_key(p_, r_, kv_head_, key + j, reinterpret_cast<std::byte*>(&k[at(j * p_.head_dim)]));
      copy_value(p_, r_, kv_head_, key + j, reinterpret_cast<std::byte*>(&v[at(j * p_.v_dim)]));
    }
    std::vector<std::uint16_t> q(at(rows_ * p_.head_dim));
    for (int row = 0; row < rows_; ++row)
      copy_query(p_, r_, kv_head_ * p_.group() + row % p_.group(), row / p_.group(),
                 reinterpret_cast<std::byte*>(&q[at(row * p_.head_dim)]));
    std::vector<F32> s = product(64, rows_, p_.head_dim, k, q, {});
    std::vector<F32> local(at(rows_), kMinusInf);
    bool skip = started && lambda_on_;
    for (int row = 0; row < rows_; ++row) {
      for (int j = 0; j < 64; ++j) {
        F32& x = s[at(j * rows_ + row)];
        if (!seen(row, key + j)) x = kMinusInf;
        local[at(row)] = larger(local[at(row)], x);
      }
      const F32 limit =
          numerics::max_of(add_rn(chunk[at(row)].max, delta_, false), F32{0xFF7FFFFFu});
      skip &= numerics::to_float(local[at(row)]) < numerics::to_float(limit);
    }
    trace.push_back(skip ? Decision::kSkipped : Decision::kKept);
    if (skip) return;
    std::vector<std::uint16_t> p_t(at(rows_ * 64)), v_t(at(p_.v_dim * 64));
    for (int j = 0; j < 64; ++j)
      for (int d = 0; d < p_.v_dim; ++d) v_t[at(d * 64 + j)] = v[at(j * p_.v_dim + d)];
    for (int row = 0; row < rows_; ++row) {
      Chunk& c = chunk[at(row)];
      const F32 m = larger(c.max, local[at(row)]);
      const F32 scaled = m.bits == kMinusInf.bits ? F32{0} : mul_rn(m, scale_, false);
      const F32 correction =
          ex2_approx_ftz(add_rn(mul_rn(c.max, scale_, false), minus(scaled), false));
      std::array<F32, 64> p{};
      for (int j = 0; j < 64; ++j) {
        p[at(j)] = ex2_approx_ftz(fma_rn(s[at(j * rows_ + row)], scale_, minus(scaled), false));
        p_t[at(row * 64 + j)] = numerics::cvt_rn_bf16_f32(p[at(j)]).bits;
      }
      for (int warp = 0; warp < 4; ++warp)
        for (int r = 0; r < 8; ++r) {
          const F32 both = add_rn(p[at(16 * warp + r)], p[at(16 * warp + 8 + r)], false);
          F32& run = c.running[at(warp)][at(r)];
          run = started ? fma_rn(run, correction, both, false) : both;
        }
      if (started)
        for (F32& x : c.o) x = mul_rn(x, correction, false);
      c.max = m;
    }
    // O^T = V^T P^T: a chain a (value column, row) pair either way.
    for (int row = 0; row < rows_; ++row) {
      const std::vector<std::uint16_t> one(p_t.begin() + row * 64, p_t.begin() + (row + 1) * 64);
      Chunk& c = chunk[at(row)];
      c.o = product(p_.v_dim, 1, 64, v_t, one, started ? c.o : std::vector<F32>());
    }
  }

  // Lanes 4 r + column / 2 of a warp hold key row r: xor 16, 8 and 4 walk over r.
  static F32 sum_of(const Chunk& c) {
    constexpr std::array<std::size_t, 3> kDistances = {16, 8, 4};
    std::array<F32, 4> warps{};
    for (std::size_t w = 0; w < 4; ++w) {
      std::array<F32, 32> lanes{};
      for (std::size_t lane = 0; lane < 32; ++lane) lanes[lane] = c.running[w][lane / 4];
      warps[w] = numerics::reduce_butterfly(lanes, kDistances,
                                            [](F32 a, F32 b) { return add_rn(a, b, false); })[0];
    }
    return add_rn(add_rn(warps[0], warps[1], false), add_rn(warps[2], warps[3], false), false);
  }

  const Problem& p_;
  const Request& r_;
  int kv_head_, rows_;
  bool lambda_on_;
  F32 scale_, delta_;
  const numerics::Instruction* instruction_;
};

}  // namespace

TEST_CASE("our decode profile, read a second time with keys as rows",
          "[ATT-5.3][ATT-5.4][ATT-6.3][ATT-6.4]") {
  Profile profile = profile_named("assay-decode-sm90");
  int kept = 0, skipped = 0, chunks = 0;
  prop("any problem", [&] {
    Case c = *cases(profile, {4, 400, 2});
    c.dtype = Dtype::kBf16;
    c.head_dim = 32;
    c.v_dim = 8;
    // Small chunks meet more often; the rule does not know the number.
    profile.skip.chunk_keys = 64 * *rc::gen::inRange(1, 5);
    const auto built = build(c);
    const Problem& p = built->problem;
    const auto emulator = Emulator::make(profile, p);
    RC_ASSERT(emulator.has_value());
    for (const Unit& unit : emulator->units()) {
      Decode second(p, p.requests[unit.request], unit.head);
      second.run(profile.skip.chunk_keys);
      const UnitResult got = emulator->run(unit);
      RC_ASSERT(decisions(got) == second.trace);
      for (std::size_t i = 0; i < got.rows.size(); ++i) {
        const auto [out, lse] = second.merged(static_cast<int>(i));
        RC_ASSERT(got.rows[i].lse.bits == lse.bits);
        for (std::size_t d = 0; d < out.size(); ++d)
          RC_ASSERT(got.out[i * out.size() + d] == out[d]);
      }
      chunks += second.chunks.size() > 1;
      for (const Decision d : second.trace) ++(d == Decision::kKept ? kept : skipped);
    }
  });
  REQUIRE(kept > 100);
  REQUIRE(skipped > 10);
  REQUIRE(chunks > 20);
}
