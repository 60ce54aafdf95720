// SPDX-License-Identifier: MIT
//
// AVX-512 kernels (F, BW, VL, DQ, VNNI, VBMI, GFNI: Zen 4 and newer, Ice Lake and newer).
//
// One pattern: Type::unpack turns the blocks of a unit into four vectors of signed bytes and a scale
// a lane; one loop multiplies them with packed activations of several tokens.
#include "backends/cpu/kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__GFNI__)

#include <algorithm>
#include <cstring>

#include "backends/cpu/avx512_grids.h"
#include "backends/cpu/avx512_pack.h"
#include "backends/cpu/avx512_unpack.h"

namespace esker::cpu {
namespace {

// 8 KB ahead hides the memory's latency; nearer costs up to 15 %, farther gains nothing.
constexpr int64_t kPrefetchBytes = 8192;

// ---- The one loop.

template <class T>
struct Shape {
  static constexpr int kAccs = order_accumulators(T::kOrder) * T::kUnits;  // of one step
  static constexpr int kVectors = 4 * T::kUnits;
  static constexpr int kPerAcc = kVectors / kAccs;
};

// What a step of a row unpacks to.
template <class T>
struct Unpacked {
  Int w[Shape<T>::kVectors];
  Int start[Shape<T>::kAccs];  // of the highest part's sums: minus 128 times the sum of the weights
  Float scale[Shape<T>::kAccs];
  Float mins[Shape<T>::kAccs];

  inline void read(const uint8_t* block) {
    using S = Shape<T>;
    T::unpack(block, w, scale, mins);
    for (int a = 0; a < S::kAccs; ++a) {
      Int sum = _mm512_setzero_si512();
      for (int v = a * S::kPerAcc; v < (a + 1) * S::kPerAcc; ++v) sum = dot(sum, bytes(128), w[v]);
      start[a] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
    }
  }
};

// Adds accumulator a of a step to the sums of kRows rows for one token: the token's bytes are loaded
// once for all rows. `stride` apart: the sums of a row.
template <class T, int kParts, int kRows>
inline void add_step(Float* acc, int stride, const Unpacked<T>* rows, int a, const uint8_t* q,
                     const Lanes& lanes) {
  using S = Shape<T>;
  Int low[kRows], middle[kRows], high[kRows];
  for (int r = 0; r < kRows; ++r) {
    low[r] = middle[r] = _mm512_setzero_si512();
    high[r] = rows[r].start[a];
  }
  for (int v = a * S::kPerAcc; v < (a + 1) * S::kPerAcc; ++v) {
    const uint8_t* x = q + 64 * kParts * v;
    const Int x_low = load(x), x_high = load(x + 64 * (kParts - 1));
    for (int r = 0; r < kRows; ++r) low[r] = dot(low[r], x_low, rows[r].w[v]);
    if (kParts == 3) {
      const Int x_middle = load(x + 64);
      for (int r = 0; r < kRows; ++r) middle[r] = dot(middle[r], x_middle, rows[r].w[v]);
    }
    for (int r = 0; r < kRows; ++r) high[r] = dot(high[r], x_high, rows[r].w[v]);
  }
  const Float x_scale = _mm512_loadu_ps(lanes.scale);
  for (int r = 0; r < kRows; ++r) {
    Float value;
    if (kParts == 3) {
      const Int lower = _mm512_add_epi32(low[r], _mm512_slli_epi32(middle[r], 7));
      value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[r]), _mm512_set1_ps(16384.0f),
                              _mm512_cvtepi32_ps(lower));
    } else {
      value = _mm512_cvtepi32_ps(_mm512_add_epi32(low[r], _mm512_slli_epi32(high[r], 7)));
    }
    Float& sum = acc[r * stride];
    sum = _mm512_fmadd_ps(value, _mm512_mul_ps(rows[r].scale[a], x_scale), sum);
    if (T::kMins) sum = _mm512_fnmadd_ps(_mm512_loadu_ps(lanes.sum), rows[r].mins[a], sum);
  }
}

// kTokens vectors from `first` on, kRows rows at a time, all rows but a last n_rows % kRows: returns
// how many rows it did from `row` on.
template <class T, int kParts, int kTokens, int kRows>
int64_t rows_of(const RowsCall& c, int64_t first, int64_t row) {
  using S = Shape<T>;
  const Packed& x = *c.x;
  constexpr int64_t kStepBytes = int64_t{T::kBlockBytes} * T::kUnits;
  constexpr int64_t kStepQ = 256 * kParts * T::kUnits, kStepLanes = S::kAccs;
  const uint8_t* q[kTokens];
  const Lanes* lanes[kTokens];
  float* y[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const int64_t v = c.vector(first + t);
    q[t] = x.q.data() + v * x.q_stride();
    lanes[t] = x.lanes.data() + v * x.lane_stride();
    y[t] = c.y + c.place(first + t) * c.y_stride;
  }
  const int64_t row_bytes = static_cast<int64_t>(c.row_bytes);
  const int64_t whole = row_bytes / kStepBytes, rest = row_bytes % kStepBytes;
  const uint8_t* end = c.w + c.n_rows * row_bytes;
  int64_t r = row;
  for (; r + kRows <= c.n_rows; r += kRows) {
    const uint8_t* p = c.w + r * row_bytes;
    Float acc[kRows * kTokens];
    for (Float& sum : acc) sum = _mm512_setzero_ps();
    const auto step = [&](const uint8_t* const* block, int64_t s) __attribute__((always_inline)) {
      Unpacked<T> rows[kRows];
      for (int i = 0; i < kRows; ++i) rows[i].read(block[i]);
      for (int a = 0; a < S::kAccs; ++a) {
        for (int t = 0; t < kTokens; ++t) {
          add_step<T, kParts, kRows>(acc + t, kTokens, rows, a, q[t] + s * kStepQ,
                                     lanes[t][s * kStepLanes + a]);
        }
      }
    };
    const uint8_t* block[kRows];
    for (int64_t s = 0; s < whole; ++s) {
      for (int i = 0; i < kRows; ++i) {
        block[i] = p + i * row_bytes + s * kStepBytes;
        for (int64_t line = 0; line < kStepBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(block[i] + kPrefetchBytes + line), _MM_HINT_T0);
        }
      }
      step(block, s);
    }
    if (rest != 0) {
      // A row that is no whole number of steps. What follows it meets activations of zero, so it may
      // be the next rows; at the end of the matrix it is a copy's zeros.
      alignas(64) uint8_t last[kRows][kStepBytes];
      for (int i = 0; i < kRows; ++i) {
        block[i] = p + i * row_bytes + whole * kStepBytes;
        if (end - block[i] >= kStepBytes) continue;
        std::memset(last[i], 0, sizeof last[i]);
        std::memcpy(last[i], block[i], static_cast<size_t>(rest));
        block[i] = last[i];
      }
      step(block, whole);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int t = 0; t < kTokens; ++t) y[t][r + i] = _mm512_reduce_add_ps(acc[i * kTokens + t]);
    }
  }
  return r - row;
}

// From RAM one row at a time, as one stream: rows side by side defeat the hardware prefetcher. With
// several tokens the arithmetic is the limit, and two rows share the loads of the activations; types
// of two units a step have no registers left for that.
template <class T, int kParts, int kTokens>
void tokens_of(const RowsCall& c, int64_t first) {
  constexpr int kRows = kTokens == 1 || T::kUnits == 2 ? 1 : 2;
  const int64_t done = rows_of<T, kParts, kTokens, kRows>(c, first, 0);
  if (done < c.n_rows) rows_of<T, kParts, kTokens, 1>(c, first, done);
}

template <class T, int kParts>
void rows_in(const RowsCall& c) {
  int64_t t = 0;
  if (T::kUnits == 2) {
    for (; t + 8 <= c.tokens; t += 8) tokens_of<T, kParts, 8>(c, t);
  }
  for (; t + 4 <= c.tokens; t += 4) tokens_of<T, kParts, 4>(c, t);
  switch (c.tokens - t) {
    case 3: return tokens_of<T, kParts, 3>(c, t);
    case 2: return tokens_of<T, kParts, 2>(c, t);
    case 1: return tokens_of<T, kParts, 1>(c, t);
    default: return;
  }
}
template <class T>
void rows(const RowsCall& c) {
  c.x->parts == 3 ? rows_in<T, 3>(c) : rows_in<T, 2>(c);
}

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

template <WeightType kType, int kTokens>
void float_rows_of(const RowsCall& c, int64_t first) {
  constexpr int64_t kBytes = kType == WeightType::kF32 ? 4 : 2;
  const int64_t n = c.x->n;
  const float* x[kTokens];
  float* y[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    x[t] = c.x->x + c.vector(first + t) * n;
    y[t] = c.y + c.place(first + t) * c.y_stride;
  }
  for (int64_t r = 0; r < c.n_rows; ++r) {
    const uint8_t* p = c.w + static_cast<uint64_t>(r) * c.row_bytes;
    Float acc[kTokens][2];
    for (auto& a : acc) a[0] = a[1] = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i * kBytes + kPrefetchBytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + i * kBytes + kPrefetchBytes + 64), _MM_HINT_T0);
      const Float w0 = load_floats<kType>(p + i * kBytes);
      const Float w1 = load_floats<kType>(p + (i + 16) * kBytes);
      for (int t = 0; t < kTokens; ++t) {
        acc[t][0] = _mm512_fmadd_ps(w0, _mm512_loadu_ps(x[t] + i), acc[t][0]);
        acc[t][1] = _mm512_fmadd_ps(w1, _mm512_loadu_ps(x[t] + i + 16), acc[t][1]);
      }
    }
    alignas(64) float tail[16] = {};
    for (; i < n; i += 16) {
      const int64_t left = std::min<int64_t>(16, n - i);
      alignas(64) uint8_t bytes_left[64] = {};
      std::memcpy(bytes_left, p + i * kBytes, static_cast<size_t>(left * kBytes));
      const Float w0 = load_floats<kType>(bytes_left);
      for (int t = 0; t < kTokens; ++t) {
        std::memcpy(tail, x[t] + i, static_cast<size_t>(left) * sizeof(float));
        acc[t][0] = _mm512_fmadd_ps(w0, _mm512_load_ps(tail), acc[t][0]);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      y[t][r] = _mm512_reduce_add_ps(_mm512_add_ps(acc[t][0], acc[t][1]));
    }
  }
}

template <WeightType kType>
void float_rows(const RowsCall& c) {
  int64_t t = 0;
  for (; t + 8 <= c.tokens; t += 8) float_rows_of<kType, 8>(c, t);
  for (; t + 2 <= c.tokens; t += 2) float_rows_of<kType, 2>(c, t);
  for (; t < c.tokens; ++t) float_rows_of<kType, 1>(c, t);
}

template <class T>
void add(Kernels& k, WeightType type) {
  k.types[static_cast<uint32_t>(type)] = {T::kOrder, &rows<T>};
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
  add<IQ3_S>(k, WeightType::kIQ3_S);
  add<IQ3_XXS>(k, WeightType::kIQ3_XXS);
  add<IQ2_S>(k, WeightType::kIQ2_S);
  add<IQ2_XS>(k, WeightType::kIQ2_XS);
  add<IQ2_XXS>(k, WeightType::kIQ2_XXS);
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
