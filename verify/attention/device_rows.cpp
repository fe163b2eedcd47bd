// Where the rows of a problem lie in a call's block: as they lie in the problem if a call can say
// that, else copied together. See device_call.hpp; decides SPEC VER-25.1.
#include <algorithm>
#include <cstring>
#include <limits>

#include "verify/attention/device_call.hpp"

namespace assay::verify {

using attention::Request;
using attention::Rows;
using cuda::AttentionRows;

namespace {

constexpr std::int32_t kNoPage = 1 << 30;  // an entry that nobody needs names no page

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

// The rows of all requests in one tensor: packed, each request's first row in `first`; or with
// `rows` rows for each request.
struct DeviceCall::Tensor {
  Rows strides;  // base: of the tensor's row 0, in host memory
  bool padded = false;
  std::int64_t rows = 0;            // of the row axis: of all requests, or of each
  std::int64_t existing = 0;        // rows behind base that can be read
  std::vector<std::int64_t> first;  // [requests], counted over the whole tensor
  bool one_tensor = true;           // false: rows must be copied together first
};

// Rows that follow each other in one tensor are left there, with whatever lies between them.
DeviceCall::Tensor DeviceCall::tensor_of(Rows Request::*rows, bool keys, int heads) const {
  const int bytes = problem_->element_bytes();
  const std::size_t requests = problem_->requests.size();
  Tensor t;
  t.first.assign(requests, 0);
  const Rows* any = nullptr;
  for (std::size_t i = 0; i < requests; ++i) {
    const Rows& r = problem_->requests[i].*rows;
    if (length(i, keys) == 0) continue;
    if (any == nullptr || r.base < any->base) any = &r;
    if (r.block_table != nullptr) t.one_tensor = false;
  }
  t.strides.row_stride = std::int64_t{heads} * problem_->head_dim;
  t.strides.head_stride = problem_->head_dim;
  if (any == nullptr) return t;
  t.strides = *any;
  std::int64_t end = 0;  // of the request before
  for (std::size_t i = 0; i < requests; ++i) {
    const Rows& r = problem_->requests[i].*rows;
    t.first[i] = end;
    if (length(i, keys) == 0) continue;
    const std::int64_t step = t.strides.row_stride * bytes;
    const std::int64_t distance = r.base - t.strides.base;
    t.one_tensor &= r.row_stride == t.strides.row_stride &&
                    r.head_stride == t.strides.head_stride && step > 0 && distance % step == 0 &&
                    distance / step >= end;
    if (!t.one_tensor) return t;
    t.first[i] = distance / step;
    end = t.first[i] + length(i, keys);
    t.existing = std::max(t.existing, t.first[i] + r.available);
  }
  t.rows = t.existing;
  t.one_tensor = t.rows <= std::numeric_limits<std::int32_t>::max();
  // As many rows for each request: the other way to say it.
  if (requests < 2 || length(0, keys) == 0 || length(1, keys) == 0) return t;
  const std::int64_t each = t.first[1];
  bool padded = true;
  for (std::size_t i = 0; i < requests; ++i)
    padded &= length(i, keys) <= each &&
              (length(i, keys) == 0 || t.first[i] == static_cast<std::int64_t>(i) * each);
  if (!padded) return t;
  t.padded = true;
  t.rows = each;
  for (std::size_t i = 0; i < requests; ++i) t.first[i] = static_cast<std::int64_t>(i) * each;
  return t;
}

// One request behind the other, densely.
void DeviceCall::repack(Tensor& t, Rows Request::*rows, bool keys, int heads) {
  const int element = problem_->element_bytes();
  const std::size_t head_bytes = size(problem_->head_dim) * size(element);
  t = Tensor{};
  for (std::size_t i = 0; i < problem_->requests.size(); ++i) {
    t.first.push_back(t.rows);
    t.rows += length(i, keys);
  }
  std::vector<std::byte>& own = owned_.emplace_back(size(t.rows) * size(heads) * head_bytes);
  std::byte* to = own.data();
  for (std::size_t i = 0; i < problem_->requests.size(); ++i)
    for (std::int32_t row = 0; row < length(i, keys); ++row)
      for (int head = 0; head < heads; ++head, to += head_bytes)
        std::memcpy(to, (problem_->requests[i].*rows).row(head, row, element), head_bytes);
  t.existing = t.rows;
  t.strides = attention::contiguous_rows(own.data(), 0, t.rows, heads, problem_->head_dim, element);
}

void DeviceCall::copy_rows(std::size_t to, const std::byte* from, std::int64_t rows,
                           const Rows& strides, int heads) {
  if (rows == 0) return;
  const std::size_t element = size(problem_->element_bytes());
  const bool together = heads == 1 || strides.head_stride == problem_->head_dim;
  const std::size_t pitch = size(strides.row_stride) * element;
  const std::size_t width = size(problem_->head_dim) * size(together ? heads : 1) * element;
  for (int head = 0; head < (together ? 1 : heads); ++head) {
    const std::size_t offset = size(head * strides.head_stride) * element;
    if (pitch == width || rows == 1)
      copies_.push_back({to + offset, from + offset, width * size(rows), 1, 0, 0});
    else
      copies_.push_back({to + offset, from + offset, width, size(rows), pitch, pitch});
  }
}

AttentionRows DeviceCall::put(const Tensor& t, int heads, Span& span) {
  AttentionRows rows;
  rows.rows = t.rows;
  rows.row_stride = t.strides.row_stride;
  rows.head_stride = t.strides.head_stride;
  rows.request_stride = t.rows * t.strides.row_stride;
  const std::int64_t all =
      t.padded ? t.rows * static_cast<std::int64_t>(problem_->requests.size()) : t.rows;
  if (all == 0) return rows;
  const std::int64_t elements =
      (all - 1) * rows.row_stride + (heads - 1) * rows.head_stride + problem_->head_dim;
  span.bytes = size(elements) * size(problem_->element_bytes());
  span.at = reserve(span.bytes);
  copy_rows(span.at, t.strides.base, std::min(all, t.existing), t.strides, heads);
  return rows;
}

void DeviceCall::place_queries() {
  Tensor t = tensor_of(&Request::q, false, problem_->q_heads);
  if (!t.one_tensor) repack(t, &Request::q, false, problem_->q_heads);
  call_.q = put(t, problem_->q_heads, q_);
  first_out_ = t.first;
  if (t.padded) return;
  std::vector<std::int32_t> first(t.first.begin(), t.first.end());
  first.push_back(static_cast<std::int32_t>(t.rows));
  first_q_ = put_array(first);
}

// Keys and values share lengths and places, so both are as they lie, or neither.
void DeviceCall::place_keys() {
  const int heads = problem_->kv_heads;
  Tensor k = tensor_of(&Request::k, true, heads), v = tensor_of(&Request::v, true, heads);
  if (!k.one_tensor || !v.one_tensor || k.padded != v.padded || k.first != v.first ||
      (k.padded && k.rows != v.rows)) {
    repack(k, &Request::k, true, heads);
    repack(v, &Request::v, true, heads);
  }
  k.rows = v.rows = std::max(k.rows, v.rows);
  call_.k = put(k, heads, k_);
  call_.v = put(v, heads, v_);
  if (k.padded) return;
  std::vector<std::int32_t> first(k.first.begin(), k.first.end());
  first.push_back(static_cast<std::int32_t>(k.rows));
  first_kv_ = put_array(first);
}

// Whether keys and values lie in one pool of pages each, by one table.
bool DeviceCall::pages_agree() const {
  const Request* any = nullptr;
  for (const Request& r : problem_->requests) {
    if (r.kv_len == 0) continue;
    if (r.k.block_table == nullptr || r.v.block_table == nullptr) return false;
    if (any == nullptr) any = &r;
    for (const auto& [rows, first] : {std::pair{&r.k, &any->k}, std::pair{&r.v, &any->v}}) {
      if (rows->base != first->base || rows->row_stride != first->row_stride ||
          rows->head_stride != first->head_stride || rows->page_stride != first->page_stride ||
          rows->page_rows != any->k.page_rows)
        return false;
    }
    const std::int64_t entries = (r.kv_len + r.k.page_rows - 1) / r.k.page_rows;
    if (!std::equal(r.k.block_table, r.k.block_table + entries, r.v.block_table)) return false;
  }
  return any != nullptr;
}

// Pages of nobody hold kStrange, and entries behind a request's last name no page.
void DeviceCall::place_pages() {
  const Request* any = nullptr;
  std::int64_t stride = 1, pages = 1;
  const auto entries_of = [](const Request& r) {
    return r.kv_len == 0 ? 0 : (r.kv_len + r.k.page_rows - 1) / r.k.page_rows;
  };
  for (const Request& r : problem_->requests) {
    if (r.kv_len == 0) continue;
    any = &r;
    stride = std::max(stride, entries_of(r) + 1);
    for (std::int64_t i = 0; i < entries_of(r); ++i)
      pages = std::max(pages, std::int64_t{r.k.block_table[i]} + 1);
  }
  const std::size_t element = size(problem_->element_bytes());
  const int heads = problem_->kv_heads;
  const auto put_pool = [&](const Rows& rows, Span& span, AttentionRows& out) {
    out.rows = rows.page_rows;
    out.row_stride = rows.row_stride;
    out.head_stride = rows.head_stride;
    out.request_stride = rows.page_stride;
    span.bytes = size((pages - 1) * rows.page_stride + (rows.page_rows - 1) * rows.row_stride +
                      (heads - 1) * rows.head_stride + problem_->head_dim) *
                 element;
    span.at = reserve(span.bytes);
  };
  put_pool(any->k, k_, call_.k);
  put_pool(any->v, v_, call_.v);
  std::vector<std::int32_t> table(problem_->requests.size() * size(stride), kNoPage);
  for (std::size_t i = 0; i < problem_->requests.size(); ++i) {
    const Request& r = problem_->requests[i];
    for (std::int64_t e = 0; e < entries_of(r); ++e) {
      const std::int32_t page = r.k.block_table[e];
      table[i * size(stride) + size(e)] = page;
      // Rows of the last page that nobody uses exist as far as `available` says.
      const std::int64_t rows = std::min(r.k.page_rows, r.k.available - e * r.k.page_rows);
      copy_rows(k_.at + size(page * r.k.page_stride) * element,
                r.k.row(0, e * r.k.page_rows, static_cast<int>(element)), rows, r.k, heads);
      copy_rows(v_.at + size(page * r.v.page_stride) * element,
                r.v.row(0, e * r.v.page_rows, static_cast<int>(element)), rows, r.v, heads);
    }
  }
  table_ = put_array(table);
  call_.pages.table_stride = stride;
  call_.pages.num_pages = pages;
}

}  // namespace assay::verify
