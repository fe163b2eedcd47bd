// For tests of this folder only: generators. Decides nothing.
#pragma once

#include "model/core/testing.hpp"

namespace assay::moe {

// Uniform in [low, high). RapidCheck's own inRange narrows its range in the first cases of a run
// (it scales by the case's size), so that most cases of a property would be nearly empty rounds.
template <class T>
rc::Gen<T> in_range(T low, T high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high));
}

}  // namespace assay::moe
