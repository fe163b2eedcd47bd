// Attention as golden files: every golden checks itself, and profiles that must differ do.
#include <algorithm>
#include <cmath>

#include "verify/golden/attention_files.hpp"

namespace assay::verify::testing {
namespace {

TEST_CASE("every golden checks itself, for every profile and layout", "[VER-21.8][VER-21.9]") {
  TempDir dir;
  for (const Profile& profile : profiles()) {
    for (const Lay q : {Lay::kPadded, Lay::kPacked}) {
      for (const Lay kv : {Lay::kPadded, Lay::kPacked, Lay::kPaged}) {
        const auto built = build(skipping_case(profile));
        InputFile file = file_of(built->problem, {q, kv, 32, 3});
        file.settings = {"mask=causal"};
        if (!profile.skip.dense_only)
          file.settings.push_back(profile.skip.lambda_length == LambdaLength::kNone
                                      ? "threshold_scale_factor=0.02"
                                      : "threshold_scale_factor=9");
        const std::string path = golden(dir, file, profile.name);
        const Report report = checked(path, path, std::string(profile.name));
        CAPTURE(profile.name, q == Lay::kPadded, static_cast<int>(kv), told(report));
        REQUIRE(report.verdict == Verdict::kConforms);
        const bool bits = judges_bits(profile.grade);
        REQUIRE(tells(report, bits ? "verdict=bit-equal" : "verdict=decisions equal"));
        REQUIRE(report.compared.size() == (bits && profile.softmax.lse != LseForm::kNone ? 3 : 2));
        const Report blind =
            checked(path, without(dir, path, {"decision"}), std::string(profile.name));
        REQUIRE(blind.verdict == (bits ? Verdict::kConforms : Verdict::kUnsupported));
        if (q != Lay::kPacked || kv != Lay::kPaged) continue;
        const Report any = checked(path, path, "any");
        CAPTURE(told(any));
        REQUIRE(any.verdict == Verdict::kConforms);
        REQUIRE(tells(any, bits ? "profiles that fit: " + std::string(profile.name)
                                : std::string(profile.name) + " (decisions"));
      }
    }
  }
}

TEST_CASE("rows of no request are written as zero and not compared", "[VER-21.8]") {
  TempDir dir;
  const auto built = build(skipping_case(profile_named("assay-prefill-sm90")));
  InputFile file = file_of(built->problem, {Lay::kPadded, Lay::kPacked, 16, 5});
  const std::string path = golden(dir, file, "assay-prefill-sm90");
  const auto opened_file = TensorFile::open(path);
  const TensorView out = *opened_file->tensor("out");
  REQUIRE(out.shape == Shape{2, 105, 2, 64});
  std::vector<std::uint16_t> bits = Elements<std::uint16_t>(out.bytes).copy();
  TensorFileWriter writer;
  int zeros = 0;
  for (std::size_t request = 0; request < 2; ++request) {
    for (std::size_t row = request == 0 ? 100 : 70; row < 105; ++row) {
      std::uint16_t& place = bits[((request * 105 + row) * 2 + 1) * 64 + 9];
      zeros += place == 0;
      place = 0x7FC1;
    }
  }
  REQUIRE(zeros == 5 + 35);
  writer.add("out", out.dtype, out.shape, std::as_bytes(std::span(bits)));
  REQUIRE(writer.write(dir.file("spoiled.safetensors")).has_value());
  const Report report = checked(path, dir.file("spoiled.safetensors"), "assay-prefill-sm90");
  REQUIRE(report.verdict == Verdict::kConforms);
  REQUIRE(report.compared.front() == std::pair<std::string, std::int64_t>("out", 170 * 2 * 64));
}

// `any` on what `made` gives must fit exactly the names.
void require_fits(const TempDir& dir, const InputFile& file, std::string_view made,
                  const std::string& words, const std::set<std::string>& left_out = {}) {
  const std::string path = golden(dir, file, made);
  const Report report = checked(path, without(dir, path, left_out), "any", {}, true);
  CAPTURE(made, told(report));
  REQUIRE(report.verdict == Verdict::kConforms);
  REQUIRE(tells(report, words));
}

constexpr const char* kOurs = "assay-prefill-sm90";
constexpr const char* kFmha = "trtllm-fmha_v2-sm90";
constexpr const char* kXqa = "trtllm-xqa-sm90";
constexpr const char* kNoFix = "trtllm-xqa-sm90@nofix";

InputFile differing(const Profile& profile, const std::vector<std::string>& settings, Case c = {}) {
  if (c.q_lens == std::vector<int>{1}) c = skipping_case(profile);
  InputFile file = file_of(build(c)->problem, {Lay::kPacked, Lay::kPacked});
  file.settings = settings;
  return file;
}

TEST_CASE("lambda above 1, padding that votes and masked tiles tell two prefills apart",
          "[VER-21.10]") {
  TempDir dir;
  const Profile& profile = profile_named(kOurs);
  Case causal = skipping_case(profile);
  causal.q_lens = {128}, causal.kv_lens = {192};
  causal.head_dim = causal.v_dim = 128;  // tiles of 128 keys
  for (const InputFile& file :
       {differing(profile, {"mask=full", "threshold_scale_factor=5000"}),
        differing(profile, {"mask=full", "threshold_scale_factor=9"}),
        differing(profile, {"mask=causal", "threshold_scale_factor=9"}, causal)}) {
    for (const std::set<std::string>& left_out :
         {std::set<std::string>{}, {"decision"}, {"decision", "lse_log2"}}) {
      require_fits(dir, file, kOurs, std::string("profiles that fit: ") + kOurs + ";", left_out);
      require_fits(dir, file, kFmha, std::string("profiles that fit: ") + kFmha + ";", left_out);
    }
  }
  // Masked tiles are counted: the first unit's diagonal ends at key 128, its pair's does not.
  const std::string path =
      golden(dir, differing(profile, {"mask=causal", "threshold_scale_factor=9"}, causal), kFmha);
  const auto file = TensorFile::open(path);
  const auto cells = Elements<std::uint8_t>(file->tensor("decision")->bytes).copy();
  REQUIRE(file->tensor("decision")->shape == Shape{1, 2, 2, 2});
  REQUIRE(cells[0 * 2 + 1] == 2);
  const Report report = checked(path, path, kOurs);
  REQUIRE(report.mismatches.front().check == "attention.decision");
  REQUIRE(tells(report, "the unit does not visit this tile"));
}

TEST_CASE("a decode that turns skipping off above lambda 1 is told from one that does not",
          "[VER-21.10]") {
  TempDir dir;
  const InputFile file = differing(profile_named(kXqa), {"threshold_scale_factor=600"});
  require_fits(dir, file, kXqa, std::string("fits less than bit by bit: ") + kXqa + " (decisions");
  require_fits(dir, file, kNoFix, std::string("fits less than bit by bit: ") + kNoFix);
  const std::string path = golden(dir, file, kXqa);
  REQUIRE(!tells(checked(path, path, "any"), "@nofix (decisions"));
}

TEST_CASE("a tie is told by < and <=", "[VER-21.10]") {
  TempDir dir;
  // Scores 0, ln(lambda) exactly, and far below, in tiles of 128 keys.
  const float scale = -std::log(0.25f);
  Case c;
  c.head_dim = 32, c.v_dim = 32, c.kv_lens = {384}, c.lambda = -1;
  const auto built = build(c);
  built->q.fill(c.dtype, 1, 1, 32, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
  built->k.fill(c.dtype, 384, 1, 32, [](int i, int, int d) {
    return d == 0 ? -static_cast<float>(i / 128) * static_cast<float>(i / 128) : 0.0f;
  });
  InputFile file = file_of(built->problem, {});
  // The paper divides by the length, Model Optimizer takes lambda as it is.
  const std::vector<std::string> own{"scale=" + fmt::format("{:.9g}", scale)};
  file.settings = own;
  file.settings.push_back("threshold_scale_factor=0.25");
  require_fits(dir, file, "modelopt-pytorch", "modelopt-pytorch (decisions");
  const std::string path = golden(dir, file, "modelopt-pytorch");
  const auto cells =
      Elements<std::uint8_t>(TensorFile::open(path)->tensor("decision")->bytes).copy();
  REQUIRE(cells == std::vector<std::uint8_t>{1, 2, 2});
  file.settings.back() = "threshold_scale_factor=96";
  const std::string paper = golden(dir, file, "paper");
  REQUIRE(Elements<std::uint8_t>(TensorFile::open(paper)->tensor("decision")->bytes).copy() ==
          std::vector<std::uint8_t>{1, 1, 2});
}

TEST_CASE("the number of splits moves decisions of one decode and no bit of ours", "[VER-21.10]") {
  TempDir dir;
  const InputFile file = differing(profile_named(kXqa), {"threshold_scale_factor=9"});
  const std::string one = golden(dir, file, kXqa);
  const Report moved = checked(one, one, kXqa, {"splits=3"});
  CAPTURE(told(moved));
  REQUIRE(moved.verdict == Verdict::kMismatch);
  REQUIRE(tells(moved, "fits instead: keys split in 1"));
  const std::string ours = golden(dir, file, "assay-decode-sm90");
  REQUIRE(checked(ours, ours, "assay-decode-sm90", {"splits=3"}).verdict == Verdict::kConforms);
}

TEST_CASE("a kernel whose padding does not vote is told by name", "[VER-21.10]") {
  TempDir dir;
  // A padding row of zeros in q sees equal scores everywhere and vetoes; a lone row would skip.
  Case c = skipping_case(profile_named(kFmha));
  c.q_lens = {10}, c.kv_lens = {500};
  const InputFile file = differing(profile_named(kFmha), {"threshold_scale_factor=9"}, c);
  const std::string path = golden(dir, file, kFmha);
  const auto input = TensorFile::open(path);
  const auto cells = Elements<std::uint8_t>(input->tensor("decision")->bytes).copy();
  REQUIRE(std::count(cells.begin(), cells.end(), 2) == 0);
  const Report vetoed = checked(path, path, kFmha);
  REQUIRE(vetoed.verdict == Verdict::kMistrusted);
  REQUIRE(tells(vetoed, "was skipped"));
}

}  // namespace
}  // namespace assay::verify::testing
