// The recipe on the device. See attention_recipe.hpp.
#include "cuda/launch/attention_recipe.hpp"
#include "cuda/ops/scalar.hpp"
#include "cuda/ops/thread.hpp"

namespace assay::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1056;  // eight for each multiprocessor of an H200

__global__ void fill_kernel(const __grid_constant__ AttentionRecipe r,
                            std::uint32_t* __restrict__ words) {
  const std::int64_t row_elements = std::int64_t{r.heads} * r.dim;
  const std::int64_t quads = r.rows * row_elements / 4;
  const std::int64_t step = std::int64_t{num_blocks()} * kThreads;
  for (std::int64_t i = std::int64_t{block_index()} * kThreads + thread_index(); i < quads;
       i += step) {
    const std::int64_t first = 4 * i;
    const auto row = static_cast<std::uint32_t>(first / row_elements);
    const auto head = static_cast<std::uint32_t>(first % row_elements / r.dim);
    const auto column = static_cast<std::uint32_t>(first % r.dim);
    float x[4];
    for (std::uint32_t j = 0; j < 4; ++j) x[j] = recipe_element(r, row, head, column + j);
    if (r.dtype == Dtype::kF8E4m3) {
      words[i] = pack_e4m3(x[0], x[1], x[2], x[3]);
    } else if (r.dtype == Dtype::kF16) {
      words[2 * i] = pack_rn<F16>(x[0], x[1]);
      words[2 * i + 1] = pack_rn<F16>(x[2], x[3]);
    } else {
      words[2 * i] = pack_rn<Bf16>(x[0], x[1]);
      words[2 * i + 1] = pack_rn<Bf16>(x[2], x[3]);
    }
  }
}

__global__ void checksum_kernel(const std::uint32_t* __restrict__ words, std::int64_t count,
                                std::uint64_t* sum) {
  const std::int64_t step = std::int64_t{num_blocks()} * kThreads;
  std::uint64_t mine = 0;
  for (std::int64_t i = std::int64_t{block_index()} * kThreads + thread_index(); i < count;
       i += step)
    mine += recipe_checksum_term(static_cast<std::uint64_t>(i), words[i]);
  add_to(sum, mine);
}

}  // namespace

void fill_by_recipe(const AttentionRecipe& recipe, void* to, Stream stream) {
  fill_kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      recipe, static_cast<std::uint32_t*>(to));
}

void add_checksum(const void* words, std::int64_t count, std::uint64_t* sum, Stream stream) {
  checksum_kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const std::uint32_t*>(words), count, sum);
}

}  // namespace assay::cuda
