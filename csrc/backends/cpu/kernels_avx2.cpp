// SPDX-License-Identifier: MIT
//
// AVX2 kernels (AVX2, FMA, F16C: x86-64 since 2013): the primitives that kernels_32.h is written
// in.
#include "backends/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <cpuid.h>
#include <immintrin.h>

#include <cstring>

namespace esker::cpu {
namespace {

using Bytes = __m256i;  // 32 of them
using Float = __m256;   // 8

inline void prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

inline Bytes load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m128i load_half(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline Bytes load_halves(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(a)), load_half(b), 1);
}
// Little-endian: element 0 first.
inline Bytes from_words(const uint32_t* w) {
  return _mm256_setr_epi32(static_cast<int>(w[0]), static_cast<int>(w[1]), static_cast<int>(w[2]),
                           static_cast<int>(w[3]), static_cast<int>(w[4]), static_cast<int>(w[5]),
                           static_cast<int>(w[6]), static_cast<int>(w[7]));
}
inline Bytes from_words(const uint64_t* w) {
  return _mm256_setr_epi64x(static_cast<int64_t>(w[0]), static_cast<int64_t>(w[1]),
                            static_cast<int64_t>(w[2]), static_cast<int64_t>(w[3]));
}
inline Bytes splat(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
inline Bytes both(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
inline Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
// (v >> n) & mask by bytes; the mask must clear what comes from the neighbour, so mask <= 255 >> n.
template <int n>
inline Bytes shift_right(Bytes v, Bytes mask) {
  return both(n == 0 ? v : _mm256_srli_epi16(v, n), mask);
}
// (v << n) & mask, mask without its n lowest bits.
template <int n>
inline Bytes shift_left(Bytes v, Bytes mask) {
  return both(n == 0 ? v : _mm256_slli_epi16(v, n), mask);
}
// The table of 16 as look_up wants it; indices 0..15.
inline Bytes table(const int8_t* values) {
  return _mm256_broadcastsi128_si256(load_half(reinterpret_cast<const uint8_t*>(values)));
}
inline Bytes look_up(Bytes values, Bytes index) { return _mm256_shuffle_epi8(values, index); }
inline Bytes add(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
inline Bytes subtract(Bytes a, Bytes b) { return _mm256_sub_epi8(a, b); }
// 255 where a > b, as signed bytes.
inline Bytes greater(Bytes a, Bytes b) { return _mm256_cmpgt_epi8(a, b); }
// Sixteen bytes as 32 nibbles: of every eight bytes the low ones, then the high ones.
inline Bytes nibbles_of_eights(const uint8_t* p) {
  const Bytes twice = _mm256_permute4x64_epi64(_mm256_castsi128_si256(load_half(p)), 0x50);
  return both(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4)), splat(15));
}
// 255 in byte i where bit i % 8 of byte i of `bits` is set.
inline Bytes where_bits(Bytes bits) {
  const Bytes bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  return _mm256_cmpeq_epi8(both(bits, bit), bit);
}
// 255 in byte i where bit i is set.
inline Bytes where_bits(uint32_t bits) {
  const Bytes spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                          0x0303030303030303);
  return where_bits(_mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), spread));
}
// 255 in the eight bytes i where the top bit of nibble i is set.
inline Bytes where_nibbles(uint16_t nibbles) {
  const Bytes bit = _mm256_setr_epi64x(0x0008000800080008, 0x0080008000800080, 0x0800080008000800,
                                       static_cast<int64_t>(0x8000800080008000));
  const Bytes all_four = _mm256_set1_epi16(static_cast<int16_t>(nibbles));
  return _mm256_cmpeq_epi16(both(all_four, bit), bit);
}
inline Bytes negate_where(Bytes v, Bytes mask) { return subtract(_mm256_xor_si256(v, mask), mask); }
// Negates the bytes whose bit of `signs` is set, bit 0 the first.
inline Bytes negate(Bytes v, uint32_t signs) { return negate_where(v, where_bits(signs)); }
// The same with 7 bits for every 8 bytes: the missing one makes the number of ones even.
inline Bytes negate_even(Bytes v, uint32_t sevens) {
  Bytes s = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(sevens)),
                              _mm256_setr_epi32(0, 0, 7, 7, 14, 14, 21, 21));
  s = both(s, _mm256_set1_epi32(127));
  const Bytes odd = _mm256_set_epi64x(  // 128 where a nibble has an odd number of ones
      0x0080800080000080, static_cast<int64_t>(0x8000008000808000), 0x0080800080000080,
      static_cast<int64_t>(0x8000008000808000));
  const Bytes folded = both(_mm256_xor_si256(s, _mm256_srli_epi32(s, 4)), _mm256_set1_epi32(15));
  s = either(s, _mm256_shuffle_epi8(odd, folded));
  const Bytes spread = _mm256_setr_epi64x(0, 0x0808080808080808, 0, 0x0808080808080808);
  return negate_where(v, where_bits(_mm256_shuffle_epi8(s, spread)));
}
// out[e] = index[e] + 256 times bit e of `ninth`.
inline void nine_bits(const uint8_t* index, uint8_t ninth, uint16_t* out) {
  const __m128i bit = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
  const __m128i low = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(index)));
  const __m128i set = _mm_cmpeq_epi16(_mm_and_si128(_mm_set1_epi16(ninth), bit), bit);
  _mm_store_si128(reinterpret_cast<__m128i*>(out),
                  _mm_or_si128(low, _mm_and_si128(set, _mm_set1_epi16(256))));
}
// out[e] = low[e] + 256 times the kBits bits that begin at bit kStep (e % 4) of word e / 4.
template <int kBits, int kStep>
inline void sixteen_indices(const uint8_t* low, uint64_t words, uint16_t* out) {
  // A product moves each entry's bits to the top of its 16.
  constexpr int kTop = 16 - kBits;
  const Bytes factor = _mm256_set1_epi64x(
      int64_t{1} << kTop | int64_t{1} << (16 + kTop - kStep) |
      int64_t{1} << (32 + kTop - 2 * kStep) | int64_t{1} << (48 + kTop - 3 * kStep));
  const Bytes spread = _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302,
                                          0x0504050405040504, 0x0706070607060706);
  Bytes v = _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<int64_t>(words)), spread);
  v = _mm256_srli_epi16(_mm256_mullo_epi16(v, factor), 8 - kBits);
  v = both(v, _mm256_set1_epi16(256 * ((1 << kBits) - 1)));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out),
                     either(v, _mm256_cvtepu8_epi16(load_half(low))));
}

inline Float zero() { return _mm256_setzero_ps(); }
inline Float all(float v) { return _mm256_set1_ps(v); }
// Four times a, four times b.
inline Float halves(float a, float b) { return _mm256_set_m128(_mm_set1_ps(b), _mm_set1_ps(a)); }
inline Float load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
inline Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
inline Float subtract(Float a, Float b) { return _mm256_sub_ps(a, b); }
inline Float multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
inline Float add_product(Float sum, Float a, Float b) { return _mm256_fmadd_ps(a, b, sum); }
inline Float subtract_product(Float sum, Float a, Float b) { return _mm256_fnmadd_ps(a, b, sum); }
inline float total(Float v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

inline __m128i half_word(const uint8_t* p) {
  int16_t h;
  std::memcpy(&h, p, sizeof h);
  return _mm_set1_epi16(h);
}
// The half-precision number at p in all lanes; those at a and b in four lanes each; eight of them.
inline Float half_all(const uint8_t* p) { return _mm256_cvtph_ps(half_word(p)); }
inline Float half_halves(const uint8_t* a, const uint8_t* b) {
  return _mm256_cvtph_ps(_mm_unpacklo_epi64(half_word(a), half_word(b)));
}
inline Float half_each(const uint8_t* p) { return _mm256_cvtph_ps(load_half(p)); }
inline Float bfloat_each(const uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16));
}
// Eight bytes, the lowest first.
inline Float from_unsigned(uint64_t v) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(v))));
}
// Eight unsigned floats of four bits of exponent and three of mantissa: half-precision numbers 2^8
// too small. The bit above is nothing, but 0x7f, the NaN, is zero.
inline Float from_e4m3(uint64_t v) {
  const __m128i nan = _mm_set1_epi8(0x7f), b = _mm_cvtsi64_si128(static_cast<int64_t>(v));
  const __m128i kept = _mm_andnot_si128(_mm_cmpeq_epi8(b, nan), _mm_and_si128(b, nan));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(kept), 7)),
                       _mm256_set1_ps(256.0f));
}
inline Float from_signed(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// The sum over kVectors vectors and the parts of x of 128^part w x, four bytes a lane. Bytes of a
// part lie 64 kParts apart. w <= kTop in magnitude; unsigned unless kSigned.
//
// vpmaddubsw takes unsigned by signed and saturates at 16 bits: 2 * 127 * 128 fits. The lower parts
// of x are 0..127, so they go with signed weights as they are; of the highest the weight's sign is
// put on x. Where all vectors fit into 16 bits they are summed there.
template <int kVectors, int kParts, int kTop, bool kSigned>
inline Float products(const Bytes* w, const uint8_t* x) {
  constexpr bool kFold = kVectors * 2 * 127 * kTop <= 32767;
  Bytes sum = _mm256_setzero_si256();
  for (int part = 0; part < kParts; ++part) {
    const Bytes factor = _mm256_set1_epi16(static_cast<int16_t>(1 << (7 * part)));
    Bytes folded = _mm256_setzero_si256();
    for (int v = 0; v < kVectors; ++v) {
      const Bytes b = load(x + 64 * (kParts * v + part));
      const Bytes pair = !kSigned            ? _mm256_maddubs_epi16(w[v], b)
                         : part < kParts - 1 ? _mm256_maddubs_epi16(b, w[v])
                                             : _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]),
                                                                    _mm256_sign_epi8(b, w[v]));
      if (kFold) {
        folded = _mm256_add_epi16(folded, pair);
      } else {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pair, factor));
      }
    }
    if (kFold) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(folded, factor));
  }
  return _mm256_cvtepi32_ps(sum);
}

}  // namespace
}  // namespace esker::cpu

#include "backends/cpu/kernels_32_more.h"

namespace esker::cpu {

const Kernels* avx2_kernels() {
  __builtin_cpu_init();
  unsigned a, b, c = 0, d;  // F16C by hand: Clang 14 has no name for it
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return has ? kernels_32("avx2") : nullptr;
}

}  // namespace esker::cpu

#else

namespace esker::cpu {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace esker::cpu

#endif
