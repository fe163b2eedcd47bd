// How fast the prefill kernel is: bf16 or e4m3, 64 query heads, 4 key heads, full and causal,
// without skipping, with skipping that never happens, and at given shares of skipped tiles in two
// patterns (whole key tiles; independent per unit). Prints one JSON object per measurement. TFLOP/s
// count what a dense kernel would compute, causal halved. Sparsity is read from the kernel's
// counters.
//
//   attention_bench [--lengths 16384,65536] [--dim 128] [--repeats 5] [--variants 0]
//                   [--fp8 0]
//   attention_bench --decode 1 [--repeats 5] [--variants 0]       see decode_bench.hpp
//
// With --variants 1 every measurement is repeated with kernels that are tuned otherwise.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/launch/attention_bench_fill.hpp"
#include "cuda/launch/attention_launch.hpp"
#include "cuda/launch/attention_timer.hpp"
#include "cuda/launch/attention_variants.hpp"
#include "cuda/launch/decode_bench.hpp"
#include "cuda/launch/device.hpp"

namespace assay::cuda {
namespace {

constexpr int kQueryHeads = 64, kKeyHeads = 4;

struct Options {
  std::vector<int> lengths{16384, 65536};
  int dim = 128;
  int repeats = 5;
  bool variants = false;
  bool fp8 = false;
  bool decode = false;
};

// Tensors of one length; the pattern of high and low tiles is in their first columns.
struct Tensors {
  DeviceMemory q, k, v, out, lse, counters, workspace;
  int length = 0, dim = 0;
  bool fp8 = false;

  static Expected<Tensors> make(int length, int dim, bool fp8) {
    Tensors t;
    t.length = length;
    t.dim = dim;
    t.fp8 = fp8;
    const std::size_t elements = static_cast<std::size_t>(length) * static_cast<std::size_t>(dim);
    const std::size_t row = elements * (fp8 ? 1 : 2);
    ASSAY_TRY(t.q, DeviceMemory::make(row * kQueryHeads, "q"));
    ASSAY_TRY(t.k, DeviceMemory::make(row * kKeyHeads, "k"));
    ASSAY_TRY(t.v, DeviceMemory::make(row * kKeyHeads, "v"));
    ASSAY_TRY(t.out, DeviceMemory::make(elements * 2 * kQueryHeads, "out"));
    ASSAY_TRY(t.lse, DeviceMemory::make(static_cast<std::size_t>(length) * kQueryHeads * 4, "lse"));
    ASSAY_TRY(t.counters, DeviceMemory::make(kQueryHeads * 16, "counters"));
    ASSAY_TRY(t.workspace, DeviceMemory::make(kAttentionWorkspaceBytes, "workspace"));
    return Expected<Tensors>(std::move(t));
  }

  // codes 1: key tiles are high (share `high`) or low for everybody. codes 16: a unit and a tile
  // meet in a sum of 16 signs, drawn apart.
  void draw(int codes, float high, Stream stream) const {
    const float unit = std::sqrt(std::sqrt(static_cast<float>(dim)));
    const float strength = (codes == 1 ? 4 : 1.5f) * unit;
    const int tile = prefill_kv_tile(dim);
    fill({q.data(), fp8, length, kQueryHeads, dim, 64, codes, 1, codes == 1 ? -strength : strength,
          0, 1},
         stream);
    fill({k.data(), fp8, length, kKeyHeads, dim, tile, codes, 1, strength, high, 2}, stream);
    fill({v.data(), fp8, length, kKeyHeads, dim, 64, 0, 1, 0, 0, 3}, stream);
  }

  AttentionCall call(bool causal) const {
    AttentionCall c;
    if (fp8) c.dtype = Dtype::kF8E4m3;
    c.q_heads = kQueryHeads;
    c.kv_heads = kKeyHeads;
    c.head_dim = dim;
    const auto rows = [&](const DeviceMemory& m, int heads) {
      AttentionRows r;
      r.data = m.data();
      r.rows = length;
      r.row_stride = std::int64_t{heads} * dim;
      r.head_stride = dim;
      return r;
    };
    c.q = rows(q, kQueryHeads);
    c.k = rows(k, kKeyHeads);
    c.v = rows(v, kKeyHeads);
    c.out = rows(out, kQueryHeads);
    c.lse = {lse.data(), length, kQueryHeads, 1, 0};
    c.mask = causal ? attention::MaskKind::kCausal : attention::MaskKind::kFull;
    c.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    c.workspace = workspace.data();
    return c;
  }
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  Status run() {
    ASSAY_TRY(timer_, AttentionTimer::make());
    for (const int length : options_.lengths) {
      ASSAY_TRY(const Tensors tensors, Tensors::make(length, options_.dim, options_.fp8));
      for (const bool causal : {false, true}) ASSAY_CHECK(measure_all(tensors, causal));
    }
    return Done{};
  }

 private:
  Status measure_all(const Tensors& t, bool causal) {
    t.draw(1, 1.0f, timer_.stream().stream());
    AttentionCall call = t.call(causal);
    ASSAY_CHECK(measure(t, call, causal, "dense"));
    call.threshold = AttentionThreshold::kLambda;
    call.threshold_value = 1e-37f;
    ASSAY_CHECK(measure(t, call, causal, "nothing skipped"));
    for (const float sparsity : {0.25f, 0.5f, 0.7f, 0.9f}) {
      t.draw(1, 1 - sparsity, timer_.stream().stream());
      call.threshold_value = 1e-3f;
      ASSAY_CHECK(measure(t, call, causal, "whole tiles"));
    }
    t.draw(16, 0, timer_.stream().stream());
    for (const float sparsity : {0.25f, 0.5f, 0.7f, 0.9f}) {
      ASSAY_TRY(call.threshold_value, lambda_for(t, call, sparsity));
      ASSAY_CHECK(measure(t, call, causal, "independent units"));
    }
    return Done{};
  }

  // Bisects lambda in log space for a share of skipped tiles.
  Expected<float> lambda_for(const Tensors& t, AttentionCall call, float wanted) {
    float low = -80, high = 0;
    for (int i = 0; i < 10; ++i) {
      const float middle = (low + high) / 2;
      call.threshold_value = std::exp2(middle);
      ASSAY_TRY(const double share, share_skipped(t, call));
      (share < wanted ? low : high) = middle;
    }
    return std::exp2((low + high) / 2);
  }

  Expected<double> share_skipped(const Tensors& t, AttentionCall call) {
    ASSAY_CUDA(cudaMemsetAsync(t.counters.data(), 0, t.counters.bytes(), timer_.stream()),
               "zeroing");
    call.counters = static_cast<std::uint64_t*>(t.counters.data());
    ASSAY_CHECK(launch_prefill(call, timer_.stream().stream()));
    ASSAY_CHECK(wait_for(timer_.stream(), kMeasurementBudget, "the prefill kernel"));
    std::vector<std::uint64_t> counters(2 * kQueryHeads);
    ASSAY_CUDA(
        cudaMemcpy(counters.data(), t.counters.data(), t.counters.bytes(), cudaMemcpyDeviceToHost),
        "reading counters");
    double visited = 0, skipped = 0;
    for (int h = 0; h < kQueryHeads; ++h) {
      visited += static_cast<double>(counters[static_cast<std::size_t>(2 * h)]);
      skipped += static_cast<double>(counters[static_cast<std::size_t>(2 * h + 1)]);
    }
    return skipped / visited;
  }

  Status measure(const Tensors& t, const AttentionCall& call, bool causal, const char* what) {
    ASSAY_TRY(const double share, share_skipped(t, call));
    std::vector<PrefillVariant> variants{{"launched", find_prefill_kernel(call)}};
    if (options_.variants && t.dim == 128 && !t.fp8)
      for (const PrefillVariant& v : prefill_variants(prefill_mode(call))) variants.push_back(v);
    for (const PrefillVariant& variant : variants) {
      ASSAY_TRY(
          const std::vector<double> times,
          timer_.steady(
              [&] { return launch_prefill_kernel(call, variant.kernel, timer_.stream().stream()); },
              options_.repeats));
      print(t, call, causal, what, share, variant.name, times);
    }
    return Done{};
  }

  static void print(const Tensors& t, const AttentionCall& call, bool causal, const char* what,
                    double share, const char* variant, const std::vector<double>& times_ms) {
    const double ms = times_ms[times_ms.size() / 2];
    const double n = t.length;
    const double flop = 4 * n * n * t.dim * kQueryHeads / (causal ? 2 : 1);
    fmt::print(
        "{{\"dtype\": \"{}\", \"length\": {}, \"dim\": {}, \"mask\": \"{}\", \"what\": \"{}\", "
        "\"kernel\": \"{}\", "
        "\"lambda\": {:g}, "
        "\"sparsity\": {:.4f}, \"ms\": {:.4f}, \"ms_min\": {:.4f}, \"tflops\": {:.1f}}}\n",
        dtype_name(call.dtype), t.length, t.dim, causal ? "causal" : "full", what, variant,
        call.threshold_value, share, ms, times_ms.front(), flop / ms / 1e9);
    std::fflush(stdout);
  }

  Options options_;
  AttentionTimer timer_;
};

Expected<Options> options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) return bad_input(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--dim") {
      options.dim = std::atoi(value.c_str());
    } else if (name == "--repeats") {
      options.repeats = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--variants") {
      options.variants = value != "0";
    } else if (name == "--fp8") {
      options.fp8 = value != "0";
    } else if (name == "--decode") {
      options.decode = value != "0";
    } else if (name == "--lengths") {
      options.lengths.clear();
      for (std::size_t at = 0; at < value.size();) {
        const std::size_t end = std::min(value.find(',', at), value.size());
        options.lengths.push_back(std::atoi(value.substr(at, end - at).c_str()));
        at = end + 1;
      }
    } else {
      return bad_input(
          name +
          " is unknown; allowed are --lengths, --dim, --repeats, --variants, --fp8 and "
          "--decode");
    }
  }
  return options;
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  using namespace assay;
  const auto options = cuda::options_of(argc, argv);
  const Status status = !options          ? Status(options.error())
                        : options->decode ? cuda::bench_decode(options->repeats, options->variants)
                                          : cuda::Bench(*options).run();
  if (status) return 0;
  std::fprintf(stderr, "attention_bench: %s\n", status.error().sentence.c_str());
  return status.error().kind == ErrorKind::kUnsupported ? 3 : 2;
}
