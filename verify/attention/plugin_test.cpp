// Attention kernels behind the C interface: the worked example passes what its profile promises,
// and a library that is no subject, or writes where it must not, is told from one that is wrong.
#include "verify/attention/plugin.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "model/core/testing.hpp"
#include "verify/attention/check.hpp"
#include "verify/attention/suite.hpp"

namespace {

using namespace assay;
using namespace assay::verify;
using State = AttentionRun::State;

const attention::Profile& triton() { return **attention::find_profile("modelopt-triton"); }

// A table around a function without state.
AttentionRun run_once(int (*function)(assay_attention_call*, assay_message*),
                      std::string_view profile = "assay-prefill-sm90",
                      const std::string& dtype = "F16") {
  const assay_attention_subject table{ASSAY_ATTENTION_ABI_VERSION, sizeof table, "test", function};
  const auto subject = wrap_attention_table(&table, "plugin:test");
  REQUIRE(subject.has_value());
  const auto c = parse_attention_case("dtype=" + dtype + " q=3,2 kv=70,0 dim=32/8 lambda=0.1");
  const BuiltPtr b = build(*c);
  return (*subject)->run(**attention::find_profile(profile), b->problem, 1);
}

int zeros(assay_attention_call* c, assay_message*) {
  std::int64_t rows = 0;
  for (int i = 0; i < c->num_requests; ++i) rows += c->requests[i].q_len;
  std::memset(c->out, 0, static_cast<std::size_t>(rows * c->q_heads * c->v_dim * 2));
  if (c->lse != nullptr)
    std::memset(c->lse, 0, static_cast<std::size_t>(rows * c->q_heads) * sizeof(float));
  return ASSAY_OK;
}

}  // namespace

TEST_CASE("the worked example of a plugin holds what its profile promises",
          "[VER-22.4][VER-22.5][VER-23.5]") {
  const auto subject = load_attention_subject("plugin:" ASSAY_TEST_EXAMPLE_ATTENTION_PLUGIN);
  CAPTURE(subject ? "" : subject.error().sentence);
  REQUIRE(subject.has_value());
  AttentionSuiteOptions options;
  options.budget_seconds = 1;
  std::vector<const Property*> rows;
  for (const Property& property : properties()) rows.push_back(&property);
  const std::vector<const attention::Profile*> columns = {&triton()};
  const AttentionTable table = run_attention_suite(**subject, columns, rows, options);
  int held = 0;
  for (const AttentionCell& cell : table.cells) {
    std::string what = cell.reason;
    if (cell.finding)
      what = print(cell.finding->c) + ": " +
             (cell.finding->violation ? cell.finding->violation->sentence
                                      : cell.finding->bits->sentence);
    CAPTURE(cell.property->name, what);
    CHECK(cell.state != AttentionCell::State::kMismatch);
    CHECK(cell.state != AttentionCell::State::kMistrusted);
    held += cell.state == AttentionCell::State::kHolds;
  }
  CHECK(held > 30);
  CHECK(table.verdict() == Verdict::kConforms);
  // It computes one rule, so it is told from another's.
  const std::vector<const attention::Profile*> paper = {
      *attention::find_profile("aiter-triton-mi300")};
  const std::vector<const Property*> trace = {*find_property("truth")};
  CHECK(run_attention_suite(**subject, paper, trace, options).verdict() == Verdict::kMismatch);
}

TEST_CASE("a library that is no attention subject is refused", "[VER-22.5]") {
  for (const auto& [spec, word] :
       {std::pair{"plugin:", "names no file"}, std::pair{"plugin:/nonexistent.so", "does not load"},
        std::pair{"gpu", "plugin:FILE"}}) {
    const auto subject = load_attention_subject(spec);
    REQUIRE_FALSE(subject.has_value());
    REQUIRE(subject.error().sentence.find(word) != std::string::npos);
  }
  assay_attention_subject table{ASSAY_ATTENTION_ABI_VERSION, sizeof table, "test", zeros};
  REQUIRE(wrap_attention_table(&table, "t").has_value());
  REQUIRE_FALSE(wrap_attention_table(nullptr, "t").has_value());
  table.abi_version = 9;
  REQUIRE(wrap_attention_table(&table, "t").error().sentence.find("9") != std::string::npos);
  table.abi_version = ASSAY_ATTENTION_ABI_VERSION;
  table.struct_size = 8;
  REQUIRE(wrap_attention_table(&table, "t").error().sentence.find("8 bytes") != std::string::npos);
  table.struct_size = sizeof table;
  table.run = nullptr;
  REQUIRE(wrap_attention_table(&table, "t").error().sentence.find("run") != std::string::npos);
}

TEST_CASE("what a call did besides its values is told", "[VER-22.4][VER-22.5]") {
  const AttentionRun fine = run_once(zeros);
  REQUIRE(fine.state == State::kOk);
  REQUIRE(fine.answer.out.size() == 5u * 8u);
  REQUIRE(fine.answer.lse.size() == 5u);
  REQUIRE_FALSE(fine.answer.decision.has_value());
  REQUIRE_FALSE(fine.answer.visited.has_value());
  // Without an LSE in the profile there is none in the answer.
  REQUIRE(run_once(zeros, "modelopt-triton").answer.lse.empty());

  const AttentionRun unwritten = run_once([](assay_attention_call* c, assay_message* m) {
    const std::uint16_t as_it_came = static_cast<std::uint16_t*>(c->out)[8 * 2 + 5];
    const int code = zeros(c, m);
    static_cast<std::uint16_t*>(c->out)[8 * 2 + 5] = as_it_came;
    return code;
  });
  REQUIRE(unwritten.state == State::kFailed);
  REQUIRE(unwritten.message == "out was not written at row 2 head 0 element 5");

  const AttentionRun lse = run_once([](assay_attention_call* c, assay_message* m) {
    std::uint32_t as_it_came = 0;
    std::memcpy(&as_it_came, c->lse + 1, 4);
    const int code = zeros(c, m);
    std::memcpy(c->lse + 1, &as_it_came, 4);
    return code;
  });
  REQUIRE(lse.message == "lse was not written at row 1 head 0");

  const AttentionRun beyond = run_once([](assay_attention_call* c, assay_message* m) {
    const int code = zeros(c, m);
    static_cast<std::uint16_t*>(c->out)[5 * 8] = 0;
    return code;
  });
  REQUIRE(beyond.state == State::kFailed);
  REQUIRE(beyond.message == "bytes around out were overwritten");

  const AttentionRun declined = run_once([](assay_attention_call*, assay_message* m) {
    std::strcpy(m->text, "no f16");
    return static_cast<int>(ASSAY_UNSUPPORTED);
  });
  REQUIRE(declined.state == State::kUnsupported);
  REQUIRE(declined.message == "no f16");
  const AttentionRun odd = run_once([](assay_attention_call*, assay_message*) { return 77; });
  REQUIRE(odd.state == State::kFailed);
  REQUIRE(odd.message.find("77") != std::string::npos);
}

// Its keys lie in two tensors, and a call has a place for one: whoever read head_dim elements of a
// row there would read beyond it.
TEST_CASE("keys in two parts are declined before a plugin sees them", "[VER-22.5]") {
  static int calls = 0;
  const assay_attention_subject table{ASSAY_ATTENTION_ABI_VERSION, sizeof table, "test",
                                      [](assay_attention_call* c, assay_message* m) {
                                        ++calls;
                                        return zeros(c, m);
                                      }};
  const auto subject = wrap_attention_table(&table, "test");
  const auto c = parse_attention_case("dtype=BF16 q=3 kv=70 dim=96/64 lambda=0.1");
  const BuiltPtr b = build(*c);
  REQUIRE((*subject)->run(triton(), b->problem, 1).state == State::kOk);
  REQUIRE(calls == 1);
  b->problem.rope_dim = 32;
  b->problem.requests[0].k_rope = b->problem.requests[0].k;
  const AttentionRun run = (*subject)->run(triton(), b->problem, 1);
  CHECK(run.state == State::kUnsupported);
  CHECK(run.message == "the interface of plugins has no keys in two parts (MLA)");
  CHECK(calls == 1);
}

// All 2^16 codes of out but the one signalling NaN; numbers and the NaN of kernels among LSEs.
TEST_CASE("whatever a conversion may give counts as written", "[long][VER-22.5]") {
  for (const std::string dtype : {"F16", "BF16"}) {
    int taken = 0;
    static std::uint16_t code = 0;
    const std::uint32_t exponent = dtype == "F16" ? 0x7C00 : 0x7F80;
    const std::uint32_t quiet = dtype == "F16" ? 0x0200 : 0x0040;
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      const bool is_nan = (i & exponent) == exponent && (i & (quiet * 2 - 1)) != 0;
      if (is_nan && (i & quiet) == 0) continue;  // signalling
      code = static_cast<std::uint16_t>(i);
      const AttentionRun run = run_once(
          [](assay_attention_call* c, assay_message* m) {
            const int done = zeros(c, m);
            static_cast<std::uint16_t*>(c->out)[8 * 2 + 5] = code;
            const std::uint32_t wide = code * 0x10001u;
            if ((wide & 0x7F800000u) != 0x7F800000u) std::memcpy(c->lse + 1, &wide, 4);
            return done;
          },
          "assay-prefill-sm90", dtype);
      if (run.state != State::kOk) FAIL(dtype << " " << i << ": " << run.message);
      ++taken;
    }
    CHECK(taken > 0xF000);
  }
}

TEST_CASE("a call describes the problem it stands for", "[VER-22.4]") {
  const AttentionRun run = run_once([](assay_attention_call* c, assay_message* m) {
    const assay_attention_request& r = c->requests[0];
    const bool as_asked =
        std::strcmp(c->profile, "assay-prefill-sm90") == 0 && c->dtype == ASSAY_DTYPE_F16 &&
        c->out_dtype == ASSAY_DTYPE_F16 && c->head_dim == 32 && c->v_dim == 8 &&
        c->num_requests == 2 && r.q_len == 3 && r.kv_len == 70 && r.q_offset == 67 &&
        r.threshold_kind == ASSAY_THRESHOLD_LAMBDA && r.threshold == 0.1f &&
        r.k.block_table == nullptr && r.k.row_stride == 32 && r.v.row_stride == 8 &&
        r.k.available == 70 && c->requests[1].kv_len == 0 && r.custom_mask == nullptr &&
        c->decision_shape[0] == 2 && c->decision_shape[1] == 1 && c->decision_shape[2] == 1 &&
        c->decision_shape[3] == 1 && c->sinks == nullptr;
    std::memset(c->decision, 1, 2);
    c->decision_written = 1;
    c->visited = 1;
    c->skipped = 0;
    return as_asked ? zeros(c, m) : static_cast<int>(ASSAY_FAILED);
  });
  CAPTURE(run.message);
  REQUIRE(run.state == State::kOk);
  REQUIRE(run.answer.decision->cells == std::vector<std::uint8_t>{1, 1});
  REQUIRE(run.answer.visited == 1);
}

TEST_CASE("a subject that throws has failed, with what it says", "[VER-1.6]") {
  const AttentionRun said = run_once([](assay_attention_call*, assay_message*) -> int {
    throw std::runtime_error("boo\n\x1b[31m");
  });
  CHECK(said.state == State::kFailed);
  CHECK(said.message == "run threw an exception: boo\\n\\x1b[31m");
  const AttentionRun nothing =
      run_once([](assay_attention_call*, assay_message*) -> int { throw 7; });
  CHECK(nothing.state == State::kFailed);
  CHECK(nothing.message == "run threw what is no std::exception");
}

TEST_CASE("a subject's message is one line of bounded length", "[VER-1.6]") {
  const AttentionRun lines = run_once([](assay_attention_call*, assay_message* m) {
    std::strcpy(m->text, "a \"b\\c\"\nVERDICT CONFORMS\x1b[31m\xff");
    return static_cast<int>(ASSAY_UNSUPPORTED);
  });
  CHECK(lines.message == "a \"b\\c\"\\nVERDICT CONFORMS\\x1b[31m\\xff");
  const AttentionRun unended = run_once([](assay_attention_call*, assay_message* m) {
    std::memset(m->text, 'a', sizeof m->text);
    return static_cast<int>(ASSAY_FAILED);
  });
  CHECK(unended.message == std::string(1000, 'a') + "... (2048 bytes)");
}

TEST_CASE("a subject that ends the process has not succeeded", "[VER-1.6]") {
  using Run = int (*)(assay_attention_call*, assay_message*);
  const Run ends[] = {[](assay_attention_call*, assay_message*) -> int { std::exit(0); },
                      [](assay_attention_call*, assay_message*) -> int { std::quick_exit(0); }};
  for (const Run end : ends) {
    int ends_of_pipe[2];
    REQUIRE(::pipe(ends_of_pipe) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(ends_of_pipe[1], STDERR_FILENO);
      run_once(end);
      ::_exit(9);
    }
    ::close(ends_of_pipe[1]);
    std::string said;
    char bytes[512];
    for (ssize_t n; (n = ::read(ends_of_pipe[0], bytes, sizeof bytes)) > 0;)
      said.append(bytes, static_cast<std::size_t>(n));
    ::close(ends_of_pipe[0]);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);
    CHECK(said ==
          "assay: subject \"plugin:test\" failed: it ended the process in run, and nothing was "
          "judged\n");
  }
}
