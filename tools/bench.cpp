// assay bench moe: how long dispatch and combine of our kernels take on this machine's GPUs, beside
// what the machine can do at best and what NCCL takes for the same bytes. Prints one table; the
// measuring is verify/bench.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "model/core/text.hpp"
#include "model/moe/profile.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"
#include "traces/readers/readers.hpp"
#include "verify/bench/bench.hpp"
#include "verify/subject/foreign.hpp"

namespace assay::tools {
namespace {

using namespace verify::bench;

struct BenchArguments {
  const OptionalText& ep;
  const OptionalText& models;
  const OptionalText& batches;
  const OptionalText& recipes;
  const OptionalText& trace;
  const OptionalText& layer;
  const OptionalText& rounds;
  const OptionalText& repeats;
  const OptionalText& threads;
  const bool& no_ceilings;
  const bool& no_nccl;
  const bool& no_sentinel;
  const bool& no_overlap;
  const bool& emulated;
  const OptionalText& kernels;
  const OptionalText& kernels_profile;
  const OptionalText& kernels_options;
  const OptionalText& json;
};

constexpr const char* kModels = "deepseek_v3,deepseek_v4_1_flash,gpt_oss,kimi_k3";
constexpr const char* kBatches = "1,8,64,256,512,2048,4096";
constexpr const char* kRecipes = "bf16,mxfp8";

// Tokens of the trace in its order, the next rank's behind the last one's, from the start again
// when they run out.
std::vector<std::vector<std::int32_t>> ids_of(const traces::Trace& trace, std::int32_t layer,
                                              std::int32_t ep, std::int32_t batch) {
  std::vector<std::vector<std::int32_t>> ids(static_cast<std::size_t>(ep));
  std::int64_t next = 0;
  for (auto& of_rank : ids)
    for (std::int32_t token = 0; token < batch; ++token, next = (next + 1) % trace.num_tokens())
      for (const std::int16_t id : trace.topk_ids(next, layer)) of_rank.push_back(id);
  return ids;
}

Expected<std::vector<RowRequest>> rows_of(const BenchArguments& from, std::int32_t ep) {
  std::vector<std::pair<std::int32_t, moe::Recipe>> sizes;
  for (const std::string& recipe_name : list_of(from.recipes, kRecipes)) {
    ASSAY_TRY(const moe::Recipe recipe, moe::parse_recipe(recipe_name));
    for (const std::string& text : list_of(from.batches, kBatches)) {
      ASSAY_TRY(const std::int32_t batch, parse_integer<std::int32_t>("--batches", text, 1, 65536));
      sizes.emplace_back(batch, recipe);
    }
  }
  std::vector<RowRequest> rows;
  for (const std::string& name : list_of(from.models, kModels)) {
    ASSAY_TRY(const Model model, find_model(name));
    for (const auto& [batch, recipe] : sizes) {
      ASSAY_TRY(const auto ids, perfect_router(model, ep, batch));
      rows.push_back({model, batch, recipe, "perfect_router",
                      std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(ep), ids)});
    }
  }
  if (!from.trace) return rows;
  ASSAY_TRY(const traces::Trace trace, traces::read_trace(*from.trace));
  ASSAY_TRY(const std::int32_t layer,
            integer_or<std::int32_t>("--layer", from.layer, 0, trace.num_layers() - 1,
                                     trace.num_layers() / 2));
  const Model model{trace.info().model, trace.hidden_size(), trace.top_k(), trace.num_experts()};
  for (const auto& [batch, recipe] : sizes)
    rows.push_back({model, batch, recipe, "trace", ids_of(trace, layer, ep, batch)});
  return rows;
}

Table figures_table(const std::vector<Figure>& figures) {
  Table table{{"what", "value", "unit", "known", "within_3_percent", "decides"}, {}};
  for (const Figure& figure : figures)
    table.rows.push_back(
        {figure.name, figure.value, figure.unit, figure.known.value_or(0), figure.is_near_known()});
  return table;
}

double share(double ceiling, double measured) { return measured > 0 ? ceiling / measured : 0; }

// 0 where there is none.
double least(const std::vector<double>& times) {
  return times.empty() ? 0 : *std::min_element(times.begin(), times.end());
}

Table rows_table(const BenchResult& result, std::int32_t ep) {
  Table table{{"model",
               "router",
               "recipe",
               "batch",
               "fence_round_us",
               "sentinel_round_us",
               "foreign_round_us",
               "dispatch_us",
               "combine_us",
               "empty_us",
               "dispatch_gbps",
               "combine_gbps",
               "dispatch_link_gbps",
               "combine_link_gbps",
               "dispatch_of_ceiling",
               "combine_of_ceiling",
               "dispatch_ceiling_us",
               "combine_ceiling_us",
               "dispatch_mover",
               "combine_mover",
               "dispatch_copy_engine_us",
               "nccl_ag_rs_us",
               "nccl_all_to_all_us",
               "tokens_checked"},
              {}};
  for (const BenchRow& row : result.rows) {
    const RowRequest& request = row.request;
    const ProtocolTimes times = row.fence.value_or(ProtocolTimes{});
    const std::int64_t hidden_bytes =
        std::int64_t{request.model.hidden_size} * (request.recipe == moe::Recipe::kBf16 ? 2 : 1);
    const std::int64_t combine_bytes = std::int64_t{2} * request.model.hidden_size;
    const auto logical = [&](std::int64_t bytes, double us) {
      return logical_bandwidth(request.batch, ep, request.model.top_k, bytes, us);
    };
    table.rows.push_back({request.model.name,
                          request.router,
                          std::string(moe::recipe_name(request.recipe)),
                          std::int64_t{request.batch},
                          times.round,
                          row.sentinel ? row.sentinel->round : 0.0,
                          least(row.foreign_rounds),
                          times.dispatch,
                          times.combine,
                          times.empty,
                          logical(hidden_bytes, times.dispatch),
                          logical(combine_bytes, times.combine),
                          link_bandwidth(row.dispatch_traffic, times.dispatch),
                          link_bandwidth(row.combine_traffic, times.combine),
                          share(row.dispatch_ceiling, times.dispatch),
                          share(row.combine_ceiling, times.combine),
                          row.dispatch_ceiling,
                          row.combine_ceiling,
                          row.dispatch_mover,
                          row.combine_mover,
                          row.dispatch_copy_engine,
                          row.nccl_all_gather_reduce_scatter,
                          row.nccl_all_to_all,
                          row.checked_tokens});
  }
  return table;
}

// Where the time of a round goes: what cannot be avoided, and the rest (SPEC VER-20.5).
Table budget_table(const BenchResult& result) {
  Table table{{"model", "router", "recipe", "batch", "wire_us", "fence_left_us", "sentinel_left_us",
               "fence_of_floor", "sentinel_of_floor", "fence_reason", "sentinel_reason",
               "foreign_reason", "nccl_reason"},
              {}};
  for (const BenchRow& row : result.rows) {
    const double wire = row.dispatch_ceiling + row.combine_ceiling;
    const Floors& floors = result.floors;
    const double fence = row.fence ? row.fence->round : 0;
    const double sentinel = row.sentinel ? row.sentinel->round : 0;
    table.rows.push_back(
        {row.request.model.name, row.request.router,
         std::string(moe::recipe_name(row.request.recipe)), std::int64_t{row.request.batch}, wire,
         row.fence ? fence - floors.fence - wire : 0.0,
         row.sentinel ? sentinel - floors.sentinel - wire : 0.0, share(fence, floors.fence),
         share(sentinel, floors.sentinel), row.fence_reason, row.sentinel_reason,
         row.foreign_reason, row.nccl_reason});
  }
  return table;
}

std::string repro(const BenchArguments& from, std::int32_t ep) {
  std::string line = fmt::format("assay bench moe --ep {}", ep);
  const std::pair<const char*, const OptionalText*> options[] = {
      {"--models", &from.models},   {"--batches", &from.batches},
      {"--recipes", &from.recipes}, {"--trace", &from.trace},
      {"--layer", &from.layer},     {"--rounds", &from.rounds},
      {"--repeats", &from.repeats}, {"--threads", &from.threads},
      {"--kernels", &from.kernels}, {"--kernels-profile", &from.kernels_profile}};
  for (const auto& [name, value] : options)
    if (*value) line += fmt::format(" {} {}", name, **value);
  if (from.kernels_options) line += " --kernels-options=" + in_quotes(*from.kernels_options);
  const std::pair<const char*, bool> flags[] = {{"--no-ceilings", from.no_ceilings},
                                                {"--no-nccl", from.no_nccl},
                                                {"--no-sentinel", from.no_sentinel},
                                                {"--no-overlap", from.no_overlap},
                                                {"--emulated", from.emulated}};
  for (const auto& [name, given] : flags)
    if (given) line += fmt::format(" {}", name);
  return line;
}

Expected<ExitCode> run_bench_moe(const BenchArguments& from) {
  ASSAY_TRY(const Output output, Output::open(from.json, {from.trace, from.kernels}));
  if (!from.kernels && (from.kernels_profile || from.kernels_options))
    return bad_input("--kernels-profile and --kernels-options are of --kernels, which is missing");
  BenchOptions options;
  ASSAY_TRY(const std::int32_t ep, integer_or<std::int32_t>("--ep", from.ep, 2, 16, 4));
  options.emulated = from.emulated;
  for (int rank = 0; rank < ep; ++rank) options.devices.push_back(from.emulated ? 0 : rank);
  if (from.kernels) options.kernels = std::string(verify::kKernelsSpec) + *from.kernels;
  options.kernels_profile =
      from.kernels_profile.value_or(std::string(moe::default_combine_profile().name));
  options.kernels_options = from.kernels_options.value_or("");
  ASSAY_TRY(options.rounds, integer_or<std::int32_t>("--rounds", from.rounds, 100, 10000, 100));
  ASSAY_TRY(options.repeats, integer_or<std::int32_t>("--repeats", from.repeats, 1, 100, 3));
  ASSAY_TRY(options.threads, integer_or<std::uint32_t>("--threads", from.threads, 32, 1024, 0));
  options.ceilings = !from.no_ceilings;
  options.nccl = !from.no_nccl;
  options.sentinel = !from.no_sentinel;
  options.overlap = !from.no_overlap;
  options.progress = [](const std::string& what) {
    std::fputs(fmt::format("bench: {}\n", what).c_str(), stderr);
  };
  ASSAY_TRY(std::vector<RowRequest> rows, rows_of(from, ep));
  ASSAY_TRY(const BenchResult result, run_bench(options, std::move(rows)));
  Document document;
  document.field("device", result.device_name);
  document.field("gpus", std::int64_t{ep});
  document.field("driver", result.driver);
  document.field("cuda", result.cuda);
  document.field("nccl", result.nccl);
  document.field("rounds_chained", std::int64_t{options.rounds});
  if (from.emulated) {
    document.field("wire", std::string("none: all ranks are on one GPU"));
  } else {
    document.field("ceilings_hold", result.ceilings_hold(),
                   result.ceilings_hold() ? "" : "not within 3 % of the known: the run is void");
    document.table("ceilings", figures_table(result.ceilings));
    document.table("parts", figures_table(result.parts));
    document.field("floor_fence_us", result.floors.fence, "two kernels and the steps between them");
    document.field("floor_sentinel_us", result.floors.sentinel, "likewise");
  }
  document.table("rows", rows_table(result, ep));
  document.table("budget", budget_table(result));
  document.field("foreign", from.kernels ? result.foreign_name : "none: --kernels names a library");
  document.field("repro", repro(from, ep));
  ASSAY_CHECK(output.write(document));
  return result.ceilings_hold() ? ExitCode::kConforms : ExitCode::kMismatch;
}

}  // namespace

Action declare_bench_moe(Arguments& arguments) {
  const BenchArguments from{
      arguments.option("--ep", "N", "ranks, one GPU each (default 4)"),
      arguments.option("--models", "A,B", fmt::format("of {} (default: all)", kModels)),
      arguments.option("--batches", "N,M", fmt::format("tokens per rank (default {})", kBatches)),
      arguments.option("--recipes", "A,B", "bf16, mxfp8, fp8_block128, nvfp4 (default bf16,mxfp8)"),
      arguments.option("--trace", "FILE", "more rows, routed as in a trace"),
      arguments.option("--layer", "N", "of the trace (default: the middle one)"),
      arguments.option("--rounds", "N", "chained in one graph, at least 100 (default)"),
      arguments.option("--repeats", "N", "of a chain; the fastest counts (default 3)"),
      arguments.option("--threads", "N", "of a group (default: the launcher's choice)"),
      arguments.flag("--no-ceilings", "do not measure each row's own ceiling"),
      arguments.flag("--no-nccl", "do not measure NCCL's collectives"),
      arguments.flag("--no-sentinel", "measure Fence alone"),
      arguments.flag("--no-overlap", "each kernel waits for the one before it to leave the device"),
      arguments.flag("--emulated",
                     "all ranks on one GPU, a stream each: no wire is in the times, and "
                     "no ceilings, parts or NCCL beside them"),
      arguments.option("--kernels", "FILE",
                       "time this library's kernels too (one_sided_kernels.h)"),
      arguments.option("--kernels-profile", "NAME",
                       "that its sums are held to (default: ours); see assay profiles"),
      arguments.option("--kernels-options", "LINE", "key=value options that the library takes"),
      arguments.json()};
  return [from] { return run_bench_moe(from); };
}

}  // namespace assay::tools
