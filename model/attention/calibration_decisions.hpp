// The decisions of a profile without its outputs: row maxima of every unit and tile, computed once
// in exact arithmetic, then any number of thresholds replayed over them. Decides how tiles are
// counted (SPEC ATT-8.2); which tiles are skipped is the profile's vote, which a test holds to the
// emulator's trace for every profile (SPEC ATT-8.1).
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "model/attention/emulate.hpp"

namespace assay::attention {

// The tiles of some units. `hidden` are visited tiles in which no row of the unit sees a key: a
// kernel that visits them counts them as skipped at any threshold above 0.
struct TileCounts {
  std::int64_t visited = 0, asked = 0, skipped = 0, partly_zeroed = 0, hidden = 0;

  double of_visited() const { return ratio(visited); }
  double of_asked() const { return ratio(asked); }
  TileCounts& operator+=(const TileCounts& other);

 private:
  double ratio(std::int64_t of) const {
    return of == 0 ? 0 : static_cast<double>(skipped) / static_cast<double>(of);
  }
};

struct TileDecision {
  std::int32_t tile = 0;
  Decision decision = Decision::kNotVisited;
  bool asked = false;
  std::bitset<128> zeroed;  // as TileTrace's
};

// What a unit's decisions depend on. A segment is the tiles visited one after the other with one
// running maximum.
struct UnitMaxima {
  struct Visit {
    std::int32_t tile = 0;
    std::int32_t place = 0;  // 0 for the first of its segment
    bool hidden = false;
  };
  std::size_t rows = 0;
  std::vector<Visit> visits;  // in order of visit
  std::vector<F32> local;     // [visits, rows]
};

class DecisionReplay {
 public:
  // Computes all scores, whatever the thresholds of the problem; values decide nothing. Memory: 4
  // bytes per row and visited tile. The problem must outlive this. Errors: those of Emulator::make,
  // and unsupported for a profile that cannot skip.
  static Expected<DecisionReplay> make(const Profile& profile, const Problem& problem, int threads);

  const Emulator& emulator() const { return emulator_; }
  // lambda of a request for a threshold, by the profile's own division. A scale factor given to a
  // profile that does not divide is divided here, to nearest (SPEC ATT-8.3).
  Lambda lambda(std::size_t request, const Threshold& threshold) const;
  std::vector<TileDecision> decide(std::size_t unit, const Lambda& lambda) const;
  // All units of all requests, each request with `threshold`. Up to lambda 1 the skipped never fall
  // as it grows; above, they may (SPEC ATT-8.4).
  TileCounts count(const Threshold& threshold) const;

 private:
  DecisionReplay(Emulator emulator, const Problem& problem);
  template <class OnTile>
  void replay(const UnitMaxima& unit, const Lambda& lambda, const OnTile& on_tile) const;

  Emulator emulator_;
  const Problem* problem_;
  Scale scale_;
  std::vector<UnitMaxima> units_;
};

}  // namespace assay::attention
