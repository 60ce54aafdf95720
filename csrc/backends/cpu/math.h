// SPDX-License-Identifier: MIT
//
// Small float32 building blocks of the CPU ops. Sums run in a fixed order, so that a result does not
// depend on thread count, chunking or instruction set.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Compiles a function for several x86-64 levels, the machine's best chosen when the library loads.
// The arithmetic is the same at every level (no contraction), only its width changes.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && \
    !defined(__clang__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define ESKER_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define ESKER_CLONES
#endif

namespace esker::cpu {

// e^x to 2 ulp, in arithmetic that compilers turn into vectors: Cody-Waite reduction and the degree 5
// polynomial of Cephes' expf (Moshier 1989). Saturates outside [-87, 88]; a NaN stays one.
inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
  const float shifted = x * 1.44269504088896341f + kRound;
  const float k = shifted - kRound;
  const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound) + 127)
                           << 23;
  return (p * r * r + r + 1.0f) * std::bit_cast<float>(exponent);
}
inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
inline float silu(float x) { return x * sigmoid(x); }
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// sum_i a[i] b[i] in 16 interleaved partial sums, added up in a fixed order.
float dot(const float* a, const float* b, int64_t n);
// y[i] += s x[i]
void add_scaled(float* y, float s, const float* x, int64_t n);
// y[r, j] += sum_i x[r, i] s[i, j], i ascending for every value: r < rows, i < inner, j < width. Rows of
// y and s lie their stride apart, x[r, i] at x[r x_row + i x_column].
struct Product {
  int64_t rows, inner, width;
  float* y;
  int64_t y_stride;
  const float* x;
  int64_t x_row, x_column;
  const float* s;
  int64_t s_stride;
};
void add_products(const Product& p);
// y[i, j] = a x[i, j] + u[i] v[j], [n, n]; y may be x.
void scale_add_outer(float* y, float a, const float* x, const float* u, const float* v, int64_t n);
// y[i] = silu(a[i]) b[i]; y may be a.
void silu_times(float* y, const float* a, const float* b, int64_t n);
// y[i] = x[i] s g[i] sigma(z[i])
void scaled_gate(float* y, const float* x, float s, const float* g, const float* z, int64_t n);
// y[i] *= sigma(z[i])
void gate(float* y, const float* z, int64_t n);
// y[i] = share sum_c sigma(gates[c stride + i]) x[c stride + i], c < streams
void mix_streams(float* y, const float* gates, const float* x, float share, int64_t streams,
                 int64_t stride, int64_t n);
// y[i] = silu(sum_k w[k w_stride + i] rows[k][i]), k < taps
void conv_silu(float* y, const float* w, int64_t w_stride, const float* const* rows, int64_t taps,
               int64_t n);
// p[i] = exp(p[i] - top); returns their sum.
float exp_sum(float* p, float top, int64_t n);
// 1 / sqrt(mean(x^2) + eps)
float inverse_rms(const float* x, int64_t n, float eps);

}  // namespace esker::cpu
