// Every interleaving of a small decode block, whatever is decided; what is looked for is in
// decode_flow_search.cuh.
#include <random>

#include "cuda/kernels/attention/decode_flow_search.cuh"

namespace assay::attention_kernels {
namespace {

using namespace decode_testing;

// A chunk ends behind the second tile.
DecodeItem item_of(int tiles) {
  DecodeItem item;
  item.valid = item.rows = 1;
  item.tiles = {kChunkTiles - 2, kChunkTiles - 2 + tiles};
  return item;
}

// Decisions from the bits of a number, lowest first; the first tile of a chunk is kept.
Scenario scenario_of(const std::vector<int>& tiles, std::uint64_t bits, bool asks,
                     bool takes_queries) {
  Scenario s;
  s.asks = asks;
  s.takes_queries = takes_queries;
  for (const int count : tiles) {
    s.items.push_back(item_of(count));
    s.keeps.emplace_back();
    for (int i = 0; i < count; ++i) {
      const bool asked = i == 1 || i > 2;
      s.keeps.back().push_back(!asked || (bits & 1) != 0);
      if (asked) bits >>= 1;
    }
  }
  return s;
}

TEST_CASE("no interleaving of a decode block's roles goes wrong, whatever is decided",
          "[long][CUD-7.3]") {
  std::size_t states = 0;
  const auto check = [&](const Scenario& s) {
    Search search(s);
    const auto wrong = search.run();
    INFO((wrong ? *wrong : ""));
    REQUIRE_FALSE(wrong.has_value());
    states += search.states();
  };
  for (const bool takes_queries : {false, true}) {
    for (const std::vector<int>& tiles :
         {std::vector<int>{1}, {2}, {3}, {4}, {0, 1}, {1, 1}, {2, 0, 1}, {1, 1, 1}, {3, 1}}) {
      check(scenario_of(tiles, 0, false, takes_queries));
      int asked = 0;
      for (const int count : tiles) asked += (count > 1) + (count > 3);
      for (std::uint64_t bits = 0; bits < std::uint64_t{1} << asked; ++bits)
        check(scenario_of(tiles, bits, true, takes_queries));
    }
  }
  CHECK(states > 50'000);
}

TEST_CASE("the search notices planted faults in a decode block", "[CUD-7.3]") {
  for (const Fault fault :
       {Fault::kKeysNotAwaited, Fault::kKeysReleasedEarly, Fault::kQueriesNotAwaited,
        Fault::kEntryNotAwaited, Fault::kValuesUnheard, Fault::kEntryReleasedEarly,
        Fault::kOneMaximaBuffer}) {
    bool found = false;
    for (const std::uint64_t bits : {0u, 3u, 1u, 2u})
      for (const bool takes_queries : {false, true})
        found = found || Search(scenario_of({3, 1, 2}, bits, true, takes_queries), fault).run() ||
                Search(scenario_of({1, 1, 1}, bits, true, takes_queries), fault).run();
    INFO("fault " << static_cast<int>(fault));
    CHECK(found);
  }
}

}  // namespace
}  // namespace assay::attention_kernels
