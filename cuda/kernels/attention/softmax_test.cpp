// A thread's arithmetic between the products, run on the host, against the model's rows: four
// threads share two rows as a quad of a warp does, over several tiles with skipped ones among them.
#include <array>
#include <cmath>
#include <random>

#include "cuda/kernels/attention/softmax_sm90.cuh"
#include "model/attention/softmax.hpp"
#include "model/core/testing.hpp"
#include "model/numerics/bulk.hpp"

namespace assay::attention_kernels {
namespace {

using attention::Lambda;
using attention::Profile;

std::uint32_t bits(float x) { return numerics::from_float(x).bits; }

const Profile& profile() { return **attention::find_profile("assay-prefill-sm90"); }
template <class T>
const attention::Softmax& softmax_of() {
  return sizeof(T) == 1 ? *profile().fp8 : profile().softmax;
}

float score(std::mt19937& random, int kind) {
  std::normal_distribution<float> normal;
  if (kind == 2 && random() % 40 == 0) {
    static constexpr std::uint32_t kOdd[] = {0x7FC00000, 0xFFC12345, 0x7F800000, 0xFF800000,
                                             0x80000000, 0x00000001, 0x7F7FFFFF, 0xFF7FFFFF};
    return numerics::to_float(F32{kOdd[random() % std::size(kOdd)]});
  }
  if (kind == 3) return numerics::to_float(F32{static_cast<std::uint32_t>(random())});
  return normal(random) * (kind == 1 ? 30.0f : 3.0f);
}

// Two rows over several tiles, by the model and by four threads.
template <class T, int kTile>
struct Rows {
  static constexpr int kShift = sizeof(T) == 1 ? 8 : 0;
  std::mt19937& random;
  attention::Problem problem;
  attention::Scale scale;
  Lambda lambda;
  float offset = 0;
  attention::RowState model[2];
  RowState threads[4][2];
  bool started = false;
  int skipped = 0, kept = 0;

  Rows(std::mt19937& r, float factor, int kv_len, bool divides) : random(r) {
    problem.scale = std::ldexp(1.0f + static_cast<float>(r() % 1000) / 1000, -4);
    const attention::Softmax& softmax = softmax_of<T>();
    scale = attention::scale_of(problem, softmax);
    using Kind = attention::Threshold::Kind;
    lambda =
        attention::lambda_of(profile().skip, {divides ? Kind::kScaleFactor : Kind::kLambda, factor},
                             kv_len, scale, softmax.flush);
    const float c = numerics::to_float(scale.log2);
    offset = skip_offset(factor, divides, kv_len, 1.0f / c);
    CHECK(bits(offset) == lambda.raw.bits);
    for (auto& quad : threads)
      for (RowState& row : quad) row = {minus_infinity(), 0.0f, 0.0f};
  }

  void tile(int kind, int hidden_from, int hidden_to) {
    const attention::Softmax& softmax = softmax_of<T>();
    std::array<F32, kTile> scores[2];
    float s[4][kTile / 2];
    for (int row = 0; row < 2; ++row) {
      for (int column = 0; column < kTile; ++column) {
        const float x = score(random, kind);
        // Thread column % 8 / 2 of the quad holds the column; hide() is asked for by key range.
        s[column % 8 / 2][column / 8 * 4 + row * 2 + column % 2] = x;
        const bool seen = column >= hidden_from && column < hidden_to;
        scores[row][static_cast<std::size_t>(column)] =
            seen ? numerics::from_float(x) : attention::kMinusInfinity;
      }
    }
    float local[2] = {minus_infinity(), minus_infinity()};
    for (int q = 0; q < 4; ++q) {
      const Range seen{hidden_from + 1000, hidden_to + 1000};
      hide<kTile>(s[q], 1000 + 2 * q, seen, seen);
      float part[2];
      maxima<kTile>(s[q], part);
      for (int row = 0; row < 2; ++row) local[row] = max_nan(local[row], part[row]);
    }
    bool all = started, model_all = started;
    F32 model_local[2];
    for (int row = 0; row < 2; ++row) {
      model_local[row] = attention::row_maximum(scores[row], softmax.max_nan);
      REQUIRE(bits(local[row]) == model_local[row].bits);
      all &= may_skip(local[row], threads[0][row].max, offset);
      model_all &= attention::row_may_skip(profile().skip, lambda, scale, model_local[row],
                                           model[row].max, softmax.flush);
    }
    REQUIRE(all == model_all);
    ++(all ? skipped : kept);
    if (!all) keep(s, local, scores, model_local);
  }

  void keep(float (&s)[4][kTile / 2], const float (&local)[2], std::array<F32, kTile> (&scores)[2],
            const F32 (&model_local)[2]) {
    const attention::Softmax& softmax = softmax_of<T>();
    const float c = numerics::to_float(scale.log2);
    F32 corrections[2];
    for (int row = 0; row < 2; ++row) {
      attention::RowState& state = model[row];
      const F32 max = started ? numerics::max_of(model_local[row], state.max, softmax.max_nan)
                              : model_local[row];
      const F32 scaled =
          attention::scaled_maximum(softmax, max, scale.exponent, attention::kMinusInfinity, true);
      const auto argument = attention::argument_of(softmax, max, scaled, scale.exponent);
      for (F32& x : scores[row]) x = attention::exponential(argument, softmax.flush, x);
      corrections[row] = attention::correction_of(softmax, state.max, max, scale.exponent,
                                                  attention::kMinusInfinity, true);
      attention::add_to_sums(softmax, scores[row].data(), kTile, corrections[row], !started, state);
      state.max = max;
    }
    for (int q = 0; q < 4; ++q) {
      exponentials_of<kTile, kShift>(s[q], local, c, threads[q]);
      for (int row = 0; row < 2; ++row) {
        REQUIRE(bits(threads[q][row].max) == model[row].max.bits);
        if (started) REQUIRE(bits(threads[q][row].correction) == corrections[row].bits);
        const F32 lane = model[row].lanes[static_cast<std::size_t>(q)];
        REQUIRE(same_number(bits(threads[q][row].sum), lane.bits));
      }
      if constexpr (sizeof(T) == 2) check_p(s[q], q, scores);
    }
    started = true;
  }

  // A register of the A operand: two neighbouring columns of one row, the lower one low.
  void check_p(const float (&s)[kTile / 2], int q,
               const std::array<F32, kTile> (&scores)[2]) const {
    std::uint32_t p[kTile / 16][4];
    narrow_to<T, kTile>(s, p);
    float in_place[kTile / 2];
    std::copy(std::begin(s), std::end(s), in_place);
    narrow_in_place<T, 0, kTile / 4>(in_place);
    narrow_in_place<T, kTile / 4, kTile / 4>(in_place);
    for (int i = 0; i < kTile / 4; ++i) REQUIRE(bits(in_place[i]) == p[i / 4][i % 4]);
    for (int k = 0; k < kTile / 16; ++k) {
      for (int j = 0; j < 4; ++j) {
        const auto column = static_cast<std::size_t>(16 * k + j / 2 * 8 + 2 * q);
        const auto narrow = [](F32 x) -> std::uint32_t {
          if constexpr (std::is_same_v<T, Bf16>) return numerics::cvt_rn_bf16_f32(x).bits;
          return numerics::cvt_rn_f16_f32(x).bits;
        };
        REQUIRE((p[k][j] & 0xFFFF) == narrow(scores[j % 2][column]));
        REQUIRE(p[k][j] >> 16 == narrow(scores[j % 2][column + 1]));
      }
    }
  }

  // The model repairs a sum's NaN bits at its end only.
  static bool same_number(std::uint32_t a, std::uint32_t b) {
    return a == b || (numerics::is_nan(F32{a}) && numerics::is_nan(F32{b}));
  }

  void end() const {
    const attention::Softmax& softmax = softmax_of<T>();
    for (int row = 0; row < 2; ++row) {
      const float sum = add_rn(add_rn(threads[0][row].sum, threads[1][row].sum),
                               add_rn(threads[2][row].sum, threads[3][row].sum));
      const F32 model_sum = attention::sum_of(softmax, model[row]);
      REQUIRE(bits(sum) == model_sum.bits);
      const RowEnd end =
          end_of<kShift>(threads[0][row].max, sum, numerics::to_float(scale.log2), 1.0f);
      // As SPEC ATT-5.5 and ATT-6.2 say it.
      const F32 scaled = attention::scaled_maximum(softmax, model[row].max, scale.log2,
                                                   attention::kMinusInfinity, false);
      const F32 base = scaled.bits == attention::kMinusInfinity.bits ? F32{0} : scaled;
      const bool nothing = numerics::is_zero(model_sum);
      const F32 lse = nothing ? attention::kMinusInfinity
                              : numerics::add_rn(base, numerics::lg2_approx_ftz(model_sum), false);
      const F32 factor = nothing ? F32{0} : numerics::div_rn(attention::kOne, model_sum, false);
      REQUIRE(bits(end.lse_log2) == lse.bits);
      REQUIRE(bits(end.factor) == factor.bits);
    }
  }
};

template <class T, int kTile>
void run(std::mt19937& random, int& skipped, int& kept) {
  static constexpr float kLambdas[] = {0, 1e-30f,     1e-3f, 0.1f,    0.99999994f,
                                       1, 1.0000001f, 7,     INFINITY};
  const float lambda = kLambdas[random() % std::size(kLambdas)];
  const int kv_len = 1 + static_cast<int>(random() % 70000);
  const bool divides = random() % 2 == 0;
  Rows<T, kTile> rows(random, divides ? lambda * static_cast<float>(kv_len) : lambda, kv_len,
                      divides);
  const int kind = static_cast<int>(random() % 4);
  for (int t = 0; t < 8; ++t) {
    const int from = random() % 4 == 0 ? static_cast<int>(random() % kTile) : 0;
    const int to = random() % 4 == 0 ? static_cast<int>(random() % (kTile + 1)) : kTile;
    rows.tile(kind, from, to);
  }
  rows.end();
  skipped += rows.skipped;
  kept += rows.kept;
}

TEST_CASE("a quad of threads computes the bits of the model's rows", "[CUD-6.6]") {
  std::mt19937 random(11);
  int skipped = 0, kept = 0;
  for (int i = 0; i < 150; ++i) {
    run<Bf16, 128>(random, skipped, kept);
    run<F16, 128>(random, skipped, kept);
    run<Bf16, 64>(random, skipped, kept);
    run<E4m3, 128>(random, skipped, kept);
    run<E4m3, 64>(random, skipped, kept);
  }
  CHECK(skipped > 100);
  CHECK(kept > 100);
}

TEST_CASE("the vote's offset is the model's for any factor and length", "[CUD-6.6]") {
  std::mt19937 random(12);
  attention::Problem problem;
  for (int i = 0; i < 20000; ++i) {
    problem.scale = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096,
                               static_cast<int>(random() % 20) - 12);
    const auto scale = attention::scale_of(problem, profile().softmax);
    const float factor = numerics::to_float(F32{static_cast<std::uint32_t>(random()) & 0x7FFFFFFF});
    const int kv_len = 1 + static_cast<int>(random() % 2000000);
    const auto lambda =
        attention::lambda_of(profile().skip, {attention::Threshold::Kind::kScaleFactor, factor},
                             kv_len, scale, profile().softmax.flush);
    CHECK(bits(skip_offset(factor, true, kv_len, 1.0f / numerics::to_float(scale.log2))) ==
          lambda.raw.bits);
  }
}

}  // namespace
}  // namespace assay::attention_kernels
