// SPDX-License-Identifier: MIT
//
// What a device's speed is measured against, with nothing of a model: plain streaming of memory, and what it
// costs to stop for the host.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backends/gpu/device.h"

namespace esker::gpu {

struct ProbeTimes {
  std::vector<int64_t> wall_ns;    // [repeats]
  std::vector<int64_t> device_ns;  // [repeats], the device's own clock; 0 where it has none
};

// Reads two arrays and writes a third (the kernel "swiglu"), `bytes` in all, `launches` times; times are of
// one launch.
ProbeTimes probe_stream(Device& device, uint64_t bytes, uint32_t launches, uint32_t repeats,
                        const std::function<void()>& poll);

// How the segments of a window end.
enum class Handshake : uint8_t {
  kNone,     // not at all: launches behind each other
  kBare,     // signal, then wait for the host, which answers at once
  kCovered,  // work between signal and wait, during which the host answers
};

// A window of `segments`, each a small launch and `work_bytes` of streaming; with kBare the streaming comes
// before the signal, with kCovered between signal and wait: what they add to kNone is the handshakes' cost.
ProbeTimes probe_handshake(Device& device, Handshake how, uint32_t segments, uint64_t work_bytes,
                           uint32_t repeats, const std::function<void()>& poll);

}  // namespace esker::gpu
