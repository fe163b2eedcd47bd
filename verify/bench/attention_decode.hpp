// The rows of decode in the attention benchmark: batch 64 with 16384 keys and batch 1 with 65536.
// Decides what is rotated (SPEC VER-25.13). Internal to attention.cpp.
#pragma once

#include "cuda/launch/attention_timer.hpp"
#include "verify/bench/attention.hpp"

namespace assay::verify::bench {

class DecodeBench {
 public:
  DecodeBench(const AttentionBenchOptions& options, const cuda::AttentionTimer& timer,
              int multiprocessors, AttentionBenchResult& result)
      : options_(options), timer_(timer), multiprocessors_(multiprocessors), result_(result) {}
  Status run();

 private:
  class Tensors;
  Status measure_all(Dtype dtype, std::int32_t requests, std::int32_t length);
  Expected<std::int64_t> draw(const Tensors& tensors, double low);
  Status measure(const Tensors& tensors, AttentionBenchRow row);
  // One row: bits first, then times.
  Status measure_kernel(const Tensors& tensors,
                        const std::function<Status(std::size_t turn)>& launch,
                        AttentionBenchRow row);
  Status check_bits(const Tensors& tensors, AttentionBenchRow& row) const;
  // Milliseconds of one launch, ascending; launches of all caches in turn, in one graph.
  Expected<std::vector<double>> time(const Tensors& tensors,
                                     const std::function<Status(std::size_t turn)>& launch) const;

  const AttentionBenchOptions& options_;
  const cuda::AttentionTimer& timer_;
  const int multiprocessors_;
  AttentionBenchResult& result_;
  double stream_ms_ = 0;  // of the bytes of one cache
};

}  // namespace assay::verify::bench
