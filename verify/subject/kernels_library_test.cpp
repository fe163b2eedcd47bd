// Libraries of somebody's kernels that answer what they must not, options of their subject, and
// the memory that it keeps in mind. Without a GPU: nothing is launched.
#include "verify/subject/kernels_library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"
#include "verify/subject/kernels_options.hpp"
#include "verify/subject/memory_ranges.hpp"
#include "verify/subject/subject.hpp"

namespace assay::verify {
namespace {

const std::string kSpec = std::string("kernels:") + ASSAY_TEST_FAULTY_KERNELS;

Expected<KernelsLibrary> opened(const char* table_fault = nullptr) {
  if (table_fault != nullptr) ::setenv("ASSAY_TEST_TABLE", table_fault, 1);
  auto library = KernelsLibrary::open(kSpec);
  ::unsetenv("ASSAY_TEST_TABLE");
  return library;
}

std::string refusal(const char* table_fault) {
  const auto library = opened(table_fault);
  REQUIRE(!library.has_value());
  return library.error().sentence;
}

assay_kernels_config config_of(const char* options) {
  assay_kernels_config config{};
  config.struct_size = sizeof config;
  config.ep_size = 2;
  config.options = options;
  return config;
}

template <class T>
std::string sentence(const Expected<T>& result) {
  return result ? "(ok)" : result.error().sentence;
}

TEST_CASE("a table of kernels of another version, too small or with holes is refused",
          "[VER-1.8]") {
  const std::string spec = "\"" + kSpec + "\"";
  CHECK(refusal("version") == spec + " has ABI version 9; this build speaks version 1");
  CHECK(refusal("size") == spec + " has a table of 16 bytes; version 1 needs at least " +
                               std::to_string(sizeof(assay_kernels)));
  CHECK(refusal("none") == spec + " has no table");
  CHECK(refusal("throw") == "assay_kernels_v1 threw an exception: boo\\nhoo");
  for (const char* member :
       {"name", "window_bytes", "create", "places", "dispatch", "combine", "destroy"})
    CHECK(refusal(member) == spec + " leaves " + member + " null");
  const auto library = opened();
  REQUIRE(library.has_value());
  CHECK(library->name() == "faulty");
  CHECK(library->slot_rule(config_of(""), 8) == ASSAY_SLOTS_TOKEN_INDEX);
  CHECK(library->slot_rule(config_of(""), 9) == ASSAY_SLOTS_COUNTER);
  CHECK(opened("slot_rule")->slot_rule(config_of(""), 8) == ASSAY_SLOTS_COUNTER);
}

TEST_CASE("a file that is missing, no library or no library of kernels is refused in words",
          "[VER-1.8]") {
  testing::TempDir directory;
  const auto open = [](const std::string& file) {
    const auto library = KernelsLibrary::open("kernels:" + file);
    REQUIRE(!library.has_value());
    return library.error().sentence;
  };
  CHECK(open("") == "kernels: names no file; write kernels:FILE");
  CHECK(open(directory.file("missing.so")).find("does not load") != std::string::npos);
  testing::write_bytes(directory.file("text.so"), "not a library");
  CHECK(open(directory.file("text.so")).find("does not load") != std::string::npos);
  CHECK(open(ASSAY_TEST_EXAMPLE_PLUGIN)
            .find("does not export assay_kernels_v1 (see verify/subject/one_sided_kernels.h)") !=
        std::string::npos);
}

// Of window_bytes and create, where bad options are the caller's mistake, what was said and whether
// it was that.
struct Said {
  std::string sentence;
  bool unsupported, bad_options;
};

Said said_by(const KernelsLibrary& library, bool in_create, const std::string& options) {
  const assay_kernels_config config = config_of(options.c_str());
  bool bad_options = false;
  const auto asked = [&]() -> Status {
    if (in_create)
      ASSAY_CHECK(RankKernels::make(library, config, 0, {nullptr, nullptr}, bad_options));
    else
      ASSAY_CHECK(library.window_bytes(config, bad_options));
    return Done{};
  };
  const Status result = asked();
  return {sentence(result), !result && result.error().kind == ErrorKind::kUnsupported, bad_options};
}

TEST_CASE("every answer of window_bytes and create is a sentence, and bad options the caller's",
          "[VER-1.8]") {
  const auto library = opened();
  REQUIRE(library.has_value());
  for (const bool in_create : {false, true}) {
    const std::string function = in_create ? "create" : "window_bytes";
    const auto of = [&](const std::string& what) {
      return said_by(*library, in_create, function + "=" + what);
    };
    CHECK(said_by(*library, in_create, "").sentence == "(ok)");
    CHECK(of("1").sentence == function + " failed and left no message");
    CHECK(of("1 message=full").sentence == "full");
    CHECK(!of("1").bad_options);
    CHECK(of("2").sentence == "the kernels' library gave no reason");
    CHECK(of("2 message=too wide").sentence == "too wide");
    CHECK(of("2").unsupported);
    CHECK(!of("2").bad_options);
    CHECK(of("3").sentence == function + " refused the options and left no message");
    CHECK(of("3 message=no x").sentence == "no x");
    CHECK(of("3").bad_options);
    CHECK(!of("3").unsupported);
    CHECK(of("7").sentence == function +
                                  " returned 7; allowed are 0 (ok), 1 (failed), 2 (unsupported) "
                                  "and 3 (bad options)");
    CHECK(of("-1 message=hm").sentence.find(" returned -1; ") != std::string::npos);
    CHECK(of("-1 message=hm").sentence.find(": hm") != std::string::npos);
    CHECK(of("throw").sentence == function + " threw an exception: boo\\nhoo");
    CHECK(of("odd").sentence == function + " threw what is no std::exception");
    CHECK(!of("throw").bad_options);
  }
  CHECK(said_by(*library, false, "nothing=bytes").sentence ==
        "window_bytes returned ok and 0 bytes");
  CHECK(said_by(*library, true, "nothing=state").sentence == "create returned ok and no state");
}

TEST_CASE("places that are null and answers in a round are told, and a state is destroyed once",
          "[VER-1.8]") {
  const auto library = opened();
  REQUIRE(library.has_value());
  void* const handle = ::dlopen(ASSAY_TEST_FAULTY_KERNELS, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(handle != nullptr);
  const auto states = reinterpret_cast<int (*)()>(::dlsym(handle, "faulty_kernels_states"));
  REQUIRE(states != nullptr);
  assay_kernels_round round{};
  round.struct_size = sizeof round;
  round.num_payloads = 2;
  const auto with = [&](const char* options, const auto& use) {
    const assay_kernels_config config = config_of(options);
    bool bad_options = false;
    auto made = RankKernels::make(*library, config, 1, {nullptr, nullptr}, bad_options);
    REQUIRE(made.has_value());
    const RankKernels moved(*std::move(made));
    CHECK(states() == 1);
    return sentence(use(moved));
  };
  const auto places = [&](const RankKernels& rank) { return rank.places(round); };
  CHECK(with("", places) == "(ok)");
  CHECK(with("null=recv", places) == "places left recv of a payload null");
  for (const std::string place : {"recv_counters", "target_rank", "target_slot", "expert_out"})
    CHECK(with(("null=" + place).c_str(), places) == "places left " + place + " null");
  CHECK(with("places=throw", places) == "places threw an exception: boo\\nhoo");
  const auto dispatch = [&](const RankKernels& rank) { return rank.dispatch(round, nullptr); };
  const auto combine = [&](const RankKernels& rank) { return rank.combine(round, nullptr); };
  CHECK(with("dispatch=1", dispatch) == "dispatch failed and left no message");
  CHECK(with("dispatch=3", dispatch) == "dispatch refused the options and left no message");
  CHECK(with("combine=4", combine).find("combine returned 4; allowed are 0 (ok)") == 0);
  CHECK(with("combine=throw", combine) == "combine threw an exception: boo\\nhoo");
  CHECK(states() == 0);
  ::dlclose(handle);
}

TEST_CASE("options of a subject over kernels are its own or the library's", "[CUD-5.5][CUD-5.6]") {
  const auto defaults = parse_kernels_options("");
  REQUIRE(defaults.has_value());
  CHECK(defaults->ranks == "auto");
  CHECK(defaults->together == 512);
  CHECK(!defaults->valid_ids);
  CHECK(defaults->others.empty());
  const auto all = parse_kernels_options(
      "pdl=1 ranks=emulated timeout_ms=1 skew_us=2 graph=1 replays=3 fault=x together=4 "
      "keep_recv=1 valid_ids=1");
  REQUIRE(all.has_value());
  CHECK(all->others == "pdl=1 fault=x");
  CHECK(all->ranks == "emulated");
  CHECK(all->timeout_ms == 1);
  CHECK(all->skew_us == 2);
  CHECK(all->replays == 3);
  CHECK(all->together == 4);
  CHECK((all->graph && all->keep_recv && all->valid_ids));
  for (const char* wrong : {"timeout_ms=0", "together=0", "graph=2", "valid_ids=yes", "skew_us=-1",
                            "replays=1000001", "ranks=gpu", "graph", "graph=1 graph=1"}) {
    INFO(wrong);
    const auto refused = parse_kernels_options(wrong);
    REQUIRE(!refused.has_value());
    const std::string_view key = std::string_view(wrong).substr(0, 5);
    CHECK(refused.error().sentence.find(key) != std::string::npos);
  }
}

TEST_CASE("rounds in which an id names no expert, and tokens that do not fit, are declined",
          "[CUD-5.5][CUD-5.6]") {
  assay_kernels_config config = config_of("");
  config.ep_size = 3;
  config.num_experts = 6;
  config.top_k = 2;
  std::vector<std::int32_t> of_0{0, 5}, of_1{-1, 6}, of_2{1, 2, 3, 4};
  const std::int32_t tokens[] = {1, 1, 2};
  const std::int32_t* ids[] = {of_0.data(), of_1.data(), of_2.data()};
  assay_round round{};
  round.num_tokens = tokens;
  round.topk_ids = ids;
  KernelsOptions options;
  const auto said = [&](bool share) {
    const Status status = check_kernels_rounds(config, options, share, {&round, 1});
    if (!status) CHECK(status.error().kind == ErrorKind::kUnsupported);
    return sentence(status);
  };
  CHECK(said(true) == "(ok)");
  options.valid_ids = true;
  CHECK(said(false) ==
        "rank 1 token 0 pick 0 has expert id -1, which names none of 6 experts; valid_ids=1 "
        "declines that");
  of_1 = {0, 6};
  CHECK(said(false).find("rank 1 token 0 pick 1 has expert id 6,") == 0);
  const std::uint64_t mask = 0b101;  // of a dead rank nothing is looked at
  round.rank_mask = &mask;
  CHECK(said(false) == "(ok)");
  options.together = 3;
  CHECK(said(true) == "(ok)");
  round.rank_mask = nullptr;
  of_1 = {0, 1};
  CHECK(said(true) == "4 tokens of ranks that share a device; option together allows 3");
  CHECK(said(false) == "(ok)");
  config.ep_size = 33;
  const Status many = check_kernels_rounds(config, options, true, {});
  CHECK(sentence(many) == "33 ranks share a device; at most 32 streams run beside each other");
  CHECK(check_kernels_rounds(config, options, false, {}).has_value());
}

TEST_CASE("ranges of memory hold the bytes that were added and not removed", "[CUD-5.5]") {
  testing::prop("as a bitmap does", [](const std::vector<std::uint32_t>& steps) {
    char memory[64];
    bool held[64] = {};
    MemoryRanges ranges;
    for (const std::uint32_t step : steps) {
      const int begin = static_cast<int>(step % 64);
      const int bytes = static_cast<int>(step / 64 % static_cast<std::uint32_t>(65 - begin));
      const bool adds = step / 8192 % 3 != 0;
      if (adds)
        ranges.add(memory + begin, static_cast<std::uint64_t>(bytes));
      else
        ranges.remove(memory + begin, static_cast<std::uint64_t>(bytes));
      std::fill(held + begin, held + begin + bytes, adds);
    }
    for (int begin = 0; begin < 64; ++begin)
      for (int bytes = 0; begin + bytes <= 64; ++bytes) {
        const auto count = std::count(held + begin, held + begin + bytes, true);
        const auto length = static_cast<std::uint64_t>(bytes);
        RC_ASSERT(ranges.covers(memory + begin, length) == (count == bytes));
        RC_ASSERT(ranges.overlaps(memory + begin, length) == (count != 0));
      }
  });
}

#ifndef ASSAY_WITH_CUDA
TEST_CASE("a build without CUDA says that kernels need one", "[VER-1.8]") {
  const auto subject = load_subject("kernels:libmine.so");
  REQUIRE(!subject.has_value());
  CHECK(subject.error().kind == ErrorKind::kUnsupported);
  CHECK(subject.error().sentence ==
        "subject \"kernels:libmine.so\" needs a build with nvcc and NCCL; this build has neither "
        "or lacks one; allowed are sim and plugin:FILE");
  CHECK(load_subject("kernels:x.so", "dedup_keeps_last").error().kind == ErrorKind::kBadInput);
}
#endif

}  // namespace
}  // namespace assay::verify
