// See attention_input.hpp: the small tensors; rows and parameters are model/attention's.
#include "verify/golden/attention_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "model/core/text.hpp"

namespace assay::verify {

using namespace assay::attention;

namespace {

class Reader {
 public:
  explicit Reader(const GoldenInput& in)
      : in_(in), file_(*in.file), input_(std::make_unique<FileInput>()), p_(input_->problem) {}

  Expected<std::unique_ptr<const FileInput>> read() {
    ASSAY_CHECK(in_file(check_file_tensors(file_)));
    ASSAY_CHECK(in_file(read_file_rows(file_, FileValues::kRequired, *input_)));
    ASSAY_CHECK(in_file(read_scales()));
    ASSAY_CHECK(in_file(read_per_head("sinks", input_->sinks, p_.sinks)));
    ASSAY_CHECK(in_file(read_per_head("alibi_slopes", input_->alibi_slopes, p_.alibi_slopes)));
    ASSAY_CHECK(read_parameters());
    ASSAY_CHECK(in_file(read_thresholds()));
    ASSAY_CHECK(in_file(read_mask()));
    ASSAY_CHECK(in_file(check(p_)));
    return std::unique_ptr<const FileInput>(std::move(input_));
  }

 private:
  std::size_t requests() const { return p_.requests.size(); }

  Status in_file(Status status) const {
    return status ? status : Status(status.error().within(file_.path()));
  }

  // Sentences about a parameter begin with its name, or with the N of its mask. Where the file gave
  // it, they name the file.
  Status read_parameters() {
    const Status read = read_file_parameters(in_.parameters, p_);
    if (read) return Done{};
    const std::string& sentence = read.error().sentence;
    std::string key = sentence.substr(0, sentence.find(' '));
    if (key == "N") key = "mask";
    if (in_.given.find(key) != in_.given.end()) return read.error();
    return read.error().within(file_.path() + ": assay.params");
  }

  Expected<float> read_scale(const char* name) {
    if (!file_.has(name)) return 1.0f;
    ASSAY_TRY(const TensorView view, file_.tensor(name));
    if (view.dtype != Dtype::kF32 || view.num_elements() != 1)
      return bad_input(fmt::format("tensor {} is {} {}; allowed is F32 with one element", name,
                                   dtype_name(view.dtype), shape_text(view.shape)));
    const float value = Elements<float>(view.bytes)[0];
    if (!(value > 0) || std::isinf(value))
      return bad_input(fmt::format("{} is {}; allowed are positive numbers", name, value));
    return value;
  }

  Status read_scales() {
    ASSAY_TRY(p_.q_scale, read_scale("q_scale"));
    ASSAY_TRY(p_.k_scale, read_scale("k_scale"));
    ASSAY_TRY(p_.v_scale, read_scale("v_scale"));
    ASSAY_TRY(const float out, read_scale("o_scale"));
    if (out == 1) return Done{};
    return unsupported(fmt::format(
        "o_scale is {}; it scales 8-bit outputs, which no profile states: allowed is 1", out));
  }

  Status read_per_head(const char* name, std::vector<float>& storage,
                       std::span<const float>& values) {
    if (!file_.has(name)) return Done{};
    ASSAY_TRY(const TensorView view, file_.tensor(name));
    ASSAY_CHECK(view.expect({Dtype::kF32}, {{"head", static_cast<std::uint64_t>(p_.q_heads)}}));
    storage = Elements<float>(view.bytes).copy();
    for (std::size_t i = 0; i < storage.size(); ++i) {
      if (!std::isfinite(storage[i]))
        return bad_input(
            fmt::format("{}[{}] is {}; allowed are finite numbers", name, i, storage[i]));
    }
    values = storage;
    return Done{};
  }

  Status read_thresholds() {
    const bool tensor = file_.has("threshold_scale_factor");
    const bool parameter = in_.has("threshold_scale_factor");
    if (tensor && parameter)
      return bad_input("threshold_scale_factor is a tensor and a parameter; give one of them");
    if (!tensor) return Done{};
    ASSAY_TRY(const TensorView view, file_.tensor("threshold_scale_factor"));
    ASSAY_CHECK(view.expect({Dtype::kF32}, {{"request", requests()}}));
    const Elements<float> factors(view.bytes);
    for (std::size_t i = 0; i < requests(); ++i) {
      if (!(factors[i] >= 0))
        return bad_input(
            fmt::format("threshold_scale_factor[{}] is {}; allowed are 0 and more", i, factors[i]));
      p_.requests[i].threshold = {Threshold::Kind::kScaleFactor, factors[i]};
    }
    return Done{};
  }

  // BOOL or U8 [b, rows, keys], at least as large as every request, 0 hides.
  Status read_mask() {
    const bool wanted = in_.text("mask") == "custom";
    if (wanted != file_.has("mask"))
      return bad_input(
          fmt::format("there is {}tensor mask, and parameter mask is {}; custom goes with "
                      "the tensor, the others without",
                      wanted ? "no " : "a ", in_.text("mask")));
    if (!wanted) return Done{};
    ASSAY_TRY(const TensorView mask, file_.tensor("mask"));
    ASSAY_CHECK(
        mask.expect({Dtype::kBool, Dtype::kU8}, {{"request", requests()}, {"row"}, {"key"}}));
    const std::uint64_t rows = mask.shape[1], keys = mask.shape[2];
    for (std::size_t i = 0; i < requests(); ++i) {
      const auto q_len = static_cast<std::uint64_t>(p_.requests[i].q_len);
      const auto kv_len = static_cast<std::uint64_t>(p_.requests[i].kv_len);
      if (q_len > rows || kv_len > keys)
        return bad_input(fmt::format("tensor mask has shape {}; request {} has {} rows and {} keys",
                                     shape_text(mask.shape), i, q_len, kv_len));
      std::vector<std::uint8_t>& cells = input_->masks.emplace_back(q_len * kv_len);
      for (std::uint64_t row = 0; row < q_len && kv_len > 0; ++row) {
        std::memcpy(&cells[row * kv_len], mask.bytes.data() + (i * rows + row) * keys, kv_len);
        for (std::uint64_t key = 0; key < kv_len; ++key) {
          if (cells[row * kv_len + key] > 1)
            return bad_input(fmt::format("mask[{}, {}, {}] is {}; allowed are 0 and 1", i, row, key,
                                         cells[row * kv_len + key]));
        }
      }
    }
    for (const auto& cells : input_->masks) p_.custom_mask.push_back(cells);
    return Done{};
  }

  const GoldenInput& in_;
  const TensorFile& file_;
  std::unique_ptr<FileInput> input_;
  Problem& p_;
};

}  // namespace

Expected<std::unique_ptr<const FileInput>> read_attention(const GoldenInput& in) {
  return Reader(in).read();
}

std::vector<GoldenParameter> attention_parameters(std::string_view profile_names) {
  const auto allowed = [&](std::string_view name) -> std::string_view {
    if (name == "profile") return profile_names;
    if (name == "threshold_scale_factor") return "0, positive numbers and inf";
    if (name == "mask") return "full, causal, causal_topleft, window:N, chunked:N and custom";
    if (name == "scale") return "positive numbers";
    if (name == "softcap") return "0 and positive numbers";
    if (name == "q_offset") return "-16777216 to 16777216";
    if (name == "splits") return "1 to 65535";
    return "bf16 and f16";
  };
  std::vector<GoldenParameter> list;
  for (const ParameterKey& key : file_parameters()) {
    GoldenParameter parameter{key.name, allowed(key.name), key.name == "profile"};
    parameter.form = key.form;
    if (key.name == "mask") parameter.fallback = "full";
    if (key.name == "splits") parameter.fallback = "1";
    list.push_back(parameter);
  }
  return list;
}

}  // namespace assay::verify
