// SPDX-License-Identifier: MIT
//
// Scalar decoders of all types but the IQ family (quants_iq.cpp).
// Layouts: SPEC 9.3. In the comments q is the stored integer and d, m are the block's scales; the
// products are rounded to float32 one by one, in the order written, which is the gguf package's.
#include "formats/quants.h"

#include <array>
#include <string>

#include "base/error.h"
#include "formats/codebooks.inc"
#include "formats/quants_detail.h"

namespace esker {
namespace quants {
namespace {

// Branch-free twin of half_to_float for long rows: scaling by 2^112 moves the exponent and makes
// subnormals normal in one exact product; infinities and NaNs get their exponent back.
inline float half_to_float_row(uint16_t h) {
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  bits |= magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(bits | static_cast<uint32_t>(h & 0x8000u) << 16);
}

void decode_f32(const uint8_t* blocks, float* to, int64_t n) {
  if constexpr (std::endian::native == std::endian::little) {
    if (n > 0) std::memcpy(to, blocks, static_cast<size_t>(n) * sizeof(float));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(load_u32(blocks + 4 * i));
  }
}

void decode_f16(const uint8_t* ESKER_RESTRICT blocks, float* ESKER_RESTRICT to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = half_to_float_row(load_u16(blocks + 2 * i));
}

void decode_bf16(const uint8_t* ESKER_RESTRICT blocks, float* ESKER_RESTRICT to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = bfloat16_to_float(load_u16(blocks + 2 * i));
}

// d, 16 bytes: low nibbles are values 0..15, high ones 16..31.  x = d (q - 8)
void block_q4_0(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int j = 0; j < 16; ++j) {
    const int byte = block[2 + j];
    to[j] = d * static_cast<float>((byte & 15) - 8);
    to[j + 16] = d * static_cast<float>((byte >> 4) - 8);
  }
}

// d, m, nibbles as Q4_0.  x = d q + m
void block_q4_1(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  for (int j = 0; j < 16; ++j) {
    const int byte = block[4 + j];
    to[j] = d * static_cast<float>(byte & 15) + m;
    to[j + 16] = d * static_cast<float>(byte >> 4) + m;
  }
}

// d, 32 fifth bits, nibbles as Q4_0.  x = d (q - 16)
void block_q5_0(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  const uint32_t high = load_u32(block + 2);
  for (int j = 0; j < 16; ++j) {
    const int byte = block[6 + j];
    const int low_half = (byte & 15) | static_cast<int>(high >> j & 1) << 4;
    const int high_half = byte >> 4 | static_cast<int>(high >> (j + 16) & 1) << 4;
    to[j] = d * static_cast<float>(low_half - 16);
    to[j + 16] = d * static_cast<float>(high_half - 16);
  }
}

// d, m, then as Q5_0.  x = d q + m
void block_q5_1(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  const uint32_t high = load_u32(block + 4);
  for (int j = 0; j < 16; ++j) {
    const int byte = block[8 + j];
    const int low_half = (byte & 15) | static_cast<int>(high >> j & 1) << 4;
    const int high_half = byte >> 4 | static_cast<int>(high >> (j + 16) & 1) << 4;
    to[j] = d * static_cast<float>(low_half) + m;
    to[j + 16] = d * static_cast<float>(high_half) + m;
  }
}

// d, 32 signed bytes.  x = d q
void block_q8_0(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int j = 0; j < 32; ++j) to[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + j]));
}

// d, 16 bytes of four values each, lowest bits first.  x = d (q - 1)
void block_q2_0(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int j = 0; j < 16; ++j) {
    const int byte = block[2 + j];
    for (int k = 0; k < 4; ++k) to[4 * j + k] = d * static_cast<float>((byte >> 2 * k & 3) - 1);
  }
}

// 16 bytes of scale and minimum (nibbles), 64 bytes of 2 bits, d, dmin.
// Bits 2s, 2s+1 of bytes 32h.. are values 128h + 32s..  x = d scale q - dmin minimum
void block_q2_k(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block + 80);
  const float dmin = load_half(block + 82);
  for (int i = 0; i < 16; ++i) {  // sub-blocks of 16
    const uint8_t* bytes = block + 16 + i / 8 * 32 + i % 2 * 16;
    const int shift = i / 2 % 4 * 2;
    const float scale = d * static_cast<float>(block[i] & 15);
    const float minimum = dmin * static_cast<float>(block[i] >> 4);
    for (int j = 0; j < 16; ++j) {
      to[16 * i + j] = scale * static_cast<float>(bytes[j] >> shift & 3) - minimum;
    }
  }
}

// 32 bytes of third bits, 64 bytes of 2 bits (as Q2_K), 12 bytes of 6-bit scales, d.
// x = d (scale - 32) (q - 4): the third bit stands for 4.
void block_q3_k(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block + 108);
  const uint8_t* scales = block + 96;
  for (int i = 0; i < 16; ++i) {
    const uint8_t* bytes = block + 32 + i / 8 * 32 + i % 2 * 16;
    const uint8_t* third = block + i % 2 * 16;
    const int shift = i / 2 % 4 * 2;
    const int third_shift = i / 2;
    const int low = scales[i % 8] >> i / 8 * 4 & 15;
    const int high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int j = 0; j < 16; ++j) {
      const int q = (bytes[j] >> shift & 3) | (third[j] >> third_shift & 1) << 2;
      to[16 * i + j] = scale * static_cast<float>(q - 4);
    }
  }
}

struct ScaleAndMinimum {
  int scale;
  int minimum;
};

// The 6-bit pairs of Q4_K and Q5_K: eight of them in twelve bytes.
inline ScaleAndMinimum unpack_k_scale(const uint8_t* s, int i) {
  if (i < 4) return {s[i] & 63, s[i + 4] & 63};
  return {(s[i + 4] & 15) | s[i - 4] >> 6 << 4, s[i + 4] >> 4 | s[i] >> 6 << 4};
}

// d, dmin, 12 bytes of scales, 128 bytes: bytes 32g.. hold sub-block 2g low and 2g+1 high.
// x = d scale q - dmin minimum
void block_q4_k(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  const float dmin = load_half(block + 2);
  for (int g = 0; g < 4; ++g) {
    const uint8_t* bytes = block + 16 + 32 * g;
    const ScaleAndMinimum a = unpack_k_scale(block + 4, 2 * g);
    const ScaleAndMinimum b = unpack_k_scale(block + 4, 2 * g + 1);
    const float scale_a = d * static_cast<float>(a.scale);
    const float scale_b = d * static_cast<float>(b.scale);
    const float minimum_a = dmin * static_cast<float>(a.minimum);
    const float minimum_b = dmin * static_cast<float>(b.minimum);
    float* out = to + 64 * g;
    for (int j = 0; j < 32; ++j) {
      out[j] = scale_a * static_cast<float>(bytes[j] & 15) - minimum_a;
      out[j + 32] = scale_b * static_cast<float>(bytes[j] >> 4) - minimum_b;
    }
  }
}

// As Q4_K, with 32 bytes before the nibbles: bit i of byte j is the fifth bit in sub-block i.
void block_q5_k(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  const float dmin = load_half(block + 2);
  const uint8_t* fifth = block + 16;
  for (int i = 0; i < 8; ++i) {
    const uint8_t* bytes = block + 48 + i / 2 * 32;
    const ScaleAndMinimum s = unpack_k_scale(block + 4, i);
    const float scale = d * static_cast<float>(s.scale);
    const float minimum = dmin * static_cast<float>(s.minimum);
    const int shift = i % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      const int q = (bytes[j] >> shift & 15) | (fifth[j] >> i & 1) << 4;
      to[32 * i + j] = scale * static_cast<float>(q) - minimum;
    }
  }
}

// 128 bytes of nibbles, 64 of 2 high bits, 16 signed scales, d.  x = d scale (q - 32)
void block_q6_k(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block + 208);
  for (int i = 0; i < 16; ++i) {
    const int quarter = i / 2 % 4;  // of a half of 128 values
    const uint8_t* low = block + i / 8 * 64 + quarter % 2 * 32 + i % 2 * 16;
    const uint8_t* high = block + 128 + i / 8 * 32 + i % 2 * 16;
    const int low_shift = quarter / 2 * 4;
    const int high_shift = quarter * 2;
    const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + i]));
    for (int j = 0; j < 16; ++j) {
      const int q = (low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4;
      to[16 * i + j] = scale * static_cast<float>(q - 32);
    }
  }
}

// Powers of three shift a base-3 fraction in eight bits; its leading digit is then byte * 3 / 256.
inline float ternary(int byte, int power_of_three, float d) {
  return d * static_cast<float>((byte * power_of_three & 255) * 3 / 256 - 1);
}

// 32 + 16 bytes of five base-3 digits, 4 bytes of four, d.  x = d (digit - 1)
void block_tq1_0(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  const float d = load_half(block + 52);
  for (int k = 0; k < 5; ++k) {
    for (int j = 0; j < 32; ++j) to[32 * k + j] = ternary(block[j], kPowers[k], d);
    for (int j = 0; j < 16; ++j) to[160 + 16 * k + j] = ternary(block[32 + j], kPowers[k], d);
  }
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 4; ++j) to[240 + 4 * k + j] = ternary(block[48 + j], kPowers[k], d);
  }
}

// 64 bytes of 2 bits (order as Q2_K), d.  x = d (q - 1)
void block_tq2_0(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block + 64);
  for (int i = 0; i < 8; ++i) {
    const uint8_t* bytes = block + i / 4 * 32;
    const int shift = i % 4 * 2;
    for (int j = 0; j < 32; ++j) {
      to[32 * i + j] = d * static_cast<float>((bytes[j] >> shift & 3) - 1);
    }
  }
}

constexpr std::array<float, 16> kE2m1 = as_floats(codebooks::kE2m1Doubled);

// The shared exponent of MXFP4, halved because the table of values is doubled: 2^(e - 128).
inline float half_e8m0(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

// e, 16 bytes of nibbles as Q4_0, each a 4-bit float.
void block_mxfp4(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = half_e8m0(block[0]);
  for (int j = 0; j < 16; ++j) {
    const size_t byte = block[1 + j];
    to[j] = d * kE2m1[byte & 15];
    to[j + 16] = d * kE2m1[byte >> 4];
  }
}

// Half the value of an unsigned 8-bit float (4 bits exponent, 3 mantissa, bias 7). The top bit is
// ignored; 0x7f, its NaN, counts as 0 (0xff does not: what the package does).
constexpr float half_ue4m3(int byte) {
  if (byte == 0x7f) return 0.0f;
  const int exponent = byte >> 3 & 15;
  const int mantissa = byte & 7;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return static_cast<float>((8 + mantissa) << exponent) * 0x1p-11f;
}

constexpr std::array<float, 256> kHalfUe4m3 = [] {
  std::array<float, 256> table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = half_ue4m3(i);
  return table;
}();

// 4 scales, then for each 16 values 8 bytes of nibbles: low ones first.
void block_nvfp4(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  for (int i = 0; i < 4; ++i) {
    const float d = kHalfUe4m3[block[i]];
    for (int j = 0; j < 8; ++j) {
      const size_t byte = block[4 + 8 * i + j];
      to[16 * i + j] = d * kE2m1[byte & 15];
      to[16 * i + 8 + j] = d * kE2m1[byte >> 4];
    }
  }
}

}  // namespace
}  // namespace quants

DecodeFn weight_decoder(WeightType type) {
  using namespace quants;
  using T = WeightType;
  switch (type) {
    case T::kF32: return decode_f32;
    case T::kF16: return decode_f16;
    case T::kBF16: return decode_bf16;
    case T::kQ4_0: return decode_blocks<T::kQ4_0, block_q4_0>;
    case T::kQ4_1: return decode_blocks<T::kQ4_1, block_q4_1>;
    case T::kQ5_0: return decode_blocks<T::kQ5_0, block_q5_0>;
    case T::kQ5_1: return decode_blocks<T::kQ5_1, block_q5_1>;
    case T::kQ8_0: return decode_blocks<T::kQ8_0, block_q8_0>;
    case T::kQ2_0: return decode_blocks<T::kQ2_0, block_q2_0>;
    case T::kQ2_K: return decode_blocks<T::kQ2_K, block_q2_k>;
    case T::kQ3_K: return decode_blocks<T::kQ3_K, block_q3_k>;
    case T::kQ4_K: return decode_blocks<T::kQ4_K, block_q4_k>;
    case T::kQ5_K: return decode_blocks<T::kQ5_K, block_q5_k>;
    case T::kQ6_K: return decode_blocks<T::kQ6_K, block_q6_k>;
    case T::kTQ1_0: return decode_blocks<T::kTQ1_0, block_tq1_0>;
    case T::kTQ2_0: return decode_blocks<T::kTQ2_0, block_tq2_0>;
    case T::kMXFP4: return decode_blocks<T::kMXFP4, block_mxfp4>;
    case T::kNVFP4: return decode_blocks<T::kNVFP4, block_nvfp4>;
    default: break;
  }
  const DecodeFn decoder = iq_decoder(type);
  if (decoder == nullptr) {
    raise(ErrorKind::kFormat, "formats",
          {.what = "no decoder for this weight type",
           .got = "type id " + std::to_string(static_cast<uint32_t>(type)),
           .want = "an id of abi/weight_types.h",
           .where = "",
           .hint = ""});
  }
  return decoder;
}

}  // namespace esker
