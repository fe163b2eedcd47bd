// What the same source needs to be compiled by g++, clang++ and nvcc. Decides nothing about Assay.
#pragma once

#ifdef __FAST_MATH__
#error "Assay's answers are exact bits: -ffast-math changes them (SPEC NUM-0.1)"
#endif

// Marks functions that the model shares with kernels: they compile for host and device alike.
#ifdef __CUDACC__
#define ASSAY_HD __host__ __device__
#define ASSAY_DEVICE __device__
#define ASSAY_INLINE __forceinline__
#define ASSAY_ALWAYS_INLINE __forceinline__
#else
#define ASSAY_HD
#define ASSAY_DEVICE
#define ASSAY_INLINE inline
// For small functions of inner loops that the compilers' size heuristics leave as calls.
#define ASSAY_ALWAYS_INLINE inline __attribute__((always_inline))
#endif

// Full unrolling is part of a kernel body's contract (top_k loops live in registers). It is a
// pragma to nvcc and to clang; g++ unrolls constant trip counts at -O3 by itself. The opposite is
// for loops that few launches enter: all launches would fetch the copies.
#if defined(__CUDA_ARCH__) || defined(__clang__)
#define ASSAY_UNROLL _Pragma("unroll")
#define ASSAY_NO_UNROLL _Pragma("unroll 1")
#else
#define ASSAY_UNROLL
#define ASSAY_NO_UNROLL
#endif
