// SPDX-License-Identifier: MIT
//
// The small tensors of a model as float32, for any backend: norms, biases, convolution kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/config.h"
#include "graph/graph.h"
#include "graph/weights.h"

namespace esker {

// Vectors in place where the file has them so, decoded once where not; convolution kernels
// [channels, taps] turned to [taps, channels], so that channels are contiguous.
class SmallTensors {
 public:
  SmallTensors(const Config& config, const Weights& weights);
  const float* get(WeightRef ref) const;  // null where the model has none or it is a matrix
  uint64_t decoded_bytes() const { return decoded_bytes_; }

 private:
  void add(const Weight& weight, const float*& slot);
  std::vector<std::vector<float>> decoded_;
  std::vector<const float*> global_;
  std::vector<std::vector<const float*>> layers_;
  uint64_t decoded_bytes_ = 0;
};

// What rotation turns by at a position: n_rope / 2 cosines, then as many sines (SPEC 6.2). The angle is
// formed in double: at position 10^5 a float angle would be off by milliradians.
void rope_turn(const Config& config, int64_t position, float* to);

}  // namespace esker
