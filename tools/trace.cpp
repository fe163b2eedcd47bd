// assay trace info: what a file of captured routing holds. assay trace convert: the same routing in
// Assay's own format, whole or in shards.
#include <fmt/format.h>

#include "model/core/text.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"
#include "traces/format/trace_file.hpp"
#include "traces/readers/readers.hpp"
#include "traces/replay/statistics.hpp"

namespace assay::tools {
namespace {

constexpr const char* kFile = "a trace: Assay's safetensors or its index, GPT-OSS CSV or JSON";

std::int64_t num_requests(const traces::Trace& trace) {
  std::vector<std::int32_t> requests = trace.tensors().request;
  std::sort(requests.begin(), requests.end());
  return std::unique(requests.begin(), requests.end()) - requests.begin();
}

// Busiest expert over the mean, per layer over all steps.
Table layer_loads(const traces::Trace& trace) {
  Table table{{"layer", "max_over_mean", "busiest_expert", "picks"}, {}};
  for (std::int32_t layer = 0; layer < trace.num_layers(); ++layer) {
    std::vector<std::int64_t> picks(static_cast<std::size_t>(trace.num_experts()));
    std::int64_t sum = 0;
    for (std::int64_t token = 0; token < trace.num_tokens(); ++token) {
      for (const std::int16_t id : trace.topk_ids(token, layer)) {
        if (id < 0) continue;  // a padded trace's "no pick"
        ++picks[static_cast<std::size_t>(id)];
        ++sum;
      }
    }
    const auto busiest = std::max_element(picks.begin(), picks.end());
    const double ratio =
        sum == 0 ? 0
                 : static_cast<double>(*busiest * trace.num_experts()) / static_cast<double>(sum);
    table.rows.push_back(
        {std::int64_t{layer}, ratio, std::int64_t{busiest - picks.begin()}, *busiest});
  }
  return table;
}

Expected<ExitCode> print_info(const std::string& file, const OptionalText& json) {
  ASSAY_TRY(const Output output, Output::open(json, {file}));
  ASSAY_TRY(const traces::TraceFormat format, traces::detect_format(file));
  ASSAY_TRY(const traces::Trace trace, traces::read_trace(file));
  std::size_t fewest = 0, most = 0;
  for (const traces::TokenGroup& group : trace.groups()) {
    fewest = most == 0 ? group.tokens.size() : std::min(fewest, group.tokens.size());
    most = std::max(most, group.tokens.size());
  }
  Document document;
  document.field("file", file);
  document.field("format", std::string(traces::trace_format_name(format)));
  document.field("model", trace.info().model);
  document.field("licence", trace.info().licence);
  document.field("source", trace.info().source);
  document.field("num_experts", std::int64_t{trace.num_experts()});
  document.field("top_k", std::int64_t{trace.top_k()});
  document.field("hidden_size", std::int64_t{trace.hidden_size()});
  document.field("layers", std::int64_t{trace.num_layers()});
  document.field("tokens", trace.num_tokens());
  document.field("requests", num_requests(trace));
  document.field("steps", static_cast<std::int64_t>(trace.groups().size()));
  document.field("tokens_per_step_min", static_cast<std::int64_t>(fewest));
  document.field("tokens_per_step_max", static_cast<std::int64_t>(most));
  document.field("weights", trace.has_weights() ? std::string(dtype_name(trace.weights_dtype()))
                                                : std::string("none"));
  document.table("by_layer", layer_loads(trace));
  ASSAY_CHECK(output.write(document));
  return ExitCode::kConforms;
}

Expected<ExitCode> convert(const std::string& in, const std::string& out,
                           const OptionalText& shard_text, const OptionalText& json) {
  ASSAY_TRY(const Output output, Output::open(json, {in, out}));
  ASSAY_CHECK(check_writable(out));
  ASSAY_CHECK(check_not_input(out, {in}));
  ASSAY_TRY(const auto per_shard, integer_or<std::int64_t>("--tokens-per-shard", shard_text, 1,
                                                           std::int64_t{1} << 40, 0));
  ASSAY_TRY(const traces::Trace trace, traces::read_trace(in));
  std::string written = out;
  if (per_shard > 0) {
    ASSAY_TRY(written, traces::write_trace_shards(trace, out, per_shard));
  } else {
    ASSAY_CHECK(traces::write_trace(trace, out));
  }
  Document document;
  document.field("written", written);
  document.field("tokens", trace.num_tokens());
  document.field("layers", std::int64_t{trace.num_layers()});
  ASSAY_CHECK(output.write(document));
  return ExitCode::kConforms;
}

}  // namespace

Action declare_trace_info(Arguments& arguments) {
  const OptionalText& file = arguments.positional("FILE", kFile);
  const OptionalText& json = arguments.json();
  return [&file, &json] { return print_info(*file, json); };
}

Action declare_trace_convert(Arguments& arguments) {
  const OptionalText& in = arguments.positional("FILE", kFile);
  const OptionalText& out = arguments.positional("OUT", "the file to write, *.safetensors");
  const OptionalText& shards =
      arguments.option("--tokens-per-shard", "N", "cut into shards of N tokens with an index");
  const OptionalText& json = arguments.json();
  return [&in, &out, &shards, &json] { return convert(*in, *out, shards, json); };
}

}  // namespace assay::tools
