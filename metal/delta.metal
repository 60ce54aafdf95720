// SPDX-License-Identifier: MIT
//
// Gated delta net (SPEC section 4): convolution, gates, the recurrence token by token and in chunks, and
// the norm of its output. Value head j uses key head j mod nk; head sizes d go up to 256.
#include <metal_stdlib>
#include "abi/kernel_args.h"
#include "common.h"
#include "delta_chunk.h"
using namespace metal;

enum {
  kMaxHead = 256,
  kHeadSimds = 4,  // simdgroups of a group that has a head each
  kHeadThreads = 32 * kHeadSimds,
};

// out = silu(conv(qkv)); heads of q and k of unit length, q over sqrt(d). A simdgroup has one head of one
// token. Row t < 0 of the input is row history + t of `before`, history = taps - 1. Token t is row
// t - (tokens - history) of `after`, if that is one; where the run is shorter than the history, token 0's
// threads move the rest up. `before` and `after` are different memory, and so are `qkv` and `out`.
// grid: groups (ceil((2 nk + nv) / 4), tokens) of 128 threads
[[kernel]] void gdn_conv(
    constant GdnConvArgs& args [[buffer(0)]],
    device const float* qkv [[buffer(1)]],
    device const float* taps [[buffer(2)]],
    device float* out [[buffer(3)]],
    device const float* before [[buffer(4)]],
    device float* after [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint d = args.d, nk = args.n_key_head, heads = 2 * nk + args.n_value_head;
  const uint head = group.x * kHeadSimds + simd, t = group.y, history = args.taps - 1;
  if (head < heads) {  // the same for a whole simdgroup
    const ulong width = ulong(heads) * d, first = ulong(head) * d;
    float y[kMaxHead / 32];
    float squares = 0.0f;
#pragma unroll
    for (uint j = 0; j < kMaxHead / 32; ++j) {
      const uint i = 32 * j + lane;
      float sum = 0.0f;
      if (i < d) {
        for (uint k = 0; k < args.taps; ++k) {
          const uint row = t + k;  // counted from the oldest row of the history
          const float v = row < history ? before[row * width + first + i]
                                        : qkv[(row - history) * width + first + i];
          sum = fma(taps[k * width + first + i], v, sum);
        }
      }
      y[j] = silu(sum);
      squares = fma(y[j], y[j], squares);
    }
    squares = simd_sum(squares);
    float scale = 1.0f;
    if (head < 2 * nk) {
      const float length = precise::sqrt(squares + 1e-6f);  // SPEC section 4: not the model's eps
      scale = 1.0f / (head < nk ? length * precise::sqrt(float(d)) : length);
    }
    const ulong at = t * width + first;
#pragma unroll
    for (uint j = 0; j < kMaxHead / 32; ++j) {
      const uint i = 32 * j + lane;
      if (i < d) out[at + i] = y[j] * scale;
    }

    if (t + history >= args.tokens) {
      const ulong to = (t + history - args.tokens) * width + first;
      for (uint i = lane; i < d; i += 32) after[to + i] = qkv[at + i];
    }
    if (t == 0) {
      for (uint row = args.tokens; row < history; ++row) {
        const ulong from = row * width + first, to = (row - args.tokens) * width + first;
        for (uint i = lane; i < d; i += 32) after[to + i] = before[from + i];
      }
    }
  }
}

// log_decay = a softplus(alpha + dt), rate = sigma(beta), of each token and head
// grid: groups (ceil(tokens heads / 256)) of 256 threads
[[kernel]] void gdn_gates(
    constant GdnGatesArgs& args [[buffer(0)]],
    device const float* alpha [[buffer(1)]],
    device const float* beta [[buffer(2)]],
    device const float* a [[buffer(3)]],
    device const float* dt [[buffer(4)]],
    device float* log_decay [[buffer(5)]],
    device float* rate [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint i = group * kGroupThreads + tid;
  if (i >= args.tokens * args.heads) return;
  const uint head = i % args.heads;
  log_decay[i] = a[head] * softplus(alpha[i] + dt[head]);
  rate[i] = sigma(beta[i]);
}

// out = rms(o; gamma) sigma(z); a simdgroup has one head of one token.
// grid: groups (ceil(heads / 4), tokens) of 128 threads
[[kernel]] void gdn_norm(
    constant GdnNormArgs& args [[buffer(0)]],
    device const float* o [[buffer(1)]],
    device const float* z [[buffer(2)]],
    device const float* gamma [[buffer(3)]],
    device float* out [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint d = args.d, head = group.x * kHeadSimds + simd;
  if (head < args.heads) {  // the same for a whole simdgroup
    const ulong row = (ulong(group.y) * args.heads + head) * d;
    float v[kMaxHead / 32];
    float squares = 0.0f;
#pragma unroll
    for (uint j = 0; j < kMaxHead / 32; ++j) {
      const uint i = 32 * j + lane;
      v[j] = i < d ? o[row + i] : 0.0f;
      squares = fma(v[j], v[j], squares);
    }
    squares = simd_sum(squares);
    const float scale = inverse_rms(squares, d, args.eps);
#pragma unroll
    for (uint j = 0; j < kMaxHead / 32; ++j) {
      const uint i = 32 * j + lane;
      if (i < d) out[row + i] = v[j] * scale * gamma[i] * sigma(z[row + i]);
    }
  }
}

// ---- Token by token

enum {
  kStepTokens = 4,                // whose k and q lie in threadgroup memory at a time
  kKeys = 32,                     // keys of the state in a thread, one column: its registers
  kPart = kKeys / 4 + 1,          // float4s from one lane's keys to the next lane's: other banks
  kMaxParts = kMaxHead / kKeys,
};

struct StepRun {
  device const float* qkv;
  device const float* log_decay;
  device const float* rate;
  device const float* state_in;
  device float* state_out;
  device float* out;
  uint tokens, commit, nk, nv, d, head;
};

// A lane keeps kKeys rows of one column of a head's state in registers throughout, so the state is read
// once and written once, and the sums over keys are finished by shuffles. With S' the transpose of the
// state before the token and e = rate (v - a S'k): o = a S'q + (k.q) e, and then S = a S + k e'.
// Of the columns from `first_column` on, a group of `simds` simdgroups has 8 simds, 4 simds where d > 128.
// Each lane reads its share of the state before it writes the same elements: state_in and state_out may
// be the same memory.
inline void run_steps(thread const StepRun& run, uint first_column, uint simds, threadgroup float4* keys,
                      threadgroup float4* queries, uint tid, uint simd, uint lane) {
  const uint d = run.d, nk = run.nk, nv = run.nv, head = run.head;
  // The lanes that share a column, and the columns of a simdgroup; lanes of one part lie side by side.
  const uint parts = d > 128 ? 8 : 4, columns = 32 / parts;
  const uint part = lane / columns, column = first_column + simd * columns + lane % columns;
  const bool there = column < d;
  const ulong width = ulong(2 * nk + nv) * d;
  const ulong of_q = ulong(head % nk) * d, of_k = of_q + ulong(nk) * d;
  const ulong of_v = (2 * ulong(nk) + head) * d + column;
  const ulong of_state = (ulong(head) * d + part * kKeys) * d + column;
  const uint n_keys = d > part * kKeys ? d - part * kKeys : 0;  // of the lane's: may be more than kKeys

  float4 s[kKeys / 4];
#pragma unroll
  for (uint i = 0; i < kKeys / 4; ++i) {
    const ulong at = of_state + ulong(4 * i) * d;
    s[i].x = there && 4 * i < n_keys ? run.state_in[at] : 0.0f;
    s[i].y = there && 4 * i + 1 < n_keys ? run.state_in[at + d] : 0.0f;
    s[i].z = there && 4 * i + 2 < n_keys ? run.state_in[at + 2 * ulong(d)] : 0.0f;
    s[i].w = there && 4 * i + 3 < n_keys ? run.state_in[at + 3 * ulong(d)] : 0.0f;
  }

  for (uint first = 0; first < run.tokens; first += kStepTokens) {
    const uint n = min(run.tokens - first, uint(kStepTokens));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint t = 0; t < n; ++t) {
      threadgroup float* to_k = (threadgroup float*)(keys + t * kMaxParts * kPart);
      threadgroup float* to_q = (threadgroup float*)(queries + t * kMaxParts * kPart);
      device const float* from = run.qkv + (first + t) * width;
      for (uint i = tid; i < parts * kKeys; i += 32 * simds) {
        const uint at = i / kKeys * (4 * kPart) + i % kKeys;
        to_k[at] = i < d ? from[of_k + i] : 0.0f;
        to_q[at] = i < d ? from[of_q + i] : 0.0f;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint t = 0; t < n; ++t) {
      const ulong token = first + t;
      const float v = there ? run.qkv[token * width + of_v] : 0.0f;
      const float a = precise::exp(run.log_decay[token * nv + head]);
      const float b = run.rate[token * nv + head];
      threadgroup const float4* k = keys + (t * kMaxParts + part) * kPart;
      threadgroup const float4* q = queries + (t * kMaxParts + part) * kPart;
      float4 sk = float4(0.0f), sq = float4(0.0f), kq = float4(0.0f);
#pragma unroll
      for (uint i = 0; i < kKeys / 4; ++i) {
        const float4 ki = k[i], qi = q[i];
        sk = fma(s[i], ki, sk);
        sq = fma(s[i], qi, sq);
        kq = fma(ki, qi, kq);
      }
      float of_key = (sk.x + sk.y) + (sk.z + sk.w);
      float of_query = (sq.x + sq.y) + (sq.z + sq.w);
      float product = (kq.x + kq.y) + (kq.z + kq.w);
      for (uint mask = columns; mask < 32; mask *= 2) {
        of_key += simd_shuffle_xor(of_key, ushort(mask));
        of_query += simd_shuffle_xor(of_query, ushort(mask));
        product += simd_shuffle_xor(product, ushort(mask));
      }
      const float e = b * (v - a * of_key);
      if (there && part == 0) run.out[(token * nv + head) * d + column] = fma(product, e, a * of_query);
#pragma unroll
      for (uint i = 0; i < kKeys / 4; ++i) s[i] = fma(k[i], float4(e), s[i] * a);

      if (token + 1 == run.commit) {
#pragma unroll
        for (uint i = 0; i < kKeys / 4; ++i) {
          const ulong at = of_state + ulong(4 * i) * d;
          if (there && 4 * i < n_keys) run.state_out[at] = s[i].x;
          if (there && 4 * i + 1 < n_keys) run.state_out[at + d] = s[i].y;
          if (there && 4 * i + 2 < n_keys) run.state_out[at + 2 * ulong(d)] = s[i].z;
          if (there && 4 * i + 3 < n_keys) run.state_out[at + 3 * ulong(d)] = s[i].w;
        }
      }
    }
  }
}

// grid: groups (ceil(d / (d > 128 ? 16 : 32)), nv) of 128 threads
[[kernel]] void delta_step(
    constant DeltaStepArgs& args [[buffer(0)]],
    device const float* qkv [[buffer(1)]],
    device const float* log_decay [[buffer(2)]],
    device const float* rate [[buffer(3)]],
    device const float* state_in [[buffer(4)]],
    device float* state_out [[buffer(5)]],
    device float* out [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 keys[kStepTokens * kMaxParts * kPart];
  threadgroup float4 queries[kStepTokens * kMaxParts * kPart];
  StepRun run;
  run.qkv = qkv;
  run.log_decay = log_decay;
  run.rate = rate;
  run.state_in = state_in;
  run.state_out = state_out;
  run.out = out;
  run.tokens = args.tokens;
  run.commit = args.commit;
  run.nk = args.n_key_head;
  run.nv = args.n_value_head;
  run.d = args.d;
  run.head = group.y;
  run_steps(run, group.x * (args.d > 128 ? 16 : 32), 4, keys, queries, tid, simd, lane);
}

// ---- In chunks (delta_chunk.h)

enum {
  kSlice = 64,             // keys in threadgroup memory at a time
  kSliceRow = kSlice + 4,  // floats from a token's to the next one's: other banks
  kSliceFloats = 32 * kSliceRow,
};
static_assert(kChunk == 32, "a token a lane");
static_assert(32 * int(kHeadThreads) <= 2 * kSliceFloats, "-A of each simdgroup takes the slices' place");

// K K' and Q K' of a chunk and key head, then the scratch of each value head that uses it. Chunks that
// delta_chunk does not take whole have none.
// grid: groups (ceil(tokens / 32), nk) of 128 threads
[[kernel]] void delta_prepare(
    constant DeltaChunkArgs& args [[buffer(0)]],
    device const float* qkv [[buffer(1)]],
    device const float* log_decay [[buffer(2)]],
    device const float* rate [[buffer(3)]],
    device const float* state_in [[buffer(4)]],
    device float* state_out [[buffer(5)]],
    device float* out [[buffer(6)]],
    device float* scratch [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float slices[2 * kSliceFloats];  // k, q; then -A of each simdgroup's value head
  threadgroup float kk[kChunk * kChunk];
  threadgroup float qk[kChunk * kChunk];
  threadgroup float decays[kHeadThreads];
  threadgroup float rates[kHeadThreads];
  const uint d = args.d, nk = args.n_key_head, nv = args.n_value_head;
  const uint chunk = group.x, chunks = whole_chunks(args), key_head = group.y;
  const bool is_whole = chunk < chunks;  // the same for the whole group
  const ulong width = ulong(2 * nk + nv) * d, of_q = chunk * kChunk * width + ulong(key_head) * d;
  const ulong of_k = of_q + ulong(nk) * d;
  threadgroup float* k_slice = slices;
  threadgroup float* q_slice = slices + kSliceFloats;

  simdgroup_float8x8 of_kk[kRowTiles], of_qk[kRowTiles];  // 8 rows, those of the simdgroup
#pragma unroll
  for (uint j = 0; j < kRowTiles; ++j) {
    of_kk[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    of_qk[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint from = 0; is_whole && from < d; from += kSlice) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < kChunk * kSlice; e += kHeadThreads) {
      const ulong at = e / kSlice * width + from + e % kSlice;
      k_slice[e / kSlice * kSliceRow + e % kSlice] = qkv[of_k + at];
      q_slice[e / kSlice * kSliceRow + e % kSlice] = qkv[of_q + at];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint own = 8 * simd * kSliceRow;
    for (uint i = 0; i < kSlice; i += 8) {
      simdgroup_float8x8 k, q, turned;
      simdgroup_load(k, k_slice + own + i, kSliceRow);
      simdgroup_load(q, q_slice + own + i, kSliceRow);
#pragma unroll
      for (uint j = 0; j < kRowTiles; ++j) {
        simdgroup_load(turned, k_slice + 8 * j * kSliceRow + i, kSliceRow, ulong2{0, 0}, true);
        simdgroup_multiply_accumulate(of_kk[j], k, turned, of_kk[j]);
        simdgroup_multiply_accumulate(of_qk[j], q, turned, of_qk[j]);
      }
    }
  }
#pragma unroll
  for (uint j = 0; j < kRowTiles; ++j) {
    simdgroup_store(of_kk[j], kk + 8 * simd * kChunk + 8 * j, kChunk);
    simdgroup_store(of_qk[j], qk + 8 * simd * kChunk + 8 * j, kChunk);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  threadgroup float* own_decays = decays + simd * kChunk;
  threadgroup float* own_rates = rates + simd * kChunk;
  for (uint head = key_head + nk * simd; is_whole && head < nv; head += nk * kHeadSimds) {
    const ulong at = ulong(chunk * kChunk + lane) * nv + head;
    own_decays[lane] = log_decay[at];
    own_rates[lane] = rate[at];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    prepare_head(kk, qk, own_decays, own_rates, slices + simd * kChunk * kChunk,
                 scratch + (ulong(head) * chunks + chunk) * kDeltaFloats, lane);
  }
}

constant uint kHead [[function_constant(kHeadConstant)]];
constant uint kOnlyHead = is_function_constant_defined(kHead) ? kHead : 0u;

// The run, after delta_prepare with the same bindings: whole chunks, then one by one the tokens that are
// left; all tokens where d is none of 64, 128 and 256. The columns of the state are independent, and a
// simdgroup reads its own before it writes them: state_in and state_out may be the same memory. A run may
// be cut into several at multiples of 32 tokens: same bits.
// grid: groups (ceil(d / 32), nv) of 128 threads; a smaller group does the same
[[kernel]] void delta_chunk(
    constant DeltaChunkArgs& args [[buffer(0)]],
    device const float* qkv [[buffer(1)]],
    device const float* log_decay [[buffer(2)]],
    device const float* rate [[buffer(3)]],
    device const float* state_in [[buffer(4)]],
    device float* state_out [[buffer(5)]],
    device float* out [[buffer(6)]],
    device const float* scratch [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 keys[kStepTokens * kMaxParts * kPart];
  threadgroup float4 queries[kStepTokens * kMaxParts * kPart];
  const uint d = kOnlyHead != 0 ? kOnlyHead : args.d;
  const uint nk = args.n_key_head, nv = args.n_value_head, head = group.y;
  const uint chunks = whole_chunks(args), first = 32 * group.x, end = min(d, first + 32);
  for (uint column = first + 8 * simd; chunks > 0 && column < end; column += 8 * simds) {
    if (d == 64) {
      run_chunks<8>(args, qkv, state_in, state_out, out, scratch, head, column);
    } else if (d == 128) {
      run_chunks<16>(args, qkv, state_in, state_out, out, scratch, head, column);
    } else if (d == 256) {
      run_chunks<32>(args, qkv, state_in, state_out, out, scratch, head, column);
    }
  }
  threadgroup_barrier(mem_flags::mem_device);  // the tile of a simdgroup is read by other lanes of it

  const uint done = chunks * kChunk;
  if (done < args.tokens) {
    StepRun run;
    run.qkv = qkv + done * ulong(2 * nk + nv) * d;
    run.log_decay = log_decay + done * ulong(nv);
    run.rate = rate + done * ulong(nv);
    run.state_in = chunks > 0 ? state_out : state_in;
    run.state_out = state_out;
    run.out = out + done * ulong(nv) * d;
    run.tokens = args.tokens - done;
    run.commit = run.tokens;
    run.nk = nk;
    run.nv = nv;
    run.d = d;
    run.head = head;
    const uint columns = simds * (d > 128 ? 4 : 8);  // that the group has at a time
    for (uint column = first; column < end; column += columns) {
      run_steps(run, column, simds, keys, queries, tid, simd, lane);
    }
  }
}
