// Skip-softmax attention on the GPU: the kernels of the profiles whose names begin with "assay-".
// Open this first. The bits they must produce are SPEC ATT-6, how they are made is SPEC CUD-6
// (prefill) and CUD-7 (decode).
//
//   plan.hpp             what a block works on, and what each unit of 64 rows visits
//   flow.hpp             in which order a block's roles wait, issue and release
//   prefill_shape.cuh    tiles, stages, registers, shared memory, by type and head size
//   params.cuh           what a launch copies to the device
//   fetch_sm90.cuh       the warps that load
//   transpose_sm90.cuh   ... and those that turn values of one byte
//   softmax_sm90.cuh     one thread's arithmetic between the two products
//   compute_sm90.cuh     a warpgroup that computes a unit
//   prefill_sm90.cuh     the kernel
//   decode_plan.hpp, decode_flow.hpp, decode_shape.cuh, decode_params.cuh, decode_fetch_sm90.cuh,
//   decode_softmax.cuh   the same for decode
//   decode_scores_sm90.cuh, decode_values_sm90.cuh   warps that decide, and warps that add values
//   decode_merge.cuh     the kernel that merges chunks
//   decode_sm90.cuh      the decode kernel
//
// What does not need a GPU is tested on the host: flow_test.cpp and decode_flow_test.cpp enumerate
// interleavings, softmax_test.cpp, decode_softmax_test.cpp and transpose_test.cpp compare bits,
// plan_test.cpp and decode_plan_test.cpp read plans and descriptors back.
#pragma once

#include "cuda/kernels/attention/decode_sm90.cuh"
#include "cuda/kernels/attention/prefill_sm90.cuh"
