// Matrix instructions against the model, tile by tile: inputs made on the GPU, the instruction run,
// and every result compared with the model compiled for the device, and with rules next to it that
// must fail. Decides which shapes, chains and styles are run.
#pragma once

#include <algorithm>
#include <functional>

#include "cuda/probe/mma_inputs.cuh"
#include "cuda/probe/mma_kernels.cuh"
#include "model/numerics/tensor_core/tensor_core.hpp"

namespace assay::probe {

// Rule 0 is the model; the others are its neighbours.
inline const char* const kRuleNames[] = {
    "model",  "F+1",         "F-1",      "other rounding", "floor", "renormalised products",
    "late c", "half blocks", "e_zero-1", "e_zero+1"};
struct RuleSet {
  Rule rule[kMaxRules];
  int count;
};

inline RuleSet neighbours(const Rule& model, bool with_mutants) {
  RuleSet set;
  for (Rule& r : set.rule) r = model;
  set.count = with_mutants ? kMaxRules : 1;
  ++set.rule[1].fraction_bits;
  --set.rule[2].fraction_bits;
  set.rule[3].rounding =
      model.rounding == Rounding::kNearestEven ? Rounding::kTowardZero : Rounding::kNearestEven;
  set.rule[4].floor_alignment = true;
  set.rule[5].renormalised_products = true;
  set.rule[6].late_c = true;
  set.rule[7].products /= 2;
  --set.rule[8].zero_exponent;
  ++set.rule[9].zero_exponent;
  return set;
}

// One thread per result. The formats are constants so that decoding is a few instructions.
template <OperandFormat kA, OperandFormat kB, class T>
__global__ void check_tiles(RuleSet rules, int instruction_k, Lowering lowering, const T* a,
                            const T* b, const F32* c, const F32* d, int n, int k,
                            std::uint64_t results, Comparison* out) {
  unsigned int wrong[kMaxRules] = {};
  unsigned long long hash = 0;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < results;
       i += stride) {
    const std::uint64_t tile = i / (64 * n);
    const int row = static_cast<int>(i / n % 64), column = static_cast<int>(i % n);
    const T* row_a = a + (tile * 64 + row) * k;
    const T* row_b = b + (tile * n + column) * k;
    hash += mix(i ^ std::uint64_t{d[i].bits} << 32);
    for (int r = 0; r < rules.count; ++r) {
      Arithmetic arithmetic{rules.rule[r], instruction_k, lowering};
      arithmetic.rule.a = kA;
      arithmetic.rule.b = kB;
      F32 sum = c ? c[i] : F32{0};
      for (int first = 0; first < k; first += instruction_k)
        sum = instruction_dot(arithmetic, row_a + first, row_b + first, sum);
      if (sum.bits == d[i].bits) continue;
      ++wrong[r];
      if (r == 0) show(out, static_cast<unsigned>(i), c ? c[i].bits : 0u, d[i].bits, sum.bits);
    }
  }
  for (int r = 0; r < rules.count; ++r) {
    const unsigned sum = __reduce_add_sync(0xFFFFFFFFu, wrong[r]);
    if (threadIdx.x % 32 == 0 && sum)
      atomicAdd(&out->mismatches[r], static_cast<unsigned long long>(sum));
  }
  for (int offset = 16; offset > 0; offset /= 2)
    hash += __shfl_down_sync(0xFFFFFFFFu, hash, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(&out->hash, hash);
}

struct MmaResult {
  std::string instruction;
  int n = 0, steps = 0, style = 0;
  bool a_in_registers = false, b_transposed = false, scale_d = true, with_rules = false;
  std::uint64_t results = 0;
  Comparison comparison{};
};

// Device memory for the largest run, allocated once.
struct Buffers {
  std::uint8_t* a = nullptr;
  std::uint8_t* b = nullptr;
  F32* c = nullptr;
  F32* d = nullptr;
  std::FILE* tiles = nullptr;  // where recorded tiles go, or nullptr
  std::FILE* index = nullptr;
  Buffers() {
    ASSAY_CUDA(cudaMalloc(&a, std::size_t{1} << 30));
    ASSAY_CUDA(cudaMalloc(&b, std::size_t{1} << 30));
    ASSAY_CUDA(cudaMalloc(&c, std::size_t{1} << 28));
    ASSAY_CUDA(cudaMalloc(&d, std::size_t{1} << 28));
  }
};

inline constexpr int kBlocks = 132 * 8;
inline constexpr int kThreads = 256;

struct Shape {
  int n, steps;
  bool a_in_registers, b_transposed, scale_d, with_rules;
};

template <OperandFormat kA, OperandFormat kB, class T>
struct MmaRunner {
  const Instruction& instruction;
  Buffers& buffers;
  std::function<void(const MmaResult&)> each;

  // `launch` runs the instruction over `tiles` tiles.
  void run(const Shape& shape, int style, std::uint64_t wanted_results,
           const std::function<void(std::uint64_t, TileProblem)>& launch) const {
    const Arithmetic& arithmetic = instruction.arithmetic;
    const int k = shape.steps * arithmetic.k;
    const std::uint64_t per_tile = 64ull * static_cast<unsigned>(shape.n);
    const std::uint64_t tiles = (wanted_results + per_tile - 1) / per_tile;
    const std::uint64_t results = tiles * per_tile;
    const bool f16 = arithmetic.rule.output == OutputFormat::kF16;
    const std::uint64_t seed =
        mix(static_cast<unsigned>(style) * 1000003u + static_cast<unsigned>(shape.n) +
            static_cast<unsigned>(shape.steps) * 17u);
    T* a = reinterpret_cast<T*>(buffers.a);
    T* b = reinterpret_cast<T*>(buffers.b);
    make_operands<kA, T><<<kBlocks, kThreads>>>(a, style, true, 64, k, tiles * 64 * k, seed);
    make_operands<kB, T>
        <<<kBlocks, kThreads>>>(b, style, false, shape.n, k, tiles * shape.n * k, seed);
    make_accumulators<<<kBlocks, kThreads>>>(buffers.c, style, static_cast<int>(per_tile), f16,
                                             results, seed);
    ASSAY_CUDA(
        cudaMemset(buffers.d, 0xA5, results * sizeof(F32)));  // a result never written differs
    launch(tiles,
           TileProblem{buffers.a, buffers.b, buffers.c, buffers.d, shape.steps, shape.scale_d});
    ASSAY_CUDA(cudaGetLastError());
    DeviceComparison comparison;
    check_tiles<kA, kB, T><<<kBlocks, kThreads>>>(
        neighbours(arithmetic.rule, shape.with_rules), arithmetic.k, arithmetic.lowering, a, b,
        shape.scale_d ? buffers.c : nullptr, buffers.d, shape.n, k, results, comparison.get());
    MmaResult result;
    result.instruction = instruction.name();
    result.n = shape.n;
    result.steps = shape.steps;
    result.style = style;
    result.a_in_registers = shape.a_in_registers;
    result.b_transposed = shape.b_transposed;
    result.scale_d = shape.scale_d;
    result.with_rules = shape.with_rules;
    result.results = results;
    result.comparison = comparison.read();
    each(result);
  }

  // Records a few tiles of n = 8 of a style as raw bytes a, b, c, d, with a line in the index.
  void record(int style, const std::function<void(std::uint64_t, TileProblem)>& launch) const {
    if (buffers.tiles == nullptr) return;
    constexpr int tiles = 6;
    run({8, 1, false, false, true, false}, style, tiles * 512, launch);
    const std::size_t k = static_cast<std::size_t>(instruction.arithmetic.k) * sizeof(T);
    std::fprintf(buffers.index, "%s style %d tiles %d n 8 row_bytes %zu\n",
                 instruction.name().c_str(), style, tiles, k);
    const std::pair<const void*, std::size_t> parts[] = {{buffers.a, tiles * 64 * k},
                                                         {buffers.b, tiles * 8 * k},
                                                         {buffers.c, tiles * 512 * 4},
                                                         {buffers.d, tiles * 512 * 4}};
    for (const auto& [device, bytes] : parts) {
      std::vector<char> host(bytes);
      ASSAY_CUDA(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
      std::fwrite(host.data(), 1, bytes, buffers.tiles);
    }
  }
};

template <class Type, int kN, bool kRegisters, bool kTransposedB>
void launch_wgmma(std::uint64_t tiles, TileProblem problem) {
  const int shared = problem.steps * (64 + kN) * kStepBytes;
  const auto kernel = wgmma_tile<Type, kN, kRegisters, kTransposedB>;
  ASSAY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  kernel<<<static_cast<unsigned>(tiles), 128, shared>>>(problem);
}

// Every shape, chain and way of passing operands of one wgmma type, in every style.
template <class Type, OperandFormat kA, OperandFormat kB, class T>
void probe_wgmma(const char* name, Buffers& buffers, std::uint64_t results,
                 const std::function<void(const MmaResult&)>& each) {
  const Instruction* row = find_instruction(name, Arch::kSm90a);
  CONTRACT(row != nullptr, name);
  const MmaRunner<kA, kB, T> runner{*row, buffers, each};
  const std::uint64_t fewer = results / 8;
  for (int style = 0; style < kStyles; ++style) {
    runner.record(style, launch_wgmma<Type, 8, false, false>);
    runner.run({256, 1, false, false, true, true}, style, results,
               launch_wgmma<Type, 256, false, false>);
    runner.run({8, 1, false, false, true, false}, style, fewer,
               launch_wgmma<Type, 8, false, false>);
    runner.run({64, 4, false, false, false, false}, style, fewer,
               launch_wgmma<Type, 64, false, false>);
    runner.run({128, 8, false, false, true, false}, style, fewer,
               launch_wgmma<Type, 128, false, false>);
    runner.run({176, 2, false, false, false, false}, style, fewer,
               launch_wgmma<Type, 176, false, false>);
    runner.run({8, 4, true, false, false, false}, style, fewer, launch_wgmma<Type, 8, true, false>);
    runner.run({64, 1, true, false, true, false}, style, fewer,
               launch_wgmma<Type, 64, true, false>);
    runner.run({128, 2, true, false, false, false}, style, fewer,
               launch_wgmma<Type, 128, true, false>);
    runner.run({176, 1, true, false, true, false}, style, fewer,
               launch_wgmma<Type, 176, true, false>);
    runner.run({256, 4, true, false, true, false}, style, fewer,
               launch_wgmma<Type, 256, true, false>);
    if constexpr (sizeof(T) == 2) {
      runner.run({64, 4, false, true, true, false}, style, fewer,
                 launch_wgmma<Type, 64, false, true>);
      runner.run({256, 1, true, true, false, false}, style, fewer,
                 launch_wgmma<Type, 256, true, true>);
    }
  }
}

// mma.sync of one type, on any architecture that has a row for it.
template <class Type, OperandFormat kA, OperandFormat kB, class T>
void probe_mma_sync(const char* name, Arch arch, Buffers& buffers, std::uint64_t results,
                    const std::function<void(const MmaResult&)>& each) {
  const Instruction* row = find_instruction(name, arch);
  if (row == nullptr) return;
  const MmaRunner<kA, kB, T> runner{*row, buffers, each};
  const auto launch = [](std::uint64_t tiles, TileProblem problem) {
    mma_sync_tile<Type><<<static_cast<unsigned>(tiles), 128>>>(problem);
  };
  for (int style = 0; style < kStyles; ++style) {
    runner.record(style, launch);
    runner.run({8, 1, true, false, true, true}, style, results, launch);
    runner.run({8, 4, true, false, true, false}, style, results / 8, launch);
  }
}

inline void run_wgmma(Buffers& buffers, std::uint64_t results,
                      const std::function<void(const MmaResult&)>& each) {
  using enum OperandFormat;
  using U8 = std::uint8_t;
  using U16 = std::uint16_t;
  probe_wgmma<WgmmaBf16, kBf16, kBf16, U16>("wgmma.k16.f32.bf16.bf16", buffers, results, each);
  probe_wgmma<WgmmaF16, kF16, kF16, U16>("wgmma.k16.f32.f16.f16", buffers, results, each);
  probe_wgmma<WgmmaF16AccF16, kF16, kF16, U16>("wgmma.k16.f16.f16.f16", buffers, results, each);
  probe_wgmma<WgmmaTf32, kTf32, kTf32, std::uint32_t>("wgmma.k8.f32.tf32.tf32", buffers, results,
                                                      each);
  probe_wgmma<WgmmaE4m3E4m3, kE4m3, kE4m3, U8>("wgmma.k32.f32.e4m3.e4m3", buffers, results, each);
  probe_wgmma<WgmmaE4m3E5m2, kE4m3, kE5m2, U8>("wgmma.k32.f32.e4m3.e5m2", buffers, results, each);
  probe_wgmma<WgmmaE5m2E4m3, kE5m2, kE4m3, U8>("wgmma.k32.f32.e5m2.e4m3", buffers, results, each);
  probe_wgmma<WgmmaE5m2E5m2, kE5m2, kE5m2, U8>("wgmma.k32.f32.e5m2.e5m2", buffers, results, each);
  probe_wgmma<WgmmaE4m3E4m3AccF16, kE4m3, kE4m3, U8>("wgmma.k32.f16.e4m3.e4m3", buffers, results,
                                                     each);
  probe_wgmma<WgmmaE4m3E5m2AccF16, kE4m3, kE5m2, U8>("wgmma.k32.f16.e4m3.e5m2", buffers, results,
                                                     each);
  probe_wgmma<WgmmaE5m2E4m3AccF16, kE5m2, kE4m3, U8>("wgmma.k32.f16.e5m2.e4m3", buffers, results,
                                                     each);
  probe_wgmma<WgmmaE5m2E5m2AccF16, kE5m2, kE5m2, U8>("wgmma.k32.f16.e5m2.e5m2", buffers, results,
                                                     each);
}

inline void run_mma_sync(Arch arch, Buffers& buffers, std::uint64_t results,
                         const std::function<void(const MmaResult&)>& each) {
  using enum OperandFormat;
  using U8 = std::uint8_t;
  using U16 = std::uint16_t;
  using U32 = std::uint32_t;
  const auto r = results;
  probe_mma_sync<MmaBf16, kBf16, kBf16, U16>("mma.sync.k16.f32.bf16.bf16", arch, buffers, r, each);
  probe_mma_sync<MmaBf16K8, kBf16, kBf16, U16>("mma.sync.k8.f32.bf16.bf16", arch, buffers, r, each);
  probe_mma_sync<MmaF16, kF16, kF16, U16>("mma.sync.k16.f32.f16.f16", arch, buffers, r, each);
  probe_mma_sync<MmaF16K8, kF16, kF16, U16>("mma.sync.k8.f32.f16.f16", arch, buffers, r, each);
  probe_mma_sync<MmaF16AccF16, kF16, kF16, U16>("mma.sync.k16.f16.f16.f16", arch, buffers, r, each);
  probe_mma_sync<MmaF16K8AccF16, kF16, kF16, U16>("mma.sync.k8.f16.f16.f16", arch, buffers, r,
                                                  each);
  probe_mma_sync<MmaTf32, kTf32, kTf32, U32>("mma.sync.k8.f32.tf32.tf32", arch, buffers, r, each);
  probe_mma_sync<MmaTf32K4, kTf32, kTf32, U32>("mma.sync.k4.f32.tf32.tf32", arch, buffers, r, each);
  probe_mma_sync<MmaE4m3E4m3, kE4m3, kE4m3, U8>("mma.sync.k32.f32.e4m3.e4m3", arch, buffers, r,
                                                each);
  probe_mma_sync<MmaE4m3E5m2, kE4m3, kE5m2, U8>("mma.sync.k32.f32.e4m3.e5m2", arch, buffers, r,
                                                each);
  probe_mma_sync<MmaE5m2E4m3, kE5m2, kE4m3, U8>("mma.sync.k32.f32.e5m2.e4m3", arch, buffers, r,
                                                each);
  probe_mma_sync<MmaE5m2E5m2, kE5m2, kE5m2, U8>("mma.sync.k32.f32.e5m2.e5m2", arch, buffers, r,
                                                each);
  probe_mma_sync<MmaE4m3E4m3AccF16, kE4m3, kE4m3, U8>("mma.sync.k32.f16.e4m3.e4m3", arch, buffers,
                                                      r, each);
  probe_mma_sync<MmaE4m3E5m2AccF16, kE4m3, kE5m2, U8>("mma.sync.k32.f16.e4m3.e5m2", arch, buffers,
                                                      r, each);
  probe_mma_sync<MmaE5m2E4m3AccF16, kE5m2, kE4m3, U8>("mma.sync.k32.f16.e5m2.e4m3", arch, buffers,
                                                      r, each);
  probe_mma_sync<MmaE5m2E5m2AccF16, kE5m2, kE5m2, U8>("mma.sync.k32.f16.e5m2.e5m2", arch, buffers,
                                                      r, each);
}

}  // namespace assay::probe
