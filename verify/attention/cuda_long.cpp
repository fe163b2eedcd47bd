// Runs long problems on the current device. See long.hpp.
#include <fmt/format.h>

#include <algorithm>

#include "cuda/emulator/emulator.hpp"
#include "cuda/launch/attention_kernels.hpp"
#include "cuda/launch/attention_tensors.hpp"
#include "cuda/launch/attention_wait.hpp"
#include "model/attention/parallel.hpp"
#include "model/core/prng.hpp"
#include "verify/attention/cuda_attention.hpp"
#include "verify/attention/cuda_mutants.hpp"
#include "verify/attention/device_call.hpp"
#include "verify/attention/long.hpp"

namespace assay::verify {
namespace {

using cuda::AttentionCall;
using cuda::AttentionTensors;
using cuda::DeviceMemory;

constexpr std::chrono::seconds kKernelBudget{20};
constexpr std::chrono::minutes kEmulatorBudget{5};

template <class T>
Status read_back(const DeviceMemory& from, std::vector<T>& to) {
  to.resize(from.bytes() / sizeof(T));
  ASSAY_CUDA(cudaMemcpy(to.data(), from.data(), to.size() * sizeof(T), cudaMemcpyDeviceToHost),
             "reading back");
  return Done{};
}

struct Answer {
  std::vector<std::uint16_t> out;
  std::vector<F32> lse;
  std::vector<std::uint8_t> decisions;
  std::vector<std::uint64_t> counters;
  double ms = 0;
  LongAnswer view() const { return {out, lse, decisions, counters}; }
};

class LongRun {
 public:
  LongRun(const LongCase& c, const LongOptions& options) : c_(c), options_(options) {}

  Expected<LongResult> run() {
    ASSAY_TRY(profile_, attention::find_profile(c_.decode ? kDecodeProfile : kPrefillProfile));
    ASSAY_TRY(stream_, cuda::OwnStream::make());
    ASSAY_TRY(record_, cuda::AttentionWaitRecord::make());
    const cuda::AttentionShape shape{c_.dtype,    c_.q_heads, c_.kv_heads, c_.dim,
                                     rows_of(c_), c_.length,  c_.decode};
    auto tensors = AttentionTensors::make(shape);
    if (!tensors) return unsupported(tensors.error().sentence);
    ASSAY_CHECK(tensors->draw(recipes_of(shape,
                                         c_.whole_tiles ? cuda::AttentionPattern::kWholeTiles
                                                        : cuda::AttentionPattern::kUnits,
                                         c_.sparsity),
                              stream_));
    ASSAY_TRY(const attention::Threshold threshold, threshold_of(*tensors));
    result_.c = c_;
    result_.lambda = threshold.value;
    ASSAY_CHECK(compare(*tensors, threshold));
    finish_report();
    return std::move(result_);
  }

 private:
  Expected<attention::Threshold> threshold_of(const AttentionTensors& tensors) {
    using Kind = attention::Threshold::Kind;
    if (c_.sparsity == 0) return attention::Threshold{};
    if (c_.whole_tiles) return attention::Threshold{Kind::kLambda, 1e-3f};
    ASSAY_TRY(const float lambda, tensors.lambda_for(c_.sparsity, c_.causal, stream_));
    return attention::Threshold{Kind::kLambda, lambda};
  }

  Status launch(const AttentionTensors& tensors, const AttentionCall& call) {
    for (const CudaAttentionMutant* mutant : registered_cuda_attention_mutants()) {
      if (options_.mutant != mutant->name) continue;
      if (!c_.decode)
        return cuda::launch_prefill_kernel(call, prefill_kernel_for(mutant, call),
                                           stream_.stream());
      return cuda::launch_decode_kernel(call, decode_kernel_for(mutant, call), {},
                                        stream_.stream());
    }
    return tensors.launch(call, stream_);
  }

  Expected<Answer> answer(const AttentionTensors& t, const attention::Threshold& threshold,
                          bool traced) {
    AttentionCall call = t.call(c_.causal);
    if (threshold.kind != attention::Threshold::Kind::kOff) {
      call.threshold = cuda::AttentionThreshold::kLambda;
      call.threshold_value = threshold.value;
    }
    const auto heads = static_cast<std::size_t>(c_.decode ? c_.kv_heads : c_.q_heads);
    call.decision_units = units();
    call.decision_tiles = tiles();
    ASSAY_TRY(const DeviceMemory decisions,
              DeviceMemory::make(
                  heads * static_cast<std::size_t>(units()) * static_cast<std::size_t>(tiles()),
                  "decisions"));
    ASSAY_TRY(const DeviceMemory counters, DeviceMemory::make(heads * 16, "counters"));
    ASSAY_CUDA(cudaMemsetAsync(counters.data(), 0, counters.bytes(), stream_), "zeroing counters");
    ASSAY_CUDA(cudaMemsetAsync(t.out().data(), 0xFF, t.out().bytes(), stream_), "poisoning out");
    ASSAY_CUDA(cudaMemsetAsync(t.lse().data(), 0xFF, t.lse().bytes(), stream_), "poisoning lse");
    call.counters = static_cast<std::uint64_t*>(counters.data());
    if (traced) call.decisions = static_cast<std::uint8_t*>(decisions.data());
    call.record = record_.on_device();
    call.timeout_ns = 5'000'000'000;
    const auto begin = std::chrono::steady_clock::now();
    ASSAY_CHECK(launch(t, call));
    const Status ended = cuda::wait_for(stream_, kKernelBudget, "the attention kernel");
    if (!ended) return record_.told(ended.error());
    Answer a;
    a.ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    ASSAY_CHECK(read_back(t.out(), a.out));
    ASSAY_CHECK(read_back(t.lse(), a.lse));
    ASSAY_CHECK(read_back(counters, a.counters));
    if (traced) ASSAY_CHECK(read_back(decisions, a.decisions));
    return a;
  }

  Status compare(const AttentionTensors& tensors, const attention::Threshold& threshold) {
    std::vector<Mismatch>& wrong = result_.report.mismatches;
    const auto first = answer(tensors, threshold, true);
    if (!first) return failed(first.error());
    const Answer& traced = *first;
    result_.kernel_ms = traced.ms;
    {
      const auto second = answer(tensors, threshold, false);
      if (!second) return failed(second.error());
      const Answer& plain = *second;
      if (plain.out != traced.out || plain.counters != traced.counters ||
          !std::equal(plain.lse.begin(), plain.lse.end(), traced.lse.begin(),
                      [](F32 a, F32 b) { return a.bits == b.bits; })) {
        Mismatch m;
        m.check = "attention.trace";
        m.clause = "CUD-6.6";
        m.sentence = "asked for decisions, the kernel gives other bits than without";
        wrong.push_back(std::move(m));
      }
    }
    const attention::Problem problem = tensors.problem(c_.causal, threshold);
    ASSAY_TRY(const auto device, cuda::DeviceEmulator::make(*profile_, problem));
    cuda::DeviceEmulateOptions options;
    options.budget = kEmulatorBudget;
    options.kernel_ms = &result_.emulator_ms;
    ASSAY_TRY(const attention::Emulation expected, device.run_all(options));
    result_.visited = expected.counters.visited;
    result_.skipped = expected.counters.skipped;
    result_.elements = static_cast<std::int64_t>(expected.out.size());
    compare_whole(device.emulator(), expected, tiles(), traced.view(), wrong);
    return compare_samples(tensors, threshold, traced);
  }

  // A launch that failed or did not end is a finding; one that there is no kernel for is not.
  Status failed(const Error& error) {
    if (error.kind == ErrorKind::kUnsupported) return error;
    Mismatch m;
    m.check = "attention.run";
    m.clause = "CUD-6.4";
    m.sentence = "the kernel failed: " + error.sentence;
    m.unit = "launches";
    result_.report.mismatches.push_back(std::move(m));
    return Done{};
  }

  // The host's emulator on units drawn at random, its tensors read back from the device.
  Status compare_samples(const AttentionTensors& tensors, const attention::Threshold& threshold,
                         const Answer& traced) {
    std::vector<std::byte> q, k, v;
    ASSAY_CHECK(read_back(tensors.q(), q));
    ASSAY_CHECK(read_back(tensors.k(), k));
    ASSAY_CHECK(read_back(tensors.v(), v));
    attention::Problem host = tensors.problem(c_.causal, threshold);
    host.requests[0].q.base = q.data();
    host.requests[0].k.base = k.data();
    host.requests[0].v.base = v.data();
    ASSAY_TRY(const auto emulator, attention::Emulator::make(*profile_, host));
    std::vector<std::vector<Mismatch>> wrong(static_cast<std::size_t>(c_.samples));
    std::uint64_t state = c_.seed;
    std::vector<std::size_t> chosen;
    for (std::int32_t i = 0; i < c_.samples; ++i)
      chosen.push_back(splitmix64(state) % emulator.units().size());
    attention::parallel_for(c_.samples, options_.threads, [&](std::int64_t at, int) {
      const auto i = static_cast<std::size_t>(at);
      const attention::UnitResult unit = emulator.run(emulator.units()[chosen[i]]);
      compare_unit(emulator, unit, units(), tiles(), traced.view(), wrong[i]);
    });
    for (auto& list : wrong)
      for (Mismatch& m : list) {
        m.sentence += " on the host";
        result_.report.mismatches.push_back(std::move(m));
      }
    return Done{};
  }

  void finish_report() {
    Report& r = result_.report;
    r.title = fmt::format("suite attention.long, {}", print(c_));
    r.compared = {{"out", result_.elements},
                  {"lse", result_.elements / c_.dim},
                  {"tiles kept", result_.visited - result_.skipped},
                  {"tiles skipped", result_.skipped},
                  {"units on the host", c_.samples}};
    r.provenance = oracle_provenance();
    r.provenance.insert(r.provenance.begin(), {{"subject", "cuda"},
                                               {"profile", std::string(profile_->name)},
                                               {"lambda", fmt::format("{:g}", result_.lambda)}});
    r.repro.flags = {{"--suite", "attention.long"}, {"--subject", "cuda"}};
    if (!options_.mutant.empty()) r.repro.flags.emplace_back("--mutant", options_.mutant);
    r.repro.flags.emplace_back("--case", print(c_));
    const bool proves =
        c_.sparsity == 0 || (result_.skipped > 0 && result_.skipped < result_.visited);
    if (!r.mismatches.empty()) {
      r.verdict = Verdict::kMismatch;
    } else if (!proves) {
      r.verdict = options_.allow_vacuous ? Verdict::kConforms : Verdict::kMistrusted;
      r.reasons.push_back("nothing was skipped, or nothing kept");
    }
  }

  std::int32_t units() const {
    return (rows_of(c_) * (c_.decode ? c_.q_heads / c_.kv_heads : 1) + 63) / 64;
  }
  std::int32_t tiles() const {
    const int tile = c_.decode ? cuda::kDecodeKvTile : cuda::prefill_kv_tile(c_.dim);
    return (c_.length + tile - 1) / tile;
  }

  const LongCase& c_;
  const LongOptions& options_;
  const attention::Profile* profile_ = nullptr;
  cuda::OwnStream stream_;
  cuda::AttentionWaitRecord record_;
  LongResult result_;
};

}  // namespace

Expected<LongResult> run_long(const LongCase& c, const LongOptions& options) {
  // The subject's own refusals: no device, another architecture, a mutant that does not exist.
  std::optional<std::string_view> mutant;
  if (!options.mutant.empty()) mutant = options.mutant;
  ASSAY_TRY(const auto subject, load_cuda_attention(mutant));
  return LongRun(c, options).run();
}

}  // namespace assay::verify
