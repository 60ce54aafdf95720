// SPDX-License-Identifier: MIT
//
// What the matrix-matrix kernels share: a threadgroup of 4 simdgroups multiplies up to 128 rows of weights
// by up to 32 rows of activations ("tokens"), 32 columns a step -- a part of a block, see quants.h.
//
// In a step each thread decodes its row's part and loads one column of 8 tokens; both go to threadgroup
// memory as 8 x 8 fragments, and the next step's are read from memory while the fragments are multiplied.
// All of it in float. An element of the result is one sum over the columns in the order of the parts: it
// depends on its row and its token alone, not on what else is in the tile.
//
// Threads past the last row or token repeat it; what they compute is never stored.
#pragma once

#include <metal_stdlib>

#include "abi/kernel_args.h"
#include "quants.h"

using namespace metal;

enum {
  kTileRows = 128,
  kTileThreads = 128,
  // In float4: a fragment; a stripe of 4 fragments and one more, which puts 4 rows each of two neighbouring
  // stripes on different banks: so tile_place() hands them to 8 lanes, which write at a time.
  kFragment = 16,
  kStripe = 4 * kFragment + 1,
  kColumnStripes = kTileRows / 8,  // the activations lie behind so many stripes of weights
  kTileSize = (kColumnStripes + 4) * kStripe,
  // In floats, when the sums are done: no more than two lanes meet at a bank, writing or reading.
  kSumStride = kTileTokens + 2,
};
static_assert(kTileTokens == 32, "4 simdgroups load 8 tokens each");
static_assert(kTileRows * kSumStride <= 4 * kTileSize, "the sums take the place of the operands");

// Where the codebook is read: in threadgroup memory if there is room beside the tile.
template <typename T>
struct TileTable {
  enum { kIsCopied = T::kTable > 0 && 4 * T::kTable + 16 * kTileSize <= 32768 };
  enum { kSize = kIsCopied ? T::kTable : 1 };
};

template <typename T, bool kIsCopied>
struct TableReader {
  static threadgroup const uint* table(threadgroup uint* copy) { return copy; }
};
template <typename T>
struct TableReader<T, false> {
  static constant const uint* table(threadgroup uint*) { return codebook<T>(); }
};

// An element of a row that ends within a block of 32, which only these types' rows do.
template <typename T>
struct LastBlock {
  static float at(device const uchar*, uint) { return 0.0f; }
};
template <>
struct LastBlock<F32> : F32 {};
template <>
struct LastBlock<F16> : F16 {};
template <>
struct LastBlock<BF16> : BF16 {};

// One thread's share of a tile.
struct TileWork {
  device const uchar* row;  // of weights, which it decodes
  device const float* x;
  ulong x_stride;
  uint tokens[8];  // rows of x, which it loads
  uint columns;
  bool decodes, loads;
  // The simdgroup's fragments: of 32 rows from stripe first_rows on, and of 8 * n_tokens tokens.
  uint first_rows, first_tokens, n_tokens;
};

struct TileSums {
  simdgroup_float8x8 of[4][4];  // rows / 8, tokens / 8
};

// Which row (of 32) a lane decodes, and which column it loads.
inline uint tile_place(uint lane) { return (lane & 19u) | (lane & 4u) << 1 | (lane & 8u) >> 1; }

// Splits the tile among the simdgroups: by rows; by tokens too where there are few rows.
inline void split_tile(thread TileWork& work, uint n_rows, uint n_tokens, uint simdgroup_index) {
  const uint n_parts = n_rows <= 32u ? 1u : n_rows <= 64u ? 2u : 4u;
  const uint n_fragments = (n_tokens + 7u) / 8u;
  work.decodes = simdgroup_index < n_parts;
  work.loads = simdgroup_index < n_fragments;
  work.first_rows = 4u * (simdgroup_index % n_parts);
  work.first_tokens = simdgroup_index / n_parts * n_parts;
  work.n_tokens = n_fragments > work.first_tokens ? min(n_fragments - work.first_tokens, n_parts) : 0u;
}

// From memory to registers: weights w[32] and activations x[8] of a step.
template <typename T, typename Table>
inline void load_step(thread const TileWork& work, uint step, uint place, Table table, thread float* w,
                      thread float* x) {
  const uint n_parts = uint(T::kElements) / 32u;
  const uint block = step / n_parts;
  const uint part = step % n_parts;
  if (work.decodes) {
    if (32u * step + 32u <= work.columns) {
      T::decode(work.row + ulong(block) * uint(T::kBytes), part, table, w);
    } else {
#pragma unroll
      for (uint i = 0; i < 32u; ++i) {
        const uint column = 32u * step + i;
        w[i] = column < work.columns ? LastBlock<T>::at(work.row, column) : 0.0f;
      }
    }
  }
  if (work.loads) {
    const uint column = block * uint(T::kElements) + T::first(part, place / 16u) + place % 16u;
#pragma unroll
    for (uint i = 0; i < 8u; ++i) {
      x[i] = column < work.columns ? work.x[work.tokens[i] * work.x_stride + column] : 0.0f;
    }
  }
}

// From registers to the tile: 8 columns of the row to each fragment of its stripe, the column's tokens to
// the fragment of theirs.
inline void store_step(thread const TileWork& work, uint simdgroup_index, uint place, thread const float* w,
                       thread const float* x, threadgroup float4* tile) {
  if (work.decodes) {
    threadgroup float4* to = tile + (4u * simdgroup_index + place / 8u) * kStripe + 2u * (place % 8u);
#pragma unroll
    for (uint f = 0; f < 4u; ++f) {
      to[f * kFragment] = float4{w[8u * f], w[8u * f + 1u], w[8u * f + 2u], w[8u * f + 3u]};
      to[f * kFragment + 1u] = float4{w[8u * f + 4u], w[8u * f + 5u], w[8u * f + 6u], w[8u * f + 7u]};
    }
  }
  if (work.loads) {
    threadgroup float4* to = tile + (kColumnStripes + place / 8u) * kStripe + simdgroup_index * kFragment +
                             2u * (place % 8u);
    to[0] = float4{x[0], x[1], x[2], x[3]};
    to[1] = float4{x[4], x[5], x[6], x[7]};
  }
}

inline void multiply_step(thread const TileWork& work, threadgroup const float4* tile,
                          thread TileSums& sums) {
  if (work.n_tokens == 0u) return;
  threadgroup const float* rows = (threadgroup const float*)(tile + work.first_rows * kStripe);
  threadgroup const float* tokens =
      (threadgroup const float*)(tile + kColumnStripes * kStripe + work.first_tokens * kFragment);
#pragma unroll
  for (uint f = 0; f < 4u; ++f) {
    simdgroup_float8x8 a[4];
#pragma unroll
    for (uint i = 0; i < 4u; ++i) {
      simdgroup_load(a[i], rows + 4u * (i * kStripe + f * kFragment), 8);
    }
#pragma unroll
    for (uint j = 0; j < 4u; ++j) {
      if (j < work.n_tokens) {
        simdgroup_float8x8 b;
        simdgroup_load(b, tokens + 4u * (f * kStripe + j * kFragment), 8);
#pragma unroll
        for (uint i = 0; i < 4u; ++i) {
          simdgroup_multiply_accumulate(sums.of[i][j], a[i], b, sums.of[i][j]);
        }
      }
    }
  }
}

// Leaves the sums in the tile's memory: of row r and token t at r * kSumStride + t.
template <typename T>
inline threadgroup const float* multiply_tile(thread const TileWork& work, uint simdgroup_index, uint lane,
                                              threadgroup float4* tile, threadgroup uint* copy) {
  if (TileTable<T>::kIsCopied) {
    for (uint i = 32u * simdgroup_index + lane; i < uint(TileTable<T>::kSize); i += kTileThreads) {
      copy[i] = codebook<T>()[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  TileSums sums;
#pragma unroll
  for (uint i = 0; i < 4u; ++i) {
#pragma unroll
    for (uint j = 0; j < 4u; ++j) sums.of[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  const uint place = tile_place(lane);
  const uint n_steps = (work.columns + 31u) / 32u;
  float w[32];
  float x[8];
  // One more turn than steps: a step is read from memory while the one before is multiplied.
  for (uint step = 0; step <= n_steps; ++step) {
    if (step < n_steps) {
      load_step<T>(work, step, place, TableReader<T, TileTable<T>::kIsCopied>::table(copy), w, x);
    }
    if (step > 0u) multiply_step(work, tile, sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (step < n_steps) store_step(work, simdgroup_index, place, w, x, tile);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup float* to = (threadgroup float*)tile + 8u * (work.first_rows * kSumStride + work.first_tokens);
#pragma unroll
  for (uint i = 0; i < 4u; ++i) {
#pragma unroll
    for (uint j = 0; j < 4u; ++j) {
      if (j < work.n_tokens) {
        simdgroup_store(sums.of[i][j], to + 8u * (i * kSumStride + j), kSumStride);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return (threadgroup const float*)tile;
}
