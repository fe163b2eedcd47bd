// One reading of assay.params for everybody: what is text, what is refused.
#include "model/core/parameters.hpp"

#include <nlohmann/json.hpp>

#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"

using namespace assay;

namespace {

constexpr ParameterKey kKeys[] = {{"word", ParameterForm::kWord},
                                  {"count", ParameterForm::kInteger},
                                  {"real", ParameterForm::kReal},
                                  {"flag", ParameterForm::kFlag}};

Expected<Parameters> read(const std::string& text) {
  const assay::testing::TempDir dir;
  TensorFileWriter writer;
  writer.set_metadata("assay.params", text);
  const std::string path = dir.file("a.safetensors");
  REQUIRE(writer.write(path).has_value());
  const auto file = TensorFile::open(path);
  REQUIRE(file.has_value());
  return parameters_in(*file, "tests", kKeys);
}

}  // namespace

TEST_CASE("values are text, numbers as they are written and flags as 1 and 0", "[VER-7.1]") {
  const auto all = read(R"({"word":"a b","count":-3,"real":0.125,"flag":true})");
  REQUIRE(all.has_value());
  CHECK(*all == Parameters{{"word", "a b"}, {"count", "-3"}, {"real", "0.125"}, {"flag", "1"}});
  const auto texts = read(R"({"word":"","count":"7","real":"1e3","flag":"0"})");
  REQUIRE(texts.has_value());
  CHECK(*texts == Parameters{{"word", ""}, {"count", "7"}, {"real", "1e3"}, {"flag", "0"}});
  const auto whole = read(R"({"real":8,"flag":false})");
  REQUIRE(whole.has_value());
  CHECK(*whole == Parameters{{"real", "8"}, {"flag", "0"}});
}

TEST_CASE("a file without the object has no parameters", "[VER-7.1]") {
  const assay::testing::TempDir dir;
  const std::string path = dir.file("a.safetensors");
  REQUIRE(TensorFileWriter().write(path).has_value());
  const auto file = TensorFile::open(path);
  REQUIRE(file.has_value());
  const auto none = parameters_in(*file, "tests", kKeys);
  REQUIRE(none.has_value());
  CHECK(none->empty());
  const auto object = parameters_object(*file);
  REQUIRE(object.has_value());
  CHECK_FALSE(object->has_value());
}

TEST_CASE("what two readers could understand differently is refused", "[VER-7.1]") {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "allowed is a JSON object"},
           {"[1]", "allowed is a JSON object"},
           {R"({"real": 1e400})", "allowed is a JSON object"},
           {R"({"real":1,"real":1})", "key \"real\" appears twice"},
           {R"({"rael":1})", "\"rael\" is no parameter of tests; allowed are word, count"},
           {R"({"word":1})", "word is \"1\"; allowed are text in quotes"},
           {R"({"count":true})", "count is \"true\"; allowed are whole numbers"},
           {R"({"count":1.5})", "count is \"1.5\"; allowed are whole numbers"},
           {R"({"real":true})", "real is \"true\"; allowed are numbers"},
           {R"({"real":null})", "real is \"null\"; allowed are numbers"},
           {R"({"flag":0.5})", "flag is \"0.5\"; allowed are true, false"},
           {R"({"word":{"real":1}})", "allowed are text in quotes"}}) {
    const auto got = read(text);
    INFO(text);
    REQUIRE_FALSE(got.has_value());
    INFO(got.error().sentence);
    CHECK(got.error().sentence.find("assay.params") == 0);
    CHECK(got.error().sentence.find(says) != std::string::npos);
  }
}

TEST_CASE("a number is decimal, with nothing around it, and says what is allowed of it",
          "[VER-7.1]") {
  const auto real = [](const char* text, RealRange range) { return parse_real("x", text, range); };
  CHECK(real("0.5", RealRange::kPositive).value() == 0.5f);
  CHECK(real("1e-40", RealRange::kPositive).value() == 1e-40f);
  CHECK(real("0", RealRange::kNotNegative).value() == 0);
  CHECK(real("inf", RealRange::kNotNegativeOrInf).value() == HUGE_VALF);
  for (const char* text : {"", " 1", "1 ", "0x1", "1,5", "nan", "-1", "one", "1e60", "1e-60"})
    for (const RealRange range :
         {RealRange::kPositive, RealRange::kNotNegative, RealRange::kNotNegativeOrInf}) {
      INFO(text);
      CHECK_FALSE(real(text, range).has_value());
    }
  for (const char* text : {"1e+10", "1e-40", "0.125", "3e+38", "inf", "0", "300"})
    CHECK(real_text(real(text, RealRange::kNotNegativeOrInf).value()) == text);
  // What is refused is not among what is said to be allowed.
  CHECK(real("0", RealRange::kPositive).error().sentence ==
        "x is \"0\"; allowed are positive numbers");
  CHECK(real("-1", RealRange::kNotNegative).error().sentence ==
        "x is \"-1\"; allowed are 0 and positive numbers");
  CHECK(real("inf", RealRange::kNotNegative).error().sentence ==
        "x is \"inf\"; allowed are 0 and positive numbers");
  CHECK(real("1e60", RealRange::kPositive).error().sentence ==
        "x is \"1e60\"; allowed are positive numbers, as F32 has them");
}
