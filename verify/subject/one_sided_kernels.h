/* One-sided MoE kernels as their author has them: launches on a stream over symmetric memory, as C.
 * A library exports const assay_kernels* assay_kernels_v1(void); and is used with
 * --subject kernels:FILE, and timed beside ours with assay bench moe --kernels FILE.
 * verify/subject/example_kernels.cu is a whole one.
 *
 * This header decides what Assay does for such kernels and what they must say; what the bytes must
 * be is model/SPEC.md (MOE). Assay owns the memory, streams, copies, threads, experts and waits:
 * the library only enqueues. Whoever wants to own these too writes a subject (subject.h).
 *
 * "Device pointer": of memory that the rank's device can address. All other pointers are the host's
 * and are read before a function returns. Axis names as in subject.h.
 */
#ifndef ASSAY_VERIFY_ONE_SIDED_KERNELS_H
#define ASSAY_VERIFY_ONE_SIDED_KERNELS_H

#include "verify/subject/subject.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As in subject.h: structs grow at their ends, each begins with its size. */
#define ASSAY_KERNELS_ABI_VERSION 1u

typedef struct assay_kernels_config {
  size_t struct_size;
  int32_t ep_size, num_experts, top_k, hidden_size;
  int32_t max_tokens_per_rank;     /* capacity: no round has a larger max */
  int32_t max_payload_bytes_total; /* capacity: sum over payloads of bytes_per_token */
  int32_t invalid_expert_id, combine_dtype, low_precision_combine; /* as in assay_group_config */
  const char* profile;
  /* What the command's options have beyond Assay's own (kernels_options.hpp), may be empty. Of one
   * that a library does not know it says ASSAY_UNSUPPORTED: ignoring it would claim that it was
   * honoured. */
  const char* options;
  int32_t timed; /* 1: rounds are timed, and their counters and padding ids not looked at: what only
                  * fills these need not be enqueued */
} assay_kernels_config;

/* One rank's part of a round. */
typedef struct assay_kernels_round {
  size_t struct_size;
  int32_t max_tokens_per_rank; /* equal on all ranks; may change from round to round */
  int32_t num_tokens;          /* of this rank: 0 allowed, <= max */
  int32_t num_payloads;
  const assay_payload* payloads;   /* [num_payloads] */
  const uint64_t* rank_mask;       /* as in assay_round */
  const int32_t* topk_ids;         /* device pointer: [t, k] */
  const void* const* payload_rows; /* [payload] device pointers: [t, bytes_per_token] */
  void* out;                       /* device pointer: [t, h], for combine to write */
} assay_kernels_round;

/* Where this rank finds what its dispatch leaves, and leaves what combine reads. All are device
 * pointers into the rank's own window. Receive buffers are filled with poison before a run and
 * behind reading, before experts leave their rows (option keep_recv=1: they are not). */
typedef struct assay_kernels_places {
  size_t struct_size;
  void** recv;            /* [num_payloads], to be filled: [ep, max, bytes_per_token] each */
  int32_t* recv_counters; /* [ep] */
  int32_t* target_rank;   /* [t, k] */
  int32_t* target_slot;   /* [t, k] */
  void* expert_out;       /* [ep, max, h] of combine_dtype; may lie in recv, but not if timed */
} assay_kernels_places;

typedef struct assay_kernels {
  uint32_t abi_version; /* ASSAY_KERNELS_ABI_VERSION */
  size_t struct_size;
  const char* name;
  /* How much symmetric memory a rank needs. ASSAY_UNSUPPORTED skips the case, here, in create or
   * before a round's kernels; ASSAY_BAD_OPTIONS, here or in create, is the caller's mistake. */
  int (*window_bytes)(const assay_kernels_config* config, uint64_t* bytes, assay_message* message);
  /* A rank of a group; its device is current, here and below. windows[r] is a device pointer to
   * rank r's memory of window_bytes, 256-byte aligned, as this rank addresses it. All of it is zero
   * when the first rank is created, and no rank's kernels run before every rank has been. The
   * kernels must be loaded, and what runs on streams of its own have ended, when it returns
   * (cudaFuncGetAttributes of a kernel loads it): loading at the first launch would wait for
   * kernels that wait for this rank. */
  int (*create)(const assay_kernels_config* config, int32_t rank, void* const* windows,
                void** state, assay_message* message);
  /* Called before dispatch of the round, perhaps more than once; must not enqueue anything. Equal
   * for rounds of equal sizes, as a recorded round is launched more than once. */
  int (*places)(void* state, const assay_kernels_round* round, assay_kernels_places* places,
                assay_message* message);
  /* Enqueue on `stream` (a cudaStream_t), without waiting for it and without allocating. The stream
   * may be recording a graph that is launched many times or never: what counts rounds must lie in
   * device memory. Behind dispatch on its stream all that `places` names is complete, and behind
   * combine `out` is. A kernel that gives up must not look as if it had done its work: trapping is
   * told. Of dead ranks nothing is called. */
  int (*dispatch)(void* state, const assay_kernels_round* round, void* stream,
                  assay_message* message);
  int (*combine)(void* state, const assay_kernels_round* round, void* stream,
                 assay_message* message);
  void (*destroy)(void* state); /* nothing of the rank's runs any more */
  /* Optional, as in assay_subject: ASSAY_SLOTS_*. */
  int (*slot_rule)(const assay_kernels_config* config, int32_t max_tokens_per_rank);
} assay_kernels;

typedef const assay_kernels* (*assay_kernels_entry)(void);
#define ASSAY_KERNELS_ENTRY_NAME "assay_kernels_v1"

#ifdef __cplusplus
}
#endif

#endif /* ASSAY_VERIFY_ONE_SIDED_KERNELS_H */
