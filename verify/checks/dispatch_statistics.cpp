// dispatch.statistics: every living rank holds the words that every living rank told, and zeroes of
// dead ones (SPEC MOE-2.10). Decides which confusions are told apart (SPEC VER-2.6).
#include <fmt/format.h>

#include <algorithm>

#include "verify/checks/checks.hpp"

namespace assay::verify {

namespace {

struct WrongWord {
  RankId dst, src;
  std::size_t word;
  std::int32_t got, expected;
};

// Diagnoses that fit every wrong word of the round.
std::vector<std::string> explain(const RoundView& view, const std::vector<WrongWord>& wrong,
                                 std::size_t count) {
  const auto& told = view.round->statistics;
  const auto poison =
      static_cast<std::uint32_t>(view.statistics[0].poison) * std::uint32_t{0x01010101};
  const bool has_previous = view.previous != nullptr && !view.previous->statistics.empty();
  bool unwritten = true, of_receiver = true, stale = has_previous;
  for (const WrongWord& w : wrong) {
    const auto dst = static_cast<std::size_t>(w.dst.value());
    unwritten &= static_cast<std::uint32_t>(w.got) == poison;
    of_receiver &= w.got == told[dst][w.word];
    if (!stale) continue;
    const auto before = view.previous->statistics_of(w.dst);
    const std::size_t at = static_cast<std::size_t>(w.src.value()) * count + w.word;
    stale = at < before.size() && before[at] == w.got;
  }
  std::vector<std::string> sentences;
  if (unwritten) sentences.push_back("never written: the poison is still there");
  if (of_receiver) sentences.push_back("the receiver's own words stand in the source's row");
  if (stale)
    sentences.push_back(fmt::format("stale: they are those of round {}", view.previous->number));
  for (std::size_t other = 0; other < told.size(); ++other) {
    if (!std::all_of(wrong.begin(), wrong.end(), [&](const WrongWord& w) {
          return static_cast<std::size_t>(w.src.value()) != other && w.got == told[other][w.word];
        }))
      continue;
    sentences.push_back(fmt::format("they are the words of rank {}", other));
  }
  return sentences;
}

}  // namespace

void check_dispatch_statistics(const RoundView& view, std::vector<Mismatch>& found) {
  if (view.statistics.empty()) return;
  const std::vector<std::int32_t> expected =
      moe::gathered_statistics(view.round->statistics, view.alive);
  const std::size_t count = view.round->statistics[0].size();
  std::vector<WrongWord> wrong;
  std::int64_t total = 0;
  for (RankId dst{0}; dst.value() < view.ep_size(); dst = dst.next()) {
    if (!view.is_alive(dst)) continue;
    const auto got = view.statistics_of(dst);
    for (std::size_t i = 0; i < expected.size(); ++i, ++total)
      if (got[i] != expected[i])
        wrong.push_back(
            {dst, RankId(static_cast<std::int32_t>(i / count)), i % count, got[i], expected[i]});
  }
  if (wrong.empty()) return;
  const WrongWord& first = wrong.front();
  Mismatch mismatch = mismatch_of(
      "dispatch.statistics",
      fmt::format("rank {} holds {} as statistic {} of rank {}, {}", first.dst.value(), first.got,
                  first.word, first.src.value(),
                  view.is_alive(first.src) ? fmt::format("which told {}", first.expected)
                                           : "which is dead: it must hold 0"),
      {{"round", view.number},
       {"rank", first.dst.value()},
       {"source", first.src.value()},
       {"word", static_cast<std::int64_t>(first.word)}});
  mismatch.values = Values{ElementFormat::kInt32, static_cast<std::uint32_t>(first.got),
                           static_cast<std::uint32_t>(first.expected)};
  mismatch.wrong = static_cast<std::int64_t>(wrong.size());
  mismatch.total = total;
  mismatch.unit = "words";
  mismatch.diagnoses = explain(view, wrong, count);
  found.push_back(std::move(mismatch));
}

}  // namespace assay::verify
