// What can be tested: an attention kernel behind one call. `sim` is a profile run by the model's
// emulation, `cuda` our kernels on a GPU (device_subject.hpp), `plugin:FILE` a shared library
// (verify/subject/attention_subject.h). Another kind of subject is one more class and one line in
// load_attention_subject. Decides what an answer is (SPEC
// VER-22.4); whether it is right is property.hpp's and judge.hpp's business.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention/attention.hpp"
#include "model/core/expected.hpp"
#include "verify/attention/cases.hpp"

namespace assay::verify {

// What a kernel wrote, rows of all requests one after the other.
struct AttentionAnswer {
  std::vector<std::uint16_t> out;  // [total rows, q_heads, v_dim], bits of out_dtype
  std::vector<F32> lse;            // [total rows, q_heads]; empty: the profile has none
  std::optional<attention::DecisionMap> decision;
  std::optional<std::int64_t> visited, skipped;  // tiles, over all units
};

struct AttentionRun {
  enum class State : std::uint8_t { kOk, kFailed, kUnsupported };
  State state = State::kOk;
  std::string message;  // empty when ok
  AttentionAnswer answer;
};

class AttentionSubject {
 public:
  virtual ~AttentionSubject() = default;
  virtual std::string name() const = 0;  // "sim", "plugin:libmine.so"
  // Whether answers come from the profile's own emulation: then there is nothing to compare bits
  // with, and coverage is in the answer.
  virtual bool is_profile() const { return false; }
  // Whether run() may be called from several threads at once. A kernel of somebody else is called
  // once at a time.
  virtual bool concurrent() const { return false; }
  // The profiles that the subject says it is; empty: whoever tests it says which.
  virtual std::span<const std::string_view> profiles() const { return {}; }
  // A case like `c` of sizes that the subject serves, and a number of page rows likewise: what is
  // run of a property's own cases (SPEC VER-25.2). A case that somebody gave is run as it is.
  virtual AttentionCase served(const AttentionCase& c) const { return c; }
  // A random case made likewise, and as large as suits the subject.
  virtual AttentionCase drawn(const AttentionCase& c) const { return served(c); }
  virtual std::int32_t served_page(std::int32_t rows) const { return rows; }
  // `threads` is a hint that must decide no bit.
  virtual AttentionRun run(const attention::Profile& profile, const attention::Problem& problem,
                           int threads) const = 0;
};

// The profile itself.
const AttentionSubject& simulated_attention();

// A subject made of a function, for mutants and tests.
class AttentionFunction : public AttentionSubject {
 public:
  using Function = std::function<AttentionRun(const attention::Profile&, const attention::Problem&,
                                              int threads)>;
  AttentionFunction(std::string name, Function function)
      : name_(std::move(name)), function_(std::move(function)) {}
  std::string name() const override { return name_; }
  bool concurrent() const override { return true; }
  AttentionRun run(const attention::Profile& profile, const attention::Problem& problem,
                   int threads) const override {
    return function_(profile, problem, threads);
  }

 private:
  std::string name_;
  Function function_;
};

// Emulates `computed` for a problem: what a profile's subject answers.
AttentionRun emulated(const attention::Profile& computed, const attention::Problem& problem,
                      int threads);

// "sim", "cuda", "plugin:FILE". Errors name the spellings, or are the loader's; unsupported: cuda
// in a build without it, or on a machine without a GPU that the kernels run on. mutant: one of the
// wrong kernels of cuda_attention_mutants() instead of the right one, of cuda alone. sim_allowed:
// false where sim is what answers are compared with, and so none to ask for.
Expected<std::unique_ptr<AttentionSubject>> load_attention_subject(
    std::string_view spec, std::optional<std::string_view> mutant = std::nullopt,
    bool sim_allowed = true);

}  // namespace assay::verify
