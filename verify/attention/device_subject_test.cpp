// The subject of our kernels without a GPU: a host device reads each call as the kernel would (the
// launcher's own words for lengths, strides and pages), emulates it, and writes its outputs. What
// it is given must be the problem, what it does wrong must be told.
#include "verify/attention/device_subject.hpp"

#include <cstring>
#include <functional>

#include "model/core/testing.hpp"
#include "verify/attention/check.hpp"
#include "verify/attention/cuda_attention.hpp"
#include "verify/attention/device_testing.hpp"
#include "verify/attention/sparse.hpp"
#include "verify/attention/suite.hpp"

namespace {

using namespace assay;
using namespace assay::verify;
using namespace assay::verify::testing;
using attention::Problem;
using attention::Request;
using cuda::AttentionCall;
using cuda::AttentionRows;

std::unique_ptr<AttentionSubject> subject(Fault fault = nullptr) {
  return device_subject("host", std::make_unique<HostDevice>(std::move(fault)));
}

AttentionCase small_case() {
  AttentionCase c;
  c.q_heads = 2;
  c.dim = c.v_dim = 64;
  c.q = {70, 3};
  c.kv = {300, 200};
  c.threshold = {attention::Threshold::Kind::kLambda, 1e-2f};
  c.contrast = 20;
  return c;
}

void* data(const void* pointer) { return const_cast<void*>(pointer); }

}  // namespace

TEST_CASE("a call in one block of memory is the problem, whatever its layout",
          "[VER-25.1][VER-25.3]") {
  Dice dice(1);
  const auto ours = subject();
  std::int64_t served = 0, skipped = 0;
  for (int i = 0; i < 80; ++i) {
    const attention::Profile& profile = i % 2 == 0 ? prefill() : decode();
    AttentionCase c = ours->drawn(random_case(profile, dice));
    c.custom = false;
    const BuiltPtr packed = build(c);
    std::vector<BuiltPtr> layouts;
    if (c.page == 0) layouts.push_back(with_gaps(*packed, 16 * dice.below(3), nan_code(c.dtype)));
    if (c.page == 0) layouts.push_back(in_pages(*packed, served_page(16), nan_code(c.dtype)));
    layouts.push_back(build(c));
    for (const BuiltPtr& b : layouts) {
      // Offsets and thresholds of each request its own, at times.
      for (Request& r : b->problem.requests) {
        if (i % 3 == 0) r.q_offset = dice.below(300) - 100;
        if (i % 4 == 0)
          r.threshold = {static_cast<attention::Threshold::Kind>(dice.below(3)),
                         static_cast<float>(dice.below(5))};
      }
      INFO(profile.name << " " << print(c));
      const AttentionRun run = ours->run(profile, b->problem, 1);
      INFO(run.message);
      REQUIRE(run.state == AttentionRun::State::kOk);
      const AttentionRun want = emulated(profile, b->problem, 1);
      REQUIRE(run.answer.out == want.answer.out);
      for (std::size_t row = 0; row < want.answer.lse.size(); ++row)
        REQUIRE(run.answer.lse[row].bits == want.answer.lse[row].bits);
      if (!want.answer.out.empty()) {
        REQUIRE(run.answer.decision->extents == want.answer.decision->extents);
        REQUIRE(run.answer.decision->cells == want.answer.decision->cells);
        REQUIRE(run.answer.visited == want.answer.visited);
        REQUIRE(run.answer.skipped == want.answer.skipped);
      }
      ++served;
      skipped += *want.answer.skipped;
    }
  }
  CHECK(served > 100);
  CHECK(skipped > 0);
}

TEST_CASE("rows that lie far apart keep their strides", "[VER-25.1]") {
  const BuiltPtr b = build(small_case());
  const std::int64_t stride = 1 << 12;
  const SparseMemory k(static_cast<std::size_t>(stride * (b->k.rows + 1) * 2));
  const SparseMemory v(static_cast<std::size_t>(stride * (b->k.rows + 1) * 2));
  Problem far = b->problem;
  far.requests.resize(1);
  far.requests[0].k = spread_rows(far.requests[0].k, b->k, stride, k);
  far.requests[0].v = spread_rows(far.requests[0].v, b->v, stride, v);
  const auto call = DeviceCall::make(prefill(), far);
  REQUIRE(call.has_value());
  CHECK(call->nowhere(true).k.row_stride == stride);
  const AttentionRun run = subject()->run(prefill(), far, 1);
  INFO(run.message);
  REQUIRE(run.state == AttentionRun::State::kOk);
  CHECK(run.answer.out == emulated(prefill(), far, 1).answer.out);
}

TEST_CASE("every property of attention is run at sizes that our kernels have, and holds",
          "[VER-25.2]") {
  AttentionSuiteOptions options;
  options.budget_seconds = 0;
  const auto ours = subject();
  for (const Property& property : properties())
    for (const attention::Profile* const profile : {&prefill(), &decode()}) {
      if (property.name == "large_offsets") continue;  // 13 GB of host memory; see above
      const AttentionCell cell = run_attention_cell(property, *profile, *ours, options);
      INFO(property.name << " of " << profile->name << ": " << cell.reason);
      if (cell.finding && cell.finding->violation) INFO(cell.finding->violation->sentence);
      using State = AttentionCell::State;
      CHECK(cell.state != State::kMismatch);
      CHECK(cell.state != State::kMistrusted);
      CHECK((cell.state == State::kUnsupported) == (property.name == "sinks"));  // a call has none
      CHECK((cell.cases == 0 || cell.declined < cell.cases || property.name == "sinks"));
    }
}

TEST_CASE("what a call cannot say and what the launcher refuses is declined in a sentence",
          "[VER-25.2]") {
  const auto says = [](const AttentionCase& c, std::string_view profile, std::string_view words) {
    const BuiltPtr b = build(c);
    const AttentionRun run = subject()->run(**attention::find_profile(profile), b->problem, 1);
    CAPTURE(print(c), run.message);
    CHECK(run.state == AttentionRun::State::kUnsupported);
    CHECK(run.message.find(words) != std::string::npos);
  };
  AttentionCase c = small_case();
  says(c, "paper", "our kernels are assay-prefill-sm90 and assay-decode-sm90");
  c.custom = true;
  says(c, kPrefillProfile, "custom mask");
  c = small_case();
  c.v_dim = 32;
  says(c, kPrefillProfile, "v_dim is 32 and head_dim 64");
  c.dim = c.v_dim = 96;
  says(c, kPrefillProfile, "head_dim is 96; the prefill kernel has 64, 128 and 256");
  c.dim = c.v_dim = 64;
  c.page = 48;
  says(c, kPrefillProfile, "pages hold 48 rows");
  const BuiltPtr b = build(small_case());
  for (const float threshold : {-1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    b->problem.requests[1].threshold.value = threshold;
    const AttentionRun run = subject()->run(prefill(), b->problem, 1);
    CHECK(run.state == AttentionRun::State::kUnsupported);
    CHECK(run.message.find("threshold is") == 0);
  }
}

TEST_CASE("what a launch writes wrongly is told", "[VER-25.4]") {
  const BuiltPtr b = with_gaps(*build(small_case()), 5, 0);
  const auto told = [&](Fault fault) {
    const AttentionRun run = subject(std::move(fault))->run(prefill(), b->problem, 1);
    CHECK(run.state == AttentionRun::State::kFailed);
    return run.message;
  };
  const auto out = [](const AttentionCall& c) {
    return static_cast<std::uint16_t*>(data(c.out.data));
  };
  CHECK(told([&](const AttentionCall& c) { out(c)[71 * c.out.row_stride] = 0; }) ==
        "row 71 of out or lse is no request's and was written");
  CHECK(told([&](const AttentionCall& c) {
          static_cast<float*>(data(c.lse.data))[70 * c.lse.row_stride] = 0;
        }) == "row 70 of out or lse is no request's and was written");
  CHECK(told([&](const AttentionCall& c) { out(c)[-1] = 0; }) ==
        "bytes between out and out were overwritten");
  // Two requests of as many rows: the gaps are equal.
  CHECK(told([&](const AttentionCall& c) { out(c)[2 * c.out.rows * c.out.row_stride] = 0; }) ==
        "bytes between out and lse were overwritten");
  CHECK(told([&](const AttentionCall& c) {
          std::memset(out(c) + 76 * c.out.row_stride + 64, 0xFF, 128);
        }) == "out was not written at request 1 row 1 head 1");
  CHECK(told([&](const AttentionCall& c) {
          std::memset(static_cast<float*>(data(c.lse.data)) + 2 * c.lse.row_stride, 0xFF, 4);
        }) == "lse was not written at request 0 row 2 head 0");
  CHECK(told([](const AttentionCall& c) { ++c.counters[3]; }).find("the counter of head 1 says") ==
        0);
  CHECK(told([](const AttentionCall& c) {
          if (c.decisions != nullptr) c.decisions[0] = 0;
        }).find("the counter of head 0 says") == 0);
  CHECK(
      told([&](const AttentionCall& c) {
        if (c.decisions != nullptr) out(c)[5] ^= 1;
      })
          .find("asked for decisions, the kernel gives other bits than without: out at row 0 head "
                "0 element 5") == 0);
}

// A poison that is a number would be: -57152 in F16, -6.5e35 in BF16 and f32.
TEST_CASE("no row of numbers, nor of the NaN that kernels give, is taken for unwritten",
          "[VER-25.4]") {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    AttentionCase small = small_case();
    small.dtype = dtype;
    const BuiltPtr b = build(small);
    for (const int byte : {0x00, 0x7F, 0xFA, 0xFE}) {
      const bool is_nan = byte == 0x7F;
      const AttentionRun run =
          subject([&](const AttentionCall& c) {
            auto* const out = static_cast<std::uint16_t*>(data(c.out.data));
            std::memset(out + 71 * c.out.row_stride, byte, 256);
            if (is_nan) std::fill_n(out + 71 * c.out.row_stride, 128, std::uint16_t{0x7FFF});
            std::memset(static_cast<float*>(data(c.lse.data)) + 2 * c.lse.row_stride, byte, 4);
          })->run(prefill(), b->problem, 1);
      CAPTURE(byte, run.message);
      CHECK(run.state == AttentionRun::State::kOk);
    }
  }
}

TEST_CASE("counters that contradict the profile are a finding though the bits are right",
          "[VER-25.4]") {
  const AttentionFunction counts_twice(
      "counts twice", [](const attention::Profile& p, const Problem& problem, int threads) {
        AttentionRun run = emulated(p, problem, threads);
        *run.answer.skipped *= 2;
        return run;
      });
  AttentionSuiteOptions options;
  options.only = small_case();
  const AttentionCell cell =
      run_attention_cell(**find_property("truth"), prefill(), counts_twice, options);
  REQUIRE(cell.state == AttentionCell::State::kMismatch);
  REQUIRE(cell.finding->bits.has_value());
  CHECK(cell.finding->bits->check == "attention.counters");
}

TEST_CASE("a launch that fails is told once, and the device not used again", "[VER-25.5]") {
  const auto lost = device_subject(
      "host", std::make_unique<HostDevice>(nullptr, bad_input("the kernel: unspecified failure")));
  const BuiltPtr b = build(small_case());
  HostDevice::runs = 0;
  const AttentionRun first = lost->run(prefill(), b->problem, 1);
  CHECK(first.state == AttentionRun::State::kFailed);
  CHECK(first.message == "the kernel: unspecified failure");
  const AttentionRun second = lost->run(prefill(), b->problem, 1);
  CHECK(second.state == AttentionRun::State::kUnsupported);
  CHECK(second.message ==
        "the device is lost since an earlier call: the kernel: unspecified failure");
  CHECK(HostDevice::runs == 1);
}

TEST_CASE("a wrong kernel of one shape gets cases of that shape", "[VER-25.2][VER-25.6]") {
  AttentionCase c = check::usual_case(prefill());
  CHECK(c.dtype == Dtype::kF16);
  const AttentionCase one = served_case(c, OneKernel{DeviceKernel::kPrefill, Dtype::kBf16, 128});
  CHECK((one.dtype == Dtype::kBf16 && one.dim == 128 && one.v_dim == 128));
  const AttentionCase any = served_case(c, std::nullopt);
  CHECK((any.dtype == Dtype::kF16 && any.dim == 128 && any.v_dim == 128));
  // Bringing a case to its size twice changes nothing, so that smaller cases stay smaller.
  Dice dice(3);
  for (int i = 0; i < 50; ++i) {
    const AttentionCase random = random_case(prefill(), dice);
    const AttentionCase drawn = drawn_case(random, std::nullopt);
    CHECK(served_case(drawn, std::nullopt) == drawn);
    CHECK(drawn.kv[0] >= 4 * random.kv[0]);
  }
}

TEST_CASE("a wrong kernel is a subject of its own profile and is asked about no other",
          "[VER-25.6]") {
  class One : public HostDevice {
   public:
    std::optional<OneKernel> only() const override { return OneKernel{DeviceKernel::kDecode}; }
  };
  CHECK(subject()->profiles().size() == 2);
  const auto wrong = device_subject("wrong", std::make_unique<One>());
  REQUIRE(wrong->profiles().size() == 1);
  CHECK(wrong->profiles()[0] == kDecodeProfile);
  const BuiltPtr b = build(small_case());
  CHECK(wrong->run(decode(), b->problem, 1).state == AttentionRun::State::kOk);
  const AttentionRun other = wrong->run(prefill(), b->problem, 1);
  CHECK(other.state == AttentionRun::State::kUnsupported);
  CHECK(other.message ==
        "this is a wrong kernel of assay-decode-sm90, and the profile is assay-prefill-sm90");
}

TEST_CASE("a name that no subject or wrong kernel has is told with those there are",
          "[VER-25.5][VER-25.6]") {
  const auto sim = load_attention_subject("sim", "vote_not_strict");
  REQUIRE_FALSE(sim.has_value());
  CHECK(sim.error().sentence.find("wrong CUDA kernel") != std::string::npos);
  const auto cuda = load_attention_subject("cuda", "no_such_fault");
  REQUIRE_FALSE(cuda.has_value());
  CHECK(cuda.error().kind == ErrorKind::kBadInput);  // with a device or without one
  CHECK(cuda.error().sentence.find("no_such_fault") != std::string::npos);
  CHECK(cuda_attention_mutants().empty());
}
