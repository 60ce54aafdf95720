// SPDX-License-Identifier: MIT
//
// Activations as the integer kernels want them.
//
// A vector x is cut into groups of 32. Within a group x ~ s v, v an integer split into signed bytes:
// one, v = h (relative error of a product 1e-2); two, v = 128 h + l of 15 bits (8e-5); or three,
// v = 16384 h + 128 m + l of 22 bits, as exact as float32 sums are (below 1e-6); l and m in 0..127,
// h in -127..127, and s = max|x| / (largest v). A kernel unpacks weights to unsigned bytes, an offset too large, needs one
// dot product of bytes a part on the same unpacked bytes, and puts the offset right with the sum of x.
// The values lie in the order in which the weight type's unpack delivers them, so that nothing is
// shuffled per weight.
//
// Units of 256 values: four vectors of 64 bytes. `accumulators` of a unit (1, 2 or 4) sum one or more
// of its vectors; lane i (4 bytes of each vector) always lies within one group of 16, so one scale a
// lane serves weights and activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace esker::cpu {

inline constexpr int64_t kUnit = 256;

// Which element of the unit stands at byte p of vector j.
enum class Order : uint8_t {
  kFloat,     // not packed: the kernel reads float32
  kNatural,   // 64 j + p                                          one vector an accumulator
  kQuad,      // 4 p + j                                           all four share one
  kNibble32,  // 128 (j/2) + 32 (p/16) + 16 (j&1) + p%16           two vectors an accumulator
  kNibble16,  // 128 (j/2) + 16 (p/8) + 8 (j&1) + p%8              two vectors an accumulator
  kCrumb32,   // 128 (p/32) + 32 j + p%32                          one vector an accumulator
  kNibble64,  // 128 (j/2) + 64 (p/32) + 32 (j&1) + p%32           one vector an accumulator
  kCount,
};
constexpr int order_element(Order order, int j, int p) {
  switch (order) {
    case Order::kQuad: return 4 * p + j;
    case Order::kNibble32: return 128 * (j / 2) + 32 * (p / 16) + 16 * (j & 1) + p % 16;
    case Order::kNibble16: return 128 * (j / 2) + 16 * (p / 8) + 8 * (j & 1) + p % 8;
    case Order::kCrumb32: return 128 * (p / 32) + 32 * j + p % 32;
    case Order::kNibble64: return 128 * (j / 2) + 64 * (p / 32) + 32 * (j & 1) + p % 32;
    default: return 64 * j + p;
  }
}
constexpr int order_accumulators(Order order) {
  if (order == Order::kQuad) return 1;
  return order == Order::kNibble32 || order == Order::kNibble16 ? 2 : 4;
}

// What a kernel of few tokens reads of x for one accumulator.
struct alignas(64) Lanes {
  float scale[16];  // s
  float sum[16];    // of s v
};
// Of one unit, in natural order: what an offset or a minimum of the weights is multiplied with, and
// what a kernel of many tokens reads.
struct alignas(64) UnitSums {
  float of_16[16];  // sums of s v over 16 consecutive values
  float of_32[8];   // over 32
  float scale[8];   // s of 32
};

// Memory in whole cache lines: a vector of 64 bytes that crosses one costs two loads.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
};
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

// T vectors of n values, packed one after another. Values past n are zero.
struct Packed {
  Order order = Order::kFloat;
  int parts = 3;                  // bytes a value
  int64_t n = 0;
  int64_t units = 0;              // of one vector
  const float* x = nullptr;       // the source [T, n]
  Lines<uint8_t> q;               // [T, units, 4, parts, 64]: l, m, h of each vector
  Lines<Lanes> lanes;             // [T, units, accumulators]
  Lines<UnitSums> sums;           // [T, units]

  int64_t q_stride() const { return units * 256 * parts; }
  int64_t lane_stride() const { return units * order_accumulators(order); }
  // How often the vector stands there, end to start. Rows shorter than a unit are read a unit at a time,
  // and two rows of 2.5 units, say, as one of five, in kQuad order, whose unit has one accumulator only.
  int64_t copies() const {
    if (n < kUnit && kUnit % n == 0) return kUnit / n;
    return order == Order::kQuad && n % kUnit == kUnit / 2 ? 2 : 1;
  }
  // Of one vector of n values, at most.
  static uint64_t bytes_for(int64_t n_values);
  // Room for T vectors; keeps what it has when that suffices.
  void resize(Order to, int to_parts, int64_t n_values, int64_t tokens);
};

}  // namespace esker::cpu
