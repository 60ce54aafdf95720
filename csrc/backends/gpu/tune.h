// SPDX-License-Identifier: MIT
//
// Times the tiled kernels on the device at hand, for `esker tune`: which tiles to try and what follows from
// the times is decided above.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backends/gpu/device.h"
#include "backends/gpu/tiles.h"

namespace esker::gpu {

// A tile fits the kernel: powers of two within a threadgroup, a table only where there is such a variant.
bool tile_fits(TileUse use, WeightType type, const Tile& tile);

struct TuneCase {
  TileUse use = TileUse::kMatvec;
  WeightType type = WeightType::kF32;
  uint32_t rows = 0, cols = 0;
  uint32_t top_k = 10;      // experts a token, of kGateUp and kDown
  uint64_t bytes = 0;       // of weights at least, gone through in turn, so that no cache holds them
  uint32_t launches = 16;   // of one measurement, in one command: their mean counts
  uint32_t repeats = 5;
};

struct TuneTimes {
  uint64_t bytes = 0;                          // of weights that a launch reads
  std::vector<int64_t> anchor_ns;              // [repeats + 1]: the first tile before and after each round
  std::vector<std::vector<int64_t>> tile_ns;   // [tiles][repeats], of a launch
  std::vector<KernelResources> resources;      // [tiles]
};

// All tiles in turn, `repeats` times after a round that is not counted; the first tile is the anchor, run
// once more between rounds, whose drift shows how far the device's clock wandered.
// Throws Error(kUsage) where a tile does not fit, Error(kDevice) where the device fails.
TuneTimes tune(Device& device, const TuneCase& what, const std::vector<Tile>& tiles,
               const std::function<void()>& poll);

}  // namespace esker::gpu
