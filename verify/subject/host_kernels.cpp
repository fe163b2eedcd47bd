// For a test only: a library for --subject kernels:FILE whose kernels are functions of the host, as
// stand_in_cuda.cpp runs them; the protocol of example_kernels.cu, one thread a rank. Options:
// fault=2 forgets the last payload, fault=5 never signals, fault=6 writes behind its output;
// inrecv=1 has expert rows in the receive buffers, and waits once more before these are free.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "verify/subject/one_sided_kernels.h"

extern "C" void stand_in_trap();

namespace {

constexpr int kTopKMax = 8;

struct Rank {
  assay_kernels_config config;
  int rank, fault = 0;
  bool in_recv = false;
  std::vector<std::uint8_t*> windows;
  // Offsets in a window.
  std::uint64_t rounds, taken, counters, dispatched, combined, pulled, target_rank, target_slot,
      rows, payloads, bytes;
};

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

void lay_out(Rank& r) {
  const assay_kernels_config& c = r.config;
  const std::uint64_t ep = c.ep_size, max = c.max_tokens_per_rank, row = 2 * c.hidden_size;
  std::uint64_t at = 0;
  const auto take = [&](std::uint64_t& offset, std::uint64_t bytes) {
    offset = at;
    at = aligned(at + bytes);
  };
  take(r.rounds, 8);
  for (std::uint64_t* words : {&r.taken, &r.counters, &r.dispatched, &r.combined, &r.pulled})
    take(*words, 4 * ep);
  take(r.target_rank, max * c.top_k * 4);
  take(r.target_slot, max * c.top_k * 4);
  take(r.rows, ep * max * row);
  take(r.payloads, ep * max * (c.max_payload_bytes_total + row) + 16 * 256);
  r.bytes = at;
}

// A round as a kernel sees it.
struct Call {
  const Rank& r;
  std::vector<assay_payload> payloads;
  std::vector<const std::uint8_t*> from;
  std::vector<std::uint64_t> recv;  // offsets
  std::uint64_t alive;
  const std::int32_t* ids;
  std::uint16_t* out;
  int max, tokens, ep, top_k, hidden;

  Call(const Rank& rank, const assay_kernels_round& round)
      : r(rank),
        payloads(round.payloads, round.payloads + round.num_payloads),
        alive(round.rank_mask == nullptr ? ~std::uint64_t{0} : round.rank_mask[0]),
        ids(round.topk_ids),
        out(static_cast<std::uint16_t*>(round.out)),
        max(round.max_tokens_per_rank),
        tokens(round.num_tokens),
        ep(rank.config.ep_size),
        top_k(rank.config.top_k),
        hidden(rank.config.hidden_size) {
    std::uint64_t at = r.payloads;
    for (int i = 0; i < round.num_payloads; ++i) {
      from.push_back(static_cast<const std::uint8_t*>(round.payload_rows[i]));
      recv.push_back(at);
      at = aligned(at + std::uint64_t{1} * ep * max * payloads[i].bytes_per_token);
    }
  }
  template <class T>
  T* at(int rank, std::uint64_t offset) const {
    return reinterpret_cast<T*>(r.windows[rank] + offset);
  }
  bool is_alive(int rank) const { return (alive >> rank & 1) != 0; }
  std::uint64_t rows() const { return r.in_recv ? r.payloads : r.rows; }

  int owner(int expert) const {
    if (expert < 0 || expert >= r.config.num_experts) return -1;
    const int base = r.config.num_experts / ep, more = r.config.num_experts % ep;
    const int boundary = more * (base + 1);
    const int to = expert < boundary ? expert / (base + 1) : more + (expert - boundary) / base;
    return is_alive(to) ? to : -1;
  }

  // False: given up.
  bool meet(std::uint64_t flags, std::uint32_t value) const {
    using Flag = std::atomic_ref<std::uint32_t>;
    for (int peer = 0; peer < ep; ++peer)
      if (is_alive(peer) && r.fault != 5) Flag(at<std::uint32_t>(peer, flags)[r.rank]).store(value);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    for (int peer = 0; peer < ep; ++peer)
      while (is_alive(peer) && Flag(at<std::uint32_t>(r.rank, flags)[peer]).load() < value) {
        if (std::chrono::steady_clock::now() > end) return stand_in_trap(), false;
        std::this_thread::yield();
      }
    return true;
  }

  void send(int token) const {
    int sent[kTopKMax];
    for (int k = 0; k < top_k; ++k) {
      int to = owner(ids[token * top_k + k]);
      for (int earlier = 0; earlier < k; ++earlier)
        if (sent[earlier] == to) to = -1;
      const int slot = to < 0 ? -1 : at<int>(r.rank, r.taken)[to]++;
      at<int>(r.rank, r.target_rank)[token * top_k + k] = sent[k] = to;
      at<int>(r.rank, r.target_slot)[token * top_k + k] = slot;
      const std::size_t count = payloads.size() - (r.fault == 2 ? 1 : 0);
      for (std::size_t i = 0; to >= 0 && i < count; ++i) {
        const std::uint64_t bytes = payloads[i].bytes_per_token;
        std::memcpy(
            at<std::uint8_t>(to, recv[i]) +
                (std::uint64_t{1} * r.rank * max + static_cast<std::uint64_t>(slot)) * bytes,
            from[i] + static_cast<std::uint64_t>(token) * bytes, bytes);
      }
    }
  }

  void dispatch() const {
    auto* const round = at<std::uint32_t>(r.rank, r.rounds);
    for (int token = 0; token < tokens; ++token) send(token);
    for (int peer = 0; peer < ep; ++peer) {
      int& taken = at<int>(r.rank, r.taken)[peer];
      if (is_alive(peer))
        at<int>(peer, r.counters)[r.rank] = taken;
      else
        at<int>(r.rank, r.counters)[peer] = 0;
      taken = 0;
    }
    if (!meet(r.dispatched, *round + 1)) return;
    ++*round;
    for (std::size_t i = 0; i < payloads.size(); ++i)
      for (int source = 0; payloads[i].holds_expert_ids != 0 && source < ep; ++source)
        for (int at_id = at<int>(r.rank, r.counters)[source] * top_k; at_id < max * top_k; ++at_id)
          at<int>(r.rank, recv[i])[source * max * top_k + at_id] = r.config.invalid_expert_id;
  }

  void combine() const {
    auto* const round = at<std::uint32_t>(r.rank, r.rounds) + 1;
    if (!meet(r.combined, *round + 1)) return;
    for (int token = 0; token < tokens; ++token)
      for (int h = 0; h < hidden; ++h) out[token * hidden + h] = sum(token, h);
    if (r.fault == 6) out[tokens * hidden] = 0;
    if (r.in_recv && !meet(r.pulled, *round + 1)) return;
    ++*round;
  }

  std::uint16_t sum(int token, int h) const {
    float term[kTopKMax] = {};
    for (int k = 0; k < top_k; ++k) {
      const int from_rank = at<int>(r.rank, r.target_rank)[token * top_k + k];
      const int slot = at<int>(r.rank, r.target_slot)[token * top_k + k];
      if (from_rank < 0) continue;
      const std::uint32_t bits =
          std::uint32_t{at<std::uint16_t>(from_rank, rows())[(r.rank * max + slot) * hidden + h]}
          << 16;
      std::memcpy(&term[k], &bits, sizeof bits);
    }
    for (int apart = 1; apart < top_k; apart *= 2)
      for (int k = 0; k + apart < top_k; k += 2 * apart) term[k] = term[k] + term[k + apart];
    if (term[0] != term[0]) return 0x7FFF;
    std::uint32_t bits;
    std::memcpy(&bits, &term[0], sizeof bits);
    return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
};

// --- the interface -------------------------------------------------------------------------------

int say(assay_message* message, int code, const char* text) {
  std::snprintf(message->text, sizeof message->text, "%s", text);
  return code;
}

int window_bytes(const assay_kernels_config* c, uint64_t* bytes, assay_message* message) {
  if (c->top_k != 1 && c->top_k != 2 && c->top_k != 4 && c->top_k != 8)
    return say(message, ASSAY_UNSUPPORTED, "top_k is not 1, 2, 4 or 8");
  if (c->combine_dtype != ASSAY_DTYPE_BF16 || c->low_precision_combine != 0)
    return say(message, ASSAY_UNSUPPORTED, "rows are not bf16");
  Rank rank{};
  rank.config = *c;
  lay_out(rank);
  *bytes = rank.bytes;
  return ASSAY_OK;
}

int create(const assay_kernels_config* config, int32_t rank, void* const* windows, void** state,
           assay_message* message) {
  Rank made{};
  made.config = *config;
  made.rank = rank;
  const std::string options = config->options;
  made.in_recv = options == "inrecv=1";
  if (!options.empty() && !made.in_recv) {
    if (options.rfind("fault=", 0) != 0)
      return say(message, ASSAY_UNSUPPORTED, "an option that is not known");
    made.fault = std::atoi(options.c_str() + 6);
    if (made.fault == 0) return say(message, ASSAY_BAD_OPTIONS, "fault is no number");
  }
  for (int r = 0; r < config->ep_size; ++r)
    made.windows.push_back(static_cast<std::uint8_t*>(windows[r]));
  lay_out(made);
  *state = new Rank(std::move(made));
  return ASSAY_OK;
}

int places(void* state, const assay_kernels_round* round, assay_kernels_places* to,
           assay_message*) {
  const Rank& rank = *static_cast<const Rank*>(state);
  const Call call(rank, *round);
  for (std::size_t i = 0; i < call.recv.size(); ++i)
    to->recv[i] = call.at<void>(rank.rank, call.recv[i]);
  to->recv_counters = call.at<int32_t>(rank.rank, rank.counters);
  to->target_rank = call.at<int32_t>(rank.rank, rank.target_rank);
  to->target_slot = call.at<int32_t>(rank.rank, rank.target_slot);
  to->expert_out = call.at<void>(rank.rank, call.rows());
  return ASSAY_OK;
}

// Kept for good: a graph may launch it again.
template <void (Call::*kernel)() const>
int launch(void* state, const assay_kernels_round* round, void* stream, assay_message* message) {
  auto* const call = new Call(*static_cast<const Rank*>(state), *round);
  const auto run = [](void* data) { (static_cast<const Call*>(data)->*kernel)(); };
  if (cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), run, call) == cudaSuccess)
    return ASSAY_OK;
  return say(message, ASSAY_FAILED, "the launch failed");
}

void destroy(void* state) { delete static_cast<Rank*>(state); }

const assay_kernels kKernels = {
    ASSAY_KERNELS_ABI_VERSION, sizeof(assay_kernels),  "host-kernels", window_bytes, create, places,
    launch<&Call::dispatch>,   launch<&Call::combine>, destroy,        nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const assay_kernels* assay_kernels_v1(void) {
  return &kKernels;
}
