// SPDX-License-Identifier: MIT
//
// AVX-512 kernels (F, BW, VL, DQ, VNNI, VBMI, GFNI: Zen 4 and newer, Ice Lake and newer).
//
// One pattern: Type::unpack turns the blocks of a unit into four vectors of unsigned bytes and a scale
// a lane, and one loop (avx512_rows.h) multiplies them. Here: the table, the types whose values are
// computed, and those of floats; the others in files of their own, to be compiled side by side.
#include "backends/cpu/avx512_types.h"

#if ESKER_HAS_AVX512

#include <algorithm>
#include <cstring>

#include "backends/cpu/avx512_pack.h"
#include "backends/cpu/avx512_rows.h"

namespace esker::cpu {
namespace {

// ---- Float types: read as they are.

template <WeightType kType>
inline Float load_floats(const uint8_t* p) {
  if constexpr (kType == WeightType::kF32) {
    return _mm512_loadu_ps(p);
  } else {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kType == WeightType::kF16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
}

// kRows rows at a time from `row` on, but for a last n_rows % kRows; returns the first row left.
template <WeightType kType, int kTokens, int kRows>
int64_t float_rows_of(const RowsCall& c, int64_t first, int64_t row) {
  constexpr int64_t kBytes = kType == WeightType::kF32 ? 4 : 2;
  const int64_t n = c.x->n, row_bytes = static_cast<int64_t>(c.row_bytes);
  const float* x[kTokens];
  float* y[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    x[t] = c.x->x + c.vector(first + t) * n;
    y[t] = c.y + c.place(first + t) * c.y_stride;
  }
  for (; row + kRows <= c.n_rows; row += kRows) {
    const uint8_t* p = c.w + row * row_bytes;
    Float acc[kRows][kTokens][2];
    for (auto& of_row : acc) {
      for (auto& a : of_row) a[0] = a[1] = _mm512_setzero_ps();
    }
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
      Float w[kRows][2];
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* at = p + r * row_bytes + i * kBytes;
        _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchBytes), _MM_HINT_T0);
        if (kBytes == 4) {
          _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchBytes + 64), _MM_HINT_T0);
        }
        w[r][0] = load_floats<kType>(at);
        w[r][1] = load_floats<kType>(at + 16 * kBytes);
      }
      for (int t = 0; t < kTokens; ++t) {
        const Float x0 = _mm512_loadu_ps(x[t] + i), x1 = _mm512_loadu_ps(x[t] + i + 16);
        for (int r = 0; r < kRows; ++r) {
          acc[r][t][0] = _mm512_fmadd_ps(w[r][0], x0, acc[r][t][0]);
          acc[r][t][1] = _mm512_fmadd_ps(w[r][1], x1, acc[r][t][1]);
        }
      }
    }
    for (; i < n; i += 16) {
      const int64_t left = std::min<int64_t>(16, n - i);
      const __mmask16 live = static_cast<__mmask16>((1u << left) - 1);
      for (int r = 0; r < kRows; ++r) {
        alignas(64) uint8_t bytes_left[64] = {};
        std::memcpy(bytes_left, p + r * row_bytes + i * kBytes, static_cast<size_t>(left * kBytes));
        const Float w = load_floats<kType>(bytes_left);
        for (int t = 0; t < kTokens; ++t) {
          acc[r][t][0] =
              _mm512_fmadd_ps(w, _mm512_maskz_loadu_ps(live, x[t] + i), acc[r][t][0]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTokens; ++t) {
        y[t][row + r] = _mm512_reduce_add_ps(_mm512_add_ps(acc[r][t][0], acc[r][t][1]));
      }
    }
  }
  return row;
}

// One token: rows as one stream. More: two rows share the loads of four tokens' values.
template <WeightType kType>
void float_rows(const RowsCall& c) {
  int64_t t = 0;
  for (; t + 4 <= c.tokens; t += 4) {
    float_rows_of<kType, 4, 1>(c, t, float_rows_of<kType, 4, 2>(c, t, 0));
  }
  for (; t < c.tokens; ++t) float_rows_of<kType, 1, 1>(c, t, 0);
}

Kernels make_kernels() {
  Kernels k{.isa = "avx512", .pack = &pack, .types = {}};
  add<Q8_0>(k, WeightType::kQ8_0);
  add<Q6_K>(k, WeightType::kQ6_K);
  add<K45<false>>(k, WeightType::kQ4_K);
  add<K45<true>>(k, WeightType::kQ5_K);
  add<IQ4_XS>(k, WeightType::kIQ4_XS);
  add<Nibble18<false>>(k, WeightType::kIQ4_NL);
  add<Nibble18<true>>(k, WeightType::kQ4_0);
  add<Q2_0>(k, WeightType::kQ2_0);
  add_avx512_grids(k);
  add_avx512_more(k);
  k.types[static_cast<uint32_t>(WeightType::kF32)].rows = &float_rows<WeightType::kF32>;
  k.types[static_cast<uint32_t>(WeightType::kF16)].rows = &float_rows<WeightType::kF16>;
  k.types[static_cast<uint32_t>(WeightType::kBF16)].rows = &float_rows<WeightType::kBF16>;
  return k;
}

}  // namespace

const Kernels* avx512_kernels() {
  __builtin_cpu_init();
  const bool has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
                   __builtin_cpu_supports("gfni") && __builtin_cpu_supports("bmi2");
  if (!has) return nullptr;
  static const Kernels table = make_kernels();  // after the check: compiled for AVX-512 as well
  return &table;
}

}  // namespace esker::cpu

#else

namespace esker::cpu {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace esker::cpu

#endif
