// The two tables of orders and the parser of their text. An order is decided here and nowhere
// else in the model.
#include "model/moe/reduction_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace assay::moe {

namespace {

struct Entry {
  std::int32_t n;
  std::string_view text;
};

// Indexed by top_k; leaves are positions in the token's list of picks (SPEC MOE-3.2). 12, 14 and 18
// are left folds: the kernels' unrolled trees do not list them, and their fallback is a loop.
constexpr std::array<Entry, 11> kPositionTrees = {{
    {1, "0"},
    {2, "0+1"},
    {4, "(0+1)+(2+3)"},
    {6, "((0+1)+(2+3))+(4+5)"},
    {8, "((0+1)+(2+3))+((4+5)+(6+7))"},
    {10, "(((0+1)+(2+3))+((4+5)+(6+7)))+(8+9)"},
    {12, "((((((((((0+1)+2)+3)+4)+5)+6)+7)+8)+9)+10)+11"},
    {14, "((((((((((((0+1)+2)+3)+4)+5)+6)+7)+8)+9)+10)+11)+12)+13"},
    {16, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15)))"},
    {18, "((((((((((((((((0+1)+2)+3)+4)+5)+6)+7)+8)+9)+10)+11)+12)+13)+14)+15)+16)+17"},
    {22,
     "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))"
     "+(((16+17)+(18+19))+(20+21))"},
}};

// Indexed by the number of valid terms; leaves are these, in k order; z is a +0 that is added
// (SPEC MOE-3.3). Up to 2 terms: left + right. Up to 8: one 8-leaf tree. Up to 16: two 8-leaf
// lanes. Beyond: four lanes in pairs.
constexpr std::array<Entry, 23> kCompactTrees = {{
    {0, "z+z"},
    {1, "0+z"},
    {2, "0+1"},
    {3, "((0+1)+(2+z))+((z+z)+(z+z))"},
    {4, "((0+1)+(2+3))+((z+z)+(z+z))"},
    {5, "((0+1)+(2+3))+((4+z)+(z+z))"},
    {6, "((0+1)+(2+3))+((4+5)+(z+z))"},
    {7, "((0+1)+(2+3))+((4+5)+(6+z))"},
    {8, "((0+1)+(2+3))+((4+5)+(6+7))"},
    {9, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+z)+(z+z))+((z+z)+(z+z)))"},
    {10, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(z+z))+((z+z)+(z+z)))"},
    {11, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+z))+((z+z)+(z+z)))"},
    {12, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((z+z)+(z+z)))"},
    {13, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+z)+(z+z)))"},
    {14, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(z+z)))"},
    {15, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+z)))"},
    {16, "(((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15)))"},
    {17,
     "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))"
     "+((((16+z)+(z+z))+((z+z)+(z+z)))+(((z+z)+(z+z))+((z+z)+(z+z))))"},
    {18,
     "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))"
     "+((((16+17)+(z+z))+((z+z)+(z+z)))+(((z+z)+(z+z))+((z+z)+(z+z))))"},
    {19,
     "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))"
     "+((((16+17)+(18+z))+((z+z)+(z+z)))+(((z+z)+(z+z))+((z+z)+(z+z))))"},
    {20,
     "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))"
     "+((((16+17)+(18+19))+((z+z)+(z+z)))+(((z+z)+(z+z))+((z+z)+(z+z))))"},
    {21,
     "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))"
     "+((((16+17)+(18+19))+((20+z)+(z+z)))+(((z+z)+(z+z))+((z+z)+(z+z))))"},
    {22,
     "((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)+(10+11))+((12+13)+(14+15))))"
     "+((((16+17)+(18+19))+((20+21)+(z+z)))+(((z+z)+(z+z))+((z+z)+(z+z))))"},
}};

std::span<const Entry> entries(TreeTable table) {
  if (table == TreeTable::kPosition) return kPositionTrees;
  return kCompactTrees;
}

// A recursive descent over the text. Depth is bounded, so that a hostile text cannot exhaust the
// stack: 22 terms nest at most 21 deep.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  bool tree(int depth) {
    if (!term(depth)) return false;
    if (at_ >= text_.size() || text_[at_] != '+') return true;
    ++at_;
    if (!term(depth)) return false;
    steps.push_back({ReductionTree::Step::Op::kAdd});
    return true;
  }
  bool at_end() const { return at_ == text_.size(); }
  Error error(std::string_view expected) const {
    const std::string got =
        at_ < text_.size() ? fmt::format("'{}'", text_[at_]) : std::string("the end");
    return bad_input(fmt::format("reduction tree \"{}\" column {}: expected {}, got {}", text_,
                                 at_ + 1, expected, got));
  }

  std::vector<ReductionTree::Step> steps;

 private:
  bool term(int depth) {
    if (at_ >= text_.size() || depth > 64) return false;
    const char c = text_[at_];
    if (c == 'z') {
      ++at_;
      steps.push_back({ReductionTree::Step::Op::kPushZero});
      return true;
    }
    if (c == '(') {
      ++at_;
      if (!tree(depth + 1)) return false;
      if (at_ >= text_.size() || text_[at_] != ')') return false;
      ++at_;
      return true;
    }
    if (c < '0' || c > '9') return false;
    std::int32_t number = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && number < 1000; ++at_)
      number = number * 10 + (text_[at_] - '0');
    steps.push_back({ReductionTree::Step::Op::kPush, number});
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Expected<ReductionTree> ReductionTree::parse(std::string_view text) {
  Parser parser(text);
  if (!parser.tree(0)) return parser.error("a number, z, ( or )");
  if (!parser.at_end()) return parser.error("+ or the end");
  ReductionTree tree;
  tree.steps_ = std::move(parser.steps);
  std::vector<std::int32_t> positions;
  std::int32_t depth = 0;
  for (const Step& step : tree.steps_) {
    if (step.op == Step::Op::kPush) positions.push_back(step.position);
    depth += step.op == Step::Op::kAdd ? -1 : 1;
    tree.max_depth_ = std::max(tree.max_depth_, depth);
  }
  std::sort(positions.begin(), positions.end());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto expected = static_cast<std::int32_t>(i);
    if (positions[i] == expected) continue;
    return bad_input(fmt::format("reduction tree \"{}\": position {} is missing or occurs twice",
                                 text, std::min(expected, positions[i])));
  }
  tree.num_terms_ = static_cast<std::int32_t>(positions.size());
  return tree;
}

std::string ReductionTree::print() const {
  struct Part {
    std::string text;
    bool is_sum;
  };
  const auto term = [](const Part& part) {
    return part.is_sum ? "(" + part.text + ")" : part.text;
  };
  std::vector<Part> stack;
  for (const Step& step : steps_) {
    if (step.op == Step::Op::kPush) stack.push_back({std::to_string(step.position), false});
    if (step.op == Step::Op::kPushZero) stack.push_back({"z", false});
    if (step.op == Step::Op::kAdd) {
      const Part right = stack.back();
      stack.pop_back();
      stack.back() = {term(stack.back()) + "+" + term(right), true};
    }
  }
  return stack.back().text;
}

const ReductionTree* find_tree(TreeTable table, std::int32_t n) {
  struct Parsed {
    std::int32_t n;
    ReductionTree tree;
  };
  const auto parse_all = [](TreeTable which) {
    std::vector<Parsed> all;
    for (const Entry& entry : entries(which)) {
      auto tree = ReductionTree::parse(entry.text);
      CONTRACT(tree.has_value() && tree->num_terms() == entry.n, entry.n, entry.text);
      all.push_back({entry.n, *std::move(tree)});
    }
    return all;
  };
  static const std::vector<Parsed> position = parse_all(TreeTable::kPosition);
  static const std::vector<Parsed> compact = parse_all(TreeTable::kCompact);
  for (const Parsed& parsed : table == TreeTable::kPosition ? position : compact)
    if (parsed.n == n) return &parsed.tree;
  return nullptr;
}

std::optional<std::string_view> tree_text(TreeTable table, std::int32_t n) {
  for (const Entry& entry : entries(table))
    if (entry.n == n) return entry.text;
  return std::nullopt;
}

std::span<const std::int32_t> allowed_top_k() {
  static constexpr auto kAllowed = [] {
    std::array<std::int32_t, kPositionTrees.size()> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = kPositionTrees[i].n;
    return all;
  }();
  return kAllowed;
}

}  // namespace assay::moe
