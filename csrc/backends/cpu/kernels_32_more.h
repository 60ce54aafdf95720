// SPDX-License-Identifier: MIT
//
// The types that fewer models use, written as those of kernels_32.h are, and the table of all.
#pragma once

#include "backends/cpu/kernels_32.h"

namespace esker::cpu {
namespace {

// Q4_1, Q5_0 and Q5_1: blocks of 32 weights. A scale, a minimum (added) or none, 32 fifth bits or
// none, 16 bytes of nibbles.
template <bool kFive, bool kMinimum>
struct Nibbles {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlock = 18 + (kFive ? 4 : 0) + (kMinimum ? 2 : 0);
  static constexpr int kBlockBytes = 8 * kBlock, kTop = kFive ? 31 : 15;
  static constexpr int kOffset = kMinimum ? 0 : kFive ? 16 : 8;
  static constexpr bool kSigned = false, kMins = kMinimum;
  const uint8_t* p;
  explicit Nibbles(const uint8_t* block) : p(block) {}
  template <int s>
  inline void weights(Bytes* w) const {
    const uint8_t *a = p + 2 * kBlock * s, *b = a + kBlock;
    const Bytes q = load_halves(a + kBlock - 16, b + kBlock - 16);
    w[0] = shift_right<0>(q, splat(15));
    w[1] = shift_right<4>(q, splat(15));
    if constexpr (kFive) {  // the lower 16 bits go with the low nibbles
      const uint32_t in_a = peek<uint32_t>(a + kBlock - 20), in_b = peek<uint32_t>(b + kBlock - 20);
      w[0] = either(w[0], both(where_bits((in_a & 0xffff) | in_b << 16), splat(16)));
      w[1] = either(w[1], both(where_bits(in_a >> 16 | (in_b & 0xffff0000)), splat(16)));
    }
  }
  template <int s>
  inline Float scales() const {
    const uint8_t* d = p + 2 * kBlock * s;
    return half_halves(d, d + kBlock);
  }
  template <int s>
  inline Float mins() const {
    const uint8_t* m = p + 2 * kBlock * s + 2;
    return subtract(zero(), half_halves(m, m + kBlock));
  }
};

// Bits 2i and 2i+1 of 32 bytes, i = s % 4: how Q2_K, Q3_K and TQ2_0 hold the weights of a step.
template <int s>
inline Bytes two_bits(const uint8_t* p) {
  return shift_right<2 * (s % 4)>(load(p + 32 * (s / 4)), splat(3));
}

struct Q2_K {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 84, kTop = 3, kOffset = 0;
  static constexpr bool kSigned = false, kMins = true;
  const uint8_t* p;
  float scale[16], min[16];
  explicit Q2_K(const uint8_t* block) : p(block) {
    const Float d = half_all(p + 80), dmin = half_all(p + 82);
    for (int h = 0; h < 2; ++h) {
      const uint64_t s = peek<uint64_t>(p + 8 * h);
      store(scale + 8 * h, multiply(from_unsigned(s & kLowNibbles), d));
      store(min + 8 * h, multiply(from_unsigned(s >> 4 & kLowNibbles), dmin));
    }
  }
  template <int s>
  inline void weights(Bytes* w) const { w[0] = two_bits<s>(p + 16); }
  template <int s>
  inline Float scales() const { return halves(scale[2 * s], scale[2 * s + 1]); }
  template <int s>
  inline Float mins() const { return halves(min[2 * s], min[2 * s + 1]); }
};

struct Q3_K {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 110, kTop = 7, kOffset = 4;
  static constexpr bool kSigned = false, kMins = false;
  const uint8_t* p;
  float scale[16];
  explicit Q3_K(const uint8_t* block) : p(block) {
    const Float d = half_all(p + 108);
    const uint64_t low = peek<uint64_t>(p + 96);
    const uint32_t high = peek<uint32_t>(p + 104);
    for (int h = 0; h < 2; ++h) {  // four low bits and two high ones of eight scales
      const uint32_t two = high >> 4 * h;
      const uint64_t s = (low >> 4 * h & kLowNibbles) |
                         ((two & 0x03030303u) | uint64_t{two >> 2 & 0x03030303u} << 32) << 4;
      store(scale + 8 * h, multiply(subtract(from_unsigned(s), all(32)), d));
    }
  }
  template <int s>
  inline void weights(Bytes* w) const {
    const Bytes third = load(p), mask = splat(4);  // bit s of byte l is bit 2 of element l
    w[0] = two_bits<s>(p + 32);
    if constexpr (s < 2) {
      w[0] = either(w[0], shift_left<2 - s>(third, mask));
    } else {
      w[0] = either(w[0], shift_right<s - 2>(third, mask));
    }
  }
  template <int s>
  inline Float scales() const { return halves(scale[2 * s], scale[2 * s + 1]); }
};

struct TQ2_0 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 66, kTop = 3, kOffset = 1;
  static constexpr bool kSigned = false, kMins = false;
  const uint8_t* p;
  Float d;
  explicit TQ2_0(const uint8_t* block) : p(block), d(half_all(block + 64)) {}
  template <int s>
  inline void weights(Bytes* w) const { w[0] = two_bits<s>(p); }
  template <int s>
  inline Float scales() const { return d; }
};

// A byte is a fraction in base 3, and its digit k the first one of 3^k times the byte modulo 256.
// Steps 0 to 4 are the digits of bytes 0-31, 5, 6 and half of 7 those of bytes 32-47, the last half
// digits 0 to 3 of bytes 48-51.
struct TQ1_0 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 54, kTop = 2, kOffset = 1;
  static constexpr bool kSigned = false, kMins = false;
  const uint8_t* p;
  Float d;
  explicit TQ1_0(const uint8_t* block) : p(block), d(half_all(block + 52)) {}

  struct Tail {
    alignas(32) uint8_t bytes[32];        // byte 32 + i, and 38 + i in the upper half
    alignas(32) uint8_t where[3][4][32];  // 255 where step 5 + i has more than n factors of 3
  };
  static constexpr Tail kTail = [] {
    Tail t{};
    for (int i = 0; i < 32; ++i) {
      t.bytes[i] = static_cast<uint8_t>(i < 16 ? i : 10 + i % 4);
      for (int step = 0; step < 3; ++step) {
        const int factors = step < 2 ? 2 * step + i / 16 : i < 16 ? 4 : i / 4 - 4;
        for (int n = 0; n < 4; ++n) t.where[step][n][i] = factors > n ? 255 : 0;
      }
    }
    return t;
  }();

  template <int s>
  inline void weights(Bytes* w) const {
    // 128 more, so that comparisons of signed bytes serve; three times 128 is 128 again.
    Bytes v = splat(128);
    if constexpr (s < 5) {
      v = add(v, load(p));
      for (int n = 0; n < s; ++n) v = add(v, add(v, v));
    } else if constexpr (s < 7) {
      v = add(v, load_halves(p + 32, p + 32));
      for (int n = 0; n < 2 * s - 9; ++n) v = add(v, both(add(v, v), load(kTail.where[s - 5][n])));
    } else {
      v = add(v, look_up(load_halves(p + 32, p + 38), load(kTail.bytes)));
      for (int n = 0; n < 4; ++n) v = add(v, both(add(v, v), load(kTail.where[2][n])));
    }
    // 1 from 86 = 256 / 3 on, 2 from 171 on.
    w[0] = subtract(subtract(splat(0), greater(v, splat(85 - 128))), greater(v, splat(170 - 128)));
  }
  template <int s>
  inline Float scales() const { return d; }
};

// Both four-bit float types: the table holds twice their values.
struct MXFP4 {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 136, kTop = 12, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  Bytes values = table(codebooks::kE2m1Doubled);
  explicit MXFP4(const uint8_t* block) : p(block) {}
  template <int s>
  inline void weights(Bytes* w) const {
    const Bytes q = load_halves(p + 34 * s + 1, p + 34 * s + 18);
    w[0] = look_up(values, shift_right<0>(q, splat(15)));
    w[1] = look_up(values, shift_right<4>(q, splat(15)));
  }
  // 2^(e - 128), from a double, in which it is no subnormal.
  static inline float scale(uint8_t e) {
    return static_cast<float>(std::bit_cast<double>((e + uint64_t{1023 - 128}) << 52));
  }
  template <int s>
  inline Float scales() const { return halves(scale(p[34 * s]), scale(p[34 * s + 17])); }
};

struct NVFP4 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 144, kTop = 12, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  Bytes values = table(codebooks::kE2m1Doubled);
  float scale[16];
  explicit NVFP4(const uint8_t* block) : p(block) {
    for (int h = 0; h < 2; ++h) {
      const uint64_t low = peek<uint32_t>(p + 72 * h), high = peek<uint32_t>(p + 72 * h + 36);
      store(scale + 8 * h, multiply(from_e4m3(low | high << 32), all(0.5f)));
    }
  }
  template <int s>
  inline void weights(Bytes* w) const {
    w[0] = look_up(values, nibbles_of_eights(p + 36 * (s / 2) + 4 + 16 * (s % 2)));
  }
  template <int s>
  inline Float scales() const { return halves(scale[2 * s], scale[2 * s + 1]); }
};

// IQ1_S and IQ1_M: entries of -1, 0 and 1, all eight moved by 1/8 up or down. Bytes are eight times
// that, 1/8 is in the scale.
struct IQ1Base {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kTop = 9, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  alignas(32) uint16_t index[32];
  explicit IQ1Base(const uint8_t* block) : p(block) {}
  // `down` is 255 where the move is down, else 0.
  template <int s>
  inline Bytes moved(Bytes down) const {
    const Bytes v =
        entries<uint64_t, 4>(codebooks::kGridIq1, [&](size_t e) { return index[4 * s + e]; });
    return add(shift_left<3>(v, splat(0xf8)), either(down, splat(1)));
  }
};

struct IQ1_S : IQ1Base {
  static constexpr int kBlockBytes = 50;
  float scale[8];
  explicit IQ1_S(const uint8_t* block) : IQ1Base(block) {
    uint64_t s[2];
    for (int h = 0; h < 2; ++h) {  // words of four times three bits of index, the scale, the sign
      const uint64_t words = peek<uint64_t>(p + 34 + 8 * h);
      sixteen_indices<3, 3>(p + 2 + 16 * h, words, index + 16 * h);
      s[h] = words >> 12 & 0x0007000700070007;
      s[h] = (s[h] | s[h] >> 8) & 0x0000ffff0000ffff;
      s[h] = (s[h] | s[h] >> 16) & 0xffffffff;
    }
    store(scale, odd_scales(s[0] | s[1] << 32, multiply(half_all(p), all(0.125f))));
  }
  template <int s>
  inline void weights(Bytes* w) const {
    w[0] = moved<s>(splat(static_cast<int8_t>(p[35 + 2 * s]) >> 7));
  }
  template <int s>
  inline Float scales() const { return all(scale[s]); }
};

struct IQ1_M : IQ1Base {
  static constexpr int kBlockBytes = 56;
  float scale[16];
  explicit IQ1_M(const uint8_t* block) : IQ1Base(block) {
    // The upper nibbles of four words are a half-precision number.
    const uint64_t words = peek<uint64_t>(p + 48);
    uint64_t bits = words >> 12 & 0x000f000f000f000f;
    bits |= bits >> 12;
    bits = (bits & 0xff) | (bits >> 24 & 0xff00);
    uint8_t half[2];
    std::memcpy(half, &bits, sizeof half);
    const Float d = multiply(half_all(half), all(0.125f));
    for (int h = 0; h < 2; ++h) {
      sixteen_indices<3, 4>(p + 16 * h, peek<uint64_t>(p + 32 + 8 * h), index + 16 * h);
      // Twice four scales of three bits, to bytes.
      uint64_t s = words >> 32 * h & 0x0fff0fff;
      s = (s | s << 16) & 0x00000fff00000fff;
      s = (s | s << 10) & 0x003f003f003f003f;
      s = (s | s << 5) & 0x0707070707070707;
      store(scale + 8 * h, odd_scales(s, d));
    }
  }
  template <int s>
  inline void weights(Bytes* w) const {
    w[0] = moved<s>(where_nibbles(peek<uint16_t>(p + 32 + 2 * s)));
  }
  template <int s>
  inline Float scales() const { return halves(scale[2 * s], scale[2 * s + 1]); }
};

// ---- The table.

template <class T>
void enter(Kernels& k, WeightType type) {
  k.types[static_cast<uint32_t>(type)] = {T::kOrder, &rows<T>};
}

// To be called on a machine that has the instructions only: this too is compiled for them.
const Kernels* kernels_32(const char* isa) {
  static Kernels k{.isa = isa, .pack = &pack_32, .types = {}};
  static const bool filled = [] {
    enter<Q8_0>(k, WeightType::kQ8_0);
    enter<Q6_K>(k, WeightType::kQ6_K);
    enter<K45<false>>(k, WeightType::kQ4_K);
    enter<K45<true>>(k, WeightType::kQ5_K);
    enter<IQ4_XS>(k, WeightType::kIQ4_XS);
    enter<IQ4_NL>(k, WeightType::kIQ4_NL);
    enter<Q2_0>(k, WeightType::kQ2_0);
    enter<IQ3_S>(k, WeightType::kIQ3_S);
    enter<XXS<true>>(k, WeightType::kIQ3_XXS);
    enter<IQ2_S>(k, WeightType::kIQ2_S);
    enter<IQ2_XS>(k, WeightType::kIQ2_XS);
    enter<XXS<false>>(k, WeightType::kIQ2_XXS);
    enter<Nibbles<false, false>>(k, WeightType::kQ4_0);
    enter<Nibbles<false, true>>(k, WeightType::kQ4_1);
    enter<Nibbles<true, false>>(k, WeightType::kQ5_0);
    enter<Nibbles<true, true>>(k, WeightType::kQ5_1);
    enter<Q2_K>(k, WeightType::kQ2_K);
    enter<Q3_K>(k, WeightType::kQ3_K);
    enter<TQ1_0>(k, WeightType::kTQ1_0);
    enter<TQ2_0>(k, WeightType::kTQ2_0);
    enter<MXFP4>(k, WeightType::kMXFP4);
    enter<NVFP4>(k, WeightType::kNVFP4);
    enter<IQ1_S>(k, WeightType::kIQ1_S);
    enter<IQ1_M>(k, WeightType::kIQ1_M);
    k.types[static_cast<uint32_t>(WeightType::kF32)].rows = &float_rows<WeightType::kF32>;
    k.types[static_cast<uint32_t>(WeightType::kF16)].rows = &float_rows<WeightType::kF16>;
    k.types[static_cast<uint32_t>(WeightType::kBF16)].rows = &float_rows<WeightType::kBF16>;
    return true;
  }();
  return filled ? &k : nullptr;
}

}  // namespace
}  // namespace esker::cpu
