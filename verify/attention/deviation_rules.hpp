// Collects deviations: the profile and the problem copied, one thing changed. Internal to
// deviations.cpp and deviations_inputs.cpp. Decides nothing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "verify/attention/deviations.hpp"

namespace assay::verify::deviation {

using namespace assay::attention;

class Rules {
 public:
  Rules(const Profile& profile, const Problem& problem) : profile_(profile), problem_(problem) {}

  const Profile& profile() const { return profile_; }
  const Problem& problem() const { return problem_; }
  const SkipRule& skip() const { return profile_.skip; }
  // The variant of the problem's type.
  const Softmax& softmax() const {
    if (problem_.dtype == Dtype::kF8E4m3 && profile_.fp8) return *profile_.fp8;
    const bool biased = problem_.softcap > 0 || !problem_.alibi_slopes.empty();
    return biased && profile_.biased ? *profile_.biased : profile_.softmax;
  }

  AttentionDeviation& add(std::string sentence) {
    list.push_back({"fits instead: " + std::move(sentence), profile_, problem_, false, {}});
    return list.back();
  }
  template <class Change>
  void skip_rule(std::string sentence, const Change& change) {
    change(add(std::move(sentence)).profile.skip);
  }
  // Changes the variant that is used, whichever it is.
  template <class Change>
  void softmax_rule(std::string sentence, const Change& change) {
    Profile& p = add(std::move(sentence)).profile;
    change(p.softmax);
    if (p.fp8) change(*p.fp8);
    if (p.biased) change(*p.biased);
  }
  template <class Change>
  void each_request(std::string sentence, const Change& change) {
    for (Request& r : add(std::move(sentence)).problem.requests) change(r);
  }
  std::vector<AttentionDeviation> list;

 private:
  const Profile& profile_;
  const Problem& problem_;
};

inline bool any_threshold(const Problem& p) {
  return std::any_of(p.requests.begin(), p.requests.end(),
                     [](const Request& r) { return r.threshold.kind != Threshold::Kind::kOff; });
}

// What is read: masks, lengths, scales, rows of others or moved by one, kinds of LSE.
void input_rules(Rules& rules);
void row_rules(Rules& rules, std::size_t request);
void lse_rules(Rules& rules);

}  // namespace assay::verify::deviation
