// Where a subject's name becomes a subject: the only file that knows all of them.
#include <fmt/format.h>

#include <vector>

#include "model/core/text.hpp"
#include "verify/mutants/cuda_mutants.hpp"
#ifdef ASSAY_WITH_CUDA
#include "verify/subject/cuda_subject.hpp"
#include "verify/subject/kernels_subject.hpp"
#endif
#include "verify/subject/foreign.hpp"
#include "verify/subject/sim_subject.hpp"
#include "verify/subject/subject.hpp"

namespace assay::verify {

namespace {

Expected<Subject> load_mutant(std::string_view name) {
  std::vector<std::string> names;
  for (const Mutant& mutant : mutants()) {
    if (name == mutant.name) return Subject::wrap(mutant.subject, "sim", mutant.name);
    names.emplace_back(mutant.name);
  }
  return bad_input(fmt::format("mutant is {}; allowed are {}", in_quotes(name), joined(names)));
}

// Only assay_cuda_mutants has any.
Expected<Subject> load_cuda_mutant(std::string_view name) {
  ASSAY_TRY(const Mutant* const mutant, find_cuda_mutant(name));
  return Subject::wrap(mutant->subject, "cuda", mutant->name);
}

Expected<Subject> load_kernels(std::string_view spec) {
#ifdef ASSAY_WITH_CUDA
  ASSAY_TRY(KernelsLibrary library, KernelsLibrary::open(std::string(spec)));
  ASSAY_TRY(const assay_subject* const table, kernels_subject(std::move(library)));
  return Subject::wrap(table, std::string(spec));
#else
  return unsupported(
      fmt::format("subject {} needs a build with nvcc and NCCL; this build has neither or lacks "
                  "one; allowed are sim and plugin:FILE",
                  in_quotes(spec)));
#endif
}

}  // namespace

Expected<Subject> load_subject(std::string_view spec, std::optional<std::string_view> mutant) {
  if (mutant) {
    if (spec == "sim") return load_mutant(*mutant);
    if (spec == "cuda") return load_cuda_mutant(*mutant);
    return bad_input(
        fmt::format("mutant {} is a wrong kernel of our own; --subject {} cannot be it",
                    in_quotes(*mutant), in_quotes(spec)));
  }
  if (spec == "sim") return Subject::wrap(&simulated_subject(), "sim");
  if (begins_with(spec, kPluginSpec))
    return Subject::plugin(std::string(spec.substr(kPluginSpec.size())));
  if (begins_with(spec, kKernelsSpec)) return load_kernels(spec);
  if (spec == "cuda") {
#ifdef ASSAY_WITH_CUDA
    return Subject::wrap(&cuda_subject(), "cuda");
#else
    return unsupported(
        "subject \"cuda\" needs a build with nvcc and NCCL; this build has neither "
        "or lacks one; allowed are sim and plugin:FILE");
#endif
  }
  return bad_input(fmt::format("subject is {}; allowed are sim, cuda, plugin:FILE and kernels:FILE",
                               in_quotes(spec)));
}

}  // namespace assay::verify
