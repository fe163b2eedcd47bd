// assay replay: captured routing through a subject and the model, at any number of ranks. Prints
// the verdict of every byte, and what the routing is like.
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "model/moe/rank_mask.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/tools.hpp"
#include "traces/readers/readers.hpp"
#include "traces/replay/replay.hpp"
#include "verify/compare/report.hpp"
#include "verify/mutants/mutants.hpp"

namespace assay::tools {
namespace {

struct ReplayArguments {
  const OptionalText& file;
  const OptionalText& ep;
  const OptionalText& recipe;
  const OptionalText& profile;
  const OptionalText& subject;
  const OptionalText& options;
  const OptionalText& placement;
  const OptionalText& steps;
  const OptionalText& layers;
  const OptionalText& hidden;
  const OptionalText& max_tokens;
  const OptionalText& mutant;
  const OptionalText& seed;
  const OptionalText& jobs;
  const bool& allow_vacuous;
  const OptionalText& json;
};

constexpr std::int32_t kDefaultEp = 8;

Expected<traces::Selection> parse_selection(const char* name, const OptionalText& text) {
  ASSAY_TRY(const IndexRange range, parse_range(name, text));
  return traces::Selection{range.begin, range.end};
}

Expected<traces::RoundsSetup> parse_setup(const ReplayArguments& from) {
  traces::RoundsSetup setup;
  ASSAY_TRY(setup.ep_size,
            integer_or<std::int32_t>("--ep", from.ep, 1, moe::kMaxRanks, kDefaultEp));
  if (from.recipe) {
    ASSAY_TRY(setup.recipe, moe::parse_recipe(*from.recipe));
  }
  if (from.profile) {
    ASSAY_TRY(setup.profile, moe::find_combine_profile(*from.profile));
  }
  if (from.placement) {
    ASSAY_TRY(setup.placement, traces::parse_token_placement(*from.placement));
  }
  if (from.hidden) {
    ASSAY_TRY(setup.hidden_size,
              parse_integer<std::int32_t>("--hidden", *from.hidden, 1, moe::kMaxHiddenSize));
  }
  if (from.max_tokens) {
    ASSAY_TRY(setup.max_tokens_per_rank,
              parse_integer<std::int32_t>("--max-tokens", *from.max_tokens, 1, 1 << 20));
  }
  setup.subject_options = from.options.value_or("");
  ASSAY_TRY(setup.steps, parse_selection("--steps", from.steps));
  ASSAY_TRY(setup.layers, parse_selection("--layers", from.layers));
  ASSAY_TRY(setup.seed, integer_or<std::uint64_t>("--seed", from.seed, 0, ~std::uint64_t{0}, 1));
  return setup;
}

// What repeats the first mismatch, or the whole run where there is none.
verify::Repro repro_of(const ReplayArguments& from, const traces::ReplayResult& result) {
  verify::Repro repro;
  repro.verb = "replay";
  repro.arguments = {*from.file};
  const auto add = [&](const char* flag, const OptionalText& text) {
    if (text) repro.flags.emplace_back(flag, *text);
  };
  repro.flags.emplace_back("--ep", from.ep.value_or(std::to_string(kDefaultEp)));
  add("--recipe", from.recipe);
  add("--profile", from.profile);
  add("--subject", from.subject);
  add("--options", from.options);
  add("--placement", from.placement);
  add("--hidden", from.hidden);
  add("--max-tokens", from.max_tokens);
  add("--mutant", from.mutant);
  add("--seed", from.seed);
  if (result.mismatches.empty()) {
    add("--steps", from.steps);
    add("--layers", from.layers);
    return repro;
  }
  const traces::ReplayMismatch& first = result.mismatches.front();
  repro.flags.emplace_back(
      "--steps", fmt::format("{}:{}", first.first_step, std::int64_t{first.last_step} + 1));
  repro.flags.emplace_back("--layers", fmt::format("{}:{}", first.layer, first.layer + 1));
  return repro;
}

verify::Report make_report(const ReplayArguments& from, const traces::Rounds& rounds,
                           const verify::Subject& subject, const traces::ReplayResult& result) {
  verify::Report report;
  report.title = fmt::format("replay {} ep {}", *from.file, rounds.group().ep_size);
  for (const traces::ReplayMismatch& mismatch : result.mismatches)
    report.mismatches.push_back(mismatch.mismatch);
  report.mismatching_rounds = result.mismatching_rounds;
  report.coverage = result.coverage;
  report.provenance = verify::group_provenance(subject, rounds.group());
  for (auto& line : verify::oracle_provenance()) report.provenance.push_back(std::move(line));
  for (const verify::Mutant& mutant : verify::mutants()) {
    if (subject.mutant() == mutant.name)
      report.provenance.emplace_back("mutant",
                                     fmt::format("{}; needs {}", mutant.title, mutant.needs));
  }
  report.repro = repro_of(from, result);
  if (!result.mismatches.empty()) {
    report.verdict = verify::Verdict::kMismatch;
  } else if (!result.unsupported.empty()) {
    report.verdict = verify::Verdict::kUnsupported;
    report.reasons.push_back(result.unsupported);
  } else if (result.statistics.rows == 0) {
    report.verdict = verify::Verdict::kMistrusted;
    report.reasons.push_back("no token was routed: nothing was compared");
  }
  return report;
}

void add_spread(Document& document, const std::string& key, const traces::Spread& spread,
                const char* meaning) {
  document.field(key + "_mean", spread.mean(), meaning);
  document.field(key + "_worst", spread.worst);
}

void describe_balance(Document& document, const traces::Statistics& statistics) {
  Document& load = document.group("load");
  add_spread(load, "rank_max_over_mean", statistics.rank_imbalance,
             "rows of the fullest rank over the mean, per round");
  add_spread(load, "expert_max_over_mean", statistics.expert_imbalance,
             "picks of the busiest expert over the mean, per round");
  add_spread(load, "busiest_expert_picks", statistics.busiest_expert,
             "picks of the busiest expert, per round");
  load.field("empty_experts", statistics.empty_expert_fraction(),
             percent_remark(statistics.empty_expert_fraction()) + " of (round, expert)");
  add_spread(load, "occupancy", statistics.occupancy,
             "rows over slots of a rank's receive buffer, per round");
}

void describe_bytes(Document& document, const traces::Rounds& rounds,
                    const traces::Statistics& statistics) {
  const std::int64_t combine_row =
      rounds.group().hidden_size * moe::dtype_bytes(rounds.group().combine_dtype);
  const std::int64_t dispatch_row = rounds.group().max_payload_bytes_total;
  Document& bytes = document.group("bytes");
  bytes.field("dispatch_per_row", dispatch_row, bytes_remark(dispatch_row));
  bytes.field("combine_per_row", combine_row, bytes_remark(combine_row));
  bytes.field("dispatch", statistics.rows * dispatch_row,
              bytes_remark(statistics.rows * dispatch_row));
  bytes.field("combine", statistics.rows * combine_row,
              bytes_remark(statistics.rows * combine_row));

  Table ranks{{"rank", "tokens", "rows_sent", "rows_received", "bytes_dispatched", "bytes_received",
               "bytes_combined"},
              {}};
  Table pairs{{"source"}, {}};
  const std::int32_t ep = statistics.ep_size;
  for (std::int32_t rank = 0; rank < ep; ++rank) {
    const std::int64_t sent = statistics.rows_sent(rank);
    const std::int64_t received = statistics.rows_received(rank);
    ranks.rows.push_back({std::int64_t{rank},
                          statistics.tokens_by_rank[static_cast<std::size_t>(rank)], sent, received,
                          sent * dispatch_row, received * dispatch_row, sent * combine_row});
    pairs.columns.push_back(fmt::format("to_{}", rank));
    std::vector<Value> row = {std::int64_t{rank}};
    for (std::int32_t dst = 0; dst < ep; ++dst) {
      const auto pair = static_cast<std::size_t>(rank) * static_cast<std::size_t>(ep) +
                        static_cast<std::size_t>(dst);
      row.push_back(statistics.rows_by_pair[pair] * dispatch_row);
    }
    pairs.rows.push_back(std::move(row));
  }
  document.table("by_rank", std::move(ranks));
  document.table("dispatch_bytes_by_pair", std::move(pairs));
}

void describe_experts(Document& document, const traces::Rounds& rounds,
                      const traces::Statistics& statistics) {
  Table layers{{"layer", "max_over_mean", "busiest_expert", "picks"}, {}};
  for (std::int32_t layer = 0; layer < statistics.num_layers; ++layer) {
    const auto first =
        statistics.picks_by_expert.begin() + std::int64_t{layer} * statistics.num_experts;
    const auto busiest = std::max_element(first, first + statistics.num_experts);
    layers.rows.push_back({std::int64_t{rounds.layer_number(layer)},
                           statistics.layer_imbalance(layer), std::int64_t{busiest - first},
                           *busiest});
  }
  document.table("by_layer", std::move(layers));
  std::vector<Value> picks;
  for (std::int32_t expert = 0; expert < statistics.num_experts; ++expert)
    picks.push_back(statistics.picks_of_expert(expert));
  document.list("picks_by_expert", std::move(picks));
}

Document describe(const traces::Rounds& rounds, const verify::Report& report,
                  const traces::ReplayResult& result, double seconds) {
  const traces::Statistics& statistics = result.statistics;
  Document document;
  document.rendered("report", verify::to_text(report), verify::to_json(report));
  document.field("rounds", result.rounds,
                 fmt::format("{} steps x {} layers", rounds.num_steps(), rounds.num_layers()));
  document.field("mismatches", result.mismatching_rounds, "rounds with a wrong byte");
  if (result.rounds_not_run > 0) {
    document.field("rounds_not_run", result.rounds_not_run,
                   "the subject had stopped making progress");
  }
  document.field("tokens", statistics.tokens, "over all rounds");
  document.field("rows", statistics.rows, "one per token and rank that it goes to");
  document.field("empty_pairs", statistics.empty_pair_fraction(),
                 percent_remark(statistics.empty_pair_fraction()) +
                     " of (round, source, destination) carry no token");
  document.field(
      "empty_ranks", statistics.empty_rank_fraction(),
      percent_remark(statistics.empty_rank_fraction()) + " of (round, rank) receive nothing");
  document.field("ranks_per_token", statistics.ranks_per_token());
  document.field("recipe", std::string(moe::recipe_name(rounds.setup().recipe)));
  document.field("placement", std::string(traces::token_placement_name(rounds.setup().placement)));
  document.field("hidden", std::int64_t{rounds.group().hidden_size});
  describe_balance(document, statistics);
  describe_bytes(document, rounds, statistics);
  describe_experts(document, rounds, statistics);
  Document& time = document.group("seconds");
  time.field("wall", seconds);
  time.field("subject", result.subject_seconds, "sum over threads, as the next two");
  time.field("experts", result.experts_seconds);
  time.field("checks", result.check_seconds);
  return document;
}

Expected<ExitCode> run_replay(const ReplayArguments& from) {
  const auto start = std::chrono::steady_clock::now();
  ASSAY_TRY(const Output output, Output::open(from.json, {from.file, plugin_file(from.subject)}));
  ASSAY_TRY(const traces::RoundsSetup setup, parse_setup(from));
  const auto cores = static_cast<std::int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  ASSAY_TRY(const std::int32_t jobs,
            integer_or<std::int32_t>("--jobs", from.jobs, 1, 1024, std::min(cores, 1024)));
  ASSAY_TRY(const verify::Subject subject,
            verify::load_subject(from.subject.value_or("sim"), from.mutant));
  ASSAY_TRY(const traces::Trace trace, traces::read_trace(*from.file));
  ASSAY_TRY(const traces::Rounds rounds, traces::Rounds::make(trace, setup));

  Expected<traces::ReplayResult> result = [&] {
    Progress progress("rounds", rounds.num_rounds());
    return traces::replay(rounds, subject,
                          {jobs, [&](std::int64_t done) { progress.advance(done); }});
  }();
  if (!result) return result.error();
  const verify::Report report = make_report(from, rounds, subject, *result);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  ASSAY_CHECK(output.write(describe(rounds, report, *result, wall.count())));
  const bool forgiven = report.verdict == verify::Verdict::kMistrusted && from.allow_vacuous;
  return forgiven ? ExitCode::kConforms : static_cast<ExitCode>(exit_code(report.verdict));
}

}  // namespace

Action declare_replay(Arguments& arguments) {
  const ReplayArguments from{
      arguments.positional("FILE", "a trace: Assay's safetensors, GPT-OSS CSV or JSON"),
      arguments.option("--ep", "N", "ranks, 1 to 256 (default 8)"),
      arguments.option("--recipe", "NAME", "bf16 (default), fp8_block128, mxfp8 or nvfp4"),
      arguments.option("--profile", "NAME", "arithmetic of combine; see assay profiles"),
      arguments.option("--subject", "WHAT", "sim (default), cuda, plugin:FILE or kernels:FILE"),
      arguments.option("--options", "LINE", "key=value options that the subject takes"),
      arguments.option("--placement", "NAME", "contiguous (default), round_robin or request"),
      arguments.option("--steps", "A:B", "only steps A to B-1"),
      arguments.option("--layers", "A:B", "only layers A to B-1"),
      arguments.option("--hidden", "N", "hidden size (default: the model's own)"),
      arguments.option("--max-tokens", "N", "slots per source (default: what each step needs)"),
      arguments.option("--mutant", "NAME", "a wrong kernel instead of the right one"),
      arguments.option("--seed", "N", "of payload bytes and schedules (default 1)"),
      arguments.option("--jobs", "N", "threads (default: cores); results are the same for any N"),
      arguments.flag("--allow-vacuous", "exit 0 even if nothing was routed"),
      arguments.json()};
  return [from] { return run_replay(from); };
}

}  // namespace assay::tools
