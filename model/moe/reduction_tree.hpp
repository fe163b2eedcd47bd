// The order in which a combine adds its terms, written as text, parsed once: "((0+1)+(2+3))+(4+5)".
// A number is a position; "z" is a +0 that is added. It decides the syntax and holds the tables of
// the known orders; what an addition is, is decided in combine.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"

namespace assay::moe {

// A parsed order, as a program for a stack: push a position, push +0, or add the two topmost
// entries (the deeper one is the left operand).
class ReductionTree {
 public:
  struct Step {
    enum class Op : std::uint8_t { kPush, kPushZero, kAdd };
    Op op;
    std::int32_t position = 0;  // of kPush
  };
  // tree := term ("+" term)?      term := number | "z" | "(" tree ")"
  // Errors name the column. Every position 0..n-1 must occur exactly once.
  static Expected<ReductionTree> parse(std::string_view text);

  std::span<const Step> steps() const { return steps_; }
  std::int32_t num_terms() const { return num_terms_; }  // n: positions 0..n-1
  std::int32_t max_depth() const { return max_depth_; }  // stack entries needed at most
  std::string print() const;                             // the inverse of parse

 private:
  ReductionTree() = default;
  std::vector<Step> steps_;
  std::int32_t num_terms_ = 0;
  std::int32_t max_depth_ = 0;
};

enum class TreeTable : std::uint8_t {
  kPosition,  // one tree per top_k, leaves are the original positions (SPEC MOE-3.2)
  kCompact,   // one tree per number of valid terms, leaves are those in k order (SPEC MOE-3.3)
};

// The tree of a table for n terms; nothing where the table has none. kPosition has n in
// allowed_top_k(); kCompact has 0..22.
const ReductionTree* find_tree(TreeTable table, std::int32_t n);
// Its text.
std::optional<std::string_view> tree_text(TreeTable table, std::int32_t n);

// 1 2 4 6 8 10 12 14 16 18 22
std::span<const std::int32_t> allowed_top_k();

}  // namespace assay::moe
