// SPDX-License-Identifier: MIT
//
// Activations as the integer kernels want them.
//
// A vector x is cut into groups of 32. Within a group x ~ s v, v an integer of 22 bits split into three
// bytes, v = 16384 h + 128 m + l with l and m in 0..127 and h in -127..127, s = max|x| / (127 * 16384):
// as exact as float32 sums are (relative error of a product below 1e-6). In the coarse form v has 15
// bits and two bytes, v = 128 h + l (8e-5). How h is kept is between pack and kernels of an instruction
// set: h + 128 for AVX-512 (all bytes unsigned: a kernel unpacks weights to signed bytes w, needs one
// u8 x s8 dot product a part on the same bytes, and takes 128 times the sum of w from that of the
// highest part), h for the others. The values lie in the order in which
// the weight type's unpack delivers them, so that nothing is shuffled per weight.
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

// What a kernel reads of x for one accumulator.
struct Lanes {
  float scale[16];  // s
  float sum[16];    // of s v: what a minimum of the weights is multiplied with
};

// T vectors of n values, packed one after another. Values past n are zero.
struct Packed {
  Order order = Order::kFloat;
  int parts = 3;                  // bytes a value
  int64_t n = 0;
  int64_t units = 0;              // of one vector
  const float* x = nullptr;       // the source [T, n]
  std::vector<uint8_t> q;         // [T, units, 4, parts, 64]: l, m, h (+ 128) of each vector
  std::vector<Lanes> lanes;       // [T, units, accumulators]

  int64_t q_stride() const { return units * 256 * parts; }
  int64_t lane_stride() const { return units * order_accumulators(order); }
  // Room for T vectors; keeps what it has when that suffices.
  void resize(Order to, int64_t n_values, int64_t tokens);
};

}  // namespace esker::cpu
