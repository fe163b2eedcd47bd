// Reads one instruction. Decides its spelling: PTX's mnemonics without the state space and the
// type, which are always .global and .u32, and operands without brackets.
#include "model/machine/litmus/parse_instruction.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>

#include <fmt/format.h>

#include "model/core/text.hpp"

namespace assay::machine::litmus {

namespace {

struct Word {
  const char* text;
  Order order;
};
constexpr Word kOrders[] = {{"weak", Order::kWeak},       {"relaxed", Order::kRelaxed},
                            {"acquire", Order::kAcquire}, {"release", Order::kRelease},
                            {"acq_rel", Order::kAcqRel},  {"sc", Order::kSc}};
struct ScopeWord {
  const char* text;
  Scope scope;
};
constexpr ScopeWord kScopes[] = {
    {"cta", Scope::kCta}, {"cluster", Scope::kCluster}, {"gpu", Scope::kGpu}, {"sys", Scope::kSys}};

std::vector<std::string> split_on(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

class InstructionReader {
 public:
  InstructionReader(const std::string& text, const Test& test, ThreadCode& thread)
      : text_(text), test_(test), thread_(thread), words_(split_words(text)) {
    mnemonic_ = split_on(words_[0], '.');
    out_.text = text;
  }

  Expected<Instruction> read() {
    const std::string& base = mnemonic_[0];
    if (words_[0] == "fence.proxy.alias") return bare(Op::kAliasFence);
    if (words_[0] == "bar.sync") return bare(Op::kBarrier);
    if (words_[0] == "griddepcontrol.launch_dependents") return bare(Op::kLaunchDependents);
    if (words_[0] == "griddepcontrol.wait") return bare(Op::kWaitForGrid);
    if (words_[0] == "shfl.sync.idx") return shuffle();
    if (words_[0] == "vote.sync.any") return vote();
    if (base == "fence") return fence();
    if (base == "ld") return load();
    if (base == "st") return store();
    if (base == "await") return await();
    if (base == "red") return red();
    if (base == "atom") return atom();
    return bad_input(
        fmt::format("instruction {}; allowed are ld, st, atom.add, atom.cas, red.add, fence, "
                    "fence.proxy.alias, await, bar.sync, shfl.sync.idx, vote.sync.any, "
                    "griddepcontrol.launch_dependents and griddepcontrol.wait",
                    in_quotes(words_[0])));
  }

 private:
  Expected<Instruction> bare(Op op) {
    out_.op = op;
    return operands(0, "no operands");
  }

  Expected<Instruction> fence() {
    out_.op = Op::kFence;
    ASSAY_CHECK(order_and_scope(1, {Order::kAcquire, Order::kRelease, Order::kAcqRel, Order::kSc}));
    return operands(0, "no operands");
  }

  Expected<Instruction> load() {
    out_.op = Op::kLoad;
    ASSAY_CHECK(order_and_scope(1, {Order::kWeak, Order::kRelaxed, Order::kAcquire}));
    ASSAY_CHECK(count(2, "a register and a location"));
    ASSAY_CHECK(registers(words_[1]));
    ASSAY_CHECK(location(words_[2]));
    return out_;
  }

  Expected<Instruction> store() {
    out_.op = Op::kStore;
    ASSAY_CHECK(order_and_scope(1, {Order::kWeak, Order::kRelaxed, Order::kRelease}));
    ASSAY_CHECK(count(2, "a location and a value"));
    ASSAY_CHECK(location(words_[1]));
    ASSAY_CHECK(values(words_[2]));
    return out_;
  }

  Expected<Instruction> await() {
    out_.op = Op::kAwait;
    ASSAY_CHECK(order_and_scope(1, {Order::kRelaxed, Order::kAcquire}));
    ASSAY_CHECK(count(3, "a location, == or != and a value"));
    ASSAY_CHECK(location(words_[1]));
    out_.until_equal = words_[2] == "==";
    if (!out_.until_equal && words_[2] != "!=")
      return bad_input(fmt::format("{} in await; allowed are == and !=", in_quotes(words_[2])));
    ASSAY_CHECK(values(words_[3]));
    return out_;
  }

  Expected<Instruction> red() {
    out_.op = Op::kRedAdd;
    if (mnemonic_.size() < 2 || mnemonic_[1] != "add")
      return bad_input(fmt::format("{}; allowed is red.add", in_quotes(words_[0])));
    ASSAY_CHECK(order_and_scope(2, {Order::kRelaxed, Order::kRelease}));
    ASSAY_CHECK(count(2, "a location and a value"));
    ASSAY_CHECK(location(words_[1]));
    ASSAY_CHECK(values(words_[2]));
    return out_;
  }

  Expected<Instruction> atom() {
    const bool add = mnemonic_.size() > 1 && mnemonic_[1] == "add";
    if (!add && (mnemonic_.size() < 2 || mnemonic_[1] != "cas"))
      return bad_input(fmt::format("{}; allowed are atom.add and atom.cas", in_quotes(words_[0])));
    out_.op = add ? Op::kAtomAdd : Op::kAtomCas;
    ASSAY_CHECK(
        order_and_scope(2, {Order::kRelaxed, Order::kAcquire, Order::kRelease, Order::kAcqRel}));
    ASSAY_CHECK(count(add ? 3 : 4, add ? "a register, a location and a value"
                                       : "a register, a location, the expected value and the new"));
    ASSAY_CHECK(registers(words_[1]));
    ASSAY_CHECK(location(words_[2]));
    ASSAY_CHECK(values(words_[3]));
    if (!add) {
      out_.value[1] = out_.value[0];
      ASSAY_CHECK(values(words_[4]));
    }
    return out_;
  }

  Expected<Instruction> shuffle() {
    out_.op = Op::kShuffle;
    ASSAY_CHECK(count(3, "a register, the source register and the lane"));
    ASSAY_CHECK(source_register(words_[2]));
    ASSAY_CHECK(registers(words_[1]));
    if (!parse_u32(words_[3], out_.lane) || out_.lane >= kMaxThreads)
      return bad_input(
          fmt::format("lane {}; allowed is a thread of the CTA", in_quotes(words_[3])));
    return out_;
  }

  Expected<Instruction> vote() {
    out_.op = Op::kVoteAny;
    ASSAY_CHECK(count(2, "a register and the source register"));
    ASSAY_CHECK(source_register(words_[2]));
    ASSAY_CHECK(registers(words_[1]));
    return out_;
  }

  // mnemonic_[first] is the order, then the scope unless weak, then v4.
  Status order_and_scope(std::size_t first, std::initializer_list<Order> allowed) {
    std::string names;
    bool found = false;
    for (const Word& word : kOrders) {
      if (std::find(allowed.begin(), allowed.end(), word.order) == allowed.end()) continue;
      names += (names.empty() ? "" : ", ") + std::string(word.text);
      if (first < mnemonic_.size() && mnemonic_[first] == word.text) {
        out_.order = word.order;
        found = true;
      }
    }
    if (!found)
      return bad_input(fmt::format("order {} of {}; allowed are {}",
                                   in_quotes(first < mnemonic_.size() ? mnemonic_[first] : ""),
                                   mnemonic_[0], names));
    std::size_t next = first + 1;
    if (out_.order != Order::kWeak) {
      const auto* scope = std::find_if(
          std::begin(kScopes), std::end(kScopes),
          [&](const ScopeWord& s) { return next < mnemonic_.size() && mnemonic_[next] == s.text; });
      if (scope == std::end(kScopes))
        return bad_input(fmt::format("scope {} of {}; allowed are cta, cluster, gpu and sys",
                                     in_quotes(next < mnemonic_.size() ? mnemonic_[next] : ""),
                                     words_[0]));
      out_.scope = scope->scope;
      ++next;
    }
    if (next < mnemonic_.size() && mnemonic_[next] == "v4" &&
        (out_.op == Op::kLoad || out_.op == Op::kStore)) {
      out_.words = 4;
      ++next;
    }
    if (next == mnemonic_.size()) return Done{};
    return bad_input(fmt::format("{} at the end of {}; allowed is nothing, or v4 for ld and st",
                                 in_quotes(mnemonic_[next]), words_[0]));
  }

  Status count(std::size_t operands, const char* what) {
    if (words_.size() == operands + 1) return Done{};
    return bad_input(fmt::format("{} has {} operands; needed are {}", in_quotes(text_),
                                 words_.size() - 1, what));
  }
  Expected<Instruction> operands(std::size_t number, const char* what) {
    ASSAY_CHECK(count(number, what));
    return out_;
  }

  Status location(const std::string& operand) {
    const auto bracket = operand.find('[');
    const std::string text = operand.substr(0, bracket);
    for (std::uint32_t i = 0; i < test_.names.size(); ++i) {
      if (test_.names[i].text != text) continue;
      out_.name = i;
      const std::uint32_t words = test_.locations[test_.names[i].location].words;
      if (bracket != std::string::npos &&
          (!parse_u32(operand.substr(bracket + 1, operand.size() - bracket - 2), out_.word) ||
           operand.back() != ']'))
        break;
      if (out_.word + out_.words > words)
        return bad_input(
            fmt::format("{} reaches beyond {}, which has {} words", in_quotes(text_), text, words));
      return Done{};
    }
    return bad_input(
        fmt::format("location {}; allowed are those of the test, with [0] to [3] for "
                    "a word of a vector",
                    in_quotes(operand)));
  }

  // "r0", or "{r0,r1,r2,r3}" for v4.
  Status registers(const std::string& operand) {
    const std::vector<std::string> parts = list(operand);
    if (parts.size() != out_.words)
      return bad_input(fmt::format("registers {}; needed are {}", in_quotes(operand), out_.words));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].size() < 2 || parts[i][0] != 'r' || !parse_u32(parts[i].substr(1), out_.reg[i]))
        return bad_input(fmt::format("register {}; allowed are r0, r1, ...", in_quotes(parts[i])));
      if (out_.reg[i] > thread_.num_registers)
        return bad_input(fmt::format("register {} comes before r{}; they are used in order",
                                     in_quotes(parts[i]), thread_.num_registers));
      thread_.num_registers = std::max(thread_.num_registers, out_.reg[i] + 1);
    }
    return Done{};
  }

  Status source_register(const std::string& operand) {
    if (operand.size() < 2 || operand[0] != 'r' || !parse_u32(operand.substr(1), out_.source_reg) ||
        out_.source_reg >= thread_.num_registers)
      return bad_input(
          fmt::format("source register {}; allowed are those already loaded", in_quotes(operand)));
    return Done{};
  }

  Status values(const std::string& operand) {
    const std::vector<std::string> parts = list(operand);
    if (parts.size() != out_.words)
      return bad_input(fmt::format("values {}; needed are {}", in_quotes(operand), out_.words));
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (!parse_u32(parts[i], out_.value[i]) || out_.value[i] > kMaxValue)
        return bad_input(
            fmt::format("value {}; allowed are 0 to {}", in_quotes(parts[i]), kMaxValue));
    return Done{};
  }

  static std::vector<std::string> list(const std::string& operand) {
    if (operand.size() < 2 || operand.front() != '{' || operand.back() != '}') return {operand};
    return split_on(operand.substr(1, operand.size() - 2), ',');
  }

  const std::string& text_;
  const Test& test_;
  ThreadCode& thread_;
  std::vector<std::string> words_;
  std::vector<std::string> mnemonic_;
  Instruction out_;
};

}  // namespace

Expected<Instruction> parse_instruction(const std::string& text, const Test& test,
                                        ThreadCode& thread) {
  return InstructionReader(text, test, thread).read();
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool parse_u32(const std::string& text, std::uint32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

bool is_name(const std::string& text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
         });
}

}  // namespace assay::machine::litmus
