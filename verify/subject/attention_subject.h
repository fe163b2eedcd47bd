/* What can be tested: the interface of an attention kernel, as C. A plugin exports one function,
 * const assay_attention_subject* assay_attention_subject_v1(void); and is used with
 * --suite attention --subject plugin:FILE --profile NAME.
 * See verify/subject/example_attention_plugin.cpp for a whole one.
 *
 * This header decides who owns which buffer; what the bits must be is model/SPEC.md (ATT). All
 * pointers are host pointers: a GPU subject copies. Axis names:
 *   r  requests        q  query rows of a request, packed over requests in out and lse
 *   h  query heads     g  key heads      d  head_dim      e  v_dim
 */
#ifndef ASSAY_VERIFY_ATTENTION_SUBJECT_H
#define ASSAY_VERIFY_ATTENTION_SUBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "verify/subject/subject.h" /* return values, dtypes, assay_message */

#ifdef __cplusplus
extern "C" {
#endif

/* Structs grow as those of subject.h do: new members at the end, the size in bytes first. */
#define ASSAY_ATTENTION_ABI_VERSION 1u

enum { ASSAY_DTYPE_F8_E4M3 = 3 }; /* of q, k, v, beside ASSAY_DTYPE_BF16 and ASSAY_DTYPE_F16 */

enum {
  ASSAY_MASK_FULL = 0,
  ASSAY_MASK_CAUSAL = 1, /* keys up to row + q_offset */
  ASSAY_MASK_WINDOW = 2, /* of those the last mask_size */
  ASSAY_MASK_CHUNKED = 3 /* of those the ones in the position's own chunk of mask_size keys */
};

enum { ASSAY_THRESHOLD_OFF = 0, ASSAY_THRESHOLD_FACTOR = 1, ASSAY_THRESHOLD_LAMBDA = 2 };

/* Rows of one request, for any head. block_table NULL: row i of head j begins at element
 * i * row_stride + j * head_stride of base. Paged: i / page_rows selects an entry of block_table,
 * which counts in page_stride, and i % page_rows takes row_stride. Strides are in elements and may
 * exceed 2^31. Rows from the request's length up to `available` exist in memory and belong to
 * somebody else: they may hold NaN. */
typedef struct assay_attention_rows {
  const void* base;
  int64_t row_stride, head_stride;
  int64_t available;
  const int32_t* block_table;
  int64_t page_rows, page_stride;
} assay_attention_rows;

typedef struct assay_attention_request {
  size_t struct_size;
  assay_attention_rows q, k, v;
  int32_t q_len, kv_len; /* 0 allowed */
  int32_t q_offset;      /* position of query row 0 among the keys; may be negative */
  int32_t threshold_kind;
  float threshold;            /* lambda itself, or the factor that a length divides */
  const uint8_t* custom_mask; /* [q_len, kv_len], 0 hides what the mask shows; or NULL */
} assay_attention_request;

typedef struct assay_attention_call {
  size_t struct_size;
  const char* profile;       /* what the outputs are compared with, e.g. "assay-prefill-sm90" */
  int32_t dtype;             /* of q, k, v */
  int32_t out_dtype;         /* ASSAY_DTYPE_BF16 or ASSAY_DTYPE_F16 */
  int32_t q_heads, kv_heads; /* query head j reads key head j / (q_heads / kv_heads) */
  int32_t head_dim, v_dim;
  int32_t mask, mask_size;
  float scale;                     /* of q . k */
  float softcap;                   /* 0: none */
  float q_scale, k_scale, v_scale; /* what an element's code stands for; 1 for 16-bit types */
  const float* sinks;              /* [h], in nats, or NULL */
  const float* alibi_slopes;       /* [h], or NULL */
  int32_t splits;                  /* into how many pieces the keys may be cut */
  int32_t threads;                 /* a hint that must decide no bit */
  int32_t num_requests;
  const assay_attention_request* requests; /* each of its own struct_size */

  /* Outputs, filled with poison. Every element of out must be written. */
  void* out;  /* [sum of q_len, h, e] of out_dtype */
  float* lse; /* [sum of q_len, h], of what was kept, in the form of the profile; NULL: the profile
                 has none, or nobody asks */
  /* What became of each tile: 0 not visited, 1 kept, 2 skipped, 3 kept with zeroed rows. Its shape
   * is the profile's: [r, unit head, unit, tile]. Set decision_written to 1 if it was filled. */
  uint8_t* decision;
  int32_t decision_shape[4];
  int32_t decision_written;
  /* Tiles that were visited and skipped, over all units. They arrive as -1: not counted. */
  int64_t visited, skipped;
} assay_attention_call;

typedef struct assay_attention_subject {
  uint32_t abi_version; /* ASSAY_ATTENTION_ABI_VERSION */
  size_t struct_size;
  const char* name;
  /* One call, done when it returns; calls do not overlap: ASSAY_OK, ASSAY_FAILED, or
   * ASSAY_UNSUPPORTED for a legal request that it does not serve, which is skipped. A NaN or
   * negative threshold must not be served: any value but ASSAY_OK refuses it. */
  int (*run)(assay_attention_call* call, assay_message* message);
} assay_attention_subject;

typedef const assay_attention_subject* (*assay_attention_subject_entry)(void);
#define ASSAY_ATTENTION_SUBJECT_ENTRY_NAME "assay_attention_subject_v1"

#ifdef __cplusplus
}
#endif

#endif /* ASSAY_VERIFY_ATTENTION_SUBJECT_H */
