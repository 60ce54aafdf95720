// SPDX-License-Identifier: MIT
//
// A quick 64-bit hash for fingerprints and checksums (not against malice): eight bytes at a time
// through the finaliser of splitmix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace esker {

class Hash {
 public:
  void add(uint64_t v) {
    state_ = (state_ ^ v) + 0x9E3779B97F4A7C15u;
    state_ = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9u;
    state_ = (state_ ^ (state_ >> 27)) * 0x94D049BB133111EBu;
    state_ ^= state_ >> 31;
  }
  void add(const void* data, size_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
    add(uint64_t{n});
    for (; n >= 8; n -= 8, p += 8) {
      uint64_t v;
      std::memcpy(&v, p, 8);
      add(v);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, p, n);
    add(rest);
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace esker
