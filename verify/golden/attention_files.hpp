// For tests of attention's golden files: problems written in any layout, and the two commands.
// Decides nothing.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "model/attention/attention_testing.hpp"
#include "model/core/safetensors.hpp"
#include "model/core/testing_files.hpp"
#include "verify/golden/golden.hpp"

namespace assay::verify::testing {

using namespace assay::attention;
using namespace assay::attention::testing;
using assay::testing::TempDir;

struct FileTensor {
  std::string name;
  Dtype dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

struct InputFile {
  std::vector<FileTensor> tensors;
  std::vector<std::string> settings;

  template <class T>
  void add(const std::string& name, Dtype dtype, Shape shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors.push_back({name, dtype, std::move(shape), {bytes.begin(), bytes.end()}});
  }
  std::string write(const TempDir& dir, const std::string& name = "in.safetensors") const {
    TensorFileWriter writer;
    for (const FileTensor& t : tensors) writer.add(t.name, t.dtype, t.shape, t.bytes);
    const std::string path = dir.file(name);
    const Status written = writer.write(path);
    REQUIRE(written.has_value());
    return path;
  }
};

enum class Lay { kPadded, kPacked, kPaged };
struct Layout {
  Lay q = Lay::kPadded;
  Lay kv = Lay::kPadded;
  int page = 16;
  int extra = 0;  // rows behind the last one, in every request or at the end
  unsigned seed = 1;
};

using Copy = void (*)(const Problem&, const Request&, int, std::int64_t, std::byte*);

// Rows of `heads` heads and `dim` elements, where a layout wants them; garbage everywhere else.
class Placer {
 public:
  Placer(const Problem& p, const Layout& layout) : p_(p), layout_(layout), random_(layout.seed) {}

  void place(InputFile& file, const std::string& name, Lay lay, bool keys, int heads, int dim,
             const Copy& copy) {
    const int bytes = p_.element_bytes() * dim;
    std::uint64_t longest = 0, total = 0;
    for (const Request& r : p_.requests) {
      longest = std::max(longest, static_cast<std::uint64_t>(keys ? r.kv_len : r.q_len));
      total += static_cast<std::uint64_t>(keys ? r.kv_len : r.q_len);
    }
    longest += static_cast<std::uint64_t>(layout_.extra);
    total += static_cast<std::uint64_t>(layout_.extra);
    const auto h = static_cast<std::uint64_t>(heads), d = static_cast<std::uint64_t>(dim);
    Shape shape =
        lay == Lay::kPadded ? Shape{p_.requests.size(), longest, h, d} : Shape{total, h, d};
    std::vector<std::byte> data(
        static_cast<std::size_t>(shape[0] * shape[1] * h * d / (lay == Lay::kPadded ? 1 : h)) *
        static_cast<std::size_t>(p_.element_bytes()));
    for (std::byte& byte : data) byte = static_cast<std::byte>(random_() & 0x3F);
    std::size_t row = 0;
    for (std::size_t i = 0; i < p_.requests.size(); ++i) {
      const Request& r = p_.requests[i];
      if (lay == Lay::kPadded) row = i * longest;
      for (std::int64_t j = 0; j < (keys ? r.kv_len : r.q_len); ++j, ++row)
        for (int head = 0; head < heads; ++head)
          copy(p_, r, head, j,
               data.data() +
                   (row * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)) *
                       static_cast<std::size_t>(bytes));
    }
    file.tensors.push_back({name, p_.dtype, shape, std::move(data)});
  }

  // K and V of pages [pages, 2, page, heads, dim], in shuffled order.
  void place_pages(InputFile& file) {
    const auto page = static_cast<std::size_t>(layout_.page);
    std::size_t used = 0, most = 1;
    const auto pages_of = [&](const Request& r) {
      return (static_cast<std::size_t>(r.kv_len) + page - 1) / page;
    };
    for (const Request& r : p_.requests) {
      used += pages_of(r);
      most = std::max(most, pages_of(r) + 1);
    }
    const std::size_t count = used + 2;
    std::vector<std::int32_t> order(count), table(p_.requests.size() * most, -7);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    const std::size_t heads = static_cast<std::size_t>(p_.kv_heads);
    const std::size_t row_bytes = static_cast<std::size_t>(p_.head_dim * p_.element_bytes());
    std::vector<std::byte> data(count * 2 * page * heads * row_bytes);
    for (std::byte& byte : data) byte = static_cast<std::byte>(random_() & 0x3F);
    std::size_t next = 0;
    for (std::size_t i = 0; i < p_.requests.size(); ++i) {
      const Request& r = p_.requests[i];
      for (std::size_t n = 0; n < pages_of(r); ++n) table[i * most + n] = order[next++];
      for (std::int64_t j = 0; j < r.kv_len; ++j) {
        const auto at =
            static_cast<std::size_t>(table[i * most + static_cast<std::size_t>(j) / page]);
        for (std::size_t part = 0; part < 2; ++part)
          for (std::size_t head = 0; head < heads; ++head)
            (part == 0 ? copy_key : copy_value)(
                p_, r, static_cast<int>(head), j,
                data.data() +
                    (((at * 2 + part) * page + static_cast<std::size_t>(j) % page) * heads + head) *
                        row_bytes);
      }
    }
    file.tensors.push_back({"kv_pages",
                            p_.dtype,
                            {count, 2, page, heads, static_cast<std::uint64_t>(p_.head_dim)},
                            std::move(data)});
    file.add("block_table", Dtype::kI32, {p_.requests.size(), most}, table);
  }

 private:
  const Problem& p_;
  const Layout& layout_;
  std::mt19937 random_;
};

inline void add_lengths(InputFile& file, const Problem& p, Lay lay, bool keys, bool needed) {
  std::vector<std::int32_t> lengths, cu{0};
  for (const Request& r : p.requests) {
    lengths.push_back(keys ? r.kv_len : r.q_len);
    cu.push_back(cu.back() + lengths.back());
  }
  if (lay == Lay::kPacked)
    file.add(keys ? "cu_seqlens_kv" : "cu_seqlens_q", Dtype::kI32, {cu.size()}, cu);
  else if (needed || lay == Lay::kPaged)
    file.add(keys ? "kv_len" : "q_len", Dtype::kI32, {lengths.size()}, lengths);
}

inline InputFile file_of(const Problem& p, const Layout& layout) {
  InputFile file;
  Placer placer(p, layout);
  placer.place(file, "q", layout.q, false, p.q_heads, p.head_dim, copy_query);
  add_lengths(file, p, layout.q, false, true);
  if (layout.kv == Lay::kPaged) {
    placer.place_pages(file);
  } else {
    placer.place(file, "k", layout.kv, true, p.kv_heads, p.head_dim, copy_key);
    placer.place(file, "v", layout.kv, true, p.kv_heads, p.v_dim, copy_value);
  }
  add_lengths(file, p, layout.kv, true, true);
  return file;
}

inline Report checked(const std::string& in, const std::string& got, const std::string& profile,
                      const std::vector<std::string>& settings = {}, bool allow_vacuous = false) {
  auto report = check_golden({"attention", in, settings, profile}, got, allow_vacuous);
  INFO((report ? "" : report.error().sentence));
  REQUIRE(report.has_value());
  return *std::move(report);
}

inline std::string golden(const TempDir& dir, const InputFile& file, std::string_view profile,
                          const std::string& name = "golden.safetensors") {
  const std::string in = file.write(dir);
  const auto written =
      write_golden({"attention", in, file.settings, std::string(profile)}, dir.file(name));
  INFO((written ? "" : written.error().sentence));
  REQUIRE(written.has_value());
  return dir.file(name);
}

// A copy without the named tensors and without what the metadata says of units.
inline std::string without(const TempDir& dir, const std::string& path,
                           std::set<std::string> names) {
  const auto file = TensorFile::open(path);
  REQUIRE(file.has_value());
  TensorFileWriter writer;
  for (const TensorView& t : file->tensors())
    if (names.count(std::string(t.name)) == 0)
      writer.add(std::string(t.name), t.dtype, t.shape, t.bytes);
  const std::string to = dir.file("without.safetensors");
  const Status written = writer.write(to);
  REQUIRE(written.has_value());
  return to;
}

inline std::string told(const Report& report) {
  std::string text(verdict_name(report.verdict));
  for (const std::string& reason : report.reasons) text += "; " + reason;
  for (const auto& [name, value] : report.provenance) text += "; " + name + "=" + value;
  for (const Mismatch& m : report.mismatches) {
    text += "; " + m.check + " " + m.sentence;
    for (const std::string& one : m.diagnoses) text += "; " + one;
  }
  return text;
}
inline bool tells(const Report& report, const std::string& words) {
  return told(report).find(words) != std::string::npos;
}

inline Case skipping_case(const Profile& profile) {
  Case c;
  c.q_heads = 2, c.head_dim = 64, c.v_dim = 64;
  c.q_lens = {100, 70}, c.kv_lens = {500, 401};
  if (profile.skip.packing == Packing::kGroupRows) c.q_lens = {32, 32};  // 64 rows
  c.contrast = 8;
  c.lambda = -1;
  c.seed = 11;
  return c;
}

}  // namespace assay::verify::testing
