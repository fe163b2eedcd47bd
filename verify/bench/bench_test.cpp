// Routing and what it moves; the definitions of bandwidth. No GPU is needed.
#include "verify/bench/bench.hpp"
#include "verify/bench/routing.hpp"

#include <set>

#include "model/core/testing.hpp"

namespace assay::verify::bench {
namespace {

TEST_CASE("the perfect router spreads picks over ranks, then over a rank's experts", "[VER-20.1]") {
  const Model model{"m", 64, 2, 8};
  const auto ids = perfect_router(model, 4, 5);
  REQUIRE(ids.has_value());
  // Flat picks 0..9: rank s mod 4 of 2 experts each, local expert (s div 4) mod 2.
  CHECK(*ids == std::vector<std::int32_t>{0, 2, 4, 6, 1, 3, 5, 7, 0, 2});
  CHECK_FALSE(perfect_router(model, 3, 1).has_value());
  for (const Model& known : models()) {
    const auto of_model = perfect_router(known, 4, 7);
    REQUIRE(of_model.has_value());
    for (std::size_t token = 0; token < 7; ++token) {
      std::set<std::int32_t> distinct;
      for (int k = 0; k < known.top_k; ++k)
        distinct.insert((*of_model)[token * static_cast<std::size_t>(known.top_k) +
                                    static_cast<std::size_t>(k)]);
      CHECK(distinct.size() == static_cast<std::size_t>(known.top_k));
    }
  }
}

TEST_CASE("a token's row crosses once to each distinct rank, and comes back from it",
          "[VER-20.3]") {
  const Model model{"m", 64, 2, 4};
  // Rank 0: one token to rank 1 twice, one to both; rank 1: nothing.
  const std::vector<std::vector<std::int32_t>> ids = {{2, 3, 0, 2}, {}};
  const auto traffic = dispatch_traffic(model, 2, ids, 100);
  REQUIRE(traffic.has_value());
  CHECK(traffic->bytes == std::vector<std::int64_t>{100, 200, 0, 0});
  CHECK(traffic->busiest_rank() == 200);
  CHECK(traffic->remote() == 200);
  const Traffic back = returned(*traffic, 100, 128);
  CHECK(back.bytes == std::vector<std::int64_t>{128, 0, 256, 0});
}

TEST_CASE("bandwidth is logical, or that of the busiest rank's links", "[VER-20.3]") {
  // 2048 tokens to min(4, 8) ranks of 14336 bytes in 325 us.
  CHECK(logical_bandwidth(2048, 4, 8, 14336, 325) == Approx(361.36).epsilon(1e-3));
  const Traffic traffic{2, {7, 50, 20, 7}};
  CHECK(traffic.busiest_rank() == 50);
  CHECK(link_bandwidth(traffic, 0.05) == Approx(1.0));
}

TEST_CASE("a ceiling that is not within 3 % of what is known voids the run", "[VER-20.4]") {
  CHECK(Figure{"a", 100, "GB/s", std::nullopt, true}.is_near_known());
  CHECK(Figure{"a", 103, "GB/s", 100, true}.is_near_known());
  CHECK_FALSE(Figure{"a", 104, "GB/s", 100, true}.is_near_known());
  CHECK_FALSE(Figure{"a", 96, "GB/s", 100, true}.is_near_known());
  BenchResult result;
  CHECK(result.ceilings_hold());
  result.ceilings = {{"a", 100, "GB/s", 100, true}, {"b", 50, "GB/s", 100, true}};
  CHECK_FALSE(result.ceilings_hold());
  result.ceilings[1].decides = false;  // no row's ceiling is taken this way
  CHECK(result.ceilings_hold());
}

TEST_CASE("what a benchmark cannot do is told before anything is made", "[VER-20.7][VER-20.8]") {
  BenchOptions options;
  std::vector<RowRequest> rows(2);
  rows[1].batch = 128;
  const auto said = [&] {
    const Status status = check_bench(options, rows);
    if (!status) CHECK(status.error().kind == ErrorKind::kBadInput);
    return status ? "(ok)" : status.error().sentence;
  };
  options.devices = {0};
  CHECK(said() == "1 ranks: a wire needs at least 2");
  options.devices = {0, 0};
  options.emulated = true;
  CHECK(said() == "(ok)");
  rows[1].batch = 129;
  CHECK(said() == "2 ranks of 129 tokens on one GPU (--emulated); allowed are 256 tokens in all");
  options.emulated = false;
  CHECK(said() == "(ok)");
  options.kernels_profile = "nobody";
  CHECK(said() == "(ok)");  // nobody's sums are held to it
  options.kernels = std::string("kernels:") + ASSAY_TEST_FAULTY_KERNELS;
  CHECK(said().find("\"nobody\"") != std::string::npos);
  options.kernels_profile = "assay-oneside";
  CHECK(said() == "(ok)");
  options.kernels = "kernels:./no-such-file.so";
  CHECK(said().find("kernels \"./no-such-file.so\" does not load: ") == 0);
}

}  // namespace
}  // namespace assay::verify::bench
