// dispatch.counters: recv_counters of a rank are the rows that came from each source. Decides which
// confusions are told apart (SPEC VER-2.6); the number itself is SPEC MOE-2.4.
#include <fmt/format.h>

#include "verify/checks/checks.hpp"

namespace assay::verify {

namespace {

struct Counter {
  RankId dst, src;
  std::int32_t got, expected;
};

// Picks of `src` at `dst`, duplicates counted again.
std::int32_t picks_at(const RoundView& view, RankId dst, RankId src) {
  std::int32_t picks = 0;
  for (const std::int32_t id : view.routing->topk_ids(src)) {
    const auto place = view.placement->place_of_wire(id);
    if (place && view.placement->rank_of(*place) == dst) ++picks;
  }
  return picks;
}

std::int32_t counter_before(const RoundView& view, RankId dst, RankId src) {
  return view.previous == nullptr ? 0 : view.previous->legal->recv_counter(dst, src);
}

// Diagnoses that fit every wrong counter of the round.
std::vector<std::string> explain(const RoundView& view, const std::vector<Counter>& wrong) {
  const auto poison =
      static_cast<std::uint32_t>(view.recv_counters[0].poison) * std::uint32_t{0x01010101};
  struct Guess {
    std::string sentence;
    bool fits;
  };
  const std::string number = view.previous == nullptr ? "" : std::to_string(view.previous->number);
  std::vector<Guess> guesses{
      {"never written: the poison is still there", true},
      {"the counter counts picks, not rows: a second pick at the same rank sends no second row",
       true},
      {"counters were not reset: they are those of round " + number + " plus these", true},
      {"stale: they are the counters of round " + number, true},
      {"all are one too large", true},
      {"all are one too small", true}};
  if (view.previous == nullptr) guesses[2].fits = guesses[3].fits = false;
  for (const Counter& c : wrong) {
    const std::int32_t before = counter_before(view, c.dst, c.src);
    guesses[0].fits &= static_cast<std::uint32_t>(c.got) == poison;
    guesses[1].fits &= c.got == picks_at(view, c.dst, c.src);
    guesses[2].fits &= c.got == before + c.expected;
    guesses[3].fits &= c.got == before;
    guesses[4].fits &= c.got == c.expected + 1;
    guesses[5].fits &= c.got == c.expected - 1;
  }
  std::vector<std::string> sentences;
  for (Guess& guess : guesses)
    if (guess.fits) sentences.push_back(std::move(guess.sentence));
  return sentences;
}

}  // namespace

void check_dispatch_counters(const RoundView& view, std::vector<Mismatch>& found) {
  std::vector<Counter> wrong;
  std::int64_t total = 0;
  for (RankId dst{0}; dst.value() < view.ep_size(); dst = dst.next()) {
    if (!view.is_alive(dst)) continue;
    const auto got = view.counters_of(dst);
    const auto expected = view.legal->recv_counters(dst);
    for (std::size_t src = 0; src < expected.size(); ++src, ++total) {
      if (got[src] != expected[src])
        wrong.push_back({dst, RankId(static_cast<std::int32_t>(src)), got[src], expected[src]});
    }
  }
  if (wrong.empty()) return;
  const Counter& first = wrong.front();
  Mismatch mismatch = mismatch_of(
      "dispatch.counters",
      fmt::format("rank {} counts {} rows from source {}; {} were sent", first.dst.value(),
                  first.got, first.src.value(), first.expected),
      {{"round", view.number}, {"rank", first.dst.value()}, {"source", first.src.value()}});
  mismatch.values = Values{ElementFormat::kInt32, static_cast<std::uint32_t>(first.got),
                           static_cast<std::uint32_t>(first.expected)};
  mismatch.wrong = static_cast<std::int64_t>(wrong.size());
  mismatch.total = total;
  mismatch.unit = "counters";
  mismatch.diagnoses = explain(view, wrong);
  found.push_back(std::move(mismatch));
}

}  // namespace assay::verify
