// SPDX-License-Identifier: MIT
#include "backends/cpu/packed.h"

#include <cstddef>

namespace esker::cpu {

int order_element(Order order, int j, int p) {
  switch (order) {
    case Order::kQuad: return 4 * p + j;
    case Order::kNibble32: return 128 * (j / 2) + 32 * (p / 16) + 16 * (j & 1) + p % 16;
    case Order::kNibble64: return 128 * (j / 2) + 64 * (p / 32) + 32 * (j & 1) + p % 32;
    default: return 64 * j + p;
  }
}

void Packed::resize(Order to, int64_t n_values, int64_t tokens) {
  order = to;
  n = n_values;
  // A kernel may take two units a step; an odd last one is then read as zeros.
  units = (n + 2 * kUnit - 1) / (2 * kUnit) * 2;
  if (order == Order::kFloat) return;
  const auto grow = [](auto& v, int64_t size) {
    if (static_cast<int64_t>(v.size()) < size) v.resize(static_cast<size_t>(size));
  };
  grow(q, tokens * q_stride());
  grow(lanes, tokens * lane_stride());
}

}  // namespace esker::cpu
