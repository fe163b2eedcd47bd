// Reads litmus tests from text (SPEC MAC-8.1). A test is first kept as lines; each `case` fills the
// {NAMES} of those lines and is then read as a program of its own, so an error in a filled line
// shows the text after filling.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "model/core/text.hpp"
#include "model/machine/litmus/litmus.hpp"
#include "model/machine/litmus/parse_instruction.hpp"

namespace assay::machine::litmus {

namespace {

using Substitutions = std::map<std::string, std::string>;

struct Line {
  std::uint32_t number = 0;
  std::string text;
};

// One `test` block as written.
struct Family {
  std::string name, about;
  std::uint32_t line = 0;
  std::vector<Line> lines;  // everything up to the first case
};

Error at(const std::string& file, std::uint32_t line, const std::string& sentence) {
  return bad_input(fmt::format("{} line {}: {}", file, line, sentence));
}

std::string trimmed(std::string_view text) {
  const auto comment = text.find('#');
  if (comment != std::string_view::npos) text = text.substr(0, comment);
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

Expected<std::string> filled(const std::string& text, const Substitutions& substitutions) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    // A brace that holds registers or values of a vector is no name of ours.
    const auto close = text.find('}', i);
    if (text[i] != '{' || close == std::string::npos || i + 1 == close ||
        std::isupper(static_cast<unsigned char>(text[i + 1])) == 0) {
      out += text[i++];
      continue;
    }
    const std::string name = text.substr(i + 1, close - i - 1);
    const auto found = substitutions.find(name);
    if (found == substitutions.end())
      return bad_input(fmt::format("{} has no value; the case gives {}", in_quotes(name),
                                   substitutions.empty() ? "none" : "others"));
    out += found->second;
    i = close + 1;
  }
  return out;
}

class Reader {
 public:
  Reader(const Family& family, const std::string& file, const Substitutions& substitutions)
      : family_(family), file_(file), substitutions_(substitutions) {}

  Expected<Test> read() {
    test_.about = family_.about;
    test_.file = file_;
    for (const Line& line : family_.lines) {
      auto text = filled(line.text, substitutions_);
      if (!text) return at(file_, line.number, text.error().sentence);
      if (trimmed(*text).empty()) continue;
      if (const Status status = take(trimmed(*text)); !status)
        return at(file_, line.number, status.error().sentence);
    }
    if (exists_.empty()) return at(file_, family_.line, "a test needs a line `exists`");
    if (const Status status = finish(); !status)
      return at(file_, family_.line, status.error().sentence);
    return std::move(test_);
  }

 private:
  Status take(const std::string& text) {
    const std::vector<std::string> words = split_words(text);
    if (words[0] == "locations") return take_locations(words);
    if (words[0] == "alias") return take_alias(words);
    if (words[0] == "exists") {
      exists_ = text.substr(6);
      return Done{};
    }
    if (words.size() >= 2 && words[1] == "rank") return take_thread(words);
    if (test_.threads.empty())
      return bad_input(fmt::format(
          "{} stands before the first thread; allowed are `locations`, `alias` and a thread "
          "such as `P0 rank 0 cta 0`",
          in_quotes(text)));
    ThreadCode& thread = test_.threads.back();
    ASSAY_TRY(Instruction instruction, parse_instruction(text, test_, thread));
    thread.code.push_back(std::move(instruction));
    return Done{};
  }

  Status take_locations(const std::vector<std::string>& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
      std::string name = words[i];
      std::uint32_t size = 1;
      if (name.size() > 3 && name.substr(name.size() - 3) == "[4]") {
        size = 4;
        name.resize(name.size() - 3);
      }
      if (!is_name(name))
        return bad_input(
            fmt::format("location {}; allowed are names such as x or data, with [4] "
                        "for a 16-byte vector",
                        in_quotes(words[i])));
      const auto index = static_cast<std::uint32_t>(test_.locations.size());
      test_.locations.push_back({name, size});
      test_.names.push_back({name, index, false});
    }
    return Done{};
  }

  Status take_alias(const std::vector<std::string>& words) {
    const Name* target = words.size() == 4 && words[2] == "of" ? find(words[3]) : nullptr;
    if (target == nullptr || target->is_alias || !is_name(words[1]))
      return bad_input("an alias is written `alias NAME of LOCATION`");
    test_.names.push_back({words[1], target->location, true});
    return Done{};
  }

  Status take_thread(const std::vector<std::string>& words) {
    if (test_.threads.size() == kMaxThreads)
      return bad_input(fmt::format("thread {}; a test has at most {}", words[0], kMaxThreads));
    ThreadCode thread;
    thread.name = words[0];
    for (std::size_t i = 1; i < words.size(); i += 2) {
      std::uint32_t* field = words[i] == "rank"     ? &thread.place.rank
                             : words[i] == "kernel" ? &thread.place.kernel
                             : words[i] == "cta"    ? &thread.place.cta
                             : words[i] == "thread" ? &thread.place.thread
                                                    : nullptr;
      if (field == nullptr || i + 1 == words.size() || !parse_u32(words[i + 1], *field) ||
          *field > 7)
        return bad_input(
            fmt::format("{} in the place of {}; allowed are rank, kernel, cta "
                        "and thread, each with a number up to 7",
                        in_quotes(words[i]), thread.name));
    }
    test_.threads.push_back(std::move(thread));
    return Done{};
  }

  const Name* find(const std::string& text) const {
    for (const Name& name : test_.names)
      if (name.text == text) return &name;
    return nullptr;
  }

  Status finish() {
    ASSAY_CHECK(check_places());
    for (std::uint32_t t = 0; t < test_.threads.size(); ++t)
      for (std::uint32_t r = 0; r < test_.threads[t].num_registers; ++r) {
        Observable observable;
        observable.thread = t;
        observable.reg = r;
        observable.text = fmt::format("{}:r{}", test_.threads[t].name, r);
        test_.observables.push_back(observable);
      }
    for (std::size_t begin = 0; begin <= exists_.size();) {
      const std::size_t end = std::min(exists_.find('&', begin), exists_.size());
      ASSAY_CHECK(take_comparison(trimmed(exists_.substr(begin, end - begin))));
      begin = end + 1;
    }
    if (test_.observables.size() > kMaxObservables)
      return bad_input(fmt::format("{} registers and named words; at most {} can be observed",
                                   test_.observables.size(), kMaxObservables));
    return Done{};
  }

  // Threads of a CTA are numbered from 0; all of them meet at the same barriers and shuffles.
  Status check_places() {
    std::map<std::array<std::uint32_t, 3>, std::vector<const ThreadCode*>> ctas;
    for (const ThreadCode& t : test_.threads)
      ctas[{t.place.rank, t.place.kernel, t.place.cta}].push_back(&t);
    for (const auto& [key, threads] : ctas) {
      std::set<std::uint32_t> numbers;
      std::set<std::vector<Op>> meetings;
      for (const ThreadCode* t : threads) {
        numbers.insert(t->place.thread);
        std::vector<Op> meets;
        for (const Instruction& i : t->code)
          if (i.op == Op::kBarrier || i.op == Op::kShuffle || i.op == Op::kVoteAny)
            meets.push_back(i.op);
        meetings.insert(meets);
      }
      if (numbers.size() != threads.size() || *numbers.rbegin() + 1 != numbers.size())
        return bad_input(fmt::format("the threads of cta {} of rank {} are not numbered from 0",
                                     key[2], key[0]));
      if (meetings.size() > 1)
        return bad_input(fmt::format(
            "the threads of cta {} of rank {} do not meet at the same bar, shfl and vote", key[2],
            key[0]));
    }
    return Done{};
  }

  Status take_comparison(const std::string& text) {
    const auto sign = text.find_first_of("!=");
    Comparison comparison;
    if (sign != std::string::npos) {
      comparison.equal = text[sign] == '=';
      const std::string left = trimmed(text.substr(0, sign));
      const std::string right = trimmed(text.substr(sign + (comparison.equal ? 1 : 2)));
      const auto index = observable(left);
      if (index && parse_u32(right, comparison.value) && comparison.value <= kMaxValue) {
        comparison.observable = *index;
        test_.exists.push_back(comparison);
        return Done{};
      }
    }
    return bad_input(
        fmt::format("condition {}; allowed are P0:r0=1, x=1, x[2]=1 or != instead, "
                    "joined by &, of registers and locations of the test and values "
                    "up to {}",
                    in_quotes(text), kMaxValue));
  }

  std::optional<std::uint32_t> observable(const std::string& text) {
    for (std::uint32_t i = 0; i < test_.observables.size(); ++i)
      if (test_.observables[i].text == text) return i;
    std::uint32_t word = 0;
    const Name* name = find(text);
    if (name == nullptr && text.size() > 3 && text.back() == ']') {
      name = find(text.substr(0, text.size() - 3));
      word = static_cast<std::uint32_t>(text[text.size() - 2] - '0');
    }
    if (name == nullptr || word >= test_.locations[name->location].words) return std::nullopt;
    Observable memory;
    memory.is_register = false;
    memory.location = name->location;
    memory.word = word;
    memory.text = text;
    test_.observables.push_back(memory);
    return static_cast<std::uint32_t>(test_.observables.size() - 1);
  }

  const Family& family_;
  const std::string& file_;
  const Substitutions& substitutions_;
  Test test_;
  std::string exists_;
};

Expected<Verdict> parse_verdict(const std::string& word) {
  for (const Verdict v :
       {Verdict::kAllowed, Verdict::kForbidden, Verdict::kRace, Verdict::kUnexplored})
    if (word == verdict_name(v)) return v;
  return bad_input(fmt::format("verdict {}; allowed are allowed, forbidden, race and unexplored",
                               in_quotes(word)));
}

Status parse_verdicts(const std::string& text, std::array<Verdict, 3>& expected) {
  const std::vector<std::string> words = split_words(text);
  if (words.size() == 1 && words[0].find('=') == std::string::npos) {
    ASSAY_TRY(const Verdict verdict, parse_verdict(words[0]));
    expected.fill(verdict);
    return Done{};
  }
  std::set<Boundary> seen;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    for (const Boundary b : kBoundaries)
      if (word.substr(0, equals) == boundary_name(b)) {
        ASSAY_TRY(const Verdict verdict, parse_verdict(word.substr(equals + 1)));
        expected[static_cast<std::size_t>(b)] = verdict;
        seen.insert(b);
      }
  }
  if (seen.size() == 3 && words.size() == 3) return Done{};
  return bad_input(
      fmt::format("verdicts {}; allowed is one word, or ptx=, flush= and pdl= with "
                  "one each",
                  in_quotes(text)));
}

// case NAME [KEY=VALUE ...] : VERDICTS ; SOURCE
Expected<Test> parse_case(const Family& family, const std::string& file, const Line& line) {
  const auto colon = line.text.find(" : ");
  const auto semicolon = line.text.find(" ; ");
  if (colon == std::string::npos || semicolon == std::string::npos || semicolon < colon)
    return at(file, line.number, "a case is written `case NAME KEY=VALUE ... : VERDICTS ; SOURCE`");
  const std::vector<std::string> words = split_words(line.text.substr(0, colon));
  if (words.size() < 2) return at(file, line.number, "the case has no name");
  Substitutions substitutions;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    if (equals == std::string::npos)
      return at(file, line.number,
                fmt::format("{} in a case; allowed is KEY=VALUE", in_quotes(words[i])));
    substitutions[words[i].substr(0, equals)] = words[i].substr(equals + 1);
  }
  ASSAY_TRY(Test test, Reader(family, file, substitutions).read());
  test.name = family.name + "." + words[1];
  test.line = line.number;
  test.source = trimmed(line.text.substr(semicolon + 3));
  if (test.source.empty()) return at(file, line.number, "a verdict needs its source after ` ; `");
  const Status status =
      parse_verdicts(line.text.substr(colon + 3, semicolon - colon - 3), test.expected);
  if (!status) return at(file, line.number, status.error().sentence);
  return test;
}

}  // namespace

Expected<std::vector<Test>> parse_litmus(std::string_view text, const std::string& file) {
  std::vector<Test> tests;
  std::set<std::string> names;
  Family family;
  bool has_cases = true;
  std::uint32_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const Line line{++number, trimmed(text.substr(begin, end - begin))};
    begin = end + 1;
    if (line.text.empty()) continue;
    const std::vector<std::string> words = split_words(line.text);
    if (words[0] == "test") {
      if (!has_cases) return at(file, family.line, "the test has no case");
      if (words.size() != 2) return at(file, number, "a test is written `test NAME`");
      family = Family{words[1], {}, number, {}};
      has_cases = false;
    } else if (family.name.empty()) {
      return at(file, number,
                fmt::format("{}; a file begins with `test NAME`", in_quotes(line.text)));
    } else if (words[0] == "about") {
      family.about = line.text.substr(std::min<std::size_t>(6, line.text.size()));
    } else if (words[0] == "case") {
      ASSAY_TRY(Test test, parse_case(family, file, line));
      if (!names.insert(test.name).second)
        return at(file, number, fmt::format("a second case {}", in_quotes(test.name)));
      tests.push_back(std::move(test));
      has_cases = true;
    } else {
      family.lines.push_back(line);
    }
  }
  if (!has_cases) return at(file, family.line, "the test has no case");
  return tests;
}

Expected<std::vector<Test>> read_litmus_files(const std::vector<std::string>& paths) {
  std::vector<Test> all;
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    if (!in) return bad_input(fmt::format("{} cannot be read", path));
    ASSAY_TRY(std::vector<Test> tests, parse_litmus(text, path.substr(path.find_last_of('/') + 1)));
    std::move(tests.begin(), tests.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace assay::machine::litmus
