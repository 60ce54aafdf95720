// SPDX-License-Identifier: MIT
//
// Full attention with the QSA indexer (SPEC 6): queries, keys and values made ready, the keys of blocks,
// their scores, the best of them, and attention over what was selected.
// Whatever a token's result depends on is fixed by its position: which lanes add up a dot product, which
// keys form a chunk, which chunks a span, and in what order all are added. So it has the same bits in a
// window and in a prompt of any size.
// Reference: csrc/backends/cpu/ops_attention.cpp.

#include <metal_stdlib>

#include "abi/kernel_args.h"
#include "attention_span.h"
#include "common.h"

using namespace metal;

// --- queries, keys and values

// What norm_and_turn reads: a row as it stands, or the mean of a block's raw keys.
struct PlainRow {
  device const float* x;
};
inline float value_at(thread const PlainRow& row, uint i) {
  return row.x[i];
}

struct BlockMean {
  device const float* old_tail;
  device const float* raw;
  uint first, position, ratio, d;  // first: position of the block's first key
};
inline float value_at(thread const BlockMean& block, uint i) {
  float sum = 0.0f;
  for (uint k = 0; k < block.ratio; ++k) {
    const uint p = block.first + k;
    sum += p < block.position ? block.old_tail[k * block.d + i]
                              : block.raw[ulong(p - block.position) * block.d + i];
  }
  return sum / float(block.ratio);
}

// to = rope(rms(row; gamma)) by a simdgroup, all of whose lanes call this: pairs (j, j + n_rope / 2) turn by
// the angles of `turn`, n_rope / 2 cosines and as many sines.
template <typename Row>
inline void norm_and_turn(thread const Row& row, device const float* gamma, device const float* turn,
                          device float* to, uint d, uint n_rope, float eps, uint lane) {
  float squares = 0.0f;
  for (uint i = lane; i < d; i += 32) {
    const float x = value_at(row, i);
    squares = fma(x, x, squares);
  }
  squares = simd_sum(squares);
  const float s = inverse_rms(squares, d, eps);
  const uint half_rope = n_rope / 2;
  for (uint j = lane; j < half_rope; j += 32) {
    const float a = value_at(row, j) * s * gamma[j];
    const float b = value_at(row, j + half_rope) * s * gamma[j + half_rope];
    const float c = turn[j];
    const float z = turn[half_rope + j];
    to[j] = a * c - b * z;
    to[j + half_rope] = b * c + a * z;
  }
  for (uint i = n_rope + lane; i < d; i += 32) to[i] = value_at(row, i) * s * gamma[i];
}

// A simdgroup a row: the token's query heads, its keys, its values.
// grid: groups (n_head + 2 n_kv_head, tokens, 1) of 32 threads
[[kernel]] void attn_prepare(constant AttnPrepareArgs& args [[buffer(0)]],
                             device const float* queries [[buffer(1)]],
                             device const float* k [[buffer(2)]],
                             device const float* v [[buffer(3)]],
                             device const float* query_gamma [[buffer(4)]],
                             device const float* key_gamma [[buffer(5)]],
                             device const float* turns [[buffer(6)]],
                             device float* out [[buffer(7)]],
                             device float* keys [[buffer(8)]],
                             device float* values [[buffer(9)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  const uint d = args.d_head;
  const uint n_kv = args.n_kv_head;
  const ulong t = group.y;
  const ulong position = args.position + t;
  device const float* turn = turns + (position - args.first_turn) * args.n_rope;
  if (group.x < args.n_head) {
    const ulong head = t * args.n_head + group.x;
    const PlainRow row = {queries + head * 2 * d};
    norm_and_turn(row, query_gamma, turn, out + head * d, d, args.n_rope, args.eps, lane);
  } else if (group.x < args.n_head + n_kv) {
    const uint head = group.x - args.n_head;
    const PlainRow row = {k + (t * n_kv + head) * d};
    norm_and_turn(row, key_gamma, turn, keys + (position * n_kv + head) * d, d, args.n_rope, args.eps, lane);
  } else if (group.x < args.n_head + 2 * n_kv) {
    const uint head = group.x - args.n_head - n_kv;
    device const float* from = v + (t * n_kv + head) * d;
    device float* to = values + (position * n_kv + head) * d;
    for (uint i = lane; i < d; i += 32) to[i] = from[i];
  }
}

// A simdgroup a row: the token's index queries; the key of the block that it completes, if it does; and rows
// t, t + tokens, ... of the new tail.
// grid: groups (n_head + 2, tokens, 1) of 32 threads
[[kernel]] void index_prepare(constant IndexPrepareArgs& args [[buffer(0)]],
                              device const float* queries [[buffer(1)]],
                              device const float* raw [[buffer(2)]],
                              device const float* query_gamma [[buffer(3)]],
                              device const float* key_gamma [[buffer(4)]],
                              device const float* turns [[buffer(5)]],
                              device const float* old_tail [[buffer(6)]],
                              device float* new_tail [[buffer(7)]],
                              device float* out [[buffer(8)]],
                              device float* block_keys [[buffer(9)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              uint lane [[thread_index_in_simdgroup]]) {
  const uint d = args.d;
  const uint ratio = args.ratio;
  const uint next = args.position + group.y + 1;
  if (group.x < args.n_head) {
    const ulong head = ulong(group.y) * args.n_head + group.x;
    device const float* turn = turns + ulong(next - 1 - args.first_turn) * args.n_rope;
    const PlainRow row = {queries + head * d};
    norm_and_turn(row, query_gamma, turn, out + head * d, d, args.n_rope, args.eps, lane);
  } else if (group.x == args.n_head) {
    if (next % ratio != 0) return;
    const uint first = next - ratio;
    device const float* turn = turns + ulong(first - args.first_turn) * args.n_rope;
    const BlockMean block = {old_tail, raw, first, args.position, ratio, d};
    device float* to = block_keys + ulong(first / ratio) * d;
    norm_and_turn(block, key_gamma, turn, to, d, args.n_rope, args.eps, lane);
  } else if (group.x == args.n_head + 1) {
    const uint end = args.position + args.tokens;
    for (uint k = group.y; k < ratio; k += args.tokens) {
      const uint p = end / ratio * ratio + k;
      device const float* from =
          p < args.position ? old_tail + ulong(k) * d : raw + ulong(p - args.position) * d;
      for (uint i = lane; i < d; i += 32) new_tail[ulong(k) * d + i] = p < end ? from[i] : 0.0f;
    }
  }
}

// --- scores of blocks

enum { kScoreTokens = 4, kScoreHeads = 4, kBlockSums = 4 * kScoreTokens * kScoreHeads };
enum { kScoreThreads = 128, kScoreBlocks = 64 };  // 8 lanes share a block, a simdgroup takes 16

// Blocks that a query at `position` sees whole.
inline uint whole_blocks(constant BlockSelectArgs& args, uint token) {
  return (args.position + token + 1) / args.ratio;
}

// Four tokens share the loads of 64 keys. Nothing is computed where all blocks will be kept anyway.
// Needs: d a multiple of 4 up to 256; any number of heads.
// grid: groups (ceil(((position + tokens) / ratio) / 64), ceil(tokens / 4), 1) of 128 threads
[[kernel]] void block_scores(constant BlockSelectArgs& args [[buffer(0)]],
                             device const float* queries [[buffer(1)]],
                             device const float* block_keys [[buffer(2)]],
                             device float* scores [[buffer(3)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]],
                             uint simdgroup_index [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 q[kScoreTokens * kScoreHeads * kRow];
  const uint first_token = group.y * kScoreTokens;
  const uint n_tokens = min(args.tokens - first_token, uint(kScoreTokens));
  const uint blocks = whole_blocks(args, first_token + n_tokens - 1);  // as the last of the tokens sees them
  const uint first = group.x * kScoreBlocks + 16 * simdgroup_index;
  if (blocks <= args.keep || group.x * kScoreBlocks >= blocks) return;

  const uint width = args.d / 4;
  device const float4* queries4 = (device const float4*)queries;
  device const float4* keys4 = (device const float4*)block_keys;
  const uint part = lane % 8;
  ulong rows[4];
  for (uint i = 0; i < 4; ++i) rows[i] = ulong(min(first + 4 * i + lane / 8, blocks - 1)) * width;

  float total[2] = {0.0f, 0.0f};
  for (uint first_head = 0; first_head < args.n_head; first_head += kScoreHeads) {
    if (first_head > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < kScoreTokens * kScoreHeads * kRow; i += kScoreThreads) {
      const uint token = i / (kScoreHeads * kRow);
      const uint head = first_head + i / kRow % kScoreHeads;
      const uint c = i % kRow;
      if (token < n_tokens && c < width) {
        q[i] = head < args.n_head
                   ? queries4[(ulong(first_token + token) * args.n_head + head) * width + c]
                   : float4(0.0f);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (first >= blocks) continue;

    // Sums of [token][key][head].
    float sums[kBlockSums];
#pragma clang loop unroll(full)
    for (uint i = 0; i < kBlockSums; ++i) sums[i] = 0.0f;
    for (uint c = part; c < width; c += 8) {
      const float4 k[4] = {keys4[rows[0] + c], keys4[rows[1] + c], keys4[rows[2] + c], keys4[rows[3] + c]};
#pragma clang loop unroll(full)
      for (uint t = 0; t < kScoreTokens; ++t) {
        if (t < n_tokens) {
#pragma clang loop unroll(full)
          for (uint h = 0; h < kScoreHeads; ++h) {
            const float4 x = q[(t * kScoreHeads + h) * kRow + c];
#pragma clang loop unroll(full)
            for (uint i = 0; i < 4; ++i) {
              const uint s = (4 * t + i) * kScoreHeads + h;
              sums[s] = add_dot(x, k[i], sums[s]);
            }
          }
        }
      }
    }
    add_across<32>(sums, (part & 4u) != 0, 4);
    add_across<16>(sums, (part & 2u) != 0, 2);
    add_across<8>(sums, (part & 1u) != 0, 1);
#pragma clang loop unroll(full)
    for (uint i = 0; i < 8; ++i) {
      total[i / kScoreHeads] += sums[i] > 0.0f ? sums[i] : 0.0f;  // a NaN counts as 0
    }
  }

  const uint token = part / 2;
  if (token >= n_tokens) return;
  const uint seen = whole_blocks(args, first_token + token);
  for (uint i = 0; i < 2; ++i) {
    const uint block = first + 4 * (2 * (part % 2) + i) + lane / 8;
    if (block < seen) scores[ulong(first_token + token) * args.score_stride + block] = total[i];
  }
}

// --- the best blocks

enum { kSelectThreads = 1024, kSelectSimds = kSelectThreads / 32, kBins = 2048 };
enum { kTile = 128 };  // scores that a simdgroup loads at a time
enum { kNoBin = 0xffffffffu };

// Scores are not negative, so their bits have their order; NaN counts as 0.
inline uint score_key(float score) {
  return score > 0.0f ? as_type<uint>(score) : 0u;
}

// Keys of scores [i, i + 4) of the n; 0 for those that are not there, which come after all others and so
// are never chosen.
inline uint4 score_keys(device const float* scores, uint i, uint n) {
  if (i >= n) return uint4{0u, 0u, 0u, 0u};
  const float4 s = *(device const float4*)(scores + i);
  return uint4{score_key(s.x), i + 1 < n ? score_key(s.y) : 0u, i + 2 < n ? score_key(s.z) : 0u,
               i + 3 < n ? score_key(s.w) : 0u};
}

// Counts a key whose bits above the digit are `above`. Zeros are never counted: there may be very many of
// them, and they are what is left over.
inline void count_key(threadgroup atomic_uint* bins, uint key, uint above, uint shift, uint bits) {
  if (key != 0 && key >> (shift + bits) == above) {
    atomic_fetch_add_explicit(&bins[key >> shift & ((1u << bits) - 1u)], 1u, memory_order_relaxed);
  }
}

inline uint count_larger(uint4 keys, uint least) {
  return uint(keys.x > least) + uint(keys.y > least) + uint(keys.z > least) + uint(keys.w > least);
}
inline uint count_equal(uint4 keys, uint least) {
  return uint(keys.x == least) + uint(keys.y == least) + uint(keys.z == least) + uint(keys.w == least);
}

// The keep best of the n blocks that a token sees whole. The keep-th largest key is found digit by digit
// (11, 10 and 10 bits of 31), each with one pass over the scores; then every simdgroup counts, and at last
// writes, the chosen of its share of the blocks, in order.
// Needs: score_stride a multiple of 4.
// grid: groups (tokens, 1, 1) of 1024 threads
[[kernel]] [[max_total_threads_per_threadgroup(1024)]] void block_select(
    constant BlockSelectArgs& args [[buffer(0)]],
    device const float* scores [[buffer(1)]],
    device int* out [[buffer(2)]],
    uint token [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup_index [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup atomic_uint bins[kBins];
  threadgroup uint parts[2 * kSelectSimds];
  threadgroup uint found[2];  // the bin with the key that is looked for, and which of the bin's it is
  const uint n = whole_blocks(args, token);
  device const float* row = scores + ulong(token) * args.score_stride;
  device int* to = out + ulong(token) * (1 + args.keep);
  if (thread_index == 0) to[0] = int(min(n, args.keep));
  if (n <= args.keep) {
    for (uint i = thread_index; i < n; i += kSelectThreads) to[1 + i] = int(i);
    return;
  }

  const uint tiles = (n + kTile - 1) / kTile;
  const uint begin = ulong(simdgroup_index) * tiles / kSelectSimds * kTile;
  const uint end = min(uint(ulong(simdgroup_index + 1) * tiles / kSelectSimds * kTile), n);

  uint least = 0;         // the digits found so far, at last the keep-th largest key
  uint want = args.keep;  // how many of those with these digits are chosen
  for (uint digit = 0; digit < 3; ++digit) {
    const uint bits = digit == 0 ? 11 : 10;
    const uint shift = 20 - 10 * digit;
    const uint each = digit == 0 ? 2 : 1;  // bins a thread
    for (uint i = thread_index; i < each * kSelectThreads; i += kSelectThreads) {
      atomic_store_explicit(&bins[i], 0u, memory_order_relaxed);
    }
    if (thread_index == 0) found[0] = kNoBin;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = begin + 4 * lane; i < end; i += kTile) {
      const uint4 key = score_keys(row, i, n);
      count_key(bins, key.x, least, shift, bits);
      count_key(bins, key.y, least, shift, bits);
      count_key(bins, key.z, least, shift, bits);
      count_key(bins, key.w, least, shift, bits);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Bins from the highest on: each thread has one or two, and knows how many keys lie above them.
    const uint top = each * (kSelectThreads - thread_index) - 1;
    const uint upper = atomic_load_explicit(&bins[top], memory_order_relaxed);
    uint own = upper;
    if (each == 2) own += atomic_load_explicit(&bins[top - 1], memory_order_relaxed);
    uint above = simd_prefix_exclusive_sum(own);
    if (lane == 31) parts[simdgroup_index] = above + own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint all = parts[lane];
    above += simd_sum(lane < simdgroup_index ? all : 0u);
    if (above < want && want <= above + own) {
      const bool is_upper = want <= above + upper;
      found[0] = is_upper ? top : top - 1;
      found[1] = is_upper ? want - above : want - above - upper;
    }
    const uint counted = simd_sum(all);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (found[0] == kNoBin) {  // fewer than wanted are more than 0: the first of the zeros as well
      least = 0;
      want -= counted;
      break;
    }
    least = least << bits | found[0];
    want = found[1];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  uint larger = 0;
  uint equal = 0;
  for (uint i = begin + 4 * lane; i < end; i += kTile) {
    const uint4 key = score_keys(row, i, n);
    larger += count_larger(key, least);
    equal += count_equal(key, least);
  }
  larger = simd_sum(larger);
  equal = simd_sum(equal);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    parts[simdgroup_index] = larger;
    parts[kSelectSimds + simdgroup_index] = equal;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  larger = simd_sum(lane < simdgroup_index ? parts[lane] : 0u);
  equal = simd_sum(lane < simdgroup_index ? parts[kSelectSimds + lane] : 0u);

  // Before block i, `larger` and the first `want` of `equal` blocks are chosen.
  for (uint tile = begin; tile < end; tile += kTile) {
    const uint i = tile + 4 * lane;
    const uint4 key = score_keys(row, i, n);
    const uint own = count_larger(key, least) | count_equal(key, least) << 16;
    const uint before = simd_prefix_exclusive_sum(own);
    uint l = larger + (before & 0xffffu);
    uint q = equal + (before >> 16);
#pragma clang loop unroll(full)
    for (uint e = 0; e < 4; ++e) {
      const bool is_larger = key[e] > least;
      const bool is_equal = key[e] == least;
      if (is_larger || (is_equal && q < want)) to[1 + l + min(q, want)] = int(i + e);
      l += uint(is_larger);
      q += uint(is_equal);
    }
    const uint all = simd_sum(own);
    larger += all & 0xffffu;
    equal += all >> 16;
  }
}

// --- attention

// Where a token's spans are joined differs, the bits do not: `attention` joins as it goes; with
// attention_part the spans run side by side, and attention_join does the same sums in the same order.

// For prompts: a group has all spans of its token.
// Needs: d_head a multiple of 4 up to 256.
// grid: groups (n_kv_head ceil((n_head / n_kv_head) / 12), tokens, 1) of 128 threads
[[kernel]] void attention(constant AttentionArgs& args [[buffer(0)]],
                          device const float* q [[buffer(1)]],
                          device const float* queries_and_gates [[buffer(2)]],
                          device const float* keys [[buffer(3)]],
                          device const float* values [[buffer(4)]],
                          device const int* selected [[buffer(5)]],
                          device float* out [[buffer(6)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint simdgroup_index [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 shared_q[kHeads * kRow];
  threadgroup float weights[2 * kAttentionChunk * kHeads];
  threadgroup ulong rows[2 * kAttentionChunk];
  threadgroup float fade[kHeads];
  threadgroup float shares[3 * kHeads];
  const Shared shared = {shared_q, weights, rows, fade, shares};
  const HeadBatch batch = head_batch(args, group.x);
  const Attender a = make_attender(args, keys, values, selected, group.y, batch.kv, simdgroup_index, lane);
  const uint first_head = group.y * args.n_head + batch.first;
  load_queries(a, q, first_head, batch.count, shared_q);

  Softmax softmax;
  start_all(softmax);
  float4 all[kOwnHeads];
#pragma clang loop unroll(full)
  for (uint h = 0; h < kOwnHeads; ++h) all[h] = float4(0.0f);
  uint chunk = 0;
  const uint spans = count_spans(a.list);
  for (uint span = 0; span < spans; ++span) {
    float4 o[kOwnHeads];
    attend_span<true>(a, shared, span, chunk, softmax, o);
#pragma clang loop unroll(full)
    for (uint h = 0; h < kOwnHeads; ++h) {
      threadgroup const float* s = shares + a.first_own + h;
      all[h] = join(all[h], s[0], o[h], s[kHeads]);
    }
  }

  if (a.column >= a.width) return;
#pragma clang loop unroll(full)
  for (uint h = 0; h < kOwnHeads; ++h) {
    const uint own = a.first_own + h;
    if (own < batch.count) {
      const ulong row = ulong(first_head + own) * a.width;
      const float4 gate = ((device const float4*)queries_and_gates)[2 * row + a.width + a.column];
      ((device float4*)out)[row + a.column] = finish(all[h], shares[2 * kHeads + own], gate);
    }
  }
}

// Where attention_part leaves the span's top and sum, after all sums of values.
inline ulong span_stats(constant AttentionArgs& args, ulong head, uint span) {
  return ulong(args.tokens) * args.n_head * args.spans * args.d_head + 2 * (head * args.spans + span);
}

// For windows: a group has one span of its token. parts: sums of values [T, H, spans, hd], then top and sum
// of the softmax [T, H, spans, 2].
// Needs: d_head a multiple of 4 up to 256.
// grid: groups (spans, n_kv_head ceil((n_head / n_kv_head) / 12), tokens) of 128 threads
[[kernel]] void attention_part(constant AttentionArgs& args [[buffer(0)]],
                               device const float* q [[buffer(1)]],
                               device const float* keys [[buffer(2)]],
                               device const float* values [[buffer(3)]],
                               device const int* selected [[buffer(4)]],
                               device float* parts [[buffer(5)]],
                               uint3 group [[threadgroup_position_in_grid]],
                               uint simdgroup_index [[simdgroup_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 shared_q[kHeads * kRow];
  threadgroup float weights[2 * kAttentionChunk * kHeads];
  threadgroup ulong rows[2 * kAttentionChunk];
  threadgroup float fade[kHeads];
  const Shared shared = {shared_q, weights, rows, fade, fade};
  const uint span = group.x;
  const HeadBatch batch = head_batch(args, group.y);
  const Attender a = make_attender(args, keys, values, selected, group.z, batch.kv, simdgroup_index, lane);
  if (span >= count_spans(a.list)) return;
  const uint first_head = group.z * args.n_head + batch.first;
  load_queries(a, q, first_head, batch.count, shared_q);

  Softmax softmax;
  float4 o[kOwnHeads];
  uint chunk = 0;
  attend_span<false>(a, shared, span, chunk, softmax, o);

#pragma clang loop unroll(full)
  for (uint h = 0; h < kOwnHeads; ++h) {
    const uint own = a.first_own + h;
    if (own < batch.count && a.column < a.width) {
      const ulong row = (ulong(first_head + own) * args.spans + span) * a.width;
      ((device float4*)parts)[row + a.column] = o[h];
    }
  }
#pragma clang loop unroll(full)
  for (uint r = 0; r < kStatHeads; ++r) {
    const uint own = simdgroup_index * kStatHeads + r;
    if (own < batch.count && lane == 0) {
      device float* stats = parts + span_stats(args, first_head + own, span);
      stats[0] = softmax.top[r];
      stats[1] = softmax.sum[r];
    }
  }
}

enum { kJoinBatch = 8 };  // spans whose sums are loaded at a time

// grid: groups (n_head, tokens, 1) of 64 threads
[[kernel]] void attention_join(constant AttentionArgs& args [[buffer(0)]],
                               device const float* parts [[buffer(1)]],
                               device const float* queries_and_gates [[buffer(2)]],
                               device const int* selected [[buffer(3)]],
                               device float* out [[buffer(4)]],
                               uint2 group [[threadgroup_position_in_grid]],
                               uint column [[thread_index_in_threadgroup]]) {
  const KeyList list = list_keys(args, selected, group.y);
  const uint spans = count_spans(list);
  const uint width = args.d_head / 4;
  if (column >= width) return;
  const ulong head = ulong(group.y) * args.n_head + group.x;
  device const float4* values = (device const float4*)parts + head * args.spans * width + column;
  device const float2* stats = (device const float2*)(parts + span_stats(args, head, 0));
  float top = -INFINITY;
  float sum = 0.0f;
  float4 o = float4(0.0f);
  for (uint i = 0; i < spans; i += kJoinBatch) {
    float4 v[kJoinBatch];
    float2 stat[kJoinBatch];
#pragma clang loop unroll(full)
    for (uint j = 0; j < kJoinBatch; ++j) {
      const uint span = min(i + j, spans - 1);
      v[j] = values[span * width];
      stat[j] = stats[span];
    }
#pragma clang loop unroll(full)
    for (uint j = 0; j < kJoinBatch; ++j) {
      if (i + j < spans) {
        const Shares s = share(top, stat[j].x);
        top = s.top;
        sum = join(sum, s.before, stat[j].y, s.next);
        o = join(o, s.before, v[j], s.next);
      }
    }
  }
  const float4 gate = ((device const float4*)queries_and_gates)[(2 * head + 1) * width + column];
  ((device float4*)out)[head * width + column] = finish(o, sum, gate);
}
