// See attention_tensors.hpp.
#include "cuda/launch/attention_tensors.hpp"

#include <cmath>

namespace assay::cuda {
namespace {

constexpr std::chrono::seconds kBudget{20};  // of one call; the longest takes a quarter of a second

int element_bytes(Dtype dtype) { return static_cast<int>(dtype_bits(dtype) / 8); }

}  // namespace

Expected<AttentionTensors> AttentionTensors::make(const AttentionShape& shape) {
  AttentionTensors t;
  t.shape_ = shape;
  const auto elements = [&](std::int64_t rows, int heads) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) *
           static_cast<std::size_t>(shape.dim);
  };
  const auto bytes = static_cast<std::size_t>(element_bytes(shape.dtype));
  const auto rows = static_cast<std::size_t>(shape.q_len) * static_cast<std::size_t>(shape.q_heads);
  ASSAY_TRY(t.q_, DeviceMemory::make(elements(shape.q_len, shape.q_heads) * bytes, "q"));
  ASSAY_TRY(t.k_, DeviceMemory::make(elements(shape.kv_len, shape.kv_heads) * bytes, "k"));
  ASSAY_TRY(t.v_, DeviceMemory::make(elements(shape.kv_len, shape.kv_heads) * bytes, "v"));
  ASSAY_TRY(t.out_, DeviceMemory::make(rows * static_cast<std::size_t>(shape.dim) * 2, "out"));
  ASSAY_TRY(t.lse_, DeviceMemory::make(rows * 4, "lse"));
  const int unit_heads = shape.decode ? shape.kv_heads : shape.q_heads;
  ASSAY_TRY(t.counters_, DeviceMemory::make(static_cast<std::size_t>(unit_heads) * 16, "counters"));
  const std::size_t workspace =
      shape.decode ? decode_workspace_bytes(t.call(true)) : kAttentionWorkspaceBytes;
  ASSAY_TRY(t.workspace_, DeviceMemory::make(workspace, "workspace"));
  return Expected<AttentionTensors>(std::move(t));
}

Status AttentionTensors::draw(const AttentionRecipes& recipes, const OwnStream& stream) {
  fill_by_recipe(recipes.q, q_.data(), stream.stream());
  fill_by_recipe(recipes.k, k_.data(), stream.stream());
  fill_by_recipe(recipes.v, v_.data(), stream.stream());
  ASSAY_CUDA(cudaGetLastError(), "making tensors");
  return wait_for(stream, kBudget, "making tensors");
}

Expected<std::array<std::uint64_t, 3>> AttentionTensors::checksums(const OwnStream& stream) const {
  ASSAY_TRY(const DeviceMemory sums, DeviceMemory::make(3 * 8, "checksums"));
  ASSAY_CUDA(cudaMemsetAsync(sums.data(), 0, sums.bytes(), stream), "zeroing checksums");
  auto* const sum = static_cast<std::uint64_t*>(sums.data());
  const DeviceMemory* const tensors[] = {&q_, &k_, &v_};
  for (std::size_t i = 0; i < 3; ++i)
    add_checksum(tensors[i]->data(), static_cast<std::int64_t>(tensors[i]->bytes() / 4), sum + i,
                 stream.stream());
  ASSAY_CUDA(cudaGetLastError(), "computing checksums");
  ASSAY_CHECK(wait_for(stream, kBudget, "computing checksums"));
  std::array<std::uint64_t, 3> read{};
  ASSAY_CUDA(cudaMemcpy(read.data(), sum, sums.bytes(), cudaMemcpyDeviceToHost),
             "reading checksums");
  return read;
}

Status AttentionTensors::launch(const AttentionCall& call, const OwnStream& stream) const {
  return shape_.decode ? launch_decode(call, stream.stream())
                       : launch_prefill(call, stream.stream());
}

AttentionCall AttentionTensors::call(bool causal) const {
  AttentionCall c;
  c.dtype = shape_.dtype;
  c.out_dtype = shape_.dtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBf16;
  c.q_heads = shape_.q_heads;
  c.kv_heads = shape_.kv_heads;
  c.head_dim = shape_.dim;
  const auto rows = [&](const DeviceMemory& memory, std::int64_t count, int heads) {
    AttentionRows r;
    r.data = memory.data();
    r.rows = count;
    r.row_stride = std::int64_t{heads} * shape_.dim;
    r.head_stride = shape_.dim;
    return r;
  };
  c.q = rows(q_, shape_.q_len, shape_.q_heads);
  c.k = rows(k_, shape_.kv_len, shape_.kv_heads);
  c.v = rows(v_, shape_.kv_len, shape_.kv_heads);
  c.out = rows(out_, shape_.q_len, shape_.q_heads);
  c.lse = {lse_.data(), shape_.q_len, shape_.q_heads, 1, 0};
  c.mask = causal ? attention::MaskKind::kCausal : attention::MaskKind::kFull;
  c.scale = 1.0f / std::sqrt(static_cast<float>(shape_.dim));
  c.workspace = workspace_.data();
  c.workspace_bytes = workspace_.bytes();
  return c;
}

attention::Problem AttentionTensors::problem(bool causal,
                                             const attention::Threshold& threshold) const {
  const AttentionCall c = call(causal);
  attention::Problem p;
  p.dtype = c.dtype;
  p.out_dtype = c.out_dtype;
  p.q_heads = c.q_heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = p.v_dim = c.head_dim;
  p.mask = c.mask;
  p.scale = c.scale;
  attention::Request r;
  r.q_len = shape_.q_len;
  r.kv_len = shape_.kv_len;
  r.q_offset = r.kv_len - r.q_len;
  r.threshold = threshold;
  const int bytes = element_bytes(c.dtype);
  r.q = attention::contiguous_rows(c.q.data, 0, r.q_len, c.q_heads, c.head_dim, bytes);
  r.k = attention::contiguous_rows(c.k.data, 0, r.kv_len, c.kv_heads, c.head_dim, bytes);
  r.v = attention::contiguous_rows(c.v.data, 0, r.kv_len, c.kv_heads, c.head_dim, bytes);
  p.requests.push_back(r);
  return p;
}

Expected<AttentionTensors::Counts> AttentionTensors::count(AttentionCall call,
                                                           const OwnStream& stream) const {
  ASSAY_CUDA(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream), "zeroing counters");
  call.counters = static_cast<std::uint64_t*>(counters_.data());
  ASSAY_CHECK(launch(call, stream));
  ASSAY_CHECK(wait_for(stream, kBudget, "the attention kernel"));
  Counts counts;
  counts.heads.resize(counters_.bytes() / 8);
  ASSAY_CUDA(
      cudaMemcpy(counts.heads.data(), counters_.data(), counters_.bytes(), cudaMemcpyDeviceToHost),
      "reading counters");
  for (std::size_t i = 0; i < counts.heads.size(); i += 2) {
    counts.visited += static_cast<std::int64_t>(counts.heads[i]);
    counts.skipped += static_cast<std::int64_t>(counts.heads[i + 1]);
  }
  return counts;
}

Expected<float> AttentionTensors::lambda_for(double wanted, bool causal,
                                             const OwnStream& stream) const {
  AttentionCall c = call(causal);
  c.threshold = AttentionThreshold::kLambda;
  // Gaps between units are below 2 * 16 * 2.25 nats, 104 in log2.
  float low = -104, high = 0;
  for (int run = 0; run < 12; ++run) {
    const float middle = (low + high) / 2;
    c.threshold_value = std::exp2(middle);
    ASSAY_TRY(const Counts counts, count(c, stream));
    if (std::abs(counts.share() - wanted) < 0.01) break;
    (counts.share() < wanted ? low : high) = middle;
  }
  return c.threshold_value;
}

}  // namespace assay::cuda
