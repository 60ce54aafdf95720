// SPDX-License-Identifier: MIT
//
// The n-gram layer (SPEC section 5): gating its value by how well key and residual agree, and the
// dilated convolution, whose last inputs are the sequence's state.
#include <metal_stdlib>
#include "abi/kernel_args.h"
#include "common.h"
using namespace metal;

// Of each token and stream: V = f value with f from rms(key) . rms(residual), and N = rms(V).
// One pass gathers four sums, for neither norm need be stored: the product of the normed vectors is that
// of the gamma-weighted ones times both scales, and the squares of f value are f^2 times those of value.
// grid: groups (streams, tokens) of 256 threads
[[kernel]] void ple_gate(
    constant PleGateArgs& args [[buffer(0)]],
    device const float* key [[buffer(1)]],
    device const float* value [[buffer(2)]],
    device const float* residual [[buffer(3)]],
    device const float* gamma_key [[buffer(4)]],
    device const float* gamma_query [[buffer(5)]],
    device const float* gamma_conv [[buffer(6)]],
    device float* gated [[buffer(7)]],
    device float* normed [[buffer(8)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[4 * kGroupSimds];
  const uint d = args.width;
  const ulong row = (ulong(group.y) * args.streams + group.x) * d;
  const ulong of_value = ulong(group.y) * d, of_gamma = ulong(group.x) * d;
  float kk = 0.0f, rr = 0.0f, kr = 0.0f, vv = 0.0f;
  for (uint i = tid; i < d; i += kGroupThreads) {
    const float k = key[row + i], r = residual[row + i], v = value[of_value + i];
    kk = fma(k, k, kk);
    rr = fma(r, r, rr);
    vv = fma(v, v, vv);
    kr = fma(k * gamma_key[of_gamma + i], r * gamma_query[of_gamma + i], kr);
  }
  kk = group_sum(kk, parts, simd, lane);
  rr = group_sum(rr, parts + kGroupSimds, simd, lane);
  kr = group_sum(kr, parts + 2 * kGroupSimds, simd, lane);
  vv = group_sum(vv, parts + 3 * kGroupSimds, simd, lane);

  const float s = kr * inverse_rms(kk, d, args.eps) * inverse_rms(rr, d, args.eps) / precise::sqrt(float(d));
  const float magnitude = precise::sqrt(max(fabs(s), 1e-6f));
  const float f = sigma(s > 0.0f ? magnitude : s < 0.0f ? -magnitude : 0.0f * s);  // the last: 0, or NaN
  const float scale = inverse_rms(f * f * vv, d, args.eps);
  for (uint i = tid; i < d; i += kGroupThreads) {
    const float v = f * value[of_value + i];
    gated[row + i] = v;
    normed[row + i] = v * scale * gamma_conv[of_gamma + i];
  }
}

// residual += gated + silu(conv(normed)), a channel a thread; row t < 0 of the convolution's input is row
// history + t of `before`. Token t is row t - (tokens - history) of `after`, if that is one; where the
// run is shorter than the history, token 0's threads move the rest up.
// `before` and `after` are different memory.
// grid: groups (ceil(width / 256), tokens) of 256 threads
[[kernel]] void ple_conv(
    constant PleConvArgs& args [[buffer(0)]],
    device const float* gated [[buffer(1)]],
    device const float* normed [[buffer(2)]],
    device const float* taps [[buffer(3)]],
    device float* residual [[buffer(4)]],
    device const float* before [[buffer(5)]],
    device float* after [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint i = group.x * kGroupThreads + tid, t = group.y;
  if (i >= args.width) return;
  const ulong width = args.width;
  const uint history = (args.taps - 1) * args.dilation;
  float sum = 0.0f;
  for (uint k = 0; k < args.taps; ++k) {
    const uint row = t + k * args.dilation;  // counted from the oldest row of the history
    const float v = row < history ? before[row * width + i] : normed[(row - history) * width + i];
    sum = fma(taps[k * width + i], v, sum);
  }
  const ulong at = t * width + i;
  residual[at] += gated[at] + silu(sum);

  if (t + history >= args.tokens) after[(t + history - args.tokens) * width + i] = normed[at];
  if (t == 0) {
    for (uint row = args.tokens; row < history; ++row) {
      after[(row - args.tokens) * width + i] = before[row * width + i];
    }
  }
}
