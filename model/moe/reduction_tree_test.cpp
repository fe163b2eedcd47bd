// Parser and printer are inverse, and the tables hold what they must.
#include "model/moe/reduction_tree.hpp"

#include <set>

#include "model/moe/moe_testing.hpp"

namespace assay::moe {
namespace {

using assay::testing::prop;

TEST_CASE("a reduction tree prints as it was written", "[MOE-3.2][MOE-3.3]") {
  for (std::int32_t n = 0; n <= 22; ++n)
    for (const TreeTable table : {TreeTable::kPosition, TreeTable::kCompact}) {
      const auto text = tree_text(table, n);
      const ReductionTree* const tree = find_tree(table, n);
      REQUIRE(text.has_value() == (tree != nullptr));
      if (tree == nullptr) continue;
      CHECK(tree->print() == *text);
      CHECK(tree->num_terms() == n);
    }
}

TEST_CASE("every top_k that a kernel has is in the table of positions, and no other", "[MOE-3.2]") {
  const std::vector<std::int32_t> expected = {1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 22};
  const auto allowed = allowed_top_k();
  CHECK(std::vector<std::int32_t>(allowed.begin(), allowed.end()) == expected);
  for (std::int32_t n = 0; n <= 22; ++n) {
    const bool listed = std::find(expected.begin(), expected.end(), n) != expected.end();
    CHECK((find_tree(TreeTable::kPosition, n) != nullptr) == listed);
    CHECK(find_tree(TreeTable::kCompact, n) != nullptr);
  }
  CHECK(find_tree(TreeTable::kCompact, 23) == nullptr);
}

std::string random_tree(std::vector<std::int32_t> terms, bool outer) {
  if (terms.size() == 1) return terms[0] < 0 ? "z" : std::to_string(terms[0]);
  const auto cut = *in_range<std::size_t>(1, terms.size());
  const std::vector<std::int32_t> right(terms.begin() + static_cast<std::ptrdiff_t>(cut),
                                        terms.end());
  terms.resize(cut);
  std::string text = random_tree(terms, false);
  text.append("+").append(random_tree(right, false));
  return outer ? text : "(" + text + ")";
}

TEST_CASE("parser and printer of reduction trees are inverse", "[MOE-3.2]") {
  prop("any tree", [] {
    std::vector<std::int32_t> terms;
    for (std::int32_t i = 0; i < *in_range(1, 20); ++i) terms.push_back(i);
    for (std::int32_t i = 0; i < *in_range(0, 4); ++i) terms.push_back(-1);
    std::string text = random_tree(terms, true);
    const auto tree = ReductionTree::parse(text);
    RC_ASSERT(tree.has_value());
    RC_ASSERT(tree->print() == text);
  });
}

TEST_CASE("a text that is no reduction tree is refused at its column", "[MOE-3.2]") {
  const auto sentence = [](std::string_view text) {
    const auto tree = ReductionTree::parse(text);
    return tree ? std::string("accepted") : tree.error().sentence;
  };
  CHECK(sentence("") == "reduction tree \"\" column 1: expected a number, z, ( or ), got the end");
  CHECK(sentence("(0+1") ==
        "reduction tree \"(0+1\" column 5: expected a number, z, ( or ), got the end");
  CHECK(sentence("0+1+2") == "reduction tree \"0+1+2\" column 4: expected + or the end, got '+'");
  CHECK(sentence("0+x") ==
        "reduction tree \"0+x\" column 3: expected a number, z, ( or ), got 'x'");
  CHECK(sentence("0+2") == "reduction tree \"0+2\": position 1 is missing or occurs twice");
  CHECK(sentence("0+0") == "reduction tree \"0+0\": position 0 is missing or occurs twice");
  CHECK(sentence("(0+0)+2") == "reduction tree \"(0+0)+2\": position 0 is missing or occurs twice");
  CHECK(sentence(std::string(1000, '(')) != "accepted");
}

}  // namespace
}  // namespace assay::moe
