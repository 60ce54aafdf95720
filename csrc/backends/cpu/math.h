// SPDX-License-Identifier: MIT
//
// Small float32 building blocks of the CPU ops. Sums run in a fixed order, so that a result does not
// depend on thread count, chunking or instruction set.
#pragma once

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

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
inline float silu(float x) { return x * sigmoid(x); }
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// sum_i a[i] b[i] in 16 interleaved partial sums, added up in a fixed order.
float dot(const float* a, const float* b, int64_t n);
// y[i] += s x[i]
void add_scaled(float* y, float s, const float* x, int64_t n);
// 1 / sqrt(mean(x^2) + eps)
float inverse_rms(const float* x, int64_t n, float eps);

}  // namespace esker::cpu
