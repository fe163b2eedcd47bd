// assay calibrate: from captured queries and keys to the threshold scale factors of a serving
// configuration, on the tiles and by the rule of the kernel that will use them.
#include "tools/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "model/core/mapped_file.hpp"
#include "model/core/text.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/tools.hpp"

namespace assay::tools {
namespace {

using attention::Phase;
using attention::Profile;
using attention::Samples;

struct CalibrateArguments {
  const std::vector<std::string>& in;
  const OptionalText& synthetic;
  const OptionalText& profile;
  const OptionalText& target;
  const OptionalText& lengths;
  const OptionalText& decode_rows;
  const OptionalText& splits;
  const OptionalText& scale;
  const OptionalText& jobs;
  const OptionalText& out;
  const OptionalText& checkpoint;
  const OptionalText& svg;
  const bool& points;
  const bool& allow_vacuous;
  const OptionalText& json;
};

// The comma-separated parts of a value, empty ones too.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Expected<double> parse_between(const char* name, const std::string& text, double above,
                               double below) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || !(value > above && value < below))
    return bad_input(fmt::format("{} is {}; allowed are numbers above {} and below {}", name,
                                 in_quotes(text), above, below));
  return value;
}

// Of prefill and decode: null where "-" leaves a phase out. One name stands for both.
Expected<std::vector<const Profile*>> parse_profiles(const OptionalText& text) {
  if (!text)
    return bad_input(
        "--profile is missing; it names whose tiles and rule are calibrated, for prefill and "
        "decode: one name for both, or NAME,NAME with \"-\" for a phase to leave out");
  std::vector<std::string> names = parts_of(*text);
  if (names.size() == 1) names.push_back(names[0]);
  if (names.size() != 2 || (names[0] == "-" && names[1] == "-"))
    return bad_input(fmt::format(
        "--profile is {}; it takes one name, or two with a comma between them, of which "
        "one may be -",
        in_quotes(*text)));
  std::vector<const Profile*> profiles;
  for (const std::string& name : names) {
    profiles.push_back(nullptr);
    if (name == "-") continue;
    ASSAY_TRY(profiles.back(), attention::find_profile(name));
  }
  return profiles;
}

Expected<std::vector<double>> parse_targets(const OptionalText& text) {
  std::vector<double> wanted;
  for (const std::string& part : parts_of(text.value_or("0.5"))) {
    ASSAY_TRY(const double value, parse_between("--target", part, 0, 1));
    wanted.push_back(value);
  }
  if (wanted.size() == 1) wanted.push_back(wanted[0]);
  if (wanted.size() != 2)
    return bad_input(
        fmt::format("--target is {}; it takes one number, or one for prefill and one "
                    "for decode",
                    in_quotes(*text)));
  return wanted;
}

Expected<attention::SamplePlan> parse_plan(const CalibrateArguments& from) {
  attention::SamplePlan plan;
  if (from.lengths) {
    for (const std::string& part : parts_of(*from.lengths)) {
      ASSAY_TRY(const std::int32_t length,
                parse_integer<std::int32_t>("--lengths", part, 1, 1 << 24));
      plan.lengths.push_back(length);
    }
  }
  ASSAY_TRY(plan.decode_rows,
            integer_or<std::int32_t>("--decode-rows", from.decode_rows, 1, 1 << 20, 16));
  if (from.splits) {
    ASSAY_TRY(plan.splits, parse_integer<std::int32_t>("--splits", *from.splits, 1, 65535));
  }
  if (from.scale) {
    ASSAY_TRY(const double scale, parse_between("--scale", *from.scale, 0, 1e30));
    plan.scale = static_cast<float>(scale);
  }
  return plan;
}

Expected<Samples> read_samples(const CalibrateArguments& from, const attention::SamplePlan& plan) {
  if (from.synthetic.has_value() != from.in.empty())
    return bad_input(from.synthetic ? "--in and --synthetic are both given; allowed is one of them"
                                    : "--in is missing; it names a file with q and k, several may "
                                      "be given; or --synthetic generates heads");
  if (from.synthetic) {
    ASSAY_TRY(const attention::SyntheticHeads heads, attention::parse_synthetic(*from.synthetic));
    return attention::samples_of_synthetic(heads, plan);
  }
  Samples all;
  for (const std::string& path : from.in) {
    ASSAY_TRY(Samples some, attention::samples_of_file(path, plan));
    const auto name_file = [&](auto& list) {
      for (auto& one : list)
        one.name =
            fmt::format("{} of {}", one.name, std::filesystem::path(path).filename().string());
    };
    if (from.in.size() > 1) name_file(some.list), name_file(some.left_out);
    std::move(some.list.begin(), some.list.end(), std::back_inserter(all.list));
    std::move(some.left_out.begin(), some.left_out.end(), std::back_inserter(all.left_out));
    std::move(some.memory.begin(), some.memory.end(), std::back_inserter(all.memory));
  }
  return all;
}

Status write_text(const OptionalText& path, const std::string& text) {
  if (!path) return Done{};
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  return write_file(*path, {&part, 1});
}

Expected<CalibratedPhases> calibrate_all(const std::vector<const Profile*>& profiles,
                                         const Samples& samples, const std::vector<double>& wanted,
                                         int jobs) {
  CalibratedPhases phases;
  Progress progress("samples", static_cast<std::int64_t>(samples.list.size()));
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const auto at = static_cast<std::size_t>(phase);
    const bool there = std::any_of(samples.list.begin(), samples.list.end(),
                                   [&](const auto& sample) { return sample.phase == phase; });
    if (profiles[at] == nullptr || !there) continue;
    attention::CalibrationOptions options;
    options.threads = jobs;
    options.on_sample = [&] { progress.advance(); };
    options.wanted = wanted[at];
    ASSAY_TRY(attention::PhaseCalibration result,
              attention::calibrate(*profiles[at], phase, samples, options));
    phases.push_back({std::move(result), wanted[at]});
  }
  if (phases.empty())
    return bad_input(
        fmt::format("the input holds {} calls only, and --profile names none for it; {}",
                    samples.list.empty() ? "no" : phase_name(samples.list.front().phase),
                    "a prefill call has two query rows and more, a decode call one"));
  return phases;
}

// Phases that --profile names a profile for and the input holds no call of.
std::vector<Phase> missing_of(const std::vector<const Profile*>& profiles,
                              const CalibratedPhases& phases) {
  std::vector<Phase> missing;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const auto is = [&](const CalibratedPhase& one) { return one.result.phase == phase; };
    if (profiles[static_cast<std::size_t>(phase)] != nullptr &&
        std::none_of(phases.begin(), phases.end(), is))
      missing.push_back(phase);
  }
  return missing;
}

// Every output can be written, and none is another file of the command.
Expected<Output> open_outputs(const CalibrateArguments& from) {
  ASSAY_TRY(Output output, Output::open(from.json, {from.out, from.checkpoint, from.svg}));
  for (const auto* path : {&from.out, &from.checkpoint, &from.svg}) {
    if (!*path) continue;
    ASSAY_CHECK(check_writable(**path));
    for (const std::string& in : from.in) ASSAY_CHECK(check_not_input(**path, {in}));
    for (const auto* other : {&from.out, &from.checkpoint, &from.svg})
      if (other != path) ASSAY_CHECK(check_not_input(**path, {*other}));
  }
  if (from.json)
    for (const std::string& in : from.in) ASSAY_CHECK(check_not_input(*from.json, {in}));
  return output;
}

Expected<ExitCode> run_calibrate(const CalibrateArguments& from) {
  ASSAY_TRY(const Output output, open_outputs(from));
  ASSAY_TRY(const std::vector<const Profile*> profiles, parse_profiles(from.profile));
  ASSAY_TRY(const std::vector<double> wanted, parse_targets(from.target));
  ASSAY_TRY(const attention::SamplePlan plan, parse_plan(from));
  const auto cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  ASSAY_TRY(const std::int32_t jobs,
            integer_or<std::int32_t>("--jobs", from.jobs, 1, 1024, std::min(cores, 1024)));
  ASSAY_TRY(const Samples samples, read_samples(from, plan));
  if (const Status cut = check_lengths(plan, samples); !cut)
    return cut.error().within(from.synthetic ? "--lengths" : joined(from.in));
  ASSAY_TRY(const CalibratedPhases phases, calibrate_all(profiles, samples, wanted, jobs));

  std::vector<Value> reasons;
  for (const CalibratedPhase& phase : phases)
    if (!phase.result.vacuous.empty())
      reasons.push_back(
          fmt::format("{}: {}", phase_name(phase.result.phase), phase.result.vacuous));
  const bool trusted = reasons.empty() || from.allow_vacuous;
  Document document;
  document.field("verdict", std::string(reasons.empty() ? "CALIBRATED" : "MISTRUSTED"));
  document.list("reasons", reasons);
  if (from.synthetic) {
    ASSAY_TRY(const attention::SyntheticHeads heads, attention::parse_synthetic(*from.synthetic));
    document.field("synthetic", print(heads));
  } else {
    document.list("in", {from.in.begin(), from.in.end()});
  }
  for (const CalibratedPhase& phase : phases) describe_phase(document, phase, from.points);
  document.table("left_out", left_out_of(samples));
  document.table("warnings", warnings_of(phases, missing_of(profiles, phases)));
  // What is not to be trusted leaves nothing behind that could be used (SPEC ATT-8.10).
  if (trusted) {
    // Two things with the same fields: what one reads here, and what --out writes.
    const nlohmann::ordered_json config = serving_config(phases);
    document.rendered("config", config.dump(2), config);
    ASSAY_CHECK(write_text(from.out, config.dump(2) + "\n"));
    ASSAY_CHECK(write_text(from.checkpoint, checkpoint_config(phases).dump(2) + "\n"));
    ASSAY_CHECK(write_text(from.svg, calibration_plot(phases)));
  }
  ASSAY_CHECK(output.write(document));
  return trusted ? ExitCode::kConforms : ExitCode::kMismatch;
}

}  // namespace

Action declare_calibrate(Arguments& arguments) {
  const CalibrateArguments from{
      arguments.repeated("--in", "FILE", "safetensors with q and k: a capture, or golden inputs"),
      arguments.option(
          "--synthetic", "LINE",
          "generated heads; missing keys are from \"" + print(attention::SyntheticHeads()) + "\""),
      arguments.option("--profile", "NAME[,NAME]",
                       "whose tiles and rule, for prefill and decode; - leaves a phase out"),
      arguments.option("--target", "S[,S]",
                       "sparsity of the configuration, prefill and decode (default 0.5)"),
      arguments.option("--lengths", "N,N...", "take the first N keys of every request"),
      arguments.option("--decode-rows", "N",
                       "last rows of a request that become decode calls (default 16), where no "
                       "step says which were"),
      arguments.option("--splits", "N",
                       "pieces that decode kernels cut keys into (default: the file's, or 1)"),
      arguments.option("--scale", "X", "of q . k; default: the file's, or 1 / sqrt(head_dim)"),
      arguments.option("--jobs", "N", "threads (default: cores); results are the same for any N"),
      arguments.option("--out", "FILE", "write TensorRT-LLM's configuration, JSON"),
      arguments.option("--checkpoint", "FILE",
                       "write the curve as a part of a checkpoint's config.json"),
      arguments.option("--svg", "FILE", "plot sparsity against factor"),
      arguments.flag("--points", "list every threshold that was measured"),
      arguments.flag("--allow-vacuous", "exit 0, and write, even if a phase is not to be trusted"),
      arguments.json()};
  return [from] { return run_calibrate(from); };
}

}  // namespace assay::tools
