// A whole library for --subject kernels:FILE, to start your own from: one-sided dispatch and
// combine as plain as they can be, without any code of Assay but its C interface. A block moves a
// token; flags are raised behind a fence of the system and waited for by the last block to finish;
// combine pulls. Yours would be fast. Serves bf16 rows summed in f32 along position trees (top_k 1,
// 2, 4 and 8), as assay-oneside adds them.
//
//   nvcc -std=c++17 -shared -Xcompiler -fPIC --fmad=false -arch=sm_90a -I<assay> \
//     example_kernels.cu -o libmine.so
//   assay verify --subject kernels:libmine.so
//
// With the option fault=N it is wrong on purpose, for the tests of the subject: 1 signals before it
// stores, 2 forgets the last payload, 3 adds the terms from the right, 4 leaves padding ids, 5 never
// signals, 6 writes a row behind its output.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "verify/subject/one_sided_kernels.h"

namespace {

constexpr int kRanksMax = 64, kPayloadsMax = 8, kTopKMax = 8, kThreads = 128;
constexpr uint64_t kAlignment = 256;
// A wait ends after so many looks, seconds at most: a kernel that never ends takes the GPU with it.
constexpr uint32_t kLooks = 4'000'000;

struct Layout {
  uint64_t round, taken, finished, sent, counters, dispatched, combined, target_rank, target_slot,
      rows, payloads, bytes;
};

__host__ __device__ uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Layout layout_of(const assay_kernels_config& c) {
  Layout l{};
  uint64_t at = 0;
  const auto take = [&](uint64_t bytes) {
    const uint64_t begin = at;
    at = aligned(at + bytes);
    return begin;
  };
  const uint64_t ep = c.ep_size, max = c.max_tokens_per_rank;
  l.round = take(8);     // how many dispatches and combines there were
  l.taken = take(4 * ep);
  l.finished = take(8);  // blocks, of dispatch and of combine
  l.sent = take(4 * ep);
  l.counters = take(4 * ep);
  l.dispatched = take(4 * ep);
  l.combined = take(4 * ep);
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
  int rank, ep, experts, top_k, hidden, max, tokens, payloads, ids_payload, invalid_id, fault;
};

template <class T>
__device__ T* at(const Params& p, int rank, uint64_t offset) {
  return reinterpret_cast<T*>(p.window[rank] + offset);
}

// Contiguous; the first E % ep ranks own one expert more. -1: nobody, or a dead rank.
__device__ int owner(const Params& p, int expert) {
  if (expert < 0 || expert >= p.experts) return -1;
  const int base = p.experts / p.ep, more = p.experts % p.ep, boundary = more * (base + 1);
  const int rank =
      expert < boundary ? expert / (base + 1) : more + (expert - boundary) / base;
  return (p.alive >> rank & 1) != 0 ? rank : -1;
}

__device__ void raise(uint32_t* flag, uint32_t value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// False: given up.
__device__ bool wait(const uint32_t* flag, uint32_t value) {
  for (uint32_t look = 0; look < kLooks; ++look) {
    uint32_t seen;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if (static_cast<int32_t>(seen - value) >= 0) return true;
  }
  return false;
}

__device__ void copy_row(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

__device__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Tells every living rank that this one is through, and waits for theirs.
__device__ void meet(const Params& p, uint64_t flags, uint32_t value) {
  for (int peer = threadIdx.x; peer < p.ep; peer += blockDim.x)
    if ((p.alive >> peer & 1) != 0 && p.fault != 5) raise(at<uint32_t>(p, peer, flags) + p.rank, value);
  for (int peer = threadIdx.x; peer < p.ep; peer += blockDim.x)
    if ((p.alive >> peer & 1) != 0) wait(at<uint32_t>(p, p.rank, flags) + peer, value);
}

// The last of so many blocks to come, which sees what the others wrote.
__device__ bool is_last(uint32_t* finished, uint32_t blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicAdd(finished, 1u) == blocks - 1;
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
      slot[k] = to < 0 ? -1 : static_cast<int>(atomicAdd(at<uint32_t>(p, p.rank, p.at.taken) + to, 1u));
      at<int>(p, p.rank, p.at.target_rank)[token * p.top_k + k] = to;
      at<int>(p, p.rank, p.at.target_slot)[token * p.top_k + k] = slot[k];
    }
  }
  __syncthreads();
  for (int k = 0; k < p.top_k; ++k) {
    if (rank[k] < 0) continue;
    const uint64_t row = static_cast<uint64_t>(p.rank) * p.max + slot[k];
    for (int i = 0; i < p.payloads - (p.fault == 2 ? 1 : 0); ++i)
      copy_row(p.window[rank[k]] + p.recv[i] + row * p.bytes[i],
               p.payload[i] + static_cast<uint64_t>(token) * p.bytes[i], p.bytes[i]);
  }
}

__global__ void dispatch(const Params p) {
  const uint32_t value = at<uint32_t>(p, p.rank, p.at.round)[0] + 1;
  if (p.fault == 1 && blockIdx.x == 0) meet(p, p.at.dispatched, value);
  if (static_cast<int>(blockIdx.x) < p.tokens) send_token(p, blockIdx.x);
  if (!is_last(at<uint32_t>(p, p.rank, p.at.finished), gridDim.x)) return;
  for (int peer = threadIdx.x; peer < p.ep; peer += blockDim.x) {
    uint32_t* const taken = at<uint32_t>(p, p.rank, p.at.taken) + peer;
    if ((p.alive >> peer & 1) != 0) at<uint32_t>(p, peer, p.at.counters)[p.rank] = *taken;
    *taken = 0;
  }
  fence_system();
  __syncthreads();
  meet(p, p.at.dispatched, value);
  if (threadIdx.x == 0) at<uint32_t>(p, p.rank, p.at.round)[0] = value;
}

// Rows without a token get the invalid expert id.
__global__ void fill_padding(const Params p) {
  const int source = blockIdx.x;
  if (p.ids_payload < 0 || p.fault == 4) return;
  const bool alive = (p.alive >> source & 1) != 0;
  const uint32_t rows = alive ? at<uint32_t>(p, p.rank, p.at.counters)[source] : 0;
  if (!alive && threadIdx.x == 0) at<uint32_t>(p, p.rank, p.at.counters)[source] = 0;
  int* const ids = at<int>(p, p.rank, p.recv[p.ids_payload]);
  for (int i = rows * p.top_k + threadIdx.x; i < p.max * p.top_k; i += blockDim.x)
    ids[static_cast<uint64_t>(source) * p.max * p.top_k + i] = p.invalid_id;
}

__device__ float widen(uint16_t bf16) { return __uint_as_float(static_cast<uint32_t>(bf16) << 16); }

// Round to nearest, ties to even; every NaN becomes 0x7fff.
__device__ uint16_t narrow(float value) {
  if (value != value) return 0x7FFF;
  const uint32_t bits = __float_as_uint(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// All blocks wait: whatever is pulled must be there.
__global__ void combine(const Params p) {
  const uint32_t value = at<uint32_t>(p, p.rank, p.at.round)[1] + 1;
  if (threadIdx.x == 0) fence_system();
  __syncthreads();
  meet(p, p.at.combined, value);
  __syncthreads();
  const int token = blockIdx.x;
  if (token < p.tokens) {
    const int* const rank = at<int>(p, p.rank, p.at.target_rank) + token * p.top_k;
    const int* const slot = at<int>(p, p.rank, p.at.target_slot) + token * p.top_k;
    for (int h = threadIdx.x; h < p.hidden; h += blockDim.x) {
      float term[kTopKMax] = {};
      for (int k = 0; k < p.top_k; ++k)
        if (rank[k] >= 0)
          term[k] = widen(at<uint16_t>(p, rank[k], p.at.rows)[
              (static_cast<uint64_t>(p.rank) * p.max + slot[k]) * p.hidden + h]);
      if (p.fault == 3) {
        for (int k = p.top_k - 2; k >= 0; --k) term[k] = term[k] + term[k + 1];
      } else {
        for (int apart = 1; apart < p.top_k; apart *= 2)
          for (int k = 0; k + apart < p.top_k; k += 2 * apart) term[k] = term[k] + term[k + apart];
      }
      p.out[static_cast<uint64_t>(token) * p.hidden + h] = narrow(term[0]);
    }
  }
  if (p.fault == 6 && blockIdx.x == 0) p.out[static_cast<uint64_t>(p.tokens) * p.hidden] = 0;
  if (is_last(at<uint32_t>(p, p.rank, p.at.finished) + 1, gridDim.x) && threadIdx.x == 0)
    at<uint32_t>(p, p.rank, p.at.round)[1] = value;
}

// --- the interface -------------------------------------------------------------------------------

template <class... Values>
int say(assay_message* message, int code, const char* text, Values... values) {
  std::snprintf(message->text, sizeof message->text, text, values...);
  return code;
}

struct Rank {
  assay_kernels_config config;
  Params params;
};

int window_bytes(const assay_kernels_config* c, uint64_t* bytes, assay_message* message) {
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
      return say(message, ASSAY_UNSUPPORTED, "options are \"%s\"; fault=1 to 6 is known",
                 config->options);
    fault = std::atoi(config->options + 6);
  }
  Rank* const made = new Rank{*config, {}};
  Params& p = made->params;
  p.at = layout_of(*config);
  p.rank = rank;
  p.ep = config->ep_size;
  p.experts = config->num_experts;
  p.top_k = config->top_k;
  p.hidden = config->hidden_size;
  p.invalid_id = config->invalid_expert_id;
  p.fault = fault;
  for (int r = 0; r < config->ep_size; ++r) p.window[r] = static_cast<uint8_t*>(windows[r]);
  *state = made;
  return ASSAY_OK;
}

void destroy(void* state) { delete static_cast<Rank*>(state); }

Params params_of(const Rank& rank, const assay_kernels_round& round) {
  Params p = rank.params;
  p.alive = round.rank_mask == nullptr ? ~uint64_t{0} : round.rank_mask[0];
  p.ids = round.topk_ids;
  p.out = static_cast<uint16_t*>(round.out);
  p.max = round.max_tokens_per_rank;
  p.tokens = round.num_tokens;
  p.payloads = round.num_payloads;
  p.ids_payload = -1;
  uint64_t at = p.at.payloads;
  for (int i = 0; i < round.num_payloads && i < kPayloadsMax; ++i) {
    p.payload[i] = static_cast<const uint8_t*>(round.payload_rows[i]);
    p.bytes[i] = round.payloads[i].bytes_per_token;
    p.recv[i] = at;
    at = aligned(at + uint64_t{1} * p.ep * p.max * p.bytes[i]);
    if (round.payloads[i].holds_expert_ids) p.ids_payload = i;
  }
  return p;
}

int places(void* state, const assay_kernels_round* round, assay_kernels_places* to,
           assay_message* message) {
  if (round->num_payloads > kPayloadsMax)
    return say(message, ASSAY_UNSUPPORTED, "%d payloads, at most %d", round->num_payloads,
               kPayloadsMax);
  const Params p = params_of(*static_cast<Rank*>(state), *round);
  uint8_t* const own = p.window[p.rank];
  for (int i = 0; i < p.payloads; ++i) to->recv[i] = own + p.recv[i];
  to->recv_counters = reinterpret_cast<int32_t*>(own + p.at.counters);
  to->target_rank = reinterpret_cast<int32_t*>(own + p.at.target_rank);
  to->target_slot = reinterpret_cast<int32_t*>(own + p.at.target_slot);
  to->expert_out = own + p.at.rows;
  return ASSAY_OK;
}

int launched(assay_message* message) {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? ASSAY_OK
                              : say(message, ASSAY_FAILED, "%s", cudaGetErrorString(error));
}

int launch_dispatch(void* state, const assay_kernels_round* round, void* stream,
                    assay_message* message) {
  const Rank& rank = *static_cast<Rank*>(state);
  const Params p = params_of(rank, *round);
  const auto on = static_cast<cudaStream_t>(stream);
  dispatch<<<p.tokens > 0 ? p.tokens : 1, kThreads, 0, on>>>(p);
  if (!rank.config.timed) fill_padding<<<p.ep, kThreads, 0, on>>>(p);
  return launched(message);
}

int launch_combine(void* state, const assay_kernels_round* round, void* stream,
                   assay_message* message) {
  const Params p = params_of(*static_cast<Rank*>(state), *round);
  combine<<<p.tokens > 0 ? p.tokens : 1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return launched(message);
}

const assay_kernels kKernels = {
    ASSAY_KERNELS_ABI_VERSION, sizeof(assay_kernels), "example-kernels", window_bytes, create,
    places, launch_dispatch, launch_combine, destroy, nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const assay_kernels* assay_kernels_v1(void) {
  return &kKernels;
}
