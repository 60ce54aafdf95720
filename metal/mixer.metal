// SPDX-License-Identifier: MIT
//
// Hyper-connections (SPEC section 3) and the elementwise ends of the experts (section 7): the norm of each
// residual stream, reading the streams' mix, writing a sub-layer's result back to them.
#include <metal_stdlib>
#include "abi/kernel_args.h"
#include "common.h"
using namespace metal;

// out[t, c] = rms(x[t, c]; gamma[c])
// grid: groups (streams, tokens) of 256 threads
[[kernel]] void stream_norm(
    constant StreamNormArgs& args [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device const float* gamma [[buffer(2)]],
    device float* out [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[kGroupSimds];
  const uint d = args.width;
  const ulong row = (ulong(group.y) * args.streams + group.x) * d;
  const ulong of_gamma = ulong(group.x) * d;
  float squares = 0.0f;
  for (uint i = tid; i < d; i += kGroupThreads) {
    const float v = x[row + i];
    squares = fma(v, v, squares);
  }
  squares = group_sum(squares, parts, simd, lane);
  const float scale = inverse_rms(squares, d, args.eps);
  for (uint i = tid; i < d; i += kGroupThreads) out[row + i] = x[row + i] * scale * gamma[of_gamma + i];
}

// out[t] = 1/C sum_c sigma(gates[t, c]) normed[t, c]
// grid: groups (ceil(width / 256), tokens) of 256 threads
[[kernel]] void mix_read(
    constant MixReadArgs& args [[buffer(0)]],
    device const float* normed [[buffer(1)]],
    device const float* gates [[buffer(2)]],
    device float* out [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint d = args.width, i = group.x * kGroupThreads + tid;
  if (i >= d) return;
  const ulong first = ulong(group.y) * args.streams * d + i;
  float sum = 0.0f;
  for (uint c = 0; c < args.streams; ++c) {
    const ulong at = first + ulong(c) * d;
    sum = fma(sigma(gates[at]), normed[at], sum);
  }
  out[ulong(group.y) * d + i] = sum * (1.0f / float(args.streams));
}

// residual[t, c] += 2 sigma(inject[t, c] / C) y[t]
// grid: groups (ceil(width / 256), tokens) of 256 threads
[[kernel]] void mix_write(
    constant MixWriteArgs& args [[buffer(0)]],
    device const float* y [[buffer(1)]],
    device const float* inject [[buffer(2)]],
    device float* residual [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint d = args.width, i = group.x * kGroupThreads + tid;
  if (i >= d) return;
  const ulong first = ulong(group.y) * args.streams;
  const float share = 1.0f / float(args.streams), v = y[ulong(group.y) * d + i];
  for (uint c = 0; c < args.streams; ++c) {
    const ulong at = (first + c) * d + i;
    residual[at] = fma(2.0f * sigma(inject[first + c] * share), v, residual[at]);
  }
}

// out = silu(gate) up
// grid: groups (ceil(n / 256)) of 256 threads
[[kernel]] void swiglu(
    constant SwigluArgs& args [[buffer(0)]],
    device const float* gate [[buffer(1)]],
    device const float* up [[buffer(2)]],
    device float* out [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint i = group * kGroupThreads + tid;
  if (i < args.n) out[i] = silu(gate[i]) * up[i];
}

// y[t] += sigma(share[t]) shared[t]
// grid: groups (ceil(width / 256), tokens) of 256 threads
[[kernel]] void moe_combine(
    constant MoeCombineArgs& args [[buffer(0)]],
    device const float* shared [[buffer(1)]],
    device const float* share [[buffer(2)]],
    device float* y [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint i = group.x * kGroupThreads + tid;
  if (i >= args.width) return;
  const ulong at = ulong(group.y) * args.width + i;
  y[at] = fma(sigma(share[group.y]), shared[at], y[at]);
}
