// SPDX-License-Identifier: MIT
//
// Kernels over 32 bytes at a time, for the file of an instruction set (AVX2, NEON) to include once
// it has defined the primitives: load, both, shift_right, look_up, products, ... Here are the loop
// and the types that most models use; the others and the table are in kernels_32_more.h.
//
// A unit of 256 weights is read in `steps` of half an accumulator: step s is the half s % 2 (32
// bytes, 8 lanes) of accumulator s / 2. A type's constructor reads the block's scales; weights<s>
// unpacks the bytes of a step, scales<s> the scale of each lane. Bytes are signed (kSigned), or
// they are unsigned and kOffset too large, which is put right with the sum of x. |byte| <= kTop.
//
// Everything has internal linkage: nothing compiled here may serve a machine without the
// instructions.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cpu/pack_32.h"
#include "formats/codebooks.inc"

namespace esker::cpu {
namespace {

// 8 KB ahead hides the memory's latency, as measured for AVX-512.
constexpr int64_t kPrefetchBytes = 8192;

template <class T>
inline T peek(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline float lane(Float v) {
  float f[8];
  store(f, v);
  return f[0];
}

constexpr uint64_t kLowNibbles = 0x0f0f0f0f0f0f0f0f;

// Eight nibbles to eight bytes.
inline uint64_t spread_nibbles(uint64_t v) {
  v = (v | v << 16) & 0x0000ffff0000ffff;
  v = (v | v << 8) & 0x00ff00ff00ff00ff;
  return (v | v << 4) & kLowNibbles;
}

struct Q8_0 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 272, kTop = 128, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  explicit Q8_0(const uint8_t* block) : p(block) {}
  template <int s>
  inline void weights(Bytes* w) const { w[0] = load(p + 34 * s + 2); }
  template <int s>
  inline Float scales() const { return half_all(p + 34 * s); }
};

struct Q6_K {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 210, kTop = 63, kOffset = 32;
  static constexpr bool kSigned = false, kMins = false;
  const uint8_t* p;
  float scale[16];
  explicit Q6_K(const uint8_t* block) : p(block) {
    const Float d = half_all(p + 208);
    store(scale, multiply(from_signed(p + 192), d));
    store(scale + 8, multiply(from_signed(p + 200), d));
  }
  template <int s>
  inline void weights(Bytes* w) const {
    constexpr int h = s / 4, i = s % 4;
    const Bytes low = shift_right<4 * (i / 2)>(load(p + 64 * h + 32 * (i & 1)), splat(15));
    const Bytes bits = load(p + 128 + 32 * h), mask = splat(0x30);
    if constexpr (i < 2) {
      w[0] = either(low, shift_left<4 - 2 * i>(bits, mask));
    } else {
      w[0] = either(low, shift_right<2 * i - 4>(bits, mask));
    }
  }
  template <int s>
  inline Float scales() const { return halves(scale[2 * s], scale[2 * s + 1]); }
};

// Q4_K and Q5_K: sub-blocks of 32 with a scale and a minimum of 6 bits each.
template <bool kFive>
struct K45 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = kFive ? 176 : 144, kTop = kFive ? 31 : 15, kOffset = 0;
  static constexpr bool kSigned = false, kMins = true;
  const uint8_t* p;
  float scale[8], min[8];
  explicit K45(const uint8_t* block) : p(block) {
    const uint32_t a = peek<uint32_t>(p + 4), b = peek<uint32_t>(p + 8), c = peek<uint32_t>(p + 12);
    const uint64_t sc = (a & 0x3f3f3f3fu) |
                        uint64_t{(c & 0x0f0f0f0fu) | ((a >> 6 & 0x03030303u) << 4)} << 32;
    const uint64_t mn = (b & 0x3f3f3f3fu) |
                        uint64_t{(c >> 4 & 0x0f0f0f0fu) | ((b >> 6 & 0x03030303u) << 4)} << 32;
    store(scale, multiply(from_unsigned(sc), half_all(p)));
    store(min, multiply(from_unsigned(mn), half_all(p + 2)));
  }
  template <int s>
  inline void weights(Bytes* w) const {
    w[0] = shift_right<4 * (s & 1)>(load(p + (kFive ? 48 : 16) + 32 * (s / 2)), splat(15));
    if constexpr (kFive) {  // bit s of byte l is bit 4 of element l
      const Bytes high = load(p + 16), mask = splat(16);
      if constexpr (s < 4) {
        w[0] = either(w[0], shift_left<4 - s>(high, mask));
      } else {
        w[0] = either(w[0], shift_right<s - 4>(high, mask));
      }
    }
  }
  template <int s>
  inline Float scales() const { return all(scale[s]); }
  template <int s>
  inline Float mins() const { return all(min[s]); }
};

struct IQ4_XS {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 136, kTop = 127, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  Bytes values = table(codebooks::kIq4Values);
  float scale[8];
  explicit IQ4_XS(const uint8_t* block) : p(block) {
    // Four low bits of each scale and two high ones, spread to bytes.
    const uint64_t low = spread_nibbles(peek<uint32_t>(p + 4));
    uint64_t high = peek<uint16_t>(p + 2);
    high = (high | high << 24) & 0x000000ff000000ff;
    high = (high | high << 12) & 0x000f000f000f000f;
    high = (high | high << 6) & 0x0303030303030303;
    store(scale, multiply(subtract(from_unsigned(low | high << 4), all(32)), half_all(p)));
  }
  template <int s>
  inline void weights(Bytes* w) const {
    const Bytes q = load(p + 8 + 32 * s);
    w[0] = look_up(values, shift_right<0>(q, splat(15)));
    w[1] = look_up(values, shift_right<4>(q, splat(15)));
  }
  template <int s>
  inline Float scales() const { return halves(scale[2 * s], scale[2 * s + 1]); }
};

// Blocks of 32: a half and 16 bytes of nibbles.
struct IQ4_NL {
  static constexpr Order kOrder = Order::kNibble32;
  static constexpr int kBlockBytes = 144, kTop = 127, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  Bytes values = table(codebooks::kIq4Values);
  explicit IQ4_NL(const uint8_t* block) : p(block) {}
  template <int s>
  inline void weights(Bytes* w) const {
    const Bytes q = load_halves(p + 36 * s + 2, p + 36 * s + 20);
    w[0] = look_up(values, shift_right<0>(q, splat(15)));
    w[1] = look_up(values, shift_right<4>(q, splat(15)));
  }
  template <int s>
  inline Float scales() const { return half_halves(p + 36 * s, p + 36 * s + 18); }
};

struct Q2_0 {
  static constexpr Order kOrder = Order::kQuad;
  static constexpr int kBlockBytes = 72, kTop = 3, kOffset = 1;
  static constexpr bool kSigned = false, kMins = false;
  const uint8_t* p;
  explicit Q2_0(const uint8_t* block) : p(block) {}
  template <int s>
  inline void weights(Bytes* w) const {
    const Bytes q = load_halves(p + 36 * s + 2, p + 36 * s + 20), low2 = splat(3);
    w[0] = shift_right<0>(q, low2), w[1] = shift_right<2>(q, low2);
    w[2] = shift_right<4>(q, low2), w[3] = shift_right<6>(q, low2);
  }
  template <int s>
  inline Float scales() const { return half_halves(p + 36 * s, p + 36 * s + 18); }
};

// ---- Codebook types: entries of the grids as they stand, in natural order, then the signs.

template <class Word, size_t kCount, class Grid, class Index>
inline Bytes entries(const Grid& grid, Index index) {
  Word w[kCount];
  for (size_t e = 0; e < kCount; ++e) std::memcpy(&w[e], grid[index(e)], sizeof(Word));
  return from_words(w);
}
// Scales of the form (2 s + 1) d for eight bytes s.
inline Float odd_scales(uint64_t s, Float d) {
  return multiply(add_product(all(1), from_unsigned(s), all(2)), d);
}

struct IQ3_S {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = 110, kTop = 15, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  float scale[8];
  explicit IQ3_S(const uint8_t* block) : p(block) {
    store(scale, odd_scales(spread_nibbles(peek<uint32_t>(p + 106)), half_all(p)));
  }
  template <int s>
  inline void weights(Bytes* w) const {
    alignas(16) uint16_t index[8];
    nine_bits(p + 2 + 8 * s, p[66 + s], index);
    const Bytes v = entries<uint32_t, 8>(codebooks::kGridIq3S, [&](size_t e) { return index[e]; });
    w[0] = negate(v, peek<uint32_t>(p + 74 + 4 * s));
  }
  template <int s>
  inline Float scales() const { return all(scale[s]); }
};

// IQ3_XXS and IQ2_XXS: 28 bits of signs and 4 of scale in a word for 32 weights.
template <bool kThree>
struct XXS {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kBlockBytes = kThree ? 98 : 66, kTop = kThree ? 62 : 43, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  float d;
  explicit XXS(const uint8_t* block)
      : p(block), d((kThree ? 0.25f : 0.125f) * lane(half_all(block))) {}
  template <int s>
  inline uint32_t word() const { return peek<uint32_t>(p + (kThree ? 66 + 4 * s : 6 + 8 * s)); }
  template <int s>
  inline void weights(Bytes* w) const {
    const auto index = [&](size_t e) { return p[2 + 8 * s + e]; };
    if constexpr (kThree) {
      w[0] = negate_even(entries<uint32_t, 8>(codebooks::kGridIq3Xxs, index), word<s>());
    } else {
      w[0] = negate_even(entries<uint64_t, 4>(codebooks::kGridIq2Xxs, index), word<s>());
    }
  }
  template <int s>
  inline Float scales() const {
    return all(d * static_cast<float>(static_cast<int>(word<s>() >> 28) * 2 + 1));
  }
};

// IQ2_XS and IQ2_S: a byte of two scales for 32 weights.
struct IQ2Base {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kTop = 43, kOffset = 0;
  static constexpr bool kSigned = true, kMins = false;
  const uint8_t* p;
  float even[8], odd[8];
  IQ2Base(const uint8_t* block, int at) : p(block) {
    const uint64_t s = peek<uint64_t>(p + at);
    const Float d = multiply(half_all(p), all(0.125f));
    store(even, odd_scales(s & kLowNibbles, d));
    store(odd, odd_scales(s >> 4 & kLowNibbles, d));
  }
  template <int s>
  inline Float scales() const { return halves(even[s], odd[s]); }
};

struct IQ2_XS : IQ2Base {
  static constexpr int kBlockBytes = 74;
  explicit IQ2_XS(const uint8_t* block) : IQ2Base(block, 66) {}
  template <int s>
  inline void weights(Bytes* w) const {
    const Bytes v = entries<uint64_t, 4>(codebooks::kGridIq2Xs, [&](size_t e) {
      return peek<uint16_t>(p + 2 + 8 * s + 2 * e) & 511;
    });
    // The upper seven bits of four words, side by side.
    uint64_t signs = peek<uint64_t>(p + 2 + 8 * s) >> 9 & 0x007f007f007f007f;
    signs = (signs | signs >> 9) & 0x00003fff00003fff;
    w[0] = negate_even(v, static_cast<uint32_t>(signs | signs >> 18));
  }
};

struct IQ2_S : IQ2Base {
  static constexpr int kBlockBytes = 82;
  explicit IQ2_S(const uint8_t* block) : IQ2Base(block, 74) {}
  template <int s>
  inline void weights(Bytes* w) const {
    const uint32_t high = uint32_t{p[66 + s]} << 8;
    const Bytes v = entries<uint64_t, 4>(codebooks::kGridIq2S, [&](size_t e) {
      return p[2 + 4 * s + e] | (high >> (2 * e) & 768);
    });
    w[0] = negate(v, peek<uint32_t>(p + 34 + 4 * s));
  }
};

// ---- The one loop.

template <class T>
struct Shape {
  static constexpr int kAccs = order_accumulators(T::kOrder), kPerAcc = 4 / kAccs;
};

// Two sums a token, for steps of even and odd number: one would wait for its own additions.
template <int kTokens>
struct Sums {
  Float of[kTokens][2];
};

template <class T, int kParts, int kTokens, int s>
inline void add_step(Sums<kTokens>& sums, const T& block, const uint8_t* const* q,
                     const Lanes* const* lanes, int64_t unit) {
  using S = Shape<T>;
  constexpr int kHalf = s % 2, kAcc = s / 2;
  Bytes w[S::kPerAcc];
  block.template weights<s>(w);
  const Float scale = block.template scales<s>();
  for (int t = 0; t < kTokens; ++t) {
    const uint8_t* x = q[t] + 256 * kParts * unit + 64 * kParts * S::kPerAcc * kAcc + 32 * kHalf;
    const Lanes& l = lanes[t][unit * S::kAccs + kAcc];
    Float& sum = sums.of[t][kHalf];
    Float v = multiply(products<S::kPerAcc, kParts, T::kTop, T::kSigned>(w, x),
                       load(l.scale + 8 * kHalf));
    if constexpr (T::kOffset != 0) {
      v = subtract_product(v, load(l.sum + 8 * kHalf), all(T::kOffset));
    }
    sum = add_product(sum, v, scale);
    if constexpr (T::kMins) {
      sum = subtract_product(sum, load(l.sum + 8 * kHalf), block.template mins<s>());
    }
  }
}

template <class T, int kParts, int kTokens, int... kSteps>
inline void add_unit(Sums<kTokens>& sums, const uint8_t* p, const uint8_t* const* q,
                     const Lanes* const* lanes, int64_t unit,
                     std::integer_sequence<int, kSteps...>) {
  const T block(p);
  (add_step<T, kParts, kTokens, kSteps>(sums, block, q, lanes, unit), ...);
}

// Flattened: a step that is called instead of inlined passes its bytes through memory.
template <class T, int kParts, int kTokens>
[[gnu::flatten]] void rows_of(const RowsCall& c, int64_t first) {
  const Packed& x = *c.x;
  constexpr std::make_integer_sequence<int, 2 * Shape<T>::kAccs> kSteps;
  const uint8_t* q[kTokens];
  const Lanes* lanes[kTokens];
  float* y[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const int64_t v = c.vector(first + t);
    q[t] = x.q.data() + v * x.q_stride();
    lanes[t] = x.lanes.data() + v * x.lane_stride();
    y[t] = c.y + c.place(first + t) * c.y_stride;
  }
  const int64_t whole = static_cast<int64_t>(c.row_bytes) / T::kBlockBytes;
  const int64_t rest = static_cast<int64_t>(c.row_bytes) % T::kBlockBytes;
  for (int64_t r = 0; r < c.n_rows; ++r) {
    const uint8_t* p = c.w + static_cast<uint64_t>(r) * c.row_bytes;
    Sums<kTokens> sums;
    for (auto& of : sums.of) of[0] = of[1] = zero();
    for (int64_t unit = 0; unit < whole; ++unit, p += T::kBlockBytes) {
      for (int line = 0; line < T::kBlockBytes; line += 64) prefetch(p + kPrefetchBytes + line);
      add_unit<T, kParts, kTokens>(sums, p, q, lanes, unit, kSteps);
    }
    if (rest != 0) {  // a row that is no whole number of units: the missing blocks are zeros
      uint8_t last[T::kBlockBytes] = {};
      std::memcpy(last, p, static_cast<size_t>(rest));
      add_unit<T, kParts, kTokens>(sums, last, q, lanes, whole, kSteps);
    }
    for (int t = 0; t < kTokens; ++t) y[t][r] = total(add(sums.of[t][0], sums.of[t][1]));
  }
}

// Four tokens share what is unpacked: more have no registers.
template <class T, int kParts>
void rows_in(const RowsCall& c) {
  int64_t t = 0;
  for (; t + 4 <= c.tokens; t += 4) rows_of<T, kParts, 4>(c, t);
  for (; t < c.tokens; ++t) rows_of<T, kParts, 1>(c, t);
}
template <class T>
void rows(const RowsCall& c) {
  switch (c.x->parts) {
    case 1: return rows_in<T, 1>(c);
    case 2: return rows_in<T, 2>(c);
    default: return rows_in<T, 3>(c);
  }
}

// ---- Float types: read as they are.

template <WeightType kType>
inline Float load_floats(const uint8_t* p) {
  if constexpr (kType == WeightType::kF32) {
    return load(reinterpret_cast<const float*>(p));
  } else if constexpr (kType == WeightType::kF16) {
    return half_each(p);
  } else {
    return bfloat_each(p);
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
    Sums<kTokens> sums;
    for (auto& of : sums.of) of[0] = of[1] = zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      prefetch(p + i * kBytes + kPrefetchBytes);
      const Float w0 = load_floats<kType>(p + i * kBytes);
      const Float w1 = load_floats<kType>(p + (i + 8) * kBytes);
      for (int t = 0; t < kTokens; ++t) {
        sums.of[t][0] = add_product(sums.of[t][0], w0, load(x[t] + i));
        sums.of[t][1] = add_product(sums.of[t][1], w1, load(x[t] + i + 8));
      }
    }
    for (; i < n; i += 8) {
      const size_t left = static_cast<size_t>(std::min<int64_t>(8, n - i));
      alignas(32) uint8_t bytes_left[32] = {};
      std::memcpy(bytes_left, p + i * kBytes, left * kBytes);
      const Float w0 = load_floats<kType>(bytes_left);
      for (int t = 0; t < kTokens; ++t) {
        float tail[8] = {};
        std::memcpy(tail, x[t] + i, left * sizeof(float));
        sums.of[t][0] = add_product(sums.of[t][0], w0, load(tail));
      }
    }
    for (int t = 0; t < kTokens; ++t) y[t][r] = total(add(sums.of[t][0], sums.of[t][1]));
  }
}

template <WeightType kType>
void float_rows(const RowsCall& c) {
  int64_t t = 0;
  for (; t + 4 <= c.tokens; t += 4) float_rows_of<kType, 4>(c, t);
  for (; t < c.tokens; ++t) float_rows_of<kType, 1>(c, t);
}

}  // namespace
}  // namespace esker::cpu
