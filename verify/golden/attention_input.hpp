// An attention problem out of a tensor file: which layouts of q, k and v there are, the tensors and
// parameters next to them, and where a row of a request lies in an output. Decides SPEC VER-21.6
// and VER-21.7; what a problem may be beyond that is model/attention/problem.hpp's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/attention/attention.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {

// Indices are 32-bit numbers with room for sums of a few: keys and rows up to 16 Mi, requests and
// heads as many as a grid dimension has blocks.
inline constexpr std::uint64_t kAttentionRowsMax = 1 << 24;
inline constexpr std::uint64_t kAttentionCountMax = 65535;

// A problem with what it points into, apart from the file's tensors. Valid while the file is open.
struct AttentionInput {
  attention::Problem problem;
  // Outputs have these axes before head and element: [b, lq] or [total].
  Shape rows_shape;
  std::vector<std::string> rows_axes;
  std::vector<std::uint64_t> first_row;  // [requests]: of the request among the rows of an output

  std::uint64_t rows() const;  // product of rows_shape: those of no request included

  // Storage of the problem's views.
  std::vector<std::int32_t> block_table;
  std::vector<float> sinks, alibi_slopes;
  std::vector<std::vector<std::uint8_t>> masks;
};

// Errors: everything in the file or the parameters that is inconsistent or beyond the limits, with
// the value and what is allowed; nothing is allocated by a size that was not checked.
Expected<std::unique_ptr<const AttentionInput>> read_attention(const GoldenInput& in);

// Its part for the rows of q, k and v: sets shapes, heads, lengths and where rows lie.
Status read_attention_rows(const TensorFile& file, AttentionInput& input);

// The tensors and parameters that read_attention() knows.
std::vector<std::string_view> attention_tensors();
std::vector<GoldenParameter> attention_parameters(std::string_view profile_names);

}  // namespace assay::verify
