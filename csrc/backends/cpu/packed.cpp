// SPDX-License-Identifier: MIT
#include "backends/cpu/packed.h"

#include <algorithm>
#include <cstddef>

namespace esker::cpu {

uint64_t Packed::bytes_for(int64_t n_values) {
  uint64_t most = 0;
  for (const Order order : {Order::kNatural, Order::kQuad}) {
    Packed p;
    p.resize(order, 3, n_values, 0);
    most = std::max(most, static_cast<uint64_t>(p.q_stride()) +
                              static_cast<uint64_t>(p.lane_stride()) * sizeof(Lanes) +
                              static_cast<uint64_t>(p.units) * sizeof(UnitSums));
  }
  return most;
}

void Packed::resize(Order to, int to_parts, int64_t n_values, int64_t tokens) {
  order = to;
  parts = to_parts;
  n = n_values;
  // A kernel may take two units a step; an odd last one is then read as zeros.
  const int64_t span = copies() * n;
  units = (span + 2 * kUnit - 1) / (2 * kUnit) * 2;
  if (order == Order::kFloat) return;
  const auto grow = [](auto& v, int64_t size) {
    if (static_cast<int64_t>(v.size()) < size) v.resize(static_cast<size_t>(size));
  };
  grow(q, tokens * q_stride());
  grow(lanes, tokens * lane_stride());
  grow(sums, tokens * units);
}

}  // namespace esker::cpu
