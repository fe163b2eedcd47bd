// Start here: what must the output of one operation be, in somebody else's test suite? An operation
// (mma, mufu, convert, quantize, dispatch, combine) reads tensors and parameters from a file and
// gives the only legal output, or the set of them. Decides SPEC VER-7: how a request is understood,
// what is written, what a comparison says. The bits are decided in model/. Read in this order:
//
//   golden.hpp    the two things that can be asked (this file)
//   op.hpp        what an operation is; ops.cpp is the table
//   request.hpp   parameters from file and command line
//   <op>.cpp      one operation each
//   compare.hpp   tensors against a file, and the first difference
//
//   ASSAY_TRY(auto written, write_golden({"mma", "in.safetensors", {}, {}}, "golden.safetensors"));
//   ASSAY_TRY(auto report, check_golden({"mma", "in.safetensors", {}, {}}, "got.safetensors"));
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/core/evidence.hpp"
#include "model/core/expected.hpp"
#include "verify/compare/report.hpp"

namespace assay::verify {

inline constexpr std::string_view kGoldenSchema = "assay.golden";
inline constexpr std::uint32_t kGoldenVersion = 1;

struct GoldenRequest {
  std::string op;                      // "mma"
  std::string in;                      // the file with the inputs
  std::vector<std::string> settings;   // "key=value", stronger than the file's assay.params
  std::optional<std::string> profile;  // check takes "any" too
};

struct GoldenWritten {
  std::string rule;  // "wgmma.k16.f32.bf16.bf16 on sm_90a"
  Grade grade = Grade::kBitsClaimed;
  std::string claim;                 // what that grade lets one say
  std::vector<std::string> tensors;  // "d F32 [30, 64, 8]"
};

// The names of all operations, for help and sentences: "mma, mufu, ...".
std::string golden_op_names();

// Computes the legal output of `request` and writes it, with the inputs and parameters that it came
// from, to `out`: such a file checks itself (SPEC VER-7.2). Errors: everything that is wrong with
// the request or the file, in a sentence; nothing is written then.
Expected<GoldenWritten> write_golden(const GoldenRequest& request, const std::string& out);

// Compares the outputs in `got` with the legal ones. A wrong output is a verdict of the report, not
// an error. `allow_vacuous` turns MISTRUSTED into CONFORMS.
Expected<Report> check_golden(const GoldenRequest& request, const std::string& got,
                              bool allow_vacuous = false);

// Runs a subject ("cuda", "plugin:FILE") on the inputs in place of reading its outputs from a file.
// Only operations with a subject of one call have it (attention). A call that the subject declines
// is UNSUPPORTED, one that fails a mismatch (SPEC VER-25.7).
Expected<Report> check_golden_subject(const GoldenRequest& request, const std::string& subject,
                                      bool allow_vacuous = false);

// What a verdict may say at a grade, as a sentence (SPEC VER-7.5).
std::string claim_of(Grade grade);
// CONFORMS and MISMATCH are statements about bits: nothing below bits-claimed may make them.
bool judges_bits(Grade grade);

}  // namespace assay::verify
