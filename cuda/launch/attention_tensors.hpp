// Large attention calls whose tensors are made on the device by recipe: for the benchmark, and for
// problems of 65536 keys that are compared as a whole. Decides which tensors there are (SPEC
// CUD-8.1) and how a threshold for a share of skipped tiles is found. Needs the CUDA runtime.
#pragma once

#include <array>
#include <vector>

#include "cuda/launch/attention_launch.hpp"
#include "cuda/launch/attention_recipe.hpp"
#include "cuda/launch/device.hpp"
#include "model/attention/problem.hpp"

namespace assay::cuda {

// One request's tensors, outputs and workspace in device memory.
class AttentionTensors {
 public:
  static Expected<AttentionTensors> make(const AttentionShape& shape);

  Status draw(const AttentionRecipes& recipes, const OwnStream& stream);
  // Of q, k and v as they lie in memory.
  Expected<std::array<std::uint64_t, 3>> checksums(const OwnStream& stream) const;

  // The kernel that the shape says.
  Status launch(const AttentionCall& call, const OwnStream& stream) const;
  // Without a threshold, counters and decisions.
  AttentionCall call(bool causal) const;
  // The same as a problem whose rows lie in device memory.
  attention::Problem problem(bool causal, const attention::Threshold& threshold) const;

  struct Counts {
    std::int64_t visited = 0, skipped = 0;
    double share() const {
      return visited == 0 ? 0 : static_cast<double>(skipped) / static_cast<double>(visited);
    }
    std::vector<std::uint64_t> heads;  // [q_heads, 2], of a decode [kv_heads, 2]
  };
  // Runs the call once with counters.
  Expected<Counts> count(AttentionCall call, const OwnStream& stream) const;
  // A lambda for which the kernel skips `wanted` of the tiles, by bisection until it is within
  // 0.01 or twelve runs are over.
  Expected<float> lambda_for(double wanted, bool causal, const OwnStream& stream) const;

  const AttentionShape& shape() const { return shape_; }
  const DeviceMemory& q() const { return q_; }
  const DeviceMemory& k() const { return k_; }
  const DeviceMemory& v() const { return v_; }
  const DeviceMemory& out() const { return out_; }
  const DeviceMemory& lse() const { return lse_; }

 private:
  AttentionShape shape_;
  DeviceMemory q_, k_, v_, out_, lse_, counters_, workspace_;
};

}  // namespace assay::cuda
