// SPDX-License-Identifier: MIT
//
// Gated delta net (SPEC section 4): convolution, gates, and the recurrence in its two forms.
// The state is read from one block and written to another, so a run that fails changes nothing.
#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/math.h"
#include "backends/cpu/ops.h"

namespace esker::cpu {
namespace {

// Tokens of one step of the chunked form: the triangular solve grows with its square, the products
// with the state shrink with it; 64 is the usual balance for head sizes of 64 to 128.
constexpr int64_t kChunk = 64;

// One value head's view of a run.
struct Head {
  const float *q, *k, *v;  // of token 0; tokens lie `stride` apart
  int64_t stride, d;
  const float *log_decay, *beta;  // of token 0; tokens lie n_heads apart
  int64_t n_heads;
  float* out;  // of token 0; tokens lie n_heads * d apart
};

Head head_of(const Context& c, const Op& op, int64_t h) {
  const Config& config = c.config;
  const int64_t d = config.d_linear_head, nk = config.n_key_head, nv = config.n_value_head;
  const float* qkv = c.floats(op.in[0]);
  return {.q = qkv + h % nk * d,
          .k = qkv + (nk + h % nk) * d,
          .v = qkv + (2 * nk + h) * d,
          .stride = config.qkv_width(),
          .d = d,
          .log_decay = c.floats(op.in[1]) + h,
          .beta = c.floats(op.in[2]) + h,
          .n_heads = nv,
          .out = c.floats(op.out[0]) + h * d};
}

// to[j] = sum_i x[i] s[i, j]
void state_times(const float* s, const float* x, float* to, int64_t d) {
  std::fill_n(to, d, 0.0f);
  for (int64_t i = 0; i < d; ++i) add_scaled(to, x[i], s + i * d, d);
}

// One token: s_in -> s_out (which may be the same), o -> out. `e` is scratch of d floats.
void step(const Head& h, int64_t t, const float* s_in, float* s_out, float* e) {
  const float *q = h.q + t * h.stride, *k = h.k + t * h.stride, *v = h.v + t * h.stride;
  const float a = std::exp(h.log_decay[t * h.n_heads]), beta = h.beta[t * h.n_heads];
  const int64_t d = h.d;
  state_times(s_in, k, e, d);
  for (int64_t j = 0; j < d; ++j) e[j] = beta * (v[j] - a * e[j]);
  float* o = h.out + t * h.n_heads * d;
  std::fill_n(o, d, 0.0f);
  for (int64_t i = 0; i < d; ++i) {
    const float ki = k[i], qi = q[i];
    const float* in = s_in + i * d;
    float* to = s_out + i * d;
    for (int64_t j = 0; j < d; ++j) to[j] = a * in[j] + ki * e[j];
    add_scaled(o, qi, to, d);
  }
}

// n <= kChunk tokens from t0 on, in the chunked form of SPEC section 4; s_in -> s_out, which may be
// the same. `scratch` holds kChunk * d floats.
void chunk(const Head& h, int64_t t0, int64_t n, const float* s_in, float* s_out, float* scratch) {
  const int64_t d = h.d;
  std::array<double, kChunk> g;  // running sum of the log decays: differences of large numbers
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) g[static_cast<size_t>(i)] = sum += h.log_decay[(t0 + i) * h.n_heads];
  const auto decay = [&](int64_t from, int64_t to) {
    return static_cast<float>(std::exp(g[static_cast<size_t>(to)] - g[static_cast<size_t>(from)]));
  };
  float* u = scratch;  // [n, d]
  for (int64_t i = 0; i < n; ++i) {
    const float *k = h.k + (t0 + i) * h.stride, *v = h.v + (t0 + i) * h.stride;
    const float beta = h.beta[(t0 + i) * h.n_heads];
    const float from_start = static_cast<float>(std::exp(g[static_cast<size_t>(i)]));
    float* ui = u + i * d;
    state_times(s_in, k, ui, d);
    for (int64_t j = 0; j < d; ++j) ui[j] = beta * (v[j] - from_start * ui[j]);
    for (int64_t p = 0; p < i; ++p) {
      const float kk = dot(k, h.k + (t0 + p) * h.stride, d);
      add_scaled(ui, -beta * kk * decay(p, i), u + p * d, d);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const float* q = h.q + (t0 + i) * h.stride;
    float* o = h.out + (t0 + i) * h.n_heads * d;
    state_times(s_in, q, o, d);
    const float from_start = static_cast<float>(std::exp(g[static_cast<size_t>(i)]));
    for (int64_t j = 0; j < d; ++j) o[j] *= from_start;
    for (int64_t p = 0; p <= i; ++p) {
      add_scaled(o, dot(q, h.k + (t0 + p) * h.stride, d) * decay(p, i), u + p * d, d);
    }
  }
  const float whole = static_cast<float>(std::exp(sum));
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) s_out[i * d + j] = whole * s_in[i * d + j];
  }
  for (int64_t p = 0; p < n; ++p) {
    const float* k = h.k + (t0 + p) * h.stride;
    const float rest = decay(p, n - 1);
    for (int64_t i = 0; i < d; ++i) add_scaled(s_out + i * d, rest * k[i], u + p * d, d);
  }
}

}  // namespace

void gdn_conv(const Context& c, const Op& op) {
  const Config& config = c.config;
  const int64_t width = config.qkv_width(), taps = config.conv_kernel, history = taps - 1;
  const int64_t d = config.d_linear_head, nk = config.n_key_head, tokens = c.run.n_tokens;
  const float *u = c.floats(op.in[0]), *w = c.vector(op.w[0]);
  float* out = c.floats(op.out[0]);
  const float* old = c.run.state_in->floats() + c.state(op).conv;
  float* kept = c.run.state_out->floats() + c.state(op).conv;
  const auto row = [&](int64_t t) {
    return t < 0 ? old + (history + t) * width : u + t * width;
  };
  // One head's channels of one token: heads of q, then k, then v.
  const int64_t heads = 2 * nk + config.n_value_head;
  c.pool.parallel_for(tokens * heads, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / heads, head = i % heads, first = head * d;
      float* y = out + t * width + first;
      std::array<const float*, kMaxConvKernel> rows;
      for (int64_t k = 0; k < taps; ++k) rows[static_cast<size_t>(k)] = row(t - history + k) + first;
      conv_silu(y, w + first, width, rows.data(), taps, d);
      if (head >= 2 * nk) continue;
      const float length = std::sqrt(dot(y, y, d) + 1e-6f);  // SPEC section 4: not the model's eps
      const float scale = head < nk ? 1.0f / (length * std::sqrt(static_cast<float>(d))) : 1.0f / length;
      for (int64_t j = 0; j < d; ++j) y[j] *= scale;
    }
  });
  for (int64_t h = 0; h < history; ++h) std::copy_n(row(tokens - history + h), width, kept + h * width);
}

void gdn_gates(const Context& c, const Op& op) {
  const int64_t heads = c.config.n_value_head;
  const float *alpha = c.floats(op.in[0]), *beta = c.floats(op.in[1]);
  const float *a = c.vector(op.w[0]), *dt = c.vector(op.w[1]);
  float *decay = c.floats(op.out[0]), *rate = c.floats(op.out[1]);
  for (int64_t i = 0; i < c.run.n_tokens * heads; ++i) {
    decay[i] = a[i % heads] * softplus(alpha[i] + dt[i % heads]);
    rate[i] = sigmoid(beta[i]);
  }
}

void delta_step(const Context& c, const Op& op) {
  const int64_t d = c.config.d_linear_head;
  const float* before = c.run.state_in->floats() + c.state(op).delta;
  float* after = c.run.state_out->floats() + c.state(op).delta;
  c.reserve(d);
  c.pool.parallel_for(c.config.n_value_head, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const Head h = head_of(c, op, i);
      float* s = after + i * d * d;
      for (int64_t t = 0; t < c.run.n_tokens; ++t) {
        step(h, t, t == 0 ? before + i * d * d : s, s, c.thread_floats[static_cast<size_t>(thread)].data());
      }
    }
  });
}

void delta_chunk(const Context& c, const Op& op) {
  const int64_t d = c.config.d_linear_head, tokens = c.run.n_tokens;
  const float* before = c.run.state_in->floats() + c.state(op).delta;
  float* after = c.run.state_out->floats() + c.state(op).delta;
  c.reserve(kChunk * d);
  c.pool.parallel_for(c.config.n_value_head, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const Head h = head_of(c, op, i);
      float* s = after + i * d * d;
      for (int64_t t = 0; t < tokens; t += kChunk) {
        chunk(h, t, std::min(kChunk, tokens - t), t == 0 ? before + i * d * d : s, s,
              c.thread_floats[static_cast<size_t>(thread)].data());
      }
    }
  });
}

void gdn_norm(const Context& c, const Op& op) {
  const int64_t d = c.config.d_linear_head;
  const float *o = c.floats(op.in[0]), *z = c.floats(op.in[1]), *g = c.vector(op.w[0]);
  float* out = c.floats(op.out[0]);
  c.pool.parallel_for(int64_t{c.run.n_tokens} * c.config.n_value_head, 4,
                      [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float s = inverse_rms(o + i * d, d, c.config.rms_eps);
      scaled_gate(out + i * d, o + i * d, s, g, z + i * d, d);
    }
  });
}

}  // namespace esker::cpu
