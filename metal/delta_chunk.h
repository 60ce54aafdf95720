// SPDX-License-Identifier: MIT
//
// The gated delta net's recurrence in chunks (SPEC section 4): what delta_prepare and delta_chunk are made of.
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

inline uint beyond(uint all, uint from) { return all > from ? all - from : 0; }

// An 8 x 8 tile of a matrix of which `rows` x `columns` exist from the tile's corner on; the rest is 0 and
// is not read. kWhole: all exist. turned: the transpose of what lies there. edge [64]: the simdgroup's own.
template <bool kWhole>
inline void load_tile(thread simdgroup_float8x8& tile, device const float* from, ulong stride, uint rows,
                      uint columns, bool turned, threadgroup float* edge, uint lane) {
  if (kWhole) {
    simdgroup_load(tile, from, stride, ulong2{0, 0}, turned);
  } else {
    for (uint e = lane; e < 64; e += 32) {
      edge[e] = e / 8 < rows && e % 8 < columns ? from[e / 8 * stride + e % 8] : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(tile, edge, 8, ulong2{0, 0}, turned);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

template <bool kWhole>
inline void store_tile(thread simdgroup_float8x8& tile, device float* to, ulong stride, uint rows,
                       uint columns, threadgroup float* edge, uint lane) {
  if (kWhole) {
    simdgroup_store(tile, to, stride);
  } else {
    simdgroup_store(tile, edge, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = lane; e < 64; e += 32) {
      if (e / 8 < rows && e % 8 < columns) to[e / 8 * stride + e % 8] = edge[e];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// One chunk's part of a run, from its first token on; v, out: from the simdgroup's first column on.
struct ChunkRun {
  device const float* q;
  device const float* k;
  device const float* v;
  ulong stride;
  device float* out;
  ulong out_stride;
  device const float* prepared;
  uint tokens, d, columns;  // that there are, from the first ones on
};

// y = x S, x the chunk's rows of q or of k.
template <uint kTiles, uint kStrip, bool kWhole>
inline void times_state(thread simdgroup_float8x8 (&y)[kRowTiles][kStrip], device const float* x,
                        thread const ChunkRun& run, thread simdgroup_float8x8 (&s)[kTiles][kStrip],
                        threadgroup float* edge, uint lane) {
  simdgroup_float8x8 tile;
#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) y[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) {
#pragma unroll
    for (uint i = 0; i < kRowTiles; ++i) {
      load_tile<kWhole>(tile, x + 8 * i * run.stride + 8 * k, run.stride, beyond(run.tokens, 8 * i),
                        beyond(run.d, 8 * k), false, edge, lane);
#pragma unroll
      for (uint j = 0; j < kStrip; ++j) simdgroup_multiply_accumulate(y[i][j], tile, s[k][j], y[i][j]);
    }
  }
}

// A simdgroup's columns of one chunk: writes O, S becomes the state after it. All operands are tiles that
// lie in registers or are loaded as they stand; M and P are triangular.
template <uint kTiles, uint kStrip, bool kWhole>
inline void run_chunk(thread simdgroup_float8x8 (&s)[kTiles][kStrip], thread const ChunkRun& run,
                      threadgroup float* edge, uint lane) {
  simdgroup_float8x8 y[kRowTiles][kStrip], u[kRowTiles][kStrip], tile, sum[kStrip];
  times_state<kTiles, kStrip, kWhole>(y, run.k, run, s, edge, lane);
#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) {
      load_tile<kWhole>(u[i][j], run.v + 8 * i * run.stride + 8 * j, run.stride, beyond(run.tokens, 8 * i),
                        beyond(run.columns, 8 * j), false, edge, lane);
    }
    simdgroup_load(tile, run.prepared + kOfMinusDecay + 64 * i, 8);
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) simdgroup_multiply_accumulate(u[i][j], tile, y[i][j], u[i][j]);
  }
#pragma unroll
  for (uint n = 0; n < kRowTiles; ++n) {  // from the last row of tiles up, so that U takes the place of R
    const uint i = kRowTiles - 1 - n;
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) sum[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
    for (uint p = 0; p <= i; ++p) {
      simdgroup_load(tile, run.prepared + 8 * i * kChunk + 8 * p, kChunk);
#pragma unroll
      for (uint j = 0; j < kStrip; ++j) simdgroup_multiply_accumulate(sum[j], tile, u[p][j], sum[j]);
    }
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) u[i][j] = sum[j];
  }

  times_state<kTiles, kStrip, kWhole>(y, run.q, run, s, edge, lane);
#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) {
    simdgroup_load(tile, run.prepared + kOfDecay + 64 * i, 8);
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) {
      sum[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      simdgroup_multiply_accumulate(sum[j], tile, y[i][j], sum[j]);
    }
#pragma unroll
    for (uint p = 0; p <= i; ++p) {
      simdgroup_load(tile, run.prepared + kOfP + 8 * i * kChunk + 8 * p, kChunk);
#pragma unroll
      for (uint j = 0; j < kStrip; ++j) simdgroup_multiply_accumulate(sum[j], tile, u[p][j], sum[j]);
    }
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) {
      store_tile<kWhole>(sum[j], run.out + 8 * i * run.out_stride + 8 * j, run.out_stride,
                         beyond(run.tokens, 8 * i), beyond(run.columns, 8 * j), edge, lane);
    }
  }

#pragma unroll
  for (uint i = 0; i < kRowTiles; ++i) {
    simdgroup_load(tile, run.prepared + kOfRest + 64 * i, 8);
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) {
      sum[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      simdgroup_multiply_accumulate(sum[j], tile, u[i][j], sum[j]);
      u[i][j] = sum[j];
    }
  }
  simdgroup_float8x8 whole;
  simdgroup_load(whole, run.prepared + kOfWhole, 8);
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) {
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) {
      sum[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      simdgroup_multiply_accumulate(sum[j], whole, s[k][j], sum[j]);
    }
#pragma unroll
    for (uint i = 0; i < kRowTiles; ++i) {
      load_tile<kWhole>(tile, run.k + 8 * i * run.stride + 8 * k, run.stride, beyond(run.tokens, 8 * i),
                        beyond(run.d, 8 * k), true, edge, lane);
#pragma unroll
      for (uint j = 0; j < kStrip; ++j) simdgroup_multiply_accumulate(sum[j], tile, u[i][j], sum[j]);
    }
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) s[k][j] = sum[j];
  }
}

// All chunks of a simdgroup's kStrip tiles of columns of one head, d <= 8 kTiles.
template <uint kTiles, uint kStrip>
inline void run_columns(constant DeltaChunkArgs& args, device const float* qkv, device const float* state_in,
                        device float* state_out, device float* out, device const float* scratch, uint head,
                        uint column, threadgroup float* edge, uint lane) {
  const uint d = args.d, nk = args.n_key_head, nv = args.n_value_head;
  const uint chunks = (args.tokens + kChunk - 1) / kChunk;
  const ulong of_state = ulong(head) * d * d + column;
  simdgroup_float8x8 s[kTiles][kStrip];
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) {
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) {
      load_tile<false>(s[k][j], state_in + of_state + ulong(8 * k) * d + 8 * j, d, beyond(d, 8 * k),
                       beyond(d, column + 8 * j), false, edge, lane);
    }
  }
  ChunkRun run;
  run.q = qkv + ulong(head % nk) * d;
  run.k = run.q + ulong(nk) * d;
  run.v = qkv + (2 * ulong(nk) + head) * d + column;
  run.stride = ulong(2 * nk + nv) * d;
  run.out = out + ulong(head) * d + column;
  run.out_stride = ulong(nv) * d;
  run.prepared = scratch + ulong(head) * chunks * kDeltaFloats;
  run.tokens = args.tokens;
  run.d = d;
  run.columns = beyond(d, column);
  for (uint chunk = 0; chunk < chunks; ++chunk) {
    if (d == 8 * kTiles && run.tokens >= kChunk) {
      run_chunk<kTiles, kStrip, true>(s, run, edge, lane);
    } else {
      run_chunk<kTiles, kStrip, false>(s, run, edge, lane);
    }
    run.q += kChunk * run.stride;
    run.k += kChunk * run.stride;
    run.v += kChunk * run.stride;
    run.out += kChunk * run.out_stride;
    run.prepared += kDeltaFloats;
    run.tokens = beyond(run.tokens, kChunk);
  }
#pragma unroll
  for (uint k = 0; k < kTiles; ++k) {
#pragma unroll
    for (uint j = 0; j < kStrip; ++j) {
      store_tile<false>(s[k][j], state_out + of_state + ulong(8 * k) * d + 8 * j, d, beyond(d, 8 * k),
                        beyond(d, column + 8 * j), edge, lane);
    }
  }
}
