// SPDX-License-Identifier: MIT
//
// The kernel of a type: for up to four tokens a loop over rows that multiplies what Type::unpack gives
// as it comes; for more, panels (avx512_panel.h).
// Part of the kernels_avx512*.cpp, which alone include it, compiled for AVX-512.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backends/cpu/avx512_panel.h"
#include "backends/cpu/avx512_unpack.h"

namespace esker::cpu {
namespace {

template <class T>
struct Shape {
  static constexpr int kUnitAccs = order_accumulators(T::kOrder), kAccs = kUnitAccs * T::kUnits;
  static constexpr int kVectors = 4 * T::kUnits, kPerAcc = kVectors / kAccs;
  static constexpr int64_t kAccValues = kUnit / kUnitAccs;
  static constexpr int64_t kStepBytes = int64_t{T::kBlockBytes} * T::kUnits;
};

// The sums of all lanes of a and of b, in lanes 0 and 1.
inline __m128 lane_sums(Float a, Float b) {
  const auto half = [](Float v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  };
  const __m256 x = half(a), y = half(b);
  const __m256 z = _mm256_add_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(z), _mm256_extractf128_ps(z, 1));
  return _mm_add_ps(four, _mm_movehl_ps(four, four));
}

// From RAM one row at a time, as one stream: rows side by side defeat the hardware prefetcher.
template <class T, int kParts, int kTokens>
class RowLoop {
 public:
  RowLoop(const RowsCall& c, int64_t first) : c_(c) {
    const Packed& x = *c.x;
    for (int t = 0; t < kTokens; ++t) {
      const int64_t v = c.vector(first + t);
      q_[t] = x.q.data() + v * x.q_stride();
      lanes_[t] = x.lanes.data() + v * x.lane_stride();
      x_sums_[t] = x.sums.data() + v * x.units;
      y_[t] = c.y + c.place(first + t) * c.y_stride;
    }
  }

  void run() {
    const int64_t row_bytes = static_cast<int64_t>(c_.row_bytes);
    const uint8_t* const end = c_.w + c_.n_rows * row_bytes;
    const int64_t whole = row_bytes / S::kStepBytes, rest = row_bytes % S::kStepBytes;
    const int64_t values = c_.x->n - whole * kUnit * T::kUnits;  // of the rest
    const bool copies = values % S::kAccValues != 0;
    for (int64_t r = 0; r < c_.n_rows; ++r) {
      const uint8_t* p = c_.w + r * row_bytes;
      clear();
      for (int64_t s = 0; s < whole; ++s, p += S::kStepBytes) {
        prefetch(p);
        step<S::kAccs>(sums_, p, s);
      }
      if (rest != 0) {
        alignas(64) uint8_t last[S::kStepBytes];
        p = whole_step(p, copies ? p : end, rest, last);
        switch ((values + S::kAccValues - 1) / S::kAccValues) {
          case 1: step<1>(sums_, p, whole); break;
          case 2: step<std::min(2, S::kAccs)>(sums_, p, whole); break;
          case 3: step<std::min(3, S::kAccs)>(sums_, p, whole); break;
          default: step<S::kAccs>(sums_, p, whole);
        }
      }
      store(r);
    }
  }

  // Rows of a part of a unit (Packed::copies), as many at a time as fill one.
  void run_short() {
    using G = Groups<T::kOrder, 32>;
    const int64_t row_bytes = static_cast<int64_t>(c_.row_bytes), n_values = c_.x->n;
    const int64_t at_once = kUnit / n_values;
    for (int64_t r = 0; r < c_.n_rows; r += at_once) {
      const int64_t n_rows = std::min(at_once, c_.n_rows - r);
      alignas(64) uint8_t last[S::kStepBytes];
      const uint8_t* p = c_.w + r * row_bytes;
      const uint8_t* end = n_rows == at_once ? p + S::kStepBytes : p;
      Int u[S::kVectors];
      Float scale[S::kAccs], mins[T::kUnits];
      T::unpack(whole_step(p, end, n_rows * row_bytes, last), u, scale, mins);
      for (int t = 0; t < kTokens; ++t) {
        // Of lanes, of groups of 32, of rows.
        alignas(64) float lane[S::kAccs][16], less[16] = {};
        for (int a = 0; a < S::kAccs; ++a) {
          _mm512_store_ps(lane[a], _mm512_mul_ps(values(u, t, 0, a), scale[a]));
        }
        if (T::kOrder != Order::kQuad) _mm512_store_ps(less, _mm512_mul_ps(group_sums(t, 0), mins[0]));
        float group[8];
        for (int a = 0; a < S::kUnitAccs; ++a) {
          for (int g = 0; g < G::kAccGroups; ++g) {
            float sum = lane[a][G::kLanes * g];
            for (int i = 1; i < G::kLanes; ++i) sum += lane[a][G::kLanes * g + i];
            const int of = G::group(a, g);
            group[of] = sum - (T::kGroup == 32 ? less[of] : less[2 * of] + less[2 * of + 1]);
          }
        }
        for (int64_t i = 0; i < n_rows; ++i) {
          const float* first = group + i * n_values / 32;
          float sum = first[0];
          for (int64_t g = 1; g < n_values / 32; ++g) sum += first[g];
          y_[t][r + i] = sum;
        }
      }
    }
  }

  // Rows of half a unit more than whole ones (Packed::copies), two at a time: lanes 0..7 of the unit
  // in the middle are the first's. kPairs of them share the loads of x; returns the first row left.
  template <int kPairs>
  int64_t run_pairs(int64_t r) {
    static_assert(S::kAccs == 1);
    const int64_t row_bytes = static_cast<int64_t>(c_.row_bytes), pair_bytes = 2 * row_bytes;
    const uint8_t* const end = c_.w + c_.n_rows * row_bytes;
    const int64_t whole = row_bytes / S::kStepBytes, rest = row_bytes % S::kStepBytes;
    // A last row without a second is a pair of its own.
    for (; r + 2 * kPairs - (kPairs == 1 ? 1 : 0) <= c_.n_rows; r += 2 * kPairs) {
      const uint8_t* const p = c_.w + r * row_bytes;
      const bool is_one = kPairs == 1 && r + 1 == c_.n_rows;
      Float first[kTokens][kPairs], second[kTokens][kPairs], middle[kTokens][kPairs];
      for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < kPairs; ++i) {
          first[t][i] = second[t][i] = middle[t][i] = _mm512_setzero_ps();
        }
      }
      const auto add_step = [&](Float(&sums)[kTokens][kPairs], int64_t s) {
        Int u[kPairs][S::kVectors];
        Float scale[kPairs];
        for (int i = 0; i < kPairs; ++i) {
          const uint8_t* at = p + i * pair_bytes + s * S::kStepBytes;
          prefetch(at);
          alignas(64) uint8_t last[S::kStepBytes];
          if (s == whole && is_one) at = whole_step(at, end, rest, last);
          T::unpack(at, u[i], &scale[i], nullptr);
        }
        for (int t = 0; t < kTokens; ++t) {
          Float value[kPairs];
          values<kPairs>(u, t, s, 0, value);
          for (int i = 0; i < kPairs; ++i) sums[t][i] = _mm512_fmadd_ps(value[i], scale[i], sums[t][i]);
        }
      };
      for (int64_t s = 0; s < whole; ++s) add_step(first, s);
      add_step(middle, whole);
      if (!is_one) {
        for (int64_t s = whole + 1; s < 2 * whole + 1; ++s) add_step(second, s);
      }
      for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < kPairs; ++i) {
          first[t][i] = _mm512_mask_add_ps(first[t][i], 0x00ff, first[t][i], middle[t][i]);
          second[t][i] = _mm512_mask_add_ps(second[t][i], 0xff00, second[t][i], middle[t][i]);
          const __m128 two = lane_sums(first[t][i], second[t][i]);
          float* y = y_[t] + r + 2 * i;
          if (is_one) {
            _mm_store_ss(y, two);
          } else {
            _mm_storel_pi(reinterpret_cast<__m64*>(y), two);
          }
        }
      }
    }
    return r;
  }

 private:
  using S = Shape<T>;

  static void prefetch(const uint8_t* p) {
    for (int64_t line = 0; line < S::kStepBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchBytes + line), _MM_HINT_T0);
    }
  }

  // A step whose first `rest` bytes are the row's: where they stand if all of it may be read, else a
  // copy in `last` with zeros behind.
  static const uint8_t* whole_step(const uint8_t* p, const uint8_t* end, int64_t rest, uint8_t* last) {
    if (end - p >= S::kStepBytes) return p;
    std::memset(last, 0, S::kStepBytes);
    std::memcpy(last, p, static_cast<size_t>(rest));
    return last;
  }

  void clear() {
    for (Float& sum : sums_) sum = _mm512_setzero_ps();
  }
  void store(int64_t row) {
    for (int t = 0; t < kTokens; ++t) y_[t][row] = _mm512_reduce_add_ps(sums_[t]);
  }

  // The sums of accumulator a of step s for token t, without the weights' scale, of kRows rows' bytes u.
  template <int kRows>
  [[gnu::always_inline]] void values(const Int (*u)[S::kVectors], int t, int64_t s, int a,
                                     Float* value) const {
    const uint8_t* x = q_[t] + 64 * kParts * (s * S::kVectors + a * S::kPerAcc);
    Int sum[kRows][kParts];
    for (auto& of_row : sum) {
      for (Int& part : of_row) part = _mm512_setzero_si512();
    }
    for (int v = 0; v < S::kPerAcc; ++v) {
      for (int k = 0; k < kParts; ++k) {
        const Int part = load(x + 64 * (kParts * v + k));
        for (int r = 0; r < kRows; ++r) {
          sum[r][k] = dot(sum[r][k], u[r][a * S::kPerAcc + v], part);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      value[r] = _mm512_mul_ps(part_values<kParts>(sum[r]),
                               _mm512_load_ps(lanes_[t][s * S::kAccs + a].scale));
      if (T::kOrder == Order::kQuad) {  // a lane has 16 consecutive values
        value[r] = _mm512_fnmadd_ps(_mm512_load_ps(x_sums_[t][s * T::kUnits + a].of_16),
                                    _mm512_set1_ps(T::kOffset), value[r]);
      }
    }
  }
  [[gnu::always_inline]] Float values(const Int* u, int t, int64_t s, int a) const {
    Float value;
    values<1>(reinterpret_cast<const Int(*)[S::kVectors]>(u), t, s, a, &value);
    return value;
  }
  // What the groups of step s of token t hold, for the offsets that values() has not put right.
  [[gnu::always_inline]] Float group_sums(int t, int64_t s) const {
    return _mm512_load_ps(T::kGroup == 16 ? x_sums_[t][s].of_16 : x_sums_[t][s].of_32);
  }

  // Adds the first kLive accumulators of step s.
  template <int kLive>
  [[gnu::always_inline]] void step(Float* sums, const uint8_t* block, int64_t s) {
    Int u[S::kVectors];
    Float scale[S::kAccs], mins[T::kUnits];
    T::unpack(block, u, scale, mins);
    for (int t = 0; t < kTokens; ++t) {
      for (int a = 0; a < kLive; ++a) {
        sums[t] = _mm512_fmadd_ps(values(u, t, s, a), scale[a], sums[t]);
      }
      if (T::kOrder != Order::kQuad) {
        sums[t] = _mm512_fnmadd_ps(group_sums(t, s), mins[0], sums[t]);
      }
    }
  }

  const RowsCall& c_;
  const uint8_t* q_[kTokens];
  const Lanes* lanes_[kTokens];
  const UnitSums* x_sums_[kTokens];
  float* y_[kTokens];
  Float sums_[kTokens];
};

template <class T, int kParts, int kTokens>
void few_tokens(const RowsCall& c) {
  RowLoop<T, kParts, kTokens> loop(c, 0);
  if constexpr (std::is_same_v<T, Q2_0>) {
    if (c.x->copies() == 2 && c.x->n > kUnit) {
      const int64_t row = kTokens == 1 ? loop.template run_pairs<2>(0) : 0;
      loop.template run_pairs<1>(row);
      return;
    }
  }
  c.x->n < kUnit && c.x->copies() > 1 ? loop.run_short() : loop.run();
}

// Where a token costs one accumulator a unit, the rows stay ahead of the panels a little longer.
template <class T, int kParts, int kTokens>
void some_tokens(const RowsCall& c) {
  if constexpr (Shape<T>::kUnitAccs == 1) {
    few_tokens<T, kParts, kTokens>(c);
  } else {
    panels<T, kParts>(c);
  }
}

template <class T, int kParts>
void rows_in(const RowsCall& c) {
  switch (c.tokens) {
    case 0: return;
    case 1: return few_tokens<T, kParts, 1>(c);
    case 2: return few_tokens<T, kParts, 2>(c);
    case 3: return few_tokens<T, kParts, 3>(c);
    case 4: return few_tokens<T, kParts, 4>(c);
    case 5: return some_tokens<T, kParts, 5>(c);
    case 6: return some_tokens<T, kParts, 6>(c);
    default: return panels<T, kParts>(c);
  }
}
template <class T>
void rows(const RowsCall& c) {
  switch (c.x->parts) {
    case 1: return rows_in<T, 1>(c);
    case 2: return rows_in<T, 2>(c);
    default: return rows_in<T, 3>(c);
  }
}

template <class T>
void add(Kernels& k, WeightType type) {
  k.types[static_cast<uint32_t>(type)] = {T::kOrder, &rows<T>};
}

}  // namespace
}  // namespace esker::cpu
