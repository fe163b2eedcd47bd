// Whole problems of 65536 keys, too long for the suites: made on the GPU, run by our kernel there,
// and compared in every bit with the emulator compiled for the GPU; some units, drawn at random,
// also with the emulator on the host, whose text is the same and whose compiler is not. Decides
// SPEC VER-25.8. Exists only on machines with a GPU that the kernels run on; a build without CUDA
// says so.
//
//   ASSAY_TRY(const LongResult result, run_long({}, {}));
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention/attention.hpp"
#include "verify/compare/report.hpp"

namespace assay::verify {

// "kernel=prefill heads=8/1 length=65536 dtype=BF16 mask=causal sparsity=0.5 pattern=units
// samples=24 seed=1"
struct LongCase {
  Dtype dtype = Dtype::kBf16;
  std::int32_t q_heads = 8, kv_heads = 1;
  std::int32_t dim = 128;
  bool decode = false;          // by the decode kernel
  std::int32_t length = 65536;  // keys
  std::int32_t rows = 0;        // query rows; 0: as many as keys, of a decode 4
  bool causal = true;
  double sparsity = 0.5;      // of tiles; 0: no threshold
  bool whole_tiles = false;   // or a decision of each unit for itself
  std::int32_t samples = 24;  // units that the host emulates too
  std::uint64_t seed = 1;     // of the samples
};
std::int32_t rows_of(const LongCase& c);
// Missing keys are from `usual`.
Expected<LongCase> parse_long_case(std::string_view text, LongCase usual = {});
std::string print(const LongCase& c);
// Those that the suite consists of.
std::vector<LongCase> long_cases();

struct LongResult {
  LongCase c;
  Report report;
  std::int64_t visited = 0, skipped = 0, elements = 0;
  float lambda = 0;
  double kernel_ms = 0, emulator_ms = 0;
};

struct LongOptions {
  std::string mutant;  // of cuda_attention_mutants(), or empty
  bool allow_vacuous = false;
  int threads = 1;
};
// Errors: those of load_cuda_attention(); memory that the device or the host has not.
Expected<LongResult> run_long(const LongCase& c, const LongOptions& options);

// The whole answer of one request against what is expected, for run_long and its test. Outputs are
// [rows, q_heads, v_dim] and [rows, q_heads].
struct LongAnswer {
  std::span<const std::uint16_t> out;
  std::span<const F32> lse;
  std::span<const std::uint8_t> decisions;  // [unit head, unit, tile]
  std::span<const std::uint64_t> counters;  // [unit head, 2]
};
// Appends the first difference of each kind.
void compare_whole(const attention::Emulator& emulator, const attention::Emulation& expected,
                   std::int32_t tiles, const LongAnswer& got, std::vector<Mismatch>& mismatches);
// The same for one unit and what the host computes for it.
void compare_unit(const attention::Emulator& emulator, const attention::UnitResult& expected,
                  std::int32_t units, std::int32_t tiles, const LongAnswer& got,
                  std::vector<Mismatch>& mismatches);

}  // namespace assay::verify
