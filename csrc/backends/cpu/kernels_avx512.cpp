// SPDX-License-Identifier: MIT
//
// AVX-512 kernels (F, BW, VL, DQ, VNNI, VBMI, GFNI: Zen 4 and newer, Ice Lake and newer).
//
// One pattern: Type::unpack turns the blocks of a unit into four vectors of signed bytes and a scale
// a lane; one loop multiplies them with packed activations of several tokens. One row at a time, as
// one stream: rows side by side defeat the hardware prefetcher.
#include "backends/cpu/kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__GFNI__)

#include <algorithm>

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

// Adds one step (T::kUnits units) of one token to its float accumulator. start: of the highest
// part's sums, minus 128 times the sum of the weights.
template <class T, int kParts>
inline Float add_step(Float acc, const Int* u, const Int* start, const Float* scale,
                      const Float* mins, const uint8_t* q, const Lanes* lanes) {
  using S = Shape<T>;
  for (int a = 0; a < S::kAccs; ++a) {
    Int low = _mm512_setzero_si512(), middle = low, high = start[a];
    for (int v = a * S::kPerAcc; v < (a + 1) * S::kPerAcc; ++v) {
      const uint8_t* x = q + 64 * kParts * v;
      low = dot(low, load(x), u[v]);
      if (kParts == 3) middle = dot(middle, load(x + 64), u[v]);
      high = dot(high, load(x + 64 * (kParts - 1)), u[v]);
    }
    Float value;
    if (kParts == 3) {
      low = _mm512_add_epi32(low, _mm512_slli_epi32(middle, 7));
      value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(16384.0f),
                              _mm512_cvtepi32_ps(low));
    } else {
      value = _mm512_cvtepi32_ps(_mm512_add_epi32(low, _mm512_slli_epi32(high, 7)));
    }
    acc = _mm512_fmadd_ps(value, _mm512_mul_ps(scale[a], _mm512_loadu_ps(lanes[a].scale)), acc);
    if (T::kMins) acc = _mm512_fnmadd_ps(_mm512_loadu_ps(lanes[a].sum), mins[a], acc);
  }
  return acc;
}

template <class T, int kParts, int kTokens>
void rows_of(const RowsCall& c, int64_t first) {
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
  const int64_t whole = static_cast<int64_t>(c.row_bytes) / kStepBytes;
  const int64_t rest = static_cast<int64_t>(c.row_bytes) % kStepBytes;
  for (int64_t r = 0; r < c.n_rows; ++r) {
    const uint8_t* p = c.w + static_cast<uint64_t>(r) * c.row_bytes;
    Float acc[kTokens];
    for (Float& a : acc) a = _mm512_setzero_ps();
    const auto step = [&](const uint8_t* block, int64_t s) __attribute__((always_inline)) {
      Int u[S::kVectors], start[S::kAccs];
      Float scale[S::kAccs], mins[S::kAccs];
      T::unpack(block, u, scale, mins);
      for (int a = 0; a < S::kAccs; ++a) {
        Int sum = _mm512_setzero_si512();
        for (int v = a * S::kPerAcc; v < (a + 1) * S::kPerAcc; ++v) sum = dot(sum, bytes(128), u[v]);
        start[a] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
      }
      for (int t = 0; t < kTokens; ++t) {
        acc[t] = add_step<T, kParts>(acc[t], u, start, scale, mins, q[t] + s * kStepQ,
                                     lanes[t] + s * kStepLanes);
      }
    };
    for (int64_t s = 0; s < whole; ++s, p += kStepBytes) {
      for (int64_t line = 0; line < kStepBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchBytes + line), _MM_HINT_T0);
      }
      step(p, s);
    }
    if (rest != 0) {  // a row that is no whole number of steps: the missing blocks are zeros
      alignas(64) uint8_t last[kStepBytes] = {};
      std::memcpy(last, p, static_cast<size_t>(rest));
      step(last, whole);
    }
    for (int t = 0; t < kTokens; ++t) y[t][r] = _mm512_reduce_add_ps(acc[t]);
  }
}

template <class T, int kParts>
void rows_in(const RowsCall& c) {
  int64_t t = 0;
  for (; t + 8 <= c.tokens; t += 8) rows_of<T, kParts, 8>(c, t);
  for (; t + 2 <= c.tokens; t += 2) rows_of<T, kParts, 2>(c, t);
  for (; t < c.tokens; ++t) rows_of<T, kParts, 1>(c, t);
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
