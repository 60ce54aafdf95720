// SPDX-License-Identifier: MIT
//
// Activations as the integer kernels want them.
//
// A vector x is cut into groups of 32. Within a group x ~ s (128 h + l), h in -127..127 and l in
// -64..64, s = max|x| / (127 * 128): 15 bits, relative error of a product 8e-5. A kernel unpacks
// weights to bytes u = w + O (O makes them unsigned) and needs two u8 x s8 dot products on the same
// bytes. The values lie in the order in which the weight type's unpack delivers them, so that
// nothing is shuffled per weight.
//
// Units of 256 values: four vectors of 64 bytes. `accumulators` of a unit (1, 2 or 4) sum one or more
// of its vectors; lane i (4 bytes of each vector) always lies within one group of 16, so one scale a
// lane serves weights and activations.
#pragma once

#include <cstdint>
#include <vector>

namespace esker::cpu {

inline constexpr int64_t kUnit = 256;

// Which element of the unit stands at byte p of vector j.
enum class Order : uint8_t {
  kFloat,     // not packed: the kernel reads float32
  kNatural,   // 64 j + p                                          one vector an accumulator
  kQuad,      // 4 p + j                                           all four share one
  kNibble32,  // 128 (j/2) + 32 (p/16) + 16 (j&1) + p%16           two vectors an accumulator
  kNibble64,  // 128 (j/2) + 64 (p/32) + 32 (j&1) + p%32           one vector an accumulator
  kCount,
};
int order_element(Order order, int vector, int byte);
constexpr int order_accumulators(Order order) {
  return order == Order::kQuad ? 1 : order == Order::kNibble32 ? 2 : 4;
}

// T vectors of n values, packed one after another. Values past n are zero.
struct Packed {
  Order order = Order::kFloat;
  int64_t n = 0;
  int64_t units = 0;              // of one vector
  const float* x = nullptr;       // the source [T, n]
  std::vector<int8_t> q;          // [T, units, 4, 2, 64]: l, then h, of each vector
  std::vector<float> scale;       // [T, units, accumulators, 16] s of each lane
  std::vector<int32_t> sum;       // [T, units, accumulators, 16] sum of 128 h + l of each lane

  int64_t q_stride() const { return units * 512; }
  int64_t lane_stride() const { return units * order_accumulators(order) * 16; }
  // Room for T vectors; keeps what it has when that suffices.
  void resize(Order to, int64_t n_values, int64_t tokens);
};

}  // namespace esker::cpu
