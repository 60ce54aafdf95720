// SPDX-License-Identifier: MIT
//
// Many tokens: 32 rows are unpacked once into a panel, in which one vector holds four values of each of
// 16 rows, and every token's values are broadcast to it: a sum is a row's, exact over the 16 or 32
// values of a scale, and nothing is added across lanes.
// Part of the kernels_avx512*.cpp, which alone include it, compiled for AVX-512.
#pragma once

#include <algorithm>

#include "backends/cpu/avx512_unpack.h"
#include "backends/cpu/kernels.h"

namespace esker::cpu {
namespace {

constexpr int kPanelRows = 32, kHalves = 2;  // two vectors of 16 rows
constexpr int64_t kPanelUnits = 8;  // 96 KB with its scales: stays in the L2 cache, and on the stack

// How values lie in a panel: the same for all types of one order and size of group.
template <Order kOrder, int kGroup>
struct PanelShape : Groups<kOrder, kGroup> {
  using G = Groups<kOrder, kGroup>;
  static constexpr int64_t kUnitBytes = 64 * 64 * kHalves;
  static constexpr int64_t kUnitScales = int64_t{G::kGroups} * kPanelRows;
  // The vector that holds lane i of vector v of the unit.
  static constexpr int position(int v, int i) {
    return ((v / G::kPerAcc * G::kAccGroups + i / G::kLanes) * G::kPerAcc + v % G::kPerAcc) * G::kLanes +
           i % G::kLanes;
  }
};

// rows[r] lane i -> rows[i] lane r.
inline void transpose(Int* rows) {
  Int t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 16; i += 8) {
    for (int k = 0; k < 4; ++k) {
      t[i + k] = _mm512_shuffle_i32x4(rows[i + k], rows[i + k + 4], 0x88);
      t[i + k + 4] = _mm512_shuffle_i32x4(rows[i + k], rows[i + k + 4], 0xdd);
    }
  }
  for (int k = 0; k < 8; ++k) {
    rows[k] = _mm512_shuffle_i32x4(t[k], t[k + 8], 0x88);
    rows[k + 8] = _mm512_shuffle_i32x4(t[k], t[k + 8], 0xdd);
  }
}

struct alignas(64) Panel {
  uint8_t bytes[kPanelUnits * 64 * 64 * kHalves];  // [units, 64 positions, halves, 16 rows, 4]
  float scales[kPanelUnits * 16 * kPanelRows];     // [units, groups, halves, 16 rows]
  float mins[kPanelUnits * 16 * kPanelRows];       // as scales
};

// Rows from `row` on, units [first, end).
template <class T>
void fill_panel(Panel& panel, const RowsCall& c, int64_t row, int64_t first, int64_t end) {
  using P = PanelShape<T::kOrder, T::kGroup>;
  constexpr int64_t kStepBytes = int64_t{T::kBlockBytes} * T::kUnits;
  const int64_t row_bytes = static_cast<int64_t>(c.row_bytes);
  const int64_t ahead = kPanelRows * row_bytes;  // the next rows, while these are unpacked
  for (int64_t unit = first; unit < end; unit += T::kUnits) {
    const int64_t at = unit * T::kBlockBytes;
    for (int half = 0; half < kHalves; ++half) {
      Int bytes_of[4 * T::kUnits][16], scales_of[T::kUnits][16], mins_of[T::kUnits][16];
      for (int i = 0; i < 16; ++i) {
        // Rows past the end repeat the last: their sums are not kept.
        const int64_t r = std::min(row + 16 * half + i, c.n_rows - 1);
        const uint8_t* p = c.w + r * row_bytes + at;
        for (int64_t line = 0; line < kStepBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(p + ahead + line), _MM_HINT_T1);
        }
        alignas(64) uint8_t last[kStepBytes];
        if (row_bytes - at < kStepBytes) {
          std::memset(last, 0, sizeof last);
          std::memcpy(last, p, static_cast<size_t>(row_bytes - at));
          p = last;
        }
        Int u[4 * T::kUnits];
        Float scale[P::kAccs * T::kUnits], mins[T::kUnits];
        T::unpack(p, u, scale, mins);
        for (int v = 0; v < 4 * T::kUnits; ++v) bytes_of[v][i] = u[v];
        for (int k = 0; k < T::kUnits; ++k) {
          scales_of[k][i] = _mm512_castps_si512(
              group_scales<T::kOrder, T::kGroup>(scale + k * P::kAccs));
          if (T::kMins) mins_of[k][i] = _mm512_castps_si512(mins[k]);
        }
      }
      for (int k = 0; k < T::kUnits; ++k) {
        const int64_t place = unit - first + k;
        for (int v = 0; v < 4; ++v) {
          Int* rows = bytes_of[4 * k + v];
          transpose(rows);
          uint8_t* to = panel.bytes + place * P::kUnitBytes + 64 * half;
          for (int i = 0; i < 16; ++i) {
            _mm512_store_si512(to + int64_t{64} * kHalves * P::position(v, i), rows[i]);
          }
        }
        const auto store_scales = [&](float* to, Int* rows) {
          transpose(rows);
          for (int g = 0; g < P::kGroups; ++g) {
            _mm512_store_si512(to + place * P::kUnitScales + kPanelRows * g + 16 * half, rows[g]);
          }
        };
        store_scales(panel.scales, scales_of[k]);
        if (T::kMins) store_scales(panel.mins, mins_of[k]);
      }
    }
  }
}

// Part of the rows' sums for kTokens vectors: the panel's units [begin, end) of them. Units of a panel
// after the first are added to what is there.
template <Order kOrder, int kGroup, bool kMins, int kParts, int kTokens>
void multiply_panel(const Panel& panel, const RowsCall& c, int64_t row, int64_t begin, int64_t end,
                    float offset, int64_t first) {
  using P = PanelShape<kOrder, kGroup>;
  const Packed& x = *c.x;
  const uint8_t* q[kTokens];
  const UnitSums* sums[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const int64_t v = c.vector(first + t);
    q[t] = x.q.data() + v * x.q_stride() + begin * 256 * kParts;
    sums[t] = x.sums.data() + v * x.units + begin;
  }
  const auto y_of = [&](int t) { return c.y + c.place(first + t) * c.y_stride + row; };
  __mmask16 live[kHalves];
  for (int h = 0; h < kHalves; ++h) {
    live[h] = static_cast<__mmask16>(
        (1u << std::clamp<int64_t>(c.n_rows - row - 16 * h, 0, 16)) - 1);
  }
  Float acc[kTokens][kHalves];
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHalves; ++h) {
      acc[t][h] = begin == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(live[h], y_of(t) + 16 * h);
    }
  }
  const Float offsets = _mm512_set1_ps(offset);
  const uint8_t* w = panel.bytes;
  for (int64_t unit = 0; unit < end - begin; ++unit) {
    for (int a = 0; a < P::kAccs; ++a) {
      for (int g = 0; g < P::kAccGroups; ++g) {
        const int64_t at = unit * 256 * kParts + 64 * kParts * P::kPerAcc * a + 4 * P::kLanes * g;
        Int sum[kTokens][kHalves][kParts];
        for (auto& of_token : sum) {
          for (auto& of_half : of_token) {
            for (Int& part : of_half) part = _mm512_setzero_si512();
          }
        }
        for (int v = 0; v < P::kPerAcc; ++v) {
          for (int i = 0; i < P::kLanes; ++i, w += 64 * kHalves) {
            const Int w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
            for (int t = 0; t < kTokens; ++t) {
              for (int k = 0; k < kParts; ++k) {
                const Int four = _mm512_set1_epi32(
                    peek<int32_t>(q[t] + at + 64 * (kParts * v + k) + 4 * i));
                sum[t][0][k] = dot(sum[t][0][k], w0, four);
                sum[t][1][k] = dot(sum[t][1][k], w1, four);
              }
            }
          }
        }
        const int64_t index = P::group(a, g);
        const int64_t scales_at = unit * P::kUnitScales + kPanelRows * index;
        for (int h = 0; h < kHalves; ++h) {
          const Float scale = _mm512_load_ps(panel.scales + scales_at + 16 * h);
          for (int t = 0; t < kTokens; ++t) {
            const UnitSums& of = sums[t][unit];
            const float x_sum = kGroup == 32 ? of.of_32[index] : of.of_16[index];
            Float value = _mm512_mul_ps(part_values<kParts>(sum[t][h]),
                                        _mm512_set1_ps(of.scale[index * kGroup / 32]));
            if (!kMins) value = _mm512_fnmadd_ps(_mm512_set1_ps(x_sum), offsets, value);
            acc[t][h] = _mm512_fmadd_ps(value, scale, acc[t][h]);
            if (kMins) {
              acc[t][h] = _mm512_fnmadd_ps(
                  _mm512_set1_ps(x_sum),
                  _mm512_load_ps(panel.mins + scales_at + 16 * h), acc[t][h]);
            }
          }
        }
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHalves; ++h) _mm512_mask_storeu_ps(y_of(t) + 16 * h, live[h], acc[t][h]);
  }
}

template <class T, int kParts>
void panels(const RowsCall& c) {
  // What the registers hold: parts times tokens times two halves of sums, and the totals.
  constexpr int kTokens = kParts == 3 ? 2 : 4;
  Panel panel;
  const int64_t units = (c.x->n + kUnit - 1) / kUnit;
  const int64_t pieces = (units + kPanelUnits - 1) / kPanelUnits;
  // Of about the same size, and even: some types take two units a step.
  const int64_t piece = ((units + pieces - 1) / pieces + 1) / 2 * 2;
  for (int64_t row = 0; row < c.n_rows; row += kPanelRows) {
    for (int64_t begin = 0; begin < units; begin += piece) {
      const int64_t end = std::min(begin + piece, units);
      fill_panel<T>(panel, c, row, begin, end);
      const auto tile = [&]<int kCount>(int64_t first) {
        multiply_panel<T::kOrder, T::kGroup, T::kMins, kParts, kCount>(panel, c, row, begin, end,
                                                                       T::kOffset, first);
      };
      int64_t t = 0;
      for (; t + kTokens <= c.tokens; t += kTokens) tile.template operator()<kTokens>(t);
      switch (c.tokens - t) {
        case 3: tile.template operator()<std::min(3, kTokens)>(t); break;
        case 2: tile.template operator()<std::min(2, kTokens)>(t); break;
        case 1: tile.template operator()<1>(t); break;
        default: break;
      }
    }
  }
}

}  // namespace
}  // namespace esker::cpu
