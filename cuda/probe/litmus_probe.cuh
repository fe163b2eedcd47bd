// What surrounds the generated text of a litmus test on a GPU (cuda/probe/litmus_generate.cpp):
// where the instances of a test lie in memory, which thread executes which, how blocks start
// together, noise, and the collection of outcomes. Every loop here is bounded. Decides how a test
// is stressed; what it may show is in the generated tables (SPEC MAC-8.5).
//
// Many instances of one test run at once. A block executes one CTA of the test for kSlots
// instances; which instance is permuted anew for every CTA and round, so the threads of one
// instance meet in blocks, warps and lanes that have nothing to do with each other.
#pragma once

#include <cstdint>

namespace assay::litmus_probe {

inline constexpr std::uint32_t kMaxNames = 6;
inline constexpr std::uint32_t kMaxThreads = 8;
inline constexpr std::uint32_t kMaxGpus = 2;
inline constexpr std::uint32_t kMaxObservables = 16;
inline constexpr std::uint32_t kSlots = 128;        // instances per block
inline constexpr std::uint32_t kBlocksPerCta = 64;  // blocks of one CTA of the test
inline constexpr std::uint32_t kInstancesPerRound = kSlots * kBlocksPerCta;
inline constexpr std::uint32_t kNoiseBlocks = 48;
// 2^16 polls of a word of a peer take 0.1 s, a thousand times what a launch takes.
inline constexpr std::uint32_t kMaxPolls = 1u << 16;
inline constexpr std::uint32_t kUnfinished = 0xFFFFFFFFu;  // a thread that gave up, or never ran

// Passed to every kernel by value. Pointers lead to memory of this GPU or of a peer.
struct Launch {
  std::uint32_t* name[kMaxNames];      // first word of instance 0, by address of the test
  std::uint32_t stride_words;          // between instances
  std::uint32_t* result[kMaxThreads];  // packed registers by instance, on the GPU that writes them
  std::uint32_t rounds;
  std::uint32_t* arrivals[kMaxGpus];  // one counter on each GPU
  std::uint32_t num_gpus, gpu;
  std::uint32_t meeting_blocks;  // that start each round together; 0: they do not
  std::uint32_t delay_mask;      // cycles that a warp may wait before its instance
  std::uint32_t seed;
  std::uint32_t* noise[kMaxGpus];
  std::uint32_t noise_words;  // per GPU, a power of two
  // 16-byte stores to the peer by every thread: in front of an instance, by the test's first CTA;
  // and by the blocks of noise, in every round.
  std::uint32_t flood, noise_flood;
  std::uint32_t* trouble;  // rounds that did not start together

  __device__ std::uint32_t* at(std::uint32_t n, std::uint32_t instance) const {
    return name[n] + static_cast<std::uint64_t>(instance) * stride_words;
  }
};

struct Shape {
  std::uint32_t ctas, threads;
  bool lanes;  // threads of a CTA are neighbouring lanes; else they are in different warps
};

__device__ inline std::uint32_t pack(std::uint32_t value, std::uint32_t reg) {
  return (value > 14 ? 15 : value) << (4 * reg);
}

__device__ inline std::uint32_t scramble(std::uint32_t x) {  // murmur3's finaliser
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

__device__ inline void wait_cycles(std::uint32_t cycles) {
  const std::uint32_t begin = clock();
  while (static_cast<std::uint32_t>(clock()) - begin < cycles) {
  }
}

// After griddepcontrol.launch_dependents: up to 16 us, in which the next kernel can start.
__device__ inline void delay_after_trigger(const Launch& launch) {
  wait_cycles(scramble(launch.seed ^ (blockIdx.x * 64 + threadIdx.x / 32)) & 0x7FFF);
}

__device__ inline std::uint32_t shuffle(std::uint32_t value, std::uint32_t lane,
                                        std::uint32_t width) {
  std::uint32_t out;
  const std::uint32_t source = (threadIdx.x & 31) / width * width + lane;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
               : "=r"(out)
               : "r"(value), "r"(source)
               : "memory");
  return out;
}

__device__ inline std::uint32_t vote_any(std::uint32_t value, std::uint32_t width) {
  std::uint32_t ballot;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff;}"
               : "=r"(ballot)
               : "r"(value)
               : "memory");
  const std::uint32_t first = (threadIdx.x & 31) / width * width;
  return (ballot >> first & ((1u << width) - 1)) != 0 ? 1 : 0;
}

// All blocks of all GPUs, by relaxed counters: it orders nothing. False if somebody does not come.
__device__ inline bool meet(const Launch& launch, std::uint32_t round) {
  __shared__ bool all_here;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (std::uint32_t g = 0; g < launch.num_gpus; ++g)
      asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(launch.arrivals[g]) : "memory");
    std::uint32_t seen = 0;
    for (std::uint32_t polls = 0; polls < 4 * kMaxPolls; ++polls) {
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
                   : "=r"(seen)
                   : "l"(launch.arrivals[launch.gpu])
                   : "memory");
      if (seen >= (round + 1) * launch.meeting_blocks) break;
    }
    all_here = seen >= (round + 1) * launch.meeting_blocks;
    if (!all_here) atomicAdd(launch.trouble, 1u);
  }
  __syncthreads();
  return all_here;
}

// Keeps the way to the peer busy: the test's stores to the peer wait, those to this GPU do not.
__device__ inline void flood_peer(const Launch& launch, std::uint32_t count, std::uint32_t salt) {
  std::uint32_t* const noise = launch.noise[(launch.gpu + 1) % launch.num_gpus];
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t vector = scramble(salt + i * 0x9E3779B9u + threadIdx.x);
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(
                     noise + (vector & (launch.noise_words / 4 - 1)) * 4),
                 "r"(salt)
                 : "memory");
  }
}

// Traffic beside the test, to this GPU and to the peer.
__device__ inline void make_noise(const Launch& launch, std::uint32_t round) {
  std::uint32_t state = scramble(launch.seed + round * 977 + blockIdx.x * 131071 + threadIdx.x);
  flood_peer(launch, launch.noise_flood, state);
  for (int i = 0; i < 24; ++i) {
    state = scramble(state + i);
    std::uint32_t* word =
        launch.noise[state % launch.num_gpus] + ((state >> 3) & (launch.noise_words - 1));
    if (state & (1u << 30))
      asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(state) : "memory");
    else
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(state) : "l"(word) : "memory");
  }
}

// `body(cta, role, instance)` is one thread of one instance.
template <class Body>
__device__ void run(const Launch& launch, const Shape shape, Body body) {
  const bool is_noise = blockIdx.x >= shape.ctas * kBlocksPerCta;
  const std::uint32_t cta = blockIdx.x % shape.ctas;
  const std::uint32_t block = blockIdx.x / shape.ctas;
  const std::uint32_t role = shape.lanes ? threadIdx.x % shape.threads : threadIdx.x / kSlots;
  std::uint32_t slot = shape.lanes ? threadIdx.x / shape.threads : threadIdx.x % kSlots;
  for (std::uint32_t round = 0; round < launch.rounds; ++round) {
    if (launch.meeting_blocks != 0 && !meet(launch, round)) return;
    if (is_noise) {
      make_noise(launch, round);
      continue;
    }
    const std::uint32_t salt = scramble(launch.seed ^ (launch.gpu << 24 | cta << 16 | round));
    if (!shape.lanes) {
      // Within the block, by thread of the CTA; odd multipliers permute a power of two.
      const std::uint32_t inner = scramble(salt + role);
      slot = (threadIdx.x % kSlots * (inner | 1) + (inner >> 8)) % kSlots;
    }
    const std::uint32_t within =
        ((block * kSlots + slot) * (salt | 1) + (salt >> 7)) % kInstancesPerRound;
    // The instances of a block stay together for its roles: the permutation is of linear numbers.
    if (launch.delay_mask != 0)
      wait_cycles(scramble(salt + (threadIdx.x / 32) * 7 + block * 61) & launch.delay_mask);
    if (cta == 0) flood_peer(launch, launch.flood, salt + block * 8191);
    body(cta, role, round * kInstancesPerRound + within);
  }
}

}  // namespace assay::litmus_probe
