// Skip-softmax attention: what the output must be, in two ways. Read in this order:
//   tile_schedule.hpp  which keys a query row sees, which tiles a unit of rows visits
//   problem.hpp        the inputs: shapes, ragged lengths, paged keys, thresholds
//   truth.hpp          fp64 attention, dense or with given tiles left out, and its error bounds
//   profile.hpp        what one implementation computes, as data; profiles/ holds one file a family
//   vote.hpp           when a row agrees to skip a tile
//   softmax.hpp        exponentials, row sums and their trees, corrections
//   emulate.hpp        a profile run tile by tile in exact arithmetic: bits, LSE, decisions
//   unit_run.hpp       one unit's steps, for host_executor.hpp and, on GPUs, block_executor.hpp
//   parallel.hpp       the loop over independent pieces
//   calibration.hpp    which threshold factor gives which sparsity, by a sweep and a curve
//   work.hpp           operations and bytes of a call
// A "unit" is the rows that decide together whether they skip a key tile; a unit's result depends
// on nothing but its own rows, so units can be computed alone and in any order. Nothing here may be
// included by kernels except tile_schedule.hpp. Decisions: SPEC ATT.
#pragma once

#include "model/attention/emulate.hpp"
#include "model/attention/problem.hpp"
#include "model/attention/profile.hpp"
#include "model/attention/tile_schedule.hpp"
#include "model/attention/truth.hpp"
