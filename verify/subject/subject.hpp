// A subject for C++: where it comes from and who owns it. Decides how the spellings of --subject
// are resolved; what a subject must do is subject.h, whether it did it is driver.hpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "model/core/expected.hpp"
#include "model/moe/dispatch.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// A table of functions and, for a plugin, the library that they live in. Copyable; the library is
// unloaded with the last copy.
class Subject {
 public:
  // A table that outlives the Subject. Errors: another ABI version, a struct smaller than version
  // 1, a missing function. `spec` and `mutant` are how the command spells it.
  static Expected<Subject> wrap(const assay_subject* table, std::string spec,
                                std::string mutant = {});
  // Opens a shared library and asks it for its table. Errors: the loader's own words, a library
  // without the entry point, and those of wrap.
  static Expected<Subject> plugin(const std::string& file);

  const assay_subject& table() const { return *table_; }
  std::string_view name() const { return table_->name; }
  const std::string& spec() const { return spec_; }      // "sim", "plugin:libmine.so"
  const std::string& mutant() const { return mutant_; }  // empty: none

 private:
  Subject() = default;
  std::shared_ptr<void> library_;
  const assay_subject* table_ = nullptr;
  std::string spec_;
  std::string mutant_;
};

// "sim", "cuda", "plugin:FILE", "kernels:FILE"; with `mutant` not empty the mutant of that name
// (SPEC VER-1.2), which is a simulated subject with one fault, or in assay_cuda_mutants one of
// CUDA: somebody's library is refused. Errors name the spellings.
Expected<Subject> load_subject(std::string_view spec,
                               std::optional<std::string_view> mutant = std::nullopt);

// One group: created by make, destroyed with its last owner.
class Group {
 public:
  enum class State { kOk, kFailed, kUnsupported, kBadOptions };
  struct Result {
    State state = State::kOk;
    std::string message;  // what the subject said; empty when ok
  };
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Group(Group&& other) noexcept;
  Group& operator=(Group&& other) noexcept;
  ~Group();

  Result create(const Subject& subject, const assay_group_config& config);
  // What the group promises of rounds with this max. Error: an answer outside the interface.
  Expected<moe::SlotRule> slot_rule(std::int32_t max_tokens_per_rank) const;
  Result run(const assay_round* rounds, std::int32_t num_rounds, assay_experts experts,
             void* context);

 private:
  void destroy();
  std::optional<Subject> subject_;  // keeps a plugin's library loaded; nothing: no group
  void* group_ = nullptr;
};

}  // namespace assay::verify
