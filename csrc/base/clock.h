// SPDX-License-Identifier: MIT
//
// Monotonic time in nanoseconds: the only clock that counters use.
#pragma once

#include <chrono>
#include <cstdint>

namespace esker {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace esker
