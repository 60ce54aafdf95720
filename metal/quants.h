// SPDX-License-Identifier: MIT
//
// Decoders of the weight types: csrc/formats/quants.cpp says what the bytes mean, and these give the same
// float32 numbers. One struct a type:
//
//   kElements, kBytes   of a block; F32, F16 and BF16 are dealt with in blocks of 32 elements
//   kTable              words of its codebook, 0: it has none; codebook<T>() is the one in constant memory
//   first(part, run)    a block has kElements / 32 parts of 32 values, a part two runs of 16 consecutive
//                       elements: where in the block run 0 or 1 of a part begins
//   unpack(block, part, table, q, scale)   weights are q[0..15] * scale[0] in run 0, q[16..31] * scale[1]
//                       in run 1; a sum over q needs one product a run
//   decode(block, part, table, w)          the weights themselves
//
// A part is made of bytes that lie together, so that a lane's loads are whole. A matrix is taken to begin at a
// multiple of the power of two in its kBytes, of 16 at most: 16 for Q4_K, 2 for most, 1 for MXFP4.
//
// Where a weight is a few bits, instructions cost more time than memory, and conversions of integers most of
// all; so none is converted here. Bits f below 1024 in a 16-bit lane, two lanes to a word, are the half f 2^-24
// as they stand (subnormal, which halves keep), and float arithmetic takes halves as they are. A field that
// begins at bit p comes out 2^p times too large; the next multiply-add makes up for it without a shift.
// Scales carry the 2^24.
//
// The products are exact: 11 bits of d, at most 6 of a scale and 6 of q fit in float32's 24 (but for the last
// product of Q6_K). So neither their order matters nor whether the compiler fuses them.
#pragma once

#include <metal_stdlib>

#include "formats/codebooks_metal.h"
#include "quants_blocks.h"

using namespace metal;

// The 16 values of IQ4_NL and IQ4_XS, of a nibble times 1 / unit: a polynomial that comes within 0.44 of each
// of them, brought to the integer next to it by adding and taking off 1.5 2^23.
inline float iq4_value(float nibble, float unit) {
  const float c1 = 24.5f * unit, c2 = -1.4385f * unit * unit, c3 = 0.03626f * unit * unit * unit;
  const float c4 = 0.001449f * unit * unit * unit * unit;
  const float p = fma(fma(fma(fma(c4, nibble, c3), nibble, c2), nibble, c1), nibble, 12582912.0f - 127.0f);
  return p - 12582912.0f;
}

// Four bytes of nibbles: values of the low ones to q[0..3], of the high ones to q[16..19].
inline void put_iq4(uint word, thread float* q) {
  const uint shifted = word >> 8;
  put_four(word & 0x000f000fu, shifted & 0x000f000fu, q);
  put_four(word & 0x00f000f0u, shifted & 0x00f000f0u, q + 16);
  for (uint i = 0; i < 4; ++i) {
    q[i] = iq4_value(q[i], 16777216.0f);
    q[16 + i] = iq4_value(q[16 + i], 1048576.0f);
  }
}
template <typename Table>
inline void look_up_iq4(uint word, Table table, thread float* q) {
  for (uint i = 0; i < 4; ++i) {
    q[i] = as_type<float>(table[word >> 8 * i & 15u]);
    q[16 + i] = as_type<float>(table[word >> (8 * i + 4) & 15u]);
  }
}

// d, 16 bytes.  x = d T[q]
struct IQ4_NL : Decoder<IQ4_NL> {
  enum { kElements = 32, kBytes = 18, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = load_half(block);
    for (uint i = 0; i < 4; ++i) put_iq4(load_u32(block + 2 + 4 * i), q + 4 * i);
  }
};

// d, 8 times 2 high bits of s, 8 times 4 low bits of s, 128 bytes.  x = d (s - 32) T[q]
inline float iq4_xs_scale(uint2 head, uint part) {
  const uint s = (head.y >> 4 * part & 15u) | (head.x >> (16 + 2 * part) & 3u) << 4;
  return float(as_type<half2>(head.x).x) * float(int(s) - 32);
}
struct IQ4_XS : Decoder<IQ4_XS> {
  enum { kElements = 256, kBytes = 136, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    device const uint2* lines = (device const uint2*)block;
    scale[0] = scale[1] = iq4_xs_scale(lines[0], part);
    const uint2 a = lines[1 + 2 * part], b = lines[2 + 2 * part];
    put_iq4(a.x, q);
    put_iq4(a.y, q + 4);
    put_iq4(b.x, q + 8);
    put_iq4(b.y, q + 12);
  }
};

// The same two with their values looked up: the table's 16 words lie in 16 banks of threadgroup memory.
struct IQ4_NL_Table : Decoder<IQ4_NL_Table> {
  enum { kElements = 32, kBytes = 18, kTable = 16 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = load_half(block);
    for (uint i = 0; i < 4; ++i) look_up_iq4(load_u32(block + 2 + 4 * i), table, q + 4 * i);
  }
};

struct IQ4_XS_Table : Decoder<IQ4_XS_Table> {
  enum { kElements = 256, kBytes = 136, kTable = 16 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    device const uint2* lines = (device const uint2*)block;
    scale[0] = scale[1] = iq4_xs_scale(lines[0], part);
    const uint2 a = lines[1 + 2 * part], b = lines[2 + 2 * part];
    look_up_iq4(a.x, table, q);
    look_up_iq4(a.y, table, q + 4);
    look_up_iq4(b.x, table, q + 8);
    look_up_iq4(b.y, table, q + 12);
  }
};

// The grids of IQ2 and IQ3: four magnitudes a word. A byte is bits 5 to 12 of a half, magnitude 2^-14, so
// two of them become halves at once, and the signs are or-ed in.
//
// Four values with signs: bit 0 of `signs` negates value 0, bit 1 value 1, bit 16 value 2, bit 17 value 3.
inline void put_signed(uint magnitudes, uint signs, thread float* q) {
  put_four((magnitudes << 5 & 0x1fe01fe0u) | (signs << 15 & 0x80008000u),
           (magnitudes >> 3 & 0x1fe01fe0u) | (signs << 14 & 0x80008000u), q);
}
// Eight values; bit j of the byte `signs` negates value j. Its bits 0 to 7 and the copy at 14 to 21 never
// meet where they are read.
inline void put_signed_8(uint first, uint second, uint signs, thread float* q) {
  const uint spread = signs | signs << 14;
  put_signed(first, spread, q);
  put_signed(second, spread >> 4, q + 4);
}
// Seven signs and an eighth that makes the number of ones even.
inline uint eight_signs(uint seven) { return (seven & 127u) | (popcount(seven & 127u) & 1u) << 7; }

// 8 values of the IQ2 grids: two words an entry.
template <typename Table>
inline void put_iq2(Table table, uint index, uint signs, thread float* q) {
  put_signed_8(table[2 * index], table[2 * index + 1], signs, q);
}
inline float iq2_scale(float d, uint s) { return d * (0.5f + float(s)) * 4096.0f; }  // / 4, by 2^14

// d, then for each 32 values a word of four grid indices and one of four 7-bit signs and s.
struct IQ2_XXS : Decoder<IQ2_XXS> {
  enum { kElements = 256, kBytes = 66, kTable = 512 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    const uint indices = load_u32(block + 2 + 8 * part), word = load_u32(block + 6 + 8 * part);
    scale[0] = scale[1] = iq2_scale(load_half(block), word >> 28);
    for (uint k = 0; k < 4; ++k) put_iq2(table, indices >> 8 * k & 255u, eight_signs(word >> 7 * k), q + 8 * k);
  }
};

// d, 32 words of 9 bits grid index and 7 bits sign, 8 bytes of s (a nibble for 16 values).
struct IQ2_XS : Decoder<IQ2_XS> {
  enum { kElements = 256, kBytes = 74, kTable = 1024 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    const float d = load_half(block);
    const uint s = block[66 + part];
    scale[0] = iq2_scale(d, s & 15u);
    scale[1] = iq2_scale(d, s >> 4);
    for (uint k = 0; k < 4; ++k) {
      const uint word = load_u16(block + 2 + 8 * part + 2 * k);
      put_iq2(table, word & 511u, eight_signs(word >> 9), q + 8 * k);
    }
  }
};

// d, 32 bytes of grid index, 32 of sign, 8 of two more index bits, 8 of s as IQ2_XS.
struct IQ2_S : Decoder<IQ2_S> {
  enum { kElements = 256, kBytes = 82, kTable = 2048 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    const float d = load_half(block);
    const uint indices = load_u32(block + 2 + 4 * part), signs = load_u32(block + 34 + 4 * part);
    const uint high = uint(block[66 + part]) << 8, s = block[74 + part];
    scale[0] = iq2_scale(d, s & 15u);
    scale[1] = iq2_scale(d, s >> 4);
    for (uint k = 0; k < 4; ++k) {
      put_iq2(table, (indices >> 8 * k & 255u) | (high >> 2 * k & 0x300u), signs >> 8 * k & 255u, q + 8 * k);
    }
  }
};

// d, 64 bytes of grid index (4 values each), 8 words of four 7-bit signs and s.
struct IQ3_XXS : Decoder<IQ3_XXS> {
  enum { kElements = 256, kBytes = 98, kTable = 256 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    const uint word = load_u32(block + 66 + 4 * part);
    scale[0] = scale[1] = load_half(block) * (0.5f + float(word >> 28)) * 8192.0f;  // / 2, by 2^14
    for (uint k = 0; k < 4; ++k) {
      const uint pair = load_u16(block + 2 + 8 * part + 2 * k);
      put_signed_8(table[pair & 255u], table[pair >> 8], eight_signs(word >> 7 * k), q + 8 * k);
    }
  }
};

// d, 64 bytes of grid index (4 values each), 8 of one more index bit, 32 of sign, 4 of s.
struct IQ3_S : Decoder<IQ3_S> {
  enum { kElements = 256, kBytes = 110, kTable = 512 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    const uint signs = load_u32(block + 74 + 4 * part), high = uint(block[66 + part]) << 8;
    const uint s = uint(block[106 + (part >> 1)]) >> 4 * (part & 1u) & 15u;
    scale[0] = scale[1] = load_half(block) * float(1u + 2u * s) * 16384.0f;
    for (uint k = 0; k < 4; ++k) {
      const uint pair = load_u16(block + 2 + 8 * part + 2 * k);
      const uint first_index = (pair & 255u) | (high >> 2 * k & 256u);
      const uint second_index = (pair >> 8) | (high >> (2 * k + 1) & 256u);
      put_signed_8(table[first_index], table[second_index], signs >> 8 * k & 255u, q + 8 * k);
    }
  }
};

// 8 values of the ternary grid of IQ1, each delta off. Two entries a word, of 8 fields of 2 bits (value + 1):
// fields 0 to 3 in bits 0 to 7 and 4 to 7 in bits 16 to 23; the other entry's lie 8 bits higher.
template <typename Table>
inline void put_iq1(Table table, uint index, float delta, thread float* q) {
  const uint fields = table[index >> 1] >> 8 * (index & 1u);
  const float offset = units(delta - 1.0f);
  put_pair(fields & 0x00030003u, 1.0f, offset, q[0], q[4]);
  put_pair(fields & 0x000c000cu, 0.25f, offset, q[1], q[5]);
  put_pair(fields & 0x00300030u, 0.0625f, offset, q[2], q[6]);
  put_pair(fields & 0x00c000c0u, 0.015625f, offset, q[3], q[7]);
}
inline float iq1_delta(uint is_negative) { return is_negative != 0u ? -0.125f : 0.125f; }

// d, 32 bytes of grid index, 8 words: four times 3 more index bits, 3 bits s, the sign of delta.
struct IQ1_S : Decoder<IQ1_S> {
  enum { kElements = 256, kBytes = 50, kTable = 1024 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    const uint indices = load_u32(block + 2 + 4 * part), word = load_u16(block + 34 + 2 * part);
    scale[0] = scale[1] = in_units(load_half(block)) * float(2u * (word >> 12 & 7u) + 1u);
    const float delta = iq1_delta(word & 0x8000u);
    for (uint k = 0; k < 4; ++k) {
      put_iq1(table, (indices >> 8 * k & 255u) | (word >> 3 * k & 7u) << 8, delta, q + 8 * k);
    }
  }
};

// 32 bytes of grid index, 32 nibbles of 3 more index bits and the sign of delta, 4 words of four 3-bit s
// (each for 16 values); d is scattered over the words' top nibbles.
struct IQ1_M : Decoder<IQ1_M> {
  enum { kElements = 256, kBytes = 56, kTable = 1024 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table table, thread float* q, thread float* scale) {
    const uint2 tail = *(device const uint2*)(block + 48);
    const uint d_bits = (tail.x >> 12 & 15u) | (tail.x >> 24 & 0xf0u) | (tail.y >> 4 & 0xf00u) |
                        (tail.y >> 16 & 0xf000u);
    const float d = in_units(float(as_type<half>(ushort(d_bits))));
    const uint s = (part < 4u ? tail.x : tail.y) >> (16 * (part >> 1 & 1u) + 6 * (part & 1u));
    scale[0] = d * float(2u * (s & 7u) + 1u);
    scale[1] = d * float(2u * (s >> 3 & 7u) + 1u);
    const uint indices = *(device const uint*)(block + 4 * part);
    const uint nibbles = load_u16(block + 32 + 2 * part);
    for (uint k = 0; k < 4; ++k) {
      const uint nibble = nibbles >> 4 * k;
      put_iq1(table, (indices >> 8 * k & 255u) | (nibble & 7u) << 8, iq1_delta(nibble & 8u), q + 8 * k);
    }
  }
};

// The codebook of a type in constant memory; where it has none, a pointer that nobody reads.
template <typename T>
inline constant const uint* codebook() {
  return kIq4Table;
}
template <>
inline constant const uint* codebook<IQ2_XXS>() {
  return kIq2XxsTable;
}
template <>
inline constant const uint* codebook<IQ2_XS>() {
  return kIq2XsTable;
}
template <>
inline constant const uint* codebook<IQ2_S>() {
  return kIq2STable;
}
template <>
inline constant const uint* codebook<IQ3_XXS>() {
  return kIq3XxsTable;
}
template <>
inline constant const uint* codebook<IQ3_S>() {
  return kIq3STable;
}
template <>
inline constant const uint* codebook<IQ1_S>() {
  return kIq1Table;
}
template <>
inline constant const uint* codebook<IQ1_M>() {
  return kIq1Table;
}
