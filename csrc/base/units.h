// SPDX-License-Identifier: MIT
//
// Small integer helpers used everywhere sizes are computed.
#pragma once

#include <cstdint>
#include <string>

namespace esker {

constexpr uint64_t div_ceil(uint64_t n, uint64_t d) { return (n + d - 1) / d; }
constexpr uint64_t align_up(uint64_t n, uint64_t a) { return div_ceil(n, a) * a; }
constexpr uint64_t align_down(uint64_t n, uint64_t a) { return n / a * a; }

// The page an arena slot is measured in (DESIGN section 1); also Apple Silicon's page.
inline constexpr uint64_t kSlotPageBytes = 16384;

// "6.80 GB", "16.0 KB": decimal units, three digits.
std::string format_bytes(uint64_t bytes);

}  // namespace esker
