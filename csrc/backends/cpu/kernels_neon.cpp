// SPDX-License-Identifier: MIT
//
// NEON kernels (64-bit Arm with the dot product instructions: every Apple M, Cortex-A76 and newer,
// Neoverse): the primitives that kernels_32.h is written in, two registers of 16 bytes each.
#include "backends/cpu/kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_NEON)

#include <arm_neon.h>

#include <cstring>

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace esker::cpu {
namespace {

struct Bytes {  // 32 of them
  int8x16_t lo, hi;
};
struct Float {  // 8
  float32x4_t lo, hi;
};

inline void prefetch(const uint8_t* p) { __builtin_prefetch(p); }

inline int8x16_t load_half(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
inline Bytes load(const uint8_t* p) { return {load_half(p), load_half(p + 16)}; }
inline Bytes load_halves(const uint8_t* a, const uint8_t* b) {
  return {load_half(a), load_half(b)};
}
// Little-endian: element 0 first.
inline Bytes from_words(const uint32_t* w) {
  return {vreinterpretq_s8_u32(vld1q_u32(w)), vreinterpretq_s8_u32(vld1q_u32(w + 4))};
}
inline Bytes from_words(const uint64_t* w) {
  return {vreinterpretq_s8_u64(vld1q_u64(w)), vreinterpretq_s8_u64(vld1q_u64(w + 2))};
}
inline Bytes splat(int v) {
  const int8x16_t b = vdupq_n_s8(static_cast<int8_t>(v));
  return {b, b};
}
inline Bytes both(Bytes a, Bytes b) { return {vandq_s8(a.lo, b.lo), vandq_s8(a.hi, b.hi)}; }
inline Bytes either(Bytes a, Bytes b) { return {vorrq_s8(a.lo, b.lo), vorrq_s8(a.hi, b.hi)}; }
// (v >> n) & mask by bytes, mask <= 255 >> n.
template <int n>
inline Bytes shift_right(Bytes v, Bytes mask) {
  if constexpr (n != 0) {
    v.lo = vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(v.lo), n));
    v.hi = vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(v.hi), n));
  }
  return both(v, mask);
}
// (v << n) & mask, mask without its n lowest bits.
template <int n>
inline Bytes shift_left(Bytes v, Bytes mask) {
  return both({vshlq_n_s8(v.lo, n), vshlq_n_s8(v.hi, n)}, mask);
}
// The table of 16 as look_up wants it; indices 0..15.
inline Bytes table(const int8_t* values) {
  const int8x16_t t = vld1q_s8(values);
  return {t, t};
}
inline Bytes look_up(Bytes values, Bytes index) {
  return {vqtbl1q_s8(values.lo, vreinterpretq_u8_s8(index.lo)),
          vqtbl1q_s8(values.hi, vreinterpretq_u8_s8(index.hi))};
}
inline Bytes add(Bytes a, Bytes b) { return {vaddq_s8(a.lo, b.lo), vaddq_s8(a.hi, b.hi)}; }
inline Bytes subtract(Bytes a, Bytes b) { return {vsubq_s8(a.lo, b.lo), vsubq_s8(a.hi, b.hi)}; }
// 255 where a > b, as signed bytes.
inline Bytes greater(Bytes a, Bytes b) {
  return {vreinterpretq_s8_u8(vcgtq_s8(a.lo, b.lo)), vreinterpretq_s8_u8(vcgtq_s8(a.hi, b.hi))};
}
// Sixteen bytes as 32 nibbles: of every eight bytes the low ones, then the high ones.
inline Bytes nibbles_of_eights(const uint8_t* p) {
  const uint8x16_t q = vld1q_u8(p);
  const uint64x2_t low = vreinterpretq_u64_u8(vandq_u8(q, vdupq_n_u8(15)));
  const uint64x2_t high = vreinterpretq_u64_u8(vshrq_n_u8(q, 4));
  return {vreinterpretq_s8_u64(vzip1q_u64(low, high)), vreinterpretq_s8_u64(vzip2q_u64(low, high))};
}
// 255 in byte i where bit i % 8 of byte step * (i / 8) of `bits` is set.
template <int step>
inline Bytes where_bits(uint8x16_t bits) {
  const uint8x16_t first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(step));
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const auto half = [&](uint8x16_t index) {
    return vreinterpretq_s8_u8(vtstq_u8(vqtbl1q_u8(bits, index), bit));
  };
  return {half(first), half(vaddq_u8(first, vdupq_n_u8(2 * step)))};
}
// 255 in byte i where bit i is set.
inline Bytes where_bits(uint32_t bits) {
  return where_bits<1>(vreinterpretq_u8_u32(vdupq_n_u32(bits)));
}
// 255 in the eight bytes i where the top bit of nibble i is set.
inline Bytes where_nibbles(uint16_t nibbles) {
  const uint16x8_t n = vdupq_n_u16(nibbles);
  const auto half = [&](uint16_t a, uint16_t b) {
    return vreinterpretq_s8_u16(vtstq_u16(n, vcombine_u16(vdup_n_u16(a), vdup_n_u16(b))));
  };
  return {half(0x8, 0x80), half(0x800, 0x8000)};
}
inline Bytes negate_where(Bytes v, Bytes mask) {
  return {vsubq_s8(veorq_s8(v.lo, mask.lo), mask.lo), vsubq_s8(veorq_s8(v.hi, mask.hi), mask.hi)};
}
// Negates the bytes whose bit of `signs` is set, bit 0 the first.
inline Bytes negate(Bytes v, uint32_t signs) { return negate_where(v, where_bits(signs)); }
// The same with 7 bits for every 8 bytes: the missing one makes the number of ones even.
inline Bytes negate_even(Bytes v, uint32_t sevens) {
  static constexpr int32_t kShift[] = {0, -7, -14, -21};
  const uint8x16_t s = vreinterpretq_u8_u32(vandq_u32(
      vshlq_u32(vdupq_n_u32(sevens), vld1q_s32(kShift)), vdupq_n_u32(127)));
  return negate_where(v, where_bits<4>(vorrq_u8(s, vshlq_n_u8(vcntq_u8(s), 7))));
}
// out[e] = index[e] + 256 times bit e of `ninth`.
inline void nine_bits(const uint8_t* index, uint8_t ninth, uint16_t* out) {
  const uint8x8_t bit = vcreate_u8(0x8040201008040201);
  const uint8x8_t set = vshr_n_u8(vtst_u8(vdup_n_u8(ninth), bit), 7);
  vst1q_u16(out, vorrq_u16(vmovl_u8(vld1_u8(index)), vshll_n_u8(set, 8)));
}
// out[e] = low[e] + 256 times the kBits bits that begin at bit kStep (e % 4) of word e / 4.
template <int kBits, int kStep>
inline void sixteen_indices(const uint8_t* low, uint64_t words, uint16_t* out) {
  static constexpr uint8_t kSpread[] = {0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3};
  static constexpr int16_t kLeft[] = {8, 8 - kStep, 8 - 2 * kStep, 8 - 3 * kStep,
                                      8, 8 - kStep, 8 - 2 * kStep, 8 - 3 * kStep};
  const uint8x16_t table = vreinterpretq_u8_u64(vdupq_n_u64(words)), spread = vld1q_u8(kSpread);
  const auto half = [&](uint8x8_t bytes, uint8x16_t index) {
    const uint16x8_t high = vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(table, index)),
                                      vld1q_s16(kLeft));
    return vorrq_u16(vmovl_u8(bytes), vandq_u16(high, vdupq_n_u16(256 * ((1 << kBits) - 1))));
  };
  vst1q_u16(out, half(vld1_u8(low), spread));
  vst1q_u16(out + 8, half(vld1_u8(low + 8), vaddq_u8(spread, vdupq_n_u8(4))));
}

inline Float halves(float a, float b) { return {vdupq_n_f32(a), vdupq_n_f32(b)}; }
inline Float all(float v) { return halves(v, v); }
inline Float zero() { return all(0); }
inline Float load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float* p, Float v) { vst1q_f32(p, v.lo), vst1q_f32(p + 4, v.hi); }
inline Float add(Float a, Float b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
inline Float subtract(Float a, Float b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
inline Float multiply(Float a, Float b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
inline Float add_product(Float sum, Float a, Float b) {
  return {vfmaq_f32(sum.lo, a.lo, b.lo), vfmaq_f32(sum.hi, a.hi, b.hi)};
}
inline Float subtract_product(Float sum, Float a, Float b) {
  return {vfmsq_f32(sum.lo, a.lo, b.lo), vfmsq_f32(sum.hi, a.hi, b.hi)};
}
inline float total(Float v) { return vaddvq_f32(vaddq_f32(v.lo, v.hi)); }

inline float32x4_t half_quad(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
inline float32x4_t half_splat(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
}
// The half-precision number at p in all lanes; those at a and b in four lanes each; eight of them.
inline Float half_all(const uint8_t* p) {
  const float32x4_t v = half_splat(p);
  return {v, v};
}
inline Float half_halves(const uint8_t* a, const uint8_t* b) {
  return {half_splat(a), half_splat(b)};
}
inline Float half_each(const uint8_t* p) { return {half_quad(p), half_quad(p + 8)}; }
inline Float bfloat_each(const uint8_t* p) {
  const uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(p));
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
          vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(v), 16))};
}
// Eight bytes, the lowest first.
inline Float from_unsigned(uint64_t v) {
  const uint16x8_t w = vmovl_u8(vcreate_u8(v));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(w))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(w)))};
}
// Eight unsigned floats of four bits of exponent and three of mantissa: half-precision numbers 2^8
// too small. The bit above is nothing, but 0x7f, the NaN, is zero.
inline Float from_e4m3(uint64_t v) {
  const uint8x8_t nan = vdup_n_u8(0x7f), b = vcreate_u8(v);
  const uint16x8_t half = vshll_n_u8(vbic_u8(vand_u8(b, nan), vceq_u8(b, nan)), 7);
  const auto quad = [](uint16x4_t h) {
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(h)), 256.0f);
  };
  return {quad(vget_low_u16(half)), quad(vget_high_u16(half))};
}
inline Float from_signed(const uint8_t* p) {
  const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(w)))};
}

// The sum over kVectors vectors and the parts of x of 128^part w x, four bytes a lane. Bytes of a
// part lie 64 kParts apart. All bytes are signed here, weights above 127 there are none.
template <int kVectors, int kParts, int kTop, bool kSigned>
inline Float products(const Bytes* w, const uint8_t* x) {
  int32x4_t lo = vdupq_n_s32(0), hi = lo;
  for (int part = kParts - 1; part >= 0; --part) {
    lo = vshlq_n_s32(lo, 7), hi = vshlq_n_s32(hi, 7);
    for (int v = 0; v < kVectors; ++v) {
      const Bytes b = load(x + 64 * (kParts * v + part));
      lo = vdotq_s32(lo, w[v].lo, b.lo);
      hi = vdotq_s32(hi, w[v].hi, b.hi);
    }
  }
  return {vcvtq_f32_s32(lo), vcvtq_f32_s32(hi)};
}

}  // namespace
}  // namespace esker::cpu

#include "backends/cpu/kernels_32_more.h"

namespace esker::cpu {

const Kernels* neon_kernels() {
#if defined(__linux__)
  const bool has = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  const bool has = true;  // every 64-bit Apple machine
#endif
  return has ? kernels_32("neon") : nullptr;
}

}  // namespace esker::cpu

#else

namespace esker::cpu {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace esker::cpu

#endif
