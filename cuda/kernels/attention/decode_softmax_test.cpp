// A decode thread's arithmetic, run on the host, against the model's rows: 32 threads share a query
// row as four warps of eight lanes do, over several tiles with skipped ones among them; then pieces
// meet.
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "cuda/kernels/attention/decode_softmax.cuh"
#include "model/attention/finish.hpp"
#include "model/core/testing.hpp"

namespace assay::attention_kernels {
namespace {

using attention::Profile;

constexpr int kTile = 64, kThreads = 32, kDim = 4;

std::uint32_t bits(float x) { return numerics::from_float(x).bits; }
std::size_t at(int i) { return static_cast<std::size_t>(i); }
// The model repairs a sum's NaN bits at its end only.
bool same_number(std::uint32_t a, std::uint32_t b) {
  return a == b || (numerics::is_nan(F32{a}) && numerics::is_nan(F32{b}));
}

const Profile& profile() { return **attention::find_profile("assay-decode-sm90"); }

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

// One row over the tiles of one chunk, by the model and by threads; thread 8 w + g has keys 16 w +
// g and 16 w + g + 8.
template <int kShift>
struct Chunk {
  std::mt19937& random;
  const attention::Softmax& softmax;
  attention::Scale scale;
  attention::Lambda lambda;
  float offset;
  attention::RowState model = {};
  std::vector<RowState> threads = std::vector<RowState>(kThreads, {minus_infinity(), 0.0f, 0.0f});
  bool started = false;
  int skipped = 0, kept = 0;

  void tile(int kind, Range seen) {
    std::vector<std::array<float, 4>> s(kThreads);
    std::array<F32, kTile> scores;
    float local = minus_infinity();
    for (int t = 0; t < kThreads; ++t) {
      const int key = t / 8 * 16 + t % 8;
      float four[4];
      for (float& x : four) x = score(random, kind);
      const float first = four[1], second = four[3];  // of the other of the two rows
      const Range shifted{seen.begin + 1000, seen.end + 1000};
      for (int i = 0; i < 2; ++i)
        scores[at(key + 8 * i)] = seen.contains(key + 8 * i) ? numerics::from_float(four[2 * i])
                                                             : attention::kMinusInfinity;
      hide_keys(four, 1000 + key, shifted, {0, 2000});
      REQUIRE(bits(four[1]) == bits(first));
      REQUIRE(bits(four[3]) == bits(second));
      for (int i = 0; i < 4; ++i) s[at(t)][at(i)] = four[i];
      local = max_nan(local, max_nan(four[0], four[2]));
    }
    const F32 model_local = attention::row_maximum(scores, softmax.max_nan);
    REQUIRE(bits(local) == model_local.bits);
    const bool skips = started && may_skip(local, threads[0].max, offset);
    REQUIRE(skips == (started && attention::row_may_skip(profile().skip, lambda, scale, model_local,
                                                         model.max, softmax.flush)));
    ++(skips ? skipped : kept);
    if (skips) return;
    const F32 max =
        started ? numerics::max_of(model_local, model.max, softmax.max_nan) : model_local;
    const F32 scaled =
        attention::scaled_maximum(softmax, max, scale.exponent, attention::kMinusInfinity, true);
    const auto argument = attention::argument_of(softmax, max, scaled, scale.exponent);
    for (F32& x : scores) x = attention::exponential(argument, softmax.flush, x);
    const F32 correction = attention::correction_of(softmax, model.max, max, scale.exponent,
                                                    attention::kMinusInfinity, true);
    attention::add_to_sums(softmax, scores.data(), kTile, correction, !started, model);
    model.max = max;
    const float c = numerics::to_float(scale.log2);
    for (int t = 0; t < kThreads; ++t) {
      RowState& row = threads[at(t)];
      const float mine = raise_maximum<kShift>(row, local, c);
      exponentials_of_pair(s[at(t)][0], s[at(t)][2], c, mine, row);
      REQUIRE(bits(row.max) == model.max.bits);
      if (started) REQUIRE(bits(row.correction) == correction.bits);
      REQUIRE(bits(s[at(t)][0]) == scores[at(t / 8 * 16 + t % 8)].bits);
      REQUIRE(bits(s[at(t)][2]) == scores[at(t / 8 * 16 + t % 8 + 8)].bits);
      REQUIRE(same_number(bits(row.sum), model.lanes[t].bits));
    }
    started = true;
  }

  // Lanes 4 g + q: distances 16, 8 and 4 walk over g.
  PieceEnd end() const {
    float warps[4];
    for (int w = 0; w < 4; ++w) {
      std::array<float, 8> lanes{}, next{};
      for (int g = 0; g < 8; ++g) lanes[at(g)] = threads[at(8 * w + g)].sum;
      for (int distance = 4; distance >= 1; distance /= 2) {
        for (int g = 0; g < 8; ++g) next[at(g)] = add_rn(lanes[at(g)], lanes[at(g ^ distance)]);
        lanes = next;
      }
      warps[w] = lanes[0];
    }
    const float sum = sum_of_warps(warps[0], warps[1], warps[2], warps[3]);
    REQUIRE(bits(sum) == attention::sum_of(softmax, model).bits);
    return {scaled_maximum<kShift>(threads[0].max, numerics::to_float(scale.log2)), sum};
  }
};

// The model's merge of pieces of one row.
struct Merged {
  F32 lse;
  std::array<std::uint16_t, kDim> out;
};
Merged merged_by_model(const attention::Softmax& softmax, const attention::Scale& scale,
                       std::vector<attention::RowState> states, std::vector<F32> o, float v_scale) {
  attention::UnitView view;
  view.v_dim = kDim;
  view.v_scale = v_scale;
  view.soft = softmax;
  view.skip = profile().skip;
  view.scale = scale;
  attention::UnitScratch<std::uint16_t> scratch;
  const int pieces = static_cast<int>(states.size());
  std::vector<attention::PieceWeight> weights(states.size());
  std::vector<std::uint8_t> started(states.size(), 1);
  F32 factor{0};
  scratch.states = states.data();
  scratch.o = o.data();
  scratch.weights = weights.data();
  scratch.started = started.data();
  scratch.factor = &factor;
  const attention::Finish<std::uint16_t> finish(view, scratch, 1, pieces);
  Merged result{finish.row(0, 0), {}};
  for (int d = 0; d < kDim; ++d) result.out[at(d)] = finish.element(0, d);
  return result;
}

template <int kShift>
void run(std::mt19937& random, int& skipped, int& kept, int& merges) {
  static constexpr float kLambdas[] = {0, 1e-30f,     1e-3f, 0.1f,    0.99999994f,
                                       1, 1.0000001f, 7,     INFINITY};
  const attention::Softmax& softmax = kShift != 0 ? *profile().fp8 : profile().softmax;
  attention::Problem problem;
  problem.scale = std::ldexp(1.0f + static_cast<float>(random() % 1000) / 1000, -4);
  const attention::Scale scale = attention::scale_of(problem, softmax);
  const float factor = kLambdas[random() % std::size(kLambdas)];
  using Kind = attention::Threshold::Kind;
  const auto lambda =
      attention::lambda_of(profile().skip, {Kind::kLambda, factor}, 1, scale, softmax.flush);
  const float c = numerics::to_float(scale.log2);
  const float offset = skip_offset(factor, false, 1, 1.0f / c);
  const float v_scale = random() % 2 == 0 ? 1.0f : 0.37f;
  const int chunks = 1 + static_cast<int>(random() % 4);
  std::vector<attention::RowState> states;
  std::vector<PieceEnd> ends;
  std::vector<F32> o;
  for (int i = 0; i < chunks; ++i) {
    Chunk<kShift> chunk{random, softmax, scale, lambda, offset};
    const int kind = static_cast<int>(random() % 4);
    for (int t = 0; t < 5; ++t) {
      const int from = random() % 4 == 0 ? static_cast<int>(random() % kTile) : 0;
      const int to = random() % 4 == 0 ? static_cast<int>(random() % (kTile + 1)) : kTile;
      chunk.tile(kind, {from, to});
    }
    ends.push_back(chunk.end());
    states.push_back(chunk.model);
    for (int d = 0; d < kDim; ++d) o.push_back(numerics::from_float(score(random, 0)));
    skipped += chunk.skipped;
    kept += chunk.kept;
  }
  const Merged expected = merged_by_model(softmax, scale, states, o, v_scale);
  std::array<float, kDim> out{};
  PieceEnd all = ends[0];
  for (int d = 0; d < kDim; ++d) out[at(d)] = numerics::to_float(o[at(d)]);
  for (int i = 1; i < chunks; ++i) {
    const float after = max_nan(all.scaled_max, ends[at(i)].scaled_max);
    const FoldWeights w = fold_weights(all.scaled_max, ends[at(i)].scaled_max, after);
    all = {after, folded(all.sum, ends[at(i)].sum, w)};
    for (int d = 0; d < kDim; ++d)
      out[at(d)] = folded(out[at(d)], numerics::to_float(o[at(i * kDim + d)]), w);
  }
  merges += chunks > 1;
  const RowEnd end = folded_end(all, v_scale);
  REQUIRE(bits(end.lse_log2) == expected.lse.bits);
  for (int d = 0; d < kDim; ++d) {
    const float x = mul_rn(out[at(d)], end.factor);
    REQUIRE((pack_rn<Bf16>(x, x) & 0xFFFF) == expected.out[at(d)]);
  }
}

TEST_CASE("four warps of a decode compute the bits of the model's rows, and so does folding",
          "[CUD-7.4]") {
  std::mt19937 random(13);
  int skipped = 0, kept = 0, merges = 0;
  for (int i = 0; i < 400; ++i) {
    run<0>(random, skipped, kept, merges);
    run<8>(random, skipped, kept, merges);
  }
  CHECK(skipped > 100);
  CHECK(kept > 100);
  CHECK(merges > 100);
}

}  // namespace
}  // namespace assay::attention_kernels
