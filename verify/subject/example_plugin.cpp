// A whole subject in plain C++, to start your own from: one-sided rank-major dispatch and combine
// without any code of Assay, only its C interface. It is an independent third statement of what the
// bytes must be, and small enough to be read. Yours would copy to a GPU and launch kernels instead.
//
//   c++ -std=c++20 -shared -fPIC -ffp-contract=off -I<assay> example_plugin.cpp -o libmine.so
//   assay verify --subject plugin:libmine.so --case "ep=4 experts=32 top_k=4 hidden=64 tokens=5"
//
// It computes bf16 rows summed in f32 along position trees with one rounding at the end: top_k 1,
// 2, 4 and 8. Everything else it declines with a reason, which is a skip and not a failure.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "verify/subject/subject.h"

namespace {

struct Group {
  assay_group_config config;
};

template <class... Values>
int say(assay_message* message, int code, const char* text, Values... values) {
  std::snprintf(message->text, sizeof message->text, text, values...);
  return code;
}

// The rank that owns an expert: contiguous, the first E % ep ranks own one more.
int owner(const assay_group_config& c, int32_t expert) {
  if (expert < 0 || expert >= c.num_experts) return -1;
  const int base = c.num_experts / c.ep_size;
  const int more = c.num_experts % c.ep_size;
  const int boundary = more * (base + 1);
  return expert < boundary ? expert / (base + 1) : more + (expert - boundary) / base;
}

bool alive(const assay_round& r, int rank) {
  return r.rank_mask == nullptr || ((r.rank_mask[rank / 64] >> (rank % 64)) & 1) != 0;
}

char* recv_row(const assay_round& r, int payload, int dst, int src, int slot) {
  const size_t row = static_cast<size_t>(src) * static_cast<size_t>(r.max_tokens_per_rank) +
                     static_cast<size_t>(slot);
  return static_cast<char*>(r.recv[payload][dst]) + row * r.payloads[payload].bytes_per_token;
}

// One token: every target rank once, by its lowest pick; the next free slot there.
void send_token(const assay_group_config& c, const assay_round& r, int src, int token) {
  const size_t picks = static_cast<size_t>(token) * static_cast<size_t>(c.top_k);
  int32_t* target_rank = r.target_rank[src] + picks;
  int32_t* target_slot = r.target_slot[src] + picks;
  for (int k = 0; k < c.top_k; ++k) {
    const int dst = owner(c, r.topk_ids[src][picks + static_cast<size_t>(k)]);
    bool send = dst >= 0 && alive(r, dst);
    for (int earlier = 0; earlier < k; ++earlier) send = send && target_rank[earlier] != dst;
    target_rank[k] = send ? dst : -1;
    target_slot[k] = send ? r.recv_counters[dst][src]++ : -1;
    if (!send) continue;
    for (int p = 0; p < r.num_payloads; ++p) {
      const size_t bytes = r.payloads[p].bytes_per_token;
      const char* rows = static_cast<const char*>(r.payload_rows[p][src]);
      std::memcpy(recv_row(r, p, dst, src, target_slot[k]),
                  rows + static_cast<size_t>(token) * bytes, bytes);
    }
  }
}

void dispatch(const assay_group_config& c, const assay_round& r) {
  for (int dst = 0; dst < c.ep_size; ++dst)
    for (int src = 0; src < c.ep_size; ++src) r.recv_counters[dst][src] = 0;
  for (int src = 0; src < c.ep_size; ++src)
    for (int t = 0; alive(r, src) && t < r.num_tokens[src]; ++t) send_token(c, r, src, t);
  // Rows without a token get the invalid expert id, so that no expert works on them.
  for (int p = 0; p < r.num_payloads; ++p) {
    for (int dst = 0; r.payloads[p].holds_expert_ids && dst < c.ep_size; ++dst) {
      for (int src = 0; src < c.ep_size; ++src) {
        for (int s = r.recv_counters[dst][src]; s < r.max_tokens_per_rank; ++s)
          for (int k = 0; k < c.top_k; ++k)
            std::memcpy(recv_row(r, p, dst, src, s) + 4 * k, &c.invalid_expert_id, 4);
      }
    }
  }
}

// Every rank's words at every living rank; of dead ranks zeroes.
void gather_statistics(const assay_group_config& c, const assay_round& r,
                       const assay_round_more& more) {
  const size_t bytes = static_cast<size_t>(more.num_statistics) * sizeof(int32_t);
  for (int dst = 0; bytes > 0 && dst < c.ep_size; ++dst) {
    for (int src = 0; alive(r, dst) && src < c.ep_size; ++src) {
      int32_t* row = more.gathered_statistics[dst] + src * more.num_statistics;
      if (alive(r, src))
        std::memcpy(row, more.statistics[src], bytes);
      else
        std::memset(row, 0, bytes);
    }
  }
}

// For each expert of a rank the received rows whose ids name it, by source, slot and pick.
void list_slots(const assay_group_config& c, const assay_round& r, const assay_round_more& more,
                int dst) {
  int ids = 0;
  while (r.payloads[ids].holds_expert_ids == 0) ++ids;
  int local = 0, entries = 0;
  for (int32_t expert = 0; expert < c.num_experts; ++expert) {
    if (owner(c, expert) != dst) continue;
    more.list_offsets[dst][local++] = entries;
    for (int src = 0; src < c.ep_size; ++src) {
      for (int slot = 0; slot < r.recv_counters[dst][src]; ++slot) {
        for (int k = 0; k < c.top_k; ++k) {
          int32_t id;
          std::memcpy(&id, recv_row(r, ids, dst, src, slot) + 4 * k, 4);
          if (id != expert) continue;
          more.list_entries[dst][2 * entries] = src * r.max_tokens_per_rank + slot;
          more.list_entries[dst][2 * entries + 1] = k;
          ++entries;
        }
      }
    }
  }
  more.list_offsets[dst][local] = entries;
}

float widen(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Round to nearest, ties to even; every NaN becomes 0x7fff.
uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// ((0+1)+(2+3)) + ... over n terms, n a power of two.
float tree(const float* terms, int n) {
  return n == 1 ? terms[0] : tree(terms, n / 2) + tree(terms + n / 2, n / 2);
}

void combine(const assay_group_config& c, const assay_round& r, int src, int token) {
  const size_t picks = static_cast<size_t>(token) * static_cast<size_t>(c.top_k);
  const size_t hidden = static_cast<size_t>(c.hidden_size);
  uint16_t* out = static_cast<uint16_t*>(r.out[src]) + static_cast<size_t>(token) * hidden;
  const uint16_t* rows[8] = {};
  for (int k = 0; k < c.top_k; ++k) {
    const int dst = r.target_rank[src][picks + static_cast<size_t>(k)];
    if (dst < 0) continue;  // a hole: +0 is added in its place
    const size_t row = static_cast<size_t>(src) * static_cast<size_t>(r.max_tokens_per_rank) +
                       static_cast<size_t>(r.target_slot[src][picks + static_cast<size_t>(k)]);
    rows[k] = static_cast<const uint16_t*>(r.expert_out[dst]) + row * hidden;
  }
  for (size_t h = 0; h < hidden; ++h) {
    float terms[8] = {};
    for (int k = 0; k < c.top_k; ++k)
      if (rows[k] != nullptr) terms[k] = widen(rows[k][h]);
    out[h] = narrow(tree(terms, c.top_k));
  }
}

int create(const assay_group_config* config, void** group, assay_message* message) {
  if (config->struct_size < sizeof(assay_group_config))
    return say(message, ASSAY_FAILED, "a group config of %d bytes is too old",
               static_cast<int>(config->struct_size));
  if (config->num_local_ranks != config->ep_size)
    return say(message, ASSAY_UNSUPPORTED, "all ranks must be local, %d are",
               config->num_local_ranks);
  if (config->options != nullptr && config->options[0] != '\0')
    return say(message, ASSAY_UNSUPPORTED, "this subject has no options, got \"%s\"",
               config->options);
  if (config->top_k != 1 && config->top_k != 2 && config->top_k != 4 && config->top_k != 8)
    return say(message, ASSAY_UNSUPPORTED, "top_k is %d; this subject has 1, 2, 4 and 8",
               config->top_k);
  if (config->combine_dtype != ASSAY_DTYPE_BF16 || config->low_precision_combine != 0)
    return say(message, ASSAY_UNSUPPORTED, "%s", "only bf16 rows at full precision are served");
  if (std::strcmp(config->profile, "assay-oneside") != 0)
    return say(message, ASSAY_UNSUPPORTED, "profile %s is not assay-oneside", config->profile);
  *group = new Group{*config};
  return ASSAY_OK;
}

int run(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
        void* context, assay_message*) {
  const assay_group_config& c = static_cast<Group*>(group)->config;
  for (int32_t i = 0; i < num_rounds; ++i) {
    const assay_round& r = rounds[i];
    dispatch(c, r);
    if (c.more != nullptr) {
      const assay_round_more* more = c.more(c.more_context, i);
      gather_statistics(c, r, *more);
      for (int dst = 0; more->list_offsets != nullptr && dst < c.ep_size; ++dst)
        if (alive(r, dst)) list_slots(c, r, *more, dst);
    }
    for (int rank = 0; rank < c.ep_size; ++rank)
      if (alive(r, rank)) experts(context, i, rank);
    for (int src = 0; src < c.ep_size; ++src)
      for (int t = 0; alive(r, src) && t < r.num_tokens[src]; ++t) combine(c, r, src, t);
  }
  return ASSAY_OK;
}

void destroy(void* group) { delete static_cast<Group*>(group); }

const assay_subject kSubject = {
    ASSAY_SUBJECT_ABI_VERSION, sizeof(assay_subject), "example-plugin", create, run, destroy};

}  // namespace

extern "C" __attribute__((visibility("default"))) const assay_subject* assay_subject_v1(void) {
  return &kSubject;
}
