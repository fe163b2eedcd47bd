// The special-function unit against recorded sweeps, the vector paths against the scalar text, and
// the compositions against the instructions they are made of.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include <hwy/targets.h>

#include "model/core/prng.hpp"
#include "model/core/testing.hpp"
#include "model/numerics/special/fast_math.hpp"
#include "model/numerics/special/half.hpp"
#include "model/numerics/special/polynomial.hpp"
#include "model/numerics/special/special.hpp"
#include "model/numerics/special/vectors_path.hpp"

using namespace assay;
using namespace assay::numerics;

namespace {

struct Sweep {
  const char* name;
  Mufu function;
  std::uint32_t first_input;
};
constexpr Sweep kSweeps[] = {
    {"ex2_1to2", Mufu::kEx2, 0x3F800000},     {"rcp_1to2", Mufu::kRcp, 0x3F800000},
    {"rsqrt_1to2", Mufu::kRsqrt, 0x3F800000}, {"rsqrt_2to4", Mufu::kRsqrt, 0x40000000},
    {"lg2_2to4", Mufu::kLg2, 0x40000000},     {"tanh_e-8", Mufu::kTanh, 0x3B800000},
    {"tanh_e-7", Mufu::kTanh, 0x3C000000},    {"tanh_e-6", Mufu::kTanh, 0x3C800000},
    {"tanh_e-5", Mufu::kTanh, 0x3D000000},    {"tanh_e-4", Mufu::kTanh, 0x3D800000},
    {"tanh_e-3", Mufu::kTanh, 0x3E000000},    {"tanh_e-2", Mufu::kTanh, 0x3E800000},
    {"tanh_e-1", Mufu::kTanh, 0x3F000000},    {"tanh_e0", Mufu::kTanh, 0x3F800000},
    {"tanh_e1", Mufu::kTanh, 0x40000000},     {"tanh_e2", Mufu::kTanh, 0x40800000}};
constexpr std::size_t kSweepSize = std::size_t{1} << 23;

// The content of a recorded file, unpacked.
template <class T>
std::vector<T> unpacked(const std::string& name, std::size_t count) {
  const std::string path = std::string(ASSAY_SPECIAL_VECTORS) + "/" + name;
  const std::string command = std::string(ASSAY_PYTHON) +
                              " -c \"import lzma, sys; sys.stdout.buffer.write(lzma.open('" + path +
                              "').read())\"";
  std::vector<T> values(count);
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  const std::size_t read = std::fread(values.data(), sizeof(T), count, pipe);
  REQUIRE(pclose(pipe) == 0);
  REQUIRE(read == count);
  return values;
}

// The recorded results of a sweep: the first one's bits, then differences between neighbours.
std::vector<F32> recorded(const Sweep& sweep) {
  std::vector<F32> values =
      unpacked<F32>(std::string("mufu_") + sweep.name + ".i32delta.xz", kSweepSize);
  for (std::size_t i = 1; i < kSweepSize; ++i) values[i].bits += values[i - 1].bits;
  return values;
}

std::size_t differences(const std::vector<F32>& a, const std::vector<F32>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += !same_bits(a[i], b[i]);
  return count;
}

// Every input whose bits are a multiple of `step`, and all neighbours of every power of two.
std::vector<F32> sampled_inputs(std::uint32_t step) {
  std::vector<F32> inputs;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += step)
    inputs.push_back(F32{static_cast<std::uint32_t>(bits)});
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (std::uint32_t i = 0; i < 64; ++i) {
      inputs.push_back(F32{(top << 23) + i});
      inputs.push_back(F32{(top << 23) - 1 - i});
    }
  }
  return inputs;
}

constexpr F32 kNan{0x7FFFFFFF}, kInf{0x7F800000}, kMinusInf{0xFF800000}, kOne{0x3F800000};
constexpr F32 kSomeNans[] = {{0x7FC00000}, {0xFFC00000}, {0x7F800001}, {0xFF812345}};
constexpr F32 kSubnormals[] = {{0}, {1}, {0x007FFFFF}};

}  // namespace

TEST_CASE("every result of every recorded sweep is reproduced", "[NUM-5.1][NUM-5.2][NUM-5.9]") {
  for (const Sweep& sweep : kSweeps) {
    const std::vector<F32> want = recorded(sweep);
    std::vector<F32> input(kSweepSize), got(kSweepSize);
    for (std::size_t i = 0; i < kSweepSize; ++i)
      input[i] = F32{sweep.first_input + static_cast<std::uint32_t>(i)};
    mufu(sweep.function, input, got);
    CAPTURE(sweep.name);
    CHECK(differences(want, got) == 0);
    for (std::size_t i = 0; i < kSweepSize; ++i) got[i] = mufu(sweep.function, input[i]);
    CHECK(differences(want, got) == 0);
  }
}

TEST_CASE("every result of the 16-bit forms is reproduced", "[NUM-5.10]") {
  const std::size_t size = std::size_t{1} << 16;
  const auto table = unpacked<std::uint16_t>("mufu_half.u16.xz", 4 * size);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const F16 h{static_cast<std::uint16_t>(i)};
    const Bf16 b{static_cast<std::uint16_t>(i)};
    wrong += ex2_approx(h).bits != table[i];
    wrong += ex2_approx_ftz(b).bits != table[size + i];
    wrong += tanh_approx(h).bits != table[2 * size + i];
    wrong += tanh_approx(b).bits != table[3 * size + i];
  }
  CHECK(wrong == 0);
}

TEST_CASE("tanh is odd, the argument below 2^-8 and one from 8 on", "[NUM-5.9]") {
  for (const F32 x : sampled_inputs(65537)) {
    if (is_nan(x)) {
      REQUIRE(same_bits(tanh_approx(x), kNan));
      continue;
    }
    REQUIRE(tanh_approx(F32{x.bits ^ 0x80000000u}).bits == (tanh_approx(x).bits ^ 0x80000000u));
    if (magnitude(x) < 0x3B800000u) REQUIRE(same_bits(tanh_approx(x), x));
    if (magnitude(x) >= 0x41000000u) REQUIRE(magnitude(tanh_approx(x)) == kOne.bits);
  }
}

TEST_CASE("a squarer that keeps its carries does not reproduce the sweeps", "[NUM-5.2]") {
  const std::vector<F32> want = recorded(kSweeps[0]);
  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i < kSweepSize; ++i) {
    const std::uint32_t low = i & 0x1FFFF;
    const auto exact = static_cast<std::uint32_t>(std::uint64_t{low} * low >> 19);
    const std::int64_t sum = mufu_detail::interpolate(kMufuEx2Form, kMufuEx2[i >> 17], low, exact);
    wrong += want[i].bits != 0x40000000u + static_cast<std::uint32_t>(sum) - 0x800000u;
  }
  CHECK(wrong > kSweepSize / 100);
}

TEST_CASE("vectors give the bits of the scalar text on every instruction set", "[NUM-5.8]") {
  const std::vector<F32> input = sampled_inputs(4099);
  std::vector<F32> want(input.size()), got(input.size());
  for (const Mufu function : {Mufu::kEx2, Mufu::kRcp, Mufu::kRsqrt, Mufu::kLg2, Mufu::kTanh}) {
    for (std::size_t i = 0; i < input.size(); ++i) want[i] = mufu(function, input[i]);
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      CAPTURE(mufu_name(function), hwy::TargetName(target));
      mufu(function, input, got);
      CHECK(differences(want, got) == 0);
      got = input;  // in place
      mufu(function, got, got);
      CHECK(differences(want, got) == 0);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("ex2 saturates, flushes and biases negative arguments low", "[NUM-5.3]") {
  for (const F32 x : kSomeNans) CHECK(same_bits(ex2_approx_ftz(x), kNan));
  for (const F32 x : kSubnormals) {
    CHECK(same_bits(ex2_approx_ftz(x), kOne));
    CHECK(same_bits(ex2_approx_ftz(F32{x.bits | 0x80000000u}), kOne));
  }
  CHECK(same_bits(ex2_approx_ftz(kInf), kInf));
  CHECK(same_bits(ex2_approx_ftz(kMinusInf), F32{0}));
  CHECK(same_bits(ex2_approx_ftz(from_float(128.0f)), kInf));
  CHECK(ex2_approx_ftz(from_float(127.0f)).bits == 254u << 23);
  CHECK(ex2_approx_ftz(from_float(-126.0f)).bits == 1u << 23);
  CHECK(ex2_approx_ftz(from_float(-126.00001f)).bits == 0);
  // The argument is cut at 2^-23: the next number below zero that is seen gives less than 1.
  CHECK(same_bits(ex2_approx_ftz(from_float(-0x1.FFFFFEp-24f)), kOne));
  CHECK(ex2_approx_ftz(from_float(-0x1p-23f)).bits == 0x3F7FFFFE);
}

TEST_CASE("rcp and rsqrt mirror exponents and keep signs of zeros", "[NUM-5.4]") {
  for (const F32 x : kSomeNans) {
    CHECK(same_bits(rcp_approx_ftz(x), kNan));
    CHECK(same_bits(rsqrt_approx_ftz(x), kNan));
  }
  for (const F32 x : kSubnormals) {
    const F32 minus{x.bits | 0x80000000u};
    CHECK(same_bits(rcp_approx_ftz(x), kInf));
    CHECK(same_bits(rcp_approx_ftz(minus), kMinusInf));
    CHECK(same_bits(rsqrt_approx_ftz(x), kInf));
    CHECK(same_bits(rsqrt_approx_ftz(minus), kMinusInf));
  }
  CHECK(same_bits(rcp_approx_ftz(kInf), F32{0}));
  CHECK(same_bits(rcp_approx_ftz(kMinusInf), F32{0x80000000}));
  CHECK(same_bits(rsqrt_approx_ftz(kInf), F32{0}));
  CHECK(same_bits(rsqrt_approx_ftz(kMinusInf), kNan));
  CHECK(same_bits(rsqrt_approx_ftz(from_float(-1.0f)), kNan));
  for (int e = -125; e <= 125; ++e) {
    const F32 power{static_cast<std::uint32_t>(127 + e) << 23};
    CHECK(rcp_approx_ftz(power).bits == static_cast<std::uint32_t>(127 - e) << 23);
    if (e % 2 == 0)
      CHECK(rsqrt_approx_ftz(power).bits == static_cast<std::uint32_t>(127 - e / 2) << 23);
  }
  CHECK(rcp_approx_ftz(from_float(0x1p126f)).bits == 0x00800000u);
  CHECK(rcp_approx_ftz(from_float(0x1.000002p126f)).bits == 0);
  CHECK(rcp_approx_ftz(from_float(-0x1p127f)).bits == 0x80000000u);
}

TEST_CASE("lg2 is exact at 1 only, and low by one complement below 1", "[NUM-5.5]") {
  for (const F32 x : kSomeNans) CHECK(same_bits(lg2_approx_ftz(x), kNan));
  for (const F32 x : kSubnormals) {
    CHECK(same_bits(lg2_approx_ftz(x), kMinusInf));
    CHECK(same_bits(lg2_approx_ftz(F32{x.bits | 0x80000000u}), kMinusInf));
  }
  CHECK(same_bits(lg2_approx_ftz(kInf), kInf));
  CHECK(same_bits(lg2_approx_ftz(kMinusInf), kNan));
  CHECK(same_bits(lg2_approx_ftz(from_float(-1.0f)), kNan));
  CHECK(same_bits(lg2_approx_ftz(kOne), F32{0}));
  CHECK(lg2_approx_ftz(from_float(2.0f)).bits == kOne.bits);
  CHECK(lg2_approx_ftz(from_float(0.5f)).bits == 0xBF7FFFFE);
  // Nothing but 1 gives 0: the normalisation always finds a leading one.
  std::uint32_t smallest = 0x7FFFFFFF;
  for (std::uint32_t bits = 0x3F000000; bits < 0x40000000; ++bits) {
    if (bits != 0x3F800000) smallest = std::min(smallest, magnitude(lg2_approx_ftz(F32{bits})));
  }
  CHECK(smallest > 0x32000000u);  // 2^-27
}

TEST_CASE("compiler-made functions are the instructions outside the scaled ranges", "[NUM-5.6]") {
  for (const F32 x : sampled_inputs(65537)) {
    const bool ordinary = magnitude(x) >= 0x00800000u && magnitude(x) <= 0x42FC0000u;
    if (!ordinary) continue;
    REQUIRE(same_bits(ex2_approx(x), ex2_approx_ftz(x)));
    REQUIRE(same_bits(rcp_approx(x), rcp_approx_ftz(x)));
    REQUIRE(same_bits(rsqrt_approx(x), rsqrt_approx_ftz(x)));
    REQUIRE(same_bits(lg2_approx(x), lg2_approx_ftz(x)));
    REQUIRE(same_bits(div_approx_ftz(kOne, x), rcp_approx_ftz(x)));
  }
  // Where the instruction flushes, the compiler's form does not.
  CHECK(ex2_approx(from_float(-130.0f)).bits == 0x00080000);
  CHECK(ex2_approx_ftz(from_float(-130.0f)).bits == 0);
  CHECK(rcp_approx(from_float(0x1p-130f)).bits == kInf.bits);
  CHECK(rcp_approx(from_float(0x1p-127f)).bits == from_float(0x1p127f).bits);
  CHECK(rcp_approx(from_float(0x1p127f)).bits == 0x00400000);
  CHECK(rsqrt_approx(from_float(0x1p-130f)).bits == from_float(0x1p65f).bits);
  CHECK(lg2_approx(from_float(0x1p-130f)).bits == 0xC3020000);
  CHECK(div_approx(from_float(0x1p-127f), from_float(0x1p-127f)).bits == kOne.bits);
  CHECK(div_full_ftz(from_float(0x1p127f), from_float(0x1p127f)).bits == kOne.bits);
  CHECK(div_approx_ftz(from_float(0x1p127f), from_float(0x1p127f)).bits == 0);
  for (const F32 x : kSomeNans) {
    CHECK(same_bits(ex2_approx(x), kNan));
    CHECK(same_bits(rcp_approx(x), kNan));
    CHECK(same_bits(expf_default(x), kNan));
  }
}

TEST_CASE("expf stays within two steps of the exponential", "[NUM-5.6]") {
  for (int i = -8700; i <= 8800; ++i) {
    const float x = static_cast<float>(i) * 0.01f;
    const auto want = from_float(static_cast<float>(std::exp(static_cast<double>(x))));
    if (want.bits < 0x00800000u) continue;
    const std::int64_t step = std::int64_t{expf_default(from_float(x)).bits} - want.bits;
    REQUIRE((step >= -2 && step <= 2));
  }
}

TEST_CASE("the polynomial exponential splits at integers and follows its pattern", "[NUM-5.7]") {
  for (int e = -126; e <= 127; ++e) {
    const F32 x = from_float(static_cast<float>(e));
    CHECK(ex2_polynomial(x).bits == static_cast<std::uint32_t>(127 + e) << 23);
  }
  CHECK(ex2_polynomial(from_float(-127.0f)).bits == 0);
  CHECK(ex2_polynomial(kMinusInf).bits == 0);
  CHECK(ex2_polynomial(kNan).bits == 0);
  double worst = 0;
  for (int i = -100000; i <= 0; ++i) {
    const float x = static_cast<float>(i) * 1e-3f;
    const double want = std::exp2(static_cast<double>(x));
    worst = std::max(
        worst, std::fabs(static_cast<double>(to_float(ex2_polynomial(from_float(x)))) / want - 1));
  }
  CHECK(worst < 0x1p-12);
  CHECK(worst > 0x1p-14);  // a degree-3 polynomial, not the hardware instruction

  const PolynomialPattern pattern{10, 4, 0, 1, 32};
  int taken = 0;
  for (int i = 0; i < 128; ++i) {
    const bool poly = takes_polynomial(pattern, i, 128);
    taken += poly;
    CHECK(poly == (i < 96 && (i % 32 / 2 * 2) % 10 >= 6));
    CHECK(!takes_polynomial(PolynomialPattern{}, i, 128));
  }
  CHECK(taken == 3 * 12);
}

TEST_CASE("names of functions are checked with a sentence", "[NUM-5.8]") {
  CHECK(*parse_mufu("rsqrt") == Mufu::kRsqrt);
  CHECK(parse_mufu("sin").error().sentence ==
        "function is 'sin'; allowed are ex2, rcp, rsqrt, lg2 and tanh");
}

// Not run by default, for it takes 20 s: what verify/evidence/numerics-h200-x1-*.json states for a
// GPU, the sum over all 2^32 inputs x of mix(x * 2^32 + result) (cuda/probe/probe.cuh).
TEST_CASE("hashes over all inputs are those of the H200", "[.exhaustive][NUM-5.1]") {
  const std::pair<Mufu, std::uint64_t> hashes[] = {{Mufu::kEx2, 0x2a57ff826f110821},
                                                   {Mufu::kRcp, 0x1c78472e399b4d10},
                                                   {Mufu::kRsqrt, 0xd74c5d2cdf04a5cd},
                                                   {Mufu::kLg2, 0xcd13251b9cb415db}};
  std::vector<F32> x(1 << 16), y(1 << 16);
  for (const auto& [function, want] : hashes) {
    std::uint64_t hash = 0;
    for (std::uint32_t top = 0; top < 65536; ++top) {
      for (std::uint32_t i = 0; i < 65536; ++i) x[i] = F32{(top << 16) + i};
      mufu(function, x, y);
      for (std::uint32_t i = 0; i < 65536; ++i)
        hash += scrambled((std::uint64_t{x[i].bits} << 32 | y[i].bits) + kSplitmix64Step);
    }
    CAPTURE(mufu_name(function));
    CHECK(hash == want);
  }
}

// Not run by default: prints results per second and core (budget: 200 M).
TEST_CASE("rate of special functions", "[.bench]") {
  std::vector<F32> x(1 << 14), y(1 << 14);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = F32{0x3F800000u + static_cast<std::uint32_t>(i) * 509};
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const Mufu function : {Mufu::kEx2, Mufu::kRcp, Mufu::kRsqrt, Mufu::kLg2}) {
      timespec start, end;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
      for (int repeat = 0; repeat < 500; ++repeat) mufu(function, x, y);
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
      const double seconds = static_cast<double>(end.tv_sec - start.tv_sec) +
                             1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
      std::printf("%s %s %.0f M/s\n", hwy::TargetName(target),
                  std::string(mufu_name(function)).c_str(),
                  500e-6 * static_cast<double>(x.size()) / seconds);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}
