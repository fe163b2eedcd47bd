// Refusals of wrong tables and files, and the example through the plugin loader in all suites.
#include "verify/subject/subject.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"
#include "verify/mutants/cuda_mutants.hpp"
#include "verify/subject/driver.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {
namespace {

int no_create(const assay_group_config*, void**, assay_message*) { return 7; }
int no_run(void*, const assay_round*, std::int32_t, assay_experts, void*, assay_message*) {
  return ASSAY_OK;
}
void no_destroy(void*) {}

assay_subject table() {
  return {ASSAY_SUBJECT_ABI_VERSION, sizeof(assay_subject), "test", no_create, no_run, no_destroy};
}

std::string refusal(const assay_subject& subject) {
  const auto wrapped = Subject::wrap(&subject, "test");
  REQUIRE(!wrapped.has_value());
  return wrapped.error().sentence;
}

TEST_CASE("a table of another version, too small or with holes is refused with the numbers",
          "[VER-1.2]") {
  assay_subject wrong = table();
  wrong.abi_version = 2;
  CHECK(refusal(wrong) == "subject \"test\" has ABI version 2; this build speaks version 1");
  wrong = table();
  wrong.struct_size = 8;
  CHECK(refusal(wrong) == "subject \"test\" has a table of 8 bytes; version 1 needs at least " +
                              std::to_string(offsetof(assay_subject, slot_rule)));
  wrong = table();
  wrong.run = nullptr;
  CHECK(refusal(wrong) == "subject \"test\" leaves run null");
  const auto nothing = Subject::wrap(nullptr, "test");
  CHECK(!nothing.has_value());
  CHECK(Subject::wrap(&(wrong = table()), "test").has_value());
}

TEST_CASE("a file that is missing, no library or no plugin is refused in words", "[VER-1.2]") {
  testing::TempDir directory;
  const auto missing = Subject::plugin(directory.file("missing.so"));
  REQUIRE(!missing.has_value());
  CHECK(missing.error().sentence.find("does not load") != std::string::npos);
  CHECK(missing.error().sentence.find("No such file") != std::string::npos);

  testing::write_bytes(directory.file("text.so"), "not a library");
  const auto text = Subject::plugin(directory.file("text.so"));
  REQUIRE(!text.has_value());
  CHECK(text.error().sentence.find("does not load") != std::string::npos);

  // The C library is one, and exports nothing of ours.
  Dl_info libc{};
  REQUIRE(::dladdr(reinterpret_cast<const void*>(&::getpid), &libc) != 0);
  const auto other = Subject::plugin(libc.dli_fname);
  REQUIRE(!other.has_value());
  CHECK(other.error().sentence.find("does not export assay_subject_v1") != std::string::npos);
  CHECK(!Subject::plugin("").has_value());
}

TEST_CASE("spellings of --subject are told when one is wrong", "[VER-1.2]") {
  CHECK(load_subject("sim").has_value());
  const auto unknown = load_subject("simulator");
  REQUIRE(!unknown.has_value());
  CHECK(unknown.error().sentence ==
        "subject is \"simulator\"; allowed are sim, cuda, plugin:FILE and kernels:FILE");
  const auto mutant = load_subject("sim", "no_such_mutant");
  REQUIRE(!mutant.has_value());
  CHECK(mutant.error().sentence.find("mutant is \"no_such_mutant\"; allowed are") == 0);
  CHECK(!load_subject("plugin:x.so", "dedup_keeps_last").has_value());
  const auto on_cuda = load_subject("cuda", "dedup_keeps_last");
  REQUIRE(!on_cuda.has_value());
  CHECK(on_cuda.error().sentence.find("mutant is \"dedup_keeps_last\"; this program holds no wrong "
                                      "CUDA kernel") == 0);
}

TEST_CASE("a program with wrong CUDA kernels knows them, and why it lacks others", "[VER-4.4]") {
  const Mutant one{"one", "a title", "KER-1.1", "progress", "", nullptr};
  const Mutant* const held[] = {&one};
  const NotOnCuda not_built[] = {{"two", "a reason"}};
  register_cuda_mutants({held, not_built});
  CHECK(*find_cuda_mutant("one") == &one);
  CHECK(find_cuda_mutant("two").error().sentence ==
        "mutant \"two\" is not compiled for CUDA: a reason");
  CHECK(find_cuda_mutant("three").error().sentence ==
        "mutant is \"three\"; of dispatch and combine on CUDA, there are one");
  register_cuda_mutants({});
  CHECK(find_cuda_mutant("one").error().sentence.find("holds no wrong CUDA kernel") !=
        std::string::npos);
}

TEST_CASE("the example runs through the plugin loader and conforms in every suite that it serves",
          "[VER-1.2]") {
  const auto subject = load_subject(std::string("plugin:") + ASSAY_TEST_EXAMPLE_PLUGIN);
  REQUIRE(subject.has_value());
  CHECK(subject->name() == "example-plugin");
  std::int64_t cases = 0;
  for (const Suite& suite : suites()) {
    INFO(suite.name);
    const auto result = run_suite(suite.name, *subject, {.random_cases_max = 40});
    REQUIRE(result.has_value());
    INFO(to_text(result->report));
    // It declines some formats, and options that it would have to ignore.
    const bool declined = suite.axes.dtype != moe::Dtype::kBf16 || suite.axes.low_precision ||
                          !suite.axes.options.empty();
    CHECK(result->report.verdict == (declined ? Verdict::kUnsupported : Verdict::kConforms));
    cases += result->cases;
  }
  CHECK(cases > 300);
}

int token_index(void*, std::int32_t max) { return max > 8 ? 7 : ASSAY_SLOTS_TOKEN_INDEX; }
int some_group = 0;
int create_some(const assay_group_config*, void** group, assay_message*) {
  *group = &some_group;
  return ASSAY_OK;
}

TEST_CASE("a group promises slots per max_tokens, counted ones where it does not say",
          "[VER-1.5]") {
  assay_subject promising = table();
  promising.create = create_some;
  promising.slot_rule = token_index;
  const auto rule_of = [&](std::int32_t max) {
    const auto subject = Subject::wrap(&promising, "test");
    REQUIRE(subject.has_value());
    Group group;
    assay_group_config config{};
    REQUIRE(group.create(*subject, config).state == Group::State::kOk);
    return group.slot_rule(max);
  };
  CHECK(rule_of(8).value() == moe::SlotRule::kTokenIndex);
  REQUIRE(!rule_of(9).has_value());
  CHECK(rule_of(9).error().sentence ==
        "slot_rule of subject \"test\" returned 7; allowed are 0 (counter), 1 (prefix) and 2 "
        "(token_index)");
  promising.struct_size = offsetof(assay_subject, slot_rule);  // built before the function was
  CHECK(rule_of(9).value() == moe::SlotRule::kCounterAnyOrder);
  promising = table();
  promising.create = create_some;
  CHECK(rule_of(1).value() == moe::SlotRule::kCounterAnyOrder);
}

TEST_CASE("a plugin that throws has failed, and what it says is one line", "[VER-1.6]") {
  assay_subject subject = table();
  const auto created = [&] {
    const auto wrapped = Subject::wrap(&subject, "plugin:test");
    REQUIRE(wrapped.has_value());
    Group group;
    return group.create(*wrapped, {});
  };
  subject.create = [](const assay_group_config*, void**, assay_message*) -> int {
    throw std::runtime_error("boo");
  };
  Group::Result result = created();
  CHECK(result.state == Group::State::kFailed);
  CHECK(result.message == "create threw an exception: boo");
  subject.create = [](const assay_group_config*, void**, assay_message* message) -> int {
    std::strcpy(message->text, "no\n\x1b[31mCONFORMS");
    return ASSAY_UNSUPPORTED;
  };
  result = created();
  CHECK(result.state == Group::State::kUnsupported);
  CHECK(result.message == "no\\n\\x1b[31mCONFORMS");

  subject.create = [](const assay_group_config*, void** group, assay_message*) -> int {
    static int something = 0;
    *group = &something;
    return ASSAY_OK;
  };
  subject.run = [](void*, const assay_round*, std::int32_t, assay_experts, void*,
                   assay_message*) -> int { throw 7; };
  const auto wrapped = Subject::wrap(&subject, "plugin:test");
  Group group;
  REQUIRE(group.create(*wrapped, {}).state == Group::State::kOk);
  result = group.run(nullptr, 0, nullptr, nullptr);
  CHECK(result.state == Group::State::kFailed);
  CHECK(result.message == "run threw what is no std::exception");
}

TEST_CASE("a return value outside the interface is a failure, not a pass", "[VER-1.2]") {
  const assay_subject odd = table();
  const auto subject = Subject::wrap(&odd, "odd");
  REQUIRE(subject.has_value());
  auto scenario = make_scenario(MoeCase{});
  REQUIRE(scenario.has_value());
  const auto outcome = run_scenario(*subject, *scenario);
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->state == Outcome::State::kMismatch);
  CHECK(outcome->mismatches.front().check == "progress");
  CHECK(outcome->mismatches.front().sentence.find("create returned 7") != std::string::npos);
}

}  // namespace
}  // namespace assay::verify
