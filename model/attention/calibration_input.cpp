// Files to calls. Decides SPEC ATT-8.8.
#include "model/attention/calibration_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/attention/calibration_sequence.hpp"
#include "model/attention/file_input.hpp"
#include "model/core/text.hpp"
#include "model/numerics/convert.hpp"

namespace assay::attention {
namespace {

constexpr std::string_view kQueriesLast =
    "query rows are the last of the keys' tokens";  // what calls are cut by (SPEC ATT-8.8)

// Tensors that make other scores than q and k alone.
Status check_scores(const TensorFile& file) {
  for (const char* other : {"q_scale", "k_scale", "alibi_slopes", "mask", "ckv"})
    if (file.has(other))
      return unsupported(
          fmt::format("tensor {} is there, and calibration does not read it: its factors would be "
                      "those of other scores",
                      other));
  return Done{};
}

// Thresholds are calibrated on causal attention, so a file that names no mask means that one.
Status read_parameters(const TensorFile& file, const SamplePlan& plan, Problem& p) {
  ASSAY_TRY(Parameters parameters, parameters_in(file, "attention", file_parameters()));
  if (parameters.find("q_offset") != parameters.end())
    return unsupported(
        fmt::format("assay.params: q_offset is there; for calibration {}", kQueriesLast));
  const std::string& mask = parameters.emplace("mask", "causal").first->second;
  const Status read = read_file_parameters(parameters, p);
  if (!read) return read.error().within("assay.params");
  if (mask != "causal")
    return unsupported(
        fmt::format("assay.params: mask is {}; thresholds are calibrated on causal attention",
                    in_quotes(mask)));
  if (plan.scale) p.scale = *plan.scale;
  if (plan.splits) p.splits = *plan.splits;
  return check(p);
}

Status check_rows(const Problem& p, const char* name, const Rows& rows, std::int32_t count,
                  int heads, std::size_t request) {
  for (std::int32_t i = 0; i < count; ++i)
    for (int head = 0; head < heads; ++head) {
      const std::byte* row = rows.row(head, i, p.element_bytes());
      for (int d = 0; d < p.head_dim; ++d)
        if (!std::isfinite(numerics::to_float(element(p.dtype, row + d * p.element_bytes()))))
          return bad_input(fmt::format(
              "{} has a NaN or an infinity, in request {} row {} head {} element {}; thresholds "
              "are calibrated on finite scores",
              name, request, i, head, d));
    }
  return Done{};
}

Status check_requests(const Problem& p) {
  for (std::size_t i = 0; i < p.requests.size(); ++i) {
    const Request& r = p.requests[i];
    if (r.q_len > r.kv_len)
      return bad_input(
          fmt::format("request {} has {} query rows and {} keys; {}, so there cannot be more", i,
                      r.q_len, r.kv_len, kQueriesLast));
    ASSAY_CHECK(check_rows(p, "q", r.q, r.q_len, p.q_heads, i));
    ASSAY_CHECK(check_rows(p, "k", r.k, r.kv_len, p.kv_heads, i));
  }
  return Done{};
}

// Of every row of q, or empty.
Expected<std::vector<std::int32_t>> read_steps(const TensorFile& file, const FileInput& input) {
  if (!file.has("step")) return std::vector<std::int32_t>();
  if (input.rows_shape.size() != 1)
    return bad_input("step is there, but q is a padded batch; it goes with cu_seqlens_q");
  ASSAY_TRY(const TensorView steps, file.tensor("step"));
  ASSAY_CHECK(steps.expect({Dtype::kI32}, {{"row", input.rows()}}));
  return Elements<std::int32_t>(steps.bytes).copy();
}

Status read_input(const TensorFile& file, const SamplePlan& plan, FileInput& input) {
  if (const auto schema = file.metadata("schema"); schema)
    ASSAY_CHECK(file.schema_version(*schema == "assay.golden" ? *schema : "assay.capture", 1));
  ASSAY_CHECK(check_file_tensors(file));
  ASSAY_CHECK(check_scores(file));
  ASSAY_CHECK(read_file_rows(file, FileValues::kOptional, input));
  ASSAY_CHECK(read_parameters(file, plan, input.problem));
  return check_requests(input.problem);
}

Request call(const Sequence& s, std::int32_t first, std::int32_t rows) {
  Request r;
  r.q = s.q;
  r.q.base += first * s.q.row_stride * s.shape.element_bytes();
  r.q.available = r.q_len = rows;
  r.q_offset = s.kv_len - s.q_len + first;
  r.kv_len = r.q_offset + rows;
  r.k = s.k;
  r.k.available = r.kv_len;
  r.v = r.k;
  return r;
}

// Runs of rows of equal step, as [begin, end).
std::vector<Range> runs_of(const Sequence& s) {
  std::vector<Range> runs;
  for (std::int32_t i = 0; i < s.q_len; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i == 0 || s.step[at] != s.step[at - 1]) runs.push_back({i, i});
    runs.back().end = i + 1;
  }
  return runs;
}

}  // namespace

std::string_view phase_name(Phase phase) { return phase == Phase::kPrefill ? "prefill" : "decode"; }

void add_calls(const Sequence& s, const SamplePlan& plan, Samples& out) {
  const auto add = [&](Phase phase, const std::vector<Range>& calls) {
    if (calls.empty()) return;
    Sample sample;
    sample.phase = phase;
    sample.name = s.name;
    sample.problem = s.shape;
    // A decode call sees all of its keys; as a full mask it takes the tiles of that kernel.
    sample.problem.mask = phase == Phase::kPrefill ? MaskKind::kCausal : MaskKind::kFull;
    if (phase == Phase::kPrefill) sample.problem.splits = 1;
    for (const Range& rows : calls) {
      sample.problem.requests.push_back(call(s, rows.begin, rows.count()));
      sample.kv_len = std::max(sample.kv_len, sample.problem.requests.back().kv_len);
    }
    out.list.push_back(std::move(sample));
  };
  const auto last_rows = [&](std::int32_t rows) {
    std::vector<Range> calls;
    for (std::int32_t i = std::max(0, rows - plan.decode_rows); i < rows; ++i)
      calls.push_back({i, i + 1});
    return calls;
  };
  if (!s.step.empty() && plan.lengths.empty()) {
    std::vector<Range> steps;
    for (const Range& run : runs_of(s)) {
      if (run.count() > 1) add(Phase::kPrefill, {run});
      if (run.count() == 1) steps.push_back(run);
    }
    add(Phase::kDecode, steps.empty() ? last_rows(s.q_len) : steps);
    return;
  }
  std::vector<std::int32_t> lengths = plan.lengths;
  if (lengths.empty()) lengths.push_back(s.kv_len);
  for (const std::int32_t length : lengths) {
    const std::int32_t rows = length - (s.kv_len - s.q_len);
    if (length > s.kv_len || rows <= 0) {
      out.left_out.push_back({s.name, length, s.kv_len, s.kv_len - s.q_len});
      continue;
    }
    if (rows > 1) add(Phase::kPrefill, {{0, rows}});
    add(Phase::kDecode, last_rows(rows));
  }
}

Status check_lengths(const SamplePlan& plan, const Samples& samples) {
  for (const std::int32_t length : plan.lengths) {
    const auto has = [&](const Sample& sample) { return sample.kv_len == length; };
    if (std::any_of(samples.list.begin(), samples.list.end(), has)) continue;
    std::int32_t shortest = 0, longest = 0;  // that any request can be cut to
    for (const Samples::LeftOut& one : samples.left_out) {
      if (one.length != length || one.first_row >= one.kv_len) continue;
      longest = std::max(longest, one.kv_len);
      shortest = shortest == 0 ? one.first_row + 1 : std::min(shortest, one.first_row + 1);
    }
    if (longest == 0)
      return bad_input(fmt::format("length {} cannot be cut: no request has a query row", length));
    return bad_input(fmt::format("length {} can be cut of no request; allowed are {} to {} keys",
                                 length, shortest, longest));
  }
  return Done{};
}

Expected<Samples> samples_of_file(const std::string& path, const SamplePlan& plan) {
  ASSAY_TRY(TensorFile opened, TensorFile::open(path));
  const auto file = std::make_shared<const TensorFile>(std::move(opened));
  const auto input = std::make_shared<FileInput>();
  const auto placed = [&](const Error& error) { return error.within(path); };
  if (const Status sound = read_input(*file, plan, *input); !sound) return placed(sound.error());
  const auto steps = read_steps(*file, *input);
  if (!steps) return placed(steps.error());
  const Problem& p = input->problem;
  Samples out;
  out.memory = {file, input};
  for (std::size_t i = 0; i < p.requests.size(); ++i) {
    const Request& r = p.requests[i];
    Sequence s;
    s.shape = p;
    s.shape.requests.clear();
    s.shape.v_dim = p.head_dim;  // keys stand in for values
    s.name = fmt::format("request {}", i);
    s.q_len = r.q_len;
    s.kv_len = r.kv_len;
    s.q = r.q;
    s.k = r.k;
    if (!steps->empty()) {
      const auto first = steps->begin() + static_cast<std::ptrdiff_t>(input->first_row[i]);
      s.step.assign(first, first + r.q_len);
    }
    add_calls(s, plan, out);
  }
  if (out.list.empty() && out.left_out.empty())
    return placed(bad_input("no request has a query row"));
  return out;
}

}  // namespace assay::attention
