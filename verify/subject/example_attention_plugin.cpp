// A whole attention subject in plain C++, to start your own from: skip-softmax attention in f32
// without any code of Assay, only its C interface. Yours would copy to a GPU and launch a kernel.
//
//   c++ -std=c++20 -O2 -shared -fPIC -I<assay> example_attention_plugin.cpp -o libmine.so
//   assay verify --suite attention --subject plugin:libmine.so --profile modelopt-triton
//
// It follows the rule of modelopt-triton: units of 128 query rows of one head, tiles of 32 keys, a
// tile is skipped if for every row its maximum is below the running maximum plus log2(lambda), in
// log2 units; lambda is the factor over the request's own number of keys. That profile's grade is
// "decisions", so decisions must be equal and outputs within its bound of the truth. What it does
// not serve it declines with a reason, which is a skip and not a failure.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "verify/subject/attention_subject.h"

namespace {

constexpr int kUnitRows = 128;
constexpr int kTile = 32;
constexpr float kLog2E = 1.44269504f;

template <class... Values>
int say(assay_message* message, int code, const char* text, Values... values) {
  std::snprintf(message->text, sizeof message->text, text, values...);
  return code;
}

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

float widen(int32_t dtype, uint16_t code) {
  if (dtype == ASSAY_DTYPE_BF16) return from_bits(static_cast<uint32_t>(code) << 16);
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000) << 16;
  const uint32_t exponent = code >> 10 & 31, fraction = code & 1023;
  if (exponent == 31) return from_bits(sign | 0x7F800000 | fraction << 13);
  if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  return (sign != 0 ? -1.0f : 1.0f) * static_cast<float>(fraction) * 0x1p-24f;
}

// Round to nearest, ties to even; every NaN becomes 0x7fff.
uint16_t narrow(int32_t dtype, float value) {
  if (value != value) return 0x7FFF;
  const uint32_t bits = to_bits(value);
  if (dtype == ASSAY_DTYPE_BF16)
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float size = std::fabs(value);
  if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);
  if (size < 0x1p-14f) return static_cast<uint16_t>(sign | std::lrint(size * 0x1p24f));
  const uint32_t half = to_bits(size) - (112u << 23);
  return static_cast<uint16_t>(sign | (half + 0xFFF + ((half >> 13) & 1)) >> 13);
}

// Where row i of head j begins. Offsets are 64 bits: strides may exceed 2^31 elements.
const uint16_t* row_at(const assay_attention_rows& rows, int64_t i, int64_t head) {
  int64_t at = head * rows.head_stride;
  if (rows.block_table == nullptr)
    at += i * rows.row_stride;
  else
    at += rows.block_table[i / rows.page_rows] * rows.page_stride +
          i % rows.page_rows * rows.row_stride;
  return static_cast<const uint16_t*>(rows.base) + at;
}

bool sees(const assay_attention_call& c, const assay_attention_request& r, int row, int key) {
  if (r.custom_mask != nullptr && r.custom_mask[static_cast<int64_t>(row) * r.kv_len + key] == 0)
    return false;
  const int position = row + r.q_offset;
  if (c.mask == ASSAY_MASK_FULL) return true;
  if (key > position) return false;
  if (c.mask == ASSAY_MASK_WINDOW) return key > position - c.mask_size;
  if (c.mask == ASSAY_MASK_CHUNKED) return key / c.mask_size == position / c.mask_size;
  return true;
}

// What one query row has seen so far.
struct Row {
  std::vector<float> q, o;
  float max = -INFINITY, sum = 0;
  std::vector<float> scores;  // of the tile at hand, log2 units; -inf where hidden
  float tile_max = -INFINITY;
};

class Unit {
 public:
  Unit(assay_attention_call& call, int request, int head, int index)
      : c_(call), r_(call.requests[request]), request_(request), head_(head), index_(index) {
    const int first = index * kUnitRows;
    rows_.resize(static_cast<size_t>(std::min(kUnitRows, r_.q_len - first)));
    for (size_t i = 0; i < rows_.size(); ++i) {
      const uint16_t* q = row_at(r_.q, first + static_cast<int>(i), head);
      for (int d = 0; d < c_.head_dim; ++d) rows_[i].q.push_back(widen(c_.dtype, q[d]));
      rows_[i].o.resize(static_cast<size_t>(c_.v_dim));
    }
    const float lambda = r_.threshold_kind == ASSAY_THRESHOLD_FACTOR
                             ? r_.threshold / static_cast<float>(r_.kv_len)
                             : r_.threshold;
    log2_lambda_ = std::log2(lambda);
  }

  void run() {
    for (int tile = 0; tile * kTile < r_.kv_len; ++tile) {
      if (!any_sees(tile)) continue;
      c_.visited += 1;
      score(tile);
      const bool skip = r_.threshold_kind != ASSAY_THRESHOLD_OFF && all_agree();
      c_.skipped += skip;
      mark(tile, skip ? 2 : 1);
      if (!skip) keep(tile);
    }
  }

  void store(int64_t first_row) const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int64_t row = first_row + index_ * kUnitRows + static_cast<int64_t>(i);
      uint16_t* out = static_cast<uint16_t*>(c_.out) + (row * c_.q_heads + head_) * c_.v_dim;
      for (size_t d = 0; d < rows_[i].o.size(); ++d)
        out[d] = narrow(c_.out_dtype, rows_[i].sum == 0 ? 0 : rows_[i].o[d] / rows_[i].sum);
    }
  }

 private:
  int key_end(int tile) const { return std::min((tile + 1) * kTile, r_.kv_len); }

  bool any_sees(int tile) const {
    for (size_t i = 0; i < rows_.size(); ++i)
      for (int key = tile * kTile; key < key_end(tile); ++key)
        if (mask_shows(index_ * kUnitRows + static_cast<int>(i), key)) return true;
    return false;
  }
  // Which tiles are visited follows from the mask's kind; custom masks only hide more.
  bool mask_shows(int row, int key) const {
    assay_attention_request plain = r_;
    plain.custom_mask = nullptr;
    return sees(c_, plain, row, key);
  }

  void score(int tile) {
    const int kv_head = head_ / (c_.q_heads / c_.kv_heads);
    for (size_t i = 0; i < rows_.size(); ++i) {
      Row& row = rows_[i];
      row.scores.assign(kTile, -INFINITY);
      row.tile_max = -INFINITY;
      for (int key = tile * kTile; key < key_end(tile); ++key) {
        if (!sees(c_, r_, index_ * kUnitRows + static_cast<int>(i), key)) continue;
        const uint16_t* k = row_at(r_.k, key, kv_head);
        float dot = 0;
        for (size_t d = 0; d < row.q.size(); ++d) dot += row.q[d] * widen(c_.dtype, k[d]);
        const float s = dot * c_.scale * kLog2E;
        row.scores[static_cast<size_t>(key - tile * kTile)] = s;
        row.tile_max = std::fmax(row.tile_max, s);
      }
    }
  }

  bool all_agree() const {
    bool all = true;
    for (const Row& row : rows_) all = all && row.tile_max < row.max + log2_lambda_;
    return all;
  }

  void keep(int tile) {
    const int kv_head = head_ / (c_.q_heads / c_.kv_heads);
    for (Row& row : rows_) {
      const float max = std::fmax(row.max, row.tile_max);
      if (max == -INFINITY) continue;  // has seen nothing yet
      const float correction = std::exp2(row.max - max);
      row.max = max;
      row.sum *= correction;
      for (float& o : row.o) o *= correction;
      for (int key = tile * kTile; key < key_end(tile); ++key) {
        const float p = std::exp2(row.scores[static_cast<size_t>(key - tile * kTile)] - max);
        if (p == 0) continue;  // hidden: its value may be anything
        const uint16_t* v = row_at(r_.v, key, kv_head);
        row.sum += p;
        for (size_t d = 0; d < row.o.size(); ++d) row.o[d] += p * widen(c_.dtype, v[d]);
      }
    }
  }

  void mark(int tile, uint8_t decision) const {
    const int32_t* shape = c_.decision_shape;
    const int64_t unit = (static_cast<int64_t>(request_) * shape[1] + head_) * shape[2] + index_;
    if (tile < shape[3]) c_.decision[unit * shape[3] + tile] = decision;
  }

  assay_attention_call& c_;
  const assay_attention_request& r_;
  int request_, head_, index_;
  std::vector<Row> rows_;
  float log2_lambda_ = 0;
};

int run(assay_attention_call* call, assay_message* message) {
  assay_attention_call& c = *call;
  if (c.struct_size < sizeof c)
    return say(message, ASSAY_FAILED, "a call of %d bytes is too old",
               static_cast<int>(c.struct_size));
  if (c.dtype != ASSAY_DTYPE_BF16 && c.dtype != ASSAY_DTYPE_F16)
    return say(message, ASSAY_UNSUPPORTED, "%s", "only bf16 and f16 are served");
  if (c.softcap != 0 || c.sinks != nullptr || c.alibi_slopes != nullptr || c.lse != nullptr)
    return say(message, ASSAY_UNSUPPORTED, "%s", "no soft cap, sinks, slopes or LSE");
  for (int i = 0; i < c.num_requests; ++i)
    if (!(c.requests[i].threshold >= 0))
      return say(message, ASSAY_FAILED, "request %d: threshold is %g; allowed are 0 and more", i,
                 static_cast<double>(c.requests[i].threshold));
  const int32_t* shape = c.decision_shape;
  std::memset(c.decision, 0,
              static_cast<size_t>(shape[0]) * static_cast<size_t>(shape[1]) *
                  static_cast<size_t>(shape[2]) * static_cast<size_t>(shape[3]));
  c.decision_written = 1;
  c.visited = c.skipped = 0;
  int64_t first_row = 0;
  for (int i = 0; i < c.num_requests; ++i) {
    for (int head = 0; head < c.q_heads; ++head)
      for (int index = 0; index * kUnitRows < c.requests[i].q_len; ++index) {
        Unit unit(c, i, head, index);
        unit.run();
        unit.store(first_row);
      }
    first_row += c.requests[i].q_len;
  }
  return ASSAY_OK;
}

const assay_attention_subject kSubject = {
    ASSAY_ATTENTION_ABI_VERSION, sizeof(assay_attention_subject), "example-attention-plugin", run};

}  // namespace

extern "C" __attribute__((visibility("default"))) const assay_attention_subject*
assay_attention_subject_v1(void) {
  return &kSubject;
}
