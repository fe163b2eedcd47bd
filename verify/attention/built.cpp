// The memory of attention cases: tensors, data, and the same rows laid out in other ways. Decides
// SPEC VER-22.2.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/core/prng.hpp"
#include "model/numerics/convert.hpp"
#include "verify/attention/cases.hpp"

namespace assay::verify {
namespace {

using attention::MaskKind;
using attention::Request;
using attention::Rows;

std::uint32_t encode(Dtype dtype, float x) {
  const F32 f = numerics::from_float(x);
  if (dtype == Dtype::kF8E4m3) return numerics::cvt_rn_satfinite_e4m3(f).bits;
  return dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(f).bits
                              : numerics::cvt_rn_bf16_f32(f).bits;
}

void store_code(std::byte* to, std::size_t bytes, std::uint32_t code) {
  for (std::size_t b = 0; b < bytes; ++b) to[b] = static_cast<std::byte>(code >> (8 * b) & 0xFF);
}

void fill_codes(Tensor& tensor, std::uint32_t code) {
  const std::size_t size = tensor.element_bytes();
  for (std::size_t at = 0; at < tensor.bytes.size(); at += size)
    store_code(&tensor.bytes[at], size, code);
}

void copy_rows(const Rows& from, const Tensor& shape, std::int32_t count, Tensor& to,
               std::int64_t first) {
  for (std::int32_t i = 0; i < count; ++i) {
    for (std::int32_t h = 0; h < shape.heads; ++h) {
      const std::size_t bytes = static_cast<std::size_t>(shape.dim) * shape.element_bytes();
      std::memcpy(to.row(first + i) + static_cast<std::size_t>(h) * bytes,
                  from.row(h, i, static_cast<int>(shape.element_bytes())), bytes);
    }
  }
}

// Everything of `from` but its rows, for other lengths or places of them.
BuiltPtr empty_copy(const Built& from, std::span<const std::size_t> requests) {
  auto to = std::make_unique<Built>();
  to->c = from.c;
  to->c.page = 0;
  to->sinks = from.sinks;
  to->problem = from.problem;
  to->c.q.clear();
  to->c.kv.clear();
  to->problem.requests.clear();
  for (const std::size_t i : requests) {
    to->c.q.push_back(from.problem.requests[i].q_len);
    to->c.kv.push_back(from.problem.requests[i].kv_len);
    to->problem.requests.push_back(from.problem.requests[i]);
    if (!from.custom.empty()) to->custom.push_back(from.custom[i]);
  }
  return to;
}

std::vector<std::size_t> all_requests(const Built& built) {
  std::vector<std::size_t> list(built.problem.requests.size());
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = i;
  return list;
}

// Contiguous tensors with `gap` rows of `code` behind every request.
BuiltPtr lay_out(const Built& from, std::span<const std::size_t> requests, std::int32_t gap,
                 std::uint32_t code) {
  BuiltPtr to = empty_copy(from, requests);
  std::int64_t rows_q = 0, rows_kv = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    to->first_q.push_back(rows_q);
    to->first_kv.push_back(rows_kv);
    rows_q += to->c.q[i] + gap;
    rows_kv += to->c.kv[i] + gap;
  }
  to->q = Tensor(from.q.dtype, rows_q, from.q.heads, from.q.dim);
  to->k = Tensor(from.k.dtype, rows_kv, from.k.heads, from.k.dim);
  to->v = Tensor(from.v.dtype, rows_kv, from.v.heads, from.v.dim);
  for (Tensor* tensor : {&to->q, &to->k, &to->v}) fill_codes(*tensor, code);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& r = from.problem.requests[requests[i]];
    copy_rows(r.q, from.q, r.q_len, to->q, to->first_q[i]);
    copy_rows(r.k, from.k, r.kv_len, to->k, to->first_kv[i]);
    copy_rows(r.v, from.v, r.kv_len, to->v, to->first_kv[i]);
  }
  to->point_problem();
  return to;
}

void make_custom(Built& b, Dice& dice) {
  for (std::size_t i = 0; i < b.c.q.size(); ++i) {
    std::vector<std::uint8_t>& cells = b.custom.emplace_back(static_cast<std::size_t>(b.c.q[i]) *
                                                             static_cast<std::size_t>(b.c.kv[i]));
    for (std::uint8_t& cell : cells) cell = dice.below(3) != 0;
  }
}

void fill_data(Built& b, Dice& dice) {
  const AttentionCase& c = b.c;
  for (std::int64_t i = 0; i < b.q.rows; ++i)
    for (std::int32_t h = 0; h < c.q_heads; ++h)
      for (std::int32_t d = 0; d < c.dim; ++d) {
        const float x = dice.normal() * c.spread;
        b.q.set(i, h, d, d == 0 && c.contrast > 0 ? 4.0f : x);
      }
  for (std::size_t request = 0; request < c.kv.size(); ++request)
    for (std::int32_t i = 0; i < c.kv[request]; ++i)
      for (std::int32_t h = 0; h < c.kv_heads; ++h) {
        const std::int64_t row = b.first_kv[request] + i;
        for (std::int32_t d = 0; d < c.dim; ++d) {
          const float x = dice.normal();
          const bool low = i / c.block % 2 == 1;
          b.k.set(row, h, d,
                  d != 0 || c.contrast <= 0 ? x
                  : low                     ? -c.contrast / 4 / b.problem.scale
                                            : 0.0f);
        }
        for (std::int32_t d = 0; d < c.v_dim; ++d) b.v.set(row, h, d, dice.normal());
      }
}

}  // namespace

std::uint64_t Dice::next() { return splitmix64(state_); }

// Four uniform numbers of 16 bits: variance 4 / 12, so sqrt(3) of their sum.
float Dice::normal() {
  const std::uint64_t bits = next();
  std::int32_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<std::int32_t>(bits >> (16 * i) & 0xFFFF);
  return static_cast<float>(sum - 2 * 65535) * (1.7320508f / 65536.0f);
}

Tensor::Tensor(Dtype type, std::int64_t count, std::int32_t heads_in, std::int32_t dim_in)
    : dtype(type), rows(count), heads(heads_in), dim(dim_in) {
  bytes.assign(static_cast<std::size_t>(rows) * row_bytes(), std::byte{0});
}

void Tensor::set(std::int64_t row_index, std::int32_t head, std::int32_t column, float value) {
  const std::size_t at = static_cast<std::size_t>(head) * static_cast<std::size_t>(dim) +
                         static_cast<std::size_t>(column);
  store_code(row(row_index) + at * element_bytes(), element_bytes(), encode(dtype, value));
}

float Tensor::get(std::int64_t row_index, std::int32_t head, std::int32_t column) const {
  const std::size_t at = static_cast<std::size_t>(row_index) * row_bytes() +
                         (static_cast<std::size_t>(head) * static_cast<std::size_t>(dim) +
                          static_cast<std::size_t>(column)) *
                             element_bytes();
  return numerics::to_float(attention::element(dtype, &bytes[at]));
}

std::int64_t Built::kv_row(std::size_t request, std::int32_t i) const {
  if (tables.empty()) return first_kv[request] + i;
  return std::int64_t{tables[request][static_cast<std::size_t>(i / c.page)]} * c.page + i % c.page;
}

void Built::point_problem() {
  attention::Problem& p = problem;
  p.sinks = sinks;
  p.custom_mask.clear();
  for (const auto& cells : custom) p.custom_mask.push_back(cells);
  const int bytes = static_cast<int>(q.element_bytes());
  for (std::size_t i = 0; i < p.requests.size(); ++i) {
    Request& r = p.requests[i];
    r.q = attention::contiguous_rows(q.bytes.data(), first_q[i], q.rows - first_q[i], q.heads,
                                     q.dim, bytes);
    if (!tables.empty()) {
      const std::int64_t available = std::int64_t{c.page} * static_cast<int>(tables[i].size());
      const auto pages = [&](const Tensor& t) {
        return attention::paged_rows(t.bytes.data(), tables[i].data(), available, c.page, 1, 0,
                                     t.heads, t.dim, bytes);
      };
      r.k = pages(k);
      r.v = pages(v);
      continue;
    }
    const auto rows = [&](const Tensor& t) {
      return attention::contiguous_rows(t.bytes.data(), first_kv[i], t.rows - first_kv[i], t.heads,
                                        t.dim, bytes);
    };
    r.k = rows(k);
    r.v = rows(v);
  }
}

BuiltPtr build(const AttentionCase& c) {
  auto b = std::make_unique<Built>();
  b->c = c;
  b->c.page = 0;
  Dice dice(c.seed);
  std::int64_t rows_q = 0, rows_kv = 0;
  attention::Problem& p = b->problem;
  p.dtype = c.dtype;
  p.out_dtype = c.dtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBf16;
  p.q_heads = c.q_heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = c.dim;
  p.v_dim = c.v_dim;
  p.mask = c.mask;
  p.mask_size = c.mask == MaskKind::kWindow || c.mask == MaskKind::kChunked ? c.mask_size : 0;
  p.scale = c.scale > 0 ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.dim));
  p.v_scale = c.v_scale;
  p.splits = c.splits;
  for (std::size_t i = 0; i < c.q.size(); ++i) {
    b->first_q.push_back(rows_q);
    b->first_kv.push_back(rows_kv);
    rows_q += c.q[i];
    rows_kv += c.kv[i];
    Request r;
    r.q_len = c.q[i];
    r.kv_len = c.kv[i];
    r.q_offset = c.top_left ? 0 : r.kv_len - r.q_len;
    r.threshold = c.threshold;
    p.requests.push_back(r);
  }
  b->q = Tensor(c.dtype, rows_q, c.q_heads, c.dim);
  b->k = Tensor(c.dtype, rows_kv, c.kv_heads, c.dim);
  b->v = Tensor(c.dtype, rows_kv, c.kv_heads, c.v_dim);
  fill_data(*b, dice);
  if (c.custom) make_custom(*b, dice);
  b->point_problem();
  return c.page > 0 ? in_pages(*b, c.page, 0) : std::move(b);
}

BuiltPtr select(const Built& from, std::span<const std::size_t> requests) {
  return lay_out(from, requests, 0, 0);
}

BuiltPtr with_gaps(const Built& from, std::int32_t gap, std::uint32_t code) {
  return lay_out(from, all_requests(from), gap, code);
}

BuiltPtr in_pages(const Built& from, std::int32_t page, std::uint32_t code) {
  const std::vector<std::size_t> requests = all_requests(from);
  BuiltPtr to = empty_copy(from, requests);
  to->c.page = page;
  to->q = from.q;
  to->first_q = from.first_q;
  std::int32_t count = 0;
  for (const Request& r : from.problem.requests) count += (r.kv_len + page - 1) / page;
  // Every second page is somebody else's; ours are shuffled.
  const std::int32_t pool = 2 * count + 1;
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < count; ++i) order.push_back(2 * i + 1);
  Dice dice(from.c.seed ^ 0x9A9E5);
  for (std::int32_t i = count - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(dice.below(i + 1))]);
  to->k = Tensor(from.k.dtype, std::int64_t{pool} * page, from.k.heads, from.k.dim);
  to->v = Tensor(from.v.dtype, std::int64_t{pool} * page, from.v.heads, from.v.dim);
  fill_codes(to->k, code);
  fill_codes(to->v, code);
  std::size_t next = 0;
  for (const std::size_t i : requests) {
    const Request& r = from.problem.requests[i];
    std::vector<std::int32_t>& table = to->tables.emplace_back();
    for (std::int32_t row = 0; row < r.kv_len; row += page) table.push_back(order[next++]);
    for (std::int32_t row = 0; row < r.kv_len; ++row) {
      Rows k = r.k, v = r.v;
      for (std::int32_t h = 0; h < from.k.heads; ++h) {
        const auto copy = [&](const Rows& rows, Tensor& tensor) {
          const std::size_t bytes = static_cast<std::size_t>(tensor.dim) * tensor.element_bytes();
          std::memcpy(tensor.row(to->kv_row(i, row)) + static_cast<std::size_t>(h) * bytes,
                      rows.row(h, row, static_cast<int>(tensor.element_bytes())), bytes);
        };
        copy(k, to->k);
        copy(v, to->v);
      }
    }
  }
  to->point_problem();
  return to;
}

std::uint32_t nan_code(Dtype dtype) { return dtype == Dtype::kF8E4m3 ? 0x7F : 0x7FFF; }
std::uint32_t infinity_code(Dtype dtype) {
  return dtype == Dtype::kF8E4m3 ? 0x7F : dtype == Dtype::kF16 ? 0x7C00 : 0x7F80;
}

}  // namespace assay::verify
