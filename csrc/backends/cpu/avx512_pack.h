// SPDX-License-Identifier: MIT
//
// Packs activations (packed.h): scale, three bytes a value, and the order a type's unpack wants.
// Part of kernels_avx512.cpp, which alone includes it, compiled for AVX-512.
#pragma once

#include <algorithm>

#include "backends/cpu/avx512_unpack.h"

namespace esker::cpu {
namespace {

struct OrderTables {
  alignas(64) uint8_t element[4][64];  // of byte p of vector j
  alignas(64) int32_t group[4][16];    // of lane i of accumulator a: which 32 of the unit
};
template <Order kOrder>
const OrderTables& order_tables() {
  static const OrderTables tables = [] {
    OrderTables t;
    constexpr int kAccs = order_accumulators(kOrder);
    for (int j = 0; j < 4; ++j) {
      for (int p = 0; p < 64; ++p) t.element[j][p] = static_cast<uint8_t>(order_element(kOrder, j, p));
    }
    for (int a = 0; a < kAccs; ++a) {
      for (int i = 0; i < 16; ++i) t.group[a][i] = order_element(kOrder, a * (4 / kAccs), 4 * i) / 32;
    }
    return t;
  }();
  return tables;
}

// The parts of a unit, natural order: part[0] = l, ..., part[kParts - 1] = h + 128; and s [8].
template <int kParts>
inline void quantize_unit(const float* x, Int (*part)[4], float* s) {
  constexpr float kTop = kParts == 3 ? 127.0f * 16384.0f : 127.0f * 128.0f;
  alignas(64) uint8_t bytes_of[kParts][kUnit];
  const Int low7 = _mm512_set1_epi32(127);
  for (int i = 0; i < kUnit; i += 32) {
    const Float a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
    const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    s[i / 32] = top / kTop;
    // A subnormal top would overflow its inverse: such a group is as good as zero.
    const Float inverse = _mm512_set1_ps(top > 1e-30f ? kTop / top : 0.0f);
    for (int h = 0; h < 2; ++h) {
      Int v = _mm512_cvtps_epi32(_mm512_mul_ps(h == 0 ? a : b, inverse));
      const auto store = [&](int k, Int byte) {
        _mm_store_si128(reinterpret_cast<__m128i*>(bytes_of[k] + i + 16 * h),
                        _mm512_cvtepi32_epi8(byte));
      };
      for (int k = 0; k < kParts - 1; ++k, v = _mm512_srai_epi32(v, 7)) {
        store(k, _mm512_and_si512(v, low7));
      }
      store(kParts - 1, _mm512_add_epi32(v, _mm512_set1_epi32(128)));
    }
  }
  for (int k = 0; k < kParts; ++k) {
    for (int j = 0; j < 4; ++j) part[k][j] = load(bytes_of[k] + 64 * j);
  }
}

// Byte i of the result is byte index[i] of the 256 in v.
inline Int pick(const Int* v, Int index) {
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index),
                                _mm512_permutex2var_epi8(v[0], index, v[1]),
                                _mm512_permutex2var_epi8(v[2], index, v[3]));
}

template <Order kOrder, int kParts>
void pack_order(Packed& to, int64_t token) {
  constexpr int kAccs = order_accumulators(kOrder), kPerAcc = 4 / kAccs;
  const OrderTables& tables = order_tables<kOrder>();
  const Int ones = bytes(1), bias = _mm512_set1_epi32(-128 * 4 * kPerAcc);
  for (int64_t unit = 0; unit < to.units; ++unit) {
    const float* x = to.x + token * to.n + unit * kUnit;
    const int64_t left = std::max<int64_t>(0, to.n - unit * kUnit);
    alignas(64) float padded[kUnit];
    if (left < kUnit) {
      std::fill_n(std::copy_n(x, left, padded), kUnit - left, 0.0f);
      x = padded;
    }
    Int part[kParts][4];
    alignas(64) float s[16] = {};
    quantize_unit<kParts>(x, part, s);
    uint8_t* q = to.q.data() + token * to.q_stride() + unit * 256 * kParts;
    Lanes* lanes = to.lanes.data() + token * to.lane_stride() + unit * kAccs;
    for (int a = 0; a < kAccs; ++a) {
      Int sum[kParts] = {};
      for (int v = a * kPerAcc; v < (a + 1) * kPerAcc; ++v) {
        const Int index = load(tables.element[v]);
        for (int k = 0; k < kParts; ++k) {
          const Int b = pick(part[k], index);
          _mm512_storeu_si512(q + 64 * (kParts * v + k), b);
          sum[k] = dot(sum[k], b, ones);
        }
      }
      const Float scale = _mm512_permutexvar_ps(load(tables.group[a]), _mm512_load_ps(s));
      Float v = _mm512_cvtepi32_ps(_mm512_add_epi32(sum[kParts - 1], bias));
      for (int k = kParts - 2; k >= 0; --k) {
        v = _mm512_fmadd_ps(v, _mm512_set1_ps(128.0f), _mm512_cvtepi32_ps(sum[k]));
      }
      _mm512_storeu_ps(lanes[a].scale, scale);
      _mm512_storeu_ps(lanes[a].sum, _mm512_mul_ps(v, scale));
    }
  }
}

template <int kParts>
void pack_in(Packed& to, int64_t token) {
  switch (to.order) {
    case Order::kNatural: return pack_order<Order::kNatural, kParts>(to, token);
    case Order::kQuad: return pack_order<Order::kQuad, kParts>(to, token);
    case Order::kNibble32: return pack_order<Order::kNibble32, kParts>(to, token);
    case Order::kNibble64: return pack_order<Order::kNibble64, kParts>(to, token);
    default: return;
  }
}
void pack(Packed& to, int64_t token) {
  to.parts == 3 ? pack_in<3>(to, token) : pack_in<2>(to, token);
}

}  // namespace
}  // namespace esker::cpu
