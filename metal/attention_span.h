// SPDX-License-Identifier: MIT
//
// Dot products of many keys with many queries, and attention over one token's keys: chunk by chunk, span by
// span. A threadgroup's functions; all its threads call them.
#pragma once

#include <metal_stdlib>

#include "abi/kernel_args.h"
#include "common.h"

using namespace metal;

// The widest head, and a row of queries in threadgroup memory, in float4.
enum { kWidthMost = 256, kRow = kWidthMost / 4 };

inline float add_dot(float4 a, float4 b, float sum) {
  return fma(a.x, b.x, fma(a.y, b.y, fma(a.z, b.z, fma(a.w, b.w, sum))));
}

// Of 2 kHalf sums a lane keeps the upper half if `upper`, else the lower one, with those of the lane across
// added. After masks 4, 2 and 1 each of 8 lanes has an eighth of the sums over all 8, in one fixed order.
template <uint kHalf>
inline void add_across(thread float* sums, bool upper, ushort mask) {
#pragma clang loop unroll(full)
  for (uint i = 0; i < kHalf; ++i) {
    const float given = upper ? sums[i] : sums[i + kHalf];
    const float kept = upper ? sums[i + kHalf] : sums[i];
    sums[i] = kept + simd_shuffle_xor(given, mask);
  }
}

// --- who attends to what

// A threadgroup has one token and up to 12 query heads of one kv head, which share the loads of keys and
// values. Its keys are cut into chunks of 64.
// Scores: 8 lanes share a key, a simdgroup takes 16 keys and all heads. Softmax: a simdgroup takes 3 heads.
// Values: a thread takes 4 columns and 6 heads.
enum { kHeads = 12, kAttendThreads = 128, kStatHeads = 3, kOwnHeads = 6 };
enum { kScoreSums = 4 * kHeads };
enum { kValueBatch = 8 };  // values that a thread loads at a time
static_assert(uint(kAttentionChunk) == 64u, "16 keys a simdgroup; two a lane for the softmax");

// One token's keys in order: those of the selected blocks, then those that no block has.
struct KeyList {
  device const int* blocks;
  uint ratio, in_blocks, tail;  // tail: position of the first key that no block has
  uint n;
};

inline KeyList list_keys(constant AttentionArgs& args, device const int* selected, uint token) {
  const uint end = args.position + token + 1;
  KeyList list = {selected, args.ratio, 0, 0, end};
  if (args.ratio > 0) {
    device const int* row = selected + ulong(token) * (1 + args.keep);
    list.blocks = row + 1;
    list.in_blocks = uint(row[0]) * args.ratio;
    list.tail = end / args.ratio * args.ratio;
    list.n = list.in_blocks + end - list.tail;
  }
  return list;
}

inline uint key_position(thread const KeyList& list, uint i) {
  if (i >= list.in_blocks) return list.tail + i - list.in_blocks;
  return uint(list.blocks[i / list.ratio]) * list.ratio + i % list.ratio;
}

// The keys are cut into chunks, the chunks into spans as even as can be.
inline uint count_chunks(thread const KeyList& list) {
  return (list.n + kAttentionChunk - 1) / kAttentionChunk;
}
inline uint count_spans(thread const KeyList& list) {
  return min(count_chunks(list), uint(kAttentionSpans));
}

struct HeadBatch {
  uint kv, first, count;  // kv head, its query heads [first, first + count)
};

inline uint head_batches(constant AttentionArgs& args) {
  return (args.n_head / args.n_kv_head + kHeads - 1) / kHeads;
}
inline HeadBatch head_batch(constant AttentionArgs& args, uint group) {
  const uint each = args.n_head / args.n_kv_head;
  const uint kv = group / head_batches(args);
  const uint begin = group % head_batches(args) * kHeads;
  const HeadBatch batch = {kv, kv * each + begin, min(each - begin, uint(kHeads))};
  return batch;
}

// A thread of a group that attends. Widths and offsets are in float4.
struct Attender {
  device const float4* keys;  // the kv head's at position 0
  device const float4* values;
  KeyList list;
  uint width;   // of a head
  uint stride;  // of a position
  float scale;
  uint simdgroup_index, lane;
  uint column, first_own;  // of the sums of values that this thread has
};

inline Attender make_attender(constant AttentionArgs& args, device const float* keys,
                              device const float* values, device const int* selected, uint token, uint kv,
                              uint simdgroup_index, uint lane) {
  Attender a;
  a.list = list_keys(args, selected, token);
  a.width = args.d_head / 4;
  a.stride = args.n_kv_head * a.width;
  a.keys = (device const float4*)keys + kv * a.width;
  a.values = (device const float4*)values + kv * a.width;
  a.scale = args.scale;
  a.simdgroup_index = simdgroup_index;
  a.lane = lane;
  a.column = simdgroup_index % 2 * 32 + lane;
  a.first_own = simdgroup_index / 2 * kOwnHeads;
  return a;
}

// The group's threadgroup memory. Weights and rows are those of two chunks in turn: while some simdgroups
// still add up the values of one, others score the next.
struct Shared {
  threadgroup float4* q;       // [kHeads][kRow]
  threadgroup float* weights;  // [2][kAttentionChunk][kHeads]
  threadgroup ulong* rows;     // [2][kAttentionChunk]: where a key and its value lie
  threadgroup float* fade;     // [kHeads]: what a span's sums before the chunk count for
  threadgroup float* shares;   // [3][kHeads]: of the spans before, of this one; the sum of all
};

// The queries to threadgroup memory, zeros for heads that are not there.
inline void load_queries(thread const Attender& a, device const float* q, uint first_head, uint n_heads,
                         threadgroup float4* to) {
  device const float4* from = (device const float4*)q + ulong(first_head) * a.width;
  for (uint i = 32 * a.simdgroup_index + a.lane; i < kHeads * kRow; i += kAttendThreads) {
    const uint head = i / kRow;
    const uint column = i % kRow;
    if (column < a.width) to[i] = head < n_heads ? from[head * a.width + column] : float4(0.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// --- softmax

// Of a simdgroup's heads: the largest score and the sum of e^(score - top), of the span at hand and of all
// spans so far.
struct Softmax {
  float top[kStatHeads], sum[kStatHeads];
  float all_top[kStatHeads], all_sum[kStatHeads];
};

inline void start_all(thread Softmax& softmax) {
#pragma clang loop unroll(full)
  for (uint r = 0; r < kStatHeads; ++r) {
    softmax.all_top[r] = -INFINITY;
    softmax.all_sum[r] = 0.0f;
  }
}
inline void start_span(thread Softmax& softmax) {
#pragma clang loop unroll(full)
  for (uint r = 0; r < kStatHeads; ++r) {
    softmax.top[r] = -INFINITY;
    softmax.sum[r] = 0.0f;
  }
}

// What sums with the one top and sums with the other count for when they are joined.
struct Shares {
  float top, before, next;
};
inline Shares share(float top, float next_top) {
  const float most = max(top, next_top);
  const Shares s = {most, precise::exp(top - most), precise::exp(next_top - most)};
  return s;
}

// The roundings of a join, whoever does it: nothing here that a compiler might fuse in one kernel only.
inline float join(float before, float share_before, float next, float share_next) {
  return fma(before, share_before, next * share_next);
}
inline float4 join(float4 before, float share_before, float4 next, float share_next) {
  return fma(before, float4(share_before), next * share_next);
}

// Four values of a gated head.
inline float4 finish(float4 o, float sum, float4 gate) {
  return float4{o.x / sum * sigma(gate.x), o.y / sum * sigma(gate.y), o.z / sum * sigma(gate.z),
                o.w / sum * sigma(gate.w)};
}

// --- a chunk: score its keys, weigh them, add up its values

// Scores of the n keys from first_key on to `weights`, and where they lie to `rows`.
inline void score_chunk(thread const Attender& a, threadgroup const float4* q, uint first_key, uint n,
                        threadgroup float* weights, threadgroup ulong* rows) {
  if (16 * a.simdgroup_index >= n) return;
  const uint part = a.lane % 8;
  const uint first = 16 * a.simdgroup_index + a.lane / 8;  // of the lane's keys, which are 4 apart
  ulong row[4];
#pragma clang loop unroll(full)
  for (uint i = 0; i < 4; ++i) {
    row[i] = ulong(key_position(a.list, first_key + min(first + 4 * i, n - 1))) * a.stride;
    if (part == i && first + 4 * i < n) rows[first + 4 * i] = row[i];
  }
  float sums[kScoreSums];  // [key][head]
#pragma clang loop unroll(full)
  for (uint i = 0; i < kScoreSums; ++i) sums[i] = 0.0f;
  for (uint c = part; c < a.width; c += 8) {
    float4 k[4];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; ++i) k[i] = a.keys[row[i] + c];
#pragma clang loop unroll(full)
    for (uint h = 0; h < kHeads; ++h) {
      const float4 x = q[h * kRow + c];
#pragma clang loop unroll(full)
      for (uint i = 0; i < 4; ++i) sums[i * kHeads + h] = add_dot(x, k[i], sums[i * kHeads + h]);
    }
  }
  add_across<kScoreSums / 2>(sums, (part & 4u) != 0, 4);
  add_across<kScoreSums / 4>(sums, (part & 2u) != 0, 2);
  add_across<kScoreSums / 8>(sums, (part & 1u) != 0, 1);
  // Left are 6 heads of one key.
  const uint key = first + 4 * (part / 2);
  if (key >= n) return;
  threadgroup float* to = weights + key * kHeads + part % 2 * 6;
#pragma clang loop unroll(full)
  for (uint i = 0; i < 6; ++i) to[i] = sums[i] * a.scale;
}

// Scores to weights e^(score - top). Where a chunk raises the top, what was summed up before it fades.
inline void weigh_chunk(thread const Attender& a, uint n, threadgroup float* weights,
                        threadgroup float* fade, thread Softmax& softmax) {
#pragma clang loop unroll(full)
  for (uint r = 0; r < kStatHeads; ++r) {
    const uint h = a.simdgroup_index * kStatHeads + r;
    threadgroup float* w0 = weights + a.lane * kHeads + h;
    threadgroup float* w1 = w0 + 32 * kHeads;
    const float s0 = a.lane < n ? *w0 : -INFINITY;
    const float s1 = a.lane + 32 < n ? *w1 : -INFINITY;
    const Shares s = share(softmax.top[r], simd_max(max(s0, s1)));
    const float e0 = precise::exp(s0 - s.top);
    const float e1 = precise::exp(s1 - s.top);
    if (a.lane < n) *w0 = e0;
    if (a.lane + 32 < n) *w1 = e1;
    if (a.lane == 0) fade[h] = s.before;
    softmax.top[r] = s.top;
    softmax.sum[r] = fma(softmax.sum[r], s.before, simd_sum(e0 + e1));
  }
}

// Joins a span's softmax to that of those before, and leaves the shares to those who have the values' sums.
inline void join_span(thread const Attender& a, threadgroup float* shares, thread Softmax& softmax) {
#pragma clang loop unroll(full)
  for (uint r = 0; r < kStatHeads; ++r) {
    const uint h = a.simdgroup_index * kStatHeads + r;
    const Shares s = share(softmax.all_top[r], softmax.top[r]);
    softmax.all_top[r] = s.top;
    softmax.all_sum[r] = join(softmax.all_sum[r], s.before, softmax.sum[r], s.next);
    if (a.lane == 0) {
      shares[h] = s.before;
      shares[kHeads + h] = s.next;
      shares[2 * kHeads + h] = softmax.all_sum[r];
    }
  }
}

inline void add_value(float4 v, threadgroup const float* weights, thread float4* o) {
  threadgroup const float2* w = (threadgroup const float2*)weights;
#pragma clang loop unroll(full)
  for (uint i = 0; i < kOwnHeads / 2; ++i) {
    const float2 pair = w[i];
    o[2 * i] = fma(v, float4(pair.x), o[2 * i]);
    o[2 * i + 1] = fma(v, float4(pair.y), o[2 * i + 1]);
  }
}

// o += weights values, over the chunk's n keys.
inline void add_values(thread const Attender& a, threadgroup const ulong* rows,
                       threadgroup const float* weights, uint n, thread float4* o) {
  device const float4* values = a.values + a.column;
  threadgroup const float* w = weights + a.first_own;
  uint i = 0;
  for (; i + kValueBatch <= n; i += kValueBatch) {
    float4 v[kValueBatch];
#pragma clang loop unroll(full)
    for (uint j = 0; j < kValueBatch; ++j) v[j] = values[rows[i + j]];
#pragma clang loop unroll(full)
    for (uint j = 0; j < kValueBatch; ++j) add_value(v[j], w + (i + j) * kHeads, o);
  }
  for (; i < n; ++i) add_value(values[rows[i]], w + i * kHeads, o);
}

// One span: o becomes the thread's sums of values, softmax.top and .sum are the span's. `chunk` counts the
// chunks that the group has done. With kJoin the span is joined to those before it, but for o.
template <bool kJoin>
inline void attend_span(thread const Attender& a, thread const Shared& shared, uint span,
                        thread uint& chunk, thread Softmax& softmax, thread float4* o) {
  const uint chunks = count_chunks(a.list);
  const uint spans = count_spans(a.list);
  const uint begin = span * chunks / spans;
  const uint end = (span + 1) * chunks / spans;
  start_span(softmax);
#pragma clang loop unroll(full)
  for (uint h = 0; h < kOwnHeads; ++h) o[h] = float4(0.0f);
  for (uint i = begin; i < end; ++i, ++chunk) {
    const uint n = min(a.list.n - i * kAttentionChunk, uint(kAttentionChunk));
    threadgroup float* weights = shared.weights + chunk % 2 * (kAttentionChunk * kHeads);
    threadgroup ulong* rows = shared.rows + chunk % 2 * kAttentionChunk;
    score_chunk(a, shared.q, i * kAttentionChunk, n, weights, rows);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    weigh_chunk(a, n, weights, shared.fade, softmax);
    if (kJoin && i + 1 == end) join_span(a, shared.shares, softmax);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (a.column >= a.width) continue;
    if (i > begin) {
#pragma clang loop unroll(full)
      for (uint h = 0; h < kOwnHeads; ++h) o[h] = o[h] * shared.fade[a.first_own + h];
    }
    add_values(a, rows, weights, n, o);
  }
}
