// What the checks of properties share: a profile's usual case, comparisons that say where they
// fail, and how near the truth an answer must be. Internal to verify/attention.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "verify/attention/property.hpp"

namespace assay::verify::check {

using attention::Profile;

bool is_decode(const Profile& profile);
// The tile that the profile uses for a case of these dtype, sizes and mask.
attention::TileShape tile_of(const Profile& profile, const AttentionCase& c);

// One request of whole blocks of units, so that no row is padding; 512 keys, of which every second
// block of 128 lies 30 nats low; lambda = 0.001. Dense profiles get no threshold.
AttentionCase usual_case(const Profile& profile);
AttentionCase with(AttentionCase c, const std::function<void(AttentionCase&)>& change);
// Three requests of different lengths with a scale factor, such that a block lies between the
// thresholds by one length and by another. Whole units or not.
AttentionCase ragged_case(const Profile& profile, bool whole_units);
// usual_case for e4m3 if the profile has it.
std::vector<AttentionCase> and_fp8(const Profile& profile, std::vector<AttentionCase> cases);

// The first case again with two query heads on each of two key heads and twice the rows: kernels
// may compute neighbours together, and several units of a head. A decode's cases have many anyway.
std::vector<AttentionCase> and_pairs(const Profile& profile, std::vector<AttentionCase> cases);

// Query rows of a unit, in tokens.
std::int32_t unit_tokens(const Profile& profile, const AttentionCase& c);

// Every element of every head of V becomes what `value` says of (request, key, head, column).
void fill_v(
    Built& built,
    const std::function<float(std::size_t, std::int32_t, std::int32_t, std::int32_t)>& value);
// Column `column` of all keys becomes what `value` says of (request, key).
void set_k_column(Built& built, std::int32_t column,
                  const std::function<float(std::size_t, std::int32_t)>& value);
void set_q_column(Built& built, std::int32_t column, float value);

double out_value(Dtype out_dtype, std::uint16_t bits);

// `rows` rows of one answer equal those of another, LSE included. `where` names the first row in
// domain coordinates; "row" and "head" are added. False after a failure.
struct Slice {
  const Trial::Ran& ran;
  std::int64_t first_row = 0;
};
bool same_rows(Trial& trial, Slice got, Slice want, std::int64_t rows, std::string_view what,
               std::int64_t request = 0);
// All of two answers to problems of one shape, decisions included if both have them.
bool same_answer(Trial& trial, const Trial::Ran& got, const Trial::Ran& want,
                 std::string_view what);

// Every row with keys, of which something was kept: out is within ATT-3.6's bound of `expected`
// times the case's v_scale; `expected` is a function of (request, row, head, element), and no value
// is larger than v_max.
bool near_value(
    Trial& trial, const Trial::Ran& ran,
    const std::function<double(std::size_t, std::int32_t, std::int32_t, std::int32_t)>& expected,
    double v_max, std::string_view what);
// Out and LSE within the bound of fp64 attention over the pairs that were kept.
bool near_truth(Trial& trial, const Trial::Ran& ran);

// The pairs that an answer says it kept. Row by row in partly zeroed tiles, as the profile has
// them.
attention::Kept kept_of(const Trial::Ran& ran);

// The cell of a tile in the decisions of the unit that holds the row.
std::uint8_t decision_at(const Trial::Ran& ran, std::size_t request, std::int32_t head,
                         std::int32_t row, std::int32_t tile);

// What properties say of profiles: of one that never skips, and of one that a property about
// skipping is promised by if it does.
Prediction dense();
Prediction skipping(const attention::Profile& profile);
std::vector<AttentionCase> usual_only(const attention::Profile& profile);
// Whether a tile lies in a block that contrast has put below the others.
bool is_low(const AttentionCase& c, std::int32_t tile, std::int32_t kv_tile);

}  // namespace assay::verify::check
