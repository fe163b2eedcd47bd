// What rounds exercised, counted from the legal plan and not from the subject, so that a wrong
// subject cannot hide that nothing was asked of it. Decides the meaning of each count (SPEC
// VER-4.1).
#pragma once

#include <cstdint>

namespace assay::verify {

struct RoundView;

// Sums over rounds. Tokens and ranks are those of living ranks.
struct Coverage {
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;
  std::int64_t picks = 0;            // tokens * top_k
  std::int64_t rows = 0;             // that crossed to a rank, own rank included
  std::int64_t remote_rows = 0;      // to another rank
  std::int64_t duplicate_picks = 0;  // a further pick of one token at one rank
  std::int64_t invalid_picks = 0;    // an id that names no expert
  std::int64_t masked_picks = 0;     // aimed at a dead rank
  std::int64_t zero_token_ranks = 0;
  std::int64_t pairs = 0;                // (source, destination)
  std::int64_t empty_pairs = 0;          // without a row
  std::int64_t ranks = 0;                // destinations
  std::int64_t empty_ranks = 0;          // without a row
  std::int64_t padding_rows = 0;         // rows of recv buffers without a token, one payload
  std::int64_t tokens_with_holes = 0;    // at least one term and one hole
  std::int64_t tokens_without_rows = 0;  // all holes
  std::int64_t max_changes = 0;          // max_tokens_per_rank differs from the round before
  std::int64_t payload_changes = 0;      // the payload set does
  std::int64_t mask_changes = 0;         // the set of living ranks does
  std::int64_t dispatch_bytes = 0;       // of rows, compared, all payloads
  std::int64_t statistics_words = 0;     // compared
  std::int64_t list_entries = 0;         // of slot lists, compared
  std::int64_t combine_elements = 0;     // compared
  std::int64_t nan_elements = 0;  // of them; counted where GroupSetup::nan_and_inf asks for some
  Coverage& operator+=(const Coverage& other);
};

// Name and member of every count, for JSON and for lists.
struct CoverageField {
  const char* name;
  std::int64_t Coverage::*count;
};
struct CoverageFields {
  const CoverageField* first;
  const CoverageField* last;
  const CoverageField* begin() const { return first; }
  const CoverageField* end() const { return last; }
};
CoverageFields coverage_fields();

void add_coverage(const RoundView& view, Coverage& coverage);

}  // namespace assay::verify
