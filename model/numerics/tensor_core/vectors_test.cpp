// The model against what hardware computed: every recorded result, on every path, and the proof
// that the recorded inputs can tell the right rule from its neighbours.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "model/core/testing.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"
#include "model/numerics/tensor_core/test_vectors.hpp"
#include "model/numerics/tensor_core/vectors_path.hpp"

using namespace assay;
using namespace assay::numerics;

namespace {

const char* const kFiles[] = {"wgmma_bf16", "wgmma_f16",  "wgmma_f16acc16", "wgmma_tf32",
                              "wgmma_e4m3", "wgmma_e5m2", "mma_bf16",       "mma_f16",
                              "mma_tf32",   "mma_e4m3",   "mma_e5m2"};

RecordedTiles load(const std::string& name) {
  const auto tiles = load_tiles(
      std::string(ASSAY_TENSOR_CORE_VECTORS) + "/" + name + ".safetensors", Arch::kSm90a);
  if (!tiles) FAIL(tiles.error().sentence);
  return *tiles;
}

// Mismatches per style of one arithmetic over all recorded results.
std::map<int, int> mismatches(const RecordedTiles& v, const Arithmetic& arithmetic) {
  std::map<int, int> count;
  for (int style = 0; style < 5; ++style) count[style] = 0;
  for (int t = 0; t < v.tiles; ++t) {
    for (int i = 0; i < v.m; ++i) {
      for (int j = 0; j < v.n; ++j) {
        const std::size_t at = v.result(t, i, j);
        const F32 got = instruction_dot(arithmetic, v.row_of_a(t, i), v.row_of_b(t, j), v.c[at]);
        if (!same_bits(got, v.d[at])) ++count[v.style[static_cast<std::size_t>(t)]];
      }
    }
  }
  return count;
}

int sum_of(const std::map<int, int>& count) {
  int sum = 0;
  for (const auto& [style, n] : count) sum += n;
  return sum;
}

template <class T>
int tile_mismatches(const RecordedTiles& v, MmaPath path) {
  const std::vector<T> a(v.a.begin(), v.a.end());
  const std::vector<T> b(v.b.begin(), v.b.end());
  int wrong = 0;
  for (int t = 0; t < v.tiles; ++t) {
    std::vector<F32> d(static_cast<std::size_t>(v.m * v.n));
    MmaProblem<T> problem;
    problem.m = v.m;
    problem.n = v.n;
    problem.k = v.k;
    problem.a = &a[static_cast<std::size_t>(t * v.m * v.k)];
    problem.b = &b[static_cast<std::size_t>(t * v.n * v.k)];
    problem.c = &v.c[v.result(t, 0, 0)];
    problem.d = d.data();
    const Status done = mma(*v.instruction, problem, path);
    if (!done) FAIL(done.error().sentence);
    for (std::size_t i = 0; i < d.size(); ++i)
      wrong += !same_bits(d[i], v.d[v.result(t, 0, 0) + i]);
  }
  return wrong;
}

int tile_mismatches(const RecordedTiles& v, MmaPath path) {
  switch (v.instruction->arithmetic.rule.a) {
    case OperandFormat::kTf32:
      return tile_mismatches<std::uint32_t>(v, path);
    case OperandFormat::kF16:
    case OperandFormat::kBf16:
      return tile_mismatches<std::uint16_t>(v, path);
    default:
      return tile_mismatches<std::uint8_t>(v, path);
  }
}

}  // namespace

TEST_CASE("every result recorded on an H200 is reproduced, NaN and Inf included",
          "[NUM-4.1][NUM-4.2][NUM-4.4][NUM-4.6][NUM-4.9]") {
  for (const char* name : kFiles) {
    const RecordedTiles v = load(name);
    CAPTURE(name, v.instruction->name());
    REQUIRE(v.tiles == 30);
    std::map<int, int> tiles_of_style;
    for (const std::int32_t style : v.style) ++tiles_of_style[style];
    for (int style = 0; style < 5; ++style) REQUIRE(tiles_of_style[style] == 6);
    REQUIRE(sum_of(mismatches(v, v.instruction->arithmetic)) == 0);
    REQUIRE(tile_mismatches(v, MmaPath::kScalar) == 0);
    REQUIRE(tile_mismatches(v, MmaPath::kBest) == 0);
  }
}

TEST_CASE("every instruction's tiles recorded by the probe are reproduced, and no result is -0",
          "[NUM-4.3][NUM-4.4][NUM-4.9]") {
  // One or two tiles for each of the probe's seven styles (cuda/probe/mma_inputs.cuh).
  int files = 0;
  int zeros = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(ASSAY_TENSOR_CORE_VECTORS) + "/probe")) {
    const auto loaded = load_tiles(entry.path().string(), Arch::kSm90a);
    if (!loaded) FAIL(loaded.error().sentence);
    const RecordedTiles& v = *loaded;
    CAPTURE(v.instruction->name());
    ++files;
    CHECK(v.instruction->evidence == Evidence::kMeasured);
    CHECK(sum_of(mismatches(v, v.instruction->arithmetic)) == 0);
    CHECK(tile_mismatches(v, MmaPath::kBest) == 0);
    for (const F32 d : v.d) {
      CHECK(d.bits != 0x80000000u);
      zeros += d.bits == 0;
    }
  }
  CHECK(files == 28);
  CHECK(zeros > 100);
}

TEST_CASE("the recorded results reject every neighbouring rule", "[NUM-4.9]") {
  const bool print_counts = std::getenv("ASSAY_PRINT_COUNTS") != nullptr;
  const std::pair<const char*, void (*)(Rule&)> mutants[] = {
      {"F + 1", [](Rule& r) { ++r.fraction_bits; }},
      {"F - 1", [](Rule& r) { --r.fraction_bits; }},
      {"other final rounding",
       [](Rule& r) {
         r.rounding =
             r.rounding == Rounding::kNearestEven ? Rounding::kTowardZero : Rounding::kNearestEven;
       }},
      {"floor", [](Rule& r) { r.floor_alignment = true; }},
      {"renormalised products", [](Rule& r) { r.renormalised_products = true; }},
      {"late c", [](Rule& r) { r.late_c = true; }},
      {"half the products in a block", [](Rule& r) { r.products /= 2; }},
  };
  // An fp16 result keeps 11 of the 25 bits: the recorded inputs never cancel far enough to show F,
  // the shift's rounding or the alignment of products. The probe's residual tiles do (cuda/probe).
  const std::string undecided_in_f16[] = {"F + 1", "F - 1", "floor", "renormalised products"};
  for (const char* name : kFiles) {
    const RecordedTiles v = load(name);
    if (v.instruction->arithmetic.lowering != Lowering::kNative) continue;
    for (const auto& [mutant, apply] : mutants) {
      if (std::string(name) == "wgmma_f16acc16" &&
          std::count(std::begin(undecided_in_f16), std::end(undecided_in_f16), mutant) != 0)
        continue;
      Arithmetic wrong = v.instruction->arithmetic;
      apply(wrong.rule);
      const std::map<int, int> count = mismatches(v, wrong);
      std::string counts;
      for (const auto& [style, n] : count) counts.append(" ").append(std::to_string(n));
      INFO(name << ", " << mutant << ": of 3072 results per style fail" << counts);
      CHECK(sum_of(count) > 0);
      if (print_counts) WARN(name << ", " << mutant << ":" << counts);
    }
  }
}

TEST_CASE("mma.sync on fp8 is neither an fp8 unit nor one that takes c first", "[NUM-4.6]") {
  for (const char* name : {"mma_e4m3", "mma_e5m2"}) {
    const RecordedTiles v = load(name);
    Arithmetic native = v.instruction->arithmetic;
    native.lowering = Lowering::kNative;
    native.rule.products = 32;
    CAPTURE(name);
    CHECK(sum_of(mismatches(v, native)) > 0);
    native.rule.fraction_bits = 13;
    native.rule.output = OutputFormat::kE8m13;
    CHECK(sum_of(mismatches(v, native)) > 0);
    Arithmetic halves = v.instruction->arithmetic;  // native fp8 in two chained blocks, c first
    halves.lowering = Lowering::kNative;
    CHECK(sum_of(mismatches(v, halves)) > 0);
  }
}

// Published results of other GPUs, by other people. Not part of this repository.
TEST_CASE("published results of A100, Ada and B200 are reproduced", "[NUM-4.10]") {
  const char* extra = std::getenv("ASSAY_EXTRA_DATA");
  if (extra == nullptr) {
    WARN("skipped: ASSAY_EXTRA_DATA is not set to a directory that contains published/");
    return;
  }
  struct Case {
    const char* file;
    Arch arch;
    const char* f32;
    const char* f16;
  };
  const Case cases[] = {
      {"A100_bf16", Arch::kSm80, "mma.sync.m16n8k8.f32.bf16.bf16", nullptr},
      {"A100_fp16", Arch::kSm80, "mma.sync.m16n8k8.f32.f16.f16", "mma.sync.m16n8k8.f16.f16.f16"},
      {"A100_tf32", Arch::kSm80, "mma.sync.m16n8k4.f32.tf32.tf32", nullptr},
      {"Ada_bf16", Arch::kSm89, "mma.sync.m16n8k8.f32.bf16.bf16", nullptr},
      {"Ada_fp16", Arch::kSm89, "mma.sync.m16n8k8.f32.f16.f16", "mma.sync.m16n8k8.f16.f16.f16"},
      {"Ada_tf32", Arch::kSm89, "mma.sync.m16n8k4.f32.tf32.tf32", nullptr},
      {"Ada_E4M3", Arch::kSm89, "mma.sync.m16n8k32.f32.e4m3.e4m3", "mma.sync.k32.f16.e4m3.e4m3"},
      {"Ada_E5M2", Arch::kSm89, "mma.sync.m16n8k32.f32.e5m2.e5m2", "mma.sync.k32.f16.e5m2.e5m2"},
      {"B200_bf16", Arch::kSm100a, "mma.sync.m16n8k16.f32.bf16.bf16", nullptr},
      {"B200_fp16", Arch::kSm100a, "mma.sync.m16n8k16.f32.f16.f16", "mma.sync.k16.f16.f16.f16"},
      {"B200_tf32", Arch::kSm100a, "mma.sync.m16n8k4.f32.tf32.tf32", nullptr},
      {"B200_E4M3", Arch::kSm100a, "mma.sync.m16n8k32.f32.e4m3.e4m3", "mma.sync.k32.f16.e4m3.e4m3"},
      {"B200_E5M2", Arch::kSm100a, "mma.sync.m16n8k32.f32.e5m2.e5m2", "mma.sync.k32.f16.e5m2.e5m2"},
  };
  for (const Case& wanted : cases) {
    CAPTURE(wanted.file);
    const auto file =
        TensorFile::open(std::string(extra) + "/published/" + wanted.file + ".safetensors");
    if (!file) FAIL(file.error().sentence);
    const auto a = file->tensor("a")->as<F32>()->copy();
    const auto b = file->tensor("b")->as<F32>()->copy();
    const auto c = file->tensor("c")->as<F32>()->copy();
    const std::size_t k = a.size() / c.size();
    for (const char* name : {wanted.f32, wanted.f16}) {
      if (name == nullptr) continue;
      const auto row = require_instruction(name, wanted.arch);
      if (!row) FAIL(row.error().sentence);
      const Arithmetic& arithmetic = (*row)->arithmetic;
      REQUIRE(k == static_cast<std::size_t>(arithmetic.k));
      const bool f16 = arithmetic.rule.output == OutputFormat::kF16;
      const auto narrowed = [&](OperandFormat format, F32 x) -> std::uint32_t {
        switch (format) {
          case OperandFormat::kF16:
            return cvt_rn_f16_f32(x).bits;
          case OperandFormat::kBf16:
            return x.bits >> 16;
          case OperandFormat::kE4m3:
            return narrow<E4m3>(x, Rounding::kNearestEven, Overflow::kSaturate).bits;
          case OperandFormat::kE5m2:
            return narrow<E5m2>(x, Rounding::kNearestEven, Overflow::kSaturate).bits;
          default:
            return x.bits;
        }
      };
      int wrong = 0;
      for (std::size_t i = 0; i < c.size(); ++i) {
        std::vector<std::uint32_t> x(k), y(k);
        for (std::size_t q = 0; q < k; ++q) {
          x[q] = narrowed(arithmetic.rule.a, a[i * k + q]);
          y[q] = narrowed(arithmetic.rule.b, b[i * k + q]);
        }
        // The fp16 results were recorded with c rounded to fp16 first.
        const F32 start = f16 ? widen(cvt_rn_f16_f32(c[i])) : c[i];
        const F32 got = instruction_dot(arithmetic, x.data(), y.data(), start);
        // d_fp16 holds the low half of the widened result: fp16's last three fraction bits.
        wrong += f16 ? (got.bits & 0xFFFF) != (*file->tensor("d_fp16")->as<std::uint16_t>())[i]
                     : got.bits != (*file->tensor("d_fp32")->as<F32>())[i].bits;
      }
      CAPTURE(name);
      CHECK(wrong == 0);
    }
  }
}
