// See attention_decode.hpp.
#include "verify/bench/attention_decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/emulator/emulator.hpp"
#include "cuda/launch/attention_ceilings.hpp"
#include "cuda/launch/attention_launch.hpp"
#include "cuda/launch/decode_variants.hpp"
#include "model/core/prng.hpp"

namespace assay::verify::bench {
namespace {

using cuda::AttentionCall;
using cuda::AttentionRows;
using cuda::DecodeVariant;
using cuda::DeviceMemory;

constexpr int kQueryHeads = 64, kKeyHeads = 4;
constexpr int kTilesOfChunk = 32;  // of 64 keys; the first of a chunk is kept (SPEC ATT-6.4)

int bytes_of(Dtype dtype) { return static_cast<int>(dtype_bits(dtype) / 8); }

}  // namespace

class DecodeBench::Tensors {
 public:
  static Expected<Tensors> make(Dtype dtype, std::int32_t requests, std::int32_t length, int dim) {
    Tensors t;
    t.dtype = dtype;
    t.requests = requests;
    t.length = length;
    t.dim = dim;
    const auto bytes = static_cast<std::size_t>(bytes_of(dtype));
    const std::size_t heads = static_cast<std::size_t>(requests) * kQueryHeads;
    const std::size_t queries = heads * static_cast<std::size_t>(dim);
    t.half_ = static_cast<std::size_t>(requests) * static_cast<std::size_t>(length) * kKeyHeads *
              static_cast<std::size_t>(dim) * bytes;
    ASSAY_TRY(t.q_, DeviceMemory::make(queries * bytes, "q"));
    ASSAY_TRY(t.out_, DeviceMemory::make(queries * 2, "out"));
    ASSAY_TRY(t.lse_, DeviceMemory::make(heads * 4, "lse"));
    ASSAY_TRY(t.counters_, DeviceMemory::make(kKeyHeads * 16, "counters"));
    for (std::size_t i = 0; i < rotated_caches(t.cache_bytes()); ++i) {
      ASSAY_TRY(DeviceMemory cache, DeviceMemory::make(t.cache_bytes(), "keys and values"));
      t.caches_.push_back(std::move(cache));
    }
    ASSAY_TRY(t.workspace_, DeviceMemory::make(decode_workspace_bytes(t.call(0)), "a workspace"));
    return Expected<Tensors>(std::move(t));
  }

  // Cache i has recipes of its own seeds; those of the first are told.
  Expected<cuda::AttentionRecipes> draw(double low, const cuda::OwnStream& stream) const {
    cuda::AttentionRecipes r = recipes_of({dtype, kQueryHeads, kKeyHeads, dim, requests, length},
                                          cuda::AttentionPattern::kWholeTiles, low);
    r.k.rows = r.v.rows = std::int64_t{requests} * length;
    r.k.block_rows = cuda::kDecodeKvTile;
    r.k.high_every = kTilesOfChunk;
    const cuda::AttentionRecipes first = r;
    fill_by_recipe(r.q, q_.data(), stream.stream());
    for (std::size_t i = 0; i < caches_.size(); ++i, r.k.seed += 2, r.v.seed += 2) {
      fill_by_recipe(r.k, keys(i), stream.stream());
      fill_by_recipe(r.v, values(i), stream.stream());
    }
    ASSAY_CUDA(cudaGetLastError(), "making tensors");
    ASSAY_CHECK(cuda::wait_for(stream, cuda::kMeasurementBudget, "making tensors"));
    return first;
  }

  Expected<std::array<std::uint64_t, 3>> checksums(const cuda::OwnStream& stream) const {
    ASSAY_TRY(const DeviceMemory sums, DeviceMemory::make(3 * 8, "checksums"));
    ASSAY_CUDA(cudaMemsetAsync(sums.data(), 0, sums.bytes(), stream), "zeroing checksums");
    auto* const sum = static_cast<std::uint64_t*>(sums.data());
    const auto words = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes / 4); };
    cuda::add_checksum(q_.data(), words(q_.bytes()), sum, stream.stream());
    cuda::add_checksum(keys(0), words(half_), sum + 1, stream.stream());
    cuda::add_checksum(values(0), words(half_), sum + 2, stream.stream());
    ASSAY_CHECK(cuda::wait_for(stream, cuda::kMeasurementBudget, "computing checksums"));
    std::array<std::uint64_t, 3> read{};
    ASSAY_CUDA(cudaMemcpy(read.data(), sum, sums.bytes(), cudaMemcpyDeviceToHost),
               "reading checksums");
    return read;
  }

  AttentionCall call(std::size_t turn) const {
    AttentionCall c;
    c.dtype = dtype;
    c.out_dtype = dtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBf16;
    c.requests = requests;
    c.q_heads = kQueryHeads;
    c.kv_heads = kKeyHeads;
    c.head_dim = dim;
    const auto rows = [&](const void* data, std::int64_t count, int heads) {
      return AttentionRows{data, count, std::int64_t{heads} * dim, dim, count * heads * dim};
    };
    c.q = rows(q_.data(), 1, kQueryHeads);
    c.k = rows(keys(turn), length, kKeyHeads);
    c.v = rows(values(turn), length, kKeyHeads);
    c.out = rows(out_.data(), 1, kQueryHeads);
    c.lse = {lse_.data(), 1, kQueryHeads, 1, kQueryHeads};
    c.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    c.workspace = workspace_.data();
    c.workspace_bytes = workspace_.bytes();
    return c;
  }

  // The first cache's, in device memory.
  attention::Problem problem(const attention::Threshold& threshold) const {
    attention::Problem p;
    p.dtype = dtype;
    p.out_dtype = dtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBf16;
    p.q_heads = kQueryHeads;
    p.kv_heads = kKeyHeads;
    p.head_dim = p.v_dim = dim;
    p.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    for (std::int32_t i = 0; i < requests; ++i) {
      attention::Request r;
      r.q_len = 1;
      r.kv_len = length;
      r.q_offset = length - 1;
      r.threshold = threshold;
      const int bytes = bytes_of(dtype);
      const std::int64_t first = std::int64_t{i} * length;
      r.q = attention::contiguous_rows(q_.data(), i, 1, kQueryHeads, dim, bytes);
      r.k = attention::contiguous_rows(keys(0), first, length, kKeyHeads, dim, bytes);
      r.v = attention::contiguous_rows(values(0), first, length, kKeyHeads, dim, bytes);
      p.requests.push_back(r);
    }
    return p;
  }

  // The share of skipped tiles by the counters of one launch, of the first cache.
  Expected<double> share_skipped(AttentionCall call, const cuda::OwnStream& stream) const {
    ASSAY_CUDA(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream), "zeroing");
    call.counters = static_cast<std::uint64_t*>(counters_.data());
    ASSAY_CHECK(launch_decode(call, stream.stream()));
    ASSAY_CHECK(cuda::wait_for(stream, cuda::kMeasurementBudget, "the decode kernel"));
    std::array<std::uint64_t, 2 * kKeyHeads> counters{};
    ASSAY_CUDA(
        cudaMemcpy(counters.data(), counters_.data(), counters_.bytes(), cudaMemcpyDeviceToHost),
        "reading counters");
    double visited = 0, skipped = 0;
    for (std::size_t i = 0; i < counters.size(); i += 2) {
      visited += static_cast<double>(counters[i]);
      skipped += static_cast<double>(counters[i + 1]);
    }
    return visited > 0 ? skipped / visited : 0;
  }

  std::size_t caches() const { return caches_.size(); }
  std::size_t cache_bytes() const { return 2 * half_; }
  void* keys(std::size_t turn) const { return caches_[turn % caches_.size()].data(); }
  void* values(std::size_t turn) const { return static_cast<std::byte*>(keys(turn)) + half_; }
  void* sink() const { return out_.data(); }
  const DeviceMemory& out() const { return out_; }

  Dtype dtype = Dtype::kBf16;
  std::int32_t requests = 1, length = 0;
  int dim = 128;

 private:
  std::size_t half_ = 0;  // bytes of the keys of a cache, and of its values
  DeviceMemory q_, out_, lse_, counters_, workspace_;
  std::vector<DeviceMemory> caches_;
};

Status DecodeBench::run() {
  for (const Dtype dtype : options_.dtypes) {
    if (dtype == Dtype::kF16) continue;  // as many bytes as bf16
    ASSAY_CHECK(measure_all(dtype, 64, 16384));
    ASSAY_CHECK(measure_all(dtype, 1, 65536));
  }
  return Done{};
}

Status DecodeBench::measure_all(Dtype dtype, std::int32_t requests, std::int32_t length) {
  if (options_.progress)
    options_.progress(fmt::format("decode {} batch {} {}", dtype_name(dtype), requests, length));
  auto made = Tensors::make(dtype, requests, length, options_.head_dim);
  if (!made) return unsupported(made.error().sentence);
  const Tensors tensors = *std::move(made);
  AttentionBenchRow row;
  ASSAY_TRY(row.set, draw(tensors, 0));
  ASSAY_TRY(const auto stream, time(tensors, [&](std::size_t turn) -> Status {
              cuda::read_ceiling(tensors.keys(turn), tensors.cache_bytes(),
                                 static_cast<std::uint32_t*>(tensors.sink()), multiprocessors_,
                                 timer_.stream().stream());
              return Done{};
            }));
  stream_ms_ = stream[stream.size() / 2];
  result_.ceilings.push_back({fmt::format("read-only stream, {} MB in {} buffers",
                                          tensors.cache_bytes() / 1000000, tensors.caches()),
                              static_cast<double>(tensors.cache_bytes()) / stream_ms_ * 1e-6,
                              "GB/s", std::nullopt, false});
  row.kernel = "decode";
  row.dtype = dtype;
  row.requests = requests;
  row.length = length;
  row.what = "dense";
  ASSAY_CHECK(measure(tensors, row));
  row.what = "nothing skipped";
  row.lambda = 1e-37f;
  ASSAY_CHECK(measure(tensors, row));
  row.what = "whole tiles";
  row.lambda = 1e-3f;
  for (const double sparsity : options_.sparsities) {
    ASSAY_TRY(row.set, draw(tensors, low_of_decode(sparsity)));
    row.wanted = sparsity;
    ASSAY_CHECK(measure(tensors, row));
  }
  return Done{};
}

Expected<std::int64_t> DecodeBench::draw(const Tensors& tensors, double low) {
  ASSAY_TRY(const cuda::AttentionRecipes recipes, tensors.draw(low, timer_.stream()));
  AttentionSet set;
  set.id = static_cast<std::int64_t>(result_.sets.size());
  set.dtype = tensors.dtype;
  set.kernel = "decode";
  set.requests = tensors.requests;
  set.length = tensors.length;
  set.pattern = "whole tiles";
  set.low = low;
  set.q = recipes.q;
  set.k = recipes.k;
  set.v = recipes.v;
  ASSAY_TRY(set.checksums, tensors.checksums(timer_.stream()));
  result_.sets.push_back(set);
  return set.id;
}

Status DecodeBench::measure(const Tensors& tensors, AttentionBenchRow row) {
  const auto call_of = [&](std::size_t turn) {
    AttentionCall call = tensors.call(turn);
    if (row.lambda > 0) {
      call.threshold = cuda::AttentionThreshold::kLambda;
      call.threshold_value = row.lambda;
    }
    return call;
  };
  ASSAY_TRY(row.sparsity, tensors.share_skipped(call_of(0), timer_.stream()));
  std::vector<DecodeVariant> kernels{{kLaunchedTuning, cuda::find_decode_kernel(call_of(0))}};
  if (options_.variants && row.dtype == Dtype::kBf16 && options_.head_dim == 128)
    for (const DecodeVariant& variant : cuda::decode_variants()) kernels.push_back(variant);
  for (const DecodeVariant& kernel : kernels) {
    row.tuning = kernel.name;
    ASSAY_CHECK(measure_kernel(
        tensors,
        [&](std::size_t turn) {
          return cuda::launch_decode_kernel(call_of(turn), kernel.kernel, {},
                                            timer_.stream().stream());
        },
        row));
  }
  return Done{};
}

Status DecodeBench::measure_kernel(const Tensors& tensors,
                                   const std::function<Status(std::size_t turn)>& launch,
                                   AttentionBenchRow row) {
  // What another kernel has written must not pass for this one's.
  ASSAY_CUDA(cudaMemsetAsync(tensors.out().data(), 0xDB, tensors.out().bytes(), timer_.stream()),
             "poisoning outputs");
  // A kernel may begin before what is enqueued before it has ended.
  ASSAY_CHECK(cuda::wait_for(timer_.stream(), cuda::kMeasurementBudget, "poisoning outputs"));
  ASSAY_CHECK(launch(0));
  ASSAY_CHECK(cuda::wait_for(timer_.stream(), cuda::kMeasurementBudget, "the decode kernel"));
  ASSAY_CHECK(check_bits(tensors, row));
  ASSAY_TRY(const auto times, time(tensors, launch));
  row.ms = times[times.size() / 2];
  row.ms_min = times.front();
  const double bytes = (1 - row.sparsity / 2) * static_cast<double>(tensors.cache_bytes());
  row.gbps = bytes / row.ms * 1e-6;
  row.of_stream = stream_ms_ * bytes / static_cast<double>(tensors.cache_bytes()) / row.ms;
  result_.rows.push_back(row);
  return Done{};
}

Expected<std::vector<double>> DecodeBench::time(
    const Tensors& tensors, const std::function<Status(std::size_t turn)>& launch) const {
  const std::size_t launches = std::max<std::size_t>(4, tensors.caches());
  cuda::Graph graph;
  ASSAY_CHECK(graph.record(timer_.stream(), [&]() -> Status {
    for (std::size_t i = 0; i < launches; ++i) ASSAY_CHECK(launch(i));
    return Done{};
  }));
  ASSAY_TRY(std::vector<double> times,
            timer_.time([&] { return graph.launch(timer_.stream()); }, options_.repeats + 4));
  for (double& ms : times) ms /= static_cast<double>(launches);
  return times;
}

// Of what a launch on the first cache wrote.
Status DecodeBench::check_bits(const Tensors& tensors, AttentionBenchRow& row) const {
  ASSAY_TRY(const attention::Profile* profile, attention::find_profile("assay-decode-sm90"));
  attention::Threshold threshold;
  if (row.lambda > 0) threshold = {attention::Threshold::Kind::kLambda, row.lambda};
  const attention::Problem problem = tensors.problem(threshold);
  ASSAY_TRY(const auto emulator, cuda::DeviceEmulator::make(*profile, problem));
  const std::vector<attention::Unit>& all = emulator.emulator().units();
  std::uint64_t state = result_.rows.size() + 1;
  std::vector<attention::Unit> units;
  for (int i = 0; i < options_.checked_units; ++i)
    units.push_back(all[splitmix64(state) % all.size()]);
  ASSAY_TRY(const auto results, emulator.run(units));
  std::vector<std::uint16_t> out(tensors.out().bytes() / 2);
  ASSAY_CUDA(
      cudaMemcpy(out.data(), tensors.out().data(), tensors.out().bytes(), cudaMemcpyDeviceToHost),
      "reading outputs");
  for (const attention::UnitResult& unit : results)
    for (std::size_t i = 0; i < unit.rows.size(); ++i) {
      const auto dim = static_cast<std::size_t>(tensors.dim);
      const std::size_t at =
          (unit.unit.request * kQueryHeads + static_cast<std::size_t>(unit.rows[i].q_head)) * dim;
      if (!std::equal(out.begin() + static_cast<std::ptrdiff_t>(at),
                      out.begin() + static_cast<std::ptrdiff_t>(at + dim),
                      unit.out.begin() + static_cast<std::ptrdiff_t>(i * dim)))
        return bad_input(fmt::format(
            "decode {} batch {} {}, kernel as {}: request {} head {} has other bits than the "
            "emulation; a wrong kernel is not timed",
            dtype_name(row.dtype), row.requests, row.what, row.tuning, unit.unit.request,
            unit.rows[i].q_head));
      ++row.checked_rows;
    }
  return Done{};
}

}  // namespace assay::verify::bench
