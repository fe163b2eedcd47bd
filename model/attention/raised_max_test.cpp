// The running maximum where lambda above 1 lets a skipped tile raise it.
#include <cmath>

#include "model/attention/attention_testing.hpp"

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

TEST_CASE("what a skipped tile raises is what votes compare with, not what sums refer to",
          "[ATT-4.7]") {
  // Blocks of 128 keys, 0, 2 and 6 nats up; log(20) is 3: the second is skipped and raises the
  // maximum, the third is 4 above that and kept. At 4.5 nats it is skipped, as it is 2.5 above what
  // the second has raised; from the first it would be kept. Tiles are of 64 keys, and one that only
  // equals the maximum is skipped too.
  for (const auto& [last, kept] : {std::pair(6.0f, true), {4.5f, false}}) {
    Case c;
    c.kv_lens = {384};
    c.lambda = 20;
    const auto built = build(c);
    const float per_nat = std::sqrt(static_cast<float>(c.head_dim)) / 4;
    built->q.fill(c.dtype, 1, 1, c.head_dim, [](int, int, int d) { return d == 0 ? 4.0f : 0.0f; });
    built->k.fill(c.dtype, 384, 1, c.head_dim, [up = last, per_nat](int i, int, int d) {
      return d != 0 ? 0.0f : (i < 128 ? 0.0f : i < 256 ? 2.0f : up) * per_nat;
    });
    const Profile& profile = profile_named("trtllm-xqa-sm90");
    const auto emulator = Emulator::make(profile, built->problem);
    REQUIRE(emulator.has_value());
    const Emulation result = run(profile, built->problem);
    std::vector<bool> skipped;
    for (const TileTrace& tile : result.units[0].tiles)
      skipped.push_back(tile.decision == Decision::kSkipped);
    CHECK(skipped == std::vector<bool>{false, true, true, true, !kept, true});
    const auto expected = truth(built->problem, kept_pairs(*emulator, result));
    REQUIRE(expected.has_value());
    const double bound =
        arithmetic_bound(emulator->resolved(), built->problem, expected->rows[0], 6);
    for (std::size_t d = 0; d < expected->out.size(); ++d) {
      INFO(last << " nats, element " << d);
      const auto out = static_cast<double>(decode_out(c.dtype, result.out[d]));
      CHECK(std::abs(out - expected->out[d]) <= bound);
    }
  }
}
