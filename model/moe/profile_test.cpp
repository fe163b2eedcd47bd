// The table of profiles is complete: names, fields, evidence.
#include "model/moe/profile.hpp"

#include <set>

#include "model/moe/moe_testing.hpp"

namespace assay::moe {
namespace {

TEST_CASE("a profile is found by its name, and an unknown one is answered with the list",
          "[MOE-3.9]") {
  std::set<std::string_view> names;
  for (const CombineProfile& profile : combine_profiles()) {
    CHECK(names.insert(profile.name).second);
    CHECK(find_combine_profile(profile.name).value() == &profile);
  }
  const auto unknown = find_combine_profile("flashinfer-oneside@0.6.10");
  REQUIRE_FALSE(unknown);
  const std::string& sentence = unknown.error().sentence;
  CHECK(sentence.find("\"flashinfer-oneside@0.6.10\"") != std::string::npos);
  // Its reader learns which profile covers that release.
  CHECK(sentence.find("flashinfer-oneside@0.6.0 (FlashInfer v0.6.0 to v0.6.15)") !=
        std::string::npos);
}

TEST_CASE("every profile says where each field of its arithmetic comes from", "[MOE-3.9]") {
  for (const CombineProfile& profile : combine_profiles()) {
    INFO(profile.name);
    std::set<std::string_view> fields;
    Evidence weakest = Evidence::kMeasured;
    for (const auto& field : profile.fields) {
      CHECK(fields.insert(field.name).second);
      CHECK_FALSE(field.value.empty());
      CHECK_FALSE(field.source.empty());
      if (static_cast<int>(field.evidence) > static_cast<int>(weakest)) weakest = field.evidence;
    }
    CHECK(fields == std::set<std::string_view>{"accumulate", "flush_subnormals", "holes", "trees",
                                               "low_precision"});
    CHECK(profile.evidence == weakest);
    // Bits are claimed of what was compared on hardware, whole.
    CHECK((profile.grade == Grade::kBits) == (profile.evidence == Evidence::kMeasured));
  }
}

TEST_CASE("every profile makes a combine for every top_k and row type", "[MOE-3.9]") {
  for (const CombineProfile& profile : combine_profiles())
    for (const std::int32_t k : allowed_top_k())
      for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32})
        CHECK(Combine::make(profile.arithmetic, {.top_k = k, .dtype = dtype}));
  const CombineArithmetic& ours = default_combine_profile().arithmetic;
  CHECK(ours.accumulate == CombineArithmetic::Accumulate::kF32);
  CHECK_FALSE(ours.flush_subnormals);
  CHECK(ours.trees == TreeTable::kPosition);
}

}  // namespace
}  // namespace assay::moe
