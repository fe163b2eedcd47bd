// Wrong attention kernels, each a profile with one thing changed: a field, or a fault that no field
// can say. Decides which property must catch each (SPEC VER-24.1, VER-24.2).
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "verify/attention/subject.hpp"

namespace assay::verify {

struct AttentionMutant {
  std::string_view name;      // as --mutant takes it
  std::string_view what;      // a sentence: what is wrong
  std::string_view profile;   // a profile whose property it breaks
  std::string_view property;  // that must catch it; "bits": the comparison with the profile
  // One of these. `change` alters a copy of the profile; `fault` answers for the profile.
  void (*change)(attention::Profile&) = nullptr;
  AttentionRun (*fault)(const attention::Profile&, const attention::Problem&,
                        int threads) = nullptr;
};
inline constexpr std::string_view kBitsProperty = "bits";

std::span<const AttentionMutant> attention_mutants();
Expected<const AttentionMutant*> find_attention_mutant(std::string_view name);

// The mutant of any profile: it answers what the changed profile would.
std::unique_ptr<AttentionSubject> mutant_subject(const AttentionMutant& mutant);

// The faults, in faults.cpp.
namespace faults {
using attention::Problem;
using attention::Profile;
AttentionRun wrong_request_rows(const Profile&, const Problem&, int threads);
AttentionRun v_row_off_by_one(const Profile&, const Problem&, int threads);
AttentionRun page_index_ignored(const Profile&, const Problem&, int threads);
AttentionRun offsets_in_32_bits(const Profile&, const Problem&, int threads);
AttentionRun first_request_rules(const Profile&, const Problem&, int threads);
AttentionRun silently_dense(const Profile&, const Problem&, int threads);
AttentionRun causal_for_full(const Profile&, const Problem&, int threads);
AttentionRun top_left_for_bottom_right(const Profile&, const Problem&, int threads);
AttentionRun last_key_missing(const Profile&, const Problem&, int threads);
AttentionRun tail_tile_dropped(const Profile&, const Problem&, int threads);
AttentionRun rows_beyond_four(const Profile&, const Problem&, int threads);
AttentionRun heads_modulo(const Profile&, const Problem&, int threads);
AttentionRun sinks_ignored(const Profile&, const Problem&, int threads);
AttentionRun empty_request_shifts(const Profile&, const Problem&, int threads);
AttentionRun scale_ignored(const Profile&, const Problem&, int threads);
AttentionRun zero_is_tiny(const Profile&, const Problem&, int threads);
AttentionRun nan_threshold_served(const Profile&, const Problem&, int threads);
AttentionRun wrong_base(const Profile&, const Problem&, int threads);
AttentionRun not_repeatable(const Profile&, const Problem&, int threads);
AttentionRun first_tile_not_counted(const Profile&, const Problem&, int threads);
AttentionRun lse_of_dense_sum(const Profile&, const Problem&, int threads);
AttentionRun lse_of_other_base(const Profile&, const Problem&, int threads);
AttentionRun eight_lanes(const Profile&, const Problem&, int threads);
AttentionRun warp_votes_alone(const Profile&, const Problem&, int threads);
AttentionRun masked_tiles_counted(const Profile&, const Problem&, int threads);
}  // namespace faults

}  // namespace assay::verify
