// Layouts: regions never overlap, keep their alignment, and two that differ have different digests.
#include "model/core/layout.hpp"

#include <limits>
#include <set>
#include <type_traits>

#include "model/core/digest.hpp"
#include "model/core/testing.hpp"

using namespace assay;

namespace {

struct Declaration {
  std::string name = "random";
  std::vector<Layout::Extent> axes;
  std::vector<Layout::Region> regions;
  Expected<Layout> declare() const { return Layout::declare(name, axes, regions); }
};

Declaration random_declaration() {
  Declaration d;
  const int num_axes = *rc::gen::inRange(1, 5);
  for (int i = 0; i < num_axes; ++i) {
    d.axes.push_back({"a" + std::to_string(i), *rc::gen::inRange<std::uint64_t>(0, 9)});
  }
  const int num_regions = *rc::gen::inRange(1, 9);
  for (int i = 0; i < num_regions; ++i) {
    Layout::Region region;
    region.name = "r" + std::to_string(i);
    region.element_bytes = *rc::gen::element<std::uint64_t>(1, 2, 3, 4, 8, 16, 33);
    for (int axes = *rc::gen::inRange(0, 4); axes > 0; --axes) {
      region.axes.push_back((*rc::gen::elementOf(d.axes)).name);
    }
    region.alignment_bytes = std::uint64_t{1} << *rc::gen::inRange(0, 10);
    region.meaning = "some bytes";
    d.regions.push_back(std::move(region));
  }
  return d;
}

}  // namespace

TEST_CASE("regions lie in order, aligned, without overlap, inside the total",
          "[COR-4.1][COR-4.2]") {
  testing::prop("placement", [] {
    const Layout layout = *random_declaration().declare();
    std::uint64_t end = 0;
    for (const Layout::Placed& region : layout.regions()) {
      RC_ASSERT(region.offset_bytes >= end);
      RC_ASSERT(region.offset_bytes - end < region.alignment_bytes);
      RC_ASSERT(region.offset_bytes % region.alignment_bytes == 0u);
      RC_ASSERT(layout.alignment_bytes() % region.alignment_bytes == 0u);
      std::uint64_t bytes = region.element_bytes;
      for (const std::string& axis : region.axes) bytes *= layout.extent(axis);
      RC_ASSERT(region.bytes == bytes);
      end = region.end_bytes();
    }
    RC_ASSERT(layout.total_bytes() >= end);
    RC_ASSERT(layout.total_bytes() - end < layout.alignment_bytes());
    RC_ASSERT(layout.total_bytes() % layout.alignment_bytes() == 0u);
  });
}

TEST_CASE("the addresses of a region's elements tile the region in row-major order", "[COR-4.3]") {
  testing::prop("three axes", [] {
    Declaration d = random_declaration();
    const std::string a = (*rc::gen::elementOf(d.axes)).name,
                      b = (*rc::gen::elementOf(d.axes)).name,
                      c = (*rc::gen::elementOf(d.axes)).name;
    const std::uint64_t element = *rc::gen::element<std::uint64_t>(1, 4, 7);
    d.regions.push_back({"three", element, {a, b, c}, 16, ""});
    const Layout layout = *d.declare();
    const RegionPlan<3> plan = layout.plan<3>("three");
    std::uint64_t expected = layout.offset_bytes("three");
    for (std::uint32_t i = 0; i < layout.extent(a); ++i) {
      if (layout.extent(b) * layout.extent(c) != 0) RC_ASSERT(plan.at(i) == expected);
      for (std::int32_t j = 0; j < static_cast<std::int32_t>(layout.extent(b)); ++j) {
        if (layout.extent(c) != 0) RC_ASSERT(plan.at(RankId(static_cast<int>(i)), j) == expected);
        for (std::uint64_t k = 0; k < layout.extent(c); ++k) {
          RC_ASSERT(plan.at(i, SlotId(j), k) == expected);
          RC_ASSERT(plan.address(Address{1000}, i, j, k).raw == 1000 + expected);
          expected += element;
        }
      }
    }
    RC_ASSERT(expected == layout.region("three").end_bytes());
  });
}

TEST_CASE("a plan is plain data that a kernel can take, and reaches beyond 4 GiB", "[COR-4.3]") {
  STATIC_REQUIRE(std::is_trivially_copyable_v<RegionPlan<2>>);
  STATIC_REQUIRE(std::is_standard_layout_v<RegionPlan<2>>);
  constexpr RegionPlan<2> plan{128, {std::uint64_t{1} << 33, 4}};
  STATIC_REQUIRE(plan.at(3, 5) == 128 + 3 * (std::uint64_t{1} << 33) + 20);
  STATIC_REQUIRE(RegionPlan<0>{64, {}}.at() == 64);
}

TEST_CASE("any difference between two declarations changes the digest, except a meaning",
          "[COR-4.4]") {
  testing::prop("one field", [] {
    const Declaration d = random_declaration();
    const std::uint32_t before = d.declare()->digest();
    RC_ASSERT(d.declare()->digest() == before);
    Declaration changed = d;
    const std::size_t r = *rc::gen::inRange<std::size_t>(0, d.regions.size());
    const std::size_t x = *rc::gen::inRange<std::size_t>(0, d.axes.size());
    Layout::Region& region = changed.regions[r];
    switch (*rc::gen::inRange(0, 9)) {
      case 0:
        changed.name += "x";
        break;
      case 1:
        changed.axes[x].size += 1;
        break;
      case 2:
        changed.axes.push_back({"new", 1});
        break;
      case 3:
        region.name += "x";
        break;
      case 4:
        region.element_bytes += 1;
        break;
      case 5:
        region.alignment_bytes *= 2;
        break;
      case 6:
        region.axes.push_back(d.axes[x].name);
        break;
      case 7:
        changed.regions.push_back({"new", 1, {}, 1, ""});
        break;
      case 8:
        changed.regions.erase(changed.regions.begin() + static_cast<std::ptrdiff_t>(r));
        break;
    }
    RC_ASSERT(changed.declare()->digest() != before);
    Declaration reworded = d;
    reworded.regions[r].meaning = "other words";
    RC_ASSERT(reworded.declare()->digest() == before);
  });
  const auto ordered = [](const char* first, const char* second) {
    return Layout::declare("l", {}, {{first, 4, {}, 4, ""}, {second, 4, {}, 4, ""}})->digest();
  };
  REQUIRE(ordered("a", "b") != ordered("b", "a"));
  // A wire value: ranks of different builds compare it, so it must not drift.
  REQUIRE(Digest().add(std::uint64_t{1}).add("ab").value() == 0x5e1175c5u);
}

TEST_CASE("close values have no equal digests", "[COR-4.4]") {
  std::set<std::uint32_t> seen;
  for (std::uint64_t a = 0; a < 200; ++a) {
    for (std::uint64_t b = 0; b < 100; ++b) seen.insert(Digest().add(a).add(b).value());
  }
  // 20,000 random 32-bit values have 0.05 equal pairs on average.
  REQUIRE(seen.size() == 20'000);
}

TEST_CASE("a declaration that makes no sense is refused with a sentence", "[COR-4.1][COR-4.2]") {
  const auto refusal = [](std::vector<Layout::Extent> axes, std::vector<Layout::Region> regions) {
    const auto layout = Layout::declare("w", std::move(axes), std::move(regions));
    return layout ? std::string() : layout.error().sentence;
  };
  CHECK(refusal({}, {}) == "");
  CHECK(refusal({{"ep", 2}, {"ep", 2}}, {}) == "layout w: axis ep is declared twice");
  CHECK(refusal({}, {{"a", 1, {}, 1, ""}, {"a", 1, {}, 1, ""}}) ==
        "layout w: region a is declared twice");
  CHECK(refusal({}, {{"a", 1, {"ep"}, 1, ""}}) ==
        "layout w: region a has an axis ep that is not declared");
  CHECK(refusal({}, {{"a", 0, {}, 1, ""}}) == "layout w: region a has elements of 0 bytes");
  CHECK(refusal({}, {{"a", 4, {}, 12, ""}}) ==
        "layout w: region a is aligned to 12 bytes; allowed are powers of two");
  CHECK(refusal({}, {{"a", 4, {}, 0, ""}}) ==
        "layout w: region a is aligned to 0 bytes; allowed are powers of two");
  CHECK(refusal({{"n", std::uint64_t{1} << 62}}, {{"a", 4, {"n"}, 1, ""}}) ==
        "layout w: region a [n=4611686018427387904] of 4 bytes does not fit 64-bit offsets");
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  CHECK(refusal({{"n", most}}, {{"a", 1, {"n"}, 1, ""}}) == "");
  CHECK(refusal({{"n", most}}, {{"a", 1, {"n"}, 1, ""}, {"b", 1, {}, 1, ""}}) ==
        "layout w: region b [] of 1 bytes does not fit 64-bit offsets");
  CHECK(refusal({{"n", most}}, {{"a", 1, {"n"}, 8, ""}}) ==
        "layout w: 18446744073709551615 bytes, aligned to 8, do not fit 64-bit offsets");
}

TEST_CASE("the byte map shows every byte once", "[COR-4.5]") {
  const Layout layout = *Layout::declare("window", {{"ep", 4}, {"max", 3}},
                                         {{"phase", 4, {}, 4, "signals sent so far"},
                                          {"flags", 8, {"ep", "max"}, 16, "of each source"}});
  CHECK(layout.text() ==
        "window: 112 bytes, aligned to 16, digest " +
            layout.text().substr(layout.text().find("digest ") + 7, 8) +
            "\n"
            "offset  bytes  region     element  axes           meaning\n"
            "     0      4  phase            4                 signals sent so far\n"
            "     4     12  (padding)\n"
            "    16     96  flags            8  [ep=4, max=3]  of each source\n");
  CHECK(layout.markdown().find("| 16 | 96 | flags | 8 | [ep=4, max=3] | of each source |\n") !=
        std::string::npos);
}
