// SPDX-License-Identifier: MIT
#include "backends/cpu/math.h"

#include <cstring>

namespace esker::cpu {
namespace {

// 16 floats: one register or several, as the machine has them.
typedef float Wide __attribute__((vector_size(64)));

// kRows rows by 16 kWides columns of add_products, held in registers.
template <int kRows, int kWides>
[[gnu::always_inline]] inline void add_tile(const Product& p, int64_t r, int64_t j) {
  Wide sum[kRows][kWides];
  const auto y = [&](int k, int w) { return p.y + (r + k) * p.y_stride + j + 16 * w; };
  for (int k = 0; k < kRows; ++k) {
    for (int w = 0; w < kWides; ++w) std::memcpy(&sum[k][w], y(k, w), sizeof(Wide));
  }
  const float* x = p.x + r * p.x_row;
  const float* s = p.s + j;
  for (int64_t i = 0; i < p.inner; ++i, x += p.x_column, s += p.s_stride) {
    for (int w = 0; w < kWides; ++w) {
      Wide column;
      std::memcpy(&column, s + 16 * w, sizeof column);
      for (int k = 0; k < kRows; ++k) sum[k][w] += x[k * p.x_row] * column;
    }
  }
  for (int k = 0; k < kRows; ++k) {
    for (int w = 0; w < kWides; ++w) std::memcpy(y(k, w), &sum[k][w], sizeof(Wide));
  }
}

template <int kRows>
[[gnu::always_inline]] inline void add_rows(const Product& p, int64_t r) {
  int64_t j = 0;
  if constexpr (kRows <= 2) {  // whole rows of a state, so that memory is read in order
    for (; j + 128 <= p.width; j += 128) add_tile<kRows, 8>(p, r, j);
  }
  for (; j + 32 <= p.width; j += 32) add_tile<kRows, 2>(p, r, j);
  for (; j + 16 <= p.width; j += 16) add_tile<kRows, 1>(p, r, j);
  for (; j < p.width; ++j) {
    for (int64_t k = r; k < r + kRows; ++k) {
      float sum = p.y[k * p.y_stride + j];
      for (int64_t i = 0; i < p.inner; ++i) {
        sum += p.x[k * p.x_row + i * p.x_column] * p.s[i * p.s_stride + j];
      }
      p.y[k * p.y_stride + j] = sum;
    }
  }
}

}  // namespace

ESKER_CLONES void add_products(const Product& p) {
  int64_t r = 0;
  for (; r + 4 <= p.rows; r += 4) add_rows<4>(p, r);
  for (; r + 2 <= p.rows; r += 2) add_rows<2>(p, r);
  for (; r < p.rows; ++r) add_rows<1>(p, r);
}

ESKER_CLONES void scale_add_outer(float* y, float a, const float* x, const float* u, const float* v,
                                  int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = a * x[i * n + j] + u[i] * v[j];
  }
}

ESKER_CLONES float dot(const float* a, const float* b, int64_t n) {
  float lane[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) lane[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i + j < n; ++j) lane[j] += a[i + j] * b[i + j];
  for (int width = 8; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

ESKER_CLONES void add_scaled(float* y, float s, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += s * x[i];
}

ESKER_CLONES void silu_times(float* y, const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = silu(a[i]) * b[i];
}

ESKER_CLONES void scaled_gate(float* y, const float* x, float s, const float* g, const float* z,
                              int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * s * g[i] * sigmoid(z[i]);
}

ESKER_CLONES void gate(float* y, const float* z, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] *= sigmoid(z[i]);
}

ESKER_CLONES void mix_streams(float* y, const float* gates, const float* x, float share,
                              int64_t streams, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = sigmoid(gates[i]) * x[i];
  for (int64_t c = 1; c < streams; ++c) {
    const float *g = gates + c * stride, *v = x + c * stride;
    for (int64_t i = 0; i < n; ++i) y[i] += sigmoid(g[i]) * v[i];
  }
  for (int64_t i = 0; i < n; ++i) y[i] *= share;
}

ESKER_CLONES void conv_silu(float* y, const float* w, int64_t w_stride, const float* const* rows,
                            int64_t taps, int64_t n) {
  const float* first = rows[0];
  for (int64_t i = 0; i < n; ++i) y[i] = w[i] * first[i];
  for (int64_t k = 1; k < taps; ++k) {
    const float *v = w + k * w_stride, *row = rows[k];
    for (int64_t i = 0; i < n; ++i) y[i] += v[i] * row[i];
  }
  for (int64_t i = 0; i < n; ++i) y[i] = silu(y[i]);
}

ESKER_CLONES float exp_sum(float* p, float top, int64_t n) {
  float lane[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) lane[j] += p[i + j] = fast_exp(p[i + j] - top);
  }
  for (int j = 0; i + j < n; ++j) lane[j] += p[i + j] = fast_exp(p[i + j] - top);
  for (int width = 8; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

}  // namespace esker::cpu
