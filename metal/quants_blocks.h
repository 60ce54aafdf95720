// SPDX-License-Identifier: MIT
//
// Decoders of the weight types without a codebook; part of quants.h, which says what a decoder is.
#pragma once

#include <metal_stdlib>

using namespace metal;

// Blocks of most types stand at even addresses, not at multiples of 4.
inline uint load_u16(device const uchar* p) { return uint(*(device const ushort*)p); }
inline uint load_u32(device const uchar* p) {
  device const ushort* halves = (device const ushort*)p;
  return as_type<uint>(ushort2{halves[0], halves[1]});
}
inline float load_half(device const uchar* p) { return float(*(device const half*)p); }

// n fields' worth of 1, and what undoes it.
inline float units(float n) { return n * 5.9604644775390625e-8f; }
inline float in_units(float scale) { return scale * 16777216.0f; }

// Of a word with bytes 0, 1, 2, 3 as values 0, 1, 2, 3 the fields go by two: values 0 and 2, "even", at bits
// 0 and 16; values 1 and 3, "odd", likewise once the word is shifted by 8.
inline void put_pair(uint two, thread float& low, thread float& high) {
  const half2 value = as_type<half2>(two);
  low = float(value.x);
  high = float(value.y);
}
inline void put_pair(uint two, float scale, float offset, thread float& low, thread float& high) {
  const half2 value = as_type<half2>(two);
  low = fma(float(value.x), scale, offset);
  high = fma(float(value.y), scale, offset);
}
inline void put_four(uint even, uint odd, thread float* q) {
  put_pair(even, q[0], q[2]);
  put_pair(odd, q[1], q[3]);
}
inline void put_four(uint even, uint odd, float scale, float offset, thread float* q) {
  put_pair(even, scale, offset, q[0], q[2]);
  put_pair(odd, scale, offset, q[1], q[3]);
}

// Four bytes of nibbles: the low ones go to q[0..3], the high ones to q[16..19]. q = scale * nibble / 2^24 +
// offset, each half its own.
inline void put_nibbles(uint word, float low_scale, float low_offset, float high_scale, float high_offset,
                        thread float* q) {
  const uint shifted = word >> 8;
  put_four(word & 0x000f000fu, shifted & 0x000f000fu, low_scale, low_offset, q);
  put_four(word & 0x00f000f0u, shifted & 0x00f000f0u, high_scale * 0.0625f, high_offset, q + 16);
}

// Four bytes of nibbles as above, with their fifth bits: those of the low nibbles at bits 4 and 20 of
// low_even and low_odd, of the high ones at bits 8 and 24 of high_even and high_odd; other bits are ignored.
inline void put_fives(uint word, uint low_even, uint low_odd, uint high_even, uint high_odd, float low_scale,
                      float low_offset, float high_scale, float high_offset, thread float* q) {
  const uint shifted = word >> 8;
  put_four((word & 0x000f000fu) | (low_even & 0x00100010u), (shifted & 0x000f000fu) | (low_odd & 0x00100010u),
           low_scale, low_offset, q);
  put_four((word & 0x00f000f0u) | (high_even & 0x01000100u),
           (shifted & 0x00f000f0u) | (high_odd & 0x01000100u), high_scale * 0.0625f, high_offset, q + 16);
}

// What the structs below share: T has unpack.
template <typename T>
struct Decoder {
  static uint first(uint part, uint run) { return 32u * part + 16u * run; }

  template <typename Table>
  static void decode(device const uchar* block, uint part, Table table, thread float* w) {
    float scale[2];
    T::unpack(block, part, table, w, scale);
    for (uint i = 0; i < 16; ++i) {
      w[i] *= scale[0];
      w[16 + i] *= scale[1];
    }
  }
};

// The types without blocks. at(row, i): element i of a row; rows begin at multiples of an element.
struct F32 : Decoder<F32> {
  enum { kElements = 32, kBytes = 128, kTable = 0 };

  static float at(device const uchar* row, uint i) { return ((device const float*)row)[i]; }

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 32; ++i) q[i] = at(block, i);
  }
};

struct F16 : Decoder<F16> {
  enum { kElements = 32, kBytes = 64, kTable = 0 };

  static float at(device const uchar* row, uint i) { return float(((device const half*)row)[i]); }

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 32; ++i) q[i] = at(block, i);
  }
};

struct BF16 : Decoder<BF16> {
  enum { kElements = 32, kBytes = 64, kTable = 0 };

  static float at(device const uchar* row, uint i) {
    return as_type<float>(uint(((device const ushort*)row)[i]) << 16);
  }

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 32; ++i) q[i] = at(block, i);
  }
};

// Element i of a row of F32, F16 or BF16, whose last block may be partial.
template <typename T>
inline float element(device const uchar* row, uint i) {
  return T::at(row, i);
}

// d, 16 bytes.  x = d (q - 8)
struct Q4_0 : Decoder<Q4_0> {
  enum { kElements = 32, kBytes = 18, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = in_units(load_half(block));
    for (uint i = 0; i < 4; ++i) {
      put_nibbles(load_u32(block + 2 + 4 * i), 1.0f, units(-8.0f), 1.0f, units(-8.0f), q + 4 * i);
    }
  }
};

// d, m, 16 bytes.  x = d q + m
struct Q4_1 : Decoder<Q4_1> {
  enum { kElements = 32, kBytes = 20, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    device const uint* words = (device const uint*)block;
    const half2 head = as_type<half2>(words[0]);
    const float d = in_units(float(head.x)), m = float(head.y);
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 4; ++i) put_nibbles(words[1 + i], d, m, d, m, q + 4 * i);
  }
};

// The fifth bits of 16 low and 16 high nibbles, in order, placed for put_fives four by four. Bits i and i +
// 2 of 16 are brought 16 apart: bit i stays, i + 2 goes up by 14; the two never meet.
struct FifthBits {
  uint low, high;
};
inline FifthBits fifth_bits(uint low, uint high) { return FifthBits{low | low << 14, high | high << 14}; }
inline void put_fives(uint word, FifthBits bits, uint i, float scale, float offset, thread float* q) {
  const uint low = bits.low >> 4 * i, high = bits.high >> 4 * i;
  put_fives(word, low << 4, low << 3, high << 8, high << 7, scale, offset, scale, offset, q);
}

// d, 32 fifth bits, 16 bytes.  x = d (q - 16)
struct Q5_0 : Decoder<Q5_0> {
  enum { kElements = 32, kBytes = 22, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = in_units(load_half(block));
    const FifthBits bits = fifth_bits(load_u16(block + 2), load_u16(block + 4));
    for (uint i = 0; i < 4; ++i) {
      put_fives(load_u32(block + 6 + 4 * i), bits, i, 1.0f, units(-16.0f), q + 4 * i);
    }
  }
};

// d, m, then as Q5_0.  x = d q + m
struct Q5_1 : Decoder<Q5_1> {
  enum { kElements = 32, kBytes = 24, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    device const uint* words = (device const uint*)block;
    const half2 head = as_type<half2>(words[0]);
    const float d = in_units(float(head.x)), m = float(head.y);
    const FifthBits bits = fifth_bits(words[1] & 0xffffu, words[1] >> 16);
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 4; ++i) put_fives(words[2 + i], bits, i, d, m, q + 4 * i);
  }
};

// d, 32 signed bytes.  x = d q
struct Q8_0 : Decoder<Q8_0> {
  enum { kElements = 32, kBytes = 34, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = in_units(load_half(block));
    for (uint i = 0; i < 8; ++i) {
      const uint word = load_u32(block + 2 + 4 * i) ^ 0x80808080u;  // q + 128
      put_four(word & 0x00ff00ffu, word >> 8 & 0x00ff00ffu, 1.0f, units(-128.0f), q + 4 * i);
    }
  }
};

// 16 fields of 2 bits, four to a byte, lowest first; bytes 0 and 2 in `even`, 1 and 3 in `odd` at bits 0 and
// 16. q = field / 2^24 + offset
inline void put_quarters(uint even, uint odd, float offset, thread float* q) {
  put_pair(even & 0x00030003u, 1.0f, offset, q[0], q[8]);
  put_pair(even & 0x000c000cu, 0.25f, offset, q[1], q[9]);
  put_pair(even & 0x00300030u, 0.0625f, offset, q[2], q[10]);
  put_pair(even & 0x00c000c0u, 0.015625f, offset, q[3], q[11]);
  put_pair(odd & 0x00030003u, 1.0f, offset, q[4], q[12]);
  put_pair(odd & 0x000c000cu, 0.25f, offset, q[5], q[13]);
  put_pair(odd & 0x00300030u, 0.0625f, offset, q[6], q[14]);
  put_pair(odd & 0x00c000c0u, 0.015625f, offset, q[7], q[15]);
}

// d, 16 bytes of four values each, lowest bits first.  x = d (q - 1)
struct Q2_0 : Decoder<Q2_0> {
  enum { kElements = 64, kBytes = 18, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = in_units(load_half(block));
    for (uint run = 0; run < 2; ++run) {
      const uint word = load_u32(block + 2 + 8 * part + 4 * run);
      put_quarters(word, word >> 8, units(-1.0f), q + 16 * run);
    }
  }
};

// Types with 2 bits in 64 bytes: bits 2s, 2s + 1 of bytes 32h.. are values 128h + 32s... A part is 16 of these
// bytes at s = 0, 1 or at 2, 3; two parts share the bytes.
template <typename T>
struct TwoBits : Decoder<T> {
  static uint half_of(uint part) { return part >> 2; }
  static uint column(uint part) { return part >> 1 & 1u; }  // which 16 of 32 bytes
  static uint layer(uint part) { return part & 1u; }        // s / 2
  static uint first(uint part, uint run) {
    return 128u * half_of(part) + 64u * layer(part) + 32u * run + 16u * column(part);
  }
  static uint byte(uint part) { return 32u * half_of(part) + 16u * column(part); }
};

// 16 bytes of scale and minimum (nibbles), 64 bytes of 2 bits, d, dmin.  x = d scale q - dmin minimum
struct Q2_K : TwoBits<Q2_K> {
  enum { kElements = 256, kBytes = 84, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    const half2 d = as_type<half2>(*(device const uint*)(block + 80));
    const uint pairs = *(device const uint*)(block + 8 * half_of(part) + 4 * layer(part)) >> 8 * column(part);
    const float d_units = in_units(float(d.x));
    const float scale_0 = d_units * float(pairs & 15u), scale_1 = d_units * float(pairs >> 16 & 15u);
    const float minimum_0 = float(d.y) * float(pairs >> 4 & 15u);
    const float minimum_1 = float(d.y) * float(pairs >> 20 & 15u);
    device const uint* words = (device const uint*)(block + 16 + byte(part));
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 4; ++i) {
      const uint word = words[i] >> 4 * layer(part), shifted = word >> 8;
      put_four(word & 0x00030003u, shifted & 0x00030003u, scale_0, -minimum_0, q + 4 * i);
      put_four(word & 0x000c000cu, shifted & 0x000c000cu, scale_1 * 0.25f, -minimum_1, q + 16 + 4 * i);
    }
  }
};

// 32 bytes of third bits, 64 bytes of 2 bits, 12 bytes of 6-bit scales, d.  x = d (scale - 32) (q - 4)
struct Q3_K : TwoBits<Q3_K> {
  enum { kElements = 256, kBytes = 110, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    const float d = in_units(load_half(block + 108));
    // Scale i of 16 has its low nibble in byte i mod 8 and its 2 high bits in byte 8 + i mod 4.
    device const uchar* scales = block + 96 + column(part);
    const uint low_shift = 4u * half_of(part), high_shift = 4u * half_of(part) + 2u * layer(part);
    for (uint run = 0; run < 2; ++run) {
      const uint low = uint(scales[4 * layer(part) + 2 * run]) >> low_shift & 15u;
      const uint high = uint(scales[8 + 2 * run]) >> high_shift & 3u;
      scale[run] = d * float(int(low | high << 4) - 32);
    }
    device const uchar* bytes = block + 32 + byte(part);
    device const uchar* thirds = block + 16 * column(part);
    for (uint i = 0; i < 4; ++i) {
      const uint word = load_u32(bytes + 4 * i) >> 4 * layer(part), shifted = word >> 8;
      const uint third = load_u32(thirds + 4 * i) >> high_shift, third_shifted = third >> 8;
      put_four((word & 0x00030003u) | (third << 2 & 0x00040004u),
               (shifted & 0x00030003u) | (third_shifted << 2 & 0x00040004u), 1.0f, units(-4.0f), q + 4 * i);
      put_four((word & 0x000c000cu) | (third << 3 & 0x00100010u),
               (shifted & 0x000c000cu) | (third_shifted << 3 & 0x00100010u), 0.25f, units(-4.0f),
               q + 16 + 4 * i);
    }
  }
};

// 64 bytes of 2 bits, d.  x = d (q - 1)
struct TQ2_0 : TwoBits<TQ2_0> {
  enum { kElements = 256, kBytes = 66, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = in_units(load_half(block + 64));
    device const uchar* bytes = block + byte(part);
    for (uint i = 0; i < 4; ++i) {
      const uint word = load_u32(bytes + 4 * i) >> 4 * layer(part), shifted = word >> 8;
      put_four(word & 0x00030003u, shifted & 0x00030003u, 1.0f, units(-1.0f), q + 4 * i);
      put_four(word & 0x000c000cu, shifted & 0x000c000cu, 0.25f, units(-1.0f), q + 16 + 4 * i);
    }
  }
};

// 32 + 16 bytes of five base-3 digits, 4 bytes of four, d.  x = d (digit - 1). Digit k of byte j is value
// 32k + j, of the next 16 bytes 160 + 16k + j, of the last 4 240 + 4k + j. Digit k of a byte is the leading
// one of the byte times 3^k as a base-3 fraction of 8 bits: (that * 3) >> 8.
struct TQ1_0 : Decoder<TQ1_0> {
  enum { kElements = 256, kBytes = 54, kTable = 0 };

  static uint power_of_3(uint k) { return k < 4u ? 0x1b090301u >> 8 * k & 255u : 81u; }

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = in_units(load_half(block + 52));
    for (uint run = 0; run < 2; ++run) {
      const bool is_last = part == 7 && run == 1;  // 4 bytes, a digit further at each 4 values
      const uint digit = part < 5 ? part : is_last ? 0u : 2u * (part - 5u) + run;
      const uint at = part < 5 ? 16u * run : is_last ? 48u : 32u;
      uint power = power_of_3(digit);
      for (uint i = 0; i < 4; ++i) {
        const uint word = load_u32(block + at + (is_last ? 0u : 4u * i));
        const uint even = ((word & 0x00ff00ffu) * power & 0x00ff00ffu) * 3u >> 8;
        const uint odd = ((word >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu) * 3u >> 8;
        put_four(even & 0x00030003u, odd & 0x00030003u, 1.0f, units(-1.0f), q + 16 * run + 4 * i);
        power *= is_last ? 3u : 1u;
      }
    }
  }
};

// The 6-bit pairs of Q4_K and Q5_K: eight scales and minima in twelve bytes; here two neighbouring ones,
// 2g and 2g + 1, as two bytes each. head: the first 16 bytes of the block.
struct ScalesAndMinima {
  uint scales, minima;
};
inline ScalesAndMinima unpack_k_scales(uint4 head, uint g) {
  const uint shift = 16u * (g & 1u);
  const uint a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
  if (g < 2u) return ScalesAndMinima{a & 0x3f3fu, b & 0x3f3fu};
  return ScalesAndMinima{(c & 0x0f0fu) | (a >> 2 & 0x3030u), (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u)};
}

// What Q4_K and Q5_K share: bytes 32g.. of the nibbles are sub-block 2g low and 2g + 1 high. A part is 16 of
// these bytes.
template <typename T>
struct KNibbles : Decoder<T> {
  static uint first(uint part, uint run) { return 64u * (part >> 1) + 32u * run + 16u * (part & 1u); }
};

// d, dmin, 12 bytes of scales, 128 bytes of nibbles.  x = d scale q - dmin minimum
struct Q4_K : KNibbles<Q4_K> {
  enum { kElements = 256, kBytes = 144, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    device const uint4* lines = (device const uint4*)block;
    const uint4 head = lines[0], words = lines[1 + part];
    const ScalesAndMinima s = unpack_k_scales(head, part >> 1);
    const half2 halves = as_type<half2>(head.x);
    const float d = in_units(float(halves.x)), minus = -float(halves.y);
    const float scale_0 = d * float(s.scales & 255u), scale_1 = d * float(s.scales >> 8);
    const float offset_0 = minus * float(s.minima & 255u), offset_1 = minus * float(s.minima >> 8);
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 4; ++i) put_nibbles(words[i], scale_0, offset_0, scale_1, offset_1, q + 4 * i);
  }
};

// As Q4_K, with 32 bytes before the nibbles: bit i of byte j is the fifth bit in sub-block i.
struct Q5_K : KNibbles<Q5_K> {
  enum { kElements = 256, kBytes = 176, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    device const uint4* lines = (device const uint4*)block;
    const uint4 head = lines[0], fifths = lines[1 + (part & 1u)], words = lines[3 + part];
    const uint g = part >> 1;
    const ScalesAndMinima s = unpack_k_scales(head, g);
    const half2 halves = as_type<half2>(head.x);
    const float d = in_units(float(halves.x)), minus = -float(halves.y);
    const float scale_0 = d * float(s.scales & 255u), scale_1 = d * float(s.scales >> 8);
    const float offset_0 = minus * float(s.minima & 255u), offset_1 = minus * float(s.minima >> 8);
    scale[0] = scale[1] = 1.0f;
    for (uint i = 0; i < 4; ++i) {
      const uint fifth = fifths[i] >> 2 * g, shifted = fifth >> 8;  // bits 0, 1 of a byte: low, high
      put_fives(words[i], fifth << 4, shifted << 4, fifth << 7, shifted << 7, scale_0, offset_0, scale_1,
                offset_1, q + 4 * i);
    }
  }
};

// 128 bytes of nibbles, 64 of 2 high bits, 16 signed scales, d.  x = d scale (q - 32). Bytes 64h + 32a.. are
// low at values 128h + 32a.. and high 64 values on; bits 2a and 2a + 4 of bytes 32h.. go with them.
struct Q6_K : Decoder<Q6_K> {
  enum { kElements = 256, kBytes = 210, kTable = 0 };

  static uint first(uint part, uint run) {
    return 128u * (part >> 2) + 64u * run + 32u * (part >> 1 & 1u) + 16u * (part & 1u);
  }

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    const uint h = part >> 2, a = part >> 1 & 1u, column = part & 1u;
    const float d = in_units(load_half(block + 208));
    device const char* scales = (device const char*)(block + 192 + 8 * h + 2 * a + column);
    scale[0] = d * float(scales[0]);
    scale[1] = d * float(scales[4]);
    device const uchar* low = block + 16 * part;
    device const uchar* high = block + 128 + 32 * h + 16 * column;
    for (uint i = 0; i < 4; ++i) {
      const uint word = load_u32(low + 4 * i), shifted = word >> 8;
      const uint bits = load_u32(high + 4 * i) >> 2 * a, bits_even = bits << 4, bits_odd = bits >> 4;
      put_four((word & 0x000f000fu) | (bits_even & 0x00300030u),
               (shifted & 0x000f000fu) | (bits_odd & 0x00300030u), 1.0f, units(-32.0f), q + 4 * i);
      put_four((word & 0x00f000f0u) | (bits_even & 0x03000300u),
               (shifted & 0x00f000f0u) | (bits_odd & 0x03000300u), 0.0625f, units(-32.0f), q + 16 + 4 * i);
    }
  }
};

// The 4-bit floats (2 bits exponent, 1 mantissa): sign and magnitude go to a half's sign, low exponent bits
// and high mantissa bit, which makes twice the value times 2^-15, the subnormal one included.
inline void put_e2m1(uint word, thread float* low, thread float* high) {
  put_four((word << 9 & 0x0e000e00u) | (word << 12 & 0x80008000u),
           (word << 1 & 0x0e000e00u) | (word << 4 & 0x80008000u), low);
  put_four((word << 5 & 0x0e000e00u) | (word << 8 & 0x80008000u),
           (word >> 3 & 0x0e000e00u) | (word & 0x80008000u), high);
}

// Exponent e, 16 bytes.  x = 2^(e - 128) times twice a 4-bit float. From e = 241 on, where weights are
// beyond 2^112, infinite.
struct MXFP4 : Decoder<MXFP4> {
  enum { kElements = 32, kBytes = 17, kTable = 0 };

  template <typename Table>
  static void unpack(device const uchar* block, uint, Table, thread float* q, thread float* scale) {
    scale[0] = scale[1] = as_type<float>(min(uint(block[0]) + 14u, 255u) << 23);  // 2^(e - 128 + 15)
    for (uint i = 0; i < 4; ++i) {
      device const uchar* b = block + 1 + 4 * i;  // blocks of 17 bytes: no wider load is aligned
      put_e2m1(uint(b[0]) | uint(b[1]) << 8 | uint(b[2]) << 16 | uint(b[3]) << 24, q + 4 * i, q + 16 + 4 * i);
    }
  }
};

// 4 scales, unsigned 8-bit floats (4 bits exponent, 3 mantissa), then for each 16 values 8 bytes: low
// nibbles first. x = half a scale times twice a 4-bit float; 0x7f, a NaN, counts as 0 as a scale.
struct NVFP4 : Decoder<NVFP4> {
  enum { kElements = 64, kBytes = 36, kTable = 0 };

  // Half the value times 2^15: the bits are a half's without its top exponent bit, 2^-8 times the value.
  static float scale_of(uint byte) {
    if (byte == 0x7fu) return 0.0f;
    return float(as_type<half>(ushort((byte & 0x7fu) << 7))) * 4194304.0f;
  }

  template <typename Table>
  static void unpack(device const uchar* block, uint part, Table, thread float* q, thread float* scale) {
    device const uint* words = (device const uint*)block;
    const uint scales = words[0] >> 16 * part;
    scale[0] = scale_of(scales & 255u);
    scale[1] = scale_of(scales >> 8 & 255u);
    for (uint run = 0; run < 2; ++run) {
      for (uint i = 0; i < 2; ++i) {
        put_e2m1(words[1 + 4 * part + 2 * run + i], q + 16 * run + 4 * i, q + 16 * run + 8 + 4 * i);
      }
    }
  }
};
