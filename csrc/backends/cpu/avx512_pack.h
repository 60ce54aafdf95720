// SPDX-License-Identifier: MIT
//
// Packs activations (packed.h): scale, one to three bytes a value, and the order a type's unpack wants.
// Part of the kernels_avx512*.cpp, which alone include it, compiled for AVX-512.
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

// The parts of a unit, natural order: part[0] = l, ..., part[kParts - 1] = h; and s [8].
template <int kParts>
inline void quantize_unit(const float* x, Int (*part)[4], float* s) {
  constexpr float kTop = 127.0f * (1 << 7 * (kParts - 1));
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
      store(kParts - 1, v);
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

template <int kParts>
inline void store_sums(const Int (*part)[4], const float* s, UnitSums& to) {
  alignas(64) float four[64];  // sums of v of four consecutive values
  for (int j = 0; j < 4; ++j) {
    Int sum[kParts];
    for (int k = 0; k < kParts; ++k) sum[k] = dot(_mm512_setzero_si512(), bytes(1), part[k][j]);
    _mm512_store_ps(four + 16 * j, part_values<kParts>(sum));
  }
  for (int g = 0; g < 8; ++g) {
    const float* f = four + 8 * g;
    to.scale[g] = s[g];
    to.of_16[2 * g] = s[g] * ((f[0] + f[1]) + (f[2] + f[3]));
    to.of_16[2 * g + 1] = s[g] * ((f[4] + f[5]) + (f[6] + f[7]));
    to.of_32[g] = to.of_16[2 * g] + to.of_16[2 * g + 1];
  }
}

template <Order kOrder, int kParts>
void pack_order(Packed& to, int64_t token) {
  constexpr int kAccs = order_accumulators(kOrder), kPerAcc = 4 / kAccs;
  const OrderTables& tables = order_tables<kOrder>();
  const int64_t span = to.copies() * to.n;
  const float* source = to.x + token * to.n;
  for (int64_t unit = 0; unit < to.units; ++unit) {
    const float* x = source + unit * kUnit;
    alignas(64) float padded[kUnit];
    if (span != to.n || span - unit * kUnit < kUnit) {
      for (int64_t i = 0; i < kUnit; ++i) {
        const int64_t at = unit * kUnit + i;
        padded[i] = at < span ? source[at % to.n] : 0.0f;
      }
      x = padded;
    }
    Int part[kParts][4];
    alignas(64) float s[16] = {};
    quantize_unit<kParts>(x, part, s);
    store_sums<kParts>(part, s, to.sums.data()[token * to.units + unit]);
    uint8_t* q = to.q.data() + token * to.q_stride() + unit * 256 * kParts;
    Lanes* lanes = to.lanes.data() + token * to.lane_stride() + unit * kAccs;
    for (int a = 0; a < kAccs; ++a) {
      for (int v = a * kPerAcc; v < (a + 1) * kPerAcc; ++v) {
        const Int index = load(tables.element[v]);
        for (int k = 0; k < kParts; ++k) {
          _mm512_store_si512(q + 64 * (kParts * v + k), pick(part[k], index));
        }
      }
      _mm512_store_ps(lanes[a].scale,
                      _mm512_permutexvar_ps(load(tables.group[a]), _mm512_load_ps(s)));
    }
  }
}

template <int kParts>
void pack_in(Packed& to, int64_t token) {
  switch (to.order) {
    case Order::kNatural: return pack_order<Order::kNatural, kParts>(to, token);
    case Order::kQuad: return pack_order<Order::kQuad, kParts>(to, token);
    case Order::kNibble32: return pack_order<Order::kNibble32, kParts>(to, token);
    case Order::kNibble16: return pack_order<Order::kNibble16, kParts>(to, token);
    case Order::kCrumb32: return pack_order<Order::kCrumb32, kParts>(to, token);
    case Order::kNibble64: return pack_order<Order::kNibble64, kParts>(to, token);
    default: return;
  }
}
void pack(Packed& to, int64_t token) {
  switch (to.parts) {
    case 1: return pack_in<1>(to, token);
    case 2: return pack_in<2>(to, token);
    default: return pack_in<3>(to, token);
  }
}

}  // namespace
}  // namespace esker::cpu
