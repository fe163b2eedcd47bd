// An attention problem out of a tensor file, as golden files and calibration read it: which layouts
// of q, k and v there are, where a request's rows lie, and what the parameters in the metadata
// mean. Decides SPEC VER-21.6 and VER-21.7 for both; what a problem may be beyond that is
// problem.hpp's, the small tensors of golden files are verify/golden/attention_input.hpp's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention/problem.hpp"
#include "model/core/parameters.hpp"
#include "model/core/safetensors.hpp"

namespace assay::attention {

// Indices are 32-bit numbers with room for sums of a few: keys and rows up to 16 Mi, requests and
// heads as many as a grid dimension has blocks.
inline constexpr std::uint64_t kFileRowsMax = 1 << 24;
inline constexpr std::uint64_t kFileCountMax = 65535;

// A problem with what it points into, apart from the file's tensors. Valid while the file is open.
struct FileInput {
  Problem problem;
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

// Every tensor that an input may have.
std::vector<std::string_view> file_tensors();
// Refuses a name that nobody knows, which may be a known one misspelled: without its threshold a
// call is dense. Outputs may lie beside inputs, and what begins with "x." is the user's own.
Status check_file_tensors(const TensorFile& file);

// Sets type, heads, sizes and requests. Where values may be missing and are, keys stand in for
// them. Errors: everything that is inconsistent or beyond the limits, with the value and what is
// allowed; nothing is allocated by a size that was not checked.
enum class FileValues : std::uint8_t { kRequired, kOptional };
Status read_file_rows(const TensorFile& file, FileValues values, FileInput& input);

// The parameters: profile, threshold_scale_factor, mask, scale, softcap, q_offset, splits,
// out_dtype.
std::span<const ParameterKey> file_parameters();
// Sets all of them but the profile in a problem whose rows were read; what is missing has its
// default. Errors: values that are not allowed.
Status read_file_parameters(const Parameters& parameters, Problem& problem);

}  // namespace assay::attention
