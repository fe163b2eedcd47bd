// Where the rows of queries, keys and values lie: padded, packed, in pages, or as MLA's two parts.
// See file_input.hpp. Sizes are checked before anything is copied.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "model/attention/file_input.hpp"

namespace assay::attention {

namespace {

constexpr std::uint64_t kRowsMax = kFileRowsMax, kCountMax = kFileCountMax;

struct Limit {
  const char* what;
  std::uint64_t value, max;
};
Status within(const TensorView& view, std::initializer_list<Limit> limits) {
  for (const Limit& limit : limits) {
    if (limit.value > limit.max)
      return bad_input(fmt::format("tensor {} has {} {}; allowed are up to {}", view.name,
                                   limit.value, limit.what, limit.max));
  }
  return Done{};
}

// Where the rows of one side (queries, or keys) lie: per request its length, its first row and how
// many rows there are from that one on.
struct Lengths {
  std::vector<std::int32_t> length;
  std::vector<std::uint64_t> first;
  std::vector<std::uint64_t> available;
};

class RowsReader {
 public:
  RowsReader(const TensorFile& file, FileValues values, FileInput& input)
      : file_(file), values_(values), input_(input), p_(input.problem) {}

  Status read() {
    ASSAY_CHECK(read_queries());
    return read_keys();
  }

 private:
  std::size_t requests() const { return p_.requests.size(); }

  // I32 [b + 1] from 0, ascending, up to `total` rows.
  Expected<Lengths> read_cu_seqlens(const std::string& name, const TensorView& rows) {
    ASSAY_TRY(const TensorView cu, file_.tensor(name));
    ASSAY_CHECK(cu.expect({Dtype::kI32}, {{"request + 1"}}));
    ASSAY_CHECK(within(cu, {{"entries", cu.shape[0], kCountMax + 1}}));
    if (cu.shape[0] == 0)
      return bad_input(
          fmt::format("tensor {} is empty; it has one entry more than requests", name));
    const Elements<std::int32_t> at(cu.bytes);
    if (at[0] != 0) return bad_input(fmt::format("{}[0] is {}; allowed is 0", name, at[0]));
    Lengths lengths;
    const std::uint64_t total = rows.shape[0];
    for (std::size_t i = 1; i < at.size(); ++i) {
      if (at[i] < at[i - 1] || static_cast<std::uint64_t>(at[i]) > total)
        return bad_input(
            fmt::format("{}[{}] is {}; allowed are {} (the entry before it) to {}, the "
                        "rows of {}",
                        name, i, at[i], at[i - 1], total, rows.name));
      lengths.length.push_back(at[i] - at[i - 1]);
      lengths.first.push_back(static_cast<std::uint64_t>(at[i - 1]));
      lengths.available.push_back(total - lengths.first.back());
    }
    return lengths;
  }

  // I32 [b], 0 to `max`; without the tensor all are `max`.
  Expected<std::vector<std::int32_t>> read_lengths(const std::string& name, std::uint64_t b,
                                                   std::uint64_t max) {
    if (!file_.has(name)) return std::vector<std::int32_t>(b, static_cast<std::int32_t>(max));
    ASSAY_TRY(const TensorView view, file_.tensor(name));
    ASSAY_CHECK(view.expect({Dtype::kI32}, {{"request", b}}));
    const Elements<std::int32_t> at(view.bytes);
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (at[i] < 0 || static_cast<std::uint64_t>(at[i]) > max)
        return bad_input(fmt::format("{}[{}] is {}; allowed are 0 to {}", name, i, at[i], max));
    }
    return at.copy();
  }

  // Rows of [b, l, ...] or, with cu_seqlens, of [total, ...].
  Expected<Lengths> read_layout(const TensorView& rows, const std::string& side, bool packed) {
    const std::string cu = "cu_seqlens_" + side, length = side + "_len";
    if (packed) {
      if (file_.has(length))
        return bad_input(fmt::format("{} and {} are both there; give one of them", cu, length));
      ASSAY_CHECK(within(rows, {{"rows", rows.shape[0], kRowsMax}}));
      return read_cu_seqlens(cu, rows);
    }
    ASSAY_CHECK(within(rows, {{"requests", rows.shape[0], kCountMax},
                              {"rows a request", rows.shape[1], kRowsMax}}));
    Lengths lengths;
    ASSAY_TRY(lengths.length, read_lengths(length, rows.shape[0], rows.shape[1]));
    for (std::uint64_t i = 0; i < rows.shape[0]; ++i) {
      lengths.first.push_back(i * rows.shape[1]);
      lengths.available.push_back((rows.shape[0] - i) * rows.shape[1]);
    }
    return lengths;
  }

  Status same_requests(const std::string& what, std::size_t count) const {
    if (count == requests()) return Done{};
    return bad_input(fmt::format("{} is for {} requests; q is for {}", what, count, requests()));
  }

  // Three axes are a packed batch, and those need cu_seqlens: told before a missing axis is, and
  // behind a type that is none of ours.
  Status check_axes(const TensorView& rows, const std::string& cu) const {
    const std::size_t wanted = file_.has(cu) ? 3 : 4;
    const bool known =
        rows.dtype == Dtype::kBf16 || rows.dtype == Dtype::kF16 || rows.dtype == Dtype::kF8E4m3;
    if (rows.shape.size() == wanted || !known) return Done{};
    return bad_input(
        fmt::format("tensor {} has shape {}, and there is {}tensor {}; allowed are [request, row, "
                    "head, element] "
                    "without it and [row, head, element] with it",
                    rows.name, shape_text(rows.shape), file_.has(cu) ? "a " : "no ", cu));
  }

  Status read_queries() {
    ASSAY_TRY(const TensorView q, file_.tensor("q"));
    const bool packed = file_.has("cu_seqlens_q");
    ASSAY_CHECK(check_axes(q, "cu_seqlens_q"));
    if (packed)
      ASSAY_CHECK(
          q.expect({Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3}, {{"row"}, {"head"}, {"element"}}));
    else
      ASSAY_CHECK(q.expect({Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3},
                           {{"request"}, {"row"}, {"head"}, {"element"}}));
    const std::uint64_t heads = q.shape[q.shape.size() - 2], dim = q.shape.back();
    ASSAY_CHECK(within(q, {{"heads", heads, kCountMax}, {"elements a row", dim, kCountMax}}));
    ASSAY_TRY(const Lengths rows, read_layout(q, "q", packed));
    p_.dtype = q.dtype;
    p_.q_heads = static_cast<int>(heads);
    p_.head_dim = static_cast<int>(dim);
    input_.rows_shape.assign(q.shape.begin(), q.shape.end() - 2);
    input_.rows_axes =
        packed ? std::vector<std::string>{"row"} : std::vector<std::string>{"request", "row"};
    input_.first_row = rows.first;
    p_.requests.resize(rows.length.size());
    for (std::size_t i = 0; i < requests(); ++i) {
      Request& r = p_.requests[i];
      r.q_len = rows.length[i];
      if (static_cast<std::uint64_t>(r.q_len) * heads >
          std::numeric_limits<std::int32_t>::max() / 2)
        return bad_input(
            fmt::format("request {} has {} rows of {} heads; allowed are up to {} in all", i,
                        r.q_len, heads, std::numeric_limits<std::int32_t>::max() / 2));
      r.q = contiguous_rows(q.bytes.data(), static_cast<std::int64_t>(rows.first[i]),
                            static_cast<std::int64_t>(rows.available[i]), p_.q_heads, p_.head_dim,
                            p_.element_bytes());
    }
    return Done{};
  }

  Status read_keys() {
    const bool mla = file_.has("ckv"), pages = file_.has("kv_pages");
    if (mla + pages + file_.has("k") != 1)
      return bad_input(
          fmt::format("there is {}k, {}kv_pages and {}ckv; allowed is one of k (with v), kv_pages "
                      "and ckv (with "
                      "kpe)",
                      file_.has("k") ? "" : "no ", pages ? "" : "no ", mla ? "" : "no "));
    if (mla) return read_mla();
    if (pages) return read_pages();
    ASSAY_TRY(const TensorView k, file_.tensor("k"));
    const bool no_values = values_ == FileValues::kOptional && !file_.has("v");
    ASSAY_TRY(const TensorView v, file_.tensor(no_values ? "k" : "v"));
    const bool packed = file_.has("cu_seqlens_kv");
    ASSAY_CHECK(check_axes(k, "cu_seqlens_kv"));
    const auto dim = static_cast<std::uint64_t>(p_.head_dim);
    if (packed) {
      ASSAY_CHECK(k.expect({p_.dtype}, {{"row"}, {"head"}, {"element", dim}}));
      ASSAY_CHECK(v.expect({p_.dtype}, {{"row", k.shape[0]}, {"head", k.shape[1]}, {"element"}}));
    } else {
      ASSAY_CHECK(k.expect({p_.dtype}, {{"request"}, {"row"}, {"head"}, {"element", dim}}));
      ASSAY_CHECK(v.expect(
          {p_.dtype},
          {{"request", k.shape[0]}, {"row", k.shape[1]}, {"head", k.shape[2]}, {"element"}}));
    }
    const std::uint64_t heads = k.shape[k.shape.size() - 2];
    ASSAY_CHECK(within(k, {{"heads", heads, kCountMax}}));
    ASSAY_CHECK(within(v, {{"elements a row", v.shape.back(), kCountMax}}));
    p_.kv_heads = static_cast<int>(heads);
    p_.v_dim = static_cast<int>(v.shape.back());
    ASSAY_TRY(const Lengths rows, read_layout(k, "kv", packed));
    ASSAY_CHECK(same_requests("k", rows.length.size()));
    for (std::size_t i = 0; i < requests(); ++i) {
      Request& r = p_.requests[i];
      r.kv_len = rows.length[i];
      const auto first = static_cast<std::int64_t>(rows.first[i]);
      const auto available = static_cast<std::int64_t>(rows.available[i]);
      const int bytes = p_.element_bytes();
      r.k = contiguous_rows(k.bytes.data(), first, available, p_.kv_heads, p_.head_dim, bytes);
      r.v = contiguous_rows(v.bytes.data(), first, available, p_.kv_heads, p_.v_dim, bytes);
    }
    return Done{};
  }

  // MLA: ckv and kpe as [b, l, c], packed [total, c], or with a block table [pages, page, c].
  Status read_mla() {
    ASSAY_TRY(const TensorView ckv, file_.tensor("ckv"));
    ASSAY_TRY(const TensorView kpe, file_.tensor("kpe"));
    const bool packed = file_.has("cu_seqlens_kv"), paged = file_.has("block_table");
    if (packed && paged)
      return bad_input("cu_seqlens_kv and block_table are both there; give one of them");
    if (packed)
      ASSAY_CHECK(ckv.expect({p_.dtype}, {{"row"}, {"element"}}));
    else
      ASSAY_CHECK(ckv.expect({p_.dtype}, {{paged ? "page" : "request"}, {"row"}, {"element"}}));
    const std::uint64_t value_dim = ckv.shape.back();
    if (value_dim >= static_cast<std::uint64_t>(p_.head_dim))
      return bad_input(
          fmt::format("tensor ckv has rows of {} elements; allowed are fewer than the {} "
                      "of q, the rest being kpe's",
                      value_dim, p_.head_dim));
    const std::uint64_t rope = static_cast<std::uint64_t>(p_.head_dim) - value_dim;
    if (packed)
      ASSAY_CHECK(kpe.expect({p_.dtype}, {{"row", ckv.shape[0]}, {"element", rope}}));
    else
      ASSAY_CHECK(kpe.expect({p_.dtype},
                             {{"first", ckv.shape[0]}, {"row", ckv.shape[1]}, {"element", rope}}));
    p_.kv_heads = 1;
    p_.rope_dim = static_cast<int>(rope);
    p_.v_dim = static_cast<int>(value_dim);
    const int bytes = p_.element_bytes();
    if (paged) {
      ASSAY_CHECK(read_block_table(ckv, ckv.shape[0], ckv.shape[1]));
      for (Request& r : p_.requests) {
        const auto rows = [&](const TensorView& view, int dim) {
          return paged_rows(view.bytes.data(), r.k.block_table, r.k.available,
                            static_cast<int>(ckv.shape[1]), 1, 0, 1, dim, bytes);
        };
        r.k_rope = rows(kpe, p_.rope_dim);
        r.v = r.k = rows(ckv, p_.v_dim);
      }
      return Done{};
    }
    ASSAY_TRY(const Lengths rows, read_layout(ckv, "kv", packed));
    ASSAY_CHECK(same_requests("ckv", rows.length.size()));
    for (std::size_t i = 0; i < requests(); ++i) {
      Request& r = p_.requests[i];
      r.kv_len = rows.length[i];
      const auto first = static_cast<std::int64_t>(rows.first[i]);
      const auto available = static_cast<std::int64_t>(rows.available[i]);
      r.k = contiguous_rows(ckv.bytes.data(), first, available, 1, p_.v_dim, bytes);
      r.k_rope = contiguous_rows(kpe.bytes.data(), first, available, 1, p_.rope_dim, bytes);
      r.v = r.k;
    }
    return Done{};
  }

  Status read_pages() {
    ASSAY_TRY(const TensorView pages, file_.tensor("kv_pages"));
    ASSAY_CHECK(pages.expect({p_.dtype}, {{"page"},
                                          {"part", 2},
                                          {"row"},
                                          {"head"},
                                          {"element", static_cast<std::uint64_t>(p_.head_dim)}}));
    ASSAY_CHECK(within(pages, {{"heads", pages.shape[3], kCountMax}}));
    p_.kv_heads = static_cast<int>(pages.shape[3]);
    p_.v_dim = p_.head_dim;
    ASSAY_CHECK(read_block_table(pages, pages.shape[0], pages.shape[2]));
    for (Request& r : p_.requests) {
      const Rows table = r.k;
      const auto part = [&](int index) {
        return paged_rows(pages.bytes.data(), table.block_table, table.available,
                          static_cast<int>(pages.shape[2]), 2, index, p_.kv_heads, p_.head_dim,
                          p_.element_bytes());
      };
      r.k = part(0);
      r.v = part(1);
    }
    return Done{};
  }

  // Sets kv_len, and in r.k the block table and how many rows its used pages have.
  Status read_block_table(const TensorView& pages, std::uint64_t count, std::uint64_t page_rows) {
    ASSAY_CHECK(within(pages, {{"pages", count, std::numeric_limits<std::int32_t>::max()},
                               {"rows a page", page_rows, kRowsMax}}));
    ASSAY_TRY(const TensorView table, file_.tensor("block_table"));
    ASSAY_CHECK(table.expect({Dtype::kI32}, {{"request", requests()}, {"page"}}));
    if (!file_.has("kv_len"))
      return bad_input("kv_len is missing; with a block_table it says how many keys a request has");
    const std::uint64_t per_request = table.shape[1];
    // Page counts and rows are below 2^31 and 2^24: no product of 64 bits overflows.
    ASSAY_CHECK(within(table, {{"pages a request", per_request, kRowsMax}}));
    const std::uint64_t rows_max = std::min(per_request * page_rows, kRowsMax);
    ASSAY_TRY(const auto lengths, read_lengths("kv_len", requests(), rows_max));
    input_.block_table = Elements<std::int32_t>(table.bytes).copy();
    for (std::size_t i = 0; i < requests(); ++i) {
      Request& r = p_.requests[i];
      r.kv_len = lengths[i];
      const std::uint64_t used =
          page_rows == 0 ? 0 : (static_cast<std::uint64_t>(r.kv_len) + page_rows - 1) / page_rows;
      for (std::uint64_t page = 0; page < used; ++page) {
        const std::int32_t entry = input_.block_table[i * per_request + page];
        if (entry < 0 || static_cast<std::uint64_t>(entry) >= count)
          return bad_input(fmt::format("block_table[{}, {}] is {}; allowed are 0 to {}", i, page,
                                       entry, static_cast<std::int64_t>(count) - 1));
      }
      r.k.block_table = input_.block_table.data() + i * per_request;
      r.k.available = static_cast<std::int64_t>(used * page_rows);
    }
    return Done{};
  }

  const TensorFile& file_;
  const FileValues values_;
  FileInput& input_;
  Problem& p_;
};

}  // namespace

Status read_file_rows(const TensorFile& file, FileValues values, FileInput& input) {
  return RowsReader(file, values, input).read();
}

}  // namespace assay::attention
