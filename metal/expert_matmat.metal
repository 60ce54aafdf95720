// SPDX-License-Identifier: MIT
//
// The routed experts of a prompt: an expert's matrices times the tokens that picked it, up to 32 picks a
// tile, as the plan of the round lists them (kernel_args.h).
#include <metal_stdlib>

#include "abi/kernel_args.h"
#include "common.h"
#include "matmat_tile.h"

using namespace metal;

// A tile of the plan.
struct ExpertTile {
  uint expert;
  device const int* picks;
  uint count;
};

inline ExpertTile tile_of_plan(device const int* plan, uint n_tiles, uint i) {
  device const int* entry = plan + 1u + 3u * i;
  ExpertTile tile;
  tile.expert = uint(entry[0]);
  tile.picks = plan + 1u + 3u * n_tiles + uint(entry[1]);
  tile.count = uint(entry[2]);
  return tile;
}

// h[pick] = silu(gate x) * (up x) of the pick's expert and token: 64 rows of both matrices in one tile.
// Where one kernel cannot do both, gate and up being of different types, kGateOnly leaves gate x in h and
// kUpToGate makes it silu(h) * (up x): 128 rows of the one matrix.
// The picks stand in the plan; their own buffer is not read.
// grid: groups (ceil(expert_width / (part == kGateAndUp ? 64 : 128)), tiles, 1) of 128 threads
template <typename T>
[[kernel]] void expert_gate_up_mm(constant ExpertGateUpArgs& args [[buffer(0)]],
                                  device const uchar* arena [[buffer(1)]],
                                  device const int* slots [[buffer(2)]],
                                  device const int* picks [[buffer(3)]],
                                  device const float* x [[buffer(4)]],
                                  device float* h [[buffer(5)]],
                                  device const int* plan [[buffer(6)]],
                                  uint2 group [[threadgroup_position_in_grid]],
                                  uint simdgroup_index [[simdgroup_index_in_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 tile[kTileSize];
  threadgroup uint table[TileTable<T>::kSize];
  if (group.y >= uint(plan[0])) return;
  const ExpertTile at = tile_of_plan(plan, args.tiles, group.y);
  const bool both = args.part == kGateAndUp;
  const uint n_span = both ? kTileRows / 2u : uint(kTileRows);
  const uint first_row = group.x * n_span;
  const uint n_rows = min(args.expert_width - first_row, n_span);

  TileWork work;
  split_tile(work, both ? uint(kTileRows) : n_rows, at.count, simdgroup_index);
  const uint place = 32u * simdgroup_index + tile_place(lane);
  const bool is_up = both ? place >= n_span : args.part == kUpToGate;
  const uint row = first_row + min(place % n_span, n_rows - 1u);
  work.row = arena + ulong(slots[1u + at.expert]) * args.slot_bytes +
             (is_up ? args.up_offset : args.gate_offset) + ulong(row) * args.row_bytes;
  work.x = x;
  work.x_stride = args.width;
  work.columns = args.width;
#pragma unroll
  for (uint i = 0; i < 8u; ++i) {
    work.tokens[i] = uint(at.picks[min(8u * simdgroup_index + i, at.count - 1u)]) / args.top_k;
  }

  threadgroup const float* sums = multiply_tile<T>(work, simdgroup_index, lane, tile, table);
  const uint thread_index = 32u * simdgroup_index + lane;
  const uint r = thread_index % n_span;
  if (r >= n_rows) return;
  for (uint t = thread_index / n_span; t < at.count; t += kTileThreads / n_span) {
    device float* to = h + ulong(at.picks[t]) * args.expert_width + first_row + r;
    const float v = sums[r * kSumStride + t];
    if (both) {
      *to = silu(v) * sums[(r + n_span) * kSumStride + t];
    } else {
      *to = is_up ? silu(*to) * v : v;
    }
  }
}

// parts[pick] = down h[pick].
// grid: groups (ceil(width / 128), tiles, 1) of 128 threads
template <typename T>
[[kernel]] void expert_down_mm(constant ExpertDownArgs& args [[buffer(0)]],
                               device const uchar* arena [[buffer(1)]],
                               device const int* slots [[buffer(2)]],
                               device const float* h [[buffer(3)]],
                               device float* parts [[buffer(4)]],
                               device const int* plan [[buffer(5)]],
                               uint2 group [[threadgroup_position_in_grid]],
                               uint simdgroup_index [[simdgroup_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 tile[kTileSize];
  threadgroup uint table[TileTable<T>::kSize];
  if (group.y >= uint(plan[0])) return;
  const ExpertTile at = tile_of_plan(plan, args.tiles, group.y);
  const uint first_row = group.x * kTileRows;
  const uint n_rows = min(args.width - first_row, uint(kTileRows));

  TileWork work;
  split_tile(work, n_rows, at.count, simdgroup_index);
  const uint row = first_row + min(32u * simdgroup_index + tile_place(lane), n_rows - 1u);
  work.row = arena + ulong(slots[1u + at.expert]) * args.slot_bytes + args.down_offset +
             ulong(row) * args.row_bytes;
  work.x = h;
  work.x_stride = args.expert_width;
  work.columns = args.expert_width;
#pragma unroll
  for (uint i = 0; i < 8u; ++i) work.tokens[i] = uint(at.picks[min(8u * simdgroup_index + i, at.count - 1u)]);

  threadgroup const float* sums = multiply_tile<T>(work, simdgroup_index, lane, tile, table);
  const uint r = 32u * simdgroup_index + lane;
  if (r >= n_rows) return;
  for (uint t = 0; t < at.count; ++t) {
    parts[ulong(at.picks[t]) * args.width + first_row + r] = sums[r * kSumStride + t];
  }
}

template [[host_name("expert_gate_up_mm_F32")]] [[kernel]] decltype(expert_gate_up_mm<F32>) expert_gate_up_mm<F32>;
template [[host_name("expert_gate_up_mm_F16")]] [[kernel]] decltype(expert_gate_up_mm<F16>) expert_gate_up_mm<F16>;
template [[host_name("expert_gate_up_mm_Q4_0")]] [[kernel]] decltype(expert_gate_up_mm<Q4_0>) expert_gate_up_mm<Q4_0>;
template [[host_name("expert_gate_up_mm_Q4_1")]] [[kernel]] decltype(expert_gate_up_mm<Q4_1>) expert_gate_up_mm<Q4_1>;
template [[host_name("expert_gate_up_mm_Q5_0")]] [[kernel]] decltype(expert_gate_up_mm<Q5_0>) expert_gate_up_mm<Q5_0>;
template [[host_name("expert_gate_up_mm_Q5_1")]] [[kernel]] decltype(expert_gate_up_mm<Q5_1>) expert_gate_up_mm<Q5_1>;
template [[host_name("expert_gate_up_mm_Q8_0")]] [[kernel]] decltype(expert_gate_up_mm<Q8_0>) expert_gate_up_mm<Q8_0>;
template [[host_name("expert_gate_up_mm_Q2_K")]] [[kernel]] decltype(expert_gate_up_mm<Q2_K>) expert_gate_up_mm<Q2_K>;
template [[host_name("expert_gate_up_mm_Q3_K")]] [[kernel]] decltype(expert_gate_up_mm<Q3_K>) expert_gate_up_mm<Q3_K>;
template [[host_name("expert_gate_up_mm_Q4_K")]] [[kernel]] decltype(expert_gate_up_mm<Q4_K>) expert_gate_up_mm<Q4_K>;
template [[host_name("expert_gate_up_mm_Q5_K")]] [[kernel]] decltype(expert_gate_up_mm<Q5_K>) expert_gate_up_mm<Q5_K>;
template [[host_name("expert_gate_up_mm_Q6_K")]] [[kernel]] decltype(expert_gate_up_mm<Q6_K>) expert_gate_up_mm<Q6_K>;
template [[host_name("expert_gate_up_mm_IQ2_XXS")]] [[kernel]] decltype(expert_gate_up_mm<IQ2_XXS>) expert_gate_up_mm<IQ2_XXS>;
template [[host_name("expert_gate_up_mm_IQ2_XS")]] [[kernel]] decltype(expert_gate_up_mm<IQ2_XS>) expert_gate_up_mm<IQ2_XS>;
template [[host_name("expert_gate_up_mm_IQ3_XXS")]] [[kernel]] decltype(expert_gate_up_mm<IQ3_XXS>) expert_gate_up_mm<IQ3_XXS>;
template [[host_name("expert_gate_up_mm_IQ1_S")]] [[kernel]] decltype(expert_gate_up_mm<IQ1_S>) expert_gate_up_mm<IQ1_S>;
template [[host_name("expert_gate_up_mm_IQ4_NL")]] [[kernel]] decltype(expert_gate_up_mm<IQ4_NL>) expert_gate_up_mm<IQ4_NL>;
template [[host_name("expert_gate_up_mm_IQ3_S")]] [[kernel]] decltype(expert_gate_up_mm<IQ3_S>) expert_gate_up_mm<IQ3_S>;
template [[host_name("expert_gate_up_mm_IQ2_S")]] [[kernel]] decltype(expert_gate_up_mm<IQ2_S>) expert_gate_up_mm<IQ2_S>;
template [[host_name("expert_gate_up_mm_IQ4_XS")]] [[kernel]] decltype(expert_gate_up_mm<IQ4_XS>) expert_gate_up_mm<IQ4_XS>;
template [[host_name("expert_gate_up_mm_IQ1_M")]] [[kernel]] decltype(expert_gate_up_mm<IQ1_M>) expert_gate_up_mm<IQ1_M>;
template [[host_name("expert_gate_up_mm_BF16")]] [[kernel]] decltype(expert_gate_up_mm<BF16>) expert_gate_up_mm<BF16>;
template [[host_name("expert_gate_up_mm_TQ1_0")]] [[kernel]] decltype(expert_gate_up_mm<TQ1_0>) expert_gate_up_mm<TQ1_0>;
template [[host_name("expert_gate_up_mm_TQ2_0")]] [[kernel]] decltype(expert_gate_up_mm<TQ2_0>) expert_gate_up_mm<TQ2_0>;
template [[host_name("expert_gate_up_mm_MXFP4")]] [[kernel]] decltype(expert_gate_up_mm<MXFP4>) expert_gate_up_mm<MXFP4>;
template [[host_name("expert_gate_up_mm_NVFP4")]] [[kernel]] decltype(expert_gate_up_mm<NVFP4>) expert_gate_up_mm<NVFP4>;
template [[host_name("expert_gate_up_mm_Q2_0")]] [[kernel]] decltype(expert_gate_up_mm<Q2_0>) expert_gate_up_mm<Q2_0>;

template [[host_name("expert_down_mm_F32")]] [[kernel]] decltype(expert_down_mm<F32>) expert_down_mm<F32>;
template [[host_name("expert_down_mm_F16")]] [[kernel]] decltype(expert_down_mm<F16>) expert_down_mm<F16>;
template [[host_name("expert_down_mm_Q4_0")]] [[kernel]] decltype(expert_down_mm<Q4_0>) expert_down_mm<Q4_0>;
template [[host_name("expert_down_mm_Q4_1")]] [[kernel]] decltype(expert_down_mm<Q4_1>) expert_down_mm<Q4_1>;
template [[host_name("expert_down_mm_Q5_0")]] [[kernel]] decltype(expert_down_mm<Q5_0>) expert_down_mm<Q5_0>;
template [[host_name("expert_down_mm_Q5_1")]] [[kernel]] decltype(expert_down_mm<Q5_1>) expert_down_mm<Q5_1>;
template [[host_name("expert_down_mm_Q8_0")]] [[kernel]] decltype(expert_down_mm<Q8_0>) expert_down_mm<Q8_0>;
template [[host_name("expert_down_mm_Q2_K")]] [[kernel]] decltype(expert_down_mm<Q2_K>) expert_down_mm<Q2_K>;
template [[host_name("expert_down_mm_Q3_K")]] [[kernel]] decltype(expert_down_mm<Q3_K>) expert_down_mm<Q3_K>;
template [[host_name("expert_down_mm_Q4_K")]] [[kernel]] decltype(expert_down_mm<Q4_K>) expert_down_mm<Q4_K>;
template [[host_name("expert_down_mm_Q5_K")]] [[kernel]] decltype(expert_down_mm<Q5_K>) expert_down_mm<Q5_K>;
template [[host_name("expert_down_mm_Q6_K")]] [[kernel]] decltype(expert_down_mm<Q6_K>) expert_down_mm<Q6_K>;
template [[host_name("expert_down_mm_IQ2_XXS")]] [[kernel]] decltype(expert_down_mm<IQ2_XXS>) expert_down_mm<IQ2_XXS>;
template [[host_name("expert_down_mm_IQ2_XS")]] [[kernel]] decltype(expert_down_mm<IQ2_XS>) expert_down_mm<IQ2_XS>;
template [[host_name("expert_down_mm_IQ3_XXS")]] [[kernel]] decltype(expert_down_mm<IQ3_XXS>) expert_down_mm<IQ3_XXS>;
template [[host_name("expert_down_mm_IQ1_S")]] [[kernel]] decltype(expert_down_mm<IQ1_S>) expert_down_mm<IQ1_S>;
template [[host_name("expert_down_mm_IQ4_NL")]] [[kernel]] decltype(expert_down_mm<IQ4_NL>) expert_down_mm<IQ4_NL>;
template [[host_name("expert_down_mm_IQ3_S")]] [[kernel]] decltype(expert_down_mm<IQ3_S>) expert_down_mm<IQ3_S>;
template [[host_name("expert_down_mm_IQ2_S")]] [[kernel]] decltype(expert_down_mm<IQ2_S>) expert_down_mm<IQ2_S>;
template [[host_name("expert_down_mm_IQ4_XS")]] [[kernel]] decltype(expert_down_mm<IQ4_XS>) expert_down_mm<IQ4_XS>;
template [[host_name("expert_down_mm_IQ1_M")]] [[kernel]] decltype(expert_down_mm<IQ1_M>) expert_down_mm<IQ1_M>;
template [[host_name("expert_down_mm_BF16")]] [[kernel]] decltype(expert_down_mm<BF16>) expert_down_mm<BF16>;
template [[host_name("expert_down_mm_TQ1_0")]] [[kernel]] decltype(expert_down_mm<TQ1_0>) expert_down_mm<TQ1_0>;
template [[host_name("expert_down_mm_TQ2_0")]] [[kernel]] decltype(expert_down_mm<TQ2_0>) expert_down_mm<TQ2_0>;
template [[host_name("expert_down_mm_MXFP4")]] [[kernel]] decltype(expert_down_mm<MXFP4>) expert_down_mm<MXFP4>;
template [[host_name("expert_down_mm_NVFP4")]] [[kernel]] decltype(expert_down_mm<NVFP4>) expert_down_mm<NVFP4>;
template [[host_name("expert_down_mm_Q2_0")]] [[kernel]] decltype(expert_down_mm<Q2_0>) expert_down_mm<Q2_0>;
