// Row functions against the scalar ones, on every instruction set that this machine can run.
#include <hwy/highway.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/bulk.hpp"
#include "model/numerics/numerics.hpp"

using namespace assay;
using namespace assay::numerics;

namespace {

template <class T>
std::vector<T> every_code() {
  std::vector<T> codes(std::size_t{1} << (8 * sizeof(T)));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i].bits = static_cast<typename Format<T>::Bits>(i);
  }
  return codes;
}

// All upper halves, each with lower halves at zero, around one half of every narrow format's last
// bit, and a hash: the same critical inputs as in convert_test.cpp, as one row.
std::vector<F32> critical_f32() {
  std::vector<F32> row;
  for (std::uint32_t upper = 0; upper < (1u << 16); ++upper) {
    for (const std::uint32_t low : {0x0u, 0x1u, 0xFFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFu, 0x8000u,
                                    0x8001u, 0xFFFFu, (upper * 40503u) & 0xFFFFu}) {
      row.push_back(F32{(upper << 16) | low});
    }
  }
  return row;
}

template <class T>
std::size_t differences(const std::vector<T>& got, const std::vector<T>& expected) {
  std::size_t count = got.size() != expected.size();
  for (std::size_t i = 0; i < got.size(); ++i) count += got[i].bits != expected[i].bits;
  return count;
}

template <class From>
std::size_t wrong_widenings() {
  const auto in = every_code<From>();
  std::vector<F32> got(in.size()), expected(in.size());
  widen_row(in, got);
  for (std::size_t i = 0; i < in.size(); ++i) expected[i] = widen(in[i]);
  return differences(got, expected);
}

template <class To>
std::size_t wrong_narrowings(const std::vector<F32>& in, Overflow overflow) {
  std::vector<To> got(in.size()), expected(in.size());
  narrow_row(in, got);
  for (std::size_t i = 0; i < in.size(); ++i) {
    expected[i] = narrow<To>(in[i], Rounding::kNearestEven, overflow);
  }
  return differences(got, expected);
}

std::size_t wrong_f32_sums(const std::vector<F32>& a, bool flush) {
  std::vector<F32> b(a.size()), got(a.size()), expected(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    // A partner within 16 binades, of either sign; some exact opposites.
    const auto hash = static_cast<std::uint32_t>(i * 2654435761u);
    b[i].bits = i % 13 == 0
                    ? a[i].bits ^ 0x80000000u
                    : (a[i].bits ^ (hash & 0x807FFFFFu)) + ((hash >> 27) << 23) - (16u << 23);
    expected[i] = add_rn(a[i], b[i], flush);
  }
  add_rows(a, b, got, flush);
  return differences(got, expected);
}

template <class T>
std::size_t wrong_narrow_sums() {
  const auto a = every_code<T>();
  std::size_t wrong = 0;
  for (std::uint32_t step = 1; step < 0x10000; step += 331) {
    std::vector<T> b(a.size()), got(a.size()), expected(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      b[i].bits = static_cast<std::uint16_t>(i + step);
      expected[i] = add_rn(a[i], b[i]);
    }
    add_rows(a, b, got);
    wrong += differences(got, expected);
  }
  return wrong;
}

}  // namespace

TEST_CASE("row functions have the bits of the scalar ones on every instruction set",
          "[NUM-3.9][NUM-0.1]") {
  const auto inputs = critical_f32();
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    CAPTURE(std::string(hwy::TargetName(target)));
    CHECK(wrong_widenings<Bf16>() == 0);
    CHECK(wrong_widenings<F16>() == 0);
    CHECK(wrong_widenings<E4m3>() == 0);
    CHECK(wrong_widenings<E5m2>() == 0);
    CHECK(wrong_narrowings<Bf16>(inputs, Overflow::kInfinity) == 0);
    CHECK(wrong_narrowings<F16>(inputs, Overflow::kInfinity) == 0);
    CHECK(wrong_narrowings<E4m3>(inputs, Overflow::kSaturate) == 0);
    CHECK(wrong_narrowings<E5m2>(inputs, Overflow::kSaturate) == 0);
    CHECK(wrong_f32_sums(inputs, false) == 0);
    CHECK(wrong_f32_sums(inputs, true) == 0);
    CHECK(wrong_narrow_sums<Bf16>() == 0);
    CHECK(wrong_narrow_sums<F16>() == 0);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("rows of any length end in the right place", "[NUM-3.9]") {
  for (std::size_t n = 0; n < 70; ++n) {
    std::vector<Bf16> a(n, Bf16{0x3F80}), out(n + 1, Bf16{0xDEAD});
    add_rows(a, a, std::span(out).first(n));
    for (std::size_t i = 0; i < n; ++i) CHECK(out[i].bits == 0x4000);
    CHECK(out[n].bits == 0xDEAD);
  }
}

TEST_CASE("a row may be added into itself", "[NUM-3.9]") {
  std::vector<F32> a(37, from_float(1.5f));
  add_rows(a, a, a, false);
  for (const F32 x : a) CHECK(to_float(x) == 3.0f);
}
