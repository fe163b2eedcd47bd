// What one operation of assay golden and assay check is: its parameters, its legal output, and the
// rules that a wrong output may follow instead. A new operation is one file with a function that
// returns its GoldenOp, and one row of the table in ops.cpp. Decides no bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/core/case_text.hpp"
#include "model/core/evidence.hpp"
#include "model/core/expected.hpp"
#include "model/core/parameters.hpp"
#include "model/core/safetensors.hpp"
#include "verify/compare/mismatch.hpp"

namespace assay::verify {

struct GoldenParameter {
  std::string_view name;
  std::string_view allowed;  // for sentences: "ex2, rcp, rsqrt, lg2 or tanh"
  bool required = false;
  std::optional<std::string_view> fallback;   // where it is neither required nor optional
  ParameterForm form = ParameterForm::kWord;  // of the value in a file's JSON
};

// The file and the parameters of one request. Valid while the file is open.
struct GoldenInput {
  const TensorFile* file = nullptr;
  Parameters parameters;  // known names only
  Parameters given;       // those of them that the command line gave

  bool has(std::string_view key) const { return parameters.find(key) != parameters.end(); }
  // Must be present (CONTRACT): required parameters and those with a fallback are.
  const std::string& text(std::string_view key) const {
    const auto at = parameters.find(key);
    CONTRACT(at != parameters.end(), key);
    return at->second;
  }
  template <class T>
  Expected<T> integer(std::string_view key, T value_min, T value_max) const {
    return parse_integer<T>(key, text(key), value_min, value_max);
  }
};

// One output, in memory, with what a comparison needs to know about it.
struct GoldenTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::vector<std::byte> bytes;
  ElementFormat format = ElementFormat::kBytes;  // what is compared: elements of this format
  std::vector<std::string> axes;                 // of coordinates; as many as the shape has
  std::vector<std::uint8_t> compared;            // per element of `format`; empty: all of them
  bool only_size = false;  // any shape with as many elements is this tensor (padded scale layouts)
  bool optional = false;   // a file without it is not wrong
  // Where element i is, if not at its index along `axes`.
  std::function<std::vector<Coordinate>(std::uint64_t)> where;
  std::string clause;  // the clause that decides its bits

  std::uint64_t num_elements() const;
};

struct GoldenAnswer {
  std::vector<GoldenTensor> tensors;
  std::string rule;  // what was computed, for people
  Grade grade = Grade::kBitsClaimed;
  std::string source;                                      // of the grade
  std::vector<std::pair<std::string, std::string>> notes;  // {"join", "by the recorded slots"}
  std::vector<std::pair<std::string, std::string>>
      metadata;                    // of a written file: {"assay.lse", ..}
  std::vector<Mismatch> findings;  // known before any tensor is compared
  std::string vacuous;             // why a comparison would prove nothing
};

// A rule that the output would follow if `fits`, told as `sentence`.
struct GoldenRule {
  std::string sentence;
  std::function<bool()> fits;
  int group = 0;  // of several in one group other than 0, only the first that fits is told
};

// What holding a file against one rule found. Operations whose verdicts are not only about the bits
// of tensors fill it themselves.
struct GoldenComparison {
  std::string rule;
  Grade grade = Grade::kBitsClaimed;
  std::string source;
  std::vector<std::pair<std::string, std::string>> notes;
  std::vector<Mismatch> mismatches;
  std::vector<std::pair<std::string, std::int64_t>> compared;
  std::string unjudged;              // why there is no verdict, if nothing is wrong
  std::string vacuous;               // why CONFORMS would prove nothing
  std::string less_than_bits;        // what conforms if not every bit: "up to near-tie decisions"
  std::vector<std::string> reasons;  // told whatever the verdict is
};

struct GoldenOp {
  std::string_view name;
  std::string_view profile_key;  // the parameter that --profile sets; empty: none
  std::vector<GoldenParameter> parameters;
  std::vector<std::string_view> inputs;  // tensors that it reads; one ending in '.' is a prefix
  std::string_view recorded_schema;      // of recorded files, version 1, that it reads as they are
  // The legal output. Where several are legal, the one that agrees with the choices in `got`, if
  // there is one (SPEC VER-7.6).
  Expected<GoldenAnswer> (*legal)(const GoldenInput& in, const TensorFile* got) = nullptr;
  // The whole comparison, in place of legal() and rules(), if not null. `explain`: whether rules
  // that fit instead are wanted.
  Expected<GoldenComparison> (*compare)(const GoldenInput& in, const TensorFile& got,
                                        bool explain) = nullptr;
  // The same for what a subject writes when it is run on the inputs; null: there is no such
  // subject.
  Expected<GoldenComparison> (*compare_subject)(const GoldenInput& in, const std::string& subject,
                                                bool explain) = nullptr;
  // For a `got` that differs and whose tensors have the right types and shapes.
  std::vector<GoldenRule> (*rules)(const GoldenInput& in, const TensorFile& got) = nullptr;
  // Every value of profile_key, for --profile any.
  std::vector<std::string> (*profiles)() = nullptr;
  // Adds what is known about the first wrong place (terms and their order); may be null.
  void (*explain)(const GoldenInput& in, Mismatch& mismatch) = nullptr;
};

std::span<const GoldenOp> golden_ops();
Expected<const GoldenOp*> find_golden_op(std::string_view name);

// One per file of an operation.
GoldenOp mma_op();
GoldenOp mufu_op();
GoldenOp convert_op();
GoldenOp quantize_op();
GoldenOp dispatch_op();
GoldenOp combine_op();
GoldenOp attention_op();

// --- helpers that operations share ---------------------------------------------------------------

// The comparable format of a dtype; kBytes where there is none.
ElementFormat element_format(Dtype dtype);
// "element" for one axis, "row", "column" for two, "axis0" ... for more.
std::vector<std::string> plain_axes(std::size_t rank);
// The elements of `values` as bytes.
template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

}  // namespace assay::verify
