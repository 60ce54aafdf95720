// SPDX-License-Identifier: MIT
//
// What a translated kernel asks of the runtime while it runs, always for the fiber at hand. msl.h and
// msl_simd.h give it Metal's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "simt.h"

namespace simt {

// A place in a .metal file. Two lanes are at the same operation when they are at the same place: hence at
// most one such operation a line. As a default argument it is the place of the call.
struct Site {
  constexpr Site(const char* what, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : what(what), file(file), line(line) {}

  const char* what;  // "simd_sum"
  const char* file;
  int line;
};

struct Position {
  uint32_t v[3];
};

// Value of a parameter that is no buffer; scalars are in v[0].
Position thread_value(Source source);

uint32_t lane_index();  // in the simdgroup
uint32_t lane_count();  // 32 but for the last simdgroup of a threadgroup of odd size

inline constexpr size_t kSlotBytes = 64;
using Slots = const unsigned char (*)[kSlotBytes];

// Waits for every lane of the simdgroup; then slot i has what lane i brought. Slots of lanes that do not
// exist are all ones. Valid until the lane's next call.
Slots exchange(const void* value, size_t bytes, const Site& site);

// `orders_memory`: what was written before is seen after; a barrier may leave that out.
void simdgroup_barrier(bool orders_memory, const Site& site);
void threadgroup_barrier(bool orders_memory, const Site& site);

// The array that the translator numbered so: one a threadgroup, poisoned when the threadgroup starts.
void* threadgroup_memory(uint32_t number, size_t bytes, const char* name, const Site& site);

// Ends the dispatch with a message.
[[noreturn]] void fail(const std::string& message);

}  // namespace simt
