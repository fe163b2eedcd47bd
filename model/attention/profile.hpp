// What one implementation of skip-softmax attention computes, as data: which rows decide together,
// what they compare, when the running maximum moves, and every rounding between a product and an
// output. A mutant is a profile with one field changed. Decides what the fields mean (SPEC
// ATT-4.1); their values are in profiles/, one file a family, with the source of each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/attention/problem.hpp"
#include "model/attention/tile_schedule.hpp"
#include "model/core/bits.hpp"
#include "model/core/evidence.hpp"
#include "model/core/expected.hpp"
#include "model/numerics/max_min.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

namespace assay::attention {

// What scores are multiplied by, and rounded, before the maximum: nothing, scale, or scale*log2(e).
enum class ScoreUnit : std::uint8_t { kRaw, kNatural, kLog2 };

// How a row's tile maximum l is compared with its running maximum g (SPEC ATT-4.3). All of them say
// exp((l - g) * scale) < lambda over the real numbers, and differ by roundings and at ties.
enum class Compare : std::uint8_t {
  kExp2,        // ex2((l - g) * scale_log2) < lambda
  kExp,         // ex2((l - g) * log2e) < lambda             scores in natural units
  kDifference,  // l - g < log(lambda)                       in the unit of scores, ln or log2
  kScaledLog2,  // l * scale_log2 - g * scale_log2 < log2(lambda)
  kAddedLog2,   // l < g + log2(lambda)                      scores in log2 units
  kAddedRaw,    // l < max(g + log2(lambda) / scale_log2, -FLT_MAX)
};

// g is the maximum before this tile, or with it.
enum class Reference : std::uint8_t { kExclusive, kInclusive };
// What a skipped tile does to the running maximum. kKeep: nothing. kRaise: as if it were kept (SPEC
// ATT-4.7).
enum class MaxOnSkip : std::uint8_t { kKeep, kRaise };
// Whether query rows beyond q_len, which fill a unit up, vote (SPEC ATT-4.5).
enum class PaddingRows : std::uint8_t { kVote, kAbstain };
// What rows beyond a length hold: zeros; what lies behind them in memory; likewise, but keys in
// pages are those of the last used page again, page after page (SPEC ATT-2.3).
enum class PaddingFill : std::uint8_t { kZero, kNeighbour, kLastPage };
// The length that a scale factor is divided by.
enum class LambdaLength : std::uint8_t { kRequest, kBatchMax, kNone };
// lambda >= 1: as it is; not skipping at all; as lambda = 1 (SPEC ATT-4.6).
enum class LambdaAboveOne : std::uint8_t { kAllow, kDense, kClamp };
enum class Quotient : std::uint8_t { kIeee, kApprox };  // div.rn, or x * rcp.approx(y)
// log of lambda: rounded from the real number, or lg2.approx.ftz (times ln 2 for ln).
enum class Logarithm : std::uint8_t { kRounded, kApprox };
// kStrided: split s visits tiles s, s + n ... kChunks: fixed chunks of keys, whatever n is.
enum class Split : std::uint8_t { kNone, kStrided, kChunks };

// Who decides, and how.
struct SkipRule {
  Packing packing = Packing::kHeadRows;
  Compare compare = Compare::kExp2;
  bool strict = true;  // < rather than <=
  Reference reference = Reference::kExclusive;
  MaxOnSkip max_on_skip = MaxOnSkip::kKeep;
  // The first so many tiles that a unit (of a split: each split) visits are kept unasked; 0 leaves
  // it to the comparison with the initial maximum.
  int kept_first = 1;
  // Rows that decide a second time, by themselves: in a kept tile they write zeros for P if all of
  // them may skip. 0: no such level (SPEC ATT-4.4).
  int zeroing_rows = 0;
  PaddingRows padding_rows = PaddingRows::kAbstain;
  PaddingFill padding_fill = PaddingFill::kZero;
  LambdaLength lambda_length = LambdaLength::kRequest;
  LambdaAboveOne above_one = LambdaAboveOne::kAllow;
  Quotient quotient = Quotient::kIeee;
  Logarithm logarithm = Logarithm::kRounded;
  bool backward = false;  // visits the last tile first
  Split split = Split::kNone;
  int chunk_keys = 0;            // of kChunks
  int min_tiles_per_split = 1;   // of kStrided: fewer splits rather than fewer tiles
  int min_tiles_to_split = 1;    // of kStrided
  F32 initial_max{0xFF800000u};  // -inf
  F32 fill{0xFF800000u};         // what a hidden score becomes
  float lazy_log2 = 0;           // > 0: g stays while the new maximum is at most so much above it
  // A tile range follows the rows of this many units, not of one: units share key tiles.
  bool range_of_schedule = false;
  // The range's end is rounded from the rows alone, and causal masks do not look at kv_len.
  bool diagonal_only = false;
  // A kernel that cannot skip: a threshold is refused rather than ignored.
  bool dense_only = false;
};

// P = ex2(x) * p_multiplier, x being one of these with c = scale_log2, log2(e) or 1 by the unit of
// scores, and m the running maximum after the tile.
enum class ExpForm : std::uint8_t {
  kFmaRz,             // fma.rz(s, c, -(m * c))
  kFmaRn,             // fma.rn(s, c, -(m * c))
  kSubtractMultiply,  // (s - m) * c
};
// When all a row has seen is hidden, m is the fill value and s - m is 0: whether 0 takes its place.
enum class EmptyGuard : std::uint8_t { kNever, kWindowed, kAlways };
// Who adds what to a row's sum (SPEC ATT-5.3). Columns of a score tile lie in a matrix fragment:
// thread q of a quad owns columns 8 i + 2 q and 8 i + 2 q + 1.
enum class SumTree : std::uint8_t {
  kQuadSequential,  // each thread its columns in order; then lanes xor 1, xor 2; every tile
  kQuadFourWay,     // each thread in four from 0, element e to e mod 4, (0+1)+(2+3); then as above
  kThreadRunning,   // each thread onto its running sum; lanes xor 1, xor 2 at the end
  kThreadEvenOdd,   // each thread evens and odds apart, evens + odds; joined per thread; as above
  kTokensWarps,     // keys are rows: key 16 w + 8 i + r is thread (w, r)'s; i; lanes xor 16, 8, 4;
                    // then warps 0 to 3 one after the other onto the sum; every tile
  kTokensRunning,   // likewise, joined per thread; at the end lanes, then (0+1)+(2+3) of warps
};
enum class SumJoin : std::uint8_t { kFma, kMultiplyAdd };  // old * correction + new
enum class CorrectionForm : std::uint8_t {
  kDifferenceTimesScale,  // ex2((g_old - g_new) * c)
  kScaledDifference,      // ex2(g_old * c - g_new * c), the products rounded
  kNone,                  // forgotten: no profile has it, wrong kernels do (SPEC ATT-5.9)
};
enum class Reciprocal : std::uint8_t { kApprox, kIeee };
enum class ZeroSum : std::uint8_t { kFactorOne, kZero, kInfinite };  // 1 / sum where sum is 0
// A sink enters the sum last. kDouble: ex2 of (f32) fma in double of sink, log2(e) and the f32
// m * c; kNatural: ex2((sink - m) * log2e); kFma: ex2(fma(sink, log2e, -(m * c))).
enum class SinkForm : std::uint8_t { kNone, kDouble, kNatural, kFma };
enum class LseForm : std::uint8_t { kNone, kLog2, kLn };
// Splits travel as f32 sums with maxima and meet at a common maximum, or one after the other onto a
// state; or as normalised outputs rounded to the output's type.
enum class Partial : std::uint8_t { kF32, kFolded, kRounded };

// What is computed for a kept tile and at the end.
struct Softmax {
  ScoreUnit unit = ScoreUnit::kRaw;
  ExpForm exp = ExpForm::kFmaRn;
  EmptyGuard empty = EmptyGuard::kNever;
  int p_log2 = 0;                 // P is 2^p_log2 larger, by way of the maximum (fp8)
  bool p_log2_fused = false;      // m * c - p_log2 in one fma
  F32 p_multiplier{0x3F800000u};  // after the sum, before the conversion; undone at the end
  SumTree tree = SumTree::kQuadSequential;
  SumJoin join = SumJoin::kFma;
  CorrectionForm correction = CorrectionForm::kDifferenceTimesScale;
  bool correction_flushes = false;  // the product O * correction
  // P V starts from zero for every tile, and O = fma(O, correction, that).
  bool promote = false;
  Reciprocal reciprocal = Reciprocal::kApprox;
  ZeroSum zero_sum = ZeroSum::kZero;
  bool v_scale_in_reciprocal = false;  // (1 / sum) * v_scale first, or O * (1 / sum) first
  SinkForm sink = SinkForm::kNone;
  LseForm lse = LseForm::kNone;
  Partial partial = Partial::kF32;
  numerics::NanRule max_nan = numerics::NanRule::kDrop;
  bool flush = true;  // f32 arithmetic flushes subnormals
};

// Tiles by element size and head size: the first row that fits.
struct TileShape {
  int element_bytes = 2;
  int dim_max = 128;
  int unit_rows = 64;      // rows that decide together
  int schedule_units = 1;  // units that share key tiles
  int kv_tile = 128;
  int kv_tile_masked = 0;  // with any mask but kFull, if not the same
};

// Calls of which a kernel's bits were reproduced on hardware: of this type and head size, which
// values have too, with what is named (SPEC ATT-4.8).
struct MeasuredCalls {
  Dtype dtype = Dtype::kBf16;
  int head_dim = 128;
  // Without a threshold; in pages; windows and chunks; sinks.
  bool dense = false, paged = false, windows = false, sinks = false;
};

struct Profile {
  struct Field {
    std::string_view name;
    std::string_view value;   // for people
    std::string_view source;  // document or repository, version, file
    Evidence evidence = Evidence::kReadFromSource;
  };
  std::string_view name;    // <project>-<kernel>-<arch>[@version]
  std::string_view covers;  // which releases, dtypes and masks
  Grade grade = Grade::kDecisions;
  Evidence evidence = Evidence::kReadFromSource;  // of its weakest field
  SkipRule skip;
  Softmax softmax;                // bf16 and f16
  std::optional<Softmax> fp8;     // e4m3; none: the kernel has no such form
  std::optional<Softmax> biased;  // with softcap or ALiBi; none: it has no such form
  Grade biased_grade = Grade::kDecisions;
  std::span<const MeasuredCalls> measured;  // of grade bits; all other calls are bits-claimed
  std::span<const TileShape> tiles;
  numerics::Arch arch = numerics::Arch::kSm90a;
  std::string_view instruction_family = "wgmma";
  std::span<const Field> fields;
};

// All profiles, ours first, and by exact name; the error lists the names.
std::span<const Profile> profiles();
Expected<const Profile*> find_profile(std::string_view name);

// A profile made ready for a problem: which of its variants, tiles and instructions apply.
struct Resolved {
  const Profile* profile = nullptr;
  Grade grade = Grade::kDecisions;  // of this variant: never above the profile's
  SkipRule skip;
  Softmax softmax;
  TileShape tile;  // kv_tile already that of the mask
  const numerics::Instruction* qk = nullptr;
  const numerics::Instruction* pv = nullptr;
};
// Errors (unsupported): a dtype, head size, bias, sink or mask that the implementation does not
// have (SPEC ATT-4.2).
Expected<Resolved> resolve(const Profile& profile, const Problem& problem);

// The families, one file each in profiles/.
namespace families {
std::vector<Profile> assay();
std::vector<Profile> trtllm_fmha_v2();
std::vector<Profile> trtllm_xqa();
std::vector<Profile> trtllm_gen();
std::vector<Profile> flashinfer_cutedsl();
std::vector<Profile> modelopt();
std::vector<Profile> aiter();
std::vector<Profile> paper();
std::vector<Profile> fa3();
}  // namespace families

}  // namespace assay::attention
