// SPDX-License-Identifier: MIT
#include "backends/gpu/placed_weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "graph/small_tensors.h"

namespace esker::gpu {
namespace {

// Kernels load a block in words as wide as its size allows; a file may lie less well.
uint64_t alignment_of(WeightType type) {
  const uint64_t bytes = weight_type_info(type).block_elements == 1 ? 16 : weight_type_info(type).block_bytes;
  return std::min<uint64_t>(16, bytes & (~bytes + 1));
}

std::unique_ptr<DeviceMemory> placed_matrix(Device& device, const Weight& w, const char* what) {
  if (reinterpret_cast<uintptr_t>(w.data) % alignment_of(w.type) == 0) {
    return device.wrap(w.data, w.bytes, what);
  }
  std::unique_ptr<DeviceMemory> copy = device.allocate(w.bytes, MemoryUse::kWork, what);
  copy->write(0, w.data, w.bytes);
  return copy;
}

// What the kernels' registers and threadgroup memory are cut for; the real model has 512 experts, 10 a
// token, and heads of 256 and 128.
void check_limits(const Config& config) {
  const auto check = [](const char* what, uint32_t got, uint32_t most, uint32_t multiple) {
    if (got <= most && got % multiple == 0) return;
    raise(ErrorKind::kUsage, "gpu",
          {.what = "the kernels are not made for this model's " + std::string(what),
           .got = std::to_string(got),
           .want = "at most " + std::to_string(most) +
                   (multiple > 1 ? ", a multiple of " + std::to_string(multiple) : ""),
           .where = {},
           .hint = "run it on the cpu backend"});
  };
  check("number of experts", config.n_expert, 1024, 1);
  check("experts a token", config.n_expert_used, 32, 1);
  check("head width", config.d_head, 256, 4);
  check("index head width", config.d_index, 256, 4);
  check("delta net head width", config.d_linear_head, 256, 1);
}

// Records are read where they land.
void check_records(const Config& config, const Weights& weights) {
  for (uint32_t i = 0; i < config.n_layer; ++i) {
    const ExpertLayout& e = weights.experts(i);
    const std::pair<WeightType, uint64_t> pieces[] = {
        {e.gate_type, e.gate_offset}, {e.up_type, e.up_offset}, {e.down_type, e.down_offset}};
    for (const auto& [type, offset] : pieces) {
      if (offset % alignment_of(type) == 0) continue;
      raise(ErrorKind::kUsage, "gpu",
            {.what = "an expert's matrix begins where the kernels cannot read it",
             .got = "offset " + std::to_string(offset) + " in the record",
             .want = "a multiple of " + std::to_string(alignment_of(type)),
             .where = "layer " + std::to_string(i) + ", " + weight_type_info(type).name,
             .hint = "run it on the cpu backend, or requantise its experts to one type"});
    }
  }
}

}  // namespace

PlacedWeights::PlacedWeights(const Config& config, const Weights& weights, Device& device) {
  check_limits(config);
  check_records(config, weights);
  const SmallTensors small(config, weights);
  constexpr size_t kRoles = static_cast<size_t>(Role::kCount);
  uint64_t small_bytes = 0;
  std::vector<std::pair<size_t, WeightRef>> small_refs;
  matrices_.resize((config.n_layer + 1) * kRoles);
  small_.resize(matrices_.size());
  const auto add = [&](WeightRef ref, const Weight& w) {
    if (!w) return;
    const size_t at = place_of(ref.layer, ref.role);
    if (small.get(ref) != nullptr) {
      small_refs.emplace_back(at, ref);
      small_[at] = {nullptr, small_bytes};
      small_bytes += align_up(w.rows * w.cols * sizeof(float), 64);
    }
    wrapped_.push_back(placed_matrix(device, w, role_name(ref.role)));
    matrices_[at] = {wrapped_.back().get(), 0};
  };
  for (size_t r = 0; r < kRoles; ++r) {
    const Role role = static_cast<Role>(r);
    add({role, -1}, weights.global(role));
    for (uint32_t i = 0; i < config.n_layer; ++i) {
      add({role, static_cast<int32_t>(i)}, weights.layer(i, role));
    }
  }
  small_memory_ = device.allocate(std::max<uint64_t>(small_bytes, 64), MemoryUse::kWork, "small tensors");
  for (const auto& [at, ref] : small_refs) {
    const Weight& w = weights.get(ref);
    small_[at].memory = small_memory_.get();
    small_memory_->write(small_[at].offset_bytes, small.get(ref), w.rows * w.cols * sizeof(float));
  }
}

}  // namespace esker::gpu
