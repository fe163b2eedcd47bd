// Start here: which bits a tensor-core instruction produces. A table has one row per architecture,
// instruction and types, with the source of every row; dot() gives one result, mma() a tile of
// them. Decides names, chains along k and shapes. The integer algorithm is fdpa.hpp, an
// instruction's use of it dot.hpp, the numbers instructions.cpp. Not decided here: what a kernel
// does between instructions.
//
//   const Instruction* bf16 = find_instruction("wgmma.m64n8k16.f32.bf16.bf16", Arch::kSm90a);
//   F32 d = dot(*bf16, a_bits, b_bits, 64, c);       // k 64: a chain of four instructions
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/core/bits.hpp"
#include "model/core/evidence.hpp"
#include "model/core/expected.hpp"
#include "model/numerics/tensor_core/dot.hpp"

namespace assay::numerics {

enum class Arch : std::uint8_t { kSm80, kSm89, kSm90a, kSm100a, kSm120 };
std::string_view arch_name(Arch arch);             // "sm_90a"
Expected<Arch> parse_arch(std::string_view name);  // "sm_90a"; "sm_90" and "sm_100" also

// One row of the table. M and N do not change bits, so a row stands for all of them.
struct Instruction {
  std::string_view family;  // "wgmma", "mma.sync", "tcgen05.kind::f16" ...
  std::string types;        // "f32.bf16.bf16": destination, a, b; then the scale type, if any
  Arch arch;
  Arithmetic arithmetic;
  Evidence evidence;
  Grade grade;
  std::string_view source;  // the clause of SPEC.md that says where the numbers come from

  std::string name() const;  // "wgmma.k16.f32.bf16.bf16"
};

std::span<const Instruction> instructions();

// Finds a row by a short name with or without a shape ("wgmma.m64n8k16.f32.bf16.bf16",
// "mma.sync.m16n8k8.f32.f16.f16", "tcgen05.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3") or by PTX's
// own ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"; mma's ".row.col" and the type of c).
// nullptr if `arch` has no such instruction or the shape is not one it has.
const Instruction* find_instruction(std::string_view name, Arch arch);
// The same with a sentence that lists what `arch` has.
Expected<const Instruction*> require_instruction(std::string_view name, Arch arch);

// c + a . b over `k` products: k / arithmetic.k instructions, lowest k first, each one's result the
// next one's c (SPEC NUM-4.5). k must be a multiple of arithmetic.k. a and b hold operand bits in T
// (see instruction_dot); c is fp32, or an fp16 value widened where the destination is fp16. scale-d
// 0 is c = +0. Scales, where the row has them, hold k / scale_block codes each.
template <class T>
F32 dot(const Instruction& instruction, const T* a, const T* b, int k, F32 c, Scales scales = {}) {
  const Arithmetic& arithmetic = instruction.arithmetic;
  CONTRACT(k % arithmetic.k == 0, k, arithmetic.k);
  for (int first = 0; first < k; first += arithmetic.k) {
    c = instruction_dot(arithmetic, a + first, b + first, c, scales);
    if (scales.a != nullptr) {
      scales.a += arithmetic.k / arithmetic.rule.scale_block;
      scales.b += arithmetic.k / arithmetic.rule.scale_block;
    }
  }
  return c;
}

// A tile problem: d[m,n] = c[m,n] + sum over k of a[m,k] * b[n,k]; all row-major and dense, so b is
// K-major. `d` may be `c` itself. c == nullptr is scale-d 0 (every sum starts from +0).
template <class T>
struct MmaProblem {
  int m = 0;
  int n = 0;
  int k = 0;
  const T* a = nullptr;
  const T* b = nullptr;
  const F32* c = nullptr;
  F32* d = nullptr;
  const std::uint8_t* scale_a = nullptr;  // [m, k / scale_block]
  const std::uint8_t* scale_b = nullptr;  // [n, k / scale_block]
  Promotion promotion;
};

enum class MmaPath : std::uint8_t { kBest, kScalar };

// Computes the tile. Errors: k no multiple of the instruction's (or of the promotion interval), an
// element width that is not T's, missing scales, a c that is no fp16 value where the destination is
// fp16. kBest uses SIMD where a kernel for the row exists; its bits are those of kScalar.
Status mma(const Instruction& instruction, const MmaProblem<std::uint8_t>& problem,
           MmaPath path = MmaPath::kBest);
Status mma(const Instruction& instruction, const MmaProblem<std::uint16_t>& problem,
           MmaPath path = MmaPath::kBest);
Status mma(const Instruction& instruction, const MmaProblem<std::uint32_t>& problem,
           MmaPath path = MmaPath::kBest);

// The instruction set that kBest runs on here: "AVX3", "AVX2", "SSE4", "EMU128" ... (Highway's
// names).
std::string_view mma_simd_target();

}  // namespace assay::numerics
