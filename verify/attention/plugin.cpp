// Hands a problem to a shared library and takes its outputs back. Decides SPEC VER-22.5.
#include "verify/attention/plugin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/core/text.hpp"
#include "verify/subject/foreign.hpp"

namespace assay::verify {
namespace {

using attention::Problem;
using attention::Request;

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xFA};
// What was not written stays. Signalling NaNs: arithmetic and conversions give none, so a kernel
// that writes one has copied it. No decision is 0xFA.
constexpr std::uint16_t kPoisonF16 = 0x7D5A, kPoisonBf16 = 0x7FA5;
constexpr std::uint32_t kPoisonF32 = 0x7FA5A5A5;
constexpr std::uint8_t kPoisonDecision = 0xFA;

std::uint16_t poison_of(const Problem& p) {
  return p.out_dtype == Dtype::kF16 ? kPoisonF16 : kPoisonBf16;
}

// `count` elements that hold poison, between two guards.
template <class T>
class Guarded {
 public:
  Guarded(std::size_t count, T poison)
      : bytes_(count * sizeof(T)), memory_(bytes_ + 2 * kGuardBytes, kGuard) {
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(&memory_[kGuardBytes + i * sizeof(T)], &poison, sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(memory_.data() + kGuardBytes); }
  bool intact() const {
    const auto untouched = [](std::byte b) { return b == kGuard; };
    const auto behind = static_cast<std::ptrdiff_t>(kGuardBytes + bytes_);
    return std::all_of(memory_.begin(), memory_.begin() + kGuardBytes, untouched) &&
           std::all_of(memory_.begin() + behind, memory_.end(), untouched);
  }
  std::vector<T> take() const {
    std::vector<T> out(bytes_ / sizeof(T));
    if (bytes_ > 0) std::memcpy(out.data(), memory_.data() + kGuardBytes, bytes_);
    return out;
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

assay_attention_rows wire(const attention::Rows& rows) {
  return {rows.base,        rows.row_stride, rows.head_stride, rows.available,
          rows.block_table, rows.page_rows,  rows.page_stride};
}

std::int32_t wire(Dtype dtype) {
  if (dtype == Dtype::kF8E4m3) return ASSAY_DTYPE_F8_E4M3;
  return dtype == Dtype::kF16 ? ASSAY_DTYPE_F16 : ASSAY_DTYPE_BF16;
}

assay_attention_request wire(const Problem& p, std::size_t i) {
  const Request& r = p.requests[i];
  assay_attention_request w{};
  w.struct_size = sizeof w;
  w.q = wire(r.q);
  w.k = wire(r.k);
  w.v = wire(r.v);
  w.q_len = r.q_len;
  w.kv_len = r.kv_len;
  w.q_offset = r.q_offset;
  w.threshold_kind = static_cast<std::int32_t>(r.threshold.kind);
  w.threshold = r.threshold.value;
  w.custom_mask = p.custom_mask.empty() ? nullptr : p.custom_mask[i].data();
  return w;
}

// What a call owns while it lasts.
struct Call {
  std::string profile;
  std::vector<assay_attention_request> requests;
  assay_attention_call c{};
};

void describe(const Problem& p, int threads, Call& call) {
  assay_attention_call& c = call.c;
  c.struct_size = sizeof c;
  c.profile = call.profile.c_str();
  c.dtype = wire(p.dtype);
  c.out_dtype = wire(p.out_dtype);
  c.q_heads = p.q_heads;
  c.kv_heads = p.kv_heads;
  c.head_dim = p.head_dim;
  c.v_dim = p.v_dim;
  c.mask = static_cast<std::int32_t>(p.mask);
  c.mask_size = p.mask_size;
  c.scale = p.scale;
  c.softcap = p.softcap;
  c.q_scale = p.q_scale;
  c.k_scale = p.k_scale;
  c.v_scale = p.v_scale;
  c.sinks = p.sinks.empty() ? nullptr : p.sinks.data();
  c.alibi_slopes = p.alibi_slopes.empty() ? nullptr : p.alibi_slopes.data();
  c.splits = p.splits;
  c.threads = threads;
  for (std::size_t i = 0; i < p.requests.size(); ++i) call.requests.push_back(wire(p, i));
  c.num_requests = static_cast<std::int32_t>(call.requests.size());
  c.requests = call.requests.data();
  c.visited = c.skipped = -1;
}

// [request, unit head, unit, tile] of the profile.
std::array<int, 4> decision_shape(const attention::Profile& profile, const Problem& problem) {
  std::array<int, 4> shape{static_cast<int>(problem.requests.size()), 0, 0, 0};
  const auto emulation = attention::emulate(profile, problem);
  const auto emulator = attention::Emulator::make(profile, problem);
  if (!emulation || !emulator) return shape;
  return attention::decision_map(*emulator, *emulation).extents;
}

AttentionRun failed(std::string message) {
  return {AttentionRun::State::kFailed, std::move(message), {}};
}

class AttentionPlugin : public AttentionSubject {
 public:
  AttentionPlugin(const assay_attention_subject* table, std::string spec,
                  std::shared_ptr<void> library)
      : library_(std::move(library)), table_(table), spec_(std::move(spec)) {}
  std::string name() const override { return spec_; }

  AttentionRun run(const attention::Profile& profile, const Problem& problem,
                   int threads) const override {
    if (problem.rope_dim > 0)
      return {AttentionRun::State::kUnsupported,
              "the interface of plugins has no keys in two parts (MLA)",
              {}};
    const auto rows =
        static_cast<std::size_t>(problem.first_row(problem.requests.size()) * problem.q_heads);
    Call call;
    call.profile = profile.name;
    describe(problem, threads, call);
    const auto resolved = attention::resolve(profile, problem);
    const bool wants_lse = resolved && resolved->softmax.lse != attention::LseForm::kNone;
    attention::DecisionMap map;
    map.extents = decision_shape(profile, problem);
    std::size_t cells = 1;
    for (const int extent : map.extents) cells *= static_cast<std::size_t>(extent);
    Guarded<std::uint16_t> out(rows * static_cast<std::size_t>(problem.v_dim), poison_of(problem));
    Guarded<F32> lse(rows, F32{kPoisonF32});
    Guarded<std::uint8_t> decision(cells, kPoisonDecision);
    call.c.out = out.data();
    call.c.lse = wants_lse ? reinterpret_cast<float*>(lse.data()) : nullptr;
    call.c.decision = decision.data();
    std::copy(map.extents.begin(), map.extents.end(), call.c.decision_shape);

    assay_message message{};
    const auto returned =
        call_foreign(spec_, "run", [&] { return table_->run(&call.c, &message); });
    if (!returned) return failed(returned.error().sentence);
    const int code = *returned;
    AttentionRun result;
    result.message = text_of(message);
    if (code == ASSAY_UNSUPPORTED) {
      result.state = AttentionRun::State::kUnsupported;
      if (result.message.empty()) result.message = "the subject gave no reason";
      return result;
    }
    if (code != ASSAY_OK)
      return failed(result.message.empty()
                        ? fmt::format("run returned {} and left no message", code)
                        : result.message);
    if (!out.intact() || !lse.intact() || !decision.intact())
      return failed(fmt::format("bytes around {} were overwritten", !out.intact()   ? "out"
                                                                    : !lse.intact() ? "lse"
                                                                                    : "decision"));
    AttentionAnswer& answer = result.answer;
    answer.out = out.take();
    if (wants_lse) answer.lse = lse.take();
    if (call.c.decision_written != 0) {
      map.cells = decision.take();
      answer.decision = std::move(map);
    }
    if (call.c.visited >= 0) answer.visited = call.c.visited;
    if (call.c.skipped >= 0) answer.skipped = call.c.skipped;
    return unwritten(problem, std::move(result));
  }

 private:
  // An output that still holds the poison is told as that, not as a wrong value.
  static AttentionRun unwritten(const Problem& problem, AttentionRun run) {
    const auto& out = run.answer.out;
    const auto dim = static_cast<std::size_t>(problem.v_dim);
    const auto heads = static_cast<std::size_t>(problem.q_heads);
    const auto first = std::find(out.begin(), out.end(), poison_of(problem));
    if (first != out.end()) {
      const auto at = static_cast<std::size_t>(first - out.begin());
      return failed(fmt::format("out was not written at row {} head {} element {}",
                                at / dim / heads, at / dim % heads, at % dim));
    }
    for (std::size_t i = 0; i < run.answer.lse.size(); ++i) {
      if (run.answer.lse[i].bits == kPoisonF32)
        return failed(fmt::format("lse was not written at row {} head {}", i / heads, i % heads));
    }
    return run;
  }

  std::shared_ptr<void> library_;
  const assay_attention_subject* table_;
  std::string spec_;
};

Expected<std::unique_ptr<AttentionSubject>> wrap(const assay_attention_subject* table,
                                                 std::string spec, std::shared_ptr<void> library) {
  if (table == nullptr) return bad_input(fmt::format("subject {} has no table", in_quotes(spec)));
  if (table->abi_version != ASSAY_ATTENTION_ABI_VERSION)
    return bad_input(fmt::format("subject {} has attention ABI version {}; this build speaks {}",
                                 in_quotes(spec), table->abi_version, ASSAY_ATTENTION_ABI_VERSION));
  if (table->struct_size < sizeof(assay_attention_subject))
    return bad_input(fmt::format("subject {} has a table of {} bytes; version {} needs {}",
                                 in_quotes(spec), table->struct_size, ASSAY_ATTENTION_ABI_VERSION,
                                 sizeof(assay_attention_subject)));
  if (table->run == nullptr || table->name == nullptr)
    return bad_input(fmt::format("subject {} leaves {} null", in_quotes(spec),
                                 table->run == nullptr ? "run" : "name"));
  return std::unique_ptr<AttentionSubject>(
      new AttentionPlugin(table, std::move(spec), std::move(library)));
}

}  // namespace

Expected<std::unique_ptr<AttentionSubject>> wrap_attention_table(
    const assay_attention_subject* table, std::string spec) {
  return wrap(table, std::move(spec), nullptr);
}

Expected<std::unique_ptr<AttentionSubject>> load_attention_plugin(const std::string& file) {
  const std::string spec = std::string(kPluginSpec) + file;
  ASSAY_TRY(const Library library, open_plugin(spec, ASSAY_ATTENTION_SUBJECT_ENTRY_NAME,
                                               "verify/subject/attention_subject.h"));
  ASSAY_TRY(const assay_attention_subject* const table,
            call_foreign(spec, ASSAY_ATTENTION_SUBJECT_ENTRY_NAME,
                         reinterpret_cast<assay_attention_subject_entry>(library.entry)));
  return wrap(table, spec, library.owner);
}

}  // namespace assay::verify
