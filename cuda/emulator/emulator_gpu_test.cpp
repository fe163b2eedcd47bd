// The emulator on a GPU against the one on the host: bits, LSE, decisions and margins of random
// problems of every profile. Without a device there is nothing to run, and the program says so to
// Meson (exit code 77).
#define CATCH_CONFIG_RUNNER
#include "cuda/emulator/device_problem.hpp"
#include "cuda/emulator/emulator.hpp"
#include "model/attention/attention_testing.hpp"
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#endif

namespace assay::cuda {
namespace {

using namespace attention;
using namespace attention::testing;

std::string sentence(const Status& status) { return status ? "" : status.error().sentence; }

// What differs between two emulations, or nothing.
std::string difference(const Emulation& a, const Emulation& b) {
  if (a.out != b.out) return "out";
  if (!same_lse(a, b)) return "lse";
  if (a.units.size() != b.units.size()) return "units";
  for (std::size_t i = 0; i < a.units.size(); ++i) {
    if (decisions(a.units[i]) != decisions(b.units[i])) return "decisions";
    for (std::size_t t = 0; t < a.units[i].tiles.size(); ++t) {
      const TileTrace &x = a.units[i].tiles[t], &y = b.units[i].tiles[t];
      if (x.local_max.bits != y.local_max.bits || x.zeroed != y.zeroed) return "traces";
      if (std::bit_cast<std::uint32_t>(x.margin_log2) !=
          std::bit_cast<std::uint32_t>(y.margin_log2))
        return "margins";
    }
  }
  return "";
}

TEST_CASE("a GPU's emulation has the bits of the host's, for every profile", "[ATT-5.10]") {
  for (const Profile& profile : profiles()) {
    std::int64_t skipped = 0;
    assay::testing::prop(std::string(profile.name), [&] {
      Case c = *cases(profile, {150, 500, 2, 4, true});
      if (profile.skip.dense_only) c.lambda = -1;
      const auto built = build(c);
      Problem& p = built->problem;
      const std::vector<float> some(static_cast<std::size_t>(c.q_heads), 0.375f);
      if (profile.softmax.sink != SinkForm::kNone && *rc::gen::arbitrary<bool>()) p.sinks = some;
      DeviceProblem device;
      for (const Tensor* t : {&built->q, &built->k, &built->v})
        RC_ASSERT(sentence(device.add(t->bytes.data(), t->bytes.size())) == "");
      for (const auto& cells : built->custom)
        RC_ASSERT(sentence(device.add(cells.data(), cells.size())) == "");
      RC_ASSERT(sentence(device.add(some.data(), some.size() * sizeof(float))) == "");
      const Problem moved = device.moved(p);
      const auto emulator = DeviceEmulator::make(profile, moved);
      RC_ASSERT(emulator.has_value());
      const auto got = emulator->run_all();
      RC_ASSERT(got.has_value());
      const Emulation expected = attention::testing::run(profile, p, 2);
      RC_ASSERT(difference(*got, expected) == "");
      skipped += expected.counters.skipped;
    });
    CAPTURE(profile.name, skipped);
    REQUIRE((skipped > 0 || profile.skip.dense_only));
  }
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  if (!assay::cuda::has_device()) return kSkipped;
  return Catch::Session().run(argc, argv);
}
