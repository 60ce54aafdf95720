// SPDX-License-Identifier: MIT
#include "backends/cpu/math.h"

namespace esker::cpu {

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
