// The simulated subject, and where a subject's name becomes one. Decides SPEC VER-22.4.
#include "verify/attention/subject.hpp"

#include <fmt/format.h>

#include "model/core/text.hpp"
#include "verify/attention/cuda_attention.hpp"
#include "verify/attention/plugin.hpp"
#include "verify/subject/foreign.hpp"

namespace assay::verify {
namespace {

class SimulatedAttention : public AttentionSubject {
 public:
  std::string name() const override { return "sim"; }
  bool is_profile() const override { return true; }
  bool concurrent() const override { return true; }
  AttentionRun run(const attention::Profile& profile, const attention::Problem& problem,
                   int threads) const override {
    return emulated(profile, problem, threads);
  }
};

}  // namespace

AttentionRun emulated(const attention::Profile& computed, const attention::Problem& problem,
                      int threads) {
  AttentionRun run;
  const auto emulator = attention::Emulator::make(computed, problem);
  if (!emulator) {
    run.state = emulator.error().kind == ErrorKind::kUnsupported ? AttentionRun::State::kUnsupported
                                                                 : AttentionRun::State::kFailed;
    run.message = emulator.error().sentence;
    return run;
  }
  auto result = attention::emulate(computed, problem, {threads});
  CONTRACT(result.has_value(), result ? "" : result.error().sentence);
  run.answer.out = std::move(result->out);
  if (result->lse_form != attention::LseForm::kNone) run.answer.lse = std::move(result->lse);
  run.answer.decision = attention::decision_map(*emulator, *result);
  run.answer.visited = result->counters.visited;
  run.answer.skipped = result->counters.skipped;
  return run;
}

const AttentionSubject& simulated_attention() {
  static const SimulatedAttention subject;
  return subject;
}

Expected<std::unique_ptr<AttentionSubject>> load_attention_subject(
    std::string_view spec, std::optional<std::string_view> mutant, bool sim_allowed) {
  if (spec == "cuda") {
    auto cuda = load_cuda_attention(mutant);
    if (cuda || cuda.error().kind != ErrorKind::kUnsupported) return cuda;
    return unsupported(fmt::format("{}; allowed here {}plugin:FILE", cuda.error().sentence,
                                   sim_allowed ? "are sim and " : "is "));
  }
  if (mutant)
    return bad_input(fmt::format("mutant {} is a wrong CUDA kernel; --subject {} cannot be it",
                                 in_quotes(*mutant), in_quotes(spec)));
  if (spec == "sim" && sim_allowed)
    return std::unique_ptr<AttentionSubject>(new SimulatedAttention);
  if (begins_with(spec, kPluginSpec))
    return load_attention_plugin(std::string(spec.substr(kPluginSpec.size())));
  if (sim_allowed)
    return bad_input(fmt::format(
        "subject is {}; of attention, allowed are sim, cuda and plugin:FILE", in_quotes(spec)));
  return bad_input(
      fmt::format("subject is {}; allowed are cuda and plugin:FILE; sim computes what their "
                  "outputs are compared with",
                  in_quotes(spec)));
}

}  // namespace assay::verify
