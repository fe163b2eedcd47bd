// assay bench attention: how long our attention kernels take on this machine's GPU, beside its
// ceilings and, by another program on the same tensors, beside cuDNN and flash attention. Prints
// one document; the measuring is verify/bench/attention.hpp.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "model/core/text.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/program.hpp"
#include "tools/cli/tools.hpp"
#include "verify/bench/attention.hpp"

namespace assay::tools {
namespace {

using namespace verify::bench;

struct BenchAttentionArguments {
  const OptionalText& lengths;
  const OptionalText& dtypes;
  const OptionalText& head_dim;
  const OptionalText& repeats;
  const OptionalText& peers;
  const OptionalText& peer_time;
  const bool& quick;
  const bool& no_ceilings;
  const bool& no_decode;
  const bool& variants;
  const OptionalText& json;
};

Expected<Dtype> parse_dtype(const std::string& name) {
  for (const auto& [word, dtype] : {std::pair{"bf16", Dtype::kBf16}, std::pair{"fp16", Dtype::kF16},
                                    std::pair{"fp8", Dtype::kF8E4m3}})
    if (name == word) return dtype;
  return bad_input(fmt::format("--dtypes has {}; allowed are bf16, fp16 and fp8", in_quotes(name)));
}

Expected<int> parse_head_dim(const OptionalText& text) {
  ASSAY_TRY(const int dim, integer_or<int>("--head-dim", text, 64, 256, 128));
  if (dim == 64 || dim == 128 || dim == 256) return dim;
  return bad_input(fmt::format("--head-dim is {}; allowed are 64, 128 and 256", dim));
}

Expected<AttentionBenchOptions> parse_options(const BenchAttentionArguments& from) {
  AttentionBenchOptions options;
  options.lengths.clear();
  options.dtypes.clear();
  for (const std::string& text : list_of(from.lengths, from.quick ? "16384" : "16384,65536")) {
    ASSAY_TRY(const std::int32_t length,
              parse_integer<std::int32_t>("--lengths", text, 128, 1 << 18));
    options.lengths.push_back(length);
  }
  ASSAY_TRY(options.head_dim, parse_head_dim(from.head_dim));
  const bool fp8 = options.head_dim != 64;  // has kernels
  for (const std::string& text : list_of(from.dtypes, fp8 ? "bf16,fp16,fp8" : "bf16,fp16")) {
    ASSAY_TRY(const Dtype dtype, parse_dtype(text));
    if (dtype == Dtype::kF8E4m3 && !fp8)
      return bad_input("--dtypes has fp8; with --head-dim 64 allowed are bf16 and fp16");
    options.dtypes.push_back(dtype);
  }
  options.variants = from.variants;
  if (options.variants &&
      (options.head_dim != 128 || std::find(options.dtypes.begin(), options.dtypes.end(),
                                            Dtype::kBf16) == options.dtypes.end()))
    return bad_input("--variants needs bf16 among --dtypes, and --head-dim 128: others have none");
  ASSAY_TRY(options.repeats,
            integer_or<std::int32_t>("--repeats", from.repeats, 1, 1000, from.quick ? 9 : 7));
  options.ceilings = !from.no_ceilings;
  options.decode = !from.no_decode;
  options.progress = [](const std::string& what) {
    std::fputs(fmt::format("bench: {}\n", what).c_str(), stderr);
  };
  return options;
}

// What the peers' program says. Errors: why it says nothing.
Expected<PeerAnswer> ask_peers(const std::string& program, const AttentionBenchResult& result,
                               std::int32_t repeats, std::int32_t seconds) {
  ASSAY_TRY(const TemporaryFile request,
            TemporaryFile::make(peer_request(result, std::min(repeats, 5)).dump() + "\n"));
  std::fputs("bench: peers\n", stderr);
  ASSAY_TRY(const std::string printed,
            run_program({program, request.path()}, std::chrono::seconds(seconds)));
  const std::size_t end = printed.find_last_not_of(" \n");
  const std::size_t begin = end == std::string::npos ? 0 : printed.rfind('\n', end) + 1;
  return parse_peer_answer(end == std::string::npos ? "" : printed.substr(begin, end + 1 - begin),
                           result);
}

Table ceilings_table(const std::vector<Figure>& figures) {
  Table table{{"what", "value", "unit"}, {}};
  for (const Figure& figure : figures)
    table.rows.push_back({figure.name, figure.value, figure.unit});
  return table;
}

std::string mask_word(bool causal) { return causal ? "causal" : "full"; }

Table rows_table(const AttentionBenchResult& result, const PeerAnswer& peers) {
  Table table{{"kernel", "dtype", "requests", "length", "mask", "what", "tuning", "wanted",
               "sparsity", "lambda", "ms", "ms_min", "tflops", "gbps", "of_stream", "speed_up",
               "over", "set", "rows_checked"},
              {}};
  for (const AttentionBenchRow& row : result.rows) {
    const auto faster = speed_up(result, peers, row);
    table.rows.push_back({row.kernel, std::string(dtype_name(row.dtype)),
                          std::int64_t{row.requests}, std::int64_t{row.length},
                          mask_word(row.causal), row.what, row.tuning, row.wanted, row.sparsity,
                          static_cast<double>(row.lambda), row.ms, row.ms_min, row.tflops, row.gbps,
                          row.of_stream, faster ? faster->value : 0.0,
                          faster ? faster->over : std::string("-"), row.set, row.checked_rows});
  }
  return table;
}

Table peers_table(const AttentionBenchResult& result, const PeerAnswer& peers) {
  Table table{{"peer", "kernel", "dtype", "requests", "length", "mask", "pattern", "low", "ms",
               "ms_min", "tflops"},
              {}};
  for (const PeerRow& row : peers.rows) {
    const AttentionSet& set = result.sets[static_cast<std::size_t>(row.set)];
    table.rows.push_back(
        {row.peer, set.kernel, std::string(dtype_name(set.dtype)), std::int64_t{set.requests},
         std::int64_t{set.length}, mask_word(row.causal), set.pattern, set.low, row.ms, row.ms_min,
         set.kernel == "decode"
             ? 0.0
             : dense_tflops(set.length, set.q.heads, set.q.dim, row.causal, row.ms)});
  }
  return table;
}

Table sets_table(const AttentionBenchResult& result) {
  Table table{{"set", "kernel", "dtype", "requests", "length", "pattern", "low", "checksum_q",
               "checksum_k", "checksum_v"},
              {}};
  for (const AttentionSet& set : result.sets) {
    std::vector<Value> row = {set.id,
                              set.kernel,
                              std::string(dtype_name(set.dtype)),
                              std::int64_t{set.requests},
                              std::int64_t{set.length},
                              set.pattern,
                              set.low};
    for (const std::uint64_t sum : set.checksums) row.emplace_back(fmt::format("{:016x}", sum));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string repro(const BenchAttentionArguments& from) {
  std::string line = "assay bench attention";
  if (from.quick) line += " --quick";
  if (from.no_decode) line += " --no-decode";
  if (from.no_ceilings) line += " --no-ceilings";
  if (from.variants) line += " --variants";
  const std::pair<const char*, const OptionalText*> options[] = {
      {"--lengths", &from.lengths}, {"--dtypes", &from.dtypes}, {"--head-dim", &from.head_dim},
      {"--repeats", &from.repeats}, {"--peers", &from.peers},   {"--peer-time", &from.peer_time}};
  for (const auto& [name, value] : options)
    if (*value) line += fmt::format(" {} {}", name, **value);
  return line;
}

Expected<ExitCode> run_bench_attention(const BenchAttentionArguments& from) {
  ASSAY_TRY(const Output output, Output::open(from.json, {from.peers}));
  ASSAY_TRY(const AttentionBenchOptions options, parse_options(from));
  ASSAY_TRY(const std::int32_t seconds,
            integer_or<std::int32_t>("--peer-time", from.peer_time, 1, 3600, 180));
  // Before minutes are measured that would then have no peers.
  if (from.peers && access(from.peers->c_str(), X_OK) != 0)
    return bad_input(
        fmt::format("--peers is {}, which is no program that can be run", in_quotes(*from.peers)));
  ASSAY_TRY(const AttentionBenchResult result, run_attention_bench(options));
  // Our own rows stand whatever the peers do, but not without a word and a code.
  PeerAnswer peers;
  std::string reason = "--peers names no program; tools/attention-peers measures them";
  bool whole = result.stopped.empty();
  if (from.peers) {
    auto answer = ask_peers(*from.peers, result, options.repeats, seconds);
    whole &= answer.has_value();
    reason = answer ? "" : answer.error().sentence;
    if (answer) peers = *std::move(answer);
  }
  Document document;
  if (!result.stopped.empty()) document.field("stopped", result.stopped);
  document.field("device", result.device_name);
  document.field("driver", result.driver);
  document.field("cuda", result.cuda);
  document.field("repeats", std::int64_t{options.repeats});
  document.field("head_dim", std::int64_t{options.head_dim});
  document.table("ceilings", ceilings_table(result.ceilings));
  document.table("rows", rows_table(result, peers));
  document.table("peers", peers_table(result, peers));
  Table missing{{"peer", "reason"}, {}};
  if (!reason.empty()) missing.rows.push_back({std::string("all"), reason});
  for (const auto& [peer, why] : peers.missing) missing.rows.push_back({peer, why});
  document.table("peers_missing", std::move(missing));
  Table notes{{"peer", "note"}, {}};
  for (const auto& [peer, note] : peers.notes) notes.rows.push_back({peer, note});
  document.table("peer_notes", std::move(notes));
  if (peers.matmul_tflops > 0) document.field("matmul_tflops", peers.matmul_tflops);
  for (const auto& [name, version] : peers.versions) document.field("version_" + name, version);
  document.table("sets", sets_table(result));
  document.field("repro", repro(from));
  ASSAY_CHECK(output.write(document));
  return whole ? ExitCode::kConforms : ExitCode::kMismatch;
}

}  // namespace

Action declare_bench_attention(Arguments& arguments) {
  const BenchAttentionArguments from{
      arguments.option("--lengths", "N,M", "query rows, and keys (default 16384,65536)"),
      arguments.option("--dtypes", "A,B", "bf16, fp16, fp8 (default: all that have kernels)"),
      arguments.option("--head-dim", "N", "64 (not fp8), 128 or 256 (default 128)"),
      arguments.option("--repeats", "N", "of every measurement; the median counts (default 7)"),
      arguments.option("--peers", "PROGRAM",
                       "measures others on the same tensors: tools/attention-peers"),
      arguments.option("--peer-time", "SECONDS", "after which it is ended (default 180)"),
      arguments.flag("--quick", "16384 alone: under 40 s"),
      arguments.flag("--no-ceilings", "do not measure memory and matrix instructions alone"),
      arguments.flag("--no-decode", "measure prefill alone"),
      arguments.flag("--variants", "also time kernels for bf16 that are tuned otherwise"),
      arguments.json()};
  return [from] { return run_bench_attention(from); };
}

}  // namespace assay::tools
