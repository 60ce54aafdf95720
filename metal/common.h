// SPDX-License-Identifier: MIT
//
// Small functions that the kernels share. Exponentials are the precise ones; NaNs propagate.
#pragma once

#include <metal_stdlib>
using namespace metal;

// exp(-x) = inf gives 0, so no range needs care.
inline float sigma(float x) { return 1.0f / (1.0f + precise::exp(-x)); }
inline float silu(float x) { return x * sigma(x); }

// log(1 + e^x); from 20 on it is x in float32. The quotient undoes the rounding of 1 + e (Kahan), which
// costs a small e its digits.
inline float softplus(float x) {
  if (x > 20.0f) return x;
  const float e = precise::exp(x), u = 1.0f + e;
  return u == 1.0f ? e : precise::log(u) * (e / (u - 1.0f));
}

// 1 / sqrt(mean of n squares + eps), from their sum.
inline float inverse_rms(float squares, uint n, float eps) {
  return 1.0f / precise::sqrt(squares / float(n) + eps);
}

// Threads of a group that works on one row, or on elements.
enum { kGroupThreads = 256, kGroupSimds = kGroupThreads / 32 };

// The sum of v over a group of kGroupThreads threads, the same in each, in a fixed order. One barrier:
// every sum of a kernel wants `parts` [kGroupSimds] of its own.
inline float group_sum(float v, threadgroup float* parts, uint simd, uint lane) {
  v = simd_sum(v);
  if (lane == 0) parts[simd] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < kGroupSimds; ++i) sum += parts[i];
  return sum;
}
