// SPDX-License-Identifier: MIT
//
// AVX-512 kernels: the remaining types: blocks of 32 with fifth bits or minima, 2 and 3 bits in
// sub-blocks of 16, base-3 digits, 4-bit floats, and the grids of 2048 entries, which are looked up one
// by one.
#include "backends/cpu/avx512_types.h"

#if ESKER_HAS_AVX512

#include "backends/cpu/avx512_rows.h"

namespace esker::cpu {
namespace {

inline __m128i four_halves(const uint8_t* p, int step) {
  const auto half = [&](int i) { return peek<int16_t>(p + step * i); };
  return _mm_setr_epi16(half(0), half(1), half(2), half(3), 0, 0, 0, 0);
}
// Half-precision numbers `step` bytes apart: four, each in four lanes; eight, in the lower lanes.
inline Float four_scales(const uint8_t* p, int step) {
  alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 4; });
  return _mm512_permutexvar_ps(load(kIndex.data()),
                               _mm512_castps128_ps512(_mm_cvtph_ps(four_halves(p, step))));
}
inline Float eight_scales(const uint8_t* p, int step) {
  return _mm512_zextps256_ps512(_mm256_cvtph_ps(
      _mm_unpacklo_epi64(four_halves(p, step), four_halves(p + 4 * step, step))));
}
inline Float negative_of(Float v) { return _mm512_sub_ps(_mm512_setzero_ps(), v); }
// d for all lanes of four accumulators, and kOffset times it for eight groups.
template <int kOffset>
inline void one_scale(const uint8_t* d, Float* scale, Float* mins) {
  for (int j = 0; j < 4; ++j) scale[j] = half_lanes(d);
  mins[0] = _mm512_maskz_mul_ps(0x00ff, scale[0], _mm512_set1_ps(kOffset));
}

// Q4_1, Q5_0 and Q5_1: a half, a second one where kHasMin, 32 fifth bits where kFive, 16 bytes.
template <bool kFive, bool kHasMin>
struct Nibble20 {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kNibbles = 2 + (kHasMin ? 2 : 0) + (kFive ? 4 : 0), kBlock = kNibbles + 16;
  static constexpr int kBlockBytes = 8 * kBlock, kUnits = 1, kGroup = 32;
  static constexpr int kOffset = kHasMin ? 0 : 16;
  static constexpr bool kMins = kHasMin;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int low4 = bytes(15);
    for (int h = 0; h < 2; ++h) {
      const uint8_t* block = p + 4 * kBlock * h;
      const Int q = load_quarters(block + kNibbles, kBlock);
      u[2 * h] = _mm512_and_si512(q, low4);
      u[2 * h + 1] = _mm512_and_si512(_mm512_srli_epi16(q, 4), low4);
      scale[h] = four_scales(block, kBlock);
      if (!kFive) continue;
      uint64_t fifth[2] = {0, 0};  // of the low nibbles, of the high ones
      for (int i = 0; i < 4; ++i) {
        const uint64_t bits = peek<uint32_t>(block + kBlock * i + kNibbles - 4);
        fifth[0] |= (bits & 0xffff) << (16 * i);
        fifth[1] |= (bits >> 16) << (16 * i);
      }
      for (int k = 0; k < 2; ++k) {
        Int& v = u[2 * h + k];
        v = _mm512_mask_add_epi8(v, fifth[k], v, bytes(16));
      }
    }
    mins[0] = kHasMin ? negative_of(eight_scales(p + 2, kBlock))
                      : _mm512_mul_ps(group_scales<kOrder, kGroup>(scale), _mm512_set1_ps(kOffset));
  }
};

// Of 16 numbers for 16 values each, those of accumulator s of order kCrumb32.
inline Float crumb_scale(Float scales, int s) {
  alignas(64) static constexpr auto kIndex = lanes([](int i) { return 8 * (i / 8) + i % 8 / 4; });
  return _mm512_permutexvar_ps(_mm512_add_epi32(load(kIndex.data()), _mm512_set1_epi32(2 * s)), scales);
}
// Bits 2s, 2s + 1 of 64 bytes.
inline Int crumb(Int q, int s) {
  return _mm512_and_si512(_mm512_srli_epi16(q, static_cast<unsigned>(2 * s)), bytes(3));
}
inline Int widened(const uint8_t* sixteen) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
}

struct Q2_K {
  static constexpr Order kOrder = Order::kCrumb32;
  static constexpr int kBlockBytes = 84, kUnits = 1, kGroup = 16, kOffset = 0;
  static constexpr bool kMins = true;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int both = widened(p), q = load(p + 16);
    const Float scales = _mm512_mul_ps(
        _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15))), half_lanes(p + 80));
    mins[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)), half_lanes(p + 82));
    for (int s = 0; s < 4; ++s) u[s] = crumb(q, s), scale[s] = crumb_scale(scales, s);
  }
};

struct Q3_K {
  static constexpr Order kOrder = Order::kCrumb32;
  static constexpr int kBlockBytes = 110, kUnits = 1, kGroup = 16, kOffset = 4;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    // Sixteen scales: low nibbles in 8 bytes, two high bits each in 4.
    const uint32_t a = peek<uint32_t>(p + 96), b = peek<uint32_t>(p + 100), c = peek<uint32_t>(p + 104);
    const auto four = [&](uint32_t low, int shift) {
      return static_cast<int>((low & 0x0f0f0f0fu) | (c >> shift & 0x03030303u) << 4);
    };
    const Int six = _mm512_cvtepu8_epi32(
        _mm_setr_epi32(four(a, 0), four(b, 2), four(a >> 4, 4), four(b >> 4, 6)));
    const Float scales =
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32))),
                      half_lanes(p + 108));
    mins[0] = _mm512_mul_ps(scales, _mm512_set1_ps(kOffset));
    const Int q = load(p + 32);
    const Int third = _mm512_broadcast_i64x4(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    for (int s = 0; s < 4; ++s) {
      // Bit 4h + s of the third bits' byte belongs to half h.
      const Int bit = _mm512_inserti64x4(bytes(16 << s), _mm256_set1_epi8(static_cast<char>(1 << s)), 0);
      const Int low = crumb(q, s);
      u[s] = _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(third, bit), low, bytes(4));
      scale[s] = crumb_scale(scales, s);
    }
  }
};

struct TQ2_0 {
  static constexpr Order kOrder = Order::kCrumb32;
  static constexpr int kBlockBytes = 66, kUnits = 1, kGroup = 32, kOffset = 1;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int q = load(p);
    for (int s = 0; s < 4; ++s) u[s] = crumb(q, s);
    one_scale<kOffset>(p + 64, scale, mins);
  }
};

// Bytes of five base-3 digits: a power of three shifts the fraction, whose leading digit is then
// byte * 3 / 256. Digit k of bytes 0..31 is element 32 k + .., of bytes 32..47 160 + 16 k + .., of bytes
// 48..51 (four digits) 240 + 4 k + ..
struct TQ1_0 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 54, kUnits = 1, kGroup = 32, kOffset = 1;
  static constexpr bool kMins = false;
  static constexpr int digit(int e) { return e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4; }
  static constexpr int byte(int e) { return e < 160 ? e % 32 : e < 240 ? 32 + e % 16 : 48 + e % 4; }
  template <int j>
  static inline Int digits(Int block) {
    constexpr int kPowers[5] = {1, 3, 9, 27, 81};
    alignas(64) static constexpr auto kByte = byte_lanes([](int i) { return byte(64 * j + i); });
    alignas(64) static constexpr auto kFactor =
        byte_lanes([kPowers](int i) { return kPowers[digit(64 * j + i)]; });
    const Int v = _mm512_permutexvar_epi8(load(kByte.data()), block), factor = load(kFactor.data());
    const Int even = _mm512_mullo_epi16(v, factor);
    const Int odd = _mm512_mullo_epi16(_mm512_srli_epi16(v, 8), _mm512_srli_epi16(factor, 8));
    const Int moved =
        _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, _mm512_slli_epi16(odd, 8));
    const Int one = bytes(1);
    const Int first = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(moved, bytes(86)), one);
    return _mm512_mask_add_epi8(first, _mm512_cmpge_epu8_mask(moved, bytes(171)), first, one);
  }
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    const Int block = _mm512_maskz_loadu_epi8((uint64_t{1} << kBlockBytes) - 1, p);
    u[0] = digits<0>(block), u[1] = digits<1>(block), u[2] = digits<2>(block), u[3] = digits<3>(block);
    one_scale<kOffset>(p + 52, scale, mins);
  }
};

// The 16 values of a 4-bit float (2 bits of exponent, 1 of mantissa), doubled, kE2m1Offset added.
constexpr int kE2m1Offset = 12;  // the largest: 12 times a scale is finite wherever its weights are
inline Int e2m1_values() {
  return _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(
                             codebooks::kE2m1Doubled))), bytes(kE2m1Offset));
}

struct MXFP4 {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 136, kUnits = 1, kGroup = 32, kOffset = kE2m1Offset;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 4; });
    const Int low4 = bytes(15), values = e2m1_values();
    for (int h = 0; h < 2; ++h) {
      const uint8_t* block = p + 68 * h;
      const Int q = load_quarters(block + 1, 17);
      u[2 * h] = _mm512_shuffle_epi8(values, _mm512_and_si512(q, low4));
      u[2 * h + 1] = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(q, 4), low4));
      // 2^(e - 128) as the bits of a float; the smallest two are subnormal.
      const __m128i e = _mm_setr_epi32(block[0], block[17], block[34], block[51]);
      const __m128i normal = _mm_slli_epi32(_mm_sub_epi32(e, _mm_set1_epi32(1)), 23);
      const __m128i small = _mm_sllv_epi32(_mm_set1_epi32(0x00200000), e);
      const __m128i bits =
          _mm_mask_blend_epi32(_mm_cmplt_epi32_mask(e, _mm_set1_epi32(2)), normal, small);
      scale[h] = _mm512_permutexvar_ps(load(kIndex.data()),
                                       _mm512_castps128_ps512(_mm_castsi128_ps(bits)));
    }
    mins[0] = _mm512_mul_ps(group_scales<kOrder, kGroup>(scale), _mm512_set1_ps(kOffset));
  }
};

// Blocks of 64: four scales of 8 bits, then 8 bytes for each 16 values.
struct NVFP4 {
  static constexpr Order kOrder = Order::kNibble16;
  static constexpr int kBlockBytes = 144, kUnits = 1, kGroup = 16, kOffset = kE2m1Offset;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / 2; });
    const Int low4 = bytes(15), values = e2m1_values();
    Float eight[2];
    for (int h = 0; h < 2; ++h) {
      const uint8_t* block = p + 72 * h;
      const Int q = load_half(block + 4, block + 40);
      u[2 * h] = _mm512_shuffle_epi8(values, _mm512_and_si512(q, low4));
      u[2 * h + 1] = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(q, 4), low4));
      // Moved to where a half has its exponent, an 8-bit float is 2^8 times too small; half of it is
      // wanted, since the values are doubled. 0x7f counts as zero.
      const __m128i raw = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(
          uint64_t{peek<uint32_t>(block)} | uint64_t{peek<uint32_t>(block + 36)} << 32)));
      const __m128i bits = _mm_maskz_slli_epi16(
          _mm_cmpneq_epi16_mask(raw, _mm_set1_epi16(0x7f)),
          _mm_and_si128(raw, _mm_set1_epi16(0x7f)), 7);
      eight[h] = _mm512_zextps256_ps512(
          _mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(128.0f)));
      scale[h] = _mm512_permutexvar_ps(load(kIndex.data()), eight[h]);
    }
    mins[0] = _mm512_mul_ps(_mm512_insertf32x8(eight[0], _mm512_castps512_ps256(eight[1]), 1),
                            _mm512_set1_ps(kOffset));
  }
};

// IQ1: entries of eight values -1, 0, 1, moved by 1/8 up or down. In eighths, 16 added: whole bytes.
constexpr int kEighthOffset = 16;
constexpr auto kEighths = [] {
  std::array<uint64_t, 2048> t{};
  for (size_t e = 0; e < t.size(); ++e) {
    for (size_t k = 0; k < 8; ++k) {
      t[e] |= static_cast<uint64_t>(8 * static_cast<int8_t>(codebooks::kGridIq1[e][k]) + kEighthOffset)
              << (8 * k);
    }
  }
  return t;
}();
inline uint64_t eighths(uint32_t index, bool down) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  return kEighths[index] + (down ? ~kOnes + 1 : kOnes);
}
// Numbers of 16 (or 8) groups to the lanes of accumulator j in natural order.
template <int kLanes>
inline Float natural_scale(Float scales, int j) {
  alignas(64) static constexpr auto kIndex = lanes([](int i) { return i / kLanes; });
  return _mm512_permutexvar_ps(
      _mm512_add_epi32(load(kIndex.data()), _mm512_set1_epi32(16 / kLanes * j)), scales);
}

struct IQ1_S {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 50, kUnits = 1, kGroup = 32, kOffset = kEighthOffset;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    alignas(64) uint64_t entries[32];
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = peek<uint16_t>(p + 34 + 2 * i);
      for (int k = 0; k < 4; ++k) {
        entries[4 * i + k] =
            eighths(p[2 + 4 * i + k] | (word >> (3 * k) & 7) << 8, (word & 0x8000) != 0);
      }
    }
    for (int j = 0; j < 4; ++j) u[j] = load(entries + 8 * j);
    // Bits 12..14 of the words: 2 s + 1, times d / 8.
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 34)));
    const __m256i s = _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi32(words, 11), _mm256_set1_epi32(14)), _mm256_set1_epi32(1));
    const Float scales = _mm512_mul_ps(
        _mm512_mul_ps(_mm512_zextps256_ps512(_mm256_cvtepi32_ps(s)), half_lanes(p)),
        _mm512_set1_ps(0.125f));
    for (int j = 0; j < 4; ++j) scale[j] = natural_scale<8>(scales, j);
    mins[0] = _mm512_maskz_mul_ps(0x00ff, scales, _mm512_set1_ps(kOffset));
  }
};

struct IQ1_M {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 56, kUnits = 1, kGroup = 16, kOffset = kEighthOffset;
  static constexpr bool kMins = false;
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale,
                                                   Float* mins) {
    alignas(64) uint64_t entries[32];
    for (int e = 0; e < 32; ++e) {
      const uint32_t nibble = p[32 + e / 2] >> (4 * (e & 1)) & 15u;
      entries[e] = eighths(p[e] | (nibble & 7) << 8, (nibble & 8) != 0);
    }
    for (int j = 0; j < 4; ++j) u[j] = load(entries + 8 * j);
    // Four words: four times 3 bits s, and a quarter of d on top.
    const uint64_t words = peek<uint64_t>(p + 48);
    const auto top = [&](int i) { return static_cast<uint32_t>(words >> (16 * i + 12) & 15) << (4 * i); };
    const auto d = static_cast<int16_t>(top(0) | top(1) | top(2) | top(3));
    const Int s = _mm512_and_si512(
        _mm512_srlv_epi32(_mm512_cvtepu16_epi32(_mm256_permutexvar_epi16(
                              _mm256_setr_epi16(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                              _mm256_castsi128_si256(_mm_cvtsi64_si128(static_cast<int64_t>(words))))),
                          _mm512_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9)),
        _mm512_set1_epi32(7));
    const Int odd = _mm512_add_epi32(_mm512_slli_epi32(s, 1), _mm512_set1_epi32(1));
    const Float scales = _mm512_mul_ps(
        _mm512_mul_ps(_mm512_cvtepi32_ps(odd), _mm512_cvtph_ps(_mm256_set1_epi16(d))),
        _mm512_set1_ps(0.125f));
    for (int j = 0; j < 4; ++j) scale[j] = natural_scale<4>(scales, j);
    mins[0] = _mm512_mul_ps(scales, _mm512_set1_ps(kOffset));
  }
};

}  // namespace

void add_avx512_more(Kernels& k) {
  add<Nibble20<false, true>>(k, WeightType::kQ4_1);
  add<Nibble20<true, false>>(k, WeightType::kQ5_0);
  add<Nibble20<true, true>>(k, WeightType::kQ5_1);
  add<Q2_K>(k, WeightType::kQ2_K);
  add<Q3_K>(k, WeightType::kQ3_K);
  add<TQ1_0>(k, WeightType::kTQ1_0);
  add<TQ2_0>(k, WeightType::kTQ2_0);
  add<MXFP4>(k, WeightType::kMXFP4);
  add<NVFP4>(k, WeightType::kNVFP4);
  add<IQ1_S>(k, WeightType::kIQ1_S);
  add<IQ1_M>(k, WeightType::kIQ1_M);
}

}  // namespace esker::cpu

#endif
