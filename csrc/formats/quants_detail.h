// SPDX-License-Identifier: MIT
//
// What quants.cpp and quants_iq.cpp share; nobody else includes it.
// Blocks may stand at any address: every load goes by bytes, little end first.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi/weight_types.h"
#include "base/half.h"
#include "formats/quants.h"

namespace esker::quants {

// The promise that blocks and output do not overlap; without it no loop here is vectorised.
#define ESKER_RESTRICT __restrict

inline uint16_t load_u16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] | p[1] << 8);
}

inline uint32_t load_u32(const uint8_t* p) {
  return load_u16(p) | static_cast<uint32_t>(load_u16(p + 2)) << 16;
}

inline float load_half(const uint8_t* p) { return half_to_float(load_u16(p)); }

using BlockFn = void (*)(const uint8_t* ESKER_RESTRICT block, float* ESKER_RESTRICT to);

// A decoder made of the decoder of one block.
template <WeightType kType, BlockFn kDecodeBlock>
void decode_blocks(const uint8_t* blocks, float* to, int64_t n) {
  constexpr WeightTypeInfo kInfo = weight_type_info(kType);
  const int64_t n_blocks = n / kInfo.block_elements;
  for (int64_t i = 0; i < n_blocks; ++i) {
    kDecodeBlock(blocks + i * kInfo.block_bytes, to + i * kInfo.block_elements);
  }
}

// A codebook of 16 small integers as floats: saves the conversion in loops that look up.
constexpr std::array<float, 16> as_floats(const int8_t (&values)[16]) {
  std::array<float, 16> floats{};
  for (size_t i = 0; i < 16; ++i) floats[i] = static_cast<float>(values[i]);
  return floats;
}

// The decoder of a type whose name begins with IQ, or null.
DecodeFn iq_decoder(WeightType type);

}  // namespace esker::quants
