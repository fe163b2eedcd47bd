// The properties that an explored protocol owes under every schedule, as named checks, and the
// judge that applies them to one execution. The experts' kernel tells it what it received while the
// execution runs; the rest is looked at when it has ended. Decides SPEC VER-8.3 and VER-8.4: which
// check a fault of the machine belongs to, and what is the first wrong place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/machine/machine.hpp"
#include "verify/compare/mismatch.hpp"
#include "verify/explore/truth.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

struct ExploreCheck {
  std::string_view name;    // "explore.complete"
  std::string_view clause;  // what a protocol owes
  std::string_view title;   // a sentence
};
// complete, isolation, reuse, counts, extents, group, progress, bits.
std::span<const ExploreCheck> explore_checks();

// A region of a rank's memory with what lies in it, so that an address becomes coordinates.
struct NamedRegion {
  std::string name;  // of the workspace's layout, or of an input or output
  Address first;
  std::uint64_t bytes = 0;
  RankId rank;
  std::int32_t round = -1;            // of inputs and outputs
  std::uint64_t row_bytes = 0;        // 0: no rows
  std::uint64_t rows_per_source = 0;  // 0: rows are tokens; else [src, slot]
};

// What a judge compares with; computed once per program.
struct Evidence {
  GroupSetup setup;
  std::vector<RoundTruth> rounds;
  std::vector<NamedRegion> regions;  // ascending
  struct Range {
    Address first;
    std::uint64_t bytes = 0;
  };
  std::vector<Range> untouched;           // bytes that nobody may ever write
  std::vector<std::vector<Address>> out;  // [round][rank]
  struct Word {
    Address at;
    std::uint32_t value = 0;
    const char* what = "";
    RankId rank;
  };
  std::vector<Word> final_words;  // what control words hold at the end
  std::vector<Address> status;    // [rank]: status words
  std::vector<Range> armed;       // bytes that are all ones at the end
  // Programs in which a peer stops: who must have given up, on whom, in which epoch; and how many
  // rounds may have combined rows.
  struct GivenUp {
    RankId rank;
    RankId peer;
    std::uint32_t epoch = 0;
  };
  std::vector<GivenUp> given_up;
  std::size_t rounds_combined = 0;
};

class Judge {
 public:
  explicit Judge(const Evidence& evidence);

  // From the experts' kernel of `dst`. received_row returns the token whose row it is, if the row
  // is one that belongs there. payload_rows: in wire order.
  void received_count(std::size_t round, RankId dst, RankId src, std::uint32_t count);
  void received_statistic(std::size_t round, RankId dst, RankId src, std::uint32_t word,
                          std::uint32_t value);
  std::optional<TokenId> received_row(std::size_t round, RankId dst, RankId src, std::uint32_t slot,
                                      std::span<const std::span<const std::byte>> payload_rows);
  void padding_id(std::size_t round, RankId dst, RankId src, std::uint32_t slot, std::int32_t id);

  // After the run: nothing if the execution was right, else the first thing that was wrong.
  std::optional<Mismatch> verdict(machine::Machine& machine, const machine::RunResult& result);

 private:
  void find(std::string_view check, std::string sentence, std::vector<Coordinate> where);
  void judge_result(const machine::RunResult& result);
  void judge_end(machine::Machine& machine);
  void judge_failure(machine::Machine& machine);
  void judge_untouched(machine::Machine& machine);

  const Evidence& evidence_;
  std::vector<bool> seen_;  // [round][dst][src][token]
  std::optional<Mismatch> finding_;
};

// "recv_counters of rank 1, source 0" for people, and as coordinates.
struct Place {
  const NamedRegion* region = nullptr;
  std::vector<Coordinate> where;
};
Place place_of(const Evidence& evidence, Address address);

}  // namespace assay::verify
