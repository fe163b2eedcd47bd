// How long our attention kernels take, beside what this GPU can do at best, on tensors that another
// program can make again to measure peers on them. Decides what is timed, what a row must show
// before it counts, and how it is normalised (SPEC VER-25.9 to VER-25.14); how a kernel works is
// cuda/kernels, which tensors there are cuda/launch/attention_tensors.hpp. In builds without CUDA
// it says so.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cuda/launch/attention_recipe.hpp"
#include "verify/bench/bench.hpp"

namespace assay::verify::bench {

struct AttentionBenchOptions {
  std::vector<std::int32_t> lengths = {16384, 65536};
  std::vector<Dtype> dtypes = {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3};
  std::vector<double> sparsities = {0.25, 0.5, 0.7, 0.9};
  int head_dim = 128;              // 64 (not F8_E4M3), 128 or 256
  std::int32_t repeats = 7;        // of every measurement
  std::int32_t checked_units = 2;  // of every row
  bool ceilings = true;
  bool decode = true;
  bool variants = false;  // also kernels that are tuned otherwise, where there are some
  std::function<void(const std::string&)> progress;
};

// One drawing of tensors, which rows and peers refer to.
struct AttentionSet {
  std::int64_t id = 0;
  Dtype dtype = Dtype::kBf16;
  std::string kernel = "prefill";  // or "decode"
  std::int32_t requests = 1;
  std::int32_t length = 0;  // of keys; a decode has one query row for each request
  std::string pattern;      // "whole tiles", "units"
  double low = 0;           // share of low key tiles, with whole tiles
  cuda::AttentionRecipe q, k, v;
  std::array<std::uint64_t, 3> checksums{};  // of q, k and v
};

// What a row's tuning says of the kernel that a launch takes by itself.
inline constexpr const char* kLaunchedTuning = "launched";

struct AttentionBenchRow {
  std::string kernel = "prefill";
  std::int64_t set = 0;
  Dtype dtype = Dtype::kBf16;
  std::int32_t requests = 1;
  std::int32_t length = 0;
  bool causal = false;
  std::string what;           // "dense", "nothing skipped", "whole tiles", "units"
  double wanted = 0;          // sparsity that was aimed at
  double sparsity = 0;        // skipped / visited, by the kernel's counters
  float lambda = 0;           // 0: no threshold
  double ms = 0, ms_min = 0;  // median and least of the repeats
  double tflops = 0;          // of a prefill as if dense, causal halved, by the median
  // Of a decode: bytes of keys, and of values that are not skipped, over time; and the time that a
  // read-only stream of as many bytes took in the same run, over the time.
  double gbps = 0, of_stream = 0;
  std::int64_t checked_rows = 0;  // of the output, bit for bit
  std::string tuning = kLaunchedTuning;
};

struct AttentionBenchResult {
  std::string device_name, driver, cuda;
  std::vector<Figure> ceilings;
  std::vector<AttentionSet> sets;
  std::vector<AttentionBenchRow> rows;
  std::string stopped;  // what ended the run early, a wrong bit or a failed launch; empty: nothing
};

// Errors: unsupported without CUDA or such a GPU. What goes wrong later is in `stopped`, and the
// rows before it stand.
Expected<AttentionBenchResult> run_attention_bench(const AttentionBenchOptions& options);

// Calls of so many rows take a quarter of a second: half as many are timed (SPEC VER-25.9).
std::int32_t repeats_of(std::int32_t length, std::int32_t repeats);
// TFLOP/s of a dense kernel that takes so long (SPEC VER-25.9).
double dense_tflops(std::int32_t length, int heads, int dim, bool causal, double ms);

// How many copies of keys and values a decode is timed on in turn, and the share of low tiles, of
// those that a chunk asks about, for a share of all (SPEC VER-25.13).
std::size_t rotated_caches(std::size_t cache_bytes);
double low_of_decode(double sparsity);

// What peers are asked: sets as JSON, for tools/attention-peers (SPEC VER-25.12).
nlohmann::ordered_json peer_request(const AttentionBenchResult& result, std::int32_t repeats);

struct PeerRow {
  std::string peer;
  std::int64_t set = 0;
  bool causal = false;
  double ms = 0, ms_min = 0;
};
struct PeerAnswer {
  std::vector<PeerRow> rows;
  std::vector<std::pair<std::string, std::string>> missing;  // peer, why
  std::vector<std::pair<std::string, std::string>> notes;    // peer, how it was measured
  std::vector<std::pair<std::string, std::string>> versions;
  double matmul_tflops = 0;  // 0: not measured
};
// Errors: text that is no such JSON, a set that was not asked for, tensors with other checksums.
Expected<PeerAnswer> parse_peer_answer(const std::string& text, const AttentionBenchResult& result);

// How much faster a row is than the fastest dense way on the same kind of
// problem (kernel, dtype, requests, length, mask): ours, or a peer's, on its own tensors if the
// peer had them (SPEC VER-25.11). Of a dense row: over peers alone, unless its kernel is tuned
// otherwise (SPEC VER-25.14).
struct SpeedUp {
  double value = 0;
  std::string over;  // "dense", "cudnn"
};
std::optional<SpeedUp> speed_up(const AttentionBenchResult& result, const PeerAnswer& peers,
                                const AttentionBenchRow& row);

}  // namespace assay::verify::bench
