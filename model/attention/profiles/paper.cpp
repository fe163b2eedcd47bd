// The algorithm as published. It names no hardware, so the arithmetic in between is a stand-in
// (SPEC ATT-7.7). Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kPaper = "BLASST, arXiv 2512.12087, Algorithm 1";

constexpr std::array<Field, 4> kFields = {{
    {"compare", "l - max(g, l) < ln(lambda), strict", kPaper, Evidence::kPublished},
    {"maximum", "raised before the comparison, also by skipped tiles", kPaper,
     Evidence::kPublished},
    {"first tile", "not special: lambda above 1 skips everything", kPaper, Evidence::kPublished},
    {"tiles", "128 x 128", kPaper, Evidence::kInferred},
}};
constexpr std::array<TileShape, 1> kTiles = {{{2, 256, 128, 1, 128, 0}}};

}  // namespace

std::vector<Profile> paper() {
  Profile p;
  p.name = "paper";
  p.covers = "Algorithm 1 of the paper";
  p.evidence = Evidence::kInferred;
  p.skip.compare = Compare::kDifference;
  p.skip.reference = Reference::kInclusive;
  p.skip.max_on_skip = MaxOnSkip::kRaise;
  p.skip.kept_first = 0;
  p.softmax.unit = ScoreUnit::kNatural;
  p.softmax.empty = EmptyGuard::kAlways;
  p.softmax.zero_sum = ZeroSum::kInfinite;
  p.tiles = kTiles;
  p.fields = kFields;
  return {p};
}

}  // namespace assay::attention::families
