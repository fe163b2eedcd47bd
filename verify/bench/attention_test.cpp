// What the attention benchmark asks peers and makes of their answers, without a GPU.
#include "verify/bench/attention.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/core/testing.hpp"

namespace assay::verify::bench {
namespace {

AttentionBenchResult result() {
  AttentionBenchResult r;
  for (const double low : {0.0, 0.5}) {
    AttentionSet set;
    set.id = static_cast<std::int64_t>(r.sets.size());
    set.length = 16384;
    set.pattern = "whole tiles";
    set.low = low;
    set.q.rows = 16384;
    set.checksums = {1, 2, 0xABCDEF0123456789u};
    r.sets.push_back(set);
  }
  const auto row = [&](std::int64_t set, bool causal, std::string what, double ms) {
    AttentionBenchRow made;
    made.set = set;
    made.length = 16384;
    made.causal = causal;
    made.what = std::move(what);
    made.ms = ms;
    r.rows.push_back(made);
  };
  row(0, false, "dense", 14);
  row(0, true, "dense", 8);
  row(1, false, "whole tiles", 10);
  row(1, true, "whole tiles", 5);
  return r;
}

std::string answer(const std::string& rows, const std::string& sum = "abcdef0123456789") {
  return R"({"rows": [)" + rows + R"(], "checksums": {"0": ["0000000000000001",
    "0000000000000002", ")" +
         sum + R"("], "1": ["0000000000000001", "0000000000000002",
    "abcdef0123456789"]}, "missing": {"flashinfer": "cannot be imported"},
    "notes": {"flash": "keys repeated"},
    "versions": {"torch": "2.11"}, "matmul_tflops": 700})";
}
constexpr const char* kCudnn =
    R"({"peer": "cudnn", "set": 0, "mask": "full", "ms": 12, "ms_min": 11})";

TEST_CASE("the speed is that of a dense kernel, causal halved", "[VER-25.9]") {
  // 16384 rows and keys, 64 heads of 128: 4 * 2^28 * 2^13 operations.
  const double flop = 4.0 * (1 << 28) * (1 << 13);
  CHECK(std::abs(dense_tflops(16384, 64, 128, false, 10) * 1e10 / flop - 1) < 1e-12);
  CHECK(dense_tflops(16384, 64, 128, true, 10) == dense_tflops(16384, 64, 128, false, 20));
  CHECK(dense_tflops(16384, 64, 128, true, 0) == 0);
  CHECK(repeats_of(16384, 7) == 7);
  CHECK(repeats_of(65536, 7) == 4);
}

TEST_CASE("peers are asked for every drawing, its masks and its checksums", "[VER-25.12]") {
  const auto json = peer_request(result(), 5);
  CHECK(json["sets"][0]["repeats"] == 5);
  REQUIRE(json["sets"].size() == 2);
  CHECK(json["sets"][0]["masks"].dump() == R"(["full","causal"])");
  CHECK(json["sets"][1]["checksums"][2] == "abcdef0123456789");
  CHECK(json["sets"][0]["q"]["rows"] == 16384);
  CHECK(json["sets"][0]["q"]["seed"] == 1);
}

TEST_CASE("an answer is refused if its tensors are others, or it is no answer", "[VER-25.12]") {
  const AttentionBenchResult r = result();
  const auto says = [&](const std::string& text, const std::string& words) {
    const auto parsed = parse_peer_answer(text, r);
    REQUIRE_FALSE(parsed.has_value());
    INFO(parsed.error().sentence);
    CHECK(parsed.error().sentence.find(words) != std::string::npos);
  };
  says("", "no JSON object");
  says("[1]", "no JSON object");
  says("{}", "another object than expected");
  says(answer(R"({"peer": "cudnn"})"), "another object than expected");
  says(answer(kCudnn, "abcdef012345678a"),
       "v of set 0 has checksum abcdef012345678a, not abcdef0123456789");
  says(answer(R"({"peer": "x", "set": 7, "mask": "full", "ms": 1, "ms_min": 1})"), "set 7");
  const auto parsed = parse_peer_answer(answer(kCudnn), r);
  REQUIRE(parsed.has_value());
  REQUIRE(parsed->rows.size() == 1);
  CHECK(parsed->rows[0].ms == 12);
  CHECK(parsed->missing[0].second == "cannot be imported");
  CHECK(parsed->notes[0].second == "keys repeated");
  CHECK(parsed->matmul_tflops == 700);
}

TEST_CASE("decodes are timed on copies beyond L2, and asked tiles make up for the kept first ones",
          "[VER-25.13]") {
  CHECK(rotated_caches(std::size_t{2} << 30) == 1);
  CHECK(rotated_caches(std::size_t{128} << 20) == 4);
  CHECK(rotated_caches((std::size_t{128} << 20) - 1) == 5);
  CHECK(low_of_decode(0) == 0);
  CHECK(std::abs(low_of_decode(0.5) * 31 / 32 - 0.5) < 1e-12);
  CHECK(low_of_decode(0.99) == 1);
}

TEST_CASE("a speed-up is over the fastest dense way on the same problem",
          "[VER-25.11][VER-25.14]") {
  const AttentionBenchResult r = result();
  const auto over = [&](const PeerAnswer& peers, std::size_t row) {
    const auto found = speed_up(r, peers, r.rows[row]);
    REQUIRE(found.has_value());
    return std::pair{found->value, found->over};
  };
  PeerAnswer peers;
  CHECK(over(peers, 2) == std::pair{1.4, std::string("dense")});
  // Faster, on the tensors of the dense row alone.
  peers.rows.push_back({"cudnn", 0, false, 12, 11});
  CHECK(over(peers, 2) == std::pair{1.2, std::string("cudnn")});
  // Its own tensors count once the peer had them; other masks do not.
  peers.rows.push_back({"cudnn", 1, false, 13, 12});
  CHECK(over(peers, 2) == std::pair{1.3, std::string("cudnn")});
  CHECK(over(peers, 3) == std::pair{1.6, std::string("dense")});
  // A dense row is held against peers alone.
  CHECK(over(peers, 0) == std::pair{12.0 / 14, std::string("cudnn")});
  CHECK_FALSE(speed_up(r, peers, r.rows[1]).has_value());
  // So do our own.
  AttentionBenchResult more = r;
  more.rows.push_back(r.rows[0]);
  more.rows.back().set = r.rows[2].set;
  more.rows.back().ms = 12.5;
  REQUIRE(r.rows[0].what == "dense");
  REQUIRE(r.rows[0].set != r.rows[2].set);
  const auto found = speed_up(more, {}, r.rows[2]);
  REQUIRE(found.has_value());
  CHECK(std::pair{found->value, found->over} ==
        std::pair{12.5 / r.rows[2].ms, std::string("dense")});
  // A kernel that is tuned otherwise is held against the launched one, which it is never instead
  // of.
  AttentionBenchResult tuned = r;
  tuned.rows.push_back(r.rows[0]);
  tuned.rows.back().tuning = "two units";
  tuned.rows.back().ms = 7;
  CHECK(speed_up(tuned, {}, r.rows[2])->value == r.rows[0].ms / r.rows[2].ms);
  CHECK(speed_up(tuned, {}, tuned.rows.back())->value == 2);
  CHECK_FALSE(speed_up(tuned, {}, tuned.rows[0]).has_value());
  AttentionBenchRow batch = r.rows[2];
  batch.requests = 64;
  CHECK_FALSE(speed_up(r, peers, batch).has_value());
  AttentionBenchRow other = r.rows[2];
  other.dtype = Dtype::kF8E4m3;
  CHECK_FALSE(speed_up(r, peers, other).has_value());
}

}  // namespace
}  // namespace assay::verify::bench
