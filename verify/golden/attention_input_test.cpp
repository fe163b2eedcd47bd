// Every layout of a file is the problem that it was made from.
#include <algorithm>
#include <cmath>
#include <memory>

#include "verify/golden/attention_files.hpp"
#include "verify/golden/attention_input.hpp"
#include "verify/golden/request.hpp"

namespace assay::verify::testing {
namespace {

// What build() makes, dressed with everything that a file can say.
struct Dressed {
  std::unique_ptr<Built> built;
  std::vector<float> sinks, slopes;
  std::vector<std::vector<std::uint8_t>> masks;
  InputFile file;
  Problem& problem() { return built->problem; }
};

std::string number(float x) { return fmt::format("{}", x); }

Dressed dressed(Case c, const Layout& layout, std::mt19937& random) {
  const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Dressed d;
  c.lambda = -1;
  if (layout.kv == Lay::kPaged) c.v_dim = c.head_dim;
  d.built = build(c);
  Problem& p = d.problem();
  std::vector<std::string> settings;
  const char* mask = p.mask == MaskKind::kFull ? (c.custom ? "custom" : "full")
                     : c.bottom_right          ? "causal"
                                               : "causal_topleft";
  if (p.mask == MaskKind::kWindow || p.mask == MaskKind::kChunked) {
    settings.push_back(
        fmt::format("mask={}:{}", p.mask == MaskKind::kWindow ? "window" : "chunked", p.mask_size));
    if (!c.bottom_right) {
      const int offset = one_of(9) - 4;
      settings.push_back(fmt::format("q_offset={}", offset));
      for (Request& r : p.requests) r.q_offset = offset;
    }
  } else {
    settings.push_back(fmt::format("mask={}", mask));
  }
  if (p.mask == MaskKind::kFull)
    for (Request& r : p.requests) r.q_offset = r.kv_len - r.q_len;
  if (!p.custom_mask.empty() && p.mask != MaskKind::kFull) p.custom_mask.clear();
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)));  // the default
  if (one_of(2) == 0) settings.push_back("scale=" + number(p.scale = 0.3f));
  if (one_of(4) == 0) settings.push_back("softcap=" + number(p.softcap = 7.5f));
  if (one_of(2) == 0)
    settings.push_back(fmt::format("splits={}", p.splits));
  else
    p.splits = 1;
  if (one_of(2) == 0) {
    p.out_dtype = one_of(2) == 0 ? Dtype::kF16 : Dtype::kBf16;
    settings.push_back(p.out_dtype == Dtype::kF16 ? "out_dtype=f16" : "out_dtype=bf16");
  }
  const int threshold = one_of(3);
  std::vector<float> factors;
  for (Request& r : p.requests) {
    if (threshold == 0) continue;
    const float factor = threshold == 1 ? 12.75f : 0.5f + static_cast<float>(one_of(100));
    r.threshold = {Threshold::Kind::kScaleFactor, factor};
    factors.push_back(factor);
  }
  if (threshold == 1) settings.push_back("threshold_scale_factor=" + number(12.75f));
  d.file = file_of(p, layout);
  d.file.settings = settings;
  if (threshold == 2) d.file.add("threshold_scale_factor", Dtype::kF32, {factors.size()}, factors);
  const auto heads = static_cast<std::size_t>(p.q_heads);
  if (one_of(3) == 0) {
    for (std::size_t i = 0; i < heads; ++i)
      d.sinks.push_back(static_cast<float>(one_of(90)) / 30 - 1);
    p.sinks = d.sinks;
    d.file.add("sinks", Dtype::kF32, {heads}, d.sinks);
  }
  if (one_of(4) == 0) {
    for (std::size_t i = 0; i < heads; ++i)
      d.slopes.push_back(static_cast<float>(one_of(90)) / 900);
    p.alibi_slopes = d.slopes;
    d.file.add("alibi_slopes", Dtype::kF32, {heads}, d.slopes);
  }
  for (const auto& [scale, name] :
       {std::pair{&Problem::q_scale, "q_scale"}, std::pair{&Problem::k_scale, "k_scale"},
        std::pair{&Problem::v_scale, "v_scale"}}) {
    if (one_of(2) == 0) continue;
    p.*scale = 0.25f + static_cast<float>(one_of(20)) / 7;
    d.file.add(name, Dtype::kF32, one_of(2) == 0 ? Shape{} : Shape{1},
               std::vector<float>{p.*scale});
  }
  if (!p.custom_mask.empty()) {
    std::uint64_t rows = 0, keys = 0;
    for (const Request& r : p.requests) {
      rows = std::max(rows, static_cast<std::uint64_t>(r.q_len) + 1);
      keys = std::max(keys, static_cast<std::uint64_t>(r.kv_len) + 2);
    }
    std::vector<std::uint8_t> cells(p.requests.size() * rows * keys, 1);
    for (std::size_t i = 0; i < p.requests.size(); ++i)
      for (std::int32_t row = 0; row < p.requests[i].q_len; ++row)
        for (std::int32_t key = 0; key < p.requests[i].kv_len; ++key)
          cells[(i * rows + static_cast<std::size_t>(row)) * keys + static_cast<std::size_t>(key)] =
              p.sees(i, row, key);
    d.file.add("mask", one_of(2) == 0 ? Dtype::kBool : Dtype::kU8, {p.requests.size(), rows, keys},
               cells);
  }
  return d;
}

// An open file with what was read from it.
struct Opened {
  std::unique_ptr<TensorFile> file;
  std::unique_ptr<const FileInput> input;
};

Expected<Opened> opened(const std::string& path, const std::vector<std::string>& settings) {
  ASSAY_TRY(const GoldenOp* op, find_golden_op("attention"));
  Opened result;
  ASSAY_TRY(TensorFile file, TensorFile::open(path));
  result.file = std::make_unique<TensorFile>(std::move(file));
  ASSAY_TRY(const GoldenInput in,
            read_parameters(*op, *result.file, settings, "assay-prefill-sm90"));
  ASSAY_TRY(result.input, read_attention(in));
  return result;
}

void require_same_rows(const Problem& a, const Problem& b, std::size_t i, Copy copy, int heads,
                       int dim, std::int64_t rows) {
  const auto bytes = static_cast<std::size_t>(dim * a.element_bytes());
  std::vector<std::byte> x(bytes), y(bytes);
  for (int head = 0; head < heads; ++head) {
    for (std::int64_t row = 0; row < rows; ++row) {
      copy(a, a.requests[i], head, row, x.data());
      copy(b, b.requests[i], head, row, y.data());
      RC_ASSERT(x == y);
    }
  }
}

void require_same(const Problem& a, const Problem& b) {
  RC_ASSERT(a.dtype == b.dtype && a.out_dtype == b.out_dtype);
  RC_ASSERT(a.q_heads == b.q_heads && a.kv_heads == b.kv_heads);
  RC_ASSERT(a.head_dim == b.head_dim && a.rope_dim == b.rope_dim && a.v_dim == b.v_dim);
  RC_ASSERT(a.mask == b.mask);
  RC_ASSERT(a.scale == b.scale && a.softcap == b.softcap && a.splits == b.splits);
  RC_ASSERT(a.q_scale == b.q_scale && a.k_scale == b.k_scale && a.v_scale == b.v_scale);
  RC_ASSERT(std::equal(a.sinks.begin(), a.sinks.end(), b.sinks.begin(), b.sinks.end()));
  RC_ASSERT(std::equal(a.alibi_slopes.begin(), a.alibi_slopes.end(), b.alibi_slopes.begin(),
                       b.alibi_slopes.end()));
  RC_ASSERT(a.requests.size() == b.requests.size());
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    const Request &x = a.requests[i], &y = b.requests[i];
    RC_ASSERT(x.q_len == y.q_len && x.kv_len == y.kv_len && x.q_offset == y.q_offset);
    RC_ASSERT(x.threshold.kind == y.threshold.kind && x.threshold.value == y.threshold.value);
    require_same_rows(a, b, i, copy_query, a.q_heads, a.head_dim, x.q_len);
    require_same_rows(a, b, i, copy_key, a.kv_heads, a.head_dim, x.kv_len);
    require_same_rows(a, b, i, copy_value, a.kv_heads, a.v_dim, x.kv_len);
    for (std::int32_t row = 0; row < x.q_len; ++row)
      for (std::int32_t key = 0; key < x.kv_len; ++key)
        RC_ASSERT(a.sees(i, row, key) == b.sees(i, row, key));
  }
}

TEST_CASE("a problem written in any layout and read again is the same problem",
          "[VER-21.6][VER-21.7]") {
  TempDir dir;
  std::set<std::pair<Lay, Lay>> seen;
  int custom = 0;
  prop("any problem, any layout", [&] {
    Case c = *cases(profile_named("assay-prefill-sm90"), {20, 90, 3, 2, true});
    const Layout layout{*rc::gen::element(Lay::kPadded, Lay::kPacked),
                        *rc::gen::element(Lay::kPadded, Lay::kPacked, Lay::kPaged),
                        *rc::gen::inRange(1, 40), *rc::gen::inRange(0, 4), c.seed};
    if (c.custom) c.mask = MaskKind::kFull;
    std::mt19937 random(c.seed);
    Dressed d = dressed(c, layout, random);
    const auto back = opened(d.file.write(dir), d.file.settings);
    if (!back) RC_FAIL(back.error().sentence);
    require_same(d.problem(), back->input->problem);
    seen.insert({layout.q, layout.kv});
    custom += !d.problem().custom_mask.empty();
  });
  REQUIRE(seen.size() == 6);
  REQUIRE(custom > 3);
}

// MLA: q [.., 4, 96], ckv 64 wide, kpe 32.
InputFile mla_file(Built& built, Lay kv) {
  Problem& p = built.problem;
  InputFile file = file_of(p, {Lay::kPacked, Lay::kPadded});
  const auto wide = [&](const char* name) {
    return std::find_if(file.tensors.begin(), file.tensors.end(),
                        [&](const FileTensor& t) { return t.name == name; });
  };
  const FileTensor k = *wide("k");
  file.tensors.erase(wide("k"));
  file.tensors.erase(wide("v"));
  const std::size_t rows = static_cast<std::size_t>(k.shape[0] * k.shape[1]);
  FileTensor ckv{"ckv", p.dtype, {k.shape[0], k.shape[1], 64}, {}}, kpe = ckv;
  kpe.name = "kpe", kpe.shape[2] = 32;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto at = k.bytes.begin() + static_cast<std::ptrdiff_t>(row * 192);
    ckv.bytes.insert(ckv.bytes.end(), at, at + 128);
    kpe.bytes.insert(kpe.bytes.end(), at + 128, at + 192);
  }
  if (kv == Lay::kPaged) {  // one page a request, in reverse order
    std::vector<std::int32_t> table;
    for (std::size_t i = p.requests.size(); i-- > 0;) table.push_back(static_cast<std::int32_t>(i));
    FileTensor* const both[] = {&ckv, &kpe};
    for (FileTensor* t : both) {
      const std::size_t page = t->bytes.size() / p.requests.size();
      std::vector<std::byte> reversed;
      for (std::size_t i = p.requests.size(); i-- > 0;)
        reversed.insert(reversed.end(), t->bytes.begin() + static_cast<std::ptrdiff_t>(i * page),
                        t->bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * page));
      t->bytes = reversed;
    }
    file.add("block_table", Dtype::kI32, {p.requests.size(), 1}, table);
  }
  file.tensors.push_back(ckv);
  file.tensors.push_back(kpe);
  file.settings = {"mask=causal", "scale=0.0625"};
  return file;
}

TEST_CASE("the two parts of MLA keys are read, padded and in pages", "[VER-21.6]") {
  TempDir dir;
  Case c;
  c.q_heads = 4, c.head_dim = 96, c.v_dim = 64;
  c.q_lens = {3, 1}, c.kv_lens = {200, 90};
  c.mask = MaskKind::kCausal;
  c.lambda = -1;
  for (const Lay kv : {Lay::kPadded, Lay::kPaged}) {
    auto built = build(c);
    const InputFile file = mla_file(*built, kv);
    const auto back = opened(file.write(dir), file.settings);
    INFO((back ? "" : back.error().sentence));
    REQUIRE(back.has_value());
    const Problem& p = back->input->problem;
    REQUIRE((p.kv_heads == 1 && p.rope_dim == 32 && p.v_dim == 64 && p.scale == 0.0625f));
    std::vector<std::byte> x(192), y(192);
    for (std::size_t i = 0; i < 2; ++i) {
      REQUIRE(p.requests[i].kv_len == c.kv_lens[i]);
      for (int key = 0; key < c.kv_lens[i]; ++key) {
        copy_key(built->problem, built->problem.requests[i], 0, key, x.data());
        copy_key(p, p.requests[i], 0, key, y.data());
        REQUIRE(x == y);
        copy_value(p, p.requests[i], 0, key, y.data());
        REQUIRE(std::equal(x.begin(), x.begin() + 128, y.begin()));
      }
    }
  }
}

}  // namespace
}  // namespace assay::verify::testing
