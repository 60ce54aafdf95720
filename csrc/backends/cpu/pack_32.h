// SPDX-License-Identifier: MIT
//
// Packing of activations (packed.h) in plain C++ that a compiler turns into vectors; for the
// kernels of kernels_32.h. Internal linkage: the file that includes this is compiled for one
// instruction set.
#pragma once

#include <bit>
#include <cstring>

#include "backends/cpu/kernels.h"

namespace esker::cpu {
namespace {

// Where things of a unit stand.
struct PackTables {
  uint8_t element[4][64];  // of every fourth byte of the vectors
  uint8_t group[4][16];    // of 32: [accumulator][lane]
};

inline PackTables pack_tables(Order order) {
  PackTables t;
  const int per_acc = 4 / order_accumulators(order);
  for (int j = 0; j < 4; ++j) {
    for (int p = 0; p < 64; p += 4) {
      t.element[j][p] = static_cast<uint8_t>(order_element(order, j, p));
      t.group[j / per_acc][p / 4] = static_cast<uint8_t>(t.element[j / per_acc * per_acc][p] / 32);
    }
  }
  return t;
}

// v of the unit's values, and s of its groups.
inline void quantize_unit(const float* x, float top_value, int32_t* v, float* s) {
  for (int g = 0; g < kUnit / 32; ++g, x += 32, v += 32) {
    int32_t bits = 0;  // magnitudes compare as their bits do; integers need no care for NaN
    for (int i = 0; i < 32; ++i) {
      const int32_t b = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
      bits = b > bits ? b : bits;
    }
    const float top = std::bit_cast<float>(bits);
    s[g] = top / top_value;
    // A subnormal top would overflow its inverse: such a group is as good as zero.
    const float inverse = top > 1e-30f ? top_value / top : 0.0f;
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lower bits.
    for (int i = 0; i < 32; ++i) {
      v[i] = std::bit_cast<int32_t>(x[i] * inverse + 12582912.0f) - 0x4b400000;
    }
  }
}

// Part k of v: 7 bits, the last one what is left above them.
inline void store_part(const int32_t* v, int k, bool last, uint8_t* out) {
  const int32_t mask = last ? -1 : 127;
  for (int i = 0; i < kUnit; ++i) out[i] = static_cast<uint8_t>(v[i] >> (7 * k) & mask);
}

// 256 bytes in natural order to vectors `step` bytes apart.
inline void arrange(Order order, const PackTables& tables, const uint8_t* from, uint8_t* to,
                    int64_t step) {
  if (order == Order::kQuad) {
    for (int j = 0; j < 4; ++j) {
      for (int p = 0; p < 64; ++p) to[step * j + p] = from[4 * p + j];
    }
    return;
  }
  for (int j = 0; j < 4; ++j) {  // every other order moves 16 bytes or more together
    for (int p = 0; p < 64; p += 16) {
      std::memcpy(to + step * j + p, from + tables.element[j][p], 16);
    }
  }
}

inline void store_lanes(Order order, const PackTables& tables, const int32_t* v, const float* s,
                        Lanes* lanes) {
  int32_t four[kUnit / 4];
  for (int i = 0; i < kUnit / 4; ++i) {
    four[i] = v[4 * i] + v[4 * i + 1] + v[4 * i + 2] + v[4 * i + 3];
  }
  const int accs = order_accumulators(order), per_acc = 4 / accs;
  for (int a = 0; a < accs; ++a) {
    for (int i = 0; i < 16; ++i) {
      int32_t sum = 0;
      for (int k = 0; k < per_acc; ++k) {
        sum += four[order == Order::kQuad ? 4 * i + k
                                          : tables.element[a * per_acc + k][4 * i] / 4];
      }
      lanes[a].scale[i] = s[tables.group[a][i]];
      lanes[a].sum[i] = static_cast<float>(sum) * lanes[a].scale[i];
    }
  }
}

inline void pack_32(Packed& to, int64_t token) {
  if (to.order == Order::kFloat) return;
  const Order order = to.order;
  const PackTables tables = pack_tables(order);
  const float top_value = 127.0f * static_cast<float>(1 << 7 * (to.parts - 1));
  for (int64_t unit = 0; unit < to.units; ++unit) {
    const float* x = to.x + token * to.n + unit * kUnit;
    const int64_t left = to.n - unit * kUnit;
    float padded[kUnit] = {};
    if (left < kUnit) {
      if (left > 0) std::memcpy(padded, x, static_cast<size_t>(left) * sizeof(float));
      x = padded;
    }
    int32_t v[kUnit];
    float s[kUnit / 32];
    quantize_unit(x, top_value, v, s);
    uint8_t* q = to.q.data() + token * to.q_stride() + unit * 256 * to.parts;
    for (int k = 0; k < to.parts; ++k) {
      uint8_t part[kUnit];
      store_part(v, k, k == to.parts - 1, part);
      arrange(order, tables, part, q + 64 * k, int64_t{64} * to.parts);
    }
    store_lanes(order, tables, v, s,
                to.lanes.data() + token * to.lane_stride() + unit * order_accumulators(order));
  }
}

}  // namespace
}  // namespace esker::cpu
