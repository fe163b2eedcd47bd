/* What can be tested: the interface of a one-sided MoE subject, as C. Simulated kernels, CUDA
 * kernels and a plugin in a shared library all implement exactly this. A plugin exports one
 * function, const assay_subject* assay_subject_v1(void); and is used with --subject plugin:FILE.
 * See verify/subject/example_plugin.cpp for a whole one.
 *
 * This header decides who owns which buffer and when; what the bytes must be is model/SPEC.md (MOE)
 * and verify/CONTRACT.md. All pointers are host pointers: a GPU subject copies. Axis names:
 *   ep    ranks of the group            t   tokens of one rank in this round
 *   max   max_tokens_per_rank of this round      k   top_k      h  hidden_size
 */
#ifndef ASSAY_VERIFY_SUBJECT_H
#define ASSAY_VERIFY_SUBJECT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A struct that grows gets new members at its end only. Every struct starts with its size in bytes
 * as the caller compiled it; a subject ignores what lies beyond the size it knows and refuses a
 * smaller one. A change that is not an append raises the version. */
#define ASSAY_SUBJECT_ABI_VERSION 1u

/* Return values of the functions below. After anything but OK the message says why. */
enum {
  ASSAY_OK = 0,
  ASSAY_FAILED = 1, /* the subject did not do its work: deadlock, time-out, fault, wrong call */
  ASSAY_BAD_OPTIONS =
      3,                /* create only: a known option has an illegal value, the caller's mistake */
  ASSAY_UNSUPPORTED = 2 /* a legal request this subject does not serve; the case is skipped */
};

enum { ASSAY_DTYPE_BF16 = 0, ASSAY_DTYPE_F16 = 1, ASSAY_DTYPE_F32 = 2 };

/* Which slots the rows of a round take at a receiver (model/SPEC.md, MOE-2.3). */
enum {
  ASSAY_SLOTS_COUNTER = 0,    /* 0 to recv_counters - 1, in any order */
  ASSAY_SLOTS_PREFIX = 1,     /* the same, ascending by token */
  ASSAY_SLOTS_TOKEN_INDEX = 2 /* the token's index at its source: rows lie apart */
};

typedef struct assay_message {
  char text[2048]; /* zero-terminated; a subject truncates */
} assay_message;

/* One payload of dispatch: opaque rows. */
typedef struct assay_payload {
  const char* name;         /* "hidden", "scales", "topk_ids", "topk_weights", ... */
  uint32_t bytes_per_token; /* any value >= 1; rows are packed, no padding between tokens */
  int32_t holds_expert_ids; /* 1: rows are int32 [k]; padding rows must get invalid_expert_id */
} assay_payload;

/* What a round asks for beyond assay_round, which lies in an array and cannot grow. Where
 * statistics travel or lists are wanted, none of their pointers is NULL. */
typedef struct assay_round_more {
  size_t struct_size;
  /* Loads of experts that every rank tells every rank in dispatch (model/SPEC.md, MOE-2.10): opaque
   * words, as many of each rank; 0: none travel. */
  int32_t num_statistics;
  const int32_t* const* statistics;    /* [local rank] -> int32 [num_statistics] */
  int32_t* const* gathered_statistics; /* [local rank] -> int32 [ep, num_statistics] */
  /* The slots of each local expert (MOE-2.8); list_offsets NULL: no lists are wanted. An entry is
   * two words: the row [source * max + slot], and the pick k of its token. */
  int32_t* const* list_offsets; /* [local rank] -> int32 [experts of the rank + 1] into entries */
  int32_t* const* list_entries; /* [local rank] -> int32 [ep * max * k, 2] */
} assay_round_more;

typedef struct assay_group_config {
  size_t struct_size;
  int32_t ep_size;
  int32_t first_rank,
      num_local_ranks; /* the ranks of this process; arrays are indexed by local rank */
  int32_t num_experts, top_k, hidden_size;
  int32_t max_tokens_per_rank;     /* capacity: no round has a larger max */
  int32_t max_payload_bytes_total; /* capacity: sum over payloads of bytes_per_token */
  int32_t invalid_expert_id;     /* wire value that marks a pick as absent, and fills padding ids */
  int32_t combine_dtype;         /* ASSAY_DTYPE_*: of expert_out and out */
  int32_t low_precision_combine; /* 1: rows cross the wire as e4m3, out is BF16 */
  const char* profile;           /* combine arithmetic, e.g. "flashinfer-oneside@0.6.16" */
  /* An option that a subject does not know makes create return ASSAY_UNSUPPORTED: ignoring it would
   * claim that it was honoured. The suites use first_epoch and resident_ctas of the simulated
   * subject (sim_subject.hpp). */
  const char* options; /* subject-specific "key=value key=value", may be empty */
  uint64_t seed;       /* schedule seed of a simulated subject */
  /* Appended; NULL: rounds ask for nothing more. Else a subject that serves more asks, within run,
   * once for each round, and writes what is said there before it calls experts for a rank. It
   * stays valid until run returns. A subject that does not ask serves no more than assay_round, and
   * its rounds are skipped. */
  const assay_round_more* (*more)(void* more_context, int32_t round);
  void* more_context;
  int32_t num_statistics; /* capacity: no round has more */
  int32_t expert_lists;   /* 1: rounds may want slot lists */
} assay_group_config;

/* One round: dispatch, experts, combine. The caller owns every buffer and keeps it until run
 * returns. Outputs arrive filled with poison: what a subject must not write must still be poison
 * after. */
typedef struct assay_round {
  size_t struct_size;
  int32_t max_tokens_per_rank; /* equal on all ranks; may change from round to round */
  int32_t num_payloads;
  const assay_payload* payloads;  /* [num_payloads] */
  const uint64_t* rank_mask;      /* bit r of word r/64: rank r is alive; NULL: all are; equal in
                                   * all rounds of one run: nobody waits for a rank that has left,
                                   * so it must have finished its last round before */
  const int32_t* num_tokens;      /* [local rank], 0 allowed, <= max */
  const int32_t* const* topk_ids; /* [local rank] -> int32 [t, k] physical expert ids */
  const void* const* const* payload_rows; /* [payload][local rank] -> [t, bytes_per_token] */

  /* Written by the subject before it calls experts for a rank. */
  void* const* const* recv;      /* [payload][local rank] -> [ep, max, bytes_per_token] */
  int32_t* const* recv_counters; /* [local rank] -> [ep]: rows that came from each source, wherever
                                  * they lie */
  int32_t* const* target_rank;   /* [local rank] -> [t, k], -1 where nothing was sent */
  int32_t* const* target_slot;   /* [local rank] -> [t, k], -1 where nothing was sent */

  /* Filled by the experts callback for a rank; read by combine. Rows that hold no token are NaN. */
  const void* const* expert_out; /* [local rank] -> [ep, max, h] of combine_dtype */

  /* Written by combine. */
  void* const* out; /* [local rank] -> [t, h] */
} assay_round;

/* The caller's experts: reads round `round`'s recv buffers of local rank `local_rank`, fills its
 * expert_out. Calls for different ranks may come from different threads at once. */
typedef void (*assay_experts)(void* context, int32_t round, int32_t local_rank);

typedef struct assay_subject {
  uint32_t abi_version; /* ASSAY_SUBJECT_ABI_VERSION */
  size_t struct_size;
  const char* name;
  /* Creates a group: its workspace, streams and counters live until destroy. */
  int (*create)(const assay_group_config* config, void** group, assay_message* message);
  /* Runs the rounds in order on every local rank: dispatch, experts, combine, next round. Ranks may
   * drift: one rank may be rounds ahead of another as far as the protocol lets it. The state of the
   * group (epochs, counters) carries over from one run to the next. */
  int (*run)(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
             void* context, assay_message* message);
  void (*destroy)(void* group);
  /* Optional: NULL, or beyond struct_size, is ASSAY_SLOTS_COUNTER for all rounds. What the group
   * promises of rounds with this max_tokens_per_rank: one of ASSAY_SLOTS_*. It is held to it. */
  int (*slot_rule)(void* group, int32_t max_tokens_per_rank);
} assay_subject;

typedef const assay_subject* (*assay_subject_entry)(void);
#define ASSAY_SUBJECT_ENTRY_NAME "assay_subject_v1"

#ifdef __cplusplus
}
#endif

#endif /* ASSAY_VERIFY_SUBJECT_H */
