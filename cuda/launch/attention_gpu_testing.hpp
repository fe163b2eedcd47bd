// For tests that need a GPU: attention problems of any layout, built once for the model and once in
// device memory, run by the kernel, and compared bit for bit: output, LSE, decisions, counters, and
// what must not be written. Decides nothing about Assay.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cuda/launch/attention_launch.hpp"
#include "cuda/launch/decode_kernels.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/ops/wait_record.hpp"
#include "model/attention/emulate.hpp"
#include "model/numerics/convert.hpp"

namespace assay::cuda::testing {

enum class Layout { kPacked, kPadded, kPaged };
// Where thresholds come from; arrays lie in device memory.
enum class Source { kOff, kFactor, kLambda, kFactors, kLambdas };
// kNormal: with `contrast`. kSpecial: some NaN, Inf, zeros, subnormals and huge numbers among them.
// kBits: random bit patterns.
enum class Values { kNormal, kSpecial, kBits };

struct GpuCase {
  bool decode = false;  // else a prefill
  Dtype dtype = Dtype::kBf16;
  int q_heads = 1, kv_heads = 1, head_dim = 64;
  std::vector<int> q_lens{1}, kv_lens{1};
  attention::MaskKind mask = attention::MaskKind::kFull;
  int mask_size = 1;
  AttentionOffset offset = AttentionOffset::kBottomRight;
  Layout layout = Layout::kPacked;
  int page_rows = 64;
  Source source = Source::kOff;
  std::vector<float> thresholds{0};  // one per request
  float spread = 1;                  // of queries
  float contrast = 0;                // nats by which about half of the key tiles lie lower
  Values values = Values::kNormal;
  bool decisions = true;  // asked for: another kernel
  bool lse = true;
  std::int64_t k_head_stride = 0;  // elements between heads of k, if not the layout's own; packed
  int blocks = 0, chunks = 0;      // of a decode: DecodeSplit's
  bool bounds = true;              // the call says how long requests are at most
  unsigned seed = 0;
};

inline std::ostream& operator<<(std::ostream& out, const GpuCase& c) {
  out << (c.decode ? "decode " : "") << dtype_name(c.dtype) << " heads=" << c.q_heads << "/"
      << c.kv_heads << " dim=" << c.head_dim << " mask=" << static_cast<int>(c.mask) << ":"
      << c.mask_size << " offset=" << static_cast<int>(c.offset)
      << " layout=" << static_cast<int>(c.layout) << ":" << c.page_rows
      << " threshold=" << static_cast<int>(c.source) << " spread=" << c.spread
      << " contrast=" << c.contrast << " values=" << static_cast<int>(c.values)
      << " decisions=" << c.decisions << " lse=" << c.lse << " blocks=" << c.blocks << ":"
      << c.chunks << " bounds=" << c.bounds << " seed=" << c.seed << " q,kv,t=";
  for (std::size_t i = 0; i < c.q_lens.size(); ++i)
    out << c.q_lens[i] << "," << c.kv_lens[i] << "," << c.thresholds[i] << " ";
  return out;
}

// One tensor of rows on both sides, as bytes. Rows that belong to nobody hold NaN.
struct HostRows {
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> first;  // element of [request's row 0], not for pages
  std::int64_t rows = 0;            // of the row axis, as AttentionRows has it
};

inline std::uint16_t encode(Dtype dtype, float x) {
  if (dtype == Dtype::kF8E4m3) return numerics::cvt_rn_satfinite_e4m3(numerics::from_float(x)).bits;
  return dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(numerics::from_float(x)).bits
                              : numerics::cvt_rn_bf16_f32(numerics::from_float(x)).bits;
}

class GpuProblem {
 public:
  explicit GpuProblem(const GpuCase& c) : case_(c), random_(c.seed) { build(); }

  const attention::Problem& problem() const { return problem_; }
  const attention::Profile& profile() const {
    return **attention::find_profile(case_.decode ? "assay-decode-sm90" : "assay-prefill-sm90");
  }

  // Runs the kernel `times` times on fresh poison and compares each with the model; the first
  // difference as a sentence, or "".
  std::string run_and_compare(int times = 1) {
    const attention::Profile& profile = this->profile();
    const auto emulator = attention::Emulator::make(profile, problem_);
    if (!emulator) return "model: " + emulator.error().sentence;
    auto expected = attention::emulate(profile, problem_, {8});
    if (!expected) return "model: " + expected.error().sentence;
    for (int time = 0; time < times; ++time) {
      const Status ran = run();
      if (!ran) return ran.error().sentence;
      const std::string difference = compare(*emulator, *expected);
      if (!difference.empty()) return difference;
    }
    skipped_ = expected->counters.skipped;
    kept_ = expected->counters.visited - skipped_;
    return "";
  }
  std::int64_t skipped() const { return skipped_; }
  std::int64_t kept() const { return kept_; }

  Status run() {
    ASSAY_TRY(const OwnStream stream, OwnStream::make());
    ASSAY_CHECK(upload());
    ASSAY_CHECK(launch(stream.stream()));
    ASSAY_CHECK(finish(stream));
    return download();
  }
  Status launch(Stream stream) {
    if (!case_.decode) return launch_prefill(call_, stream);
    return launch_decode_kernel(call_, find_decode_kernel(call_), {case_.blocks, case_.chunks},
                                stream);
  }
  AttentionCall& call() { return call_; }
  // Uploads the inputs, and poison for the outputs.
  Status upload();
  // Waits, and says which wait in the kernel gave up if one did.
  Status finish(cudaStream_t stream) const;
  Status download();
  std::string compare(const attention::Emulator& emulator,
                      const attention::Emulation& expected) const;
  std::string compare_decisions(const attention::Emulator& emulator,
                                const attention::Emulation& expected) const;
  const std::vector<std::uint16_t>& out() const { return out_; }

 private:
  static constexpr std::uint16_t kPoison = 0xDEAD;
  static constexpr std::uint32_t kPoisonLse = 0xDEADBEEF;
  static constexpr std::uint8_t kNan = 0xFF;  // in every byte: a NaN of every type

  // Pages come with queries of both kinds.
  bool packed_q() const {
    return case_.layout == Layout::kPacked ||
           (case_.layout == Layout::kPaged && case_.seed % 2 != 0);
  }
  bool packed_kv() const { return case_.layout == Layout::kPacked; }
  std::size_t requests() const { return case_.q_lens.size(); }
  int element_bytes() const { return case_.dtype == Dtype::kF8E4m3 ? 1 : 2; }
  Dtype out_dtype() const {
    if (case_.dtype != Dtype::kF8E4m3) return case_.dtype;
    return case_.seed % 3 == 0 ? Dtype::kF16 : Dtype::kBf16;
  }
  int tile() const { return case_.decode ? kDecodeKvTile : prefill_kv_tile(case_.head_dim); }
  // Heads and rows of a token as units count them.
  int unit_heads() const { return case_.decode ? case_.kv_heads : case_.q_heads; }
  int packed() const { return case_.decode ? case_.q_heads / case_.kv_heads : 1; }

  // One element; `low` pushes column 0 of keys down, which queries answer with 4.
  std::uint16_t value(bool query, bool key, bool low, int d) {
    if (case_.values == Values::kBits) return static_cast<std::uint16_t>(random_());
    if (case_.values == Values::kSpecial && random_() % 400 == 0) {
      static constexpr std::uint16_t kOdd[] = {0x7FFF, 0xFFC1, 0x7F80, 0xFF80, 0x7C00, 0xFC00,
                                               0x8000, 0x0001, 0x8003, 0x7F7F, 0x7BFF, 0xFF7F};
      const std::uint16_t odd = kOdd[random_() % std::size(kOdd)];
      return element_bytes() == 1 ? odd >> random_() % 9 : odd;
    }
    float x = normal_(random_) * (query ? case_.spread : 1.0f);
    if (d == 0 && case_.contrast != 0) {
      if (query) x = 4.0f;
      if (key) x = low ? -case_.contrast / 4 * std::sqrt(static_cast<float>(case_.head_dim)) : 0.0f;
    }
    return encode(case_.dtype, x);
  }

  void build();
  HostRows rows_of(const std::vector<int>& lens, int heads, bool packed, bool query, bool key);
  void build_pages();
  Status spread_heads(AttentionRows& k);
  attention::Rows model_rows(const HostRows& from, std::size_t request, int heads, int len) const;

  GpuCase case_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<bool> low_;  // [64 keys of a request] whether they lie low
  HostRows q_, k_, v_;
  std::vector<std::uint8_t> pages_;
  std::vector<std::int32_t> table_;
  std::int64_t table_stride_ = 0, num_pages_ = 0;
  std::vector<std::int32_t> first_q_, first_kv_, q_offsets_;
  attention::Problem problem_;

  // Device side.
  AttentionCall call_;
  std::vector<DeviceMemory> memory_;
  std::vector<std::uint16_t> out_;
  std::vector<std::uint32_t> lse_;
  std::vector<std::uint8_t> decisions_;
  std::vector<std::uint64_t> counters_;
  void* out_device_ = nullptr;
  void* lse_device_ = nullptr;
  void* decisions_device_ = nullptr;
  void* counters_device_ = nullptr;
  std::int64_t skipped_ = 0, kept_ = 0;
};

}  // namespace assay::cuda::testing
