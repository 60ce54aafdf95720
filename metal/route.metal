// SPDX-License-Identifier: MIT
//
// Which experts each token runs (SPEC 7), the plan by which a prompt's round visits them, and the sum of
// a prompt's expert outputs. No atomics: every place in a list comes from a prefix sum, so that a plan
// is the same every time.
// Reference: csrc/backends/cpu/ops_moe.cpp.

#include <metal_stdlib>

#include "abi/kernel_args.h"
#include "picks.h"

using namespace metal;

// A lane holds the experts lane, lane + 32, ...: up to 1024 in all, and a bit of a word for each.
enum { kExpertsPerLane = 32 };

struct Ranked {
  uint expert;
  float p;
};

// Probabilities in an order that is total: a NaN is the smallest, and 0 is left for what is taken.
inline uint rank_key(float p) {
  return p == p ? as_type<uint>(p) + 2u : 1u;
}

// The likeliest of the experts in `left`, the lowest index among equals; no longer in `left` afterwards.
// Those in `bonus` count `factor` times.
inline Ranked take_best(thread const float* p, thread uint& left, uint bonus, float factor, uint n_expert,
                        uint lane) {
  uint best = 0;
  uint expert = lane;
  float own = 0.0f;
#pragma unroll
  for (uint j = 0; j < kExpertsPerLane; ++j) {
    if (32 * j < n_expert) {
      const float v = (bonus >> j & 1u) != 0 ? p[j] * factor : p[j];
      const uint key = (left >> j & 1u) != 0 ? rank_key(v) : 0u;
      expert = key > best ? 32 * j + lane : expert;
      own = key > best ? p[j] : own;
      best = max(best, key);
    }
  }
  const uint top = simd_max(best);
  Ranked ranked;
  ranked.expert = simd_min(best == top ? expert : 0xffffffffu);
  ranked.p = simd_shuffle(own, ushort(ranked.expert % 32));
  if (ranked.expert % 32 == lane) left &= ~(1u << ranked.expert / 32);
  return ranked;
}

// p = softmax(scores); the first K by p, where from rank `protect` on a favoured expert counts p * factor;
// weights p over their sum. Ties to the lower index.
//   scores f32 [T, E], E up to 1024   favoured u8 [E]   picks, wanted, order i32 [T, K], K up to 32
// The host may change `favoured` meanwhile. A token reads each byte once, into a bit; what follows knows the
// bit alone, so that its picks and their weights come from one decision. Not read where factor is 1.
// Scores of which one is NaN give weights that are NaN, and different experts all the same.
// grid: groups (tokens, 1, 1) of 32 threads
[[kernel]] void route(constant RouteArgs& args [[buffer(0)]],
                      device const float* scores [[buffer(1)]],
                      device const volatile uchar* favoured [[buffer(2)]],
                      device int* picks [[buffer(3)]],
                      device float* weights [[buffer(4)]],
                      device int* wanted [[buffer(5)]],
                      device int* order [[buffer(6)]],
                      uint token [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]]) {
  const uint n = args.n_expert;
  const uint top_k = args.top_k;
  device const float* row = scores + ulong(token) * n;

  float p[kExpertsPerLane];
  uint real = 0;
  float top = -INFINITY;
#pragma unroll
  for (uint j = 0; j < kExpertsPerLane; ++j) {
    const uint e = 32 * j + lane;
    p[j] = e < n ? row[e] : -INFINITY;
    real |= uint(e < n) << j;
    top = max(top, p[j]);
  }
  top = simd_max(top);
  float sum = 0.0f;
#pragma unroll
  for (uint j = 0; j < kExpertsPerLane; ++j) {
    if (32 * j < n) {
      p[j] = (real >> j & 1u) != 0 ? precise::exp(p[j] - top) : 0.0f;
      sum += p[j];
    }
  }
  sum = simd_sum(sum);
#pragma unroll
  for (uint j = 0; j < kExpertsPerLane; ++j) p[j] /= sum;

  const bool prior = args.factor != 1.0f;
  uint bonus = 0;
  if (prior) {
#pragma unroll
    for (uint j = 0; j < kExpertsPerLane; ++j) {
      const uint e = 32 * j + lane;
      if (e < n) bonus |= uint(favoured[e] != 0) << j;
    }
  }

  // Lane r keeps rank r.
  const uint protect = prior ? min(args.protect, top_k) : top_k;
  Ranked want = {0, 0.0f};
  uint left = real;
  uint unprotected = real;  // what is left after the protected ranks
  for (uint rank = 0; rank < top_k; ++rank) {
    const Ranked best = take_best(p, left, 0, 1.0f, n, lane);
    if (lane == rank) want = best;
    if (rank < protect) unprotected = left;
  }
  Ranked own = want;
  for (uint rank = protect; rank < top_k; ++rank) {
    const Ranked best = take_best(p, unprotected, bonus, args.factor, n, lane);
    if (lane == rank) own = best;
  }

  float total = 0.0f;
  uint place = 0;
  for (uint rank = 0; rank < top_k; ++rank) {
    total += simd_shuffle(own.p, ushort(rank));
    place += uint(simd_shuffle(own.expert, ushort(rank)) < own.expert);
  }
  if (lane < top_k) {
    const ulong first = ulong(token) * top_k;
    picks[first + lane] = int(own.expert);
    weights[first + lane] = own.p / total;
    wanted[first + lane] = int(want.expert);
    order[first + place] = int(lane);
  }
}

// The plan of a round, in three steps with the same bindings, of which each reads what it needs.
//
// counts[e] = picks of expert e, 0 where it is not in the round.
//   picks i32 [T K]   slots i32 [1 + E]   counts i32 [E]
// A simdgroup an expert: reading all picks for each costs less than sorting them.
// grid: groups (ceil(n_expert / S), 1, 1) of 32 S threads: S = 4
[[kernel]] void plan_count(constant PlanArgs& args [[buffer(0)]],
                           device const int* picks [[buffer(1)]],
                           device const int* slots [[buffer(2)]],
                           device int* counts [[buffer(3)]],
                           device int* plan [[buffer(4)]],
                           device int* first [[buffer(5)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  const uint expert = group * simdgroups + simdgroup;
  if (expert < args.n_expert) {
    const uint n = args.tokens * args.top_k;
    int count = 0;
    if (slots[1 + expert] >= 0) {
      for (uint i = lane; i < n; i += 32) count += int(picks[i] == int(expert));
    }
    count = simd_sum(count);
    if (lane == 0) counts[expert] = count;
  }
}

// first[e] = counts of the experts before e; the tiles of every expert into the plan, and how many.
//   counts i32 [E]   plan i32 [1 + 3 tiles + T K]   first i32 [E]
// grid: groups (1, 1, 1) of N threads, N a multiple of 32: 256
[[kernel]] void plan_scan(constant PlanArgs& args [[buffer(0)]],
                          device const int* picks [[buffer(1)]],
                          device const int* slots [[buffer(2)]],
                          device const int* counts [[buffer(3)]],
                          device int* plan [[buffer(4)]],
                          device int* first [[buffer(5)]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint threads [[threads_per_threadgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint simdgroup_picks[32];
  threadgroup uint simdgroup_tiles[32];
  uint n_picks = 0;
  uint n_tiles = 0;  // of the experts before `base`
  for (uint base = 0; base < args.n_expert; base += threads) {
    const uint expert = base + thread_index;
    const uint count = expert < args.n_expert ? uint(counts[expert]) : 0u;
    const uint tiles = (count + kTileTokens - 1) / kTileTokens;
    uint picks_before = simd_prefix_exclusive_sum(count);
    uint tiles_before = simd_prefix_exclusive_sum(tiles);
    if (lane == 31) {
      simdgroup_picks[simdgroup] = picks_before + count;
      simdgroup_tiles[simdgroup] = tiles_before + tiles;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    picks_before += n_picks;
    tiles_before += n_tiles;
    for (uint s = 0; s < simdgroups; ++s) {
      if (s < simdgroup) {
        picks_before += simdgroup_picks[s];
        tiles_before += simdgroup_tiles[s];
      }
      n_picks += simdgroup_picks[s];
      n_tiles += simdgroup_tiles[s];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (expert < args.n_expert) {
      first[expert] = int(picks_before);
      for (uint i = 0; i < tiles && tiles_before + i < args.tiles; ++i) {
        device int* tile = plan + 1 + 3 * (tiles_before + i);
        tile[0] = int(expert);
        tile[1] = int(picks_before + i * kTileTokens);
        tile[2] = int(min(count - i * kTileTokens, uint(kTileTokens)));
      }
    }
  }
  if (thread_index == 0) plan[0] = int(min(n_tiles, args.tiles));
}

// The plan's list: the picks of each expert from first[e] on, ascending.
//   picks i32 [T K]   counts, first i32 [E]   plan i32 [1 + 3 tiles + T K]
// grid: groups (ceil(n_expert / S), 1, 1) of 32 S threads: S = 4
[[kernel]] void plan_scatter(constant PlanArgs& args [[buffer(0)]],
                             device const int* picks [[buffer(1)]],
                             device const int* slots [[buffer(2)]],
                             device const int* counts [[buffer(3)]],
                             device int* plan [[buffer(4)]],
                             device const int* first [[buffer(5)]],
                             uint group [[threadgroup_position_in_grid]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint simdgroups [[simdgroups_per_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  const uint expert = group * simdgroups + simdgroup;
  if (expert < args.n_expert) {
    const uint n = args.tokens * args.top_k;
    const uint count = uint(counts[expert]);
    device int* list = plan + 1 + 3 * args.tiles + first[expert];
    uint n_listed = 0;
    for (uint base = 0; base < n && n_listed < count; base += 128) {
      // Four times 32 picks at once, a byte of a word each: no sum is above 32.
      uint found = 0;
      for (uint c = 0; c < 4; ++c) {
        const uint i = base + 32 * c + lane;
        if (i < n) found |= uint(picks[i] == int(expert)) << 8 * c;
      }
      const uint before = simd_prefix_exclusive_sum(found);
      const uint in_all = simd_sum(found);
      for (uint c = 0; c < 4; ++c) {
        if ((found >> 8 * c & 1u) != 0) {
          list[n_listed + (before >> 8 * c & 255u)] = int(base + 32 * c + lane);
        }
        n_listed += in_all >> 8 * c & 255u;
      }
    }
  }
}

// y[t] = (0 in a turn's first round, else y[t]) + sum over the picks in the round of weight * parts[t, k],
// experts ascending: the order of expert_down, so that rounds do not show.
//   slots i32 [1 + E]   picks, order i32 [T, K], K up to 32   weights f32 [T, K]   parts f32 [T, K, D]
//   y f32 [T, D]
// grid: groups (ceil(width / (4 N)), tokens, 1) of N threads, N a multiple of 32: 128
[[kernel]] void expert_combine(constant ExpertCombineArgs& args [[buffer(0)]],
                               device const int* slots [[buffer(1)]],
                               device const int* picks [[buffer(2)]],
                               device const int* order [[buffer(3)]],
                               device const float* weights [[buffer(4)]],
                               device const float* parts [[buffer(5)]],
                               device float* y [[buffer(6)]],
                               uint2 group [[threadgroup_position_in_grid]],
                               uint2 threads [[threads_per_threadgroup]],
                               uint thread_index [[thread_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  const uint token = group.y;
  const uint width = args.width;
  const TurnPick own = pick_by_turn(slots, picks, order, weights, token, args.top_k, lane);
  const bool is_first = slots[0] != 0;
  device float* out = y + ulong(token) * width;
  if (width % 4 == 0) {
    const uint column = 4 * (group.x * threads.x + thread_index);
    const bool inside = column < width;
    float4 sum = float4{0.0f, 0.0f, 0.0f, 0.0f};
    if (inside && !is_first) sum = *(device const float4*)(out + column);
    for (uint i = 0; i < args.top_k; ++i) {
      const int slot = simd_shuffle(own.slot, ushort(i));
      const uint pick = simd_shuffle(own.pick, ushort(i));
      const float weight = simd_shuffle(own.weight, ushort(i));
      if (slot >= 0 && inside) {
        const float4 part = *(device const float4*)(parts + ulong(pick) * width + column);
        sum.x = fma(weight, part.x, sum.x);
        sum.y = fma(weight, part.y, sum.y);
        sum.z = fma(weight, part.z, sum.z);
        sum.w = fma(weight, part.w, sum.w);
      }
    }
    if (inside) *(device float4*)(out + column) = sum;
  } else {
    for (uint c = 0; c < 4; ++c) {
      const uint column = (4 * group.x + c) * threads.x + thread_index;
      const bool inside = column < width;
      float sum = inside && !is_first ? out[column] : 0.0f;
      for (uint i = 0; i < args.top_k; ++i) {
        const int slot = simd_shuffle(own.slot, ushort(i));
        const uint pick = simd_shuffle(own.pick, ushort(i));
        const float weight = simd_shuffle(own.weight, ushort(i));
        if (slot >= 0 && inside) sum = fma(weight, parts[ulong(pick) * width + column], sum);
      }
      if (inside) out[column] = sum;
    }
  }
}
