// The checks, in the order in which they speak: what the experts saw, how the run ended, what it
// left behind.
#include "verify/explore/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "model/core/contract.hpp"

namespace assay::verify {

namespace {

constexpr ExploreCheck kChecks[] = {
    {"explore.complete", "VER-8.3", "no row, count or word is read before it is complete"},
    {"explore.isolation", "VER-8.3", "no row of another round or token is taken for this one's"},
    {"explore.reuse", "VER-8.3", "nothing is written where somebody may still read or write"},
    {"explore.counts", "VER-8.3", "no count is lost or doubled, control words come back"},
    {"explore.extents", "VER-8.3", "nothing is touched outside the extents of the rounds"},
    {"explore.group", "VER-8.3", "threads of a group exchange words across barriers only"},
    {"explore.progress", "VER-8.3", "every wait ends at the declared residency"},
    {"explore.bits", "VER-8.3", "combined rows have the legal bits under every schedule"},
};

const ExploreCheck& check_named(std::string_view name) {
  for (const ExploreCheck& check : kChecks)
    if (check.name == name) return check;
  CONTRACT(false, "no such check", std::string(name));
}

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

Coordinate at(const char* name, std::int64_t value) { return {name, value}; }
Coordinate at(const char* name, RankId rank) { return {name, rank.value()}; }

// Words that count: only their own protocol reads them.
bool is_count(const std::string& region) {
  return region == "send_counters" || region.find("phase") != std::string::npos ||
         region.find("ticket") != std::string::npos;
}

// The number behind `word` in a sentence of the machine, from position `from` on.
std::optional<int> number_after(const std::string& sentence, std::string_view word,
                                std::size_t from = 0) {
  const std::size_t at = sentence.find(word, from);
  if (from == std::string::npos || at == std::string::npos) return std::nullopt;
  return std::atoi(sentence.c_str() + at + word.size());
}

// Of a load that races with a store: whether the store belongs to a later round than the load, so
// that it is the store that came too early.
bool overtakes(const std::string& report, bool reads) {
  const auto mine = number_after(report, " of round ");
  const auto other = number_after(report, " of round ", report.find("data race"));
  if (!mine.has_value() || !other.has_value()) return !reads;
  return reads ? *other > *mine : *mine >= *other;
}

}  // namespace

std::span<const ExploreCheck> explore_checks() { return kChecks; }

Judge::Judge(const Evidence& evidence) : evidence_(evidence) {
  const auto ep = static_cast<std::size_t>(evidence.setup.ep_size);
  seen_.resize(evidence.rounds.size() * ep * ep *
               static_cast<std::size_t>(evidence.setup.max_tokens_per_rank));
}

void Judge::find(std::string_view name, std::string sentence, std::vector<Coordinate> where) {
  if (finding_.has_value()) return;  // the first is the cause
  const ExploreCheck& check = check_named(name);
  finding_.emplace();
  finding_->check = check.name;
  finding_->clause = check.clause;
  finding_->sentence = std::move(sentence);
  finding_->where = std::move(where);
}

// ---- what the experts saw ----------------------------------------------------------------------

void Judge::received_count(std::size_t round, RankId dst, RankId src, std::uint32_t count) {
  const std::int32_t legal = evidence_.rounds[round].plan.recv_counter(dst, src);
  if (count == static_cast<std::uint32_t>(legal)) return;
  find("explore.counts",
       fmt::format("rank {} counts {} rows of source {}; {} were sent", dst.value(), count,
                   src.value(), legal),
       {at("round", static_cast<std::int64_t>(round)), at("rank", dst), at("source", src)});
}

void Judge::received_statistic(std::size_t round, RankId dst, RankId src, std::uint32_t word,
                               std::uint32_t value) {
  const std::int32_t told = evidence_.rounds[round].round.statistics[index(src)][word];
  if (value == static_cast<std::uint32_t>(told)) return;
  find("explore.isolation",
       fmt::format("rank {} holds {} as statistic {} of source {}, which told {}", dst.value(),
                   value, word, src.value(), told),
       {at("round", static_cast<std::int64_t>(round)), at("rank", dst), at("source", src)});
}

std::optional<TokenId> Judge::received_row(
    std::size_t round, RankId dst, RankId src, std::uint32_t slot,
    std::span<const std::span<const std::byte>> payload_rows) {
  const RoundTruth& truth = evidence_.rounds[round];
  const std::vector<Coordinate> where = {at("round", static_cast<std::int64_t>(round)),
                                         at("rank", dst), at("source", src), at("slot", slot)};
  const auto is_row_of = [&](std::size_t p, TokenId token) {
    const auto sent = truth.sent_row(p, src, token);
    return std::equal(sent.begin(), sent.end(), payload_rows[p].begin(), payload_rows[p].end());
  };
  for (const auto& row : truth.plan.rows(dst, src)) {
    bool whole = true;
    for (std::size_t p = 0; p < payload_rows.size(); ++p) whole = whole && is_row_of(p, row.token);
    if (!whole) continue;
    const auto ep = static_cast<std::size_t>(evidence_.setup.ep_size);
    const auto max = static_cast<std::size_t>(evidence_.setup.max_tokens_per_rank);
    const std::size_t bit = ((round * ep + index(dst)) * ep + index(src)) * max +
                            static_cast<std::size_t>(row.token.value());
    if (truth.plan.slot_rule() == moe::SlotRule::kTokenIndex &&
        static_cast<std::uint32_t>(row.token.value()) != slot)
      find("explore.isolation", fmt::format("the row is that of token {}", row.token.value()),
           where);
    if (seen_[bit])
      find("explore.counts", fmt::format("token {} lies in two slots", row.token.value()), where);
    seen_[bit] = true;
    return row.token;
  }
  for (std::size_t p = 0; p < payload_rows.size(); ++p) {
    if (static_cast<std::int32_t>(p) == truth.ids_payload) continue;  // ids repeat
    const auto origin = origin_of(evidence_.rounds, p, payload_rows[p]);
    if (!origin.has_value()) continue;
    if (origin->round == round && origin->src == src) continue;  // another payload's fault
    find("explore.isolation",
         fmt::format("the row of {} is that of token {} of rank {} in round {}",
                     truth.payloads[p].name, origin->token.value(), origin->src.value(),
                     origin->round),
         where);
    return std::nullopt;
  }
  find("explore.complete", "the slot holds no whole row: part of it had not arrived", where);
  return std::nullopt;
}

void Judge::padding_id(std::size_t round, RankId dst, RankId src, std::uint32_t slot,
                       std::int32_t id) {
  if (id == evidence_.setup.invalid_expert_id) return;
  find("explore.isolation",
       fmt::format("the padding slot has expert id {}; {} marks absence", id,
                   evidence_.setup.invalid_expert_id),
       {at("round", static_cast<std::int64_t>(round)), at("rank", dst), at("source", src),
        at("slot", slot)});
}

// ---- how the run ended -------------------------------------------------------------------------

Place place_of(const Evidence& evidence, Address address) {
  Place place;
  for (const NamedRegion& region : evidence.regions) {
    if (address.raw - region.first.raw >= region.bytes) continue;
    place.region = &region;
    const std::uint64_t offset = address.raw - region.first.raw;
    if (region.round >= 0) place.where.push_back(at("round", region.round));
    place.where.push_back(at("rank", region.rank));
    if (region.row_bytes == 0) {
      place.where.push_back(at("byte", static_cast<std::int64_t>(offset)));
      return place;
    }
    const std::uint64_t row = offset / region.row_bytes;
    if (region.rows_per_source == 0) {
      place.where.push_back(at("row", static_cast<std::int64_t>(row)));
    } else {
      place.where.push_back(at("source", static_cast<std::int64_t>(row / region.rows_per_source)));
      place.where.push_back(at("slot", static_cast<std::int64_t>(row % region.rows_per_source)));
    }
    place.where.push_back(at("byte", static_cast<std::int64_t>(offset % region.row_bytes)));
    return place;
  }
  return place;
}

void Judge::judge_result(const machine::RunResult& result) {
  using machine::Operation;
  using machine::RunStatus;
  if (result.ok()) return;
  if (result.status != RunStatus::kFault) {
    std::vector<Coordinate> where;  // of the first thread that the report names
    if (const auto round = number_after(result.report, " of round "))
      where.push_back(at("round", *round));
    if (const auto rank = number_after(result.report, "rank ")) where.push_back(at("rank", *rank));
    return find("explore.progress", result.report, std::move(where));
  }
  const machine::MemoryEvent& access = result.trouble;
  if (access.operation == Operation::kNone)  // shared words have no address
    return find("explore.group", result.report, {});
  const Place place = place_of(evidence_, access.address);
  const bool reads = access.operation == Operation::kLoad || access.operation == Operation::kAwait;
  // A store that races with a load of its own round came before it could be read whole; a store
  // that races with anything else came too early.
  const bool too_early = overtakes(result.report, reads);
  std::string_view check = too_early ? "explore.reuse" : "explore.complete";
  if (place.region == nullptr)
    check = "explore.extents";
  else if (is_count(place.region->name))
    check = "explore.counts";
  find(check,
       place.region == nullptr ? result.report
                               : fmt::format("{}: {}", place.region->name, result.report),
       place.where);
}

// ---- what it left behind -----------------------------------------------------------------------

void Judge::judge_end(machine::Machine& machine) {
  for (RankId rank{0}; rank.value() < evidence_.setup.ep_size; rank = rank.next()) {
    std::byte status[one_sided::StatusWord::kBytes];
    machine.peek(evidence_.status[index(rank)], status);
    const Status gave_up = status_of(rank, status);
    if (!gave_up) return find("explore.progress", gave_up.error().sentence, {at("rank", rank)});
  }
  std::vector<std::byte> got;
  for (std::size_t r = 0; r < evidence_.rounds.size(); ++r) {
    for (RankId src{0}; src.value() < evidence_.setup.ep_size; src = src.next()) {
      const std::vector<std::byte>& legal = evidence_.rounds[r].out[index(src)];
      got.resize(legal.size());
      const bool written = machine.peek(evidence_.out[r][index(src)], got);
      if (written && got == legal) continue;
      const auto differs = std::mismatch(got.begin(), got.end(), legal.begin());
      const auto byte = differs.first - got.begin();
      const auto row = static_cast<std::ptrdiff_t>(legal.size()) /
                       std::max(1, evidence_.rounds[r].plan.num_tokens(src));
      return find("explore.bits",
                  written ? "a combined row has other bits than the only legal ones"
                          : "a combined row was not written",
                  {at("round", static_cast<std::int64_t>(r)), at("rank", src),
                   at("token", byte / row), at("hidden", byte % row / 2)});
    }
  }
  for (const Evidence::Word& word : evidence_.final_words) {
    std::uint32_t value = 0;
    machine.peek(word.at, {reinterpret_cast<std::byte*>(&value), sizeof value});
    if (value == word.value) continue;
    return find(
        "explore.counts",
        fmt::format("{} is {} after the last round; it must be {}", word.what, value, word.value),
        {at("rank", word.rank)});
  }
  std::vector<std::byte> armed;
  for (const Evidence::Range& range : evidence_.armed) {
    armed.resize(range.bytes);
    machine.peek(range.first, armed);
    const auto used = std::find_if(armed.begin(), armed.end(),
                                   [](std::byte byte) { return byte != std::byte{0xFF}; });
    if (used == armed.end()) continue;
    const Place place =
        place_of(evidence_, range.first.at(static_cast<std::uint64_t>(used - armed.begin())));
    return find("explore.counts",
                fmt::format("a word of {} is not armed after the last round", place.region->name),
                place.where);
  }
  judge_untouched(machine);
}

void Judge::judge_untouched(machine::Machine& machine) {
  for (const Evidence::Range& range : evidence_.untouched) {
    if (machine.count_written(range.first, range.bytes) == 0) continue;
    std::uint64_t byte = 0;
    while (machine.count_written(range.first.at(byte), 1) == 0) ++byte;
    const Place place = place_of(evidence_, range.first.at(byte));
    return find("explore.extents",
                fmt::format("a byte of {} was written that belongs to no row of any round",
                            place.region == nullptr ? "the window" : place.region->name),
                place.where);
  }
}

// Of a program in which a peer stops (SPEC VER-8.9).
void Judge::judge_failure(machine::Machine& machine) {
  using one_sided::StatusWord;
  for (const Evidence::GivenUp& expected : evidence_.given_up) {
    std::array<std::byte, StatusWord::kBytes> status{};
    machine.peek(evidence_.status[index(expected.rank)], status);
    const auto word = [&](std::uint64_t offset) {
      std::uint32_t value = 0;
      std::memcpy(&value, status.data() + offset, sizeof value);
      return value;
    };
    const bool right =
        word(StatusWord::kFailure) == static_cast<std::uint32_t>(one_sided::Failure::kTimeOut) &&
        word(StatusWord::kEpoch) == expected.epoch &&
        word(StatusWord::kPeer) == static_cast<std::uint32_t>(expected.peer.value());
    if (right) continue;
    const Status says = status_of(expected.rank, status.data());
    return find("explore.progress",
                fmt::format("rank {} must have given up in epoch {}, waiting for peer {}; {}",
                            expected.rank.value(), expected.epoch, expected.peer.value(),
                            says ? "its status word is not set" : says.error().sentence),
                {at("rank", expected.rank)});
  }
  std::vector<std::byte> got;
  for (std::size_t r = 0; r < evidence_.rounds.size(); ++r) {
    for (RankId src{0}; src.value() < evidence_.setup.ep_size; src = src.next()) {
      const std::vector<std::byte>& legal = evidence_.rounds[r].out[index(src)];
      const Address out = evidence_.out[r][index(src)];
      got.resize(legal.size());
      machine.peek(out, got);
      for (std::size_t byte = 0; byte < legal.size(); ++byte) {
        if (machine.count_written(out.at(byte), 1) == 0) continue;
        if (r < evidence_.rounds_combined && got[byte] == legal[byte]) continue;
        return find("explore.bits",
                    r < evidence_.rounds_combined
                        ? "a row that was combined before the failure has other bits than the legal"
                        : "a row was combined after the failure",
                    {at("round", static_cast<std::int64_t>(r)), at("rank", src),
                     at("byte", static_cast<std::int64_t>(byte))});
      }
    }
  }
  judge_untouched(machine);
}

std::optional<Mismatch> Judge::verdict(machine::Machine& machine,
                                       const machine::RunResult& result) {
  judge_result(result);
  if (!finding_.has_value()) {
    if (evidence_.given_up.empty())
      judge_end(machine);
    else
      judge_failure(machine);
  }
  return std::move(finding_);
}

}  // namespace assay::verify
