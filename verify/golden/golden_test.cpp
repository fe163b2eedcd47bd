// Golden files and comparisons where Python would be slow or blind: every deviation of a matrix
// rule is named when it made the output, padding is not compared, the two forms of combine agree.
#include "verify/golden/golden.hpp"

#include <cmath>
#include <cstring>
#include <random>

#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {
namespace {

using numerics::Instruction;
using testing::TempDir;

// A file with tensors of its own.
class FileMaker {
 public:
  template <class T>
  FileMaker& add(const std::string& name, Shape shape, const std::vector<T>& values) {
    GoldenTensor tensor{.name = name, .dtype = dtype_of<T>(), .shape = std::move(shape)};
    tensor.bytes = bytes_of(std::span<const T>(values));
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  void write(const std::string& path) const {
    TensorFileWriter writer;
    for (const GoldenTensor& tensor : tensors_)
      writer.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
    const Status written = writer.write(path);
    REQUIRE(written.has_value());
  }

 private:
  std::vector<GoldenTensor> tensors_;
};

Report checked(const GoldenRequest& request, const std::string& got) {
  auto report = check_golden(request, got);
  INFO((report ? "" : report.error().sentence));
  REQUIRE(report.has_value());
  return *report;
}

bool tells(const Report& report, const std::string& words) {
  REQUIRE(!report.mismatches.empty());
  for (const std::string& sentence : report.mismatches.front().diagnoses)
    if (sentence.find(words) != std::string::npos) return true;
  return false;
}

constexpr int kSize = 16, kChain = 64;
constexpr const char* kInstruction = "wgmma.m64n8k16.f32.bf16.bf16";

struct Tile {
  std::vector<Bf16> a, b;
  std::vector<F32> c;
};

// Exponents over 16 binades, so that much is cut, and sums that often cancel.
Tile random_tile(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto value = [&] {
    const auto exponent = static_cast<std::uint16_t>(119 + random() % 16);
    return Bf16{static_cast<std::uint16_t>((random() & 0x807F) | exponent << 7)};
  };
  Tile tile;
  for (int i = 0; i < kSize * kChain; ++i) tile.a.push_back(value());
  for (int i = 0; i < kSize * kChain; ++i) tile.b.push_back(value());
  for (int i = 0; i < kSize * kSize; ++i)
    tile.c.push_back(
        F32{std::uint32_t{value().bits} << 16 | static_cast<std::uint32_t>(random() & 0xFFFF)});
  return tile;
}

std::vector<F32> computed(const Tile& tile, const Instruction& instruction,
                          numerics::Promotion promotion = {}) {
  std::vector<std::uint16_t> a, b;
  for (const Bf16 x : tile.a) a.push_back(x.bits);
  for (const Bf16 x : tile.b) b.push_back(x.bits);
  std::vector<F32> d(tile.c.size());
  numerics::MmaProblem<std::uint16_t> problem;
  problem.m = problem.n = kSize;
  problem.k = kChain;
  problem.a = a.data();
  problem.b = b.data();
  problem.c = tile.c.data();
  problem.d = d.data();
  problem.promotion = promotion;
  REQUIRE(numerics::mma(instruction, problem).has_value());
  return d;
}

FileMaker file_of(const Tile& tile) {
  FileMaker file;
  file.add("a", {1, kSize, kChain}, tile.a).add("b", {1, kSize, kChain}, tile.b);
  file.add("c", {1, kSize, kSize}, tile.c);
  return file;
}

GoldenRequest mma_request(const std::string& in) {
  return {"mma", in, {std::string("instruction=") + kInstruction, "arch=sm_90a"}, {}};
}

}  // namespace

TEST_CASE("every deviation of a matrix rule is named when it made the output", "[VER-7.7]") {
  const TempDir dir;
  const Tile tile = random_tile(1);
  const std::string in = dir.file("in"), got = dir.file("got");
  file_of(tile).write(in);
  const Instruction own = *numerics::find_instruction(kInstruction, numerics::Arch::kSm90a);
  const auto check = [&](const std::vector<F32>& d, const std::string& words) {
    CAPTURE(words);
    FileMaker().add("d", {1, kSize, kSize}, d).write(got);
    const Report report = checked(mma_request(in), got);
    REQUIRE(report.verdict == Verdict::kMismatch);
    CHECK(tells(report, words));
    CHECK(report.mismatches.front().diagnoses.size() == 1);
  };
  using Change = void (*)(numerics::Rule&);
  const std::pair<const char*, Change> changes[] = {
      {"(F 26)", [](numerics::Rule& r) { r.fraction_bits = 26; }},
      {"(F 23)", [](numerics::Rule& r) { r.fraction_bits = 23; }},
      {"(RNE)", [](numerics::Rule& r) { r.rounding = numerics::Rounding::kNearestEven; }},
      {"(floor)", [](numerics::Rule& r) { r.floor_alignment = true; }},
      {"renormalised", [](numerics::Rule& r) { r.renormalised_products = true; }},
      {"c added late", [](numerics::Rule& r) { r.late_c = true; }}};
  for (const auto& [words, change] : changes) {
    Instruction other = own;
    change(other.arithmetic.rule);
    check(computed(tile, other), words);
  }
  check(computed(tile, own, {32, false}), "after every 32 of k");
  check(computed(tile, *numerics::find_instruction("mma.sync.m16n8k8.f32.bf16.bf16",
                                                   numerics::Arch::kSm90a)),
        "instruction mma.sync.k8.f32.bf16.bf16 on sm_90a fits instead");
  FileMaker().add("d", {1, kSize, kSize}, computed(tile, own)).write(got);
  CHECK(checked(mma_request(in), got).verdict == Verdict::kConforms);
}

TEST_CASE("a chain from the highest k on is named", "[VER-7.7]") {
  const TempDir dir;
  const Tile tile = random_tile(2);
  Tile reversed = tile;
  for (int row = 0; row < kSize; ++row) {
    for (int k = 0; k < kChain; ++k) {
      const auto to = static_cast<std::size_t>(row * kChain + k);
      const auto from = static_cast<std::size_t>(row * kChain + (3 - k / 16) * 16 + k % 16);
      reversed.a[to] = tile.a[from];
      reversed.b[to] = tile.b[from];
    }
  }
  file_of(tile).write(dir.file("in"));
  const Instruction own = *numerics::find_instruction(kInstruction, numerics::Arch::kSm90a);
  FileMaker().add("d", {1, kSize, kSize}, computed(reversed, own)).write(dir.file("got"));
  CHECK(tells(checked(mma_request(dir.file("in")), dir.file("got")), "highest to the lowest"));
}

TEST_CASE("a library's function is told from the hardware's", "[VER-7.7]") {
  const TempDir dir;
  std::vector<F32> x, rounded, without_ftz;
  for (int i = -2000; i < 2000; ++i) {
    const float value = static_cast<float>(i) * 0.00731f;
    x.push_back(numerics::from_float(value));
    rounded.push_back(
        numerics::from_float(static_cast<float>(std::exp2(static_cast<long double>(value)))));
  }
  FileMaker().add("x", {x.size()}, x).write(dir.file("in"));
  FileMaker().add("y", {x.size()}, rounded).write(dir.file("got"));
  const Report report = checked({"mufu", dir.file("in"), {"function=ex2"}, {}}, dir.file("got"));
  CHECK(report.mismatches.front().ulp->count[UlpHistogram::kMore] == 0);
  CHECK(tells(report, "correctly rounded"));
}

TEST_CASE("padding of scales is not compared and their place is told", "[VER-7.4]") {
  const TempDir dir;
  std::vector<Bf16> x;
  for (std::uint16_t i = 0; i < 5 * 64; ++i)
    x.push_back(Bf16{static_cast<std::uint16_t>(0x3F80 + i % 97)});
  FileMaker().add("x", {5, 64}, x).write(dir.file("in"));
  const GoldenRequest request{"quantize", dir.file("in"), {"scale_layout=128x4"}, "trtllm-mxfp8"};
  REQUIRE(write_golden(request, dir.file("golden")).has_value());
  const auto golden = TensorFile::open(dir.file("golden"));
  REQUIRE(golden.has_value());
  const TensorView scale = *golden->tensor("scale"), y = *golden->tensor("y");
  REQUIRE(scale.shape == Shape{512});
  const auto elements = Elements<std::uint8_t>(y.bytes).copy();
  for (std::size_t i = 0; i < 512; ++i) {
    auto scales = Elements<std::uint8_t>(scale.bytes).copy();
    scales[i] ^= 1;
    // As frameworks without these types write them, and in the padded shape of a kernel.
    FileMaker().add("y", {5, 64}, elements).add("scale", {128, 4}, scales).write(dir.file("got"));
    const Report report = checked(request, dir.file("got"));
    const std::size_t row = i / 16, block = i % 4;  // of rows below 32, 16 scales are one row's
    const bool used = i % 16 < 2 && row < 5;
    CAPTURE(i);
    REQUIRE((report.verdict == Verdict::kMismatch) == used);
    if (!used) continue;
    CHECK(report.mismatches.front().coordinate("row") == static_cast<std::int64_t>(row));
    CHECK(report.mismatches.front().coordinate("block") == static_cast<std::int64_t>(block));
  }
}

TEST_CASE("formats that occur only in golden files are spelled", "[VER-7.4]") {
  CHECK(show_value(ElementFormat::kUe8m0, 0x7D) == "0x7d (2^-2)");
  CHECK(show_value(ElementFormat::kUe8m0, 0xFF) == "0xff (NaN)");
  CHECK(show_distance(ElementFormat::kUe8m0, 0x7D, 0x7E) == "off by -1");
  CHECK(show_value(ElementFormat::kE2m1, 0xF) == "0x0f (-0x1.8p+2, -6)");
  CHECK(show_distance(ElementFormat::kE2m1, 0x7, 0x5) == "+2 ulp e2m1");
  CHECK(show_distance(ElementFormat::kE5m2, 0x7F, 0x3C) == "NaN for a number");
}

TEST_CASE("four-bit elements are compared one by one", "[VER-7.4]") {
  const TempDir dir;
  std::vector<Bf16> x;
  for (std::uint16_t i = 0; i < 2 * 32; ++i)
    x.push_back(Bf16{static_cast<std::uint16_t>(0x3F00 + 11 * i)});
  FileMaker()
      .add("x", {2, 32}, x)
      .add("global_scale", {1}, std::vector<F32>{{0x43000000}})
      .write(dir.file("in"));
  const GoldenRequest request{"quantize", dir.file("in"), {}, "trtllm-nvfp4"};
  REQUIRE(write_golden(request, dir.file("golden")).has_value());
  const auto golden = TensorFile::open(dir.file("golden"));
  REQUIRE(golden.has_value());
  const auto y = Elements<std::uint8_t>(golden->tensor("y")->bytes).copy();
  const auto scales = Elements<std::uint8_t>(golden->tensor("scale")->bytes).copy();
  REQUIRE(golden->tensor("y")->dtype == Dtype::kF4);
  for (std::size_t i = 0; i < 64; ++i) {
    auto wrong = y;
    wrong[i / 2] = static_cast<std::uint8_t>(wrong[i / 2] ^ (1 << (i % 2 * 4)));
    FileMaker().add("y", {2, 16}, wrong).add("scale", {2, 2}, scales).write(dir.file("got"));
    const Report report = checked(request, dir.file("got"));
    REQUIRE(report.verdict == Verdict::kMismatch);
    const Mismatch& first = report.mismatches.front();
    CHECK(first.coordinate("row") == static_cast<std::int64_t>(i / 32));
    CHECK(first.coordinate("column") == static_cast<std::int64_t>(i % 32));
    CHECK(first.wrong == 1);
    CHECK(first.values->format == ElementFormat::kE2m1);
  }
}

TEST_CASE("rows on the wire and rows in the experts' buffers give one sum", "[VER-7.3]") {
  const TempDir dir;
  constexpr std::size_t kRanks = 3, kTokens = 2, kTopK = 4, kHidden = 5;
  std::mt19937 random(7);
  std::vector<Bf16> buffers;  // [dst, src, slot, h]
  for (std::size_t i = 0; i < kRanks * kRanks * kTokens * kHidden; ++i)
    buffers.push_back(Bf16{static_cast<std::uint16_t>((random() & 0x83FF) | 0x3C00)});
  std::vector<std::int32_t> rank, slot;
  std::vector<Bf16> rows;
  for (std::size_t src = 0; src < kRanks; ++src) {
    for (std::size_t i = 0; i < kTokens * kTopK; ++i) {
      const bool hole = random() % 3 == 0;
      const std::size_t dst = random() % kRanks, s = random() % kTokens;
      rank.push_back(hole ? -1 : static_cast<std::int32_t>(dst));
      slot.push_back(hole ? -1 : static_cast<std::int32_t>(s));
      const std::size_t first = ((dst * kRanks + src) * kTokens + s) * kHidden;
      for (std::size_t h = 0; h < kHidden; ++h) rows.push_back(buffers[first + h]);
    }
  }
  FileMaker()
      .add("expert_out", {kRanks, kRanks, kTokens, kHidden}, buffers)
      .add("target_rank", {kRanks, kTokens, kTopK}, rank)
      .add("target_slot", {kRanks, kTokens, kTopK}, slot)
      .write(dir.file("buffers"));
  FileMaker()
      .add("rows", {kRanks * kTokens, kTopK, kHidden}, rows)
      .add("target_rank", {kRanks * kTokens, kTopK}, rank)
      .write(dir.file("rows"));
  for (const GoldenOp& op : golden_ops()) {
    if (op.profiles == nullptr || op.name != "combine") continue;
    for (const std::string& profile : op.profiles()) {
      for (const char* form : {"buffers", "rows"})
        REQUIRE(
            write_golden({"combine", dir.file(form), {}, profile}, dir.file("out")).has_value());
      const auto last = TensorFile::open(dir.file("out"));
      REQUIRE(write_golden({"combine", dir.file("buffers"), {}, profile}, dir.file("first"))
                  .has_value());
      const auto first = TensorFile::open(dir.file("first"));
      const auto a = Elements<Bf16>(first->tensor("out")->bytes).copy();
      const auto b = Elements<Bf16>(last->tensor("out")->bytes).copy();
      REQUIRE(a.size() == kRanks * kTokens * kHidden);
      CHECK(std::memcmp(a.data(), b.data(), a.size() * 2) == 0);
    }
  }
}

TEST_CASE("what a verdict claims is no more than the grade", "[VER-7.5]") {
  CHECK(judges_bits(Grade::kBits));
  CHECK(judges_bits(Grade::kBitsClaimed));
  CHECK(!judges_bits(Grade::kDecisions));
  CHECK(!judges_bits(Grade::kValues));
  CHECK(claim_of(Grade::kBits) == "reproduced on hardware with zero differences");
  CHECK(claim_of(Grade::kBitsClaimed).find("not reproduced on hardware here") != std::string::npos);
  CHECK(claim_of(Grade::kValues).find("no verdict about bits") != std::string::npos);
}

TEST_CASE("dead ranks are not looked at and places of replicas are used", "[VER-7.6]") {
  const TempDir dir;
  // 2 ranks, 4 places of 2 experts; rank 1 is dead.
  const std::vector<std::int32_t> ids{0, 3, 2, 1};
  FileMaker file;
  file.add("topk_ids", {2, 1, 2}, ids).add("num_tokens", {2}, std::vector<std::int32_t>{1, 1});
  file.add("payload.hidden", {2, 1, 4}, std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 8});
  file.add("physical_to_logical", {4}, std::vector<std::int32_t>{0, 1, 1, 0});
  file.add("rank_mask", {1}, std::vector<std::uint64_t>{1});
  file.write(dir.file("in"));
  const GoldenRequest request{
      "dispatch", dir.file("in"), {"num_experts=4", "max_tokens_per_rank=1"}, {}};
  const auto written = write_golden(request, dir.file("golden"));
  INFO((written ? "" : written.error().sentence));
  REQUIRE(written.has_value());
  const auto golden = TensorFile::open(dir.file("golden"));
  CHECK(Elements<std::int32_t>(golden->tensor("recv_counters")->bytes).copy() ==
        std::vector<std::int32_t>{1, 0, 0, 0});
  CHECK(Elements<std::int32_t>(golden->tensor("target_rank")->bytes).copy() ==
        std::vector<std::int32_t>{0, -1, -1, -1});
  const Report report = checked(request, dir.file("golden"));
  CHECK(report.verdict == Verdict::kConforms);
  for (const auto& [name, elements] : report.compared) {
    if (name == "recv.hidden") CHECK(elements == 4);
    if (name == "recv_counters") CHECK(elements == 2);
  }
}

}  // namespace assay::verify
