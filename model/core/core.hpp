// The ground floor: what every other folder speaks with. Read in this order:
//   id.hpp           strong ids: RankId, ExpertId, TokenId, SlotId ...
//   expected.hpp     channel 1: Expected<T> and Error, for callers' mistakes and bad files
//   contract.hpp     channel 2: CONTRACT, for our own mistakes
//   bits.hpp         F32, Bf16, E4m3 ... as bit patterns without operators
//   layout.hpp       one declaration of a buffer: sizes, offsets, accessors, documentation
//   ops.hpp          the Ops concept: how a kernel body touches memory and its neighbours
//   safetensors.hpp  every tensor file
//   case_text.hpp    "ep=4 experts=32 top_k=8 ...": one line, parser and printer inverse
// core decides spelling and storage; it decides no semantics of MoE, attention or arithmetic.
// Core lives in namespace assay itself, because its words are used on every line; the other folders
// have namespaces of their own name.
#pragma once

#include "model/core/bits.hpp"
#include "model/core/contract.hpp"
#include "model/core/expected.hpp"
#include "model/core/id.hpp"
