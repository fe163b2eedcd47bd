// Text of attention cases, random ones and smaller ones. Decides SPEC VER-22.1 and VER-22.3; the
// memory of a case is built.cpp's.
#include "verify/attention/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "model/core/case_text.hpp"
#include "model/core/text.hpp"

namespace assay::verify {
namespace {

using attention::MaskKind;
using attention::Threshold;

struct Key {
  std::string_view key, meaning;
};
constexpr Key kKeys[] = {
    {"dtype", "BF16, F16 or F8_E4M3"},
    {"heads", "query heads / key heads"},
    {"dim", "head size of q and k / of v"},
    {"q", "query rows of each request"},
    {"kv", "keys of each request"},
    {"mask", "full, causal, window:N or chunked:N"},
    {"align", "bottom_right, the default, or top_left"},
    {"custom", "1: a random third of the rest is hidden; 0 by default"},
    {"lambda", "threshold; neither it nor factor: no skipping"},
    {"factor", "threshold times a length"},
    {"spread", "of the queries, 1 by default"},
    {"contrast", "nats between blocks of keys, 0 by default"},
    {"block", "keys of such a block, 128 by default"},
    {"page", "rows of a page; 0, the default: contiguous"},
    {"splits", "pieces that keys are cut into, 1 by default"},
    {"scale", "of q . k; 0, the default: 1 / sqrt(dim)"},
    {"v_scale", "of values, 1 by default"},
    {"seed", "of the data"},
};
constexpr std::int32_t kLengthMax = 1 << 20;

Expected<float> parse_real(std::string_view name, std::string_view text, float min, float max) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range && end == text.data() + text.size())
    return bad_input(fmt::format(
        "{} is {}, which f32 does not hold; allowed are 0 and numbers from {:.3g} to {}", name,
        in_quotes(text), std::numeric_limits<float>::denorm_min(), max));
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min && value <= max))
    return bad_input(fmt::format("{} is {}; allowed are numbers from {} to {}", name,
                                 in_quotes(text), min, max));
  return value;
}

Expected<std::vector<std::int32_t>> parse_lengths(std::string_view name, std::string_view text) {
  std::vector<std::int32_t> list;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    ASSAY_TRY(const std::int32_t one,
              parse_integer<std::int32_t>(name, text.substr(begin, end - begin), 0, kLengthMax));
    list.push_back(one);
    begin = end + 1;
  }
  return list;
}

// "a/b", or "a" for both.
Status parse_pair(std::string_view name, std::string_view text, std::int32_t max, std::int32_t& a,
                  std::int32_t& b) {
  const std::size_t slash = text.find('/');
  ASSAY_TRY(a, parse_integer<std::int32_t>(name, text.substr(0, slash), 1, max));
  b = a;
  if (slash == std::string_view::npos) return Done{};
  ASSAY_TRY(b, parse_integer<std::int32_t>(name, text.substr(slash + 1), 1, max));
  return Done{};
}

Status parse_mask(std::string_view text, AttentionCase& c) {
  const std::size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  const bool sized = word == "window" || word == "chunked";
  if (sized != (colon != std::string_view::npos) || (!sized && word != "full" && word != "causal"))
    return bad_input(fmt::format("mask is {}; allowed are full, causal, window:N and chunked:N",
                                 in_quotes(text)));
  c.mask = word == "full"     ? MaskKind::kFull
           : word == "causal" ? MaskKind::kCausal
           : word == "window" ? MaskKind::kWindow
                              : MaskKind::kChunked;
  if (!sized) return Done{};
  ASSAY_TRY(c.mask_size, parse_integer<std::int32_t>(fmt::format("N of mask={}:N", word),
                                                     text.substr(colon + 1), 1, kLengthMax));
  return Done{};
}

Status parse_word(const KeyValue& field, std::string_view no, std::string_view yes, bool& value) {
  if (field.value != no && field.value != yes)
    return bad_input(
        fmt::format("{} is {}; allowed are {} and {}", field.key, in_quotes(field.value), no, yes));
  value = field.value == yes;
  return Done{};
}

Status parse_dtype(std::string_view text, Dtype& dtype) {
  for (const Dtype one : {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3}) {
    if (dtype_name(one) != text) continue;
    dtype = one;
    return Done{};
  }
  return bad_input(fmt::format("dtype is {}; allowed are BF16, F16 and F8_E4M3", in_quotes(text)));
}

Status parse_threshold(const KeyValue& field, AttentionCase& c) {
  if (c.threshold.kind != Threshold::Kind::kOff)
    return bad_input("both lambda and factor are given; allowed is one of them");
  c.threshold.kind =
      field.key == "lambda" ? Threshold::Kind::kLambda : Threshold::Kind::kScaleFactor;
  ASSAY_TRY(c.threshold.value,
            parse_real(field.key, field.value, 0, std::numeric_limits<float>::infinity()));
  return Done{};
}

Status parse_field(const KeyValue& field, AttentionCase& c) {
  const auto is = [&](std::string_view key) { return field.key == key; };
  if (is("dtype")) return parse_dtype(field.value, c.dtype);
  if (is("heads")) return parse_pair("heads", field.value, 1024, c.q_heads, c.kv_heads);
  if (is("dim")) return parse_pair("dim", field.value, 4096, c.dim, c.v_dim);
  if (is("mask")) return parse_mask(field.value, c);
  if (is("align")) return parse_word(field, "bottom_right", "top_left", c.top_left);
  if (is("custom")) return parse_word(field, "0", "1", c.custom);
  if (is("lambda") || is("factor")) return parse_threshold(field, c);
  if (is("q")) {
    ASSAY_TRY(c.q, parse_lengths("q", field.value));
  } else if (is("kv")) {
    ASSAY_TRY(c.kv, parse_lengths("kv", field.value));
  } else if (is("spread")) {
    ASSAY_TRY(c.spread, parse_real("spread", field.value, 0, 1e4f));
  } else if (is("contrast")) {
    ASSAY_TRY(c.contrast, parse_real("contrast", field.value, 0, 1e4f));
  } else if (is("scale")) {
    ASSAY_TRY(c.scale, parse_real("scale", field.value, 0, 1e4f));
  } else if (is("v_scale")) {
    ASSAY_TRY(c.v_scale, parse_real("v_scale", field.value, 1e-4f, 1e4f));
  } else if (is("block")) {
    ASSAY_TRY(c.block, parse_integer<std::int32_t>("block", field.value, 1, kLengthMax));
  } else if (is("page")) {
    ASSAY_TRY(c.page, parse_integer<std::int32_t>("page", field.value, 0, kLengthMax));
  } else if (is("splits")) {
    ASSAY_TRY(c.splits, parse_integer<std::int32_t>("splits", field.value, 1, 1024));
  } else {
    ASSAY_TRY(c.seed, parse_integer<std::uint64_t>("seed", field.value, 0, ~std::uint64_t{0}));
  }
  return Done{};
}

std::string mask_text(const AttentionCase& c) {
  switch (c.mask) {
    case MaskKind::kFull:
      return "full";
    case MaskKind::kCausal:
      return "causal";
    case MaskKind::kWindow:
      return fmt::format("window:{}", c.mask_size);
    case MaskKind::kChunked:
      return fmt::format("chunked:{}", c.mask_size);
  }
  CONTRACT(false, static_cast<int>(c.mask));
}

// What a property can be asked about within a minute and a few GiB on one core. Doubles, because
// products of the largest lengths of many requests pass 64 bits.
Status check_size(const AttentionCase& c) {
  const double dims = static_cast<double>(c.dim) + c.v_dim;
  double pairs = 0, rows = 0, q_longest = 0, kv_longest = 0;
  for (std::size_t i = 0; i < c.q.size(); ++i) {
    const double q = c.q[i], kv = c.kv[i];
    pairs += q * kv;
    rows += q + kv;
    // Twice the pages of the keys, and one more (in_pages).
    if (c.page > 0) rows += 2 * std::ceil(kv / c.page) * c.page + c.page;
    q_longest = std::max(q_longest, q);
    kv_longest = std::max(kv_longest, kv);
  }
  // The emulation and fp64 take 2.4 s for 2^30 products, and a property has several runs.
  constexpr double kProductsMax = 0x1p33;
  // Making an element takes 27 ns, and a property makes several problems of up to 768 MiB. Of
  // decisions, no tile has fewer than 16 keys.
  constexpr double kElementsMax = 0x1.8p28;
  const struct {
    const char* what;
    double size, max;
  } sizes[] = {
      {"q * kv * heads * (dim of k + dim of v)", pairs * c.q_heads * dims, kProductsMax},
      {"(rows of q, keys and pages) * heads * (dim of k + dim of v)", rows * c.q_heads * dims,
       kElementsMax},
      {"q * kv of a custom mask", c.custom ? pairs : 0, kElementsMax},
      {"requests * heads * longest q * longest kv / 16",
       static_cast<double>(c.q.size()) * c.q_heads * q_longest * kv_longest / 16, kElementsMax},
  };
  for (const auto& one : sizes)
    if (one.size > one.max)
      return bad_input(
          fmt::format("{} is {:.0f}; allowed are up to {:.0f}", one.what, one.size, one.max));
  return Done{};
}

}  // namespace

bool operator==(const AttentionCase& a, const AttentionCase& b) { return print(a) == print(b); }

Expected<AttentionCase> parse_attention_case(std::string_view text) {
  std::vector<std::string_view> allowed;
  for (const Key& key : kKeys) allowed.push_back(key.key);
  ASSAY_TRY(const std::vector<KeyValue> fields, parse_key_values(text, allowed));
  AttentionCase c;
  for (const KeyValue& field : fields) ASSAY_CHECK(parse_field(field, c));
  ASSAY_CHECK(check_case(c));
  return c;
}

std::string print(const AttentionCase& c) {
  std::string text = fmt::format("dtype={} heads={}/{} dim={}/{} q={} kv={} mask={}",
                                 dtype_name(c.dtype), c.q_heads, c.kv_heads, c.dim, c.v_dim,
                                 joined(c.q, ","), joined(c.kv, ","), mask_text(c));
  if (c.top_left) text += " align=top_left";
  if (c.custom) text += " custom=1";
  if (c.threshold.kind != Threshold::Kind::kOff)
    text +=
        fmt::format(" {}={}", c.threshold.kind == Threshold::Kind::kLambda ? "lambda" : "factor",
                    c.threshold.value);
  const AttentionCase usual;
  if (c.spread != usual.spread) text += fmt::format(" spread={}", c.spread);
  if (c.contrast != usual.contrast) text += fmt::format(" contrast={}", c.contrast);
  if (c.block != usual.block) text += fmt::format(" block={}", c.block);
  if (c.page != usual.page) text += fmt::format(" page={}", c.page);
  if (c.splits != usual.splits) text += fmt::format(" splits={}", c.splits);
  if (c.scale != usual.scale) text += fmt::format(" scale={}", c.scale);
  if (c.v_scale != usual.v_scale) text += fmt::format(" v_scale={}", c.v_scale);
  return text + fmt::format(" seed={}", c.seed);
}

Status check_case(const AttentionCase& c) {
  if (c.q.empty() || c.q.size() != c.kv.size())
    return bad_input(
        fmt::format("q has {} lengths and kv {}; allowed are equally many, one each "
                    "request",
                    c.q.size(), c.kv.size()));
  if (c.q_heads % c.kv_heads != 0)
    return bad_input(fmt::format("heads is {}/{}; the first must be a multiple of the second",
                                 c.q_heads, c.kv_heads));
  return check_size(c);
}

std::string attention_case_keys() {
  std::string text;
  for (const Key& key : kKeys)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", key.key, key.meaning);
  return text;
}

AttentionCase random_case(const attention::Profile& profile, Dice& dice) {
  const bool decode = profile.skip.packing == attention::Packing::kGroupRows;
  AttentionCase c;
  const Dtype types[] = {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3};
  c.dtype = types[dice.below(profile.fp8 ? 3 : 2)];
  c.kv_heads = 1 + dice.below(2);
  c.q_heads = c.kv_heads * (1 + dice.below(decode ? 5 : 2));
  c.dim = 32 * (1 + dice.below(3));
  c.v_dim = 8 * (1 + dice.below(3));
  const int requests = 1 + dice.below(2);
  c.q.clear();
  c.kv.clear();
  for (int i = 0; i < requests; ++i) {
    c.q.push_back(dice.below(decode ? 4 : 80));
    c.kv.push_back(dice.below(300));
  }
  const MaskKind masks[] = {MaskKind::kFull, MaskKind::kFull, MaskKind::kCausal, MaskKind::kWindow,
                            MaskKind::kChunked};
  c.mask = dice.pick(masks);
  if (c.mask == MaskKind::kWindow || c.mask == MaskKind::kChunked) c.mask_size = 1 << dice.below(8);
  c.top_left = dice.below(4) == 0;
  c.custom = dice.below(6) == 0;
  const float lambdas[] = {0.0f, 1e-3f, 0.02f, 0.3f, 0.999f};
  if (!profile.skip.dense_only && dice.below(6) != 0)
    c.threshold = {Threshold::Kind::kLambda, dice.pick(lambdas)};
  const float spreads[] = {0.1f, 1.0f, 3.0f};
  c.spread = dice.pick(spreads);
  const float contrasts[] = {0.0f, 2.0f, 8.0f, 30.0f};
  c.contrast = dice.pick(contrasts);
  c.block = dice.below(2) == 0 ? 128 : 64;
  c.page = dice.below(4) == 0 ? 16 : 0;
  c.splits = 1 + dice.below(4);
  c.seed = dice.next() >> 32;
  if (c.dtype == Dtype::kF8E4m3 && c.seed % 2 == 0) c.v_scale = 0.3f;
  // Rows without keys are the property no_keys', keys beyond the last one keys_end's.
  if (profile.softmax.empty != attention::EmptyGuard::kAlways || profile.skip.diagonal_only ||
      profile.softmax.zero_sum == attention::ZeroSum::kInfinite) {
    c.top_left = c.custom = false;
    for (std::size_t i = 0; i < c.q.size(); ++i) c.kv[i] = std::max({c.kv[i], c.q[i], 1});
  }
  return c;
}

std::vector<AttentionCase> smaller(const AttentionCase& c) {
  std::vector<AttentionCase> list;
  const auto with = [&](const auto& change) {
    AttentionCase other = c;
    change(other);
    if (check_case(other) && !(other == c)) list.push_back(std::move(other));
  };
  for (std::size_t i = 0; c.q.size() > 1 && i < c.q.size(); ++i) {
    with([&](AttentionCase& o) {
      o.q.erase(o.q.begin() + static_cast<std::ptrdiff_t>(i));
      o.kv.erase(o.kv.begin() + static_cast<std::ptrdiff_t>(i));
    });
  }
  with([](AttentionCase& o) { o.q_heads = o.kv_heads = 1; });
  with([](AttentionCase& o) { o.q_heads = o.q_heads / o.kv_heads, o.kv_heads = 1; });
  for (std::size_t i = 0; i < c.q.size(); ++i) {
    with([&](AttentionCase& o) { o.q[i] /= 2; });
    with([&](AttentionCase& o) { o.kv[i] /= 2; });
    with([&](AttentionCase& o) { o.q[i] -= o.q[i] > 0; });
    with([&](AttentionCase& o) { o.kv[i] -= o.kv[i] > 0; });
  }
  with([](AttentionCase& o) { o.dim = std::max(32, o.dim / 2 / 32 * 32); });
  with([](AttentionCase& o) { o.v_dim = 8; });
  with([](AttentionCase& o) { o.custom = false; });
  with([](AttentionCase& o) { o.page = 0; });
  with([](AttentionCase& o) { o.splits = 1; });
  with([](AttentionCase& o) { o.v_scale = 1; });
  with([](AttentionCase& o) { o.contrast = 0; });
  with([](AttentionCase& o) { o.spread = 1; });
  with([](AttentionCase& o) { o.mask = MaskKind::kFull, o.mask_size = 1; });
  return list;
}

}  // namespace assay::verify
