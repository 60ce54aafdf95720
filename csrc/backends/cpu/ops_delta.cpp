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

// Floats of scratch that step and chunk need.
int64_t step_scratch(int64_t d) { return 4 * d; }
int64_t chunk_scratch(int64_t d) { return 3 * kChunk * d + 3 * kChunk * kChunk; }

// One token: s_in -> s_out (which may be the same), o -> out.
// With e = beta (v - a S'k): S_out = a S_in + k e', o = S_out' q = a S_in' q + (k.q) e.
void step(const Head& h, int64_t t, const float* s_in, float* s_out, float* scratch) {
  const int64_t d = h.d;
  const float *q = h.q + t * h.stride, *k = h.k + t * h.stride, *v = h.v + t * h.stride;
  const float a = std::exp(h.log_decay[t * h.n_heads]), beta = h.beta[t * h.n_heads];
  float *x = scratch, *y = scratch + 2 * d;  // k and q; what the state makes of them
  std::copy_n(k, d, x);
  std::copy_n(q, d, x + d);
  std::fill_n(y, 2 * d, 0.0f);
  add_products({.rows = 2, .inner = d, .width = d, .y = y, .y_stride = d, .x = x, .x_row = d,
                .x_column = 1, .s = s_in, .s_stride = d});
  float *e = y, *of_q = y + d;
  for (int64_t j = 0; j < d; ++j) e[j] = beta * (v[j] - a * e[j]);
  scale_add_outer(s_out, a, s_in, k, e, d);
  const float kq = dot(k, q, d);
  float* o = h.out + t * h.n_heads * d;
  for (int64_t j = 0; j < d; ++j) o[j] = a * of_q[j] + kq * e[j];
}

// n <= kChunk tokens from t0 on, in the chunked form of SPEC section 4; s_in -> s_out, which may be
// the same.
void chunk(const Head& h, int64_t t0, int64_t n, const float* s_in, float* s_out, float* scratch) {
  const int64_t d = h.d;
  std::array<double, kChunk> g;  // running sum of the log decays: differences of large numbers
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) g[static_cast<size_t>(i)] = sum += h.log_decay[(t0 + i) * h.n_heads];
  const auto from_start = [&](int64_t i) {
    return static_cast<float>(std::exp(g[static_cast<size_t>(i)]));
  };
  const auto at = [&](const float* first, int64_t i) { return first + (t0 + i) * h.stride; };
  float* u = scratch;                 // [n, d]
  float* k_turned = u + kChunk * d;   // [d, n]
  float* k_left = k_turned + kChunk * d;  // [n, d]: k, decayed to the chunk's end
  float* kk = k_left + kChunk * d;    // [n, n]: k_i . k_p
  float* qk = kk + kChunk * kChunk;   // [n, n]: q_i . k_p
  float* decay = qk + kChunk * kChunk;  // [n, n]: g_i / g_p, p <= i; 0 above

  std::fill_n(decay, n * n, 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t p = 0; p <= i; ++p) {
      decay[i * n + p] = static_cast<float>(g[static_cast<size_t>(i)] - g[static_cast<size_t>(p)]);
    }
    exp_sum(decay + i * n, 0.0f, i + 1);
  }
  for (int64_t i = 0; i < n; ++i) {
    const float rest = decay[(n - 1) * n + i];
    for (int64_t j = 0; j < d; ++j) {
      k_turned[j * n + i] = at(h.k, i)[j];
      k_left[i * d + j] = rest * at(h.k, i)[j];
    }
  }
  std::fill_n(u, n * d, 0.0f);
  std::fill_n(kk, n * n, 0.0f);
  std::fill_n(qk, n * n, 0.0f);
  const auto times = [&](const float* x, const float* s, int64_t width, float* y, int64_t y_stride) {
    add_products({.rows = n, .inner = d, .width = width, .y = y, .y_stride = y_stride, .x = at(x, 0),
                  .x_row = h.stride, .x_column = 1, .s = s, .s_stride = width});
  };
  times(h.k, k_turned, n, kk, n);
  times(h.q, k_turned, n, qk, n);
  times(h.k, s_in, d, u, d);
  // u_i = beta_i (v_i - g_i S'k_i) - sum_{p<i} beta_i (k_i . k_p) g_i/g_p u_p
  for (int64_t i = 0; i < n; ++i) {
    const float* v = at(h.v, i);
    const float beta = h.beta[(t0 + i) * h.n_heads], whole = from_start(i);
    float *ui = u + i * d, *row = kk + i * n;
    for (int64_t j = 0; j < d; ++j) ui[j] = beta * (v[j] - whole * ui[j]);
    for (int64_t p = 0; p < i; ++p) row[p] *= -beta * decay[i * n + p];
    add_products({.rows = 1, .inner = i, .width = d, .y = ui, .y_stride = d, .x = row, .x_row = n,
                  .x_column = 1, .s = u, .s_stride = d});
  }
  // o_i = g_i S'q_i + sum_{p<=i} (q_i . k_p) g_i/g_p u_p
  float* o = h.out + t0 * h.n_heads * d;
  const int64_t o_stride = h.n_heads * d;
  for (int64_t i = 0; i < n; ++i) std::fill_n(o + i * o_stride, d, 0.0f);
  times(h.q, s_in, d, o, o_stride);
  for (int64_t i = 0; i < n; ++i) {
    const float whole = from_start(i);
    for (int64_t j = 0; j < d; ++j) o[i * o_stride + j] *= whole;
    for (int64_t p = 0; p < n; ++p) qk[i * n + p] *= decay[i * n + p];
  }
  add_products({.rows = n, .inner = n, .width = d, .y = o, .y_stride = o_stride, .x = qk, .x_row = n,
                .x_column = 1, .s = u, .s_stride = d});
  // S = g_n S + sum_p g_n/g_p k_p u_p'
  const float whole = static_cast<float>(std::exp(sum));
  for (int64_t i = 0; i < d * d; ++i) s_out[i] = whole * s_in[i];
  add_products({.rows = d, .inner = n, .width = d, .y = s_out, .y_stride = d, .x = k_left, .x_row = 1,
                .x_column = d, .s = u, .s_stride = d});
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
  c.reserve(step_scratch(d));
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
  c.reserve(chunk_scratch(d));
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
