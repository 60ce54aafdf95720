// SPDX-License-Identifier: MIT
//
// The routed experts of a window of one to four tokens (SPEC 7), straight from the arena. A record is one
// expert's gate, up and down matrices as the file holds them.
//
// kLanes lanes share a row, and a lane group owns R rows. An expert that several tokens of the window picked
// is read and decoded once for all of them. A row's sum has one order, whatever the rows of a lane group, the
// window, the token's place in it or the round: only kLanes changes its bits.
// Kernels named _tg copy the codebook to threadgroup memory first.
// Reference: csrc/backends/cpu/ops_moe.cpp.

#include <metal_stdlib>

#include "abi/kernel_args.h"

using namespace metal;

#include "common.h"
#include "picks.h"
#include "quants.h"
#include "staged.h"

constant uint kLanes [[function_constant(kLanesConstant)]];
constant uint kSplit [[function_constant(kSplitConstant)]];
constant uint kTokens [[function_constant(kTokensConstant)]];
constant uint kStage [[function_constant(kStageConstant)]];
constant bool kIsStaged = is_function_constant_defined(kStage) ? kStage != 0 : false;
constant uint kShare = is_function_constant_defined(kSplit) ? kSplit : 1u;
// Tokens that registers are set aside for.
enum { kWindowMax = 4 };
constant uint kWindow = is_function_constant_defined(kTokens) ? kTokens : uint(kWindowMax);

// x of a part, eight float4, from where it lies.
struct DeviceX {
  device const float* run0;
  device const float* run1;
  thread const ulong* at;  // of each token
};
inline float4 x_four(thread const DeviceX& x, uint t, uint j) {
  return ((device const float4*)((j < 4 ? x.run0 : x.run1) + x.at[t]))[j % 4];
}

// 16 products: four sums, for their latency and their rounding.
template <typename X>
inline float run_dot(thread const float* q, thread const X& x, uint t, uint run) {
  float4 sum = x_four(x, t, 4 * run);
  sum = float4{q[0] * sum.x, q[1] * sum.y, q[2] * sum.z, q[3] * sum.w};
  for (uint i = 1; i < 4; ++i) {
    const float4 v = x_four(x, t, 4 * run + i);
    sum.x = fma(q[4 * i], v.x, sum.x);
    sum.y = fma(q[4 * i + 1], v.y, sum.y);
    sum.z = fma(q[4 * i + 2], v.z, sum.z);
    sum.w = fma(q[4 * i + 3], v.w, sum.w);
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}

// Weights by themselves: where no part fits, which only F32, F16 and BF16 know.
template <typename T>
struct Single {
  static float weight(device const uchar*, uint) { return 0.0f; }
};
template <>
struct Single<F32> {
  static float weight(device const uchar* row, uint i) { return element<F32>(row, i); }
};
template <>
struct Single<F16> {
  static float weight(device const uchar* row, uint i) { return element<F16>(row, i); }
};
template <>
struct Single<BF16> {
  static float weight(device const uchar* row, uint i) { return element<BF16>(row, i); }
};

inline float lanes_sum(float v) {
  for (uint offset = kLanes / 2; offset > 0; offset /= 2) v += simd_shuffle_xor(v, ushort(offset));
  return v;
}

// A window of one token has that token, known when the kernel is specialised.
inline bool has_token(uint tokens, uint t) {
  return kWindow == 1 ? t == 0 : t < kWindow && (tokens >> t & 1u) != 0;
}

// sum[t R + r] += a part of row r (at byte offset[r] of `block`) . x[t], for the tokens whose bit is set
template <typename T, uint R, typename X, typename Table>
inline void add_part(device const uchar* block, thread const ulong* offset, uint part, thread const X& x,
                     uint tokens, Table table, thread float* sum) {
#pragma unroll
  for (uint r = 0; r < R; ++r) {
    float q[32];
    float scale[2];
    T::unpack(block + offset[r], part, table, q, scale);
    for (uint t = 0; t < kWindowMax; ++t) {
      if (has_token(tokens, t)) {
        const float dot1 = scale[1] * run_dot(q + 16, x, t, 1);
        sum[t * R + r] += fma(scale[0], run_dot(q, x, t, 0), dot1);
      }
    }
  }
}

// Whole parts of a row, while the activations' rows begin where 16 bytes can be loaded.
inline uint whole_parts(uint width) { return width % 4 == 0 ? width / 32 : 0; }
// A window of one token whose x there is room for.
inline bool is_staged(uint width) {
  return kIsStaged && kWindow == 1 && whole_parts(width) <= staged_parts(1);
}

// sum[t R + r] = row r (at byte offset[r] of `record`) . x[t] (at element at[t]), for the tokens whose bit is
// set; in every lane of the lane group. staged: x of the one token where is_staged().
template <typename T, uint R, typename Table>
inline void row_dots(device const uchar* record, thread const ulong* offset, uint width,
                     device const float* x, thread const ulong* at, threadgroup const float4* staged,
                     uint tokens, Table table, uint lane, thread float* sum) {
  const uint parts_per_block = uint(T::kElements) / 32;
  const uint first_lane = lane % kLanes;
  const uint parts = whole_parts(width);
  for (uint i = 0; i < kWindowMax * R; ++i) sum[i] = 0.0f;
  if (staged != nullptr && is_staged(width)) {
    for (uint i = first_lane; i < parts; i += kLanes) {
      const uint block = i / parts_per_block;
      StagedX of;
      of.fours = staged + i;
      of.stride = staged_parts(1);
      of.token_stride = 0;
      add_part<T, R>(record + ulong(block) * uint(T::kBytes), offset, i % parts_per_block, of, tokens, table,
                     sum);
    }
  } else {
    for (uint i = first_lane; i < parts; i += kLanes) {
      const uint block = i / parts_per_block;
      const uint part = i % parts_per_block;
      DeviceX of;
      of.run0 = x + block * uint(T::kElements) + T::first(part, 0);
      of.run1 = x + block * uint(T::kElements) + T::first(part, 1);
      of.at = at;
      add_part<T, R>(record + ulong(block) * uint(T::kBytes), offset, part, of, tokens, table, sum);
    }
  }
  for (uint i = 32 * parts + first_lane; i < width; i += kLanes) {
    for (uint r = 0; r < R; ++r) {
      const float w = Single<T>::weight(record + offset[r], i);
      for (uint t = 0; t < kWindowMax; ++t) {
        if (has_token(tokens, t)) sum[t * R + r] = fma(w, x[at[t] + i], sum[t * R + r]);
      }
    }
  }
  for (uint t = 0; t < kWindowMax; ++t) {
    if (t < kWindow) {
      for (uint r = 0; r < R; ++r) sum[t * R + r] = lanes_sum(sum[t * R + r]);
    }
  }
}

// An expert and the picks of the window that chose it.
struct Shared {
  int slot;     // -1: nothing to do
  uint tokens;  // a bit each
  uint pick[kWindowMax];
  float weight[kWindowMax];
};

// Who else picked the expert of a pick. Nothing to do where an earlier token did, whose threadgroups do it
// for all, or where the expert is not in the round.
inline Shared sharing_picks(constant ExpertGateUpArgs& args, device const int* slots, device const int* picks,
                            uint pick, uint lane) {
  const uint token = pick / args.top_k;
  const int expert = picks[pick];
  Shared shared;
  shared.slot = slots[1 + expert];
  shared.tokens = 0;
  for (uint t = 0; t < kWindowMax; ++t) {
    shared.pick[t] = pick;
    if (t < kWindow && t < args.tokens && kWindow > 1) {
      const bool is_it = lane < args.top_k && picks[t * args.top_k + lane] == expert;
      const uint rank = simd_min(is_it ? lane : 32u);
      if (rank < 32) shared.tokens |= 1u << t;
      shared.pick[t] = t * args.top_k + rank;
    }
  }
  if (kWindow > 1 && (shared.tokens & ((1u << token) - 1)) != 0) shared.slot = -1;
  return shared;
}

// The first row of a lane group, counted within its threadgroup; set: the simdgroup, or those that share
// rows.
inline uint first_row(uint set, uint lane, uint rows) {
  return (set * (32 / kLanes) + lane / kLanes) * rows;
}

template <typename T, uint R, typename Table>
inline void gate_up(constant ExpertGateUpArgs& args, thread const Shared& shared, device const uchar* arena,
                    device const float* x, device float* h, Table table, threadgroup float4* staged, uint row,
                    uint thread_index, uint threads) {
  const uint lane = thread_index % 32;
  device const uchar* record = arena + ulong(shared.slot) * args.slot_bytes;
  ulong at[kWindowMax];
  for (uint t = 0; t < kWindowMax; ++t) at[t] = ulong(shared.pick[t] / args.top_k) * args.width;
  if (is_staged(args.width)) {
    stage_parts<T>(x + at[0], 0, whole_parts(args.width), staged_parts(1), staged, thread_index, threads);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  // Rows past the last are computed as the last, and not stored.
  ulong offset[2 * R];
  for (uint r = 0; r < R; ++r) {
    const ulong in_matrix = ulong(min(row + r, args.expert_width - 1)) * args.row_bytes;
    offset[r] = in_matrix + (args.part == kUpToGate ? args.up_offset : args.gate_offset);
    offset[R + r] = in_matrix + args.up_offset;
  }
  float gate[kWindowMax * R];
  float up[kWindowMax * R];
  if (args.part == kGateAndUp) {
    float both[kWindowMax * 2 * R];
    row_dots<T, 2 * R>(record, offset, args.width, x, at, staged, shared.tokens, table, lane, both);
    for (uint i = 0; i < kWindowMax * R; ++i) {
      gate[i] = both[i / R * 2 * R + i % R];
      up[i] = both[i / R * 2 * R + R + i % R];
    }
  } else {
    row_dots<T, R>(record, offset, args.width, x, at, staged, shared.tokens, table, lane, up);
  }
  if (lane % kLanes == 0) {
    for (uint t = 0; t < kWindowMax; ++t) {
      for (uint r = 0; r < R; ++r) {
        if (has_token(shared.tokens, t) && row + r < args.expert_width) {
          device float* to = h + ulong(shared.pick[t]) * args.expert_width + row + r;
          const float v = up[t * R + r];
          if (args.part == kGateOnly) {
            *to = v;
          } else {
            *to = silu(args.part == kUpToGate ? *to : gate[t * R + r]) * v;
          }
        }
      }
    }
  }
}

template <typename T>
inline void copy_codebook(threadgroup uint* table, uint simdgroup, uint simdgroups, uint lane) {
  for (uint i = 32 * simdgroup + lane; i < uint(T::kTable); i += 32 * simdgroups) {
    table[i] = codebook<T>()[i];
  }
}

// h[t, k] = silu(gate_e x[t]) * (up_e x[t]) of the picks in the round; args.part: both, or gate, then up.
//   records: gate and up [F, D] of type T   slots i32 [1 + E]   picks i32 [T, K], K up to 32   x f32 [T, D]
//   h f32 [T, K, F]
// grid: groups (ceil(expert_width / (S * 32 / kLanes * R)), tokens * top_k, 1) of 32 S threads
template <typename T, uint R>
[[kernel]] void expert_gate_up(constant ExpertGateUpArgs& args [[buffer(0)]],
                               device const uchar* arena [[buffer(1)]],
                               device const int* slots [[buffer(2)]],
                               device const int* picks [[buffer(3)]],
                               device const float* x [[buffer(4)]],
                               device float* h [[buffer(5)]],
                               uint2 group [[threadgroup_position_in_grid]],
                               uint simdgroup [[simdgroup_index_in_threadgroup]],
                               uint simdgroups [[simdgroups_per_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 staged[kStagedFours];
  const Shared shared = sharing_picks(args, slots, picks, group.y, lane);
  if (shared.slot >= 0) {
    const uint row = group.x * first_row(simdgroups, 0, R) + first_row(simdgroup, lane, R);
    gate_up<T, R>(args, shared, arena, x, h, codebook<T>(), staged, row, 32 * simdgroup + lane,
                  32 * simdgroups);
  }
}

template <typename T, uint R>
[[kernel]] void expert_gate_up_tg(constant ExpertGateUpArgs& args [[buffer(0)]],
                                  device const uchar* arena [[buffer(1)]],
                                  device const int* slots [[buffer(2)]],
                                  device const int* picks [[buffer(3)]],
                                  device const float* x [[buffer(4)]],
                                  device float* h [[buffer(5)]],
                                  uint2 group [[threadgroup_position_in_grid]],
                                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                                  uint simdgroups [[simdgroups_per_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 staged[kStagedFours];
  threadgroup uint table[T::kTable];
  const Shared shared = sharing_picks(args, slots, picks, group.y, lane);
  if (shared.slot >= 0) {
    copy_codebook<T>(table, simdgroup, simdgroups, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint row = group.x * first_row(simdgroups, 0, R) + first_row(simdgroup, lane, R);
    gate_up<T, R>(args, shared, arena, x, h, (threadgroup const uint*)table, staged, row, 32 * simdgroup + lane,
                  32 * simdgroups);
  }
}

// The next expert of the round in ascending order, from the picks by turn of every token of the window, of
// which done[t] had their turn. No tokens: there is none.
inline Shared next_expert(thread const TurnPick* own, thread uint* done, uint n_tokens, uint top_k) {
  const uint kNone = 0xffffffffu;
  Shared shared;
  do {
    uint expert[kWindowMax];
    uint next = kNone;
    for (uint t = 0; t < kWindowMax; ++t) {
      expert[t] = kNone;
      if (t < kWindow && t < n_tokens && done[t] < top_k) {
        expert[t] = simd_shuffle(own[t].expert, ushort(done[t]));
        next = min(next, expert[t]);
      }
    }
    shared.slot = -1;
    shared.tokens = 0;
    for (uint t = 0; t < kWindowMax; ++t) {
      shared.pick[t] = 0;
      shared.weight[t] = 0.0f;
      if (t < kWindow && next != kNone && expert[t] == next) {
        shared.slot = simd_shuffle(own[t].slot, ushort(done[t]));
        shared.pick[t] = simd_shuffle(own[t].pick, ushort(done[t]));
        shared.weight[t] = simd_shuffle(own[t].weight, ushort(done[t]));
        shared.tokens |= 1u << t;
        ++done[t];
      }
    }
  } while (shared.tokens != 0 && shared.slot < 0);
  return shared;
}

// Dot products on their way from the simdgroups that make them to the one that adds them up.
enum { kDots = 1024 };

template <typename T, uint R, typename Table>
inline void down(constant ExpertDownArgs& args, device const uchar* arena, device const int* slots,
                 device const int* picks, device const int* order, device const float* weights,
                 device const float* h, device float* y, Table table, threadgroup float* dots, uint group,
                 uint simdgroup, uint simdgroups, uint lane) {
  const uint rows = first_row(simdgroups / kShare, 0, R);  // of the threadgroup
  const uint in_group = first_row(simdgroup / kShare, lane, R);
  const uint row = group * rows + in_group;
  const bool is_first = slots[0] != 0;
  ulong offset[R];
  for (uint r = 0; r < R; ++r) {
    offset[r] = args.down_offset + ulong(min(row + r, args.width - 1)) * args.row_bytes;
  }
  // kShare simdgroups take the experts in turn, and the first of them adds up, a batch at a time; of a lane
  // group it is the first lane that knows y.
  const uint turn = simdgroup % kShare;
  const uint batch = kShare == 1 ? 1u : kDots / (rows * args.tokens);
  const bool keeps = turn == 0 && lane % kLanes == 0;
  TurnPick own[kWindowMax];
  uint done[kWindowMax];
  float sum[kWindowMax * R];
  for (uint t = 0; t < kWindowMax; ++t) {
    done[t] = 0;
    const bool is_token = t < kWindow && t < args.tokens;
    if (is_token) own[t] = pick_by_turn(slots, picks, order, weights, t, args.top_k, lane);
    for (uint r = 0; r < R; ++r) {
      const bool adds = is_token && keeps && !is_first && row + r < args.width;
      sum[t * R + r] = adds ? y[ulong(t) * args.width + row + r] : 0.0f;
    }
  }

  bool more = true;
  while (more) {
    uint replay[kWindowMax];
    for (uint t = 0; t < kWindowMax; ++t) replay[t] = done[t];
    for (uint i = 0; i < batch && more; ++i) {
      const Shared shared = next_expert(own, done, args.tokens, args.top_k);
      more = shared.tokens != 0;
      if (more && i % kShare == turn) {
        float dot[kWindowMax * R];
        ulong at[kWindowMax];
        for (uint t = 0; t < kWindowMax; ++t) at[t] = ulong(shared.pick[t]) * args.expert_width;
        row_dots<T, R>(arena + ulong(shared.slot) * args.slot_bytes, offset, args.expert_width, h, at,
                       nullptr, shared.tokens, table, lane, dot);
        for (uint t = 0; t < kWindowMax; ++t) {
          for (uint r = 0; r < R; ++r) {
            if (has_token(shared.tokens, t)) {
              if (kShare == 1) {
                sum[t * R + r] = fma(shared.weight[t], dot[t * R + r], sum[t * R + r]);
              } else if (lane % kLanes == 0) {
                dots[(i * args.tokens + t) * rows + in_group + r] = dot[t * R + r];
              }
            }
          }
        }
      }
    }
    if (kShare > 1) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      bool again = turn == 0;
      for (uint i = 0; i < batch && again; ++i) {
        const Shared shared = next_expert(own, replay, args.tokens, args.top_k);
        again = shared.tokens != 0;
        for (uint t = 0; t < kWindowMax; ++t) {
          for (uint r = 0; r < R; ++r) {
            if (again && has_token(shared.tokens, t)) {
              const float dot = dots[(i * args.tokens + t) * rows + in_group + r];
              sum[t * R + r] = fma(shared.weight[t], dot, sum[t * R + r]);
            }
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  if (keeps) {
    for (uint t = 0; t < kWindowMax; ++t) {
      for (uint r = 0; r < R; ++r) {
        if (t < kWindow && t < args.tokens && row + r < args.width) {
          y[ulong(t) * args.width + row + r] = sum[t * R + r];
        }
      }
    }
  }
}

// y[t] = (0 in a turn's first round, else y[t]) + sum over the picks in the round of weight *
// (down_e h[t, k]), experts ascending, each dot product whole before it is added: rounds do not show.
//   records: down [D, F] of type T   slots i32 [1 + E]   picks, order i32 [T, K], K up to 32
//   weights f32 [T, K]   h f32 [T, K, F]   y f32 [T, D]
// kSplit simdgroups share rows, taking the experts in turn: for GPUs that D rows do not fill. It divides S;
// where it is not 1, tokens times the rows of a threadgroup, S / kSplit * 32 / kLanes * R, are at most 1024.
// grid: groups (ceil(width / (S / kSplit * 32 / kLanes * R)), 1, 1) of 32 S threads
template <typename T, uint R>
[[kernel]] void expert_down(constant ExpertDownArgs& args [[buffer(0)]],
                            device const uchar* arena [[buffer(1)]],
                            device const int* slots [[buffer(2)]],
                            device const int* picks [[buffer(3)]],
                            device const int* order [[buffer(4)]],
                            device const float* weights [[buffer(5)]],
                            device const float* h [[buffer(6)]],
                            device float* y [[buffer(7)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint simdgroups [[simdgroups_per_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float dots[kDots];
  down<T, R>(args, arena, slots, picks, order, weights, h, y, codebook<T>(), dots, group, simdgroup,
             simdgroups, lane);
}

template <typename T, uint R>
[[kernel]] void expert_down_tg(constant ExpertDownArgs& args [[buffer(0)]],
                               device const uchar* arena [[buffer(1)]],
                               device const int* slots [[buffer(2)]],
                               device const int* picks [[buffer(3)]],
                               device const int* order [[buffer(4)]],
                               device const float* weights [[buffer(5)]],
                               device const float* h [[buffer(6)]],
                               device float* y [[buffer(7)]],
                               uint group [[threadgroup_position_in_grid]],
                               uint simdgroup [[simdgroup_index_in_threadgroup]],
                               uint simdgroups [[simdgroups_per_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float dots[kDots];
  threadgroup uint table[T::kTable];
  copy_codebook<T>(table, simdgroup, simdgroups, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  down<T, R>(args, arena, slots, picks, order, weights, h, y, (threadgroup const uint*)table, dots, group,
             simdgroup, simdgroups, lane);
}

// Every weight type, 1, 2 and 4 rows a lane group.
template [[host_name("expert_gate_up_F32_r1")]] [[kernel]] decltype(expert_gate_up<F32, 1>) expert_gate_up<F32, 1>;
template [[host_name("expert_gate_up_F32_r2")]] [[kernel]] decltype(expert_gate_up<F32, 2>) expert_gate_up<F32, 2>;
template [[host_name("expert_gate_up_F32_r4")]] [[kernel]] decltype(expert_gate_up<F32, 4>) expert_gate_up<F32, 4>;
template [[host_name("expert_gate_up_F16_r1")]] [[kernel]] decltype(expert_gate_up<F16, 1>) expert_gate_up<F16, 1>;
template [[host_name("expert_gate_up_F16_r2")]] [[kernel]] decltype(expert_gate_up<F16, 2>) expert_gate_up<F16, 2>;
template [[host_name("expert_gate_up_F16_r4")]] [[kernel]] decltype(expert_gate_up<F16, 4>) expert_gate_up<F16, 4>;
template [[host_name("expert_gate_up_BF16_r1")]] [[kernel]] decltype(expert_gate_up<BF16, 1>) expert_gate_up<BF16, 1>;
template [[host_name("expert_gate_up_BF16_r2")]] [[kernel]] decltype(expert_gate_up<BF16, 2>) expert_gate_up<BF16, 2>;
template [[host_name("expert_gate_up_BF16_r4")]] [[kernel]] decltype(expert_gate_up<BF16, 4>) expert_gate_up<BF16, 4>;
template [[host_name("expert_gate_up_Q4_0_r1")]] [[kernel]] decltype(expert_gate_up<Q4_0, 1>) expert_gate_up<Q4_0, 1>;
template [[host_name("expert_gate_up_Q4_0_r2")]] [[kernel]] decltype(expert_gate_up<Q4_0, 2>) expert_gate_up<Q4_0, 2>;
template [[host_name("expert_gate_up_Q4_0_r4")]] [[kernel]] decltype(expert_gate_up<Q4_0, 4>) expert_gate_up<Q4_0, 4>;
template [[host_name("expert_gate_up_Q4_1_r1")]] [[kernel]] decltype(expert_gate_up<Q4_1, 1>) expert_gate_up<Q4_1, 1>;
template [[host_name("expert_gate_up_Q4_1_r2")]] [[kernel]] decltype(expert_gate_up<Q4_1, 2>) expert_gate_up<Q4_1, 2>;
template [[host_name("expert_gate_up_Q4_1_r4")]] [[kernel]] decltype(expert_gate_up<Q4_1, 4>) expert_gate_up<Q4_1, 4>;
template [[host_name("expert_gate_up_Q5_0_r1")]] [[kernel]] decltype(expert_gate_up<Q5_0, 1>) expert_gate_up<Q5_0, 1>;
template [[host_name("expert_gate_up_Q5_0_r2")]] [[kernel]] decltype(expert_gate_up<Q5_0, 2>) expert_gate_up<Q5_0, 2>;
template [[host_name("expert_gate_up_Q5_0_r4")]] [[kernel]] decltype(expert_gate_up<Q5_0, 4>) expert_gate_up<Q5_0, 4>;
template [[host_name("expert_gate_up_Q5_1_r1")]] [[kernel]] decltype(expert_gate_up<Q5_1, 1>) expert_gate_up<Q5_1, 1>;
template [[host_name("expert_gate_up_Q5_1_r2")]] [[kernel]] decltype(expert_gate_up<Q5_1, 2>) expert_gate_up<Q5_1, 2>;
template [[host_name("expert_gate_up_Q5_1_r4")]] [[kernel]] decltype(expert_gate_up<Q5_1, 4>) expert_gate_up<Q5_1, 4>;
template [[host_name("expert_gate_up_Q8_0_r1")]] [[kernel]] decltype(expert_gate_up<Q8_0, 1>) expert_gate_up<Q8_0, 1>;
template [[host_name("expert_gate_up_Q8_0_r2")]] [[kernel]] decltype(expert_gate_up<Q8_0, 2>) expert_gate_up<Q8_0, 2>;
template [[host_name("expert_gate_up_Q8_0_r4")]] [[kernel]] decltype(expert_gate_up<Q8_0, 4>) expert_gate_up<Q8_0, 4>;
template [[host_name("expert_gate_up_Q2_K_r1")]] [[kernel]] decltype(expert_gate_up<Q2_K, 1>) expert_gate_up<Q2_K, 1>;
template [[host_name("expert_gate_up_Q2_K_r2")]] [[kernel]] decltype(expert_gate_up<Q2_K, 2>) expert_gate_up<Q2_K, 2>;
template [[host_name("expert_gate_up_Q2_K_r4")]] [[kernel]] decltype(expert_gate_up<Q2_K, 4>) expert_gate_up<Q2_K, 4>;
template [[host_name("expert_gate_up_Q3_K_r1")]] [[kernel]] decltype(expert_gate_up<Q3_K, 1>) expert_gate_up<Q3_K, 1>;
template [[host_name("expert_gate_up_Q3_K_r2")]] [[kernel]] decltype(expert_gate_up<Q3_K, 2>) expert_gate_up<Q3_K, 2>;
template [[host_name("expert_gate_up_Q3_K_r4")]] [[kernel]] decltype(expert_gate_up<Q3_K, 4>) expert_gate_up<Q3_K, 4>;
template [[host_name("expert_gate_up_Q4_K_r1")]] [[kernel]] decltype(expert_gate_up<Q4_K, 1>) expert_gate_up<Q4_K, 1>;
template [[host_name("expert_gate_up_Q4_K_r2")]] [[kernel]] decltype(expert_gate_up<Q4_K, 2>) expert_gate_up<Q4_K, 2>;
template [[host_name("expert_gate_up_Q4_K_r4")]] [[kernel]] decltype(expert_gate_up<Q4_K, 4>) expert_gate_up<Q4_K, 4>;
template [[host_name("expert_gate_up_Q5_K_r1")]] [[kernel]] decltype(expert_gate_up<Q5_K, 1>) expert_gate_up<Q5_K, 1>;
template [[host_name("expert_gate_up_Q5_K_r2")]] [[kernel]] decltype(expert_gate_up<Q5_K, 2>) expert_gate_up<Q5_K, 2>;
template [[host_name("expert_gate_up_Q5_K_r4")]] [[kernel]] decltype(expert_gate_up<Q5_K, 4>) expert_gate_up<Q5_K, 4>;
template [[host_name("expert_gate_up_Q6_K_r1")]] [[kernel]] decltype(expert_gate_up<Q6_K, 1>) expert_gate_up<Q6_K, 1>;
template [[host_name("expert_gate_up_Q6_K_r2")]] [[kernel]] decltype(expert_gate_up<Q6_K, 2>) expert_gate_up<Q6_K, 2>;
template [[host_name("expert_gate_up_Q6_K_r4")]] [[kernel]] decltype(expert_gate_up<Q6_K, 4>) expert_gate_up<Q6_K, 4>;
template [[host_name("expert_gate_up_IQ2_XXS_r1")]] [[kernel]] decltype(expert_gate_up<IQ2_XXS, 1>) expert_gate_up<IQ2_XXS, 1>;
template [[host_name("expert_gate_up_IQ2_XXS_r2")]] [[kernel]] decltype(expert_gate_up<IQ2_XXS, 2>) expert_gate_up<IQ2_XXS, 2>;
template [[host_name("expert_gate_up_IQ2_XXS_r4")]] [[kernel]] decltype(expert_gate_up<IQ2_XXS, 4>) expert_gate_up<IQ2_XXS, 4>;
template [[host_name("expert_gate_up_IQ2_XXS_r1_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_XXS, 1>) expert_gate_up_tg<IQ2_XXS, 1>;
template [[host_name("expert_gate_up_IQ2_XXS_r2_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_XXS, 2>) expert_gate_up_tg<IQ2_XXS, 2>;
template [[host_name("expert_gate_up_IQ2_XXS_r4_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_XXS, 4>) expert_gate_up_tg<IQ2_XXS, 4>;
template [[host_name("expert_gate_up_IQ2_XS_r1")]] [[kernel]] decltype(expert_gate_up<IQ2_XS, 1>) expert_gate_up<IQ2_XS, 1>;
template [[host_name("expert_gate_up_IQ2_XS_r2")]] [[kernel]] decltype(expert_gate_up<IQ2_XS, 2>) expert_gate_up<IQ2_XS, 2>;
template [[host_name("expert_gate_up_IQ2_XS_r4")]] [[kernel]] decltype(expert_gate_up<IQ2_XS, 4>) expert_gate_up<IQ2_XS, 4>;
template [[host_name("expert_gate_up_IQ2_XS_r1_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_XS, 1>) expert_gate_up_tg<IQ2_XS, 1>;
template [[host_name("expert_gate_up_IQ2_XS_r2_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_XS, 2>) expert_gate_up_tg<IQ2_XS, 2>;
template [[host_name("expert_gate_up_IQ2_XS_r4_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_XS, 4>) expert_gate_up_tg<IQ2_XS, 4>;
template [[host_name("expert_gate_up_IQ2_S_r1")]] [[kernel]] decltype(expert_gate_up<IQ2_S, 1>) expert_gate_up<IQ2_S, 1>;
template [[host_name("expert_gate_up_IQ2_S_r2")]] [[kernel]] decltype(expert_gate_up<IQ2_S, 2>) expert_gate_up<IQ2_S, 2>;
template [[host_name("expert_gate_up_IQ2_S_r4")]] [[kernel]] decltype(expert_gate_up<IQ2_S, 4>) expert_gate_up<IQ2_S, 4>;
template [[host_name("expert_gate_up_IQ2_S_r1_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_S, 1>) expert_gate_up_tg<IQ2_S, 1>;
template [[host_name("expert_gate_up_IQ2_S_r2_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_S, 2>) expert_gate_up_tg<IQ2_S, 2>;
template [[host_name("expert_gate_up_IQ2_S_r4_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ2_S, 4>) expert_gate_up_tg<IQ2_S, 4>;
template [[host_name("expert_gate_up_IQ3_XXS_r1")]] [[kernel]] decltype(expert_gate_up<IQ3_XXS, 1>) expert_gate_up<IQ3_XXS, 1>;
template [[host_name("expert_gate_up_IQ3_XXS_r2")]] [[kernel]] decltype(expert_gate_up<IQ3_XXS, 2>) expert_gate_up<IQ3_XXS, 2>;
template [[host_name("expert_gate_up_IQ3_XXS_r4")]] [[kernel]] decltype(expert_gate_up<IQ3_XXS, 4>) expert_gate_up<IQ3_XXS, 4>;
template [[host_name("expert_gate_up_IQ3_XXS_r1_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ3_XXS, 1>) expert_gate_up_tg<IQ3_XXS, 1>;
template [[host_name("expert_gate_up_IQ3_XXS_r2_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ3_XXS, 2>) expert_gate_up_tg<IQ3_XXS, 2>;
template [[host_name("expert_gate_up_IQ3_XXS_r4_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ3_XXS, 4>) expert_gate_up_tg<IQ3_XXS, 4>;
template [[host_name("expert_gate_up_IQ3_S_r1")]] [[kernel]] decltype(expert_gate_up<IQ3_S, 1>) expert_gate_up<IQ3_S, 1>;
template [[host_name("expert_gate_up_IQ3_S_r2")]] [[kernel]] decltype(expert_gate_up<IQ3_S, 2>) expert_gate_up<IQ3_S, 2>;
template [[host_name("expert_gate_up_IQ3_S_r4")]] [[kernel]] decltype(expert_gate_up<IQ3_S, 4>) expert_gate_up<IQ3_S, 4>;
template [[host_name("expert_gate_up_IQ3_S_r1_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ3_S, 1>) expert_gate_up_tg<IQ3_S, 1>;
template [[host_name("expert_gate_up_IQ3_S_r2_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ3_S, 2>) expert_gate_up_tg<IQ3_S, 2>;
template [[host_name("expert_gate_up_IQ3_S_r4_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ3_S, 4>) expert_gate_up_tg<IQ3_S, 4>;
template [[host_name("expert_gate_up_IQ1_S_r1")]] [[kernel]] decltype(expert_gate_up<IQ1_S, 1>) expert_gate_up<IQ1_S, 1>;
template [[host_name("expert_gate_up_IQ1_S_r2")]] [[kernel]] decltype(expert_gate_up<IQ1_S, 2>) expert_gate_up<IQ1_S, 2>;
template [[host_name("expert_gate_up_IQ1_S_r4")]] [[kernel]] decltype(expert_gate_up<IQ1_S, 4>) expert_gate_up<IQ1_S, 4>;
template [[host_name("expert_gate_up_IQ1_S_r1_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ1_S, 1>) expert_gate_up_tg<IQ1_S, 1>;
template [[host_name("expert_gate_up_IQ1_S_r2_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ1_S, 2>) expert_gate_up_tg<IQ1_S, 2>;
template [[host_name("expert_gate_up_IQ1_S_r4_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ1_S, 4>) expert_gate_up_tg<IQ1_S, 4>;
template [[host_name("expert_gate_up_IQ1_M_r1")]] [[kernel]] decltype(expert_gate_up<IQ1_M, 1>) expert_gate_up<IQ1_M, 1>;
template [[host_name("expert_gate_up_IQ1_M_r2")]] [[kernel]] decltype(expert_gate_up<IQ1_M, 2>) expert_gate_up<IQ1_M, 2>;
template [[host_name("expert_gate_up_IQ1_M_r4")]] [[kernel]] decltype(expert_gate_up<IQ1_M, 4>) expert_gate_up<IQ1_M, 4>;
template [[host_name("expert_gate_up_IQ1_M_r1_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ1_M, 1>) expert_gate_up_tg<IQ1_M, 1>;
template [[host_name("expert_gate_up_IQ1_M_r2_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ1_M, 2>) expert_gate_up_tg<IQ1_M, 2>;
template [[host_name("expert_gate_up_IQ1_M_r4_tg")]] [[kernel]] decltype(expert_gate_up_tg<IQ1_M, 4>) expert_gate_up_tg<IQ1_M, 4>;
template [[host_name("expert_gate_up_IQ4_NL_r1")]] [[kernel]] decltype(expert_gate_up<IQ4_NL, 1>) expert_gate_up<IQ4_NL, 1>;
template [[host_name("expert_gate_up_IQ4_NL_r2")]] [[kernel]] decltype(expert_gate_up<IQ4_NL, 2>) expert_gate_up<IQ4_NL, 2>;
template [[host_name("expert_gate_up_IQ4_NL_r4")]] [[kernel]] decltype(expert_gate_up<IQ4_NL, 4>) expert_gate_up<IQ4_NL, 4>;
template [[host_name("expert_gate_up_IQ4_XS_r1")]] [[kernel]] decltype(expert_gate_up<IQ4_XS, 1>) expert_gate_up<IQ4_XS, 1>;
template [[host_name("expert_gate_up_IQ4_XS_r2")]] [[kernel]] decltype(expert_gate_up<IQ4_XS, 2>) expert_gate_up<IQ4_XS, 2>;
template [[host_name("expert_gate_up_IQ4_XS_r4")]] [[kernel]] decltype(expert_gate_up<IQ4_XS, 4>) expert_gate_up<IQ4_XS, 4>;
template [[host_name("expert_gate_up_TQ1_0_r1")]] [[kernel]] decltype(expert_gate_up<TQ1_0, 1>) expert_gate_up<TQ1_0, 1>;
template [[host_name("expert_gate_up_TQ1_0_r2")]] [[kernel]] decltype(expert_gate_up<TQ1_0, 2>) expert_gate_up<TQ1_0, 2>;
template [[host_name("expert_gate_up_TQ1_0_r4")]] [[kernel]] decltype(expert_gate_up<TQ1_0, 4>) expert_gate_up<TQ1_0, 4>;
template [[host_name("expert_gate_up_TQ2_0_r1")]] [[kernel]] decltype(expert_gate_up<TQ2_0, 1>) expert_gate_up<TQ2_0, 1>;
template [[host_name("expert_gate_up_TQ2_0_r2")]] [[kernel]] decltype(expert_gate_up<TQ2_0, 2>) expert_gate_up<TQ2_0, 2>;
template [[host_name("expert_gate_up_TQ2_0_r4")]] [[kernel]] decltype(expert_gate_up<TQ2_0, 4>) expert_gate_up<TQ2_0, 4>;
template [[host_name("expert_gate_up_MXFP4_r1")]] [[kernel]] decltype(expert_gate_up<MXFP4, 1>) expert_gate_up<MXFP4, 1>;
template [[host_name("expert_gate_up_MXFP4_r2")]] [[kernel]] decltype(expert_gate_up<MXFP4, 2>) expert_gate_up<MXFP4, 2>;
template [[host_name("expert_gate_up_MXFP4_r4")]] [[kernel]] decltype(expert_gate_up<MXFP4, 4>) expert_gate_up<MXFP4, 4>;
template [[host_name("expert_gate_up_NVFP4_r1")]] [[kernel]] decltype(expert_gate_up<NVFP4, 1>) expert_gate_up<NVFP4, 1>;
template [[host_name("expert_gate_up_NVFP4_r2")]] [[kernel]] decltype(expert_gate_up<NVFP4, 2>) expert_gate_up<NVFP4, 2>;
template [[host_name("expert_gate_up_NVFP4_r4")]] [[kernel]] decltype(expert_gate_up<NVFP4, 4>) expert_gate_up<NVFP4, 4>;
template [[host_name("expert_gate_up_Q2_0_r1")]] [[kernel]] decltype(expert_gate_up<Q2_0, 1>) expert_gate_up<Q2_0, 1>;
template [[host_name("expert_gate_up_Q2_0_r2")]] [[kernel]] decltype(expert_gate_up<Q2_0, 2>) expert_gate_up<Q2_0, 2>;
template [[host_name("expert_gate_up_Q2_0_r4")]] [[kernel]] decltype(expert_gate_up<Q2_0, 4>) expert_gate_up<Q2_0, 4>;
template [[host_name("expert_down_F32_r1")]] [[kernel]] decltype(expert_down<F32, 1>) expert_down<F32, 1>;
template [[host_name("expert_down_F32_r2")]] [[kernel]] decltype(expert_down<F32, 2>) expert_down<F32, 2>;
template [[host_name("expert_down_F32_r4")]] [[kernel]] decltype(expert_down<F32, 4>) expert_down<F32, 4>;
template [[host_name("expert_down_F16_r1")]] [[kernel]] decltype(expert_down<F16, 1>) expert_down<F16, 1>;
template [[host_name("expert_down_F16_r2")]] [[kernel]] decltype(expert_down<F16, 2>) expert_down<F16, 2>;
template [[host_name("expert_down_F16_r4")]] [[kernel]] decltype(expert_down<F16, 4>) expert_down<F16, 4>;
template [[host_name("expert_down_BF16_r1")]] [[kernel]] decltype(expert_down<BF16, 1>) expert_down<BF16, 1>;
template [[host_name("expert_down_BF16_r2")]] [[kernel]] decltype(expert_down<BF16, 2>) expert_down<BF16, 2>;
template [[host_name("expert_down_BF16_r4")]] [[kernel]] decltype(expert_down<BF16, 4>) expert_down<BF16, 4>;
template [[host_name("expert_down_Q4_0_r1")]] [[kernel]] decltype(expert_down<Q4_0, 1>) expert_down<Q4_0, 1>;
template [[host_name("expert_down_Q4_0_r2")]] [[kernel]] decltype(expert_down<Q4_0, 2>) expert_down<Q4_0, 2>;
template [[host_name("expert_down_Q4_0_r4")]] [[kernel]] decltype(expert_down<Q4_0, 4>) expert_down<Q4_0, 4>;
template [[host_name("expert_down_Q4_1_r1")]] [[kernel]] decltype(expert_down<Q4_1, 1>) expert_down<Q4_1, 1>;
template [[host_name("expert_down_Q4_1_r2")]] [[kernel]] decltype(expert_down<Q4_1, 2>) expert_down<Q4_1, 2>;
template [[host_name("expert_down_Q4_1_r4")]] [[kernel]] decltype(expert_down<Q4_1, 4>) expert_down<Q4_1, 4>;
template [[host_name("expert_down_Q5_0_r1")]] [[kernel]] decltype(expert_down<Q5_0, 1>) expert_down<Q5_0, 1>;
template [[host_name("expert_down_Q5_0_r2")]] [[kernel]] decltype(expert_down<Q5_0, 2>) expert_down<Q5_0, 2>;
template [[host_name("expert_down_Q5_0_r4")]] [[kernel]] decltype(expert_down<Q5_0, 4>) expert_down<Q5_0, 4>;
template [[host_name("expert_down_Q5_1_r1")]] [[kernel]] decltype(expert_down<Q5_1, 1>) expert_down<Q5_1, 1>;
template [[host_name("expert_down_Q5_1_r2")]] [[kernel]] decltype(expert_down<Q5_1, 2>) expert_down<Q5_1, 2>;
template [[host_name("expert_down_Q5_1_r4")]] [[kernel]] decltype(expert_down<Q5_1, 4>) expert_down<Q5_1, 4>;
template [[host_name("expert_down_Q8_0_r1")]] [[kernel]] decltype(expert_down<Q8_0, 1>) expert_down<Q8_0, 1>;
template [[host_name("expert_down_Q8_0_r2")]] [[kernel]] decltype(expert_down<Q8_0, 2>) expert_down<Q8_0, 2>;
template [[host_name("expert_down_Q8_0_r4")]] [[kernel]] decltype(expert_down<Q8_0, 4>) expert_down<Q8_0, 4>;
template [[host_name("expert_down_Q2_K_r1")]] [[kernel]] decltype(expert_down<Q2_K, 1>) expert_down<Q2_K, 1>;
template [[host_name("expert_down_Q2_K_r2")]] [[kernel]] decltype(expert_down<Q2_K, 2>) expert_down<Q2_K, 2>;
template [[host_name("expert_down_Q2_K_r4")]] [[kernel]] decltype(expert_down<Q2_K, 4>) expert_down<Q2_K, 4>;
template [[host_name("expert_down_Q3_K_r1")]] [[kernel]] decltype(expert_down<Q3_K, 1>) expert_down<Q3_K, 1>;
template [[host_name("expert_down_Q3_K_r2")]] [[kernel]] decltype(expert_down<Q3_K, 2>) expert_down<Q3_K, 2>;
template [[host_name("expert_down_Q3_K_r4")]] [[kernel]] decltype(expert_down<Q3_K, 4>) expert_down<Q3_K, 4>;
template [[host_name("expert_down_Q4_K_r1")]] [[kernel]] decltype(expert_down<Q4_K, 1>) expert_down<Q4_K, 1>;
template [[host_name("expert_down_Q4_K_r2")]] [[kernel]] decltype(expert_down<Q4_K, 2>) expert_down<Q4_K, 2>;
template [[host_name("expert_down_Q4_K_r4")]] [[kernel]] decltype(expert_down<Q4_K, 4>) expert_down<Q4_K, 4>;
template [[host_name("expert_down_Q5_K_r1")]] [[kernel]] decltype(expert_down<Q5_K, 1>) expert_down<Q5_K, 1>;
template [[host_name("expert_down_Q5_K_r2")]] [[kernel]] decltype(expert_down<Q5_K, 2>) expert_down<Q5_K, 2>;
template [[host_name("expert_down_Q5_K_r4")]] [[kernel]] decltype(expert_down<Q5_K, 4>) expert_down<Q5_K, 4>;
template [[host_name("expert_down_Q6_K_r1")]] [[kernel]] decltype(expert_down<Q6_K, 1>) expert_down<Q6_K, 1>;
template [[host_name("expert_down_Q6_K_r2")]] [[kernel]] decltype(expert_down<Q6_K, 2>) expert_down<Q6_K, 2>;
template [[host_name("expert_down_Q6_K_r4")]] [[kernel]] decltype(expert_down<Q6_K, 4>) expert_down<Q6_K, 4>;
template [[host_name("expert_down_IQ2_XXS_r1")]] [[kernel]] decltype(expert_down<IQ2_XXS, 1>) expert_down<IQ2_XXS, 1>;
template [[host_name("expert_down_IQ2_XXS_r2")]] [[kernel]] decltype(expert_down<IQ2_XXS, 2>) expert_down<IQ2_XXS, 2>;
template [[host_name("expert_down_IQ2_XXS_r4")]] [[kernel]] decltype(expert_down<IQ2_XXS, 4>) expert_down<IQ2_XXS, 4>;
template [[host_name("expert_down_IQ2_XXS_r1_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_XXS, 1>) expert_down_tg<IQ2_XXS, 1>;
template [[host_name("expert_down_IQ2_XXS_r2_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_XXS, 2>) expert_down_tg<IQ2_XXS, 2>;
template [[host_name("expert_down_IQ2_XXS_r4_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_XXS, 4>) expert_down_tg<IQ2_XXS, 4>;
template [[host_name("expert_down_IQ2_XS_r1")]] [[kernel]] decltype(expert_down<IQ2_XS, 1>) expert_down<IQ2_XS, 1>;
template [[host_name("expert_down_IQ2_XS_r2")]] [[kernel]] decltype(expert_down<IQ2_XS, 2>) expert_down<IQ2_XS, 2>;
template [[host_name("expert_down_IQ2_XS_r4")]] [[kernel]] decltype(expert_down<IQ2_XS, 4>) expert_down<IQ2_XS, 4>;
template [[host_name("expert_down_IQ2_XS_r1_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_XS, 1>) expert_down_tg<IQ2_XS, 1>;
template [[host_name("expert_down_IQ2_XS_r2_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_XS, 2>) expert_down_tg<IQ2_XS, 2>;
template [[host_name("expert_down_IQ2_XS_r4_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_XS, 4>) expert_down_tg<IQ2_XS, 4>;
template [[host_name("expert_down_IQ2_S_r1")]] [[kernel]] decltype(expert_down<IQ2_S, 1>) expert_down<IQ2_S, 1>;
template [[host_name("expert_down_IQ2_S_r2")]] [[kernel]] decltype(expert_down<IQ2_S, 2>) expert_down<IQ2_S, 2>;
template [[host_name("expert_down_IQ2_S_r4")]] [[kernel]] decltype(expert_down<IQ2_S, 4>) expert_down<IQ2_S, 4>;
template [[host_name("expert_down_IQ2_S_r1_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_S, 1>) expert_down_tg<IQ2_S, 1>;
template [[host_name("expert_down_IQ2_S_r2_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_S, 2>) expert_down_tg<IQ2_S, 2>;
template [[host_name("expert_down_IQ2_S_r4_tg")]] [[kernel]] decltype(expert_down_tg<IQ2_S, 4>) expert_down_tg<IQ2_S, 4>;
template [[host_name("expert_down_IQ3_XXS_r1")]] [[kernel]] decltype(expert_down<IQ3_XXS, 1>) expert_down<IQ3_XXS, 1>;
template [[host_name("expert_down_IQ3_XXS_r2")]] [[kernel]] decltype(expert_down<IQ3_XXS, 2>) expert_down<IQ3_XXS, 2>;
template [[host_name("expert_down_IQ3_XXS_r4")]] [[kernel]] decltype(expert_down<IQ3_XXS, 4>) expert_down<IQ3_XXS, 4>;
template [[host_name("expert_down_IQ3_XXS_r1_tg")]] [[kernel]] decltype(expert_down_tg<IQ3_XXS, 1>) expert_down_tg<IQ3_XXS, 1>;
template [[host_name("expert_down_IQ3_XXS_r2_tg")]] [[kernel]] decltype(expert_down_tg<IQ3_XXS, 2>) expert_down_tg<IQ3_XXS, 2>;
template [[host_name("expert_down_IQ3_XXS_r4_tg")]] [[kernel]] decltype(expert_down_tg<IQ3_XXS, 4>) expert_down_tg<IQ3_XXS, 4>;
template [[host_name("expert_down_IQ3_S_r1")]] [[kernel]] decltype(expert_down<IQ3_S, 1>) expert_down<IQ3_S, 1>;
template [[host_name("expert_down_IQ3_S_r2")]] [[kernel]] decltype(expert_down<IQ3_S, 2>) expert_down<IQ3_S, 2>;
template [[host_name("expert_down_IQ3_S_r4")]] [[kernel]] decltype(expert_down<IQ3_S, 4>) expert_down<IQ3_S, 4>;
template [[host_name("expert_down_IQ3_S_r1_tg")]] [[kernel]] decltype(expert_down_tg<IQ3_S, 1>) expert_down_tg<IQ3_S, 1>;
template [[host_name("expert_down_IQ3_S_r2_tg")]] [[kernel]] decltype(expert_down_tg<IQ3_S, 2>) expert_down_tg<IQ3_S, 2>;
template [[host_name("expert_down_IQ3_S_r4_tg")]] [[kernel]] decltype(expert_down_tg<IQ3_S, 4>) expert_down_tg<IQ3_S, 4>;
template [[host_name("expert_down_IQ1_S_r1")]] [[kernel]] decltype(expert_down<IQ1_S, 1>) expert_down<IQ1_S, 1>;
template [[host_name("expert_down_IQ1_S_r2")]] [[kernel]] decltype(expert_down<IQ1_S, 2>) expert_down<IQ1_S, 2>;
template [[host_name("expert_down_IQ1_S_r4")]] [[kernel]] decltype(expert_down<IQ1_S, 4>) expert_down<IQ1_S, 4>;
template [[host_name("expert_down_IQ1_S_r1_tg")]] [[kernel]] decltype(expert_down_tg<IQ1_S, 1>) expert_down_tg<IQ1_S, 1>;
template [[host_name("expert_down_IQ1_S_r2_tg")]] [[kernel]] decltype(expert_down_tg<IQ1_S, 2>) expert_down_tg<IQ1_S, 2>;
template [[host_name("expert_down_IQ1_S_r4_tg")]] [[kernel]] decltype(expert_down_tg<IQ1_S, 4>) expert_down_tg<IQ1_S, 4>;
template [[host_name("expert_down_IQ1_M_r1")]] [[kernel]] decltype(expert_down<IQ1_M, 1>) expert_down<IQ1_M, 1>;
template [[host_name("expert_down_IQ1_M_r2")]] [[kernel]] decltype(expert_down<IQ1_M, 2>) expert_down<IQ1_M, 2>;
template [[host_name("expert_down_IQ1_M_r4")]] [[kernel]] decltype(expert_down<IQ1_M, 4>) expert_down<IQ1_M, 4>;
template [[host_name("expert_down_IQ1_M_r1_tg")]] [[kernel]] decltype(expert_down_tg<IQ1_M, 1>) expert_down_tg<IQ1_M, 1>;
template [[host_name("expert_down_IQ1_M_r2_tg")]] [[kernel]] decltype(expert_down_tg<IQ1_M, 2>) expert_down_tg<IQ1_M, 2>;
template [[host_name("expert_down_IQ1_M_r4_tg")]] [[kernel]] decltype(expert_down_tg<IQ1_M, 4>) expert_down_tg<IQ1_M, 4>;
template [[host_name("expert_down_IQ4_NL_r1")]] [[kernel]] decltype(expert_down<IQ4_NL, 1>) expert_down<IQ4_NL, 1>;
template [[host_name("expert_down_IQ4_NL_r2")]] [[kernel]] decltype(expert_down<IQ4_NL, 2>) expert_down<IQ4_NL, 2>;
template [[host_name("expert_down_IQ4_NL_r4")]] [[kernel]] decltype(expert_down<IQ4_NL, 4>) expert_down<IQ4_NL, 4>;
template [[host_name("expert_down_IQ4_XS_r1")]] [[kernel]] decltype(expert_down<IQ4_XS, 1>) expert_down<IQ4_XS, 1>;
template [[host_name("expert_down_IQ4_XS_r2")]] [[kernel]] decltype(expert_down<IQ4_XS, 2>) expert_down<IQ4_XS, 2>;
template [[host_name("expert_down_IQ4_XS_r4")]] [[kernel]] decltype(expert_down<IQ4_XS, 4>) expert_down<IQ4_XS, 4>;
template [[host_name("expert_down_TQ1_0_r1")]] [[kernel]] decltype(expert_down<TQ1_0, 1>) expert_down<TQ1_0, 1>;
template [[host_name("expert_down_TQ1_0_r2")]] [[kernel]] decltype(expert_down<TQ1_0, 2>) expert_down<TQ1_0, 2>;
template [[host_name("expert_down_TQ1_0_r4")]] [[kernel]] decltype(expert_down<TQ1_0, 4>) expert_down<TQ1_0, 4>;
template [[host_name("expert_down_TQ2_0_r1")]] [[kernel]] decltype(expert_down<TQ2_0, 1>) expert_down<TQ2_0, 1>;
template [[host_name("expert_down_TQ2_0_r2")]] [[kernel]] decltype(expert_down<TQ2_0, 2>) expert_down<TQ2_0, 2>;
template [[host_name("expert_down_TQ2_0_r4")]] [[kernel]] decltype(expert_down<TQ2_0, 4>) expert_down<TQ2_0, 4>;
template [[host_name("expert_down_MXFP4_r1")]] [[kernel]] decltype(expert_down<MXFP4, 1>) expert_down<MXFP4, 1>;
template [[host_name("expert_down_MXFP4_r2")]] [[kernel]] decltype(expert_down<MXFP4, 2>) expert_down<MXFP4, 2>;
template [[host_name("expert_down_MXFP4_r4")]] [[kernel]] decltype(expert_down<MXFP4, 4>) expert_down<MXFP4, 4>;
template [[host_name("expert_down_NVFP4_r1")]] [[kernel]] decltype(expert_down<NVFP4, 1>) expert_down<NVFP4, 1>;
template [[host_name("expert_down_NVFP4_r2")]] [[kernel]] decltype(expert_down<NVFP4, 2>) expert_down<NVFP4, 2>;
template [[host_name("expert_down_NVFP4_r4")]] [[kernel]] decltype(expert_down<NVFP4, 4>) expert_down<NVFP4, 4>;
template [[host_name("expert_down_Q2_0_r1")]] [[kernel]] decltype(expert_down<Q2_0, 1>) expert_down<Q2_0, 1>;
template [[host_name("expert_down_Q2_0_r2")]] [[kernel]] decltype(expert_down<Q2_0, 2>) expert_down<Q2_0, 2>;
template [[host_name("expert_down_Q2_0_r4")]] [[kernel]] decltype(expert_down<Q2_0, 4>) expert_down<Q2_0, 4>;
