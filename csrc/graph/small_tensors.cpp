// SPDX-License-Identifier: MIT
#include "graph/small_tensors.h"

#include <cmath>
#include <utility>

#include "formats/quants.h"

namespace esker {

SmallTensors::SmallTensors(const Config& config, const Weights& weights) {
  constexpr size_t kRoles = static_cast<size_t>(Role::kCount);
  const auto fill = [&](std::vector<const float*>& to, const auto& weight_of) {
    to.assign(kRoles, nullptr);
    for (size_t r = 0; r < kRoles; ++r) {
      const Role role = static_cast<Role>(r);
      const Weight& w = weight_of(role);
      const bool is_conv = role == Role::kConv || role == Role::kPleConv;
      if (w && (w.rows == 1 || is_conv)) add(w, to[r]);
    }
  };
  fill(global_, [&](Role r) -> const Weight& { return weights.global(r); });
  layers_.resize(config.n_layer);
  for (uint32_t i = 0; i < config.n_layer; ++i) {
    fill(layers_[i], [&](Role r) -> const Weight& { return weights.layer(i, r); });
  }
}

void SmallTensors::add(const Weight& weight, const float*& slot) {
  const bool aligned = reinterpret_cast<uintptr_t>(weight.data) % alignof(float) == 0;
  if (weight.type == WeightType::kF32 && aligned && weight.rows == 1) {
    slot = reinterpret_cast<const float*>(weight.data);
    return;
  }
  std::vector<float> values(weight.rows * weight.cols);
  weight_decoder(weight.type)(weight.data, values.data(), static_cast<int64_t>(values.size()));
  if (weight.rows > 1) {
    std::vector<float> turned(values.size());
    for (uint64_t r = 0; r < weight.rows; ++r) {
      for (uint64_t k = 0; k < weight.cols; ++k) {
        turned[k * weight.rows + r] = values[r * weight.cols + k];
      }
    }
    values = std::move(turned);
  }
  decoded_bytes_ += values.size() * sizeof(float);
  decoded_.push_back(std::move(values));
  slot = decoded_.back().data();
}

const float* SmallTensors::get(WeightRef ref) const {
  const auto role = static_cast<size_t>(ref.role);
  return ref.layer < 0 ? global_[role] : layers_[static_cast<size_t>(ref.layer)][role];
}

void rope_turn(const Config& config, int64_t position, float* to) {
  const int64_t half = config.n_rope / 2;
  for (int64_t j = 0; j < half; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(config.n_rope);
    const double angle = static_cast<double>(position) * std::pow(double{config.rope_base}, exponent);
    to[j] = static_cast<float>(std::cos(angle));
    to[half + j] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace esker
