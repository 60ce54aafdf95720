// SPDX-License-Identifier: MIT
//
// What AVX-512 kernels are made of: loads, dot products, and the unpacking of the types whose values are
// computed (Q8_0 to Q2_0). A type's unpack writes the bytes of a step (four vectors a unit), unsigned
// and kOffset too large, and the scale of each lane of each accumulator (one for kGroup values). Where
// a unit has several accumulators, also what is subtracted per unit of the sum of x over kGroup values:
// kOffset times the scale or, where kMins, the type's own minimum; of the first group in lane 0, zero
// in lanes past the last.
// Part of the kernels_avx512*.cpp, which alone include it, compiled for AVX-512.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "backends/cpu/packed.h"
#include "formats/codebooks.inc"

namespace esker::cpu {
namespace {

using Int = __m512i;
using Float = __m512;

inline Int load(const void* p) { return _mm512_loadu_si512(p); }
inline Int load_half(const void* lo, const void* hi) {
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(lo))),
      _mm256_loadu_si256(static_cast<const __m256i*>(hi)), 1);
}
inline Int load_quarters(const uint8_t* p, int64_t step) {
  const auto quarter = [&](int i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * step));
  };
  Int v = _mm512_castsi128_si512(quarter(0));
  v = _mm512_inserti32x4(v, quarter(1), 1);
  v = _mm512_inserti32x4(v, quarter(2), 2);
  return _mm512_inserti32x4(v, quarter(3), 3);
}
template <class T>
inline T peek(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
// A half-precision number in all lanes.
inline Float half_lanes(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(peek<int16_t>(p)));
}
inline Int bytes(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
// sum + u . s, four bytes a lane: u unsigned, s signed.
inline Int dot(Int sum, Int u, Int s) { return _mm512_dpbusd_epi32(sum, u, s); }

// l + 128 m + 16384 h of a lane's sums over the parts of x.
template <int kParts>
inline Float part_values(const Int* sum) {
  if constexpr (kParts == 1) return _mm512_cvtepi32_ps(sum[0]);
  const Int lower = _mm512_add_epi32(sum[0], _mm512_slli_epi32(sum[1], 7));
  if constexpr (kParts == 2) return _mm512_cvtepi32_ps(lower);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[kParts - 1]), _mm512_set1_ps(16384.0f),
                         _mm512_cvtepi32_ps(lower));
}

// 8 KB ahead hides the memory's latency; nearer costs up to 15 %, farther gains nothing.
constexpr int64_t kPrefetchBytes = 8192;

// Lane i takes value index[i].
template <class F>
constexpr std::array<int32_t, 16> lanes(F f) {
  std::array<int32_t, 16> out{};
  for (int i = 0; i < 16; ++i) out[static_cast<size_t>(i)] = f(i);
  return out;
}
template <class F>
constexpr std::array<uint8_t, 64> byte_lanes(F f) {
  std::array<uint8_t, 64> out{};
  for (int i = 0; i < 64; ++i) out[static_cast<size_t>(i)] = static_cast<uint8_t>(f(i));
  return out;
}

// How the groups of one scale lie in the accumulators of an order.
template <Order kOrder, int kGroup>
struct Groups {
  static constexpr int kAccs = order_accumulators(kOrder), kPerAcc = 4 / kAccs;
  static constexpr int kLanes = kGroup / (4 * kPerAcc);  // of one scale
  static constexpr int kGroups = static_cast<int>(kUnit) / kGroup;
  static constexpr int kAccGroups = kGroups / kAccs;
  // Accumulator a's group g of lanes holds these consecutive values of the unit: which of its groups.
  static constexpr int group(int a, int g) {
    return order_element(kOrder, a * kPerAcc, 4 * kLanes * g) / kGroup;
  }
};

// The accumulators' lanes' numbers, one a group: lane j group j, zero past the last.
template <Order kOrder, int kGroup>
inline Float group_scales(const Float* scale) {
  using G = Groups<kOrder, kGroup>;
  alignas(64) static constexpr auto kIndex = lanes([](int j) {
    for (int a = 0; a < G::kAccs; ++a) {
      for (int g = 0; g < G::kAccGroups; ++g) {
        if (G::group(a, g) == j) return 16 * a + G::kLanes * g;
      }
    }
    return 0;
  });
  constexpr __mmask16 kLive = static_cast<__mmask16>((1u << G::kGroups) - 1);
  const Int index = load(kIndex.data());
  if constexpr (G::kAccs == 1) return _mm512_maskz_permutexvar_ps(kLive, index, scale[0]);
  const Float low = _mm512_maskz_permutex2var_ps(kLive, scale[0], index, scale[1]);
  if constexpr (G::kAccs == 2) return low;
  constexpr __mmask16 kUpper = [] {
    unsigned mask = 0;
    for (int j = 0; j < 16; ++j) mask |= (kIndex[static_cast<size_t>(j)] >= 32 ? 1u : 0u) << j;
    return static_cast<__mmask16>(mask);
  }();
  return _mm512_mask_blend_ps(kUpper, low, _mm512_permutex2var_ps(scale[2], index, scale[3]));
}

struct Q8_0 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 272, kUnits = 1, kGroup = 32, kOffset = 128;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    alignas(64) static constexpr auto kWords = [] {
      std::array<int16_t, 32> w{};
      for (int i = 0; i < 16; ++i) w[static_cast<size_t>(i)] = i < 8 ? 0 : 17;
      return w;
    }();
    for (int j = 0; j < 4; ++j, p += 68) {
      u[j] = _mm512_xor_si512(load_half(p + 2, p + 36), bytes(128));
      scale[j] = _mm512_cvtph_ps(_mm512_castsi512_si256(
          _mm512_permutexvar_epi16(load(kWords.data()), load(p))));
    }
    mins[0] = _mm512_mul_ps(group_scales<kOrder, kGroup>(scale), _mm512_set1_ps(kOffset));
  }
};

struct Q6_K {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 210, kUnits = 1, kGroup = 16, kOffset = 32;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int low4 = bytes(15), low6 = bytes(63);
    const Int shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
    const Float s = _mm512_mul_ps(
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 192)))),
        half_lanes(p + 208));
    for (int h = 0; h < 2; ++h) {
      const Int ql = load(p + 64 * h);
      const Int qh = _mm512_srlv_epi16(
          _mm512_broadcast_i64x4(
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 128 + 32 * h))), shift);
      // (low4 ? ql : qh << 4) & 63, and the same with the upper nibbles.
      const Int a = _mm512_ternarylogic_epi32(low4, ql, _mm512_slli_epi16(qh, 4), 0xCA);
      const Int b = _mm512_ternarylogic_epi32(low4, _mm512_srli_epi16(ql, 4), qh, 0xCA);
      u[2 * h] = _mm512_and_si512(a, low6);
      u[2 * h + 1] = _mm512_and_si512(b, low6);
    }
    for (int j = 0; j < 4; ++j) {
      alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 4; });
      const Int index = _mm512_add_epi32(load(kIndex.data()), _mm512_set1_epi32(4 * j));
      scale[j] = _mm512_permutexvar_ps(index, s);
    }
    mins[0] = _mm512_mul_ps(s, _mm512_set1_ps(kOffset));
  }
};

// Q4_K and Q5_K: sub-blocks of 32 with a scale and a minimum of 6 bits each.
template <bool kFive>
struct K45 {
  static constexpr Order kOrder = Order::kNibble64;
  static constexpr int kBlockBytes = kFive ? 176 : 144, kUnits = 1, kGroup = 32, kOffset = 0;
  static constexpr bool kMins = true;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int low4 = bytes(15);
    const uint8_t* q = p + (kFive ? 48 : 16);
    Int high = _mm512_setzero_si512();
    if (kFive) {
      high = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16)));
    }
    for (int h = 0; h < 2; ++h) {
      const Int v = load(q + 64 * h);
      u[2 * h] = _mm512_and_si512(v, low4);
      u[2 * h + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low4);
      if (!kFive) continue;
      // Bit j of byte l of `high` is bit 4 of element l of sub-block j: sub-blocks 4h, 4h+2 in the
      // halves of u[2h], 4h+1 and 4h+3 in those of u[2h+1].
      for (int odd = 0; odd < 2; ++odd) {
        const Int bit = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_set1_epi8(static_cast<char>(1 << (4 * h + odd)))),
            _mm256_set1_epi8(static_cast<char>(1 << (4 * h + odd + 2))), 1);
        u[2 * h + odd] = _mm512_mask_add_epi8(u[2 * h + odd], _mm512_test_epi8_mask(high, bit),
                                              u[2 * h + odd], bytes(16));
      }
    }
    // The 12 scale bytes: eight 6-bit scales, eight 6-bit minima.
    const uint32_t a = peek<uint32_t>(p + 4), b = peek<uint32_t>(p + 8), c = peek<uint32_t>(p + 12);
    const uint64_t sc = (a & 0x3f3f3f3fu) |
                        uint64_t{(c & 0x0f0f0f0fu) | ((a >> 6 & 0x03030303u) << 4)} << 32;
    const uint64_t mn = (b & 0x3f3f3f3fu) |
                        uint64_t{(c >> 4 & 0x0f0f0f0fu) | ((b >> 6 & 0x03030303u) << 4)} << 32;
    const auto eight = [](uint64_t bytes_of, const uint8_t* d) {
      return _mm256_mul_ps(
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes_of)))),
          _mm256_cvtph_ps(_mm_set1_epi16(peek<int16_t>(d))));
    };
    const Float scales = _mm512_castps256_ps512(eight(sc, p));
    mins[0] = _mm512_zextps256_ps512(eight(mn, p + 2));
    for (int j = 0; j < 4; ++j) {
      // Vector j holds sub-blocks 4 (j/2) + (j&1) and the one two further.
      alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 8 * 2; });
      const Int index = _mm512_add_epi32(load(kIndex.data()), _mm512_set1_epi32(4 * (j / 2) + (j & 1)));
      scale[j] = _mm512_permutexvar_ps(index, scales);
    }
  }
};

// The 16 values of IQ4_NL and IQ4_XS, 128 added.
inline Int iq4_values() {
  return _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128(
                              reinterpret_cast<const __m128i*>(codebooks::kIq4Values))), bytes(128));
}

struct IQ4_XS {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 136, kUnits = 1, kGroup = 32, kOffset = 128;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int low4 = bytes(15), values = iq4_values();
    const __m256i shift_low = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i shift_high = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    __m256i s = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(peek<int32_t>(p + 4)), shift_low), _mm256_set1_epi32(15));
    const __m256i sh = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(peek<uint16_t>(p + 2)), shift_high), _mm256_set1_epi32(3));
    s = _mm256_sub_epi32(_mm256_or_si256(s, _mm256_slli_epi32(sh, 4)), _mm256_set1_epi32(32));
    const __m256 eight = _mm256_mul_ps(_mm256_cvtepi32_ps(s),
                                       _mm256_cvtph_ps(_mm_set1_epi16(peek<int16_t>(p))));
    const Float f = _mm512_castps256_ps512(eight);
    mins[0] = _mm512_zextps256_ps512(_mm256_mul_ps(eight, _mm256_set1_ps(kOffset)));
    for (int h = 0; h < 2; ++h) {
      const Int q = load(p + 8 + 64 * h);
      u[2 * h] = _mm512_shuffle_epi8(values, _mm512_and_si512(q, low4));
      u[2 * h + 1] = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(q, 4), low4));
      alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 4; });
      scale[h] = _mm512_permutexvar_ps(
          _mm512_add_epi32(load(kIndex.data()), _mm512_set1_epi32(4 * h)), f);
    }
  }
};

// The scales of four blocks of 18 bytes, four lanes each. Reads 64 bytes.
inline Float block_scales(const uint8_t* p) {
  const __m256i words = _mm256_setr_epi16(0, 0, 0, 0, 9, 9, 9, 9, 18, 18, 18, 18, 27, 27, 27, 27);
  return _mm512_cvtph_ps(_mm512_castsi512_si256(
      _mm512_permutexvar_epi16(_mm512_castsi256_si512(words), load(p))));
}

// IQ4_NL and Q4_0: blocks of 32, a half and 16 bytes of nibbles.
template <bool kLinear>
struct Nibble18 {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 144, kUnits = 1, kGroup = 32;
  static constexpr int kOffset = kLinear ? 8 : 128;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int low4 = bytes(15), values = iq4_values();
    for (int h = 0; h < 2; ++h, p += 72) {
      const Int q = load_quarters(p + 2, 18);
      u[2 * h] = _mm512_and_si512(q, low4);
      u[2 * h + 1] = _mm512_and_si512(_mm512_srli_epi16(q, 4), low4);
      for (int i = 2 * h; !kLinear && i < 2 * h + 2; ++i) u[i] = _mm512_shuffle_epi8(values, u[i]);
      scale[h] = block_scales(p);
    }
    mins[0] = _mm512_mul_ps(group_scales<kOrder, kGroup>(scale), _mm512_set1_ps(kOffset));
  }
};

struct Q2_0 {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 72, kUnits = 1, kGroup = 32, kOffset = 1;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int low2 = bytes(3), q = load_quarters(p + 2, 18);
    for (int k = 0; k < 4; ++k) {
      u[k] = _mm512_and_si512(_mm512_srli_epi16(q, static_cast<unsigned>(2 * k)), low2);
    }
    scale[0] = block_scales(p);
  }
};

}  // namespace
}  // namespace esker::cpu
