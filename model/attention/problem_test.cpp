// What a problem refuses, and that every way to lay rows out reads the same rows.
#include "model/attention/problem.hpp"

#include <cmath>
#include <tuple>

#include "model/attention/attention_testing.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

std::string sentence(const Problem& p) {
  const Status status = check(p);
  return status ? std::string() : status.error().sentence;
}

}  // namespace

TEST_CASE("a problem that no profile can mean is refused with its numbers", "[ATT-2.1]") {
  Case c;
  c.q_lens = {3};
  c.kv_lens = {5};
  const auto built = build(c);
  const Problem good = built->problem;
  REQUIRE(sentence(good).empty());
  const auto broken = [&](const auto& change) {
    Problem p = good;
    change(p);
    return sentence(p);
  };
  REQUIRE(broken([](Problem& p) { p.dtype = Dtype::kF32; }).find("F32") != std::string::npos);
  REQUIRE(broken([](Problem& p) { p.q_heads = 3, p.kv_heads = 2; }).find("3 query heads and 2") !=
          std::string::npos);
  REQUIRE(broken([](Problem& p) { p.scale = 0; }).find("scale is 0") != std::string::npos);
  // Each scale, and every product of them that a kernel holds.
  for (const auto& [name, scale] :
       std::vector<std::pair<std::string, float Problem::*>>{{"scale", &Problem::scale},
                                                             {"q_scale", &Problem::q_scale},
                                                             {"k_scale", &Problem::k_scale},
                                                             {"v_scale", &Problem::v_scale},
                                                             {"softcap", &Problem::softcap}}) {
    for (const float value : {-1.0f, 1e-40f, 0x1p-127f, 0x1.8p126f, 3e38f, HUGE_VALF, NAN}) {
      CAPTURE(name, value);
      REQUIRE(broken([&](Problem& p) { p.*scale = value; }).find(name + " is ") == 0);
    }
    REQUIRE(broken([&](Problem& p) { p.*scale = 0; }).empty() == (name == "softcap"));
  }
  for (const auto& [scale, q, k, cap, says] :
       std::vector<std::tuple<float, float, float, float, std::string>>{
           {1e-20f, 1e-20f, 1e20f, 0, "scale * q_scale (1e-20, 1e-20, 1e+20) is "},
           {1e-20f, 1, 1e-20f, 0, "scale * q_scale * k_scale (1e-20, 1, 1e-20) is "},
           {7e37f, 1, 1, 0, "scale * q_scale * k_scale * log2(e) (7e+37, 1, 1) is "},
           {1e-20f, 1, 1, 1e20f, "scale * q_scale * k_scale / softcap 1e+20 (1e-20, 1, 1) is "},
           {0x1p-126f, 1, 1, 0, ""},
           {5.8e37f, 1, 1, 0, ""},
           {1e-30f, 1e30f, 1e-7f, 1e-7f, ""}}) {
    const std::string got = broken([&, scale = scale, q = q, k = k, cap = cap](Problem& p) {
      p.scale = scale, p.q_scale = q, p.k_scale = k, p.softcap = cap;
    });
    CAPTURE(got, says);
    REQUIRE((says.empty() ? got.empty() : got.find(says) == 0));
  }
  REQUIRE(broken([](Problem& p) {
            p.mask = MaskKind::kWindow, p.mask_size = 0;
          }).find("size is 0") != std::string::npos);
  REQUIRE(broken([](Problem& p) { p.requests[0].kv_len = 9; }).find("kv_len is 9; k has 5") !=
          std::string::npos);
  REQUIRE(broken([](Problem& p) {
            p.requests[0].threshold = {Threshold::Kind::kLambda, std::nanf("")};
          }).find("threshold is nan") != std::string::npos);
  REQUIRE(broken([](Problem& p) { p.requests[0].q_len = -1; }).find("q_len is -1") !=
          std::string::npos);
  REQUIRE(broken([](Problem& p) { p.splits = 0; }).find("splits is 0") != std::string::npos);
}

TEST_CASE("MLA keys in two parts give the bits of whole ones, with values among them",
          "[ATT-2.2]") {
  Case c;
  c.q_heads = 16;
  c.kv_heads = 1;
  c.q_lens = {2};
  c.kv_lens = {150};
  c.head_dim = 576;
  c.v_dim = 512;
  c.lambda = 0.3f;
  const auto built = build(c);
  const Profile& profile = profile_named("assay-decode-sm90");
  Problem whole = built->problem;
  Request& r = whole.requests[0];
  r.v = r.k;  // a value is the key's first 512 elements
  Problem parts = whole;
  std::vector<std::byte> latent(150 * 1024), rope(150 * 128);
  for (std::size_t i = 0; i < 150; ++i) {
    const std::byte* row = r.k.row(0, static_cast<std::int64_t>(i), 2);
    std::copy_n(row, 1024, &latent[i * 1024]);
    std::copy_n(row + 1024, 128, &rope[i * 128]);
  }
  parts.rope_dim = 64;
  parts.requests[0].k = parts.requests[0].v = contiguous_rows(latent.data(), 0, 150, 1, 512, 2);
  parts.requests[0].k_rope = contiguous_rows(rope.data(), 0, 150, 1, 64, 2);
  const Emulation a = run(profile, whole);
  const Emulation b = run(profile, parts);
  REQUIRE(a.out == b.out);
  REQUIRE(same_lse(a, b));
  REQUIRE(a.units.size() == 1);
}

TEST_CASE("paged keys give the bits of contiguous ones, and strides may be huge",
          "[ATT-2.2][ATT-2.3]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  prop("any problem", [&] {
    const Case c = *cases(profile, {60, 100, 2});
    const auto built = build(c);
    const Emulation expected = run(profile, built->problem);
    // Pages of 16 rows in a shuffled order, unused slots full of NaN.
    const Problem& p = built->problem;
    const int page = 16, bytes = p.element_bytes();
    Problem paged = p;
    std::vector<std::vector<std::byte>> pools;
    std::vector<std::vector<std::int32_t>> tables;
    for (Request& r : paged.requests) {
      const int pages = (r.kv_len + page - 1) / page;
      std::vector<std::int32_t>& table = tables.emplace_back();
      for (int i = 0; i < pages; ++i) table.push_back(pages - 1 - i);
      const int dim = std::max(p.head_dim, p.v_dim);
      const std::size_t row_bytes = static_cast<std::size_t>(p.kv_heads * dim * bytes);
      std::vector<std::byte>& pool = pools.emplace_back(
          static_cast<std::size_t>(2 * pages * page) * row_bytes, std::byte{0xFF});
      for (int part = 0; part < 2; ++part) {
        const Rows from = part == 0 ? r.k : r.v;
        const int width = part == 0 ? p.head_dim : p.v_dim;
        Rows to;
        to.base = pool.data() + static_cast<std::size_t>(part * page) * row_bytes;
        to.row_stride = p.kv_heads * dim;
        to.head_stride = dim;
        to.available = static_cast<std::int64_t>(pages) * page;
        to.block_table = table.data();
        to.page_rows = page;
        to.page_stride = std::int64_t{2} * page * p.kv_heads * dim;
        for (int i = 0; i < r.kv_len; ++i)
          for (int h = 0; h < p.kv_heads; ++h)
            std::copy_n(from.row(h, i, bytes), width * bytes,
                        const_cast<std::byte*>(to.row(h, i, bytes)));
        (part == 0 ? r.k : r.v) = to;
      }
    }
    const Emulation got = run(profile, paged);
    RC_ASSERT(got.out == expected.out);
    RC_ASSERT(same_lse(got, expected));
  });
  Rows far;
  far.base = nullptr;
  far.row_stride = std::int64_t{1} << 33;
  far.available = 4;
  std::byte here{};
  far.base = &here;
  REQUIRE(far.row(0, 3, 2) - &here == (std::int64_t{3} << 34));
  REQUIRE(far.row(0, 4, 2) == nullptr);
}

TEST_CASE("beyond the last used page fmha_v2 reads that page again", "[ATT-2.3][ATT-7.1]") {
  // A causal request whose padding rows see and vote on keys that are not there: the same bits
  // and decisions as with memory in which the last page is repeated.
  const Profile& profile = profile_named("trtllm-fmha_v2-sm90");
  Profile neighbour = profile;
  neighbour.skip.padding_fill = PaddingFill::kNeighbour;
  int told_apart = 0;
  for (const int page : {16, 32, 64, 128, 256}) {
    for (const int kv_len : {130, 145, 200, 384, 500}) {
      CAPTURE(page, kv_len);
      const int pages = (kv_len + page - 1) / page, slots = pages * page, end = kv_len + 256;
      // Rows of the second tile on and all that lies behind the last key are 30 nats below.
      const auto level = [](int slot) { return slot < 128 ? 0.0f : -30.0f; };
      const auto slot_of = [&](int i) {
        return i < slots ? i : (pages - 1) * page + (i - slots) % page;
      };
      Tensor q, keys, values, pool;
      q.fill(Dtype::kBf16, 128, 1, 96, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
      const auto key = [&](int slot, int d) { return d == 0 ? level(slot) : 0.0f; };
      const auto value = [](int slot, int d) { return static_cast<float>(slot % 7 + d % 5); };
      keys.fill(Dtype::kBf16, end, 1, 96, [&](int i, int, int d) { return key(slot_of(i), d); });
      values.fill(Dtype::kBf16, end, 1, 96,
                  [&](int i, int, int d) { return value(slot_of(i), d); });
      // Pages in reverse, keys and values in turn.
      pool.fill(Dtype::kBf16, 2 * slots, 1, 96, [&](int i, int, int d) {
        const int slot = (pages - 1 - i / (2 * page)) * page + i % page;
        return i / page % 2 == 0 ? key(slot, d) : value(slot, d);
      });
      std::vector<std::int32_t> table;
      for (int i = 0; i < pages; ++i) table.push_back(pages - 1 - i);
      Problem whole;
      whole.head_dim = whole.v_dim = 96;
      whole.mask = MaskKind::kCausal;
      whole.scale = 1;
      Request r;
      r.q_len = 2;
      r.kv_len = kv_len;
      r.q_offset = kv_len - r.q_len;
      r.threshold = {Threshold::Kind::kLambda, 1e-3f};
      r.q = contiguous_rows(q.bytes.data(), 0, 128, 1, 96, 2);
      r.k = contiguous_rows(keys.bytes.data(), 0, end, 1, 96, 2);
      r.v = contiguous_rows(values.bytes.data(), 0, end, 1, 96, 2);
      whole.requests = {r};
      Problem paged = whole;
      paged.requests[0].k =
          paged_rows(pool.bytes.data(), table.data(), slots, page, 2, 0, 1, 96, 2);
      paged.requests[0].v =
          paged_rows(pool.bytes.data(), table.data(), slots, page, 2, 1, 1, 96, 2);
      const Emulation want = run(profile, whole), got = run(profile, paged);
      REQUIRE(got.out == want.out);
      REQUIRE(decisions(got.units[0]) == decisions(want.units[0]));
      told_apart += decisions(run(neighbour, paged).units[0]) != decisions(want.units[0]);
    }
  }
  REQUIRE(told_apart > 10);
}
