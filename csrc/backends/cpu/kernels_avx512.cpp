// SPDX-License-Identifier: MIT
//
// AVX-512 kernels (F, BW, VL, DQ, VNNI, VBMI, GFNI: Zen 4 and newer, Ice Lake and newer).
//
// One pattern: Type::unpack turns the blocks of a unit into four vectors of signed bytes and a scale
// a lane; one loop multiplies them with packed activations of several tokens. One row at a time, as
// one stream: rows side by side defeat the hardware prefetcher.
#include "backends/cpu/kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__GFNI__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "formats/codebooks.inc"

namespace esker::cpu {
namespace {

using Int = __m512i;
using Float = __m512;

// 8 KB ahead hides the memory's latency; nearer costs up to 15 %, farther gains nothing.
constexpr int64_t kPrefetchBytes = 8192;

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

// ---- Types. kVectors: vectors of bytes a unit has (4 a 256 weights). unpack writes them, and the
// scale of each lane of each accumulator (and what is subtracted per unit of x, where kMins).

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

// ---- Codebook types. A grid entry's magnitudes become codes packed in planes of bytes; a plane is
// looked up by byte permutes. kPlane[plane][128-entry page][entry].

// vpermi2b over `pages` pages of 128 entries; masks choose the page by the index's upper bits.
inline Int look_up(const uint8_t* plane, Int index) {
  return _mm512_permutex2var_epi8(load(plane), index, load(plane + 64));
}
inline Int look_up_256(const uint8_t* plane, Int index, __mmask64 bit7) {
  return _mm512_mask_blend_epi8(bit7, look_up(plane, index), look_up(plane + 128, index));
}
inline Int look_up_512(const uint8_t* plane, Int index, __mmask64 bit7, __mmask64 bit8) {
  return _mm512_mask_blend_epi8(bit8, look_up_256(plane, index, bit7),
                                look_up_256(plane + 256, index, bit7));
}
inline Int look_up_1024(const uint8_t* plane, Int index, __mmask64 bit7, __mmask64 bit8,
                        __mmask64 bit9) {
  return _mm512_mask_blend_epi8(bit9, look_up_512(plane, index, bit7, bit8),
                                look_up_512(plane + 512, index, bit7, bit8));
}

// Planes of a grid whose entries have 4 * kPlanesOf4 values: codes of `bits` bits, 4 values in
// 4 * bits / 8 bytes (nibbles: 2 values a plane byte; crumbs: 4).
template <size_t kEntries, size_t kPlanes>
struct Planes {
  alignas(64) uint8_t at[kPlanes][kEntries];
};

// A sign bit of byte p, value k of four: bit 4 (p & 1) + k of the sign byte p / 2, which stands
// doubled in `signs`.
inline __mmask64 negative(Int signs, int k) {
  alignas(64) static constexpr auto kTest = [] {
    std::array<std::array<uint8_t, 64>, 4> t{};
    for (size_t v = 0; v < 4; ++v) {
      for (size_t p = 0; p < 64; ++p) t[v][p] = static_cast<uint8_t>(1u << (4 * (p & 1) + v));
    }
    return t;
  }();
  return _mm512_test_epi8_mask(signs, load(kTest[static_cast<size_t>(k)].data()));
}
// v, negated where its sign bit is set.
inline Int with_sign(Int v, Int signs, int k) {
  return _mm512_mask_sub_epi8(v, negative(signs, k), _mm512_setzero_si512(), v);
}
// 32 sign bytes, each doubled.
inline Int doubled(const uint8_t* p) {
  alignas(64) static constexpr auto kIndex = byte_lanes([](int i) { return i / 2; });
  return _mm512_permutexvar_epi8(
      load(kIndex.data()),
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
// Seven stored sign bits become eight: the last makes the number of ones even.
inline Int with_parity(Int signs) {
  uint64_t m = 0x7f;
  for (int i = 0; i < 7; ++i) m |= uint64_t{1} << (8 * (7 - i) + i);
  return _mm512_gf2p8affine_epi64_epi8(signs, _mm512_set1_epi64(static_cast<int64_t>(m)), 0);
}

struct IQ3_S {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 110, kUnits = 1;
  static constexpr bool kMins = false;
  static constexpr Planes<512, 2> kPlanes = [] {
    Planes<512, 2> t{};
    for (size_t e = 0; e < 512; ++e) {
      const auto& g = codebooks::kGridIq3S[e];
      t.at[0][e] = static_cast<uint8_t>(g[0] | g[1] << 4);
      t.at[1][e] = static_cast<uint8_t>(g[2] | g[3] << 4);
    }
    return t;
  }();
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int index = load(p + 2), low4 = bytes(15);
    const __mmask64 bit7 = _mm512_movepi8_mask(index), bit8 = peek<uint64_t>(p + 66);
    const Int a = look_up_512(kPlanes.at[0], index, bit7, bit8);
    const Int b = look_up_512(kPlanes.at[1], index, bit7, bit8);
    u[0] = a, u[1] = _mm512_srli_epi16(a, 4), u[2] = b, u[3] = _mm512_srli_epi16(b, 4);
    const Int signs = doubled(p + 74);
    for (int k = 0; k < 4; ++k) {
      u[k] = with_sign(_mm512_and_si512(u[k], low4), signs, k);
    }
    // Nibble i of the four scale bytes serves 32 weights, lanes 2i and 2i + 1: 2 s + 1.
    const Int rotate = _mm512_setr_epi32(1, 1, 29, 29, 25, 25, 21, 21, 17, 17, 13, 13, 9, 9, 5, 5);
    const Int s = _mm512_ternarylogic_epi32(
        _mm512_rolv_epi32(_mm512_set1_epi32(peek<int32_t>(p + 106)), rotate),
        _mm512_set1_epi32(30), _mm512_set1_epi32(1), 0xEA);
    scale[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(s), half_lanes(p));
  }
};

struct IQ3_XXS {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 98, kUnits = 1;
  static constexpr bool kMins = false;
  // The magnitudes are 4, 12, .. 52, 62: codes 0..7 of three bits, in nibbles.
  static constexpr Planes<256, 2> kPlanes = [] {
    Planes<256, 2> t{};
    for (size_t e = 0; e < 256; ++e) {
      const auto& g = codebooks::kGridIq3Xxs[e];
      const auto code = [&](int i) { return g[i] / 8; };
      t.at[0][e] = static_cast<uint8_t>(code(0) | code(1) << 4);
      t.at[1][e] = static_cast<uint8_t>(code(2) | code(3) << 4);
    }
    return t;
  }();
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int index = load(p + 2), low4 = bytes(15);
    const Int values = _mm512_broadcast_i32x4(
        _mm_setr_epi8(4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0));
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const Int a = look_up_256(kPlanes.at[0], index, bit7);
    const Int b = look_up_256(kPlanes.at[1], index, bit7);
    u[0] = a, u[1] = _mm512_srli_epi16(a, 4), u[2] = b, u[3] = _mm512_srli_epi16(b, 4);
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 66));
    const Int signs = with_parity(_mm512_multishift_epi64_epi8(
        _mm512_set1_epi64(0x15150e0e07070000), _mm512_cvtepu32_epi64(words)));
    for (int k = 0; k < 4; ++k) {
      u[k] = with_sign(_mm512_shuffle_epi8(values, _mm512_and_si512(u[k], low4)), signs, k);
    }
    alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 2; });
    const Int s = _mm512_or_si512(
        _mm512_and_si512(
            _mm512_srli_epi32(_mm512_permutexvar_epi32(load(kIndex.data()),
                                                       _mm512_castsi256_si512(words)), 27),
            _mm512_set1_epi32(30)),
        _mm512_set1_epi32(1));
    scale[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(s),
                             _mm512_mul_ps(half_lanes(p), _mm512_set1_ps(0.25f)));
  }
};

// IQ2_*: entries of 8 values out of 8, 25, 43: two planes of four 2-bit codes. Two blocks at a time
// fill the 64 lanes of a look-up.
template <size_t kEntries, class Grid>
constexpr Planes<kEntries, 2> crumb_planes(const Grid& grid) {
  Planes<kEntries, 2> t{};
  const auto code = [](int v) { return v == 8 ? 0 : v == 25 ? 1 : 2; };
  for (size_t e = 0; e < kEntries; ++e) {
    for (size_t plane = 0; plane < 2; ++plane) {
      int v = 0;
      for (int k = 0; k < 4; ++k) v |= code(grid[e][4 * plane + static_cast<size_t>(k)]) << (2 * k);
      t.at[plane][e] = static_cast<uint8_t>(v);
    }
  }
  return t;
}
// Bytes 2e + h of one block from planes over the entries of two: block 0 or 1.
inline Int interleave(Int plane0, Int plane1, int block) {
  alignas(64) static constexpr auto kIndex = byte_lanes([](int i) { return i / 2 + 64 * (i & 1); });
  return _mm512_permutex2var_epi8(
      plane0, _mm512_add_epi8(load(kIndex.data()), bytes(32 * block)), plane1);
}
inline void crumbs(Int codes, Int signs, Int* u) {
  alignas(64) static constexpr auto kValues = byte_lanes([](int i) {
    return (i & 3) == 0 ? 8 : (i & 3) == 1 ? 25 : 43;
  });
  const Int values = load(kValues.data());
  for (int k = 0; k < 4; ++k) {
    // A byte permute reads six bits of the index: the table repeats, so nothing is masked.
    const Int code = _mm512_srli_epi16(codes, static_cast<unsigned>(2 * k));
    u[k] = with_sign(_mm512_permutexvar_epi8(code, values), signs, k);
  }
}
// Sixteen scale nibbles in order, a lane each: (2 s + 1) d / 8.
inline Float nibble_scales(const uint8_t* p, const uint8_t* d) {
  const Int half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const Int rotate = _mm512_setr_epi32(1, 29, 25, 21, 17, 13, 9, 5, 1, 29, 25, 21, 17, 13, 9, 5);
  const Int words = _mm512_permutexvar_epi32(
      half, _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  const Int s = _mm512_ternarylogic_epi32(_mm512_rolv_epi32(words, rotate), _mm512_set1_epi32(30),
                                          _mm512_set1_epi32(1), 0xEA);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(half_lanes(d), _mm512_set1_ps(0.125f)));
}

struct IQ2_S {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 82, kUnits = 2;
  static constexpr bool kMins = false;
  static constexpr Planes<1024, 2> kPlanes = crumb_planes<1024>(codebooks::kGridIq2S);
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int index = load_half(p + 2, p + 84);
    const uint64_t a = peek<uint64_t>(p + 66), b = peek<uint64_t>(p + 148);
    constexpr uint64_t kEven = 0x5555555555555555, kOdd = ~kEven;
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const __mmask64 bit8 = _pext_u64(a, kEven) | _pext_u64(b, kEven) << 32;
    const __mmask64 bit9 = _pext_u64(a, kOdd) | _pext_u64(b, kOdd) << 32;
    const uint8_t* planes = kPlanes.at[0];
    asm volatile("" : "+r"(planes));  // else 32 table registers are hoisted and spilled unaligned
    const Int p0 = look_up_1024(planes, index, bit7, bit8, bit9);
    const Int p1 = look_up_1024(planes + 1024, index, bit7, bit8, bit9);
    for (int i = 0; i < 2; ++i) {
      const uint8_t* block = p + 82 * i;
      crumbs(interleave(p0, p1, i), doubled(block + 34), u + 4 * i);
      scale[i] = nibble_scales(block + 74, block);
    }
  }
};

struct IQ2_XS {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 74, kUnits = 2;
  static constexpr bool kMins = false;
  static constexpr Planes<512, 2> kPlanes = crumb_planes<512>(codebooks::kGridIq2Xs);
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int a = load(p + 2), b = load(p + 76);
    const Int index = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                                         _mm512_cvtepi16_epi8(b), 1);
    const Int bit = _mm512_set1_epi16(0x100);
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const __mmask64 bit8 = uint64_t{_mm512_test_epi16_mask(a, bit)} |
                           uint64_t{_mm512_test_epi16_mask(b, bit)} << 32;
    const Int p0 = look_up_512(kPlanes.at[0], index, bit7, bit8);
    const Int p1 = look_up_512(kPlanes.at[1], index, bit7, bit8);
    for (int i = 0; i < 2; ++i) {
      // The seven sign bits of an entry lie in the upper part of its word; doubled: both bytes.
      const Int word = _mm512_srli_epi16(i == 0 ? a : b, 9);
      const Int signs = with_parity(_mm512_or_si512(word, _mm512_slli_epi16(word, 8)));
      crumbs(interleave(p0, p1, i), signs, u + 4 * i);
      scale[i] = nibble_scales(p + 74 * i + 66, p + 74 * i);
    }
  }
};

struct IQ2_XXS {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 66, kUnits = 2;
  static constexpr bool kMins = false;
  static constexpr Planes<256, 2> kPlanes = crumb_planes<256>(codebooks::kGridIq2Xxs);
  static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int pair[2] = {load(p + 2), load(p + 68)};
    alignas(64) static constexpr auto kEven = lanes([](int i) { return 2 * i; });
    const Int index = _mm512_permutex2var_epi32(pair[0], load(kEven.data()), pair[1]);
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const Int p0 = look_up_256(kPlanes.at[0], index, bit7);
    const Int p1 = look_up_256(kPlanes.at[1], index, bit7);
    for (int i = 0; i < 2; ++i) {
      const Int signs = with_parity(
          _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x35352e2e27272020), pair[i]));
      crumbs(interleave(p0, p1, i), signs, u + 4 * i);
      const Int word = _mm512_shuffle_epi32(pair[i], static_cast<_MM_PERM_ENUM>(0xF5));
      const Int s = _mm512_or_si512(
          _mm512_and_si512(_mm512_srli_epi32(word, 27), _mm512_set1_epi32(30)), _mm512_set1_epi32(1));
      scale[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(half_lanes(p + 66 * i),
                                                                    _mm512_set1_ps(0.125f)));
    }
  }
};

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

// ---- Packing of activations.

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
