// SPDX-License-Identifier: MIT
//
// The gated delta net's recurrence in chunks (SPEC section 4): what delta_prepare and delta_chunk are
// made of.
//
// A chunk of n = 32 tokens, G its running sums of log decays, K Q V its rows, S0 the state before it:
//   R = V - exp(G) (K S0)        U = M R,   M = (I + A)^-1 diag(rate)
//   O = exp(G) (Q S0) + P U      S = exp(G_n) S0 + K' (exp(G_n - G) U)
//   A_ij = rate_i (k_i.k_j) exp(G_i - G_j) for j < i,   P_ij = (q_i.k_j) exp(G_i - G_j) for j <= i
// delta_prepare makes what does not depend on the state: M, P and the factors, as diagonal tiles, for
// every chunk and value head at once. delta_chunk goes through the chunks with its columns of the state
// in registers. 32 tokens: the products with the state cost the same for every size, those with M and P
// grow with it, the scaling by diagonal tiles shrinks.
// Differences of G are summed over the tokens between, each by itself: no digits are lost to a G that a
// strong decay made large, and a decay to 0 (log -inf) is one.
#pragma once

#include <metal_stdlib>

#include "abi/kernel_args.h"

using namespace metal;

enum {
  kChunk = kDeltaTokens,
  kRowTiles = kChunk / 8,
  // Scratch of a chunk and value head, in floats: M and P [32, 32], row-major; then 8 x 8 diagonal tiles.
  kOfP = kChunk * kChunk,
  kOfMinusDecay = 2 * kOfP,                   // -exp(G), a tile for 8 tokens
  kOfDecay = kOfMinusDecay + 64 * kRowTiles,  // exp(G)
  kOfRest = kOfDecay + 64 * kRowTiles,        // exp(G_n - G)
  kOfWhole = kOfRest + 64 * kRowTiles,        // exp(G_n), one tile
};
static_assert(kOfWhole + 64 == kDeltaFloats, "the host's size of the scratch");

// How many chunks a run has for the kernels of this file: they come in 32 tokens and three sizes of heads.
inline uint whole_chunks(constant DeltaChunkArgs& args) {
  return args.d == 64 || args.d == 128 || args.d == 256 ? args.tokens / kChunk : 0;
}

// The scratch of one value head and chunk, by one simdgroup: lane j has column j of A, P and M.
// minus_a [32, 32]: the simdgroup's own.
inline void prepare_head(threadgroup const float* kk, threadgroup const float* qk,
                         threadgroup const float* decays, threadgroup const float* rates,
                         threadgroup float* minus_a, device float* to, uint lane) {
  float sum = 0.0f, own_sum = 0.0f;  // of the log decays up to token i; up to the lane's token
  float between = 0.0f, decay = 0.0f;  // G_i - G_lane and its exponential, 0 where i < lane
  for (uint i = 0; i < kChunk; ++i) {
    const uint at = i * kChunk + lane;
    sum += decays[i];
    own_sum = i == lane ? sum : own_sum;
    between += i > lane ? decays[i] : 0.0f;
    decay = i >= lane ? precise::exp(between) : 0.0f;
    to[kOfP + at] = i >= lane ? qk[at] * decay : 0.0f;
    minus_a[at] = i > lane ? -rates[i] * kk[at] * decay : 0.0f;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float column[kChunk];
  const float rate = rates[lane];
#pragma unroll
  for (uint i = 0; i < kChunk; ++i) {
    float x = i == lane ? 1.0f : 0.0f;
#pragma unroll
    for (uint p = 0; p < i; ++p) x = fma(minus_a[i * kChunk + p], column[p], x);
    column[i] = x;
    to[i * kChunk + lane] = x * rate;
  }
  const float from_start = precise::exp(own_sum);
  const float whole = simd_shuffle(from_start, ushort(kChunk - 1));
  for (uint i = 0; i < 8; ++i) {
    const bool here = i == lane % 8;
    to[kOfMinusDecay + 8 * lane + i] = here ? -from_start : 0.0f;
    to[kOfDecay + 8 * lane + i] = here ? from_start : 0.0f;
    to[kOfRest + 8 * lane + i] = here ? decay : 0.0f;  // of the last token: the chunk's end
  }
  for (uint i = lane; i < 64; i += 32) to[kOfWhole + i] = i / 8 == i % 8 ? whole : 0.0f;
}

// One chunk's operands, from its first token on; v and out also from the simdgroup's first column on.
struct ChunkRun {
  device const float* q;
  device const float* k;
  device const float* v;
  ulong stride;
  device float* out;
  ulong out_stride;
  device const float* prepared;
};

// 8 columns of one chunk: writes O, and S becomes the state after it. All operands are tiles that lie in
// registers or are loaded as they stand; M and P are triangular.
template <uint kTiles>
inline void run_chunk(thread simdgroup_float8x8 (&s)[kTiles], thread const ChunkRun& run) {
  const simdgroup_float8x8 zero = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_float8x8 u[kRowTiles], o[kRowTiles], tile, sum;
#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) u[i] = o[i] = zero;
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) {
#pragma unroll
    for (uint i = 0; i < kRowTiles; ++i) {
      simdgroup_load(tile, run.k + 8 * i * run.stride + 8 * k, run.stride);
      simdgroup_multiply_accumulate(u[i], tile, s[k], u[i]);  // K S
      simdgroup_load(tile, run.q + 8 * i * run.stride + 8 * k, run.stride);
      simdgroup_multiply_accumulate(o[i], tile, s[k], o[i]);  // Q S
    }
  }
#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) {
    simdgroup_load(sum, run.v + 8 * i * run.stride, run.stride);
    simdgroup_load(tile, run.prepared + kOfMinusDecay + 64 * i, 8);
    simdgroup_multiply_accumulate(u[i], tile, u[i], sum);  // R
  }
#pragma unroll
  for (uint n = 0; n < kRowTiles; ++n) {  // from the last tile up, so that U takes the place of R
    const uint i = kRowTiles - 1 - n;
    sum = zero;
#pragma unroll
    for (uint p = 0; p <= i; ++p) {
      simdgroup_load(tile, run.prepared + 8 * i * kChunk + 8 * p, kChunk);
      simdgroup_multiply_accumulate(sum, tile, u[p], sum);
    }
    u[i] = sum;
  }
#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) {
    simdgroup_load(tile, run.prepared + kOfDecay + 64 * i, 8);
    simdgroup_multiply_accumulate(o[i], tile, o[i], zero);
#pragma unroll
    for (uint p = 0; p <= i; ++p) {
      simdgroup_load(tile, run.prepared + kOfP + 8 * i * kChunk + 8 * p, kChunk);
      simdgroup_multiply_accumulate(o[i], tile, u[p], o[i]);
    }
    simdgroup_store(o[i], run.out + 8 * i * run.out_stride, run.out_stride);
  }
#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) {
    simdgroup_load(tile, run.prepared + kOfRest + 64 * i, 8);
    simdgroup_multiply_accumulate(u[i], tile, u[i], zero);
  }
  simdgroup_load(sum, run.prepared + kOfWhole, 8);
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) {
    simdgroup_multiply_accumulate(s[k], sum, s[k], zero);
#pragma unroll
    for (uint i = 0; i < kRowTiles; ++i) {
      simdgroup_load(tile, run.k + 8 * i * run.stride + 8 * k, run.stride, ulong2{0, 0}, true);
      simdgroup_multiply_accumulate(s[k], tile, u[i], s[k]);
    }
  }
}

// All chunks of 8 columns of one head, from `column` on; d = 8 kTiles.
template <uint kTiles>
inline void run_chunks(constant DeltaChunkArgs& args, device const float* qkv, device const float* state_in,
                       device float* state_out, device float* out, device const float* scratch, uint head,
                       uint column) {
  enum { kHead = 8 * kTiles };
  const uint nk = args.n_key_head, nv = args.n_value_head, chunks = whole_chunks(args);
  const ulong of_state = ulong(head) * kHead * kHead + column;
  simdgroup_float8x8 s[kTiles];
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) simdgroup_load(s[k], state_in + of_state + 8 * k * kHead, kHead);
  ChunkRun run;
  run.q = qkv + head % nk * kHead;
  run.k = run.q + nk * kHead;
  run.v = qkv + (2 * nk + head) * kHead + column;
  run.stride = (2 * nk + nv) * kHead;
  run.out = out + head * kHead + column;
  run.out_stride = nv * kHead;
  run.prepared = scratch + ulong(head) * chunks * kDeltaFloats;
  for (uint chunk = 0; chunk < chunks; ++chunk) {
    run_chunk<kTiles>(s, run);
    run.q += kChunk * run.stride;
    run.k += kChunk * run.stride;
    run.v += kChunk * run.stride;
    run.out += kChunk * run.out_stride;
    run.prepared += kDeltaFloats;
  }
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) simdgroup_store(s[k], state_out + of_state + 8 * k * kHead, kHead);
}
