// The table of combine profiles: the only file that a new one touches. It decides nothing about
// arithmetic; each row repeats what a source says, and how well that is known.
#include "model/moe/profile.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

namespace assay::moe {

namespace {

using Arithmetic = CombineArithmetic;
using Field = CombineProfile::Field;
constexpr Evidence kMeasured = Evidence::kMeasured;
constexpr Evidence kRead = Evidence::kReadFromSource;
constexpr Evidence kInferred = Evidence::kInferred;

// --- sources, so that each is written once -------------------------------------------------------

constexpr std::string_view kFiOld =
    "flashinfer v0.6.0, csrc/nv_internal/tensorrt_llm/kernels/communicationKernels/"
    "moeAlltoAllKernels.cu";
constexpr std::string_view kFiNew =
    "flashinfer fb28d7242b35 (2026-08-22), csrc/nv_internal/tensorrt_llm/kernels/"
    "communicationKernels/moeAlltoAllKernels.cu; pull request 3697";
constexpr std::string_view kFiFlags = "flashinfer fb28d7242b35, flashinfer/jit/core.py: fast-math";
constexpr std::string_view kFiNext =
    "flashinfer v0.7.4 (77039051b0be), csrc/nv_internal/tensorrt_llm/kernels/moe/communication/"
    "moeAlltoAllKernels.cu";
constexpr std::string_view kFiCake = "flashinfer pull request 4784, cake backend";
constexpr std::string_view kTrtOld =
    "TensorRT-LLM before pull request 11844, cpp/tensorrt_llm/kernels/communicationKernels/"
    "moeAlltoAllKernels.cu";
constexpr std::string_view kTrtNew =
    "TensorRT-LLM 0790edf6d353, cpp/tensorrt_llm/kernels/moe/communication/moeAlltoAllKernels.cu; "
    "pull request 11844";
constexpr std::string_view kTrtNext =
    "TensorRT-LLM, newest one-sided kernels (after pull request 19425)";
constexpr std::string_view kTrtFlags =
    "TensorRT-LLM 02fbea289e7a, cpp/CMakeLists.txt: FAST_MATH is off by default";
constexpr std::string_view kOurs = "this repository, cuda/kernels/one_sided";

// --- fields -------------------------------------------------------------------------------------

constexpr std::array<Field, 5> kFi060 = {{
    {"accumulate", "in the payload's type, every addition rounds", kFiOld, kRead},
    {"flush_subnormals", "f32 payloads only; add.bf16 and add.f16 keep subnormals", kFiFlags,
     kRead},
    {"holes", "zero bytes, added", kFiOld, kRead},
    {"trees", "by position", kFiOld, kRead},
    {"low_precision", "none", kFiOld, kRead},
}};
constexpr std::array<Field, 5> kFi0616 = {{
    {"accumulate", "f32, one rounding at the end", kFiNew, kMeasured},
    {"flush_subnormals", "every addition (add.ftz.f32)", kFiFlags, kMeasured},
    {"holes", "+0, added", kFiNew, kMeasured},
    {"trees", "by position", kFiNew, kMeasured},
    {"low_precision", "sender rounds to e4m3, output is BF16", kFiNew, kMeasured},
}};
constexpr std::array<Field, 5> kFi074 = {{
    {"accumulate", "f32, one rounding at the end", kFiNext, kMeasured},
    {"flush_subnormals", "every addition, as all modules of that library", kFiFlags, kMeasured},
    {"holes", "compacted away", kFiNext, kMeasured},
    {"trees", "by number of valid terms, of 2, 8, 16 or 32 leaves", kFiNext, kMeasured},
    {"low_precision", "sender rounds to e4m3, output as the payload", kFiNext, kMeasured},
}};
constexpr std::array<Field, 5> kCake = {{
    {"accumulate", "f32, one rounding at the end", kFiCake, kRead},
    {"flush_subnormals", "every addition, as all modules of that library", kFiFlags, kInferred},
    {"holes", "+0, added", kFiCake, kRead},
    {"trees", "by position", kFiCake, kRead},
    {"low_precision", "reader rounds to e4m3 and back, output as the payload", kFiCake, kInferred},
}};
constexpr std::array<Field, 5> kTrtR1 = {{
    {"accumulate", "in the payload's type, every addition rounds", kTrtOld, kRead},
    {"flush_subnormals", "never", kTrtFlags, kRead},
    {"holes", "zero bytes, added", kTrtOld, kRead},
    {"trees", "by position", kTrtOld, kRead},
    {"low_precision", "none", kTrtOld, kInferred},
}};
constexpr std::array<Field, 5> kTrtR2 = {{
    {"accumulate", "f32, one rounding at the end", kTrtNew, kRead},
    {"flush_subnormals", "never", kTrtFlags, kRead},
    {"holes", "+0, added", kTrtNew, kRead},
    {"trees", "by position", kTrtNew, kRead},
    {"low_precision", "sender rounds to e4m3, output as the payload", kTrtNew, kRead},
}};
constexpr std::array<Field, 5> kTrtR3 = {{
    {"accumulate", "f32, one rounding at the end", kTrtNext, kRead},
    {"flush_subnormals", "never", kTrtFlags, kRead},
    {"holes", "compacted away", kTrtNext, kRead},
    {"trees", "by number of valid terms; beyond 16 the lanes are inferred", kTrtNext, kInferred},
    {"low_precision", "sender rounds to e4m3, output as the payload", kTrtNew, kInferred},
}};
constexpr std::array<Field, 5> kAssay = {{
    {"accumulate", "f32, one rounding at the end", kOurs, kRead},
    {"flush_subnormals", "never", kOurs, kRead},
    {"holes", "+0, added", kOurs, kRead},
    {"trees", "by position", kOurs, kRead},
    {"low_precision", "sender rounds to e4m3, output is BF16", kOurs, kRead},
}};

// --- arithmetics --------------------------------------------------------------------------------

constexpr Arithmetic r1(bool flush) {
  return {.accumulate = Arithmetic::Accumulate::kPayload, .flush_subnormals = flush};
}
constexpr Arithmetic r2(bool flush, Arithmetic::LowPrecisionOut out) {
  return {.flush_subnormals = flush,
          .low_precision = Arithmetic::LowPrecision::kSenderE4m3,
          .low_precision_out = out};
}
constexpr Arithmetic r3(bool flush, Arithmetic::LowPrecisionOut out) {
  return {.flush_subnormals = flush,
          .holes = Arithmetic::Holes::kCompact,
          .trees = TreeTable::kCompact,
          .low_precision = Arithmetic::LowPrecision::kSenderE4m3,
          .low_precision_out = out};
}
constexpr Arithmetic r4(bool flush) {
  return {.flush_subnormals = flush,
          .low_precision = Arithmetic::LowPrecision::kReaderE4m3,
          .low_precision_out = Arithmetic::LowPrecisionOut::kPayload};
}
constexpr auto kBf16Out = Arithmetic::LowPrecisionOut::kBf16;
constexpr auto kPayloadOut = Arithmetic::LowPrecisionOut::kPayload;

// One row per profile (SPEC MOE-3.9). The first is what our own kernels compute by default.
constexpr std::array<CombineProfile, 8> kProfiles = {{
    {"assay-oneside", "the kernels of this repository", "R2", r2(false, kBf16Out),
     Grade::kBitsClaimed, kRead, kAssay},
    {"flashinfer-oneside@0.6.0", "FlashInfer v0.6.0 to v0.6.15", "R1+ftz", r1(true),
     Grade::kBitsClaimed, kRead, kFi060},
    {"flashinfer-oneside@0.6.16", "FlashInfer v0.6.16 to v0.7.0", "R2+ftz", r2(true, kBf16Out),
     Grade::kBits, kMeasured, kFi0616},
    {"flashinfer-oneside@0.7.4", "FlashInfer v0.7.4", "R3+ftz", r3(true, kPayloadOut), Grade::kBits,
     kMeasured, kFi074},
    {"flashinfer-cake", "FlashInfer moe_ep cake backend", "R4+ftz", r4(true), Grade::kBitsClaimed,
     kInferred, kCake},
    {"trtllm-oneside@pre-11844", "TensorRT-LLM before pull request 11844", "R1", r1(false),
     Grade::kBitsClaimed, kInferred, kTrtR1},
    {"trtllm-oneside@11844", "TensorRT-LLM from pull request 11844 on", "R2",
     r2(false, kPayloadOut), Grade::kBitsClaimed, kRead, kTrtR2},
    {"trtllm-oneside@compact", "TensorRT-LLM with compacted sources", "R3", r3(false, kPayloadOut),
     Grade::kBitsClaimed, kInferred, kTrtR3},
}};

}  // namespace

std::span<const CombineProfile> combine_profiles() { return kProfiles; }

Expected<const CombineProfile*> find_combine_profile(std::string_view name) {
  for (const CombineProfile& profile : kProfiles)
    if (profile.name == name) return &profile;
  std::string allowed;
  for (const CombineProfile& profile : kProfiles)
    allowed += fmt::format("{}{} ({})", allowed.empty() ? "" : ", ", profile.name, profile.covers);
  return bad_input(fmt::format("profile is \"{}\"; combine knows {}", name, allowed));
}

const CombineProfile& default_combine_profile() { return kProfiles.front(); }

}  // namespace assay::moe
