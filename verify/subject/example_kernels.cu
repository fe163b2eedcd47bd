// A whole library for --subject kernels:FILE, to start your own from: one-sided dispatch and
// combine as plain as they can be, without any code of Assay but its C interface. A block moves a
// token; the last block to finish signals and waits; combine pulls. Yours would be fast. Serves
// bf16 rows summed in f32 along position trees (top_k 1, 2, 4 and 8), as assay-oneside adds them.
//
//   nvcc -shared -Xcompiler -fPIC --fmad=false -arch=sm_90a -I<assay> mine.cu -o libmine.so
//   assay verify --subject kernels:libmine.so
//
// With the option fault=N it is wrong on purpose, for the tests of the subject: 1 signals before it
// stores, 2 forgets the last payload, 3 adds the terms from the right, 4 leaves padding ids, 5
// never signals, 6 writes behind its output.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "verify/subject/one_sided_kernels.h"

namespace {

constexpr int kRanksMax = 64, kPayloadsMax = 8, kTopKMax = 8, kThreads = 128;
constexpr uint64_t kAlignment = 256;
// A kernel that never ended would take the GPU with it. Longer than any peer's host is late,
// shorter than Assay waits.
constexpr uint64_t kGiveUpNs = 8'000'000'000, kFault1Ns = 2'000'000;

// Offsets in a window.
struct Layout {
  uint64_t rounds, taken, finished, counters, dispatched, combined, target_rank, target_slot, rows,
      payloads, bytes;
};

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Layout layout_of(const assay_kernels_config& c) {
  Layout l{};
  uint64_t at = 0;
  const auto take = [&](uint64_t bytes) {
    const uint64_t begin = at;
    at = aligned(at + bytes);
    return begin;
  };
  const uint64_t ep = c.ep_size, max = c.max_tokens_per_rank;
  l.rounds = take(8);      // how many dispatches and combines this rank has ended
  l.taken = take(4 * ep);  // slots, of each rank's buffer for this one
  l.finished = take(8);    // blocks, of dispatch and of combine
  l.counters = take(4 * ep);
  l.dispatched = take(4 * ep);  // [peer]: the number of the last one that it is through with
  l.combined = take(4 * ep);    // [peer]: the number of the last one that it has begun
  l.target_rank = take(max * c.top_k * 4);
  l.target_slot = take(max * c.top_k * 4);
  l.rows = take(ep * max * c.hidden_size * 2);
  l.payloads = take(ep * max * c.max_payload_bytes_total + kPayloadsMax * kAlignment);
  l.bytes = at;
  return l;
}

struct Params {
  uint8_t* window[kRanksMax];
  const uint8_t* payload[kPayloadsMax];
  uint64_t recv[kPayloadsMax];
  uint32_t bytes[kPayloadsMax];
  Layout at;
  uint64_t alive;
  const int32_t* ids;
  uint16_t* out;
  int rank, ep, experts, top_k, hidden, max, tokens, payloads, ids_payload, invalid_id, timed,
      fault;
};

template <class T>
__host__ __device__ T* at(const Params& p, int rank, uint64_t offset) {
  return reinterpret_cast<T*>(p.window[rank] + offset);
}

__device__ bool is_alive(const Params& p, int rank) { return (p.alive >> rank & 1) != 0; }

// Contiguous; the first E % ep ranks own one expert more. -1: nobody, or a dead rank.
__device__ int owner(const Params& p, int expert) {
  if (expert < 0 || expert >= p.experts) return -1;
  const int base = p.experts / p.ep, more = p.experts % p.ep, boundary = more * (base + 1);
  const int rank = expert < boundary ? expert / (base + 1) : more + (expert - boundary) / base;
  return is_alive(p, rank) ? rank : -1;
}

__device__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Numbers of rounds wrap around; so does their difference. Who waits in vain traps, so that nobody
// takes what is there for a result.
__device__ void wait(const uint32_t* flag, uint32_t value) {
  const uint64_t start = now_ns();
  for (;;) {
    uint32_t seen;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if (static_cast<int32_t>(seen - value) >= 0) return;
    if (now_ns() - start > kGiveUpNs) __trap();
  }
}

// Tells every living rank that this one is so far. A release behind a barrier: it covers what all
// threads of the block did, and what they know that others did.
__device__ void signal(const Params& p, uint64_t flags, uint32_t value) {
  __syncthreads();
  for (int peer = threadIdx.x; peer < p.ep; peer += blockDim.x) {
    if (!is_alive(p, peer) || p.fault == 5) continue;
    uint32_t* const flag = at<uint32_t>(p, peer, flags) + p.rank;
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
  }
}

__device__ void await(const Params& p, uint64_t flags, uint32_t value) {
  for (int peer = threadIdx.x; peer < p.ep; peer += blockDim.x)
    if (is_alive(p, peer)) wait(at<uint32_t>(p, p.rank, flags) + peer, value);
  __syncthreads();
}

// Whether all other blocks have come here; then this one knows what they did.
__device__ bool is_last(uint32_t* finished) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
    __threadfence_system();
    if (last) *finished = 0;
  }
  __syncthreads();
  return last;
}

__device__ void send_token(const Params& p, int token) {
  __shared__ int rank[kTopKMax], slot[kTopKMax];
  if (threadIdx.x == 0) {
    for (int k = 0; k < p.top_k; ++k) {
      int to = owner(p, p.ids[token * p.top_k + k]);
      for (int earlier = 0; earlier < k; ++earlier)
        if (rank[earlier] == to) to = -1;
      rank[k] = to;
      slot[k] = to < 0 ? -1 : atomicAdd(at<int>(p, p.rank, p.at.taken) + to, 1);
      at<int>(p, p.rank, p.at.target_rank)[token * p.top_k + k] = rank[k];
      at<int>(p, p.rank, p.at.target_slot)[token * p.top_k + k] = slot[k];
    }
  }
  __syncthreads();
  for (int k = 0; k < p.top_k; ++k) {
    if (rank[k] < 0) continue;
    const uint64_t row = static_cast<uint64_t>(p.rank) * p.max + slot[k];
    for (int i = 0; i < p.payloads - (p.fault == 2 ? 1 : 0); ++i) {
      uint8_t* const to = p.window[rank[k]] + p.recv[i] + row * p.bytes[i];
      const uint8_t* const from = p.payload[i] + static_cast<uint64_t>(token) * p.bytes[i];
      for (uint32_t byte = threadIdx.x; byte < p.bytes[i]; byte += blockDim.x)
        to[byte] = from[byte];
    }
  }
}

__global__ void dispatch(const Params p) {
  uint32_t* const round = at<uint32_t>(p, p.rank, p.at.rounds);
  const uint32_t value = *round + 1;
  if (p.fault == 1) {
    if (blockIdx.x == 0) signal(p, p.at.dispatched, value);
    for (const uint64_t start = now_ns(); now_ns() - start < kFault1Ns * (p.rank % 2);) continue;
  }
  if (static_cast<int>(blockIdx.x) < p.tokens) send_token(p, blockIdx.x);
  if (!is_last(at<uint32_t>(p, p.rank, p.at.finished))) return;
  for (int peer = threadIdx.x; peer < p.ep; peer += blockDim.x) {
    uint32_t* const taken = at<uint32_t>(p, p.rank, p.at.taken) + peer;
    if (is_alive(p, peer))
      at<uint32_t>(p, peer, p.at.counters)[p.rank] = *taken;
    else
      at<uint32_t>(p, p.rank, p.at.counters)[peer] = 0;  // it will not say so itself
    *taken = 0;
  }
  signal(p, p.at.dispatched, value);
  await(p, p.at.dispatched, value);
  if (threadIdx.x == 0) *round = value;
}

// Rows without a token get the invalid expert id.
__global__ void fill_padding(const Params p) {
  const int source = blockIdx.x;
  const int first = at<int>(p, p.rank, p.at.counters)[source] * p.top_k;
  int* const ids = at<int>(p, p.rank, p.recv[p.ids_payload]);
  for (int i = first + threadIdx.x; i < p.max * p.top_k; i += blockDim.x)
    ids[static_cast<uint64_t>(source) * p.max * p.top_k + i] = p.invalid_id;
}

__device__ float widen(uint16_t bf16) { return __uint_as_float(static_cast<uint32_t>(bf16) << 16); }

// Round to nearest, ties to even; every NaN becomes 0x7fff.
__device__ uint16_t narrow(float value) {
  if (value != value) return 0x7FFF;
  const uint32_t bits = __float_as_uint(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Absent terms are +0.
__device__ float sum(const Params& p, float (&term)[kTopKMax]) {
  if (p.fault == 3) {
    for (int k = p.top_k - 2; k >= 0; --k) term[k] = term[k] + term[k + 1];
  } else {
    for (int apart = 1; apart < p.top_k; apart *= 2)
      for (int k = 0; k + apart < p.top_k; k += 2 * apart) term[k] = term[k] + term[k + apart];
  }
  return term[0];
}

// Every block waits, for what it pulls must be there; none of them keeps a peer waiting, as the
// first that runs signals.
__global__ void combine(const Params p) {
  uint32_t* const round = at<uint32_t>(p, p.rank, p.at.rounds) + 1;
  const uint32_t value = *round + 1;
  signal(p, p.at.combined, value);
  await(p, p.at.combined, value);
  const int token = blockIdx.x;
  if (token < p.tokens) {
    const int* const rank = at<int>(p, p.rank, p.at.target_rank) + token * p.top_k;
    const int* const slot = at<int>(p, p.rank, p.at.target_slot) + token * p.top_k;
    const uint64_t mine = static_cast<uint64_t>(p.rank) * p.max;
    for (int h = threadIdx.x; h < p.hidden; h += blockDim.x) {
      float term[kTopKMax] = {};
      for (int k = 0; k < p.top_k; ++k)
        if (rank[k] >= 0)
          term[k] = widen(at<uint16_t>(p, rank[k], p.at.rows)[(mine + slot[k]) * p.hidden + h]);
      p.out[static_cast<uint64_t>(token) * p.hidden + h] = narrow(sum(p, term));
    }
  }
  if (p.fault == 6 && token == 0) p.out[static_cast<uint64_t>(p.tokens) * p.hidden] = 0;
  if (is_last(at<uint32_t>(p, p.rank, p.at.finished) + 1) && threadIdx.x == 0) *round = value;
}

// --- the interface -------------------------------------------------------------------------------

template <class... Values>
int say(assay_message* message, int code, const char* text, Values... values) {
  std::snprintf(message->text, sizeof message->text, text, values...);
  return code;
}

int answer(assay_message* message) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return ASSAY_OK;
  return say(message, ASSAY_FAILED, "%s", cudaGetErrorString(error));
}

int window_bytes(const assay_kernels_config* c, uint64_t* bytes, assay_message* message) {
  if (std::strcmp(c->profile, "assay-oneside") != 0)
    return say(message, ASSAY_UNSUPPORTED, "profile %s is not assay-oneside", c->profile);
  if (c->top_k != 1 && c->top_k != 2 && c->top_k != 4 && c->top_k != 8)
    return say(message, ASSAY_UNSUPPORTED, "top_k is %d; 1, 2, 4 and 8 are served", c->top_k);
  if (c->combine_dtype != ASSAY_DTYPE_BF16 || c->low_precision_combine)
    return say(message, ASSAY_UNSUPPORTED, "only bf16 rows are served");
  if (c->ep_size > kRanksMax)
    return say(message, ASSAY_UNSUPPORTED, "%d ranks, at most %d", c->ep_size, kRanksMax);
  *bytes = layout_of(*c).bytes;
  return ASSAY_OK;
}

int create(const assay_kernels_config* config, int32_t rank, void* const* windows, void** state,
           assay_message* message) {
  int fault = 0;
  if (config->options[0] != '\0') {
    if (std::strncmp(config->options, "fault=", 6) != 0)
      return say(message, ASSAY_UNSUPPORTED, "options are \"%s\"; only fault is known",
                 config->options);
    fault = std::atoi(config->options + 6);
    if (fault < 1 || fault > 6)
      return say(message, ASSAY_BAD_OPTIONS, "\"%s\"; allowed are 1 to 6", config->options);
  }
  using Kernel = void (*)(Params);
  cudaFuncAttributes loaded{};  // which is what asking does
  for (const Kernel kernel : {dispatch, fill_padding, combine})
    if (cudaFuncGetAttributes(&loaded, reinterpret_cast<const void*>(kernel)) != cudaSuccess)
      return answer(message);
  Params& p = *new Params{};
  p.at = layout_of(*config);
  p.rank = rank;
  p.ep = config->ep_size;
  p.experts = config->num_experts;
  p.top_k = config->top_k;
  p.hidden = config->hidden_size;
  p.invalid_id = config->invalid_expert_id;
  p.timed = config->timed;
  p.fault = fault;
  for (int r = 0; r < config->ep_size; ++r) p.window[r] = static_cast<uint8_t*>(windows[r]);
  *state = &p;
  return ASSAY_OK;
}

void destroy(void* state) { delete static_cast<Params*>(state); }

// What create left, and the round.
Params params_of(void* state, const assay_kernels_round& round) {
  Params p = *static_cast<Params*>(state);
  p.alive = round.rank_mask == nullptr ? ~uint64_t{0} : round.rank_mask[0];
  p.ids = round.topk_ids;
  p.out = static_cast<uint16_t*>(round.out);
  p.max = round.max_tokens_per_rank;
  p.tokens = round.num_tokens;
  p.payloads = round.num_payloads;
  p.ids_payload = -1;
  uint64_t at = p.at.payloads;
  for (int i = 0; i < round.num_payloads; ++i) {
    p.payload[i] = static_cast<const uint8_t*>(round.payload_rows[i]);
    p.bytes[i] = round.payloads[i].bytes_per_token;
    p.recv[i] = at;
    at = aligned(at + uint64_t{1} * p.ep * p.max * p.bytes[i]);
    if (round.payloads[i].holds_expert_ids) p.ids_payload = i;
  }
  return p;
}

// Asked before anything of a round: what cannot be served is declined here.
int places(void* state, const assay_kernels_round* round, assay_kernels_places* to,
           assay_message* message) {
  if (round->num_payloads > kPayloadsMax)
    return say(message, ASSAY_UNSUPPORTED, "%d payloads, at most %d", round->num_payloads,
               kPayloadsMax);
  const Params p = params_of(state, *round);
  for (int i = 0; i < p.payloads; ++i) to->recv[i] = at<void>(p, p.rank, p.recv[i]);
  to->recv_counters = at<int>(p, p.rank, p.at.counters);
  to->target_rank = at<int>(p, p.rank, p.at.target_rank);
  to->target_slot = at<int>(p, p.rank, p.at.target_slot);
  to->expert_out = at<void>(p, p.rank, p.at.rows);
  return ASSAY_OK;
}

int blocks_of(const Params& p) { return p.tokens > 0 ? p.tokens : 1; }

int launch_dispatch(void* state, const assay_kernels_round* round, void* stream,
                    assay_message* message) {
  const Params p = params_of(state, *round);
  const auto on = static_cast<cudaStream_t>(stream);
  dispatch<<<blocks_of(p), kThreads, 0, on>>>(p);
  if (!p.timed && p.ids_payload >= 0 && p.fault != 4) fill_padding<<<p.ep, kThreads, 0, on>>>(p);
  return answer(message);
}

int launch_combine(void* state, const assay_kernels_round* round, void* stream,
                   assay_message* message) {
  const Params p = params_of(state, *round);
  combine<<<blocks_of(p), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return answer(message);
}

// clang-format off
const assay_kernels kKernels = {
    ASSAY_KERNELS_ABI_VERSION, sizeof(assay_kernels), "example-kernels", window_bytes, create,
    places, launch_dispatch, launch_combine, destroy, nullptr};
// clang-format on

}  // namespace

extern "C" __attribute__((visibility("default"))) const assay_kernels* assay_kernels_v1(void) {
  return &kKernels;
}
