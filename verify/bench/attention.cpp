// Measures the attention kernels on the current device. See attention.hpp.
#include "verify/bench/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/emulator/emulator.hpp"
#include "cuda/launch/attention_ceilings.hpp"
#include "cuda/launch/attention_tensors.hpp"
#include "cuda/launch/attention_timer.hpp"
#include "cuda/launch/attention_variants.hpp"
#include "cuda/launch/driver_version.hpp"
#include "model/core/prng.hpp"
#include "verify/bench/attention_decode.hpp"

namespace assay::verify::bench {
namespace {

using cuda::AttentionCall;
using cuda::AttentionPattern;
using cuda::AttentionTensors;
using cuda::DeviceMemory;
using cuda::PrefillVariant;

constexpr int kQueryHeads = 64, kKeyHeads = 4;
// No score lies 85 nats below another where the tensors make 32 at most (SPEC VER-25.10).
constexpr float kSkipsNothing = 1e-37f;
constexpr float kWholeTilesLambda = 1e-3f;

class Bench {
 public:
  explicit Bench(const AttentionBenchOptions& options) : options_(options) {}

  Expected<AttentionBenchResult> run() {
    ASSAY_CHECK(describe());
    ASSAY_TRY(timer_, cuda::AttentionTimer::make());
    const Status measured = measure_everything();
    if (!measured) result_.stopped = measured.error().sentence;
    return std::move(result_);
  }

 private:
  Status measure_everything() {
    if (options_.ceilings) ASSAY_CHECK(measure_ceilings());
    for (const Dtype dtype : options_.dtypes)
      for (const std::int32_t length : options_.lengths) ASSAY_CHECK(measure_length(dtype, length));
    if (options_.decode) {
      DecodeBench decode(options_, timer_, multiprocessors_, result_);
      ASSAY_CHECK(decode.run());
    }
    return Done{};
  }

  void tell(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  Status describe() {
    int count = 0, device = 0, runtime = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
      return unsupported("a benchmark of attention needs a GPU, and CUDA finds none here");
    ASSAY_CUDA(cudaGetDevice(&device), "asking for the current device");
    cudaDeviceProp properties{};
    ASSAY_CUDA(cudaGetDeviceProperties(&properties, device), "asking what the device is");
    if (properties.major != 9 || properties.minor != 0)
      return unsupported(fmt::format("the attention kernels need sm_90; device {} is sm_{}{}",
                                     device, properties.major, properties.minor));
    multiprocessors_ = properties.multiProcessorCount;
    cudaRuntimeGetVersion(&runtime);
    result_.device_name = properties.name;
    result_.driver = cuda::driver_version();
    result_.cuda = fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10);
    return Done{};
  }

  // SPEC CUD-8.2.
  Status measure_ceilings() {
    tell("ceilings");
    constexpr std::size_t kBytes = std::size_t{4} << 30;  // eighty times L2
    ASSAY_TRY(const DeviceMemory from, DeviceMemory::make(kBytes, "a stream"));
    ASSAY_TRY(const DeviceMemory to, DeviceMemory::make(kBytes, "a copy"));
    cuda::AttentionRecipe recipe;
    recipe.rows = static_cast<std::int64_t>(kBytes / 2) / recipe.dim;
    cuda::fill_by_recipe(recipe, from.data(), timer_.stream().stream());
    auto* const sink = static_cast<std::uint32_t*>(to.data());
    ASSAY_TRY(const auto read, timer_.time(
                                   [&]() -> Status {
                                     cuda::read_ceiling(from.data(), kBytes, sink, multiprocessors_,
                                                        timer_.stream().stream());
                                     return Done{};
                                   },
                                   10));
    ASSAY_TRY(const auto copy, timer_.time(
                                   [&]() -> Status {
                                     cuda::copy_ceiling(from.data(), to.data(), kBytes,
                                                        multiprocessors_, timer_.stream().stream());
                                     return Done{};
                                   },
                                   10));
    ASSAY_CUDA(cudaGetLastError(), "measuring ceilings");
    const double gigabytes = static_cast<double>(kBytes) * 1e-9;
    add_ceiling("read-only stream", gigabytes / read.front() * 1e3, "GB/s");
    add_ceiling("copy, read and written", 2 * gigabytes / copy.front() * 1e3, "GB/s");
    for (const Dtype dtype : options_.dtypes) {
      recipe.dtype = dtype;
      recipe.rows = static_cast<std::int64_t>(cuda::kMatrixOperandBytes) * 8 /
                    static_cast<int>(dtype_bits(dtype)) / recipe.dim;
      cuda::fill_by_recipe(recipe, to.data(), timer_.stream().stream());
      // About 40 ms at 1 PFLOP/s, as long as a call that is measured, and as steady.
      constexpr int kRounds = 2000;
      ASSAY_TRY(const auto times, timer_.steady(
                                      [&]() -> Status {
                                        cuda::matrix_ceiling(dtype, to.data(), kRounds,
                                                             static_cast<float*>(from.data()),
                                                             multiprocessors_,
                                                             timer_.stream().stream());
                                        return Done{};
                                      },
                                      10));
      ASSAY_CUDA(cudaGetLastError(), "measuring ceilings");
      const double flop = cuda::matrix_round_flop(dtype) * kRounds * multiprocessors_;
      add_ceiling(fmt::format("matrix instructions alone, {}", dtype_name(dtype)),
                  flop / times[times.size() / 2] * 1e-9, "TFLOP/s");
    }
    return Done{};
  }
  void add_ceiling(std::string name, double value, std::string unit) {
    result_.ceilings.push_back({std::move(name), value, std::move(unit), std::nullopt, false});
  }

  // bf16 in every way; the others where a figure is asked of them.
  Status measure_length(Dtype dtype, std::int32_t length) {
    tell(fmt::format("prefill {} {}", dtype_name(dtype), length));
    cuda::AttentionShape shape{dtype, kQueryHeads, kKeyHeads, options_.head_dim, length, length};
    auto made = AttentionTensors::make(shape);
    if (!made) return unsupported(made.error().sentence);
    AttentionTensors tensors = *std::move(made);
    const bool all = dtype == Dtype::kBf16;
    std::vector<double> whole = options_.sparsities, units = options_.sparsities;
    if (!all) {
      std::erase_if(whole, [](double s) { return s < 0.5; });
      std::erase_if(units, [](double s) { return s != 0.5; });
    }
    ASSAY_TRY(std::int64_t set, draw(tensors, AttentionPattern::kWholeTiles, 0));
    for (const bool causal : {false, true}) {
      ASSAY_CHECK(measure_dense(tensors, set, causal));
      ASSAY_CHECK(measure(
          tensors,
          {.set = set, .causal = causal, .what = "nothing skipped", .lambda = kSkipsNothing}));
    }
    for (const double sparsity : whole) {
      for (const bool causal : {false, true}) {
        ASSAY_TRY(const double low, low_for(tensors, sparsity, causal));
        ASSAY_TRY(set, draw(tensors, AttentionPattern::kWholeTiles, low));
        if (all) ASSAY_CHECK(measure_dense(tensors, set, causal));
        ASSAY_CHECK(measure(tensors, {.kernel = "prefill",
                                      .set = set,
                                      .causal = causal,
                                      .what = "whole tiles",
                                      .wanted = sparsity,
                                      .lambda = kWholeTilesLambda}));
      }
    }
    ASSAY_TRY(set, draw(tensors, AttentionPattern::kUnits, 0));
    for (const bool causal : {false, true}) {
      if (all) ASSAY_CHECK(measure_dense(tensors, set, causal));
      for (const double sparsity : units) {
        ASSAY_TRY(const float lambda, tensors.lambda_for(sparsity, causal, timer_.stream()));
        ASSAY_CHECK(measure(
            tensors,
            {.set = set, .causal = causal, .what = "units", .wanted = sparsity, .lambda = lambda}));
      }
    }
    return Done{};
  }
  Status measure_dense(const AttentionTensors& tensors, std::int64_t set, bool causal) {
    return measure(tensors, {.kernel = "prefill", .set = set, .causal = causal, .what = "dense"});
  }

  // The share of low tiles of which a share of all visited ones is skipped: a first tile is not.
  Expected<double> low_for(AttentionTensors& tensors, double wanted, bool causal) {
    AttentionCall call = tensors.call(causal);
    call.threshold = cuda::AttentionThreshold::kLambda;
    call.threshold_value = kWholeTilesLambda;
    double low = wanted;
    for (int run = 0; run < 4; ++run) {
      ASSAY_CHECK(tensors.draw(recipes_of(tensors.shape(), AttentionPattern::kWholeTiles, low),
                               timer_.stream()));
      ASSAY_TRY(const AttentionTensors::Counts counts, tensors.count(call, timer_.stream()));
      const double missing = wanted - counts.share();
      if (std::abs(missing) < 0.002) break;
      low = std::min(low + missing, 1.0);
    }
    return low;
  }

  Expected<std::int64_t> draw(AttentionTensors& tensors, AttentionPattern pattern, double low) {
    const cuda::AttentionRecipes recipes = recipes_of(tensors.shape(), pattern, low);
    ASSAY_CHECK(tensors.draw(recipes, timer_.stream()));
    AttentionSet set;
    set.id = static_cast<std::int64_t>(result_.sets.size());
    set.dtype = tensors.shape().dtype;
    set.length = tensors.shape().kv_len;
    set.pattern = pattern == AttentionPattern::kWholeTiles ? "whole tiles" : "units";
    set.low = low;
    set.q = recipes.q;
    set.k = recipes.k;
    set.v = recipes.v;
    ASSAY_TRY(set.checksums, tensors.checksums(timer_.stream()));
    result_.sets.push_back(set);
    return set.id;
  }

  Status measure(const AttentionTensors& tensors, AttentionBenchRow row) {
    row.dtype = tensors.shape().dtype;
    row.length = tensors.shape().kv_len;
    AttentionCall call = tensors.call(row.causal);
    if (row.lambda > 0) {
      call.threshold = cuda::AttentionThreshold::kLambda;
      call.threshold_value = row.lambda;
    }
    ASSAY_TRY(const AttentionTensors::Counts counts, tensors.count(call, timer_.stream()));
    row.sparsity = counts.share();
    std::vector<PrefillVariant> kernels{{kLaunchedTuning, cuda::find_prefill_kernel(call)}};
    if (options_.variants && row.dtype == Dtype::kBf16 && options_.head_dim == 128)
      for (const PrefillVariant& variant : cuda::prefill_variants(cuda::prefill_mode(call)))
        kernels.push_back(variant);
    for (const PrefillVariant& kernel : kernels) {
      row.tuning = kernel.name;
      ASSAY_CHECK(measure_kernel(tensors, call, kernel.kernel, row));
    }
    return Done{};
  }

  Status measure_kernel(const AttentionTensors& tensors, const AttentionCall& call,
                        const cuda::PrefillKernel& kernel, AttentionBenchRow row) {
    const auto launch = [&] {
      return cuda::launch_prefill_kernel(call, kernel, timer_.stream().stream());
    };
    // What another kernel has written must not pass for this one's.
    ASSAY_CUDA(cudaMemsetAsync(tensors.out().data(), 0xDB, tensors.out().bytes(), timer_.stream()),
               "poisoning outputs");
    ASSAY_CHECK(launch());
    ASSAY_CHECK(cuda::wait_for(timer_.stream(), cuda::kMeasurementBudget, "the prefill kernel"));
    ASSAY_CHECK(check_bits(tensors, row));
    ASSAY_TRY(const auto times, timer_.steady(launch, repeats_of(row.length, options_.repeats)));
    row.ms = times[times.size() / 2];
    row.ms_min = times.front();
    row.tflops = dense_tflops(row.length, kQueryHeads, options_.head_dim, row.causal, row.ms);
    result_.rows.push_back(row);
    return Done{};
  }

  // A few units of what the kernel has just written, against the emulator on the same tensors (SPEC
  // VER-25.11).
  Status check_bits(const AttentionTensors& tensors, AttentionBenchRow& row) {
    ASSAY_TRY(const attention::Profile* profile, attention::find_profile("assay-prefill-sm90"));
    attention::Threshold threshold;
    if (row.lambda > 0) threshold = {attention::Threshold::Kind::kLambda, row.lambda};
    const attention::Problem problem = tensors.problem(row.causal, threshold);
    ASSAY_TRY(const auto emulator, cuda::DeviceEmulator::make(*profile, problem));
    const std::vector<attention::Unit>& all = emulator.emulator().units();
    std::uint64_t state = result_.rows.size() + 1;
    std::vector<attention::Unit> units;
    for (int i = 0; i < options_.checked_units; ++i)
      units.push_back(all[splitmix64(state) % all.size()]);
    ASSAY_TRY(const auto results, emulator.run(units));
    const std::size_t width = static_cast<std::size_t>(options_.head_dim) * 2;
    const std::size_t pitch = kQueryHeads * width;
    for (const attention::UnitResult& unit : results) {
      std::vector<std::uint16_t> got(unit.out.size());
      const auto* const from = static_cast<const std::byte*>(tensors.out().data()) +
                               static_cast<std::size_t>(unit.rows[0].token) * pitch +
                               static_cast<std::size_t>(unit.unit.head) * width;
      ASSAY_CUDA(cudaMemcpy2D(got.data(), width, from, pitch, width, unit.rows.size(),
                              cudaMemcpyDeviceToHost),
                 "reading outputs");
      if (got != unit.out)
        return bad_input(
            fmt::format("{} {} {} {}, kernel as {}: rows from {} of head {} have other bits than "
                        "the emulation; a wrong kernel is not timed",
                        dtype_name(row.dtype), row.length, row.causal ? "causal" : "full", row.what,
                        row.tuning, unit.rows[0].token, unit.unit.head));
      row.checked_rows += static_cast<std::int64_t>(unit.rows.size());
    }
    return Done{};
  }

  const AttentionBenchOptions& options_;
  cuda::AttentionTimer timer_;
  int multiprocessors_ = 1;
  AttentionBenchResult result_;
};

}  // namespace

Expected<AttentionBenchResult> run_attention_bench(const AttentionBenchOptions& options) {
  return Bench(options).run();
}

}  // namespace assay::verify::bench
