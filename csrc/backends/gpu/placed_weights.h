// SPDX-License-Identifier: MIT
//
// A model's weights where a device's kernels find them: the file's mapping, wrapped, and small tensors, decoded.
#pragma once

#include <memory>
#include <vector>

#include "backends/gpu/device.h"
#include "graph/weights.h"

namespace esker::gpu {

class PlacedWeights {
 public:
  // Throws Error(kUsage) for a model that the kernels cannot run, naming the limit.
  PlacedWeights(const Config& config, const Weights& weights, Device& device);

  // Of a layer, -1: of the model. Without memory where there is none.
  Binding matrix(int32_t layer, Role role) const { return matrices_[place_of(layer, role)]; }
  Binding small(int32_t layer, Role role) const { return small_[place_of(layer, role)]; }

 private:
  static size_t place_of(int32_t layer, Role role) {
    return static_cast<size_t>(layer + 1) * static_cast<size_t>(Role::kCount) + static_cast<size_t>(role);
  }

  std::vector<std::unique_ptr<DeviceMemory>> wrapped_;
  std::unique_ptr<DeviceMemory> small_memory_;
  std::vector<Binding> matrices_, small_;  // by place_of()
};

}  // namespace esker::gpu
