// SPDX-License-Identifier: MIT
//
// Hyper-connections (SPEC section 3) and the n-gram layer (section 5).
#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/math.h"
#include "backends/cpu/ops.h"

namespace esker::cpu {
namespace {

// to = rms(x; g), one stream of d values.
void norm_stream(const float* x, const float* g, float* to, int64_t d, float eps) {
  const float s = inverse_rms(x, d, eps);
  for (int64_t i = 0; i < d; ++i) to[i] = x[i] * s * g[i];
}

}  // namespace

void stream_norm(const Context& c, const Op& op) {
  const int64_t d = c.config.d_model, streams = c.config.n_stream;
  const float *x = c.floats(op.in[0]), *g = c.vector(op.w[0]);
  float* out = c.floats(op.out[0]);
  const int64_t first = c.first_row(op) * streams;
  c.pool.parallel_for(c.rows(op) * streams, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = first + begin; i < first + end; ++i) {
      norm_stream(x + i * d, g + i % streams * d, out + i * d, d, c.config.rms_eps);
    }
  });
}

void mix_read(const Context& c, const Op& op) {
  const int64_t d = c.config.d_model, streams = c.config.n_stream;
  const float *normed = c.floats(op.in[0]), *gates = c.floats(op.in[1]);
  float* out = c.floats(op.out[0]);
  const float share = 1.0f / static_cast<float>(streams);
  constexpr int64_t kPart = 1024;
  const int64_t first = c.first_row(op), parts = (d + kPart - 1) / kPart;
  c.pool.parallel_for(c.rows(op) * parts, 2, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = first + i / parts, at = i % parts * kPart;
      const int64_t wide = t * streams * d + at;
      mix_streams(out + t * d + at, gates + wide, normed + wide, share, streams, d,
                  std::min(kPart, d - at));
    }
  });
}

void mix_write(const Context& c, const Op& op) {
  const int64_t d = c.config.d_model, streams = c.config.n_stream;
  const float *y = c.floats(op.in[0]), *inject = c.floats(op.in[1]);
  float* residual = c.floats(op.out[0]);
  const float share = 1.0f / static_cast<float>(streams);
  c.pool.parallel_for(c.run.n_tokens * streams, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      add_scaled(residual + i * d, 2.0f * sigmoid(inject[i] * share), y + i / streams * d, d);
    }
  });
}

void ple_gate(const Context& c, const Op& op) {
  const int64_t d = c.config.d_model, streams = c.config.n_stream;
  const float eps = c.config.rms_eps, root = std::sqrt(static_cast<float>(d));
  const float *key = c.floats(op.in[0]), *value = c.floats(op.in[1]), *r = c.floats(op.in[2]);
  const float *gk = c.vector(op.w[0]), *gq = c.vector(op.w[1]), *gc = c.vector(op.w[2]);
  float *gated = c.floats(op.out[0]), *normed = c.floats(op.out[1]);
  c.pool.parallel_for(c.run.n_tokens * streams, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i % streams * d;  // of the stream's gammas
      const float* v = value + i / streams * d;
      float *to_v = gated + i * d, *to_n = normed + i * d;
      norm_stream(key + i * d, gk + at, to_v, d, eps);  // both outputs serve as scratch here
      norm_stream(r + i * d, gq + at, to_n, d, eps);
      const float s = dot(to_v, to_n, d) / root;
      const float magnitude = std::sqrt(std::max(std::fabs(s), 1e-6f));
      const float f = sigmoid(s > 0 ? magnitude : s < 0 ? -magnitude : 0.0f * s);
      for (int64_t j = 0; j < d; ++j) to_v[j] = f * v[j];
      norm_stream(to_v, gc + at, to_n, d, eps);
    }
  });
}

void ple_conv(const Context& c, const Op& op) {
  const int64_t wide = int64_t{c.config.n_stream} * c.config.d_model;
  const int64_t taps = c.config.ple_conv_kernel, dilation = c.config.ngram_size;
  const int64_t history = c.config.ple_history(), tokens = c.run.n_tokens;
  const float *gated = c.floats(op.in[0]), *normed = c.floats(op.in[1]), *w = c.vector(op.w[0]);
  float* residual = c.floats(op.out[0]);
  const float* old = c.run.state_in->floats() + c.state(op).ple;
  float* kept = c.run.state_out->floats() + c.state(op).ple;
  // Row t of the convolution's input; t < 0 is the state's.
  const auto row = [&](int64_t t) {
    return t < 0 ? old + (history + t) * wide : normed + t * wide;
  };
  constexpr int64_t kPart = 2048;
  const int64_t parts = (wide + kPart - 1) / kPart;
  c.reserve(kPart);
  c.pool.parallel_for(tokens * parts, 1, [&](int64_t begin, int64_t end, int thread) {
    float* y = c.thread_floats[static_cast<size_t>(thread)].data();
    std::array<const float*, kMaxConvKernel> rows;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / parts, at = i % parts * kPart, n = std::min(kPart, wide - at);
      for (int64_t k = 0; k < taps; ++k) {
        rows[static_cast<size_t>(k)] = row(t - dilation * (taps - 1 - k)) + at;
      }
      conv_silu(y, w + at, wide, rows.data(), taps, n);
      const int64_t place = t * wide + at;
      add_scaled(residual + place, 1.0f, gated + place, n);
      add_scaled(residual + place, 1.0f, y, n);
    }
  });
  for (int64_t h = 0; h < history; ++h) std::copy_n(row(tokens - history + h), wide, kept + h * wide);
}

}  // namespace esker::cpu
