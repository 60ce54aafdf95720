// SPDX-License-Identifier: MIT
//
// Scalar decoders of the IQ family: values from a codebook instead of an even ladder.
// Layouts: SPEC 9.3. In all of them d is the block's scale and s a sub-block's small integer; the
// products are rounded to float32 one by one, in the gguf package's order.
//
// Signs: the grids hold magnitudes 1..62 in int8. Eight of them are loaded as one 64-bit word and
// negated where their sign bit is set, which is exact and leaves one conversion and one product.
#include <array>

#include "formats/codebooks.inc"
#include "formats/quants_detail.h"

namespace esker::quants {
namespace {

// Entry b: byte j is 0xff where bit j of b is set. Bytes in memory order, as the grids are.
constexpr std::array<std::array<uint8_t, 8>, 256> kSignBytes = [] {
  std::array<std::array<uint8_t, 8>, 256> table{};
  for (size_t b = 0; b < 256; ++b) {
    for (size_t j = 0; j < 8; ++j) table[b][j] = (b >> j & 1) != 0 ? 0xff : 0;
  }
  return table;
}();

// to[0..8) = d times eight magnitudes with their signs (bit j = 1: value j is negative).
inline void write_signed(uint64_t magnitudes, uint8_t signs, float d, float* ESKER_RESTRICT to) {
  uint64_t mask;
  std::memcpy(&mask, kSignBytes[signs].data(), 8);
  // -x = ~x + 1; no carry leaves a byte, because x is at least 1.
  const uint64_t word = (magnitudes ^ mask) + (mask & 0x0101010101010101u);
  int8_t values[8];
  std::memcpy(values, &word, 8);
  for (int j = 0; j < 8; ++j) to[j] = d * static_cast<float>(values[j]);
}

inline uint64_t row_of_8(const int8_t (&row)[8]) {
  uint64_t word;
  std::memcpy(&word, row, 8);
  return word;
}

inline uint64_t rows_of_4(const int8_t (&first)[4], const int8_t (&second)[4]) {
  int8_t both[8];
  std::memcpy(both, first, 4);
  std::memcpy(both + 4, second, 4);
  return row_of_8(both);
}

inline float quarter_scale(float d, int s) { return d * (0.5f + static_cast<float>(s)) * 0.25f; }

// d, then for each 32 values a word of four grid indices and one of four 7-bit signs and s.
void block_iq2_xxs(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int i = 0; i < 8; ++i) {
    const uint8_t* indices = block + 2 + 8 * i;
    const uint32_t word = load_u32(indices + 4);
    const float scale = quarter_scale(d, static_cast<int>(word >> 28));
    for (int k = 0; k < 4; ++k) {
      write_signed(row_of_8(codebooks::kGridIq2Xxs[indices[k]]),
                   codebooks::kSigns[word >> 7 * k & 127], scale, to + 32 * i + 8 * k);
    }
  }
}

// d, 32 words of 9 bits grid index and 7 bits sign, 8 bytes of s (a nibble for 16 values).
void block_iq2_xs(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int i = 0; i < 16; ++i) {
    const float scale = quarter_scale(d, block[66 + i / 2] >> i % 2 * 4 & 15);
    for (int k = 2 * i; k < 2 * i + 2; ++k) {
      const uint16_t word = load_u16(block + 2 + 2 * k);
      write_signed(row_of_8(codebooks::kGridIq2Xs[word & 511]), codebooks::kSigns[word >> 9],
                   scale, to + 8 * k);
    }
  }
}

// d, 32 bytes of grid index, 32 of sign, 8 of two more index bits, 8 of s as IQ2_XS.
void block_iq2_s(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int i = 0; i < 16; ++i) {
    const float scale = quarter_scale(d, block[74 + i / 2] >> i % 2 * 4 & 15);
    for (int k = 2 * i; k < 2 * i + 2; ++k) {
      const int high = block[66 + k / 4] >> k % 4 * 2 & 3;
      write_signed(row_of_8(codebooks::kGridIq2S[block[2 + k] | high << 8]), block[34 + k], scale,
                   to + 8 * k);
    }
  }
}

// d, 64 bytes of grid index (4 values each), 8 words of four 7-bit signs and s.
void block_iq3_xxs(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int i = 0; i < 8; ++i) {
    const uint8_t* indices = block + 2 + 8 * i;
    const uint32_t word = load_u32(block + 66 + 4 * i);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    for (int k = 0; k < 4; ++k) {
      write_signed(rows_of_4(codebooks::kGridIq3Xxs[indices[2 * k]],
                             codebooks::kGridIq3Xxs[indices[2 * k + 1]]),
                   codebooks::kSigns[word >> 7 * k & 127], scale, to + 32 * i + 8 * k);
    }
  }
}

// d, 64 bytes of grid index (4 values each), 8 of one more index bit, 32 of sign, 4 of s.
void block_iq3_s(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int i = 0; i < 8; ++i) {
    const uint8_t* indices = block + 2 + 8 * i;
    const int high = block[66 + i];
    const int s = block[106 + i / 2] >> i % 2 * 4 & 15;
    const float scale = d * static_cast<float>(1 + 2 * s);
    for (int k = 0; k < 4; ++k) {
      const int first = indices[2 * k] | (high >> 2 * k & 1) << 8;
      const int second = indices[2 * k + 1] | (high >> (2 * k + 1) & 1) << 8;
      write_signed(rows_of_4(codebooks::kGridIq3S[first], codebooks::kGridIq3S[second]),
                   block[74 + 4 * i + k], scale, to + 32 * i + 8 * k);
    }
  }
}

// to[0..8) = d times a grid row of -1, 0, 1 moved by delta.
inline void write_iq1(int index, float delta, float d, float* ESKER_RESTRICT to) {
  int8_t values[8];
  std::memcpy(values, codebooks::kGridIq1[index], 8);
  for (int j = 0; j < 8; ++j) to[j] = d * (static_cast<float>(values[j]) + delta);
}

constexpr float kIq1Delta = 0.125f;

// d, 32 bytes of grid index, 8 words: four times 3 more index bits, 3 bits s, the sign of delta.
void block_iq1_s(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  for (int i = 0; i < 8; ++i) {
    const int word = load_u16(block + 34 + 2 * i);
    const float scale = d * static_cast<float>(2 * (word >> 12 & 7) + 1);
    const float delta = (word & 0x8000) != 0 ? -kIq1Delta : kIq1Delta;
    for (int k = 0; k < 4; ++k) {
      const int index = block[2 + 4 * i + k] | (word >> 3 * k & 7) << 8;
      write_iq1(index, delta, scale, to + 32 * i + 8 * k);
    }
  }
}

// 32 bytes of grid index, 32 nibbles of 3 more index bits and the sign of delta, 4 words of four
// 3-bit s (each for 16 values); d is scattered over the words' top nibbles.
void block_iq1_m(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  int words[4];
  for (int i = 0; i < 4; ++i) words[i] = load_u16(block + 48 + 2 * i);
  const float d = half_to_float(static_cast<uint16_t>(words[0] >> 12 | words[1] >> 12 << 4 |
                                                      words[2] >> 12 << 8 | words[3] >> 12 << 12));
  for (int i = 0; i < 16; ++i) {
    const int s = words[i / 4] >> i % 4 * 3 & 7;
    const float scale = d * static_cast<float>(2 * s + 1);
    const int nibbles = block[32 + i];
    for (int k = 0; k < 2; ++k) {
      const int nibble = nibbles >> 4 * k & 15;
      const float delta = (nibble & 8) != 0 ? -kIq1Delta : kIq1Delta;
      write_iq1(block[2 * i + k] | (nibble & 7) << 8, delta, scale, to + 16 * i + 8 * k);
    }
  }
}

constexpr std::array<float, 16> kIq4 = as_floats(codebooks::kIq4Values);

// 16 bytes: low nibbles are values 0..15, high ones 16..31.  x = d T[q]
inline void write_iq4(const uint8_t* ESKER_RESTRICT bytes, float d, float* ESKER_RESTRICT to) {
  for (int j = 0; j < 16; ++j) {
    const size_t byte = bytes[j];
    to[j] = d * kIq4[byte & 15];
    to[j + 16] = d * kIq4[byte >> 4];
  }
}

// d, 16 bytes.
void block_iq4_nl(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  write_iq4(block + 2, load_half(block), to);
}

// d, 8 times 2 high bits of s, 8 times 4 low bits of s, 128 bytes.  scale = d (s - 32)
void block_iq4_xs(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to) {
  const float d = load_half(block);
  const int high = load_u16(block + 2);
  for (int i = 0; i < 8; ++i) {
    const int s = (block[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4;
    write_iq4(block + 8 + 16 * i, d * static_cast<float>(s - 32), to + 32 * i);
  }
}

}  // namespace

DecodeFn iq_decoder(WeightType type) {
  using T = WeightType;
  switch (type) {
    case T::kIQ1_S: return decode_blocks<T::kIQ1_S, block_iq1_s>;
    case T::kIQ1_M: return decode_blocks<T::kIQ1_M, block_iq1_m>;
    case T::kIQ2_XXS: return decode_blocks<T::kIQ2_XXS, block_iq2_xxs>;
    case T::kIQ2_XS: return decode_blocks<T::kIQ2_XS, block_iq2_xs>;
    case T::kIQ2_S: return decode_blocks<T::kIQ2_S, block_iq2_s>;
    case T::kIQ3_XXS: return decode_blocks<T::kIQ3_XXS, block_iq3_xxs>;
    case T::kIQ3_S: return decode_blocks<T::kIQ3_S, block_iq3_s>;
    case T::kIQ4_NL: return decode_blocks<T::kIQ4_NL, block_iq4_nl>;
    case T::kIQ4_XS: return decode_blocks<T::kIQ4_XS, block_iq4_xs>;
    default: return nullptr;
  }
}

}  // namespace esker::quants
