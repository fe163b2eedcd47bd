// For tests of this folder: problems made from a few numbers, so that RapidCheck can shrink them.
// Decides nothing.
#pragma once

#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "model/attention/attention.hpp"
#include "model/core/testing.hpp"
#include "model/numerics/convert.hpp"

namespace assay::attention::testing {

using assay::testing::prop;

inline std::uint32_t encode(Dtype dtype, float x) {
  const F32 f = numerics::from_float(x);
  if (dtype == Dtype::kF8E4m3) return numerics::cvt_rn_satfinite_e4m3(f).bits;
  return dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(f).bits
                              : numerics::cvt_rn_bf16_f32(f).bits;
}

inline float decode_out(Dtype dtype, std::uint16_t bits) {
  return numerics::to_float(dtype == Dtype::kF16 ? numerics::widen(F16{bits})
                                                 : numerics::widen(Bf16{bits}));
}

// A tensor of `dtype`, filled by a function of (row, head, column).
struct Tensor {
  Dtype dtype = Dtype::kBf16;
  std::vector<std::byte> bytes;
  template <class At>
  void fill(Dtype type, int rows, int heads, int dim, const At& at) {
    dtype = type;
    const std::size_t size = dtype_bits(type) / 8;
    bytes.assign(static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads * dim) * size,
                 std::byte{0});
    std::size_t place = 0;
    for (int i = 0; i < rows; ++i)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < dim; ++d, place += size) set(place, at(i, h, d));
  }
  void set(std::size_t place, float x) {
    const std::uint32_t code = encode(dtype, x);
    for (std::size_t b = 0; b < dtype_bits(dtype) / 8; ++b)
      bytes[place + b] = static_cast<std::byte>(code >> (8 * b) & 0xFF);
  }
};

// What a generated case is made of. `spread` scales the queries, so that lambda skips something;
// `contrast` pushes every second block of 128 keys that much below, in nats.
struct Case {
  Dtype dtype = Dtype::kBf16;
  int q_heads = 1, kv_heads = 1, head_dim = 32, v_dim = 32;
  std::vector<int> q_lens{1};
  std::vector<int> kv_lens{1};
  MaskKind mask = MaskKind::kFull;
  bool bottom_right = true;
  int mask_size = 1;
  float lambda = 0;  // < 0: off
  float spread = 1;
  float contrast = 0;
  int splits = 1;
  bool custom = false;  // hides a third of what the mask shows
  unsigned seed = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << dtype_name(c.dtype) << " heads=" << c.q_heads << "/" << c.kv_heads << " dim=" << c.head_dim
      << "/" << c.v_dim << " mask=" << static_cast<int>(c.mask) << ":" << c.mask_size
      << (c.bottom_right ? " bottom_right" : " top_left") << " lambda=" << c.lambda
      << " spread=" << c.spread << " contrast=" << c.contrast << " splits=" << c.splits
      << (c.custom ? " custom" : "") << " seed=" << c.seed << " q,kv=";
  for (std::size_t i = 0; i < c.q_lens.size(); ++i)
    out << c.q_lens[i] << "," << c.kv_lens[i] << " ";
  return out;
}

// The storage and the problem of a case: packed tensors [total, heads, dim].
struct Built {
  Tensor q, k, v;
  std::vector<std::vector<std::uint8_t>> custom;
  Problem problem;
};

inline std::unique_ptr<Built> build(const Case& c) {
  auto built = std::make_unique<Built>();
  int total_q = 0, total_kv = 0;
  for (const int n : c.q_lens) total_q += n;
  for (const int n : c.kv_lens) total_kv += n;
  std::mt19937 random(c.seed);
  std::normal_distribution<float> normal;
  const float unit = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  built->q.fill(c.dtype, total_q, c.q_heads, c.head_dim, [&](int, int, int d) {
    const float x = normal(random) * c.spread;
    return d == 0 && c.contrast != 0 ? 4.0f : x;
  });
  std::vector<int> position;  // of every key row within its request
  for (const int n : c.kv_lens)
    for (int i = 0; i < n; ++i) position.push_back(i);
  built->k.fill(c.dtype, total_kv, c.kv_heads, c.head_dim, [&](int i, int, int d) {
    const float x = normal(random);
    if (d != 0 || c.contrast == 0) return x;
    return position[static_cast<std::size_t>(i)] / 128 % 2 == 1 ? -c.contrast / 4 / unit : 0.0f;
  });
  built->v.fill(c.dtype, total_kv, c.kv_heads, c.v_dim,
                [&](int, int, int) { return normal(random); });
  Problem& p = built->problem;
  p.dtype = c.dtype;
  p.out_dtype = c.dtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBf16;
  p.q_heads = c.q_heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = c.head_dim;
  p.v_dim = c.v_dim;
  p.mask = c.mask;
  p.mask_size = c.mask_size;
  p.scale = unit;
  p.splits = c.splits;
  int q_row = 0, kv_row = 0;
  const int bytes = p.element_bytes();
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
    Request r;
    r.q_len = c.q_lens[i];
    r.kv_len = c.kv_lens[i];
    r.q_offset = c.bottom_right ? r.kv_len - r.q_len : 0;
    r.q = contiguous_rows(built->q.bytes.data(), q_row, total_q - q_row, c.q_heads, c.head_dim,
                          bytes);
    r.k = contiguous_rows(built->k.bytes.data(), kv_row, total_kv - kv_row, c.kv_heads, c.head_dim,
                          bytes);
    r.v = contiguous_rows(built->v.bytes.data(), kv_row, total_kv - kv_row, c.kv_heads, c.v_dim,
                          bytes);
    if (c.lambda >= 0) r.threshold = {Threshold::Kind::kLambda, c.lambda};
    p.requests.push_back(r);
    q_row += r.q_len;
    kv_row += r.kv_len;
    std::vector<std::uint8_t>& cells = built->custom.emplace_back(
        static_cast<std::size_t>(r.q_len) * static_cast<std::size_t>(r.kv_len));
    for (std::uint8_t& cell : cells) cell = random() % 3 != 0;
  }
  if (c.custom)
    for (const auto& cells : built->custom) p.custom_mask.push_back(cells);
  return built;
}

// A random case within what `profile` has; its size does not grow with RapidCheck's, because small
// problems visit one tile and decide nothing.
struct Sizes {
  int q_max = 90, kv_max = 300, requests_max = 2, group_max = 2;
  bool custom = false;  // whether some have a custom mask
};
inline rc::Gen<Case> cases(const Profile& profile, Sizes sizes = {}) {
  const bool decode = profile.skip.packing == Packing::kGroupRows;
  const bool fp8 = profile.fp8.has_value();
  return rc::gen::resize(
      100, rc::gen::exec([=] {
        Case c;
        const int kind = *rc::gen::inRange(0, fp8 ? 3 : 2);
        c.dtype = kind == 0 ? Dtype::kBf16 : kind == 1 ? Dtype::kF16 : Dtype::kF8E4m3;
        c.kv_heads = *rc::gen::inRange(1, 3);
        c.q_heads = c.kv_heads * *rc::gen::inRange(1, sizes.group_max + 1);
        c.head_dim = 32 * *rc::gen::inRange(1, 4);
        c.v_dim = 8 * *rc::gen::inRange(1, 4);
        const int requests = *rc::gen::inRange(1, sizes.requests_max + 1);
        c.q_lens.clear();
        c.kv_lens.clear();
        for (int i = 0; i < requests; ++i) {
          c.q_lens.push_back(*rc::gen::inRange(0, decode ? 4 : sizes.q_max));
          c.kv_lens.push_back(*rc::gen::inRange(0, sizes.kv_max));
        }
        c.mask = *rc::gen::element(MaskKind::kFull, MaskKind::kFull, MaskKind::kCausal,
                                   MaskKind::kWindow, MaskKind::kChunked);
        c.mask_size = 1 << *rc::gen::inRange(0, 8);
        c.bottom_right = *rc::gen::arbitrary<bool>();
        c.lambda = *rc::gen::element(-1.0f, 0.0f, 1e-3f, 0.02f, 0.3f, 0.999f, 1.0f, 1.5f, 20.0f);
        c.spread = *rc::gen::element(0.1f, 1.0f, 3.0f);
        c.contrast = *rc::gen::element(0.0f, 2.0f, 8.0f, 30.0f);
        c.splits = *rc::gen::inRange(1, 5);
        c.custom = sizes.custom && *rc::gen::inRange(0, 4) == 0;
        c.seed = *rc::gen::arbitrary<unsigned>();
        return c;
      }));
}

// Any profile that `wanted` accepts.
template <class Wanted>
const Profile& any_profile(const Wanted& wanted) {
  std::vector<const Profile*> list;
  for (const Profile& profile : profiles())
    if (wanted(profile)) list.push_back(&profile);
  return **rc::gen::elementOf(list);
}

inline const Profile& profile_named(std::string_view name) {
  const auto found = find_profile(name);
  CONTRACT(found.has_value(), name);
  return **found;
}

// Emulates, or fails the test with the sentence.
inline Emulation run(const Profile& profile, const Problem& problem, int threads = 1) {
  auto result = emulate(profile, problem, {threads});
  INFO((result ? std::string() : result.error().sentence));
  REQUIRE(result.has_value());
  return *std::move(result);
}

inline bool same_lse(const Emulation& a, const Emulation& b) {
  if (a.lse.size() != b.lse.size()) return false;
  for (std::size_t i = 0; i < a.lse.size(); ++i)
    if (a.lse[i].bits != b.lse[i].bits) return false;
  return true;
}

inline std::vector<Decision> decisions(const UnitResult& unit) {
  std::vector<Decision> out;
  for (const TileTrace& tile : unit.tiles) out.push_back(tile.decision);
  return out;
}

}  // namespace assay::attention::testing
