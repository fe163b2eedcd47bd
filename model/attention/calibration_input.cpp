// Files to calls. Decides SPEC ATT-8.8.
#include "model/attention/calibration_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/attention/calibration_sequence.hpp"
#include "model/core/safetensors.hpp"
#include "model/core/text.hpp"
#include "model/numerics/convert.hpp"

namespace assay::attention {
namespace {

// Where the rows of requests begin and how many there are.
struct Lengths {
  std::vector<std::int32_t> first_q, first_kv, q, kv;
};

Expected<std::vector<std::int32_t>> integers(const TensorFile& file, std::string_view name,
                                             std::uint64_t count) {
  ASSAY_TRY(const TensorView tensor, file.tensor(name));
  ASSAY_CHECK(tensor.expect({Dtype::kI32}, {{"count", count}}));
  ASSAY_TRY(const Elements<std::int32_t> values, tensor.as<std::int32_t>());
  return values.copy();
}

// cu_seqlens of one side: first rows and lengths.
Status ragged(const TensorFile& file, const char* name, std::uint64_t total,
              std::vector<std::int32_t>& first, std::vector<std::int32_t>& length) {
  ASSAY_TRY(const TensorView tensor, file.tensor(name));
  if (tensor.shape.size() != 1 || tensor.shape[0] < 2)
    return bad_input(
        fmt::format("{} has shape {}; allowed is [requests + 1]", name, shape_text(tensor.shape)));
  ASSAY_TRY(const std::vector<std::int32_t> at, integers(file, name, tensor.shape[0]));
  for (std::size_t i = 0; i + 1 < at.size(); ++i) {
    if (at[i + 1] < at[i])
      return bad_input(
          fmt::format("{}[{}] is {} after {}; it may not fall", name, i + 1, at[i + 1], at[i]));
    first.push_back(at[i]);
    length.push_back(at[i + 1] - at[i]);
  }
  if (at.front() != 0 || static_cast<std::uint64_t>(at.back()) != total)
    return bad_input(
        fmt::format("{} goes from {} to {}; it must go from 0 to the {} rows there are", name,
                    at.front(), at.back(), total));
  return Done{};
}

// q_len or kv_len of one side, or all rows of the padded batch.
Status padded(const TensorFile& file, const char* name, const Shape& shape,
              std::vector<std::int32_t>& first, std::vector<std::int32_t>& length) {
  const auto rows = static_cast<std::int32_t>(shape[1]);
  length.assign(shape[0], rows);
  if (file.has(name)) {
    ASSAY_TRY(length, integers(file, name, shape[0]));
  }
  for (std::size_t i = 0; i < length.size(); ++i) {
    if (length[i] < 0 || length[i] > rows)
      return bad_input(fmt::format("{}[{}] is {}; allowed are 0 to {}", name, i, length[i], rows));
    first.push_back(static_cast<std::int32_t>(i) * rows);
  }
  return Done{};
}

// Before anything is computed from a shape or allocated for it.
Status check_axes(const TensorFile& file, const char* name, const TensorView& tensor) {
  constexpr std::uint64_t kRowsMax = 1u << 24, kOtherMax = 65535;
  const std::size_t axes = tensor.shape.size();
  if (axes != 3 && axes != 4)
    return bad_input(
        fmt::format("{} has shape {}; allowed are 3 or 4 axes", name, shape_text(tensor.shape)));
  std::uint64_t rows = 1;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const bool is_row = axis + 2 < axes;
    const std::uint64_t most = is_row && !(axes == 4 && axis == 0) ? kRowsMax : kOtherMax;
    if (tensor.shape[axis] < 1 || tensor.shape[axis] > most)
      return bad_input(fmt::format("{} has shape {}; axis {} may be 1 to {}", name,
                                   shape_text(tensor.shape), axis, most));
    if (is_row) rows *= tensor.shape[axis];
  }
  if (rows > kRowsMax)
    return bad_input(fmt::format("{} has {} rows; at most {} are allowed", name, rows, kRowsMax));
  if (tensor.dtype != Dtype::kBf16 && tensor.dtype != Dtype::kF16 && tensor.dtype != Dtype::kF8E4m3)
    return bad_input(
        fmt::format("{} is {}; allowed are BF16, F16 and F8_E4M3", name, dtype_name(tensor.dtype)));
  const std::size_t bytes = dtype_bits(tensor.dtype) / 8;
  for (std::size_t at = 0; at + bytes <= tensor.bytes.size(); at += bytes)
    if (!std::isfinite(numerics::to_float(element(tensor.dtype, tensor.bytes.data() + at))))
      return bad_input(
          fmt::format("{} has a NaN or an infinity, at element {}; thresholds are "
                      "calibrated on finite scores",
                      name, at / bytes));
  for (const char* other : {"q_scale", "k_scale", "alibi_slopes", "mask", "kv_pages", "ckv"})
    if (file.has(other))
      return unsupported(
          fmt::format("tensor {} is there, and calibration does not read it: its "
                      "factors would be those of other scores",
                      other));
  return Done{};
}

Expected<Lengths> lengths_of(const TensorFile& file, const TensorView& q, const TensorView& k) {
  Lengths out;
  if (q.shape.size() == 3 && k.shape.size() == 3) {
    ASSAY_CHECK(ragged(file, "cu_seqlens_q", q.shape[0], out.first_q, out.q));
    ASSAY_CHECK(ragged(file, "cu_seqlens_kv", k.shape[0], out.first_kv, out.kv));
  } else if (q.shape.size() == 4 && k.shape.size() == 4) {
    ASSAY_CHECK(padded(file, "q_len", q.shape, out.first_q, out.q));
    ASSAY_CHECK(padded(file, "kv_len", k.shape, out.first_kv, out.kv));
  } else {
    return bad_input(fmt::format(
        "q has shape {} and k {}; allowed are [batch, rows, heads, head_dim] of both, or "
        "[total rows, heads, head_dim] of both with cu_seqlens_q and cu_seqlens_kv",
        shape_text(q.shape), shape_text(k.shape)));
  }
  if (out.q.size() != out.kv.size())
    return bad_input(fmt::format("q has {} requests and k {}", out.q.size(), out.kv.size()));
  for (std::size_t i = 0; i < out.q.size(); ++i)
    if (out.q[i] > out.kv[i])
      return bad_input(fmt::format(
          "request {} has {} query rows and {} keys; query rows are the last of the keys' tokens, "
          "so there cannot be more",
          i, out.q[i], out.kv[i]));
  return out;
}

// A parameter that is a number, as text or as a number.
Expected<float> number(const nlohmann::json& value, const std::string& key) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  char* end = nullptr;
  const float number = std::strtof(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(number) || number < 0)
    return bad_input(fmt::format(
        "assay.params: {} is {}; allowed are numbers that are not negative", key, in_quotes(text)));
  return number;
}

Status read_parameters(const TensorFile& file, Problem& shape) {
  if (const auto schema = file.metadata("schema"); schema)
    ASSAY_CHECK(file.schema_version(*schema == "assay.golden" ? *schema : "assay.capture", 1));
  const auto text = file.metadata("assay.params");
  if (!text) return Done{};
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    return bad_input(fmt::format("assay.params is {}, which is no JSON object", in_quotes(*text)));
  if (json.contains("q_offset"))
    return unsupported("assay.params: q_offset is there; calibration takes query rows as the last");
  if (json.contains("scale")) {
    ASSAY_TRY(shape.scale, number(json["scale"], "scale"));
  }
  if (json.contains("softcap")) {
    ASSAY_TRY(shape.softcap, number(json["softcap"], "softcap"));
  }
  const std::string mask = json.value("mask", nlohmann::json("causal")).is_string()
                               ? json.value("mask", "causal")
                               : json["mask"].dump();
  if (mask != "causal")
    return unsupported(
        fmt::format("assay.params: mask is {}; thresholds are calibrated on causal attention",
                    in_quotes(mask)));
  return Done{};
}

Expected<Problem> shape_of(const TensorFile& file, const TensorView& q, const TensorView& k,
                           const SamplePlan& plan) {
  const std::size_t axes = q.shape.size();
  if (q.dtype != k.dtype)
    return bad_input(fmt::format("q is {} and k {}; both must have one type", dtype_name(q.dtype),
                                 dtype_name(k.dtype)));
  if (q.shape[axes - 1] != k.shape[axes - 1])
    return bad_input(
        fmt::format("q has head_dim {} and k {}", q.shape[axes - 1], k.shape[axes - 1]));
  Problem shape;
  shape.dtype = q.dtype;
  shape.q_heads = static_cast<int>(q.shape[axes - 2]);
  shape.kv_heads = static_cast<int>(k.shape[axes - 2]);
  shape.head_dim = shape.v_dim = static_cast<int>(q.shape[axes - 1]);
  shape.splits = plan.splits;
  ASSAY_CHECK(read_parameters(file, shape));
  if (plan.scale) shape.scale = *plan.scale;
  if (!plan.scale && shape.scale == 0)
    shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  ASSAY_CHECK(check(shape));
  return shape;
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

void add_calls(const Sequence& s, const SamplePlan& plan, std::vector<Sample>& out) {
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
    out.push_back(std::move(sample));
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
    if (length > s.kv_len || rows <= 0) continue;
    if (rows > 1) add(Phase::kPrefill, {{0, rows}});
    add(Phase::kDecode, last_rows(rows));
  }
}

Expected<Samples> samples_of_file(const std::string& path, const SamplePlan& plan) {
  ASSAY_TRY(TensorFile opened, TensorFile::open(path));
  const auto file = std::make_shared<const TensorFile>(std::move(opened));
  const auto placed = [&](const Error& error) { return error.within(path); };
  const auto q = file->tensor("q"), k = file->tensor("k");
  if (!q) return placed(q.error());
  if (!k) return placed(k.error());
  for (const auto& [name, tensor] : {std::pair("q", &*q), {"k", &*k}})
    if (const Status sound = check_axes(*file, name, *tensor); !sound) return placed(sound.error());
  const auto lengths = lengths_of(*file, *q, *k);
  if (!lengths) return placed(lengths.error());
  const auto shape = shape_of(*file, *q, *k, plan);
  if (!shape) return placed(shape.error());
  std::vector<std::int32_t> step;
  if (file->has("step")) {
    if (q->shape.size() != 3)
      return placed(bad_input("step is there, but q is a padded batch; it goes with cu_seqlens_q"));
    auto steps = integers(*file, "step", q->shape[0]);
    if (!steps) return placed(steps.error());
    step = *std::move(steps);
  }
  Samples out;
  out.memory.push_back(file);
  for (std::size_t i = 0; i < lengths->q.size(); ++i) {
    Sequence s;
    s.shape = *shape;
    s.name = fmt::format("request {}", i);
    s.q_len = lengths->q[i];
    s.kv_len = lengths->kv[i];
    s.q = contiguous_rows(q->bytes.data(), lengths->first_q[i], s.q_len, shape->q_heads,
                          shape->head_dim, shape->element_bytes());
    s.k = contiguous_rows(k->bytes.data(), lengths->first_kv[i], s.kv_len, shape->kv_heads,
                          shape->head_dim, shape->element_bytes());
    if (!step.empty())
      s.step.assign(step.begin() + lengths->first_q[i],
                    step.begin() + lengths->first_q[i] + s.q_len);
    add_calls(s, plan, out.list);
  }
  if (out.list.empty())
    return placed(bad_input(plan.lengths.empty()
                                ? std::string("no request has a query row")
                                : fmt::format("no request has query rows within its first {} keys",
                                              joined(plan.lengths))));
  return out;
}

}  // namespace assay::attention
