// SPDX-License-Identifier: MIT
//
// What AVX-512 kernels are made of: loads, dot products, and the unpacking of the types whose values are
// computed (Q8_0 to Q2_0). A type's unpack writes the signed bytes of a step (four vectors a unit), the
// scale of each lane of each accumulator and, where kMins, what is subtracted per unit of x.
// Part of kernels_avx512.cpp, which alone includes it, compiled for AVX-512.
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

struct Q8_0 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 272, kUnits = 1;
  static constexpr bool kMins = false;
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    alignas(64) static constexpr auto kWords = [] {
      std::array<int16_t, 32> w{};
      for (int i = 0; i < 16; ++i) w[static_cast<size_t>(i)] = i < 8 ? 0 : 17;
      return w;
    }();
    for (int j = 0; j < 4; ++j, p += 68) {
      u[j] = load_half(p + 2, p + 36);
      scale[j] = _mm512_cvtph_ps(_mm512_castsi512_si256(
          _mm512_permutexvar_epi16(load(kWords.data()), load(p))));
    }
  }
};

struct Q6_K {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 210, kUnits = 1;
  static constexpr bool kMins = false;
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
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
      // (low4 ? ql : qh << 4) & 63, and the same with the upper nibbles; minus 32.
      const Int a = _mm512_ternarylogic_epi32(low4, ql, _mm512_slli_epi16(qh, 4), 0xCA);
      const Int b = _mm512_ternarylogic_epi32(low4, _mm512_srli_epi16(ql, 4), qh, 0xCA);
      u[2 * h] = _mm512_sub_epi8(_mm512_and_si512(a, low6), bytes(32));
      u[2 * h + 1] = _mm512_sub_epi8(_mm512_and_si512(b, low6), bytes(32));
    }
    for (int j = 0; j < 4; ++j) {
      alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 4; });
      const Int index = _mm512_add_epi32(load(kIndex.data()), _mm512_set1_epi32(4 * j));
      scale[j] = _mm512_permutexvar_ps(index, s);
    }
  }
};

// Q4_K and Q5_K: sub-blocks of 32 with a scale and a minimum of 6 bits each.
template <bool kFive>
struct K45 {
  static constexpr Order kOrder = Order::kNibble64;
  static constexpr int kBlockBytes = kFive ? 176 : 144, kUnits = 1;
  static constexpr bool kMins = true;
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float* mins) {
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
    const Float both = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(
        _mm_set_epi64x(static_cast<int64_t>(mn), static_cast<int64_t>(sc))));
    const Float d = half_lanes(p), dmin = half_lanes(p + 2);
    for (int j = 0; j < 4; ++j) {
      // Vector j holds sub-blocks 4 (j/2) + (j&1) and the one two further.
      const int first = 4 * (j / 2) + (j & 1);
      const Int index = _mm512_inserti64x4(_mm512_set1_epi32(first), _mm256_set1_epi32(first + 2), 1);
      scale[j] = _mm512_mul_ps(_mm512_permutexvar_ps(index, both), d);
      mins[j] = _mm512_mul_ps(
          _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(8)), both), dmin);
    }
  }
};

// The 16 values of IQ4_NL and IQ4_XS.
inline Int iq4_values() {
  return _mm512_broadcast_i32x4(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(codebooks::kIq4Values)));
}

struct IQ4_XS {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 136, kUnits = 1;
  static constexpr bool kMins = false;
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int low4 = bytes(15), values = iq4_values();
    const __m256i shift_low = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i shift_high = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    __m256i s = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(peek<int32_t>(p + 4)), shift_low), _mm256_set1_epi32(15));
    const __m256i sh = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(peek<uint16_t>(p + 2)), shift_high), _mm256_set1_epi32(3));
    s = _mm256_sub_epi32(_mm256_or_si256(s, _mm256_slli_epi32(sh, 4)), _mm256_set1_epi32(32));
    const Float f = _mm512_castps256_ps512(_mm256_mul_ps(
        _mm256_cvtepi32_ps(s), _mm256_cvtph_ps(_mm_set1_epi16(peek<int16_t>(p)))));
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

// IQ4_NL and Q4_0: blocks of 32, a half and 16 bytes of nibbles.
template <bool kLinear>
struct Nibble18 {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 144, kUnits = 1;
  static constexpr bool kMins = false;
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int low4 = bytes(15), values = iq4_values();
    for (int h = 0; h < 2; ++h, p += 72) {
      const Int q = load_quarters(p + 2, 18);
      u[2 * h] = _mm512_and_si512(q, low4);
      u[2 * h + 1] = _mm512_and_si512(_mm512_srli_epi16(q, 4), low4);
      for (int i = 2 * h; i < 2 * h + 2; ++i) {
        u[i] = kLinear ? _mm512_sub_epi8(u[i], bytes(8)) : _mm512_shuffle_epi8(values, u[i]);
      }
      const auto four = [&](int i) {  // a block's scale, four times
        return static_cast<int64_t>(uint64_t{0x0001000100010001} * peek<uint16_t>(p + 18 * i));
      };
      const __m256i d = _mm256_setr_epi64x(four(0), four(1), four(2), four(3));
      scale[h] = _mm512_cvtph_ps(d);
    }
  }
};

struct Q2_0 {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 72, kUnits = 1;
  static constexpr bool kMins = false;
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int low2 = bytes(3), q = load_quarters(p + 2, 18);
    for (int k = 0; k < 4; ++k) {
      const Int code = _mm512_and_si512(_mm512_srli_epi16(q, static_cast<unsigned>(2 * k)), low2);
      u[k] = _mm512_sub_epi8(code, bytes(1));
    }
    const __m256i words = _mm256_setr_epi16(0, 0, 0, 0, 9, 9, 9, 9, 18, 18, 18, 18, 27, 27, 27, 27);
    scale[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(
        _mm512_permutexvar_epi16(_mm512_castsi256_si512(words), load(p))));
  }
};

}  // namespace
}  // namespace esker::cpu
