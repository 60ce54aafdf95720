// SPDX-License-Identifier: MIT
//
// Products of a weight matrix with one to four tokens, straight from the file's blocks (matmat.metal: more
// tokens); rows of the embedding; the mixer's up product with the read of the streams; the largest logits.
//
// A tile: kLanes lanes share a row and a lane group owns R rows; kSplit simdgroups share rows by columns. A
// step of a lane is a part of a block, 32 columns; neighbouring lanes take neighbouring parts. Weights are
// decoded once for all tokens. A token's sum has one order, given by kLanes and kSplit: its bits are those of a
// window of it alone.
// Kernels named _tg copy the codebook to threadgroup memory first.

#include <metal_stdlib>

#include "abi/kernel_args.h"

using namespace metal;

#include "common.h"
#include "quants.h"
#include "staged.h"

constant uint kLanes [[function_constant(kLanesConstant)]];
constant uint kSplit [[function_constant(kSplitConstant)]];
constant uint kTokens [[function_constant(kTokensConstant)]];
constant uint kStage [[function_constant(kStageConstant)]];
constant bool kIsStaged = is_function_constant_defined(kStage) ? kStage != 0 : false;
// Tokens that registers are set aside for.
enum { kWindowMax = 4 };
constant uint kWindow = is_function_constant_defined(kTokens) ? kTokens : uint(kWindowMax);

inline bool has_token(uint tokens, uint t) { return t < kWindow && (t == 0 || t < tokens); }

// Products with row r from weights + offset[r] on, of the columns that fall to a lane: its first step and
// every stride-th from there.
struct Work {
  device const uchar* weights;
  device const float* x;
  uint cols, tokens, x_stride;
  uint first, stride;
};

// x of a part, eight float4, from where it lies.
struct DeviceX {
  device const float* run0;
  device const float* run1;
  uint token_stride;
};
inline float4 x_four(thread const DeviceX& x, uint t, uint j) {
  const ulong at = ulong(t) * x.token_stride;
  return ((device const float4*)((j < 4 ? x.run0 : x.run1) + at))[j % 4];
}

// A run of weights, without its scale, times x of a token.
template <typename X>
inline float run_dot(thread const float* q, thread const X& x, uint t, uint run) {
  float sum = 0.0f;
  for (uint i = 0; i < 4; ++i) {
    const float4 v = x_four(x, t, 4 * run + i);
    sum = fma(q[4 * i], v.x, sum);
    sum = fma(q[4 * i + 1], v.y, sum);
    sum = fma(q[4 * i + 2], v.z, sum);
    sum = fma(q[4 * i + 3], v.w, sum);
  }
  return sum;
}

// sum[t R + r] += a part of row r . x[t]
template <typename T, uint R, typename X, typename Table>
inline void add_part(device const uchar* block, thread const ulong* offset, uint part, thread const X& x,
                     uint tokens, Table table, thread float* sum) {
#pragma unroll
  for (uint r = 0; r < R; ++r) {
    float q[32];
    float scale[2];
    T::unpack(block + offset[r], part, table, q, scale);
#pragma unroll
    for (uint t = 0; t < kWindowMax; ++t) {
      if (has_token(tokens, t)) {
        const float dot0 = run_dot(q, x, t, 0);
        const float dot1 = run_dot(q + 16, x, t, 1);
        sum[t * R + r] = fma(scale[1], dot1, fma(scale[0], dot0, sum[t * R + r]));
      }
    }
  }
}

template <typename T, uint R>
struct RowDots {
  // sum[t R + r] += the lane's share of row r . x[t]
  template <typename Table>
  static void add(thread const Work& work, thread const ulong* offset, Table table, thread float* sum) {
    const uint parts_per_block = uint(T::kElements) / 32;
    for (uint i = work.first; i < work.cols / 32; i += work.stride) {
      const uint block = i / parts_per_block;
      const uint part = i % parts_per_block;
      DeviceX x;
      x.run0 = work.x + block * uint(T::kElements) + T::first(part, 0);
      x.run1 = work.x + block * uint(T::kElements) + T::first(part, 1);
      x.token_stride = work.x_stride;
      add_part<T, R>(work.weights + ulong(block) * uint(T::kBytes), offset, part, x, work.tokens, table,
                     sum);
    }
  }

  // The same bits, by all threads of a threadgroup, with as many parts of x at a time as there is room for.
  template <typename Table>
  static void add_staged(thread const Work& work, thread const ulong* offset, Table table, thread float* sum,
                         threadgroup float4* staged, uint thread_index, uint threads) {
    const uint parts_per_block = uint(T::kElements) / 32;
    const uint parts = work.cols / 32;
    const uint room = staged_parts(min(work.tokens, kWindow));
    StagedX x;
    x.stride = room;
    x.token_stride = 8 * room;
    uint i = work.first;
    for (uint begin = 0; begin < parts; begin += room) {
      const uint n = min(room, parts - begin);
      if (begin > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint t = 0; t < kWindowMax; ++t) {
        if (has_token(work.tokens, t)) {
          stage_parts<T>(work.x + ulong(t) * work.x_stride, begin, n, room, staged + t * x.token_stride,
                         thread_index, threads);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (; i < begin + n; i += work.stride) {
        const uint block = i / parts_per_block;
        x.fours = staged + (i - begin);
        add_part<T, R>(work.weights + ulong(block) * uint(T::kBytes), offset, i % parts_per_block, x,
                       work.tokens, table, sum);
      }
    }
  }
};

// Eight elements from a multiple of 16 bytes on.
inline void put_eight(device const uchar* p, F32, thread float* w) {
  for (uint i = 0; i < 2; ++i) {
    const float4 v = ((device const float4*)p)[i];
    w[4 * i] = v.x;
    w[4 * i + 1] = v.y;
    w[4 * i + 2] = v.z;
    w[4 * i + 3] = v.w;
  }
}
inline void put_eight(device const uchar* p, F16, thread float* w) {
  const uint4 words = *(device const uint4*)p;
  for (uint i = 0; i < 4; ++i) put_pair(words[i], w[2 * i], w[2 * i + 1]);
}
inline void put_eight(device const uchar* p, BF16, thread float* w) {
  const uint4 words = *(device const uint4*)p;
  for (uint i = 0; i < 4; ++i) {
    w[2 * i] = as_type<float>(words[i] << 16);
    w[2 * i + 1] = as_type<float>(words[i] & 0xffff0000u);
  }
}

// The types without blocks: a step is 8 columns; one column where 8 do not divide a row, whose rows may
// begin where no wide load can.
template <typename T, uint R>
struct PlainDots {
  // Steps of 8 columns lie close enough together.
  template <typename Table>
  static void add_staged(thread const Work& work, thread const ulong* offset, Table table, thread float* sum,
                         threadgroup float4*, uint, uint) {
    add(work, offset, table, sum);
  }

  template <typename Table>
  static void add(thread const Work& work, thread const ulong* offset, Table, thread float* sum) {
    if (work.cols % 8 == 0 && work.x_stride % 4 == 0) {
      const uint bytes = uint(T::kBytes) / 4;  // of 8 elements
      for (uint i = work.first; i < work.cols / 8; i += work.stride) {
#pragma unroll
        for (uint r = 0; r < R; ++r) {
          float w[8];
          put_eight(work.weights + offset[r] + ulong(i) * bytes, T(), w);
#pragma unroll
          for (uint t = 0; t < kWindowMax; ++t) {
            if (has_token(work.tokens, t)) {
              device const float4* x = (device const float4*)(work.x + ulong(t) * work.x_stride) + 2 * i;
              const float4 a = x[0];
              const float4 b = x[1];
              float dot = w[0] * a.x;
              dot = fma(w[1], a.y, dot);
              dot = fma(w[2], a.z, dot);
              dot = fma(w[3], a.w, dot);
              dot = fma(w[4], b.x, dot);
              dot = fma(w[5], b.y, dot);
              dot = fma(w[6], b.z, dot);
              sum[t * R + r] += fma(w[7], b.w, dot);
            }
          }
        }
      }
    } else {
      for (uint i = work.first; i < work.cols; i += work.stride) {
        for (uint r = 0; r < R; ++r) {
          const float w = element<T>(work.weights + offset[r], i);
          for (uint t = 0; t < kWindowMax; ++t) {
            if (has_token(work.tokens, t)) {
              sum[t * R + r] = fma(w, work.x[ulong(t) * work.x_stride + i], sum[t * R + r]);
            }
          }
        }
      }
    }
  }
};
template <uint R>
struct RowDots<F32, R> : PlainDots<F32, R> {};
template <uint R>
struct RowDots<F16, R> : PlainDots<F16, R> {};
template <uint R>
struct RowDots<BF16, R> : PlainDots<BF16, R> {};

// The sum of v over neighbouring lanes, n a power of two, in each of them.
inline float lanes_sum(float v, uint n) {
  for (uint offset = n / 2; offset > 0; offset /= 2) v += simd_shuffle_xor(v, ushort(offset));
  return v;
}

// Sums of a token on their way from the simdgroups that share rows to the one that adds them up:
// S * 32 / kLanes * R of them.
enum { kPartials = 1024 };

template <typename T, uint R, typename Table>
inline void multiply(constant MatrixArgs& args, device const uchar* weights, device const float* x,
                     device float* out, Table table, threadgroup float4* staged, threadgroup float* partials,
                     uint group, uint simdgroup, uint simdgroups, uint lane) {
  const uint lane_groups = 32 / kLanes;
  const uint lane_group = lane / kLanes;
  const uint set = group * (simdgroups / kSplit) + simdgroup / kSplit;  // the simdgroups that share rows
  const uint row = (set * lane_groups + lane_group) * R;
  const uint share = simdgroup % kSplit;

  Work work;
  work.weights = weights;
  work.x = x;
  work.cols = args.cols;
  work.tokens = args.tokens;
  work.x_stride = args.x_stride;
  work.first = share * kLanes + lane % kLanes;
  work.stride = kSplit * kLanes;
  // Rows past the last are computed as the last, and not stored.
  ulong offset[R];
  for (uint r = 0; r < R; ++r) offset[r] = ulong(min(row + r, args.rows - 1)) * args.row_bytes;
  float sum[kWindowMax * R];
  for (uint i = 0; i < kWindowMax * R; ++i) sum[i] = 0.0f;
  if (kIsStaged) {
    RowDots<T, R>::add_staged(work, offset, table, sum, staged, 32 * simdgroup + lane, 32 * simdgroups);
  } else {
    RowDots<T, R>::add(work, offset, table, sum);
  }

  for (uint t = 0; t < kWindowMax; ++t) {
    if (has_token(args.tokens, t)) {
      for (uint r = 0; r < R; ++r) sum[t * R + r] = lanes_sum(sum[t * R + r], kLanes);
      if (kSplit > 1) {
        const uint place = (simdgroup * lane_groups + lane_group) * R;
        if (share != 0 && lane % kLanes == 0) {
          for (uint r = 0; r < R; ++r) partials[place + r] = sum[t * R + r];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (share == 0 && lane % kLanes == 0) {
          for (uint other = 1; other < kSplit; ++other) {
            for (uint r = 0; r < R; ++r) sum[t * R + r] += partials[place + other * lane_groups * R + r];
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      if (share == 0 && lane % kLanes == 0) {
        for (uint r = 0; r < R; ++r) {
          if (row + r < args.rows) {
            const float v = sum[t * R + r];
            device float* to = out + ulong(t) * args.y_stride + row + r;
            *to = args.epilogue == kScaledSilu ? silu(args.scale * v) : v;
          }
        }
      }
    }
  }
}

// out[t, r] = epilogue(weights[r] . x[t])
//   weights [rows, cols] of type T   x f32 [T, x_stride], at multiples of 16 bytes, its rows too (but for F32,
//   F16 and BF16)   out f32 [T, y_stride]   T up to kTokens
// kLanes 4 to 32. kSplit divides the S simdgroups; with kSplit > 1, S * 32 / kLanes * R <= 1024. kStage has room
// for about 128 / T parts at a time: lanes idle where kSplit * kLanes is more.
// grid: groups (ceil(rows / (S / kSplit * 32 / kLanes * R)), 1, 1) of 32 S threads
template <typename T, uint R>
[[kernel]] void matvec(constant MatrixArgs& args [[buffer(0)]],
                       device const uchar* weights [[buffer(1)]],
                       device const float* x [[buffer(2)]],
                       device float* out [[buffer(3)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 staged[kStagedFours];
  threadgroup float partials[kPartials];
  multiply<T, R>(args, weights, x, out, codebook<T>(), staged, partials, group, simdgroup, simdgroups, lane);
}

template <typename T, uint R>
[[kernel]] void matvec_tg(constant MatrixArgs& args [[buffer(0)]],
                          device const uchar* weights [[buffer(1)]],
                          device const float* x [[buffer(2)]],
                          device float* out [[buffer(3)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 staged[kStagedFours];
  threadgroup float partials[kPartials];
  threadgroup uint table[T::kTable];
  for (uint i = 32 * simdgroup + lane; i < uint(T::kTable); i += 32 * simdgroups) table[i] = codebook<T>()[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply<T, R>(args, weights, x, out, (threadgroup const uint*)table, staged, partials, group, simdgroup,
                 simdgroups, lane);
}

// Columns from 32 i on of a row, to every stream.
template <typename T>
struct Part {
  static void copy(device const uchar* row, uint i, uint width, uint streams, device float* to) {
    const uint parts_per_block = uint(T::kElements) / 32;
    const uint block = i / parts_per_block;
    const uint part = i % parts_per_block;
    float w[32];
    T::decode(row + ulong(block) * uint(T::kBytes), part, codebook<T>(), w);
    for (uint c = 0; c < streams; ++c) {
      for (uint run = 0; run < 2; ++run) {
        const uint at = c * width + block * uint(T::kElements) + T::first(part, run);
        device float4* four = (device float4*)(to + at);
        for (uint j = 0; j < 4; ++j) {
          const uint k = 16 * run + 4 * j;
          four[j] = float4{w[k], w[k + 1], w[k + 2], w[k + 3]};
        }
      }
    }
  }
};
template <typename T>
struct PlainPart {
  static void copy(device const uchar* row, uint i, uint width, uint streams, device float* to) {
    for (uint j = 32 * i; j < min(32 * i + 32, width); ++j) {
      for (uint c = 0; c < streams; ++c) to[c * width + j] = element<T>(row, j);
    }
  }
};
template <>
struct Part<F32> : PlainPart<F32> {};
template <>
struct Part<F16> : PlainPart<F16> {};
template <>
struct Part<BF16> : PlainPart<BF16> {};

// out[t, c] = weights[token t] for every stream c
//   weights [V, D] of type T   tokens i32 [T]   out f32 [T, C, D]
// grid: groups (ceil(ceil(width / 32) / 64), tokens, 1) of 64 threads
template <typename T>
[[kernel]] void embed(constant EmbedArgs& args [[buffer(0)]],
                      device const uchar* weights [[buffer(1)]],
                      device const int* tokens [[buffer(2)]],
                      device float* out [[buffer(3)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]]) {
  const uint i = 64 * group.x + thread_index;
  if (i < (args.width + 31) / 32) {
    Part<T>::copy(weights + ulong(tokens[group.y]) * args.row_bytes, i, args.width, args.streams,
                  out + ulong(group.y) * args.streams * args.width);
  }
}

// out[t, d] = 1/C sum over streams c of sigma(weights[c D + d] . low[t]) normed[t, c, d]
//   weights [C D, rank] of type T   low f32 [T, rank]   normed f32 [T, C, D]   out f32 [T, D]   T up to kTokens
// Ranks are short, so 4 lanes share a row. A simdgroup has 4 neighbouring d, one half of it streams 0 and 2 of
// every four, the other half 1 and 3: the loads of low serve two rows.
// grid: groups (ceil(width / 16), 1, 1) of 128 threads
template <typename T>
[[kernel]] void mix_up_read(constant MixUpReadArgs& args [[buffer(0)]],
                            device const uchar* weights [[buffer(1)]],
                            device const float* low [[buffer(2)]],
                            device const float* normed [[buffer(3)]],
                            device float* out [[buffer(4)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  const uint d = 16 * group + 4 * simdgroup + lane / 4 % 4;
  const uint column = min(d, args.width - 1);
  Work work;
  work.weights = weights;
  work.x = low;
  work.cols = args.rank;
  work.tokens = args.tokens;
  work.x_stride = args.rank;
  work.first = lane % 4;
  work.stride = 4;
  float mixed[kWindowMax] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint c = lane / 16; c < args.streams + lane / 16; c += 4) {
    ulong offset[2];
    for (uint r = 0; r < 2; ++r) {
      offset[r] = (ulong(min(c + 2 * r, args.streams - 1)) * args.width + column) * args.row_bytes;
    }
    float gate[2 * kWindowMax];
    for (uint i = 0; i < 2 * kWindowMax; ++i) gate[i] = 0.0f;
    RowDots<T, 2>::add(work, offset, codebook<T>(), gate);
    for (uint t = 0; t < kWindowMax; ++t) {
      if (has_token(args.tokens, t)) {
        for (uint r = 0; r < 2; ++r) {
          const float whole = lanes_sum(gate[2 * t + r], 4);
          if (c + 2 * r < args.streams) {
            const float v = normed[(ulong(t) * args.streams + c + 2 * r) * args.width + column];
            mixed[t] = fma(sigma(whole), v, mixed[t]);
          }
        }
      }
    }
  }
  for (uint t = 0; t < kWindowMax; ++t) {
    if (has_token(args.tokens, t)) {
      const float sum = mixed[t] + simd_shuffle_xor(mixed[t], ushort(16));
      if (d < args.width && lane / 16 == 0 && lane % 4 == 0) {
        out[ulong(t) * args.width + d] = sum * (1.0f / float(args.streams));
      }
    }
  }
}

// Logits in a total order, as numbers that are all different: the larger first, a NaN before all of them,
// so that whoever looks at the first finds it; among equals the lower index.
inline ulong rank_of(float v, uint index) {
  uint bits = as_type<uint>(v == 0.0f ? 0.0f : v);
  bits = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return ulong(v != v ? 0xffffffffu : bits) << 32 | ulong(~index);
}

// Logits 4 i to 4 i + 3 of n; those past the end are not to be used.
inline float4 four_logits(device const float* row, uint n, uint i) {
  if (n % 4 == 0) return ((device const float4*)row)[i];
  float4 v = float4{0.0f, 0.0f, 0.0f, 0.0f};
  for (uint j = 0; j < 4; ++j) {
    if (4 * i + j < n) v[j] = row[4 * i + j];
  }
  return v;
}

enum { kTopThreads = 1024, kTopCandidates = 2048 };

// out[t] = the k largest of logits[t] by rank, k up to 64; -1 and -inf where there are fewer.
//   logits f32 [T, n]   out i32 [T, k]   values f32 [T, k]
// The k-th largest of the threads' own maxima is a bound: at least k logits reach it, and hardly more when
// the largest are spread over the row. Those are ranked by counting. When they are too many, the bound is
// found bit by bit.
// grid: groups (tokens, 1, 1) of 1024 threads
[[kernel]] void logits_top(constant LogitsTopArgs& args [[buffer(0)]],
                           device const float* logits [[buffer(1)]],
                           device int* out [[buffer(2)]],
                           device float* values [[buffer(3)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ulong maxima[kTopThreads];
  threadgroup ulong candidates[kTopCandidates];
  threadgroup ulong bound[1];
  threadgroup atomic_uint count[1];
  device const float* row = logits + ulong(group) * args.n;
  const uint fours = (args.n + 3) / 4;

  ulong best = 0;
  for (uint i = thread_index; i < fours; i += kTopThreads) {
    const float4 v = four_logits(row, args.n, i);
    for (uint j = 0; j < 4; ++j) {
      const ulong rank = rank_of(v[j], 4 * i + j);
      if (4 * i + j < args.n && rank > best) best = rank;
    }
  }
  maxima[thread_index] = best;
  if (thread_index == 0) {
    bound[0] = 0;
    atomic_store_explicit(&count[0], 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = 0;
  for (uint i = 0; i < kTopThreads; ++i) before += maxima[i] > best ? 1u : 0u;
  if (best != 0 && before == args.k - 1) bound[0] = best;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  ulong least = bound[0];
  for (uint i = thread_index; i < fours; i += kTopThreads) {
    const float4 v = four_logits(row, args.n, i);
    for (uint j = 0; j < 4; ++j) {
      const ulong rank = rank_of(v[j], 4 * i + j);
      if (4 * i + j < args.n && rank >= least) {
        const uint place = atomic_fetch_add_explicit(&count[0], 1u, memory_order_relaxed);
        if (place < kTopCandidates) candidates[place] = rank;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint found = atomic_load_explicit(&count[0], memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (found > kTopCandidates) {  // the same in every thread
    least = 0;
    for (uint bit = 64; bit > 0; --bit) {
      const ulong trial = least | ulong(1) << (bit - 1);
      if (thread_index == 0) atomic_store_explicit(&count[0], 0u, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      uint reached = 0;
      for (uint i = thread_index; i < fours; i += kTopThreads) {
        const float4 v = four_logits(row, args.n, i);
        for (uint j = 0; j < 4; ++j) {
          if (4 * i + j < args.n && rank_of(v[j], 4 * i + j) >= trial) ++reached;
        }
      }
      reached = simd_sum(reached);
      if (lane == 0) atomic_fetch_add_explicit(&count[0], reached, memory_order_relaxed);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (atomic_load_explicit(&count[0], memory_order_relaxed) >= args.k) least = trial;
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (thread_index == 0) atomic_store_explicit(&count[0], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < fours; i += kTopThreads) {
      const float4 v = four_logits(row, args.n, i);
      for (uint j = 0; j < 4; ++j) {
        const ulong rank = rank_of(v[j], 4 * i + j);
        if (4 * i + j < args.n && rank >= least) {
          candidates[atomic_fetch_add_explicit(&count[0], 1u, memory_order_relaxed)] = rank;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    found = args.k;
  }

  for (uint i = thread_index; i < found; i += kTopThreads) {
    const ulong rank = candidates[i];
    uint place = 0;
    for (uint j = 0; j < found; ++j) place += candidates[j] > rank ? 1u : 0u;
    if (place < args.k) {
      const uint index = ~uint(rank & 0xffffffffu);
      out[ulong(group) * args.k + place] = int(index);
      values[ulong(group) * args.k + place] = row[index];
    }
  }
  for (uint i = found + thread_index; i < args.k; i += kTopThreads) {
    out[ulong(group) * args.k + i] = -1;
    values[ulong(group) * args.k + i] = -INFINITY;
  }
}

template [[host_name("embed_F32")]] [[kernel]] decltype(embed<F32>) embed<F32>;
template [[host_name("mix_up_read_F32")]] [[kernel]] decltype(mix_up_read<F32>) mix_up_read<F32>;
template [[host_name("matvec_F32_r1")]] [[kernel]] decltype(matvec<F32, 1>) matvec<F32, 1>;
template [[host_name("matvec_F32_r2")]] [[kernel]] decltype(matvec<F32, 2>) matvec<F32, 2>;
template [[host_name("matvec_F32_r4")]] [[kernel]] decltype(matvec<F32, 4>) matvec<F32, 4>;
template [[host_name("embed_F16")]] [[kernel]] decltype(embed<F16>) embed<F16>;
template [[host_name("mix_up_read_F16")]] [[kernel]] decltype(mix_up_read<F16>) mix_up_read<F16>;
template [[host_name("matvec_F16_r1")]] [[kernel]] decltype(matvec<F16, 1>) matvec<F16, 1>;
template [[host_name("matvec_F16_r2")]] [[kernel]] decltype(matvec<F16, 2>) matvec<F16, 2>;
template [[host_name("matvec_F16_r4")]] [[kernel]] decltype(matvec<F16, 4>) matvec<F16, 4>;
template [[host_name("embed_BF16")]] [[kernel]] decltype(embed<BF16>) embed<BF16>;
template [[host_name("mix_up_read_BF16")]] [[kernel]] decltype(mix_up_read<BF16>) mix_up_read<BF16>;
template [[host_name("matvec_BF16_r1")]] [[kernel]] decltype(matvec<BF16, 1>) matvec<BF16, 1>;
template [[host_name("matvec_BF16_r2")]] [[kernel]] decltype(matvec<BF16, 2>) matvec<BF16, 2>;
template [[host_name("matvec_BF16_r4")]] [[kernel]] decltype(matvec<BF16, 4>) matvec<BF16, 4>;
template [[host_name("embed_Q4_0")]] [[kernel]] decltype(embed<Q4_0>) embed<Q4_0>;
template [[host_name("mix_up_read_Q4_0")]] [[kernel]] decltype(mix_up_read<Q4_0>) mix_up_read<Q4_0>;
template [[host_name("matvec_Q4_0_r1")]] [[kernel]] decltype(matvec<Q4_0, 1>) matvec<Q4_0, 1>;
template [[host_name("matvec_Q4_0_r2")]] [[kernel]] decltype(matvec<Q4_0, 2>) matvec<Q4_0, 2>;
template [[host_name("matvec_Q4_0_r4")]] [[kernel]] decltype(matvec<Q4_0, 4>) matvec<Q4_0, 4>;
template [[host_name("embed_Q4_1")]] [[kernel]] decltype(embed<Q4_1>) embed<Q4_1>;
template [[host_name("mix_up_read_Q4_1")]] [[kernel]] decltype(mix_up_read<Q4_1>) mix_up_read<Q4_1>;
template [[host_name("matvec_Q4_1_r1")]] [[kernel]] decltype(matvec<Q4_1, 1>) matvec<Q4_1, 1>;
template [[host_name("matvec_Q4_1_r2")]] [[kernel]] decltype(matvec<Q4_1, 2>) matvec<Q4_1, 2>;
template [[host_name("matvec_Q4_1_r4")]] [[kernel]] decltype(matvec<Q4_1, 4>) matvec<Q4_1, 4>;
template [[host_name("embed_Q5_0")]] [[kernel]] decltype(embed<Q5_0>) embed<Q5_0>;
template [[host_name("mix_up_read_Q5_0")]] [[kernel]] decltype(mix_up_read<Q5_0>) mix_up_read<Q5_0>;
template [[host_name("matvec_Q5_0_r1")]] [[kernel]] decltype(matvec<Q5_0, 1>) matvec<Q5_0, 1>;
template [[host_name("matvec_Q5_0_r2")]] [[kernel]] decltype(matvec<Q5_0, 2>) matvec<Q5_0, 2>;
template [[host_name("matvec_Q5_0_r4")]] [[kernel]] decltype(matvec<Q5_0, 4>) matvec<Q5_0, 4>;
template [[host_name("embed_Q5_1")]] [[kernel]] decltype(embed<Q5_1>) embed<Q5_1>;
template [[host_name("mix_up_read_Q5_1")]] [[kernel]] decltype(mix_up_read<Q5_1>) mix_up_read<Q5_1>;
template [[host_name("matvec_Q5_1_r1")]] [[kernel]] decltype(matvec<Q5_1, 1>) matvec<Q5_1, 1>;
template [[host_name("matvec_Q5_1_r2")]] [[kernel]] decltype(matvec<Q5_1, 2>) matvec<Q5_1, 2>;
template [[host_name("matvec_Q5_1_r4")]] [[kernel]] decltype(matvec<Q5_1, 4>) matvec<Q5_1, 4>;
template [[host_name("embed_Q8_0")]] [[kernel]] decltype(embed<Q8_0>) embed<Q8_0>;
template [[host_name("mix_up_read_Q8_0")]] [[kernel]] decltype(mix_up_read<Q8_0>) mix_up_read<Q8_0>;
template [[host_name("matvec_Q8_0_r1")]] [[kernel]] decltype(matvec<Q8_0, 1>) matvec<Q8_0, 1>;
template [[host_name("matvec_Q8_0_r2")]] [[kernel]] decltype(matvec<Q8_0, 2>) matvec<Q8_0, 2>;
template [[host_name("matvec_Q8_0_r4")]] [[kernel]] decltype(matvec<Q8_0, 4>) matvec<Q8_0, 4>;
template [[host_name("embed_Q2_K")]] [[kernel]] decltype(embed<Q2_K>) embed<Q2_K>;
template [[host_name("mix_up_read_Q2_K")]] [[kernel]] decltype(mix_up_read<Q2_K>) mix_up_read<Q2_K>;
template [[host_name("matvec_Q2_K_r1")]] [[kernel]] decltype(matvec<Q2_K, 1>) matvec<Q2_K, 1>;
template [[host_name("matvec_Q2_K_r2")]] [[kernel]] decltype(matvec<Q2_K, 2>) matvec<Q2_K, 2>;
template [[host_name("matvec_Q2_K_r4")]] [[kernel]] decltype(matvec<Q2_K, 4>) matvec<Q2_K, 4>;
template [[host_name("embed_Q3_K")]] [[kernel]] decltype(embed<Q3_K>) embed<Q3_K>;
template [[host_name("mix_up_read_Q3_K")]] [[kernel]] decltype(mix_up_read<Q3_K>) mix_up_read<Q3_K>;
template [[host_name("matvec_Q3_K_r1")]] [[kernel]] decltype(matvec<Q3_K, 1>) matvec<Q3_K, 1>;
template [[host_name("matvec_Q3_K_r2")]] [[kernel]] decltype(matvec<Q3_K, 2>) matvec<Q3_K, 2>;
template [[host_name("matvec_Q3_K_r4")]] [[kernel]] decltype(matvec<Q3_K, 4>) matvec<Q3_K, 4>;
template [[host_name("embed_Q4_K")]] [[kernel]] decltype(embed<Q4_K>) embed<Q4_K>;
template [[host_name("mix_up_read_Q4_K")]] [[kernel]] decltype(mix_up_read<Q4_K>) mix_up_read<Q4_K>;
template [[host_name("matvec_Q4_K_r1")]] [[kernel]] decltype(matvec<Q4_K, 1>) matvec<Q4_K, 1>;
template [[host_name("matvec_Q4_K_r2")]] [[kernel]] decltype(matvec<Q4_K, 2>) matvec<Q4_K, 2>;
template [[host_name("matvec_Q4_K_r4")]] [[kernel]] decltype(matvec<Q4_K, 4>) matvec<Q4_K, 4>;
template [[host_name("embed_Q5_K")]] [[kernel]] decltype(embed<Q5_K>) embed<Q5_K>;
template [[host_name("mix_up_read_Q5_K")]] [[kernel]] decltype(mix_up_read<Q5_K>) mix_up_read<Q5_K>;
template [[host_name("matvec_Q5_K_r1")]] [[kernel]] decltype(matvec<Q5_K, 1>) matvec<Q5_K, 1>;
template [[host_name("matvec_Q5_K_r2")]] [[kernel]] decltype(matvec<Q5_K, 2>) matvec<Q5_K, 2>;
template [[host_name("matvec_Q5_K_r4")]] [[kernel]] decltype(matvec<Q5_K, 4>) matvec<Q5_K, 4>;
template [[host_name("embed_Q6_K")]] [[kernel]] decltype(embed<Q6_K>) embed<Q6_K>;
template [[host_name("mix_up_read_Q6_K")]] [[kernel]] decltype(mix_up_read<Q6_K>) mix_up_read<Q6_K>;
template [[host_name("matvec_Q6_K_r1")]] [[kernel]] decltype(matvec<Q6_K, 1>) matvec<Q6_K, 1>;
template [[host_name("matvec_Q6_K_r2")]] [[kernel]] decltype(matvec<Q6_K, 2>) matvec<Q6_K, 2>;
template [[host_name("matvec_Q6_K_r4")]] [[kernel]] decltype(matvec<Q6_K, 4>) matvec<Q6_K, 4>;
template [[host_name("embed_IQ2_XXS")]] [[kernel]] decltype(embed<IQ2_XXS>) embed<IQ2_XXS>;
template [[host_name("mix_up_read_IQ2_XXS")]] [[kernel]] decltype(mix_up_read<IQ2_XXS>) mix_up_read<IQ2_XXS>;
template [[host_name("matvec_IQ2_XXS_r1")]] [[kernel]] decltype(matvec<IQ2_XXS, 1>) matvec<IQ2_XXS, 1>;
template [[host_name("matvec_IQ2_XXS_r2")]] [[kernel]] decltype(matvec<IQ2_XXS, 2>) matvec<IQ2_XXS, 2>;
template [[host_name("matvec_IQ2_XXS_r4")]] [[kernel]] decltype(matvec<IQ2_XXS, 4>) matvec<IQ2_XXS, 4>;
template [[host_name("matvec_IQ2_XXS_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ2_XXS, 1>) matvec_tg<IQ2_XXS, 1>;
template [[host_name("matvec_IQ2_XXS_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ2_XXS, 2>) matvec_tg<IQ2_XXS, 2>;
template [[host_name("matvec_IQ2_XXS_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ2_XXS, 4>) matvec_tg<IQ2_XXS, 4>;
template [[host_name("embed_IQ2_XS")]] [[kernel]] decltype(embed<IQ2_XS>) embed<IQ2_XS>;
template [[host_name("mix_up_read_IQ2_XS")]] [[kernel]] decltype(mix_up_read<IQ2_XS>) mix_up_read<IQ2_XS>;
template [[host_name("matvec_IQ2_XS_r1")]] [[kernel]] decltype(matvec<IQ2_XS, 1>) matvec<IQ2_XS, 1>;
template [[host_name("matvec_IQ2_XS_r2")]] [[kernel]] decltype(matvec<IQ2_XS, 2>) matvec<IQ2_XS, 2>;
template [[host_name("matvec_IQ2_XS_r4")]] [[kernel]] decltype(matvec<IQ2_XS, 4>) matvec<IQ2_XS, 4>;
template [[host_name("matvec_IQ2_XS_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ2_XS, 1>) matvec_tg<IQ2_XS, 1>;
template [[host_name("matvec_IQ2_XS_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ2_XS, 2>) matvec_tg<IQ2_XS, 2>;
template [[host_name("matvec_IQ2_XS_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ2_XS, 4>) matvec_tg<IQ2_XS, 4>;
template [[host_name("embed_IQ3_XXS")]] [[kernel]] decltype(embed<IQ3_XXS>) embed<IQ3_XXS>;
template [[host_name("mix_up_read_IQ3_XXS")]] [[kernel]] decltype(mix_up_read<IQ3_XXS>) mix_up_read<IQ3_XXS>;
template [[host_name("matvec_IQ3_XXS_r1")]] [[kernel]] decltype(matvec<IQ3_XXS, 1>) matvec<IQ3_XXS, 1>;
template [[host_name("matvec_IQ3_XXS_r2")]] [[kernel]] decltype(matvec<IQ3_XXS, 2>) matvec<IQ3_XXS, 2>;
template [[host_name("matvec_IQ3_XXS_r4")]] [[kernel]] decltype(matvec<IQ3_XXS, 4>) matvec<IQ3_XXS, 4>;
template [[host_name("matvec_IQ3_XXS_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ3_XXS, 1>) matvec_tg<IQ3_XXS, 1>;
template [[host_name("matvec_IQ3_XXS_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ3_XXS, 2>) matvec_tg<IQ3_XXS, 2>;
template [[host_name("matvec_IQ3_XXS_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ3_XXS, 4>) matvec_tg<IQ3_XXS, 4>;
template [[host_name("embed_IQ1_S")]] [[kernel]] decltype(embed<IQ1_S>) embed<IQ1_S>;
template [[host_name("mix_up_read_IQ1_S")]] [[kernel]] decltype(mix_up_read<IQ1_S>) mix_up_read<IQ1_S>;
template [[host_name("matvec_IQ1_S_r1")]] [[kernel]] decltype(matvec<IQ1_S, 1>) matvec<IQ1_S, 1>;
template [[host_name("matvec_IQ1_S_r2")]] [[kernel]] decltype(matvec<IQ1_S, 2>) matvec<IQ1_S, 2>;
template [[host_name("matvec_IQ1_S_r4")]] [[kernel]] decltype(matvec<IQ1_S, 4>) matvec<IQ1_S, 4>;
template [[host_name("matvec_IQ1_S_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ1_S, 1>) matvec_tg<IQ1_S, 1>;
template [[host_name("matvec_IQ1_S_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ1_S, 2>) matvec_tg<IQ1_S, 2>;
template [[host_name("matvec_IQ1_S_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ1_S, 4>) matvec_tg<IQ1_S, 4>;
template [[host_name("embed_IQ4_NL")]] [[kernel]] decltype(embed<IQ4_NL>) embed<IQ4_NL>;
template [[host_name("mix_up_read_IQ4_NL")]] [[kernel]] decltype(mix_up_read<IQ4_NL>) mix_up_read<IQ4_NL>;
template [[host_name("matvec_IQ4_NL_r1")]] [[kernel]] decltype(matvec<IQ4_NL, 1>) matvec<IQ4_NL, 1>;
template [[host_name("matvec_IQ4_NL_r2")]] [[kernel]] decltype(matvec<IQ4_NL, 2>) matvec<IQ4_NL, 2>;
template [[host_name("matvec_IQ4_NL_r4")]] [[kernel]] decltype(matvec<IQ4_NL, 4>) matvec<IQ4_NL, 4>;
template [[host_name("matvec_IQ4_NL_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ4_NL_Table, 1>) matvec_tg<IQ4_NL_Table, 1>;
template [[host_name("matvec_IQ4_NL_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ4_NL_Table, 2>) matvec_tg<IQ4_NL_Table, 2>;
template [[host_name("matvec_IQ4_NL_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ4_NL_Table, 4>) matvec_tg<IQ4_NL_Table, 4>;
template [[host_name("embed_IQ3_S")]] [[kernel]] decltype(embed<IQ3_S>) embed<IQ3_S>;
template [[host_name("mix_up_read_IQ3_S")]] [[kernel]] decltype(mix_up_read<IQ3_S>) mix_up_read<IQ3_S>;
template [[host_name("matvec_IQ3_S_r1")]] [[kernel]] decltype(matvec<IQ3_S, 1>) matvec<IQ3_S, 1>;
template [[host_name("matvec_IQ3_S_r2")]] [[kernel]] decltype(matvec<IQ3_S, 2>) matvec<IQ3_S, 2>;
template [[host_name("matvec_IQ3_S_r4")]] [[kernel]] decltype(matvec<IQ3_S, 4>) matvec<IQ3_S, 4>;
template [[host_name("matvec_IQ3_S_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ3_S, 1>) matvec_tg<IQ3_S, 1>;
template [[host_name("matvec_IQ3_S_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ3_S, 2>) matvec_tg<IQ3_S, 2>;
template [[host_name("matvec_IQ3_S_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ3_S, 4>) matvec_tg<IQ3_S, 4>;
template [[host_name("embed_IQ2_S")]] [[kernel]] decltype(embed<IQ2_S>) embed<IQ2_S>;
template [[host_name("mix_up_read_IQ2_S")]] [[kernel]] decltype(mix_up_read<IQ2_S>) mix_up_read<IQ2_S>;
template [[host_name("matvec_IQ2_S_r1")]] [[kernel]] decltype(matvec<IQ2_S, 1>) matvec<IQ2_S, 1>;
template [[host_name("matvec_IQ2_S_r2")]] [[kernel]] decltype(matvec<IQ2_S, 2>) matvec<IQ2_S, 2>;
template [[host_name("matvec_IQ2_S_r4")]] [[kernel]] decltype(matvec<IQ2_S, 4>) matvec<IQ2_S, 4>;
template [[host_name("matvec_IQ2_S_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ2_S, 1>) matvec_tg<IQ2_S, 1>;
template [[host_name("matvec_IQ2_S_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ2_S, 2>) matvec_tg<IQ2_S, 2>;
template [[host_name("matvec_IQ2_S_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ2_S, 4>) matvec_tg<IQ2_S, 4>;
template [[host_name("embed_IQ4_XS")]] [[kernel]] decltype(embed<IQ4_XS>) embed<IQ4_XS>;
template [[host_name("mix_up_read_IQ4_XS")]] [[kernel]] decltype(mix_up_read<IQ4_XS>) mix_up_read<IQ4_XS>;
template [[host_name("matvec_IQ4_XS_r1")]] [[kernel]] decltype(matvec<IQ4_XS, 1>) matvec<IQ4_XS, 1>;
template [[host_name("matvec_IQ4_XS_r2")]] [[kernel]] decltype(matvec<IQ4_XS, 2>) matvec<IQ4_XS, 2>;
template [[host_name("matvec_IQ4_XS_r4")]] [[kernel]] decltype(matvec<IQ4_XS, 4>) matvec<IQ4_XS, 4>;
template [[host_name("matvec_IQ4_XS_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ4_XS_Table, 1>) matvec_tg<IQ4_XS_Table, 1>;
template [[host_name("matvec_IQ4_XS_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ4_XS_Table, 2>) matvec_tg<IQ4_XS_Table, 2>;
template [[host_name("matvec_IQ4_XS_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ4_XS_Table, 4>) matvec_tg<IQ4_XS_Table, 4>;
template [[host_name("embed_IQ1_M")]] [[kernel]] decltype(embed<IQ1_M>) embed<IQ1_M>;
template [[host_name("mix_up_read_IQ1_M")]] [[kernel]] decltype(mix_up_read<IQ1_M>) mix_up_read<IQ1_M>;
template [[host_name("matvec_IQ1_M_r1")]] [[kernel]] decltype(matvec<IQ1_M, 1>) matvec<IQ1_M, 1>;
template [[host_name("matvec_IQ1_M_r2")]] [[kernel]] decltype(matvec<IQ1_M, 2>) matvec<IQ1_M, 2>;
template [[host_name("matvec_IQ1_M_r4")]] [[kernel]] decltype(matvec<IQ1_M, 4>) matvec<IQ1_M, 4>;
template [[host_name("matvec_IQ1_M_r1_tg")]] [[kernel]] decltype(matvec_tg<IQ1_M, 1>) matvec_tg<IQ1_M, 1>;
template [[host_name("matvec_IQ1_M_r2_tg")]] [[kernel]] decltype(matvec_tg<IQ1_M, 2>) matvec_tg<IQ1_M, 2>;
template [[host_name("matvec_IQ1_M_r4_tg")]] [[kernel]] decltype(matvec_tg<IQ1_M, 4>) matvec_tg<IQ1_M, 4>;
template [[host_name("embed_TQ1_0")]] [[kernel]] decltype(embed<TQ1_0>) embed<TQ1_0>;
template [[host_name("mix_up_read_TQ1_0")]] [[kernel]] decltype(mix_up_read<TQ1_0>) mix_up_read<TQ1_0>;
template [[host_name("matvec_TQ1_0_r1")]] [[kernel]] decltype(matvec<TQ1_0, 1>) matvec<TQ1_0, 1>;
template [[host_name("matvec_TQ1_0_r2")]] [[kernel]] decltype(matvec<TQ1_0, 2>) matvec<TQ1_0, 2>;
template [[host_name("matvec_TQ1_0_r4")]] [[kernel]] decltype(matvec<TQ1_0, 4>) matvec<TQ1_0, 4>;
template [[host_name("embed_TQ2_0")]] [[kernel]] decltype(embed<TQ2_0>) embed<TQ2_0>;
template [[host_name("mix_up_read_TQ2_0")]] [[kernel]] decltype(mix_up_read<TQ2_0>) mix_up_read<TQ2_0>;
template [[host_name("matvec_TQ2_0_r1")]] [[kernel]] decltype(matvec<TQ2_0, 1>) matvec<TQ2_0, 1>;
template [[host_name("matvec_TQ2_0_r2")]] [[kernel]] decltype(matvec<TQ2_0, 2>) matvec<TQ2_0, 2>;
template [[host_name("matvec_TQ2_0_r4")]] [[kernel]] decltype(matvec<TQ2_0, 4>) matvec<TQ2_0, 4>;
template [[host_name("embed_MXFP4")]] [[kernel]] decltype(embed<MXFP4>) embed<MXFP4>;
template [[host_name("mix_up_read_MXFP4")]] [[kernel]] decltype(mix_up_read<MXFP4>) mix_up_read<MXFP4>;
template [[host_name("matvec_MXFP4_r1")]] [[kernel]] decltype(matvec<MXFP4, 1>) matvec<MXFP4, 1>;
template [[host_name("matvec_MXFP4_r2")]] [[kernel]] decltype(matvec<MXFP4, 2>) matvec<MXFP4, 2>;
template [[host_name("matvec_MXFP4_r4")]] [[kernel]] decltype(matvec<MXFP4, 4>) matvec<MXFP4, 4>;
template [[host_name("embed_NVFP4")]] [[kernel]] decltype(embed<NVFP4>) embed<NVFP4>;
template [[host_name("mix_up_read_NVFP4")]] [[kernel]] decltype(mix_up_read<NVFP4>) mix_up_read<NVFP4>;
template [[host_name("matvec_NVFP4_r1")]] [[kernel]] decltype(matvec<NVFP4, 1>) matvec<NVFP4, 1>;
template [[host_name("matvec_NVFP4_r2")]] [[kernel]] decltype(matvec<NVFP4, 2>) matvec<NVFP4, 2>;
template [[host_name("matvec_NVFP4_r4")]] [[kernel]] decltype(matvec<NVFP4, 4>) matvec<NVFP4, 4>;
template [[host_name("embed_Q2_0")]] [[kernel]] decltype(embed<Q2_0>) embed<Q2_0>;
template [[host_name("mix_up_read_Q2_0")]] [[kernel]] decltype(mix_up_read<Q2_0>) mix_up_read<Q2_0>;
template [[host_name("matvec_Q2_0_r1")]] [[kernel]] decltype(matvec<Q2_0, 1>) matvec<Q2_0, 1>;
template [[host_name("matvec_Q2_0_r2")]] [[kernel]] decltype(matvec<Q2_0, 2>) matvec<Q2_0, 2>;
template [[host_name("matvec_Q2_0_r4")]] [[kernel]] decltype(matvec<Q2_0, 4>) matvec<Q2_0, 4>;
