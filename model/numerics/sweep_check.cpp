// One small program for machines and compilers that do not run the whole suite: hashes the results
// of the special functions, of the conversions and of a few sums over every 257th input and all
// special ones, and compares with the hashes below (SPEC NUM-0.1). With --all it takes all 2^32
// inputs instead, up to minutes per function, and compares with what a GPU computed. It decides
// nothing and needs only headers:
//
//   g++ -std=c++20 -ffp-contract=off -I . model/numerics/sweep_check.cpp -o sweep_check
//   ./sweep_check [--all]
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "model/core/prng.hpp"
#include "model/numerics/add.hpp"
#include "model/numerics/convert.hpp"
#include "model/numerics/special/mufu.hpp"

using namespace assay;
using namespace assay::numerics;

namespace {

struct Sweep {
  const char* name;
  std::uint32_t (*result)(std::uint32_t);
  std::uint64_t sampled;  // hash of the sampled inputs
  std::uint64_t all;      // of all inputs, as an H200 answered them (SPEC NUM-5.1); 0 if the probe
                          // does not ask that
};

// Operands for the sums: a second and a third one that depend on x in no simple way.
constexpr F32 second(std::uint32_t x) { return F32{x * 2654435761u}; }
constexpr F32 third(std::uint32_t x) { return F32{(x ^ 0x5BD1E995u) * 2246822519u}; }

constexpr Sweep kSweeps[] = {
    {"ex2.approx.ftz.f32", [](std::uint32_t x) { return ex2_approx_ftz(F32{x}).bits; },
     0x3b338c53a9653010, 0x2a57ff826f110821},
    {"rcp.approx.ftz.f32", [](std::uint32_t x) { return rcp_approx_ftz(F32{x}).bits; },
     0xf7cda3edeea710bc, 0x1c78472e399b4d10},
    {"rsqrt.approx.ftz.f32", [](std::uint32_t x) { return rsqrt_approx_ftz(F32{x}).bits; },
     0x55bd1528fbc44c7e, 0xd74c5d2cdf04a5cd},
    {"lg2.approx.ftz.f32", [](std::uint32_t x) { return lg2_approx_ftz(F32{x}).bits; },
     0x9b4f632b498e1f5e, 0xcd13251b9cb415db},
    {"tanh.approx.f32", [](std::uint32_t x) { return tanh_approx(F32{x}).bits; },
     0x8e5698fd7d53f51b, 0xc7ee44d3b0c46ece},
    {"cvt.rn.bf16.f32", [](std::uint32_t x) { return std::uint32_t{cvt_rn_bf16_f32(F32{x}).bits}; },
     0xbaca68a1dcce494f, 0x85b790858649029e},
    {"cvt.rz.bf16.f32", [](std::uint32_t x) { return std::uint32_t{cvt_rz_bf16_f32(F32{x}).bits}; },
     0xfdea09154ec310fb, 0x9522311ef9169fd0},
    {"cvt.rn.f16.f32", [](std::uint32_t x) { return std::uint32_t{cvt_rn_f16_f32(F32{x}).bits}; },
     0x2cf4a27b5e9bb7f7, 0xc84ab7db40e839bc},
    {"cvt.rz.f16.f32", [](std::uint32_t x) { return std::uint32_t{cvt_rz_f16_f32(F32{x}).bits}; },
     0xb2ce06fd35c43b68, 0x6dc1257523c4c72e},
    {"cvt.rn.satfinite.e4m3x2.f32",
     [](std::uint32_t x) { return std::uint32_t{cvt_rn_satfinite_e4m3(F32{x}).bits}; },
     0x2e4ef51e782c0919, 0x1d73a9da2ea37946},
    {"cvt.rn.satfinite.e5m2x2.f32",
     [](std::uint32_t x) { return std::uint32_t{cvt_rn_satfinite_e5m2(F32{x}).bits}; },
     0x9ac1deaba7765567, 0xbbbc454812a0a550},
    {"cvt.rn.satfinite.e2m1x2.f32",
     [](std::uint32_t x) { return std::uint32_t{cvt_rn_satfinite_e2m1(F32{x}).bits}; },
     0x8dbbd487b8192c9d, 0},
    {"cvt.rp.satfinite.ue8m0x2.f32",
     [](std::uint32_t x) { return std::uint32_t{cvt_rp_satfinite_ue8m0(F32{x}).bits}; },
     0x862459f49d9b3ed9, 0},
    {"cvt.rz.satfinite.ue8m0x2.f32",
     [](std::uint32_t x) { return std::uint32_t{cvt_rz_satfinite_ue8m0(F32{x}).bits}; },
     0xcdd6108b227c85ff, 0},
    {"cvt.f32.f16", [](std::uint32_t x) { return widen(F16{static_cast<std::uint16_t>(x)}).bits; },
     0xfe1ea474be7801f6, 0},
    {"add.rn.f32", [](std::uint32_t x) { return add_rn(F32{x}, second(x), false).bits; },
     0x6718de786e873891, 0},
    {"mul.rn.ftz.f32", [](std::uint32_t x) { return mul_rn(F32{x}, second(x), true).bits; },
     0x1718de4354a43409, 0},
    {"div.rn.f32", [](std::uint32_t x) { return div_rn(F32{x}, second(x), false).bits; },
     0xe2a89de0c4bfee9a, 0},
    {"fma.rn.f32", [](std::uint32_t x) { return fma_rn(F32{x}, second(x), third(x), false).bits; },
     0x75941947bae6dc79, 0},
    {"fma.rz.f32", [](std::uint32_t x) { return fma_rz(F32{x}, second(x), third(x), false).bits; },
     0x72856967eeb0baeb, 0},
};

constexpr std::uint64_t kInputs = std::uint64_t{1} << 32;

// The probe's hash is the sum over all inputs of this: splitmix64 of input and result.
std::uint64_t term(std::uint32_t x, std::uint32_t result) {
  return scrambled((std::uint64_t{x} << 32 | result) + kSplitmix64Step);
}

std::uint64_t hash_all(const Sweep& sweep) {
  std::uint64_t hash = 0;
  for (std::uint64_t x = 0; x < kInputs; ++x) {
    const auto input = static_cast<std::uint32_t>(x);
    hash += term(input, sweep.result(input));
  }
  return hash;
}

// Every 257th input, and 64 neighbours on either side of each power of two of both signs: zeros,
// the smallest and largest subnormals and normals, Inf and NaN are among them.
std::uint64_t hash_sampled(const Sweep& sweep) {
  std::uint64_t hash = 0;
  for (std::uint64_t x = 0; x < kInputs; x += 257) {
    const auto input = static_cast<std::uint32_t>(x);
    hash += term(input, sweep.result(input));
  }
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (std::uint32_t i = 0; i < 128; ++i) {
      const std::uint32_t input = (top << 23) + i - 64;
      hash += term(input, sweep.result(input));
    }
  }
  return hash;
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc == 2 && std::strcmp(argv[1], "--all") == 0;
  if (argc > 2 || (argc == 2 && !all)) {
    std::fprintf(stderr, "'%s' is not known; allowed is --all\n", argv[1]);
    return 2;
  }
  if (!host_arithmetic_is_ieee()) {
    std::fprintf(stderr, "this host's floating-point unit is not in IEEE mode\n");
    return 2;
  }
  int wrong = 0;
  for (const Sweep& sweep : kSweeps) {
    const std::uint64_t expected = all ? sweep.all : sweep.sampled;
    if (all && expected == 0) continue;
    const std::uint64_t hash = all ? hash_all(sweep) : hash_sampled(sweep);
    wrong += hash != expected;
    std::printf("%-30s 0x%016" PRIx64 " %s\n", sweep.name, hash,
                hash == expected ? "as recorded" : "DIFFERS");
    std::fflush(stdout);
  }
  std::printf("%s\n", wrong == 0 ? "all hashes as recorded" : "some hashes differ");
  return wrong == 0 ? 0 : 1;
}
