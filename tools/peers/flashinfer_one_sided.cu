// FlashInfer's one-sided all-to-all behind verify/subject/one_sided_kernels.h, so that it goes
// through the same suites and the same clock as ours. Calls the launch functions that FlashInfer's
// own operators call, with a workspace of our own layout; none of its code is here. Built by
// tools/peers/build-flashinfer, which defines ASSAY_FLASHINFER_API:
//   1  0.6.0 to 0.6.15   2  0.6.16 to 0.6.x   3  0.7
// What its operators would refuse is declined with a reason. That every id names an expert is a
// precondition of its kernels until 0.6.x (API 1, 2), which Assay's option valid_ids=1 keeps.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#if ASSAY_FLASHINFER_API == 3
#include <tensorrt_llm/kernels/moe/communication/moeAlltoAllKernels.h>
namespace fi = tensorrt_llm::kernels::moe_comm;
#else
#include <tensorrt_llm/common/dataType.h>
#include <tensorrt_llm/kernels/communicationKernels/moeAlltoAllKernels.h>
namespace fi = tensorrt_llm::kernels::moe_alltoall;
#endif
#include "verify/subject/one_sided_kernels.h"

namespace {

constexpr uint64_t kAlignment = 128;  // of every region, as FlashInfer aligns them

template <class... Values>
int say(assay_message* message, int code, const char* text, Values... values) {
  std::snprintf(message->text, sizeof message->text, text, values...);
  return code;
}

// Offsets in a window. Receive buffers follow `payloads`, the rows that combine pulls `rows`.
struct Layout {
  uint64_t flag, token_counter, send_counters, recv_counters, dispatch_flags, combine_flags,
      target_ranks, target_slots, counts, rows, payloads, bytes;
};

uint64_t element_bytes(const assay_kernels_config& c) {
  return c.combine_dtype == ASSAY_DTYPE_F32 ? 4 : 2;
}

Layout layout_of(const assay_kernels_config& c) {
  Layout l{};
  uint64_t at = 0;
  const auto take = [&](uint64_t bytes) {
    const uint64_t begin = at;
    at = (at + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  const uint64_t ep = c.ep_size, max = c.max_tokens_per_rank, table = max * c.top_k * 4;
  l.flag = take(4);
  l.token_counter = take(4);
  l.send_counters = take(4 * ep);
  l.recv_counters = take(8 * ep);  // two of them from API 3 on
  l.dispatch_flags = take(4 * ep);
  l.combine_flags = take(4 * ep);
  l.target_ranks = take(table);
  l.target_slots = take(table);
  l.counts = take(4 * ep);
  l.rows = take(ep * max * c.hidden_size * element_bytes(c));
  l.payloads = take(ep * max * c.max_payload_bytes_total + kAlignment * fi::kMaxPayloads);
  l.bytes = at;
  return l;
}

struct Rank {
  assay_kernels_config config;
  Layout layout;
  int rank;
  std::vector<uint8_t*> windows;
  bool pdl = false;

  template <class T>
  T* at(int of, uint64_t offset) const {
    return reinterpret_cast<T*>(windows[of] + offset);
  }
};

// What FlashInfer's operators or its kernels' tables do not take.
int refuse(const assay_kernels_config& c, assay_message* message) {
#if ASSAY_FLASHINFER_API == 1
  constexpr int kTopK[] = {1, 2, 4, 6, 8, 10, 16, 22};
  if (c.num_experts % c.ep_size != 0)
    return say(message, ASSAY_UNSUPPORTED, "%d experts do not divide by %d ranks", c.num_experts,
               c.ep_size);
  if (c.low_precision_combine)
    return say(message, ASSAY_UNSUPPORTED, "this version has no low-precision combine");
#elif ASSAY_FLASHINFER_API == 2
  constexpr int kTopK[] = {1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 22};
#else
  constexpr int kTopK[] = {1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 22};
  if (c.combine_dtype == ASSAY_DTYPE_F32)
    return say(message, ASSAY_UNSUPPORTED, "combine has no fp32 rows, only fp16 and bf16");
#endif
  bool known = false;
  for (const int k : kTopK) known = known || k == c.top_k;
  if (!known) return say(message, ASSAY_UNSUPPORTED, "there is no kernel for top_k %d", c.top_k);
  if (c.ep_size > fi::kMaxRanks)
    return say(message, ASSAY_UNSUPPORTED, "%d ranks, at most %d", c.ep_size, fi::kMaxRanks);
  if (c.num_experts < c.ep_size)
    return say(message, ASSAY_UNSUPPORTED, "%d experts for %d ranks", c.num_experts, c.ep_size);
  return ASSAY_OK;
}

int window_bytes(const assay_kernels_config* config, uint64_t* bytes, assay_message* message) {
  *bytes = layout_of(*config).bytes;
  return refuse(*config, message);
}

int create(const assay_kernels_config* config, int32_t rank, void* const* windows, void** state,
           assay_message* message) {
  const std::string options = config->options;
  if (!options.empty() && options != "pdl=1")
    return say(message, ASSAY_UNSUPPORTED, "options are \"%s\"; allowed is pdl=1", options.c_str());
  Rank* made = new Rank{*config, layout_of(*config), rank, {}, options == "pdl=1"};
  for (int r = 0; r < config->ep_size; ++r)
    made->windows.push_back(static_cast<uint8_t*>(windows[r]));
  cudaError_t error = cudaFree(nullptr);  // the first call loads what Assay asked to be loaded
#if ASSAY_FLASHINFER_API == 3
  // As its initialisation leaves them.
  if (error == cudaSuccess)
    error = cudaMemset(made->at<int>(rank, made->layout.recv_counters), 0xFF, 8 * config->ep_size);
#endif
  *state = made;
  if (error != cudaSuccess) {
    delete made;
    return say(message, ASSAY_FAILED, "creating: %s", cudaGetErrorString(error));
  }
  return ASSAY_OK;
}

void destroy(void* state) { delete static_cast<Rank*>(state); }

// Where a round's receive buffers are, behind each other at every rank alike.
std::vector<uint64_t> receive_offsets(const Rank& r, const assay_kernels_round& round) {
  std::vector<uint64_t> offsets;
  uint64_t at = r.layout.payloads;
  for (int i = 0; i < round.num_payloads; ++i) {
    offsets.push_back(at);
    at += uint64_t{1} * r.config.ep_size * round.max_tokens_per_rank *
          round.payloads[i].bytes_per_token;
    at = (at + kAlignment - 1) / kAlignment * kAlignment;
  }
  return offsets;
}

int places(void* state, const assay_kernels_round* round, assay_kernels_places* to,
           assay_message*) {
  const Rank& r = *static_cast<Rank*>(state);
  const std::vector<uint64_t> offsets = receive_offsets(r, *round);
  for (int i = 0; i < round->num_payloads; ++i) to->recv[i] = r.at<void>(r.rank, offsets[i]);
#if ASSAY_FLASHINFER_API == 3
  to->recv_counters = r.at<int>(r.rank, r.layout.counts);
#else
  to->recv_counters = r.at<int>(r.rank, r.layout.recv_counters);
#endif
  to->target_rank = r.at<int>(r.rank, r.layout.target_ranks);
  to->target_slot = r.at<int>(r.rank, r.layout.target_slots);
  to->expert_out = r.at<void>(r.rank, r.layout.rows);
  return ASSAY_OK;
}

template <class Params>
void set_mask(Params& params, const assay_kernels_round& round) {
#if ASSAY_FLASHINFER_API >= 2
  params.enable_rank_mask = round.rank_mask != nullptr;
  if (round.rank_mask == nullptr) return;
  std::memset(params.active_rank_mask, 0, sizeof params.active_rank_mask);
  for (int word = 0; word < (params.ep_size + 63) / 64; ++word)
    params.active_rank_mask[word] = round.rank_mask[word];
#else
  static_cast<void>(params);
  static_cast<void>(round);
#endif
}

#if ASSAY_FLASHINFER_API == 3
// The counters of the round whose flag the dispatch raised; its kernels keep two sets.
__global__ void copy_counts(int* to, const int* counters, const uint32_t* flag, int ep) {
  const unsigned set = ((*flag - 1) / 2) & 1;
  for (int i = threadIdx.x; i < ep; i += blockDim.x) to[i] = max(counters[set * ep + i], 0);
}
#endif

int dispatch(void* state, const assay_kernels_round* round, void* stream, assay_message* message) {
  const Rank& r = *static_cast<Rank*>(state);
  const assay_kernels_config& c = r.config;
  const Layout& l = r.layout;
  if (round->num_payloads > fi::kMaxPayloads)
    return say(message, ASSAY_UNSUPPORTED, "%d payloads, at most %d", round->num_payloads,
               fi::kMaxPayloads);
#if ASSAY_FLASHINFER_API == 1
  if (round->rank_mask != nullptr)
    return say(message, ASSAY_UNSUPPORTED, "this version has no rank mask");
#endif
  fi::MoeA2ADispatchParams p{};
  p.ep_size = c.ep_size;
  p.ep_rank = r.rank;
#if ASSAY_FLASHINFER_API == 1
  p.num_experts_per_rank = c.num_experts / c.ep_size;
#else
  p.num_experts = c.num_experts;
  p.enable_pdl = r.pdl;
#endif
  p.local_num_tokens = round->num_tokens;
  p.max_tokens_per_rank = round->max_tokens_per_rank;
  p.top_k = c.top_k;
  p.token_selected_experts = round->topk_ids;
  p.num_payloads = round->num_payloads;
  const std::vector<uint64_t> offsets = receive_offsets(r, *round);
  int ids = -1;
  for (int i = 0; i < round->num_payloads; ++i) {
    const int bytes = static_cast<int>(round->payloads[i].bytes_per_token);
    p.payloads[i] = {round->payload_rows[i], 1, bytes};
    if (round->payloads[i].holds_expert_ids) ids = i;
  }
  p.flag_val = r.at<uint32_t>(r.rank, l.flag);
  p.local_token_counter = r.at<int>(r.rank, l.token_counter);
  p.send_counters = r.at<int>(r.rank, l.send_counters);
  p.topk_target_ranks = r.at<int>(r.rank, l.target_ranks);
#if ASSAY_FLASHINFER_API == 3
  p.topk_target_indices = r.at<int>(r.rank, l.target_slots);
#else
  p.topk_send_indices = r.at<int>(r.rank, l.target_slots);
#endif
  for (int to = 0; to < c.ep_size; ++to) {
    p.recv_counters[to] = r.at<int>(to, l.recv_counters);
    p.completion_flags[to] = r.at<uint32_t>(to, l.dispatch_flags);
    for (int i = 0; i < round->num_payloads; ++i)
      p.recv_buffers[to][i] = r.at<void>(to, offsets[i]);
  }
  set_mask(p, *round);
  p.stream = static_cast<cudaStream_t>(stream);
  fi::moe_a2a_prepare_dispatch_launch(p);
  fi::moe_a2a_dispatch_launch(p);
  if (!c.timed && ids >= 0) {
    int32_t* const rows = r.at<int32_t>(r.rank, offsets[ids]);
    const int* const counters = r.at<int>(r.rank, l.recv_counters);
#if ASSAY_FLASHINFER_API == 3
    copy_counts<<<1, 64, 0, p.stream>>>(r.at<int>(r.rank, l.counts), counters, p.flag_val,
                                        c.ep_size);
    fi::moe_a2a_sanitize_expert_ids_launch(rows, counters, p.flag_val, c.invalid_expert_id,
                                           c.ep_size, round->max_tokens_per_rank, c.top_k, p.stream,
                                           r.pdl);
#elif ASSAY_FLASHINFER_API == 2
    fi::moe_a2a_sanitize_expert_ids_launch(rows, counters, c.invalid_expert_id, c.ep_size,
                                           round->max_tokens_per_rank, c.top_k, p.stream, r.pdl);
#else
    fi::moe_a2a_sanitize_expert_ids_launch(rows, counters, c.invalid_expert_id, c.ep_size,
                                           round->max_tokens_per_rank, c.top_k, p.stream);
#endif
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess
             ? ASSAY_OK
             : say(message, ASSAY_FAILED, "launching dispatch: %s", cudaGetErrorString(error));
}

#if ASSAY_FLASHINFER_API == 3
using DataType = tensorrt_llm::DataType;
#else
using DataType = nvinfer1::DataType;
#endif

DataType data_type(int dtype) {
  return dtype == ASSAY_DTYPE_F32   ? DataType::kFLOAT
         : dtype == ASSAY_DTYPE_F16 ? DataType::kHALF
                                    : DataType::kBF16;
}

int combine(void* state, const assay_kernels_round* round, void* stream, assay_message* message) {
  const Rank& r = *static_cast<Rank*>(state);
  const assay_kernels_config& c = r.config;
  const Layout& l = r.layout;
  fi::MoeA2ACombineParams p{};
  p.ep_size = c.ep_size;
  p.ep_rank = r.rank;
  p.local_num_tokens = round->num_tokens;
  p.max_tokens_per_rank = round->max_tokens_per_rank;
  p.top_k = c.top_k;
  p.output_data = round->out;
  p.elements_per_token = c.hidden_size;
  p.dtype = data_type(c.combine_dtype);
  p.flag_val = r.at<uint32_t>(r.rank, l.flag);
  p.topk_target_ranks = r.at<int>(r.rank, l.target_ranks);
  p.recv_counters = r.at<int>(r.rank, l.recv_counters);
  for (int of = 0; of < c.ep_size; ++of)
    p.completion_flags[of] = r.at<uint32_t>(of, l.combine_flags);
#if ASSAY_FLASHINFER_API == 3
  const int row = c.hidden_size * static_cast<int>(element_bytes(c));
  p.topk_target_indices = r.at<int>(r.rank, l.target_slots);
  p.source_payload = r.at<void>(r.rank, l.rows);  // in the workspace: nothing is copied
  p.source_stride_per_token = p.workspace_stride_per_token = p.reduce_stride_per_token = row;
  p.wire_bytes_per_token = c.low_precision_combine ? c.hidden_size : row;
  p.prepare_num_tokens = c.low_precision_combine ? c.ep_size * round->max_tokens_per_rank : 0;
  p.use_low_precision = c.low_precision_combine != 0;
  for (int of = 0; of < c.ep_size; ++of) p.combine_input_buffers[of] = r.at<uint8_t>(of, l.rows);
#else
  p.topk_send_indices = r.at<int>(r.rank, l.target_slots);
  p.prepare_payload = nullptr;  // rows are in the workspace
  for (int of = 0; of < c.ep_size; ++of) p.recv_buffers[of] = r.at<void>(of, l.rows);
#endif
#if ASSAY_FLASHINFER_API >= 2
  p.use_low_precision = c.low_precision_combine != 0;
  p.enable_pdl = r.pdl;
#endif
  set_mask(p, *round);
  p.stream = static_cast<cudaStream_t>(stream);
  fi::moe_a2a_prepare_combine_launch(p);
  fi::moe_a2a_combine_launch(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess
             ? ASSAY_OK
             : say(message, ASSAY_FAILED, "launching combine: %s", cudaGetErrorString(error));
}

const assay_kernels kKernels = {ASSAY_KERNELS_ABI_VERSION,
                                sizeof(assay_kernels),
                                "flashinfer-one_sided-" ASSAY_FLASHINFER_VERSION,
                                window_bytes,
                                create,
                                places,
                                dispatch,
                                combine,
                                destroy,
                                nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const assay_kernels* assay_kernels_v1(void) {
  return &kKernels;
}
