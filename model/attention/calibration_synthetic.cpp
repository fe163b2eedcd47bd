// Generated heads: integer random numbers and exactly rounded operations only, so that a line names
// the same bits on every machine. Decides SPEC ATT-8.9.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/attention/calibration_sequence.hpp"
#include "model/core/case_text.hpp"
#include "model/core/prng.hpp"
#include "model/core/text.hpp"
#include "model/numerics/convert.hpp"

namespace assay::attention {
namespace {

// The drifting part of rows: as many elements of each, and one for the sinks.
constexpr int kLocalDim = 16;

struct Key {
  std::string_view name;
  std::int32_t SyntheticHeads::*member;
  std::int32_t min, max;
};
constexpr Key kKeys[] = {
    {"heads", &SyntheticHeads::heads, 1, 1024},
    {"kv_heads", &SyntheticHeads::kv_heads, 1, 1024},
    {"kv", &SyntheticHeads::kv, 1, 1 << 20},
    {"dim", &SyntheticHeads::dim, 32, 576},
    {"sinks", &SyntheticHeads::sinks, 0, 1 << 20},
    {"local_width", &SyntheticHeads::local_width, 1, 1 << 20},
};

Expected<float> parse_real(std::string_view name, std::string_view text) {
  float value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  // 100 nats are 43 decades; more would only overflow products.
  if (code != std::errc{} || end != text.data() + text.size() || !(value >= 0 && value <= 100))
    return bad_input(
        fmt::format("{} is {}; allowed are numbers from 0 to 100", name, in_quotes(text)));
  return value;
}

Expected<std::vector<float>> parse_reals(std::string_view name, std::string_view text) {
  std::vector<float> values;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    ASSAY_TRY(const float value, parse_real(name, text.substr(at, end - at)));
    values.push_back(value);
    at = end + 1;
  }
  return values;
}

// One stream a key head, far apart by its seed.
struct Random {
  std::uint64_t state;
  std::uint64_t next() { return splitmix64(state); }
};

// Twelve uniform numbers in [0, 1), less 6: mean 0, variance 1, never beyond 6.
double normal(Random& random) {
  std::int64_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    std::uint64_t word = random.next();
    for (int j = 0; j < 4; ++j, word >>= 16) sum += static_cast<std::int64_t>(word & 0xFFFF);
  }
  return static_cast<double>(sum - 6 * 0xFFFF) / 65536;
}

std::uint16_t bf16(double x) {
  return numerics::cvt_rn_bf16_f32(numerics::from_float(static_cast<float>(x))).bits;
}

// The drift of a key head: kLocalDim independent walks that forget 1 / width a step and keep
// variance 1, so that two of them a distance of n apart have the product (1 - 1 / width)^n.
std::vector<double> drift(const SyntheticHeads& h, Random& random) {
  const double keep = 1 - 1.0 / h.local_width;
  const double fresh = std::sqrt(1 - keep * keep);
  std::vector<double> walk(static_cast<std::size_t>(h.kv) * kLocalDim);
  for (std::size_t i = 0; i < walk.size(); ++i)
    walk[i] = i < kLocalDim ? normal(random) : keep * walk[i - kLocalDim] + fresh * normal(random);
  return walk;
}

struct Tensors {
  std::vector<std::uint16_t> q, k;  // [kv, heads, dim], [kv, kv_heads, dim]
};

// Elements [0, content) are content; then, if wanted, the drift and the sink. Products are divided
// by sqrt(dim), which queries make up for.
void fill_head(const SyntheticHeads& h, int kv_head, Tensors& out) {
  // The seed's and the head's scrambled values are where the stream starts.
  Random start{h.seed};
  Random random{start.next() ^ Random{static_cast<std::uint64_t>(kv_head)}.next()};
  const auto dim = static_cast<std::size_t>(h.dim);
  const std::size_t local = h.local_gain > 0 ? kLocalDim : 0;
  const std::size_t content = dim - local - (h.sinks > 0 ? 1 : 0);
  const double root = std::sqrt(static_cast<double>(h.dim));
  const std::vector<double> walk = local > 0 ? drift(h, random) : std::vector<double>();
  const int group = h.heads / h.kv_heads;
  for (std::int32_t i = 0; i < h.kv; ++i) {
    const auto row = static_cast<std::size_t>(i);
    std::uint16_t* const k =
        &out.k[(row * static_cast<std::size_t>(h.kv_heads) + static_cast<std::size_t>(kv_head)) *
               dim];
    for (std::size_t d = 0; d < content; ++d) k[d] = bf16(normal(random));
    for (std::size_t d = 0; d < local; ++d) k[content + d] = bf16(walk[row * kLocalDim + d]);
    if (h.sinks > 0) k[dim - 1] = bf16(i < h.sinks ? 1 : 0);
    for (int g = 0; g < group; ++g) {
      const auto head = static_cast<std::size_t>(kv_head * group + g);
      std::uint16_t* const q = &out.q[(row * static_cast<std::size_t>(h.heads) + head) * dim];
      const double spread = static_cast<double>(h.spread[head % h.spread.size()]);
      const double unit = spread * root / std::sqrt(static_cast<double>(content));
      for (std::size_t d = 0; d < content; ++d) q[d] = bf16(unit * normal(random));
      const double gain = static_cast<double>(h.local_gain) * root / kLocalDim;
      for (std::size_t d = 0; d < local; ++d)
        q[content + d] = bf16(gain * walk[row * kLocalDim + d]);
      if (h.sinks > 0) q[dim - 1] = bf16(static_cast<double>(h.sink_gain) * root);
    }
  }
}

}  // namespace

Expected<SyntheticHeads> parse_synthetic(std::string_view text) {
  constexpr std::string_view kRest[] = {"spread", "sink_gain", "local_gain", "seed"};
  std::vector<std::string_view> allowed(std::begin(kRest), std::end(kRest));
  for (const Key& key : kKeys) allowed.push_back(key.name);
  ASSAY_TRY(const std::vector<KeyValue> fields, parse_key_values(text, allowed));
  SyntheticHeads h;
  bool kv_heads_given = false;
  for (const KeyValue& field : fields) {
    kv_heads_given |= field.key == "kv_heads";
    for (const Key& key : kKeys) {
      if (key.name != field.key) continue;
      ASSAY_TRY(h.*key.member,
                parse_integer<std::int32_t>(field.key, field.value, key.min, key.max));
    }
    if (field.key == "seed") {
      ASSAY_TRY(h.seed, parse_integer<std::uint64_t>("seed", field.value, 0, ~std::uint64_t{0}));
    } else if (field.key == "spread") {
      ASSAY_TRY(h.spread, parse_reals(field.key, field.value));
    } else if (field.key == "sink_gain") {
      ASSAY_TRY(h.sink_gain, parse_real(field.key, field.value));
    } else if (field.key == "local_gain") {
      ASSAY_TRY(h.local_gain, parse_real(field.key, field.value));
    }
  }
  if (!kv_heads_given) h.kv_heads = h.heads;
  if (h.heads % h.kv_heads != 0)
    return bad_input(fmt::format("heads is {}; it must be a multiple of kv_heads, which is {}",
                                 h.heads, h.kv_heads));
  if (h.dim % 32 != 0)
    return bad_input(fmt::format("dim is {}; allowed are multiples of 32", h.dim));
  return h;
}

std::string print(const SyntheticHeads& h) {
  std::string spread;
  for (const float s : h.spread) spread += fmt::format("{}{}", spread.empty() ? "" : ",", s);
  return fmt::format(
      "heads={} kv_heads={} kv={} dim={} spread={} sinks={} sink_gain={} local_gain={} "
      "local_width={} seed={}",
      h.heads, h.kv_heads, h.kv, h.dim, spread, h.sinks, h.sink_gain, h.local_gain, h.local_width,
      h.seed);
}

Expected<Samples> samples_of_synthetic(const SyntheticHeads& h, const SamplePlan& plan) {
  const auto tensors = std::make_shared<Tensors>();
  const auto elements = static_cast<std::size_t>(h.kv) * static_cast<std::size_t>(h.dim);
  tensors->q.resize(elements * static_cast<std::size_t>(h.heads));
  tensors->k.resize(elements * static_cast<std::size_t>(h.kv_heads));
  for (int head = 0; head < h.kv_heads; ++head) fill_head(h, head, *tensors);
  Sequence s;
  s.name = "synthetic";
  s.shape.q_heads = h.heads;
  s.shape.kv_heads = h.kv_heads;
  s.shape.head_dim = s.shape.v_dim = h.dim;
  s.shape.splits = plan.splits.value_or(1);
  s.shape.scale = plan.scale.value_or(1 / std::sqrt(static_cast<float>(h.dim)));
  s.q_len = s.kv_len = h.kv;
  s.q = contiguous_rows(tensors->q.data(), 0, h.kv, h.heads, h.dim, 2);
  s.k = contiguous_rows(tensors->k.data(), 0, h.kv, h.kv_heads, h.dim, 2);
  SamplePlan lengths = plan;
  if (lengths.lengths.empty())
    for (const int part : {4, 2, 1})
      if (h.kv / part > 0) lengths.lengths.push_back(h.kv / part);
  Samples out;
  out.memory.push_back(tensors);
  add_calls(s, lengths, out);
  return out;
}

}  // namespace assay::attention
