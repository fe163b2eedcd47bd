// See decode_bench.hpp.
#include "cuda/launch/decode_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cuda/kernels/attention/decode_plan.hpp"
#include "cuda/launch/attention_bench_fill.hpp"
#include "cuda/launch/attention_launch.hpp"
#include "cuda/launch/attention_timer.hpp"
#include "cuda/launch/decode_variants.hpp"
#include "cuda/launch/device.hpp"

namespace assay::cuda {
namespace {

constexpr int kQueryHeads = 64, kKeyHeads = 4, kDim = 128;
// Several times the 50 MiB of L2, so that no tensor is found there when its turn comes again.
constexpr std::size_t kRotatedBytes = std::size_t{512} << 20;

struct Tensors {
  int requests = 0, length = 0;
  bool fp8 = false;
  DeviceMemory q, out, lse, counters, workspace, sink;
  std::vector<DeviceMemory> caches;  // all keys, then all values; used in turn

  std::size_t bytes() const { return caches[0].bytes(); }  // of keys and values
  void* keys(std::size_t i) const { return caches[i].data(); }
  void* values(std::size_t i) const {
    return static_cast<std::byte*>(caches[i].data()) + bytes() / 2;
  }

  static Expected<Tensors> make(int requests, int length, bool fp8) {
    Tensors t;
    t.requests = requests;
    t.length = length;
    t.fp8 = fp8;
    const std::size_t rows = static_cast<std::size_t>(requests) * static_cast<std::size_t>(length);
    const std::size_t cache = rows * kKeyHeads * kDim * (fp8 ? 2 : 4);
    const std::size_t queries = static_cast<std::size_t>(requests) * kQueryHeads * kDim;
    ASSAY_TRY(t.q, DeviceMemory::make(queries * 2, "q"));
    ASSAY_TRY(t.out, DeviceMemory::make(queries * 2, "out"));
    ASSAY_TRY(t.lse, DeviceMemory::make(queries / kDim * 4, "lse"));
    ASSAY_TRY(t.counters, DeviceMemory::make(kKeyHeads * 16, "counters"));
    ASSAY_TRY(t.sink, DeviceMemory::make(16, "the sink"));
    const std::size_t sets = (kRotatedBytes + cache - 1) / cache;
    for (std::size_t i = 0; i < sets; ++i) {
      ASSAY_TRY(DeviceMemory memory, DeviceMemory::make(cache, "keys and values"));
      t.caches.push_back(std::move(memory));
    }
    ASSAY_TRY(t.workspace, DeviceMemory::make(decode_workspace_bytes(t.call(0)), "workspace"));
    return Expected<Tensors>(std::move(t));
  }

  // Key tiles are low for everybody but for a share `high`.
  void draw(float high, Stream stream) const {
    const float strength = 4 * std::sqrt(std::sqrt(static_cast<float>(kDim)));
    const std::int64_t rows = std::int64_t{requests} * length;
    fill({q.data(), fp8, requests, kQueryHeads, kDim, 64, 1, 1, -strength, 0, 1}, stream);
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const auto seed = static_cast<std::uint32_t>(2 * i + 2);
      fill({keys(i), fp8, rows, kKeyHeads, kDim, kDecodeKvTile, 1, 1, strength, high, seed,
            attention_kernels::kChunkTiles},
           stream);
      fill({values(i), fp8, rows, kKeyHeads, kDim, 64, 0, 1, 0, 0, seed + 1}, stream);
    }
  }

  AttentionCall call(std::size_t turn) const {
    const std::size_t cache = turn % caches.size();
    AttentionCall c;
    if (fp8) c.dtype = Dtype::kF8E4m3;
    c.requests = requests;
    c.q_heads = kQueryHeads;
    c.kv_heads = kKeyHeads;
    c.head_dim = kDim;
    const auto rows = [](void* data, std::int64_t count, int heads) {
      return AttentionRows{data, count, std::int64_t{heads} * kDim, kDim, count * heads * kDim};
    };
    c.q = rows(q.data(), 1, kQueryHeads);
    c.k = rows(keys(cache), length, kKeyHeads);
    c.v = rows(values(cache), length, kKeyHeads);
    c.out = rows(out.data(), 1, kQueryHeads);
    c.lse = {lse.data(), 1, kQueryHeads, 1, kQueryHeads};
    c.mask = attention::MaskKind::kCausal;
    c.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    c.workspace = workspace.data();
    c.workspace_bytes = workspace.bytes();
    return c;
  }
};

class DecodeBench {
 public:
  DecodeBench(int repeats, bool variants) : repeats_(repeats), variants_(variants) {}

  Status run() {
    ASSAY_TRY(timer_, AttentionTimer::make());
    for (const bool fp8 : {false, true}) {
      for (const auto& [requests, length] : {std::pair{64, 16384}, std::pair{1, 65536}}) {
        ASSAY_TRY(const Tensors tensors, Tensors::make(requests, length, fp8));
        ASSAY_CHECK(measure_all(tensors));
      }
    }
    return Done{};
  }

 private:
  Status measure_all(const Tensors& t) {
    t.draw(1.0f, timer_.stream().stream());
    const auto read = [&](std::size_t turn) -> Status {
      read_stream(t.keys(turn % t.caches.size()), t.bytes(), t.sink.data(),
                  timer_.stream().stream());
      return Done{};
    };
    ASSAY_TRY(const Times stream_times, time(t, read));
    stream_ms_ = stream_times.median;
    print(t, "read-only stream", "stream", 0, 0, stream_times, static_cast<double>(t.bytes()));
    dense_ms_ = 0;
    ASSAY_CHECK(measure(t, 0, "dense"));
    ASSAY_CHECK(measure(t, 1e-37f, "nothing skipped"));
    for (const float sparsity : {0.5f, 0.7f, 0.9f}) {
      constexpr float kAsked = 31.0f / 32;  // the first tile of a chunk is kept
      t.draw(1 - sparsity / kAsked, timer_.stream().stream());
      ASSAY_CHECK(measure(t, 1e-3f, "whole tiles"));
    }
    return Done{};
  }

  Status measure(const Tensors& t, float lambda, const char* what) {
    const auto call_of = [&](std::size_t turn) {
      AttentionCall call = t.call(turn);
      call.threshold = lambda > 0 ? AttentionThreshold::kLambda : AttentionThreshold::kOff;
      call.threshold_value = lambda;
      return call;
    };
    ASSAY_TRY(const double share, share_skipped(t, call_of(0)));
    std::vector<DecodeVariant> variants{{"launched", find_decode_kernel(call_of(0))}};
    if (variants_ && !t.fp8)
      for (const DecodeVariant& v : decode_variants()) variants.push_back(v);
    for (const DecodeVariant& variant : variants) {
      const auto launch = [&](std::size_t turn) {
        return launch_decode_kernel(call_of(turn), variant.kernel, {}, timer_.stream().stream());
      };
      ASSAY_TRY(const Times times, time(t, launch));
      if (dense_ms_ == 0) dense_ms_ = times.median;
      print(t, what, variant.name, lambda, share, times,
            (1 - share / 2) * static_cast<double>(t.bytes()));
    }
    return Done{};
  }

  Expected<double> share_skipped(const Tensors& t, AttentionCall call) {
    ASSAY_CUDA(cudaMemsetAsync(t.counters.data(), 0, t.counters.bytes(), timer_.stream()),
               "zeroing");
    call.counters = static_cast<std::uint64_t*>(t.counters.data());
    ASSAY_CHECK(launch_decode(call, timer_.stream().stream()));
    ASSAY_CHECK(wait_for(timer_.stream(), kMeasurementBudget, "the decode kernel"));
    std::vector<std::uint64_t> counters(2 * kKeyHeads);
    ASSAY_CUDA(
        cudaMemcpy(counters.data(), t.counters.data(), t.counters.bytes(), cudaMemcpyDeviceToHost),
        "reading counters");
    double visited = 0, skipped = 0;
    for (std::size_t h = 0; h < kKeyHeads; ++h) {
      visited += static_cast<double>(counters[2 * h]);
      skipped += static_cast<double>(counters[2 * h + 1]);
    }
    return skipped / visited;
  }

  struct Times {
    double median = 0, least = 0;  // ms of one launch
  };
  // Launches recorded back to back, every tensor in turn.
  template <class Launch>
  Expected<Times> time(const Tensors& t, const Launch& launch) {
    const std::size_t launches = std::max<std::size_t>(4, t.caches.size());
    Graph graph;
    ASSAY_CHECK(graph.record(timer_.stream(), [&]() -> Status {
      for (std::size_t i = 0; i < launches; ++i) ASSAY_CHECK(launch(i));
      return Done{};
    }));
    ASSAY_TRY(const std::vector<double> times,
              timer_.time([&] { return graph.launch(timer_.stream()); }, repeats_));
    const auto each = static_cast<double>(launches);
    return Times{times[times.size() / 2] / each, times.front() / each};
  }

  void print(const Tensors& t, const char* what, const char* kernel, float lambda, double share,
             const Times& times, double bytes) const {
    fmt::print(
        "{{\"bench\": \"decode\", \"dtype\": \"{}\", \"requests\": {}, \"length\": {}, \"dim\": "
        "{}, "
        "\"what\": \"{}\", \"kernel\": \"{}\", \"lambda\": {:g}, \"sparsity\": {:.4f}, "
        "\"us\": {:.2f}, \"us_min\": {:.2f}, \"tb_per_s\": {:.3f}, \"of_stream\": {:.4f}, "
        "\"speedup\": {:.3f}}}\n",
        dtype_name(t.fp8 ? Dtype::kF8E4m3 : Dtype::kBf16), t.requests, t.length, kDim, what, kernel,
        lambda, share, times.median * 1e3, times.least * 1e3, bytes / times.median / 1e9,
        // What the stream would have needed for as many bytes.
        stream_ms_ * bytes / static_cast<double>(t.bytes()) / times.median,
        dense_ms_ / times.median);
    std::fflush(stdout);
  }

  int repeats_;
  bool variants_;
  AttentionTimer timer_;
  double stream_ms_ = 0, dense_ms_ = 0;
};

}  // namespace

Status bench_decode(int repeats, bool variants) { return DecodeBench(repeats, variants).run(); }

}  // namespace assay::cuda
