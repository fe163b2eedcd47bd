// From a file to a Capture. See capture.hpp.
#include "traces/format/capture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "model/core/parameters.hpp"
#include "model/core/text.hpp"
#include "traces/format/trace_tensors.hpp"

namespace assay::traces {
namespace {

constexpr std::string_view kTensors[] = {"q",    "k",    "v", "cu_seqlens_q", "cu_seqlens_kv",
                                         "step", "sinks"};
constexpr std::int32_t kHeadsMax = 1 << 16;
constexpr std::uint64_t kRowsMax = 0x7FFFFFFF;  // cu_seqlens is I32

template <class T>
bool parse(std::string_view text, T& value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc{} && end == text.data() + text.size();
}

// Whole numbers from low to high, separated by commas.
Expected<std::vector<std::int32_t>> parse_list(const TensorFile& file, std::string_view key,
                                               std::int32_t low, std::int32_t high) {
  ASSAY_TRY(const std::string text, file.require_metadata(key));
  std::vector<std::int32_t> out;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    std::int32_t value = 0;
    if (!parse(rest.substr(0, comma), value) || value < low || value > high)
      return bad_input(fmt::format("metadata {} is {}; allowed are numbers from {} to {}", key,
                                   in_quotes(text), low, high));
    out.push_back(value);
    if (more) rest.remove_prefix(comma + 1);
  }
  return out;
}

Expected<std::int32_t> parse_one(const TensorFile& file, std::string_view key, std::int32_t low,
                                 std::int32_t high) {
  ASSAY_TRY(const std::vector<std::int32_t> list, parse_list(file, key, low, high));
  if (list.size() != 1)
    return bad_input(fmt::format("metadata {} lists {} numbers; allowed is one", key, list.size()));
  return list.front();
}

Status parse_mask(const std::string& text, attention::Problem& shape) {
  using attention::MaskKind;
  const std::size_t colon = text.find(':');
  const std::string word = text.substr(0, colon);
  const bool sized = word == "window" || word == "chunked";
  const bool size_good = sized ? colon != std::string::npos &&
                                     parse(text.substr(colon + 1), shape.mask_size) &&
                                     shape.mask_size >= 1
                               : colon == std::string::npos;
  if (word == "full") shape.mask = MaskKind::kFull;
  if (word == "causal") shape.mask = MaskKind::kCausal;
  if (word == "window") shape.mask = MaskKind::kWindow;
  if (word == "chunked") shape.mask = MaskKind::kChunked;
  if ((sized || word == "full" || word == "causal") && size_good) return Done{};
  return bad_input(
      fmt::format("assay.params: mask is {}; allowed are full, causal, window:N and chunked:N with "
                  "N from 1",
                  in_quotes(text)));
}

Status parse_params(const TensorFile& file, attention::Problem& shape) {
  const auto text = file.require_metadata("assay.params");
  if (!text) return text.error();
  ASSAY_TRY(const auto object, parameters_object(file));
  const nlohmann::json& json = *object;
  for (const char* key : {"mask", "scale"})
    if (!json.contains(key)) return bad_input(fmt::format("assay.params has no {}", key));
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string())
      return bad_input(fmt::format("assay.params: {} is {}; allowed is text in quotes",
                                   in_quotes(key), in_quotes(value.dump())));
    if (key == "mask") {
      ASSAY_CHECK(parse_mask(value, shape));
    } else if (key == "scale") {
      ASSAY_TRY(shape.scale,
                parse_real("assay.params: scale", value.get<std::string>(), RealRange::kPositive));
    } else if (key == "softcap") {
      ASSAY_TRY(shape.softcap, parse_real("assay.params: softcap", value.get<std::string>(),
                                          RealRange::kPositive));
    } else {
      return bad_input(
          fmt::format("assay.params has {}; allowed are mask, scale and softcap", in_quotes(key)));
    }
  }
  return Done{};
}

// Different heads of the model, and every key head with the query heads that read it (TRC-4.2).
Status check_heads(const CaptureInfo& info) {
  for (const auto* heads : {&info.q_heads, &info.kv_heads})
    if (std::set<std::int32_t>(heads->begin(), heads->end()).size() != heads->size())
      return bad_input(fmt::format("heads {} repeat; allowed are different ones", joined(*heads)));
  const std::size_t share = info.q_heads.size() / info.kv_heads.size();
  if (info.num_q_heads % info.num_kv_heads != 0 || info.q_heads.size() % info.kv_heads.size() != 0)
    return bad_input(fmt::format(
        "{} of {} query heads and {} of {} key heads; allowed are "
        "multiples",
        info.q_heads.size(), info.num_q_heads, info.kv_heads.size(), info.num_kv_heads));
  for (std::size_t i = 0; i < info.q_heads.size(); ++i) {
    const std::int32_t reads = info.q_heads[i] / (info.num_q_heads / info.num_kv_heads);
    if (reads != info.kv_heads[i / share])
      return bad_input(
          fmt::format("query head {} of the model reads key head {}; in the file it "
                      "stands with key head {}",
                      info.q_heads[i], reads, info.kv_heads[i / share]));
  }
  return Done{};
}

Expected<std::vector<std::int32_t>> edges(const TensorFile& file, std::string_view name,
                                          std::uint64_t total) {
  ASSAY_TRY(const TensorView tensor, file.tensor(name));
  ASSAY_CHECK(tensor.expect({Dtype::kI32}, {{"requests + 1"}}));
  ASSAY_TRY(const Elements<std::int32_t> values, tensor.as<std::int32_t>());
  std::vector<std::int32_t> out = values.copy();
  if (out.size() < 2 || out.front() != 0 || static_cast<std::uint64_t>(out.back()) != total ||
      !std::is_sorted(out.begin(), out.end()))
    return bad_input(fmt::format(
        "{} is {} numbers from {} to {}; they must rise from 0 to the {} "
        "rows there are",
        name, out.size(), out.empty() ? 0 : out.front(), out.empty() ? 0 : out.back(), total));
  return out;
}

// Exponents of all ones are NaN and infinity.
Status check_finite(const TensorView& tensor) {
  const unsigned exponent = tensor.dtype == Dtype::kF16 ? 0x7C00u : 0x7F80u;
  const Elements<std::uint16_t> codes(tensor.bytes);
  for (std::size_t i = 0; i < codes.size(); ++i)
    if ((codes[i] & exponent) == exponent)
      return bad_input(
          fmt::format("{} holds a NaN or an infinity, bits {:#06x} at element {}; "
                      "allowed are finite elements",
                      tensor.name, codes[i], i));
  return Done{};
}

Status check_names(const TensorFile& file) {
  for (const TensorView& tensor : file.tensors()) {
    const bool known =
        std::find(std::begin(kTensors), std::end(kTensors), tensor.name) != std::end(kTensors);
    if (!known && tensor.name.substr(0, kForeignPrefix.size()) != kForeignPrefix)
      return bad_input(
          fmt::format("tensor {} is unknown; allowed are {}, and names that begin "
                      "with {}",
                      in_quotes(tensor.name), joined(kTensors), in_quotes(kForeignPrefix)));
  }
  return Done{};
}

attention::Request request_rows(const attention::Problem& shape, const CaptureCall& call,
                                const std::byte* q, const std::byte* k, const std::byte* v) {
  attention::Request out;
  const int bytes = shape.element_bytes();
  out.q =
      attention::contiguous_rows(q, call.first_q, call.q_len, shape.q_heads, shape.head_dim, bytes);
  out.k = attention::contiguous_rows(k, call.first_kv, call.kv_len, shape.kv_heads, shape.head_dim,
                                     bytes);
  out.v =
      attention::contiguous_rows(v, call.first_kv, call.kv_len, shape.kv_heads, shape.v_dim, bytes);
  out.q_len = call.q_len;
  out.kv_len = call.kv_len;
  out.q_offset = call.q_offset();
  return out;
}

}  // namespace

struct CaptureReader {
  static Status read(Capture& capture);
  static Status read_info(Capture& capture);
  static Status read_rows(Capture& capture);
  static Status read_calls(Capture& capture, std::uint64_t total_q, std::uint64_t total_kv);
};

Expected<Capture> Capture::open(const std::string& path) {
  ASSAY_TRY(TensorFile file, TensorFile::open(path));
  ASSAY_CHECK(file.schema_version(kCaptureSchema, kCaptureVersion));
  Capture capture;
  capture.file_ = std::make_shared<const TensorFile>(std::move(file));
  const Status read = CaptureReader::read(capture);
  if (!read) return in_file(read.error(), path);
  return capture;
}

attention::Problem Capture::problem(std::span<const CaptureCall> calls) const {
  attention::Problem out = shape_;
  out.sinks = sinks_;
  for (const CaptureCall& call : calls)
    out.requests.push_back(request_rows(shape_, call, q_, k_, v_));
  return out;
}

attention::Problem Capture::whole() const {
  std::vector<CaptureCall> requests;
  for (const CaptureCall& call : calls_) {
    if (requests.empty() || requests.back().request != call.request) {
      requests.push_back(call);
    } else {
      requests.back().q_len += call.q_len;
      requests.back().kv_len = call.kv_len;
    }
  }
  return problem(requests);
}

Status CaptureReader::read(Capture& capture) {
  ASSAY_CHECK(check_names(*capture.file_));
  ASSAY_CHECK(read_info(capture));
  ASSAY_CHECK(parse_params(*capture.file_, capture.shape_));
  return read_rows(capture);
}

Status CaptureReader::read_info(Capture& capture) {
  const TensorFile& file = *capture.file_;
  CaptureInfo& info = capture.info_;
  for (const auto& [key, value] :
       {std::pair{"model", &info.model}, std::pair{"licence", &info.licence},
        std::pair{"source", &info.source}}) {
    ASSAY_TRY(*value, file.require_metadata(key));
    if (value->empty())
      return bad_input(
          fmt::format("metadata {} is empty; a capture says what it was captured from", key));
  }
  info.rounded_from = file.metadata("rounded_from").value_or("");
  ASSAY_TRY(info.num_layers, parse_one(file, "num_layers", 1, kTraceLayersMax));
  ASSAY_TRY(info.layer, parse_one(file, "layer", 0, info.num_layers - 1));
  ASSAY_TRY(info.num_q_heads, parse_one(file, "num_q_heads", 1, kHeadsMax));
  ASSAY_TRY(info.num_kv_heads, parse_one(file, "num_kv_heads", 1, info.num_q_heads));
  ASSAY_TRY(info.q_heads, parse_list(file, "q_heads", 0, info.num_q_heads - 1));
  ASSAY_TRY(info.kv_heads, parse_list(file, "kv_heads", 0, info.num_kv_heads - 1));
  return check_heads(info);
}

Status CaptureReader::read_rows(Capture& capture) {
  const TensorFile& file = *capture.file_;
  const std::uint64_t q_heads = capture.info_.q_heads.size();
  const std::uint64_t kv_heads = capture.info_.kv_heads.size();
  ASSAY_TRY(const TensorView q, file.tensor("q"));
  ASSAY_CHECK(
      q.expect({Dtype::kBf16, Dtype::kF16}, {{"total_q"}, {"q_heads", q_heads}, {"head_dim"}}));
  ASSAY_TRY(const TensorView k, file.tensor("k"));
  ASSAY_CHECK(
      k.expect({q.dtype}, {{"total_kv"}, {"kv_heads", kv_heads}, {"head_dim", q.shape[2]}}));
  ASSAY_TRY(const TensorView v, file.tensor("v"));
  ASSAY_CHECK(v.expect({q.dtype}, {{"total_kv", k.shape[0]}, {"kv_heads", kv_heads}, {"v_dim"}}));
  for (const TensorView* tensor : {&q, &k, &v}) {
    if (tensor->shape[0] > kRowsMax || tensor->shape[2] < 1 || tensor->shape[2] > kHeadsMax)
      return bad_input(fmt::format("{} has shape {}; allowed are up to {} rows of 1 to {} elements",
                                   tensor->name, shape_text(tensor->shape), kRowsMax, kHeadsMax));
    ASSAY_CHECK(check_finite(*tensor));
  }
  capture.q_ = q.bytes.data();
  capture.k_ = k.bytes.data();
  capture.v_ = v.bytes.data();
  attention::Problem& shape = capture.shape_;
  shape.dtype = q.dtype;
  shape.out_dtype = q.dtype;
  shape.q_heads = static_cast<int>(q_heads);
  shape.kv_heads = static_cast<int>(kv_heads);
  shape.head_dim = static_cast<int>(q.shape[2]);
  shape.v_dim = static_cast<int>(v.shape[2]);
  if (file.has("sinks")) {
    ASSAY_TRY(const TensorView sinks, file.tensor("sinks"));
    ASSAY_CHECK(sinks.expect({Dtype::kF32}, {{"q_heads", q_heads}}));
    ASSAY_TRY(const Elements<float> values, sinks.as<float>());
    capture.sinks_ = values.copy();
    for (const float sink : capture.sinks_)
      if (!std::isfinite(sink))
        return bad_input(fmt::format("sinks holds {}; allowed are finite numbers", sink));
  }
  return read_calls(capture, q.shape[0], k.shape[0]);
}

Status CaptureReader::read_calls(Capture& capture, std::uint64_t total_q, std::uint64_t total_kv) {
  const TensorFile& file = *capture.file_;
  ASSAY_TRY(const std::vector<std::int32_t> q_edges, edges(file, "cu_seqlens_q", total_q));
  ASSAY_TRY(const std::vector<std::int32_t> kv_edges, edges(file, "cu_seqlens_kv", total_kv));
  if (q_edges.size() != kv_edges.size())
    return bad_input(
        fmt::format("cu_seqlens_q has {} numbers and cu_seqlens_kv {}; both have one "
                    "more than there are requests",
                    q_edges.size(), kv_edges.size()));
  ASSAY_TRY(const TensorView tensor, file.tensor("step"));
  ASSAY_CHECK(tensor.expect({Dtype::kI32}, {{"total_q", total_q}}));
  ASSAY_TRY(const Elements<std::int32_t> step, tensor.as<std::int32_t>());
  capture.num_requests_ = static_cast<std::int32_t>(q_edges.size() - 1);
  for (std::size_t r = 0; r + 1 < q_edges.size(); ++r) {
    const std::int32_t rows = q_edges[r + 1] - q_edges[r], keys = kv_edges[r + 1] - kv_edges[r];
    if (rows < 1 || rows > keys)
      return bad_input(
          fmt::format("request {} has {} query rows and {} key rows; allowed are at "
                      "least one query row and no more than key rows",
                      r, rows, keys));
    std::int32_t last = -1;  // no step; the first row begins a call
    for (std::int32_t i = 0; i < rows; ++i) {
      const std::int32_t row = q_edges[r] + i, now = step[static_cast<std::size_t>(row)];
      if (now < 0 || now < last)
        return bad_input(
            fmt::format("step of query row {} (request {}) is {} after {}; allowed "
                        "are steps from 0 that never fall",
                        row, r, now, last));
      if (now != last)
        capture.calls_.push_back({static_cast<std::int32_t>(r), now, row, 0, kv_edges[r], 0});
      last = now;
      capture.calls_.back().q_len += 1;
      capture.calls_.back().kv_len = keys - rows + i + 1;
    }
  }
  return Done{};
}

}  // namespace assay::traces
