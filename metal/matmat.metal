// SPDX-License-Identifier: MIT
//
// A matrix of weights times the activations of any number of tokens, 32 tokens at a time:
// out[t, r] = epilogue(weights[r] . x[t]).
#include <metal_stdlib>

#include "abi/kernel_args.h"
#include "common.h"
#include "matmat_tile.h"

using namespace metal;

// Tokens run fastest, so that the threadgroups that read the same rows of weights are near in time.
// grid: groups (ceil(tokens / 32), ceil(rows / 128), 1) of 128 threads
template <typename T>
[[kernel]] void matmat(constant MatrixArgs& args [[buffer(0)]],
                       device const uchar* weights [[buffer(1)]],
                       device const float* x [[buffer(2)]],
                       device float* out [[buffer(3)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint simdgroup_index [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 tile[kTileSize];
  threadgroup uint table[TileTable<T>::kSize];
  const uint first_token = group.x * kTileTokens;
  const uint first_row = group.y * kTileRows;
  const uint n_tokens = min(args.tokens - first_token, uint(kTileTokens));
  const uint n_rows = min(args.rows - first_row, uint(kTileRows));

  TileWork work;
  split_tile(work, n_rows, n_tokens, simdgroup_index);
  const uint row = first_row + min(32u * simdgroup_index + tile_place(lane), n_rows - 1u);
  work.row = weights + ulong(row) * args.row_bytes;
  work.x = x;
  work.x_stride = args.x_stride;
  work.columns = args.cols;
#pragma unroll
  for (uint i = 0; i < 8u; ++i) work.tokens[i] = first_token + min(8u * simdgroup_index + i, n_tokens - 1u);

  threadgroup const float* sums = multiply_tile<T>(work, simdgroup_index, lane, tile, table);
  const uint r = 32u * simdgroup_index + lane;
  if (r >= n_rows) return;
  for (uint t = 0; t < n_tokens; ++t) {
    const float v = sums[r * kSumStride + t];
    out[ulong(first_token + t) * args.y_stride + first_row + r] =
        args.epilogue == kScaledSilu ? silu(args.scale * v) : v;
  }
}

template [[host_name("matmat_F32")]] [[kernel]] decltype(matmat<F32>) matmat<F32>;
template [[host_name("matmat_F16")]] [[kernel]] decltype(matmat<F16>) matmat<F16>;
template [[host_name("matmat_Q4_0")]] [[kernel]] decltype(matmat<Q4_0>) matmat<Q4_0>;
template [[host_name("matmat_Q4_1")]] [[kernel]] decltype(matmat<Q4_1>) matmat<Q4_1>;
template [[host_name("matmat_Q5_0")]] [[kernel]] decltype(matmat<Q5_0>) matmat<Q5_0>;
template [[host_name("matmat_Q5_1")]] [[kernel]] decltype(matmat<Q5_1>) matmat<Q5_1>;
template [[host_name("matmat_Q8_0")]] [[kernel]] decltype(matmat<Q8_0>) matmat<Q8_0>;
template [[host_name("matmat_Q2_K")]] [[kernel]] decltype(matmat<Q2_K>) matmat<Q2_K>;
template [[host_name("matmat_Q3_K")]] [[kernel]] decltype(matmat<Q3_K>) matmat<Q3_K>;
template [[host_name("matmat_Q4_K")]] [[kernel]] decltype(matmat<Q4_K>) matmat<Q4_K>;
template [[host_name("matmat_Q5_K")]] [[kernel]] decltype(matmat<Q5_K>) matmat<Q5_K>;
template [[host_name("matmat_Q6_K")]] [[kernel]] decltype(matmat<Q6_K>) matmat<Q6_K>;
template [[host_name("matmat_IQ2_XXS")]] [[kernel]] decltype(matmat<IQ2_XXS>) matmat<IQ2_XXS>;
template [[host_name("matmat_IQ2_XS")]] [[kernel]] decltype(matmat<IQ2_XS>) matmat<IQ2_XS>;
template [[host_name("matmat_IQ3_XXS")]] [[kernel]] decltype(matmat<IQ3_XXS>) matmat<IQ3_XXS>;
template [[host_name("matmat_IQ1_S")]] [[kernel]] decltype(matmat<IQ1_S>) matmat<IQ1_S>;
template [[host_name("matmat_IQ4_NL")]] [[kernel]] decltype(matmat<IQ4_NL>) matmat<IQ4_NL>;
template [[host_name("matmat_IQ3_S")]] [[kernel]] decltype(matmat<IQ3_S>) matmat<IQ3_S>;
template [[host_name("matmat_IQ2_S")]] [[kernel]] decltype(matmat<IQ2_S>) matmat<IQ2_S>;
template [[host_name("matmat_IQ4_XS")]] [[kernel]] decltype(matmat<IQ4_XS>) matmat<IQ4_XS>;
template [[host_name("matmat_IQ1_M")]] [[kernel]] decltype(matmat<IQ1_M>) matmat<IQ1_M>;
template [[host_name("matmat_BF16")]] [[kernel]] decltype(matmat<BF16>) matmat<BF16>;
template [[host_name("matmat_TQ1_0")]] [[kernel]] decltype(matmat<TQ1_0>) matmat<TQ1_0>;
template [[host_name("matmat_TQ2_0")]] [[kernel]] decltype(matmat<TQ2_0>) matmat<TQ2_0>;
template [[host_name("matmat_MXFP4")]] [[kernel]] decltype(matmat<MXFP4>) matmat<MXFP4>;
template [[host_name("matmat_NVFP4")]] [[kernel]] decltype(matmat<NVFP4>) matmat<NVFP4>;
template [[host_name("matmat_Q2_0")]] [[kernel]] decltype(matmat<Q2_0>) matmat<Q2_0>;
