// Checks problems and reads their rows. Decides the sentences of SPEC ATT-2.1 and the zero fill of
// ATT-2.3.
#include "model/attention/problem.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "model/core/parameters.hpp"
#include "model/numerics/convert.hpp"

namespace assay::attention {
namespace {

Status check_request(const Problem& p, std::size_t index) {
  const Request& r = p.requests[index];
  const auto place = [&](const std::string& what) {
    return bad_input(fmt::format("request {}: {}", index, what));
  };
  if (r.q_len < 0 || r.kv_len < 0)
    return place(
        fmt::format("q_len is {} and kv_len {}; allowed are 0 and more", r.q_len, r.kv_len));
  if (r.q.available < r.q_len)
    return place(fmt::format("q_len is {}; q has {} rows", r.q_len, r.q.available));
  if (r.k.available < r.kv_len || r.v.available < r.kv_len)
    return place(fmt::format("kv_len is {}; k has {} rows and v {}", r.kv_len, r.k.available,
                             r.v.available));
  if (p.rope_dim > 0 && r.k_rope.available < r.kv_len)
    return place(fmt::format("kv_len is {}; k_rope has {} rows", r.kv_len, r.k_rope.available));
  if (std::isnan(r.threshold.value) || r.threshold.value < 0)
    return place(fmt::format("threshold is {}; allowed are 0 and more", r.threshold.value));
  const std::size_t cells = static_cast<std::size_t>(r.q_len) * static_cast<std::size_t>(r.kv_len);
  if (!p.custom_mask.empty() && p.custom_mask[index].size() != cells)
    return place(fmt::format("the custom mask has {} cells; q_len * kv_len is {}",
                             p.custom_mask[index].size(), cells));
  return Done{};
}

// Kernels hold these numbers in f32, multiply by them and, for some votes, by their reciprocals.
// Between these both are normal; beyond, what a kernel computes is not what its scale says.
constexpr float kScaleMin = 0x1p-126f, kScaleMax = 0x1p126f;

Status check_scale(const std::string& name, float value) {
  if (value >= kScaleMin && value <= kScaleMax) return Done{};
  return bad_input(fmt::format("{} is {}; allowed are {:.3g} to {:.3g} (2^-126 to 2^126)", name,
                               real_text(value), kScaleMin, kScaleMax));
}

// Each scale, and the products from left to right as kernels form them (SPEC ATT-5.1).
Status check_scales(const Problem& p) {
  constexpr float kLog2E = 1.44269504f;
  ASSAY_CHECK(check_scale("scale", p.scale));
  ASSAY_CHECK(check_scale("q_scale", p.q_scale));
  ASSAY_CHECK(check_scale("k_scale", p.k_scale));
  ASSAY_CHECK(check_scale("v_scale", p.v_scale));
  const auto terms = [&](const char* what) {
    return fmt::format("{} ({}, {}, {})", what, real_text(p.scale), real_text(p.q_scale),
                       real_text(p.k_scale));
  };
  const float queries = p.scale * p.q_scale, product = queries * p.k_scale;
  ASSAY_CHECK(check_scale(terms("scale * q_scale"), queries));
  ASSAY_CHECK(check_scale(terms("scale * q_scale * k_scale"), product));
  ASSAY_CHECK(check_scale(terms("scale * q_scale * k_scale * log2(e)"), product * kLog2E));
  if (p.softcap == 0) return Done{};
  if (!(p.softcap > 0))
    return bad_input(fmt::format("softcap is {}; allowed are 0 and positive numbers", p.softcap));
  ASSAY_CHECK(check_scale("softcap", p.softcap));
  return check_scale(
      terms(fmt::format("scale * q_scale * k_scale / softcap {}", real_text(p.softcap)).c_str()),
      product / p.softcap);
}

}  // namespace

Rows contiguous_rows(const void* tensor, std::int64_t first, std::int64_t available, int heads,
                     int dim, int element_bytes) {
  Rows rows;
  rows.row_stride = std::int64_t{heads} * dim;
  rows.head_stride = dim;
  rows.base = static_cast<const std::byte*>(tensor) + first * rows.row_stride * element_bytes;
  rows.available = available;
  return rows;
}

Rows paged_rows(const void* pages, const std::int32_t* block_table, std::int64_t available,
                int page_rows, int parts, int part, int heads, int dim, int element_bytes) {
  Rows rows =
      contiguous_rows(pages, std::int64_t{part} * page_rows, available, heads, dim, element_bytes);
  rows.block_table = block_table;
  rows.page_rows = page_rows;
  rows.page_stride = std::int64_t{parts} * page_rows * heads * dim;
  return rows;
}

bool Problem::sees(std::size_t request, std::int32_t row, std::int32_t key) const {
  const Request& r = requests[request];
  if (!visible_keys(mask_of(r), row, r.kv_len).contains(key)) return false;
  if (custom_mask.empty()) return true;
  const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(r.kv_len) +
                         static_cast<std::size_t>(key);
  return custom_mask[request][at] != 0;
}

std::int64_t Problem::first_row(std::size_t request) const {
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < request; ++i) rows += requests[i].q_len;
  return rows;
}

Status check(const Problem& p) {
  if (p.dtype != Dtype::kBf16 && p.dtype != Dtype::kF16 && p.dtype != Dtype::kF8E4m3)
    return bad_input(
        fmt::format("q, k and v are {}; allowed are BF16, F16 and F8_E4M3", dtype_name(p.dtype)));
  if (p.out_dtype != Dtype::kBf16 && p.out_dtype != Dtype::kF16)
    return bad_input(
        fmt::format("out_dtype is {}; allowed are BF16 and F16", dtype_name(p.out_dtype)));
  if (p.q_heads < 1 || p.kv_heads < 1 || p.q_heads % p.kv_heads != 0)
    return bad_input(
        fmt::format("{} query heads and {} key heads; allowed are positive numbers, "
                    "the first a multiple of the second",
                    p.q_heads, p.kv_heads));
  if (p.head_dim < 1 || p.v_dim < 1 || p.rope_dim < 0 || p.rope_dim >= p.head_dim)
    return bad_input(
        fmt::format("head_dim is {}, v_dim {}, rope_dim {}; allowed are positive "
                    "numbers, and a rope_dim below head_dim",
                    p.head_dim, p.v_dim, p.rope_dim));
  ASSAY_CHECK(check_scales(p));
  if ((p.mask == MaskKind::kWindow || p.mask == MaskKind::kChunked) && p.mask_size < 1)
    return bad_input(fmt::format("the mask's size is {}; allowed are 1 and more", p.mask_size));
  const auto heads = static_cast<std::size_t>(p.q_heads);
  if ((!p.sinks.empty() && p.sinks.size() != heads) ||
      (!p.alibi_slopes.empty() && p.alibi_slopes.size() != heads))
    return bad_input(fmt::format("{} sinks and {} slopes; allowed are none or {}, one a query head",
                                 p.sinks.size(), p.alibi_slopes.size(), p.q_heads));
  if (!p.custom_mask.empty() && p.custom_mask.size() != p.requests.size())
    return bad_input(
        fmt::format("{} custom masks for {} requests", p.custom_mask.size(), p.requests.size()));
  if (p.splits < 1) return bad_input(fmt::format("splits is {}; allowed are 1 and more", p.splits));
  for (std::size_t i = 0; i < p.requests.size(); ++i) ASSAY_CHECK(check_request(p, i));
  return Done{};
}

namespace {
void copy_row(const Rows& rows, std::int64_t head, std::int64_t i, int dim, int element_bytes,
              std::byte* out) {
  const std::size_t bytes = static_cast<std::size_t>(dim) * static_cast<std::size_t>(element_bytes);
  if (const std::byte* row = rows.row(head, i, element_bytes))
    std::memcpy(out, row, bytes);
  else
    std::memset(out, 0, bytes);  // SPEC ATT-2.3
}
}  // namespace

void copy_key(const Problem& p, const Request& r, int kv_head, std::int64_t i, std::byte* out) {
  const int bytes = p.element_bytes();
  const int main_dim = p.head_dim - p.rope_dim;
  copy_row(r.k, kv_head, i, main_dim, bytes, out);
  if (p.rope_dim > 0) copy_row(r.k_rope, kv_head, i, p.rope_dim, bytes, out + main_dim * bytes);
}
void copy_value(const Problem& p, const Request& r, int kv_head, std::int64_t i, std::byte* out) {
  copy_row(r.v, kv_head, i, p.v_dim, p.element_bytes(), out);
}
void copy_query(const Problem& p, const Request& r, int q_head, std::int64_t i, std::byte* out) {
  copy_row(r.q, q_head, i, p.head_dim, p.element_bytes(), out);
}

F32 element(Dtype dtype, const std::byte* bits) {
  std::uint16_t wide = 0;
  if (dtype == Dtype::kF8E4m3) return numerics::widen(E4m3{static_cast<std::uint8_t>(*bits)});
  std::memcpy(&wide, bits, sizeof wide);
  return dtype == Dtype::kF16 ? numerics::widen(F16{wide}) : numerics::widen(Bf16{wide});
}

}  // namespace assay::attention
