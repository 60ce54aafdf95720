// SPDX-License-Identifier: MIT
//
// AVX-512 kernels: the codebook types (IQ3_*, IQ2_*) by byte permutes, without a gather: a grid entry's
// magnitudes become codes packed in planes of bytes, and a plane is looked up 64 entries at a time.
#include "backends/cpu/avx512_types.h"

#if ESKER_HAS_AVX512

#include "backends/cpu/avx512_rows.h"

namespace esker::cpu {
namespace {

// vpermi2b over pages of 128 entries; masks choose the page by the index's upper bits.
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
// kOffset + v where kOffset + v is given, kOffset - v where the sign bit is set.
template <int kOffset>
inline Int with_sign(Int v, Int signs, int k) {
  return _mm512_mask_sub_epi8(v, negative(signs, k), bytes(2 * kOffset), v);
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
  static constexpr int kBlockBytes = 110, kUnits = 1, kGroup = 32, kOffset = 16;
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
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int index = load(p + 2), low4 = bytes(15);
    const __mmask64 bit7 = _mm512_movepi8_mask(index), bit8 = peek<uint64_t>(p + 66);
    const Int a = look_up_512(kPlanes.at[0], index, bit7, bit8);
    const Int b = look_up_512(kPlanes.at[1], index, bit7, bit8);
    u[0] = a, u[1] = _mm512_srli_epi16(a, 4), u[2] = b, u[3] = _mm512_srli_epi16(b, 4);
    const Int signs = doubled(p + 74);
    for (int k = 0; k < 4; ++k) {
      // (u & 15) | 16
      u[k] = with_sign<kOffset>(_mm512_ternarylogic_epi32(u[k], low4, bytes(kOffset), 0xEA), signs, k);
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
  static constexpr int kBlockBytes = 98, kUnits = 1, kGroup = 32, kOffset = 64;
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
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
    const Int index = load(p + 2), low4 = bytes(15);
    const Int values = _mm512_broadcast_i32x4(
        _mm_setr_epi8(68, 76, 84, 92, 100, 108, 116, 126, 0, 0, 0, 0, 0, 0, 0, 0));
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const Int a = look_up_256(kPlanes.at[0], index, bit7);
    const Int b = look_up_256(kPlanes.at[1], index, bit7);
    u[0] = a, u[1] = _mm512_srli_epi16(a, 4), u[2] = b, u[3] = _mm512_srli_epi16(b, 4);
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 66));
    const Int signs = with_parity(_mm512_multishift_epi64_epi8(
        _mm512_set1_epi64(0x15150e0e07070000), _mm512_cvtepu32_epi64(words)));
    for (int k = 0; k < 4; ++k) {
      u[k] = with_sign<kOffset>(_mm512_shuffle_epi8(values, _mm512_and_si512(u[k], low4)), signs, k);
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
constexpr int kCrumbOffset = 64;
inline void crumbs(Int codes, Int signs, Int* u) {
  alignas(64) static constexpr auto kValues = byte_lanes([](int i) {
    return kCrumbOffset + ((i & 3) == 0 ? 8 : (i & 3) == 1 ? 25 : 43);
  });
  const Int values = load(kValues.data());
  for (int k = 0; k < 4; ++k) {
    // A byte permute reads six bits of the index: the table repeats, so nothing is masked.
    const Int code = _mm512_srli_epi16(codes, static_cast<unsigned>(2 * k));
    u[k] = with_sign<kCrumbOffset>(_mm512_permutexvar_epi8(code, values), signs, k);
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
  static constexpr int kBlockBytes = 82, kUnits = 2, kGroup = 16, kOffset = kCrumbOffset;
  static constexpr bool kMins = false;
  static constexpr Planes<1024, 2> kPlanes = crumb_planes<1024>(codebooks::kGridIq2S);
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
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
  static constexpr int kBlockBytes = 74, kUnits = 2, kGroup = 16, kOffset = kCrumbOffset;
  static constexpr bool kMins = false;
  static constexpr Planes<512, 2> kPlanes = crumb_planes<512>(codebooks::kGridIq2Xs);
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
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
  static constexpr int kBlockBytes = 66, kUnits = 2, kGroup = 32, kOffset = kCrumbOffset;
  static constexpr bool kMins = false;
  static constexpr Planes<256, 2> kPlanes = crumb_planes<256>(codebooks::kGridIq2Xxs);
  [[gnu::always_inline]] static inline void unpack(const uint8_t* p, Int* u, Float* scale, Float*) {
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

}  // namespace

void add_avx512_grids(Kernels& k) {
  add<IQ3_S>(k, WeightType::kIQ3_S);
  add<IQ3_XXS>(k, WeightType::kIQ3_XXS);
  add<IQ2_S>(k, WeightType::kIQ2_S);
  add<IQ2_XS>(k, WeightType::kIQ2_XS);
  add<IQ2_XXS>(k, WeightType::kIQ2_XXS);
}

}  // namespace esker::cpu

#endif
