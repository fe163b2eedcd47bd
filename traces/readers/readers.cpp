// Telling formats apart. See readers.hpp.
#include "traces/readers/readers.hpp"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/core/mapped_file.hpp"
#include "model/core/text.hpp"
#include "traces/format/trace_file.hpp"

namespace assay::traces {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::optional<TraceFormat> format_of_content(std::string_view text);
std::optional<TraceFormat> format_of_name(std::string_view path);
Expected<TraceFormat> detect(const std::string& path, std::string_view text);

}  // namespace

std::string_view trace_format_name(TraceFormat format) {
  switch (format) {
    case TraceFormat::kSafetensors:
      return "safetensors";
    case TraceFormat::kIndex:
      return "safetensors-index";
    case TraceFormat::kGptOssCsv:
      return "gptoss-csv";
    case TraceFormat::kGptOssJson:
      return "gptoss-json";
  }
  return "?";
}

Expected<TraceFormat> detect_format(const std::string& path) {
  ASSAY_TRY(const MappedFile file, MappedFile::open(path));
  return detect(path, text_of(file));
}

Expected<Trace> read_trace(const std::string& path) {
  ASSAY_TRY(const MappedFile file, MappedFile::open(path));
  ASSAY_TRY(const TraceFormat format, detect(path, text_of(file)));
  const std::string name = path.substr(path.find_last_of('/') + 1);
  Expected<Trace> trace = [&] {
    switch (format) {
      case TraceFormat::kGptOssCsv:
        return read_gptoss_csv(text_of(file), name);
      case TraceFormat::kGptOssJson:
        return read_gptoss_json(text_of(file), name);
      case TraceFormat::kSafetensors:
        return open_trace(path);
      case TraceFormat::kIndex:
        break;
    }
    return open_trace_shards(path);
  }();
  const bool ours = format == TraceFormat::kSafetensors || format == TraceFormat::kIndex;
  if (!trace && !ours) return trace.error().within(path);
  return trace;
}

namespace {

// Reads keys of the outermost object until one says what the file is. A string search would be
// fooled by a captured text that talks about this very format.
class TopKeys final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<TraceFormat> format;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    if (name == "router_data") format = TraceFormat::kGptOssJson;
    if (name == "weight_map") format = TraceFormat::kIndex;
    return !format;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool enter() {
    ++depth_;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }
  std::int64_t depth_ = 0;
};

std::optional<TraceFormat> format_of_content(std::string_view text) {
  // A safetensors file: eight bytes of length, then a header that begins with a brace. Text whose
  // ninth byte is a brace has a length of at least 2^56, as its eighth byte is not zero.
  if (text.size() > 8 && text[8] == '{' && text[7] == '\0') return TraceFormat::kSafetensors;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return std::nullopt;
  if (text[first] == '{') {
    TopKeys keys;
    nlohmann::json::sax_parse(text.begin(), text.end(), &keys);
    return keys.format;
  }
  const std::string_view line = text.substr(0, text.find('\n'));
  if (line.find("conv") != std::string_view::npos && line.find(',') != std::string_view::npos)
    return TraceFormat::kGptOssCsv;
  return std::nullopt;
}

std::optional<TraceFormat> format_of_name(std::string_view path) {
  const auto ends = [&](std::string_view end) {
    return path.size() > end.size() && path.substr(path.size() - end.size()) == end;
  };
  if (ends(".index.json")) return TraceFormat::kIndex;
  if (ends(".json")) return TraceFormat::kGptOssJson;
  if (ends(".csv")) return TraceFormat::kGptOssCsv;
  if (ends(".safetensors")) return TraceFormat::kSafetensors;
  return std::nullopt;
}

Expected<TraceFormat> detect(const std::string& path, std::string_view text) {
  if (text.empty()) return bad_input(fmt::format("{}: is empty, 0 bytes", path));
  if (const auto format = format_of_content(text)) return *format;
  if (const auto format = format_of_name(path)) return *format;
  return bad_input(
      fmt::format("{}: begins with {}; allowed are a trace in safetensors, its index, "
                  "GPT-OSS CSV (first line conv,step,layer,...) and GPT-OSS JSON (an "
                  "object with router_data)",
                  path, in_quotes(text.substr(0, 16))));
}

}  // namespace
}  // namespace assay::traces
