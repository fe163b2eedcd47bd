// The spec route of one-sided, rank-major mixture-of-experts communication: pure functions from
// inputs to the only legal bytes, or to the set of them where slot order is free. Read in this
// order:
//   rank_mask.hpp      which ranks are alive
//   placement.hpp      which rank owns which expert, and replicated experts
//   routing.hpp        one round's picks as they are on the wire; the perfect router
//   dispatch.hpp       who sends which token where: targets, slots, counters, receive buffers
//   statistics.hpp     words that every rank tells every rank in a dispatch
//   expert_lists.hpp   the slots of each local expert, for a gathering grouped GEMM
//   experts.hpp        the deterministic stand-in for experts
//   reduction_tree.hpp the order of additions, as text
//   combine.hpp        the additions themselves, for every known arithmetic
//   profile.hpp        which library computes which arithmetic, with evidence and grade
//   buffer_sizes.hpp   bytes per token of each recipe, and the traffic of the alternatives
// This folder knows nothing of kernels, machines or GPUs; cuda/kernels says the same a second time,
// on purpose, and nothing here may be included there.
#pragma once

#include "model/moe/buffer_sizes.hpp"
#include "model/moe/combine.hpp"
#include "model/moe/dispatch.hpp"
#include "model/moe/expert_lists.hpp"
#include "model/moe/experts.hpp"
#include "model/moe/placement.hpp"
#include "model/moe/profile.hpp"
#include "model/moe/rank_mask.hpp"
#include "model/moe/reduction_tree.hpp"
#include "model/moe/routing.hpp"
#include "model/moe/statistics.hpp"
