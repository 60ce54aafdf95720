// SPDX-License-Identifier: MIT
//
// Activations in threadgroup memory, for products with blocks of weights.
//
// x of a part fills a line of memory, so 32 lanes load from as many lines, which some GPUs do one after the
// other: large products take an H200 1.2 to 1.8 times as long as when a threadgroup copies x first. Float4 j of
// part p goes to j * stride + p, so that neighbouring lanes read neighbours. An odd stride lets the writers,
// eight to a part, use all banks.
#pragma once

#include <metal_stdlib>

using namespace metal;

enum { kStagedFours = 1024 };

// Parts that there is room for, of so many tokens each, and the stride.
inline uint staged_parts(uint tokens) { return (uint(kStagedFours) / (8 * tokens) - 1) | 1u; }

// x of a part, eight float4.
struct StagedX {
  threadgroup const float4* fours;
  uint stride, token_stride;
};
inline float4 x_four(thread const StagedX& x, uint t, uint j) {
  return x.fours[t * x.token_stride + j * x.stride];
}

// Parts [begin, begin + n) of x, by all threads of a threadgroup.
template <typename T>
inline void stage_parts(device const float* x, uint begin, uint n, uint stride, threadgroup float4* staged,
                        uint thread_index, uint threads) {
  const uint parts_per_block = uint(T::kElements) / 32;
  for (uint k = thread_index; k < 8 * n; k += threads) {
    const uint p = begin + k / 8;
    const uint j = k % 8;
    const uint at = p / parts_per_block * uint(T::kElements) + T::first(p % parts_per_block, j / 4);
    staged[j * stride + k / 8] = ((device const float4*)(x + at))[j % 4];
  }
}
