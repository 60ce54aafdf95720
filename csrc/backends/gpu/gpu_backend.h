// SPDX-License-Identifier: MIT
//
// A GPU as backend, whichever device it is: carries out what the lowering says, keeps in step with the
// host's turns, and holds what kernels need besides the engine's memory.
#pragma once

#include <memory>
#include <span>

#include "backends/gpu/device.h"
#include "backends/gpu/tiles.h"
#include "graph/backend.h"

namespace esker {

// What a token of a prompt's chunk takes besides the graph's scratch; `context`: the longest text.
uint64_t gpu_bytes_per_token(const Config& config, uint64_t context);

// `tuned`: rows of tiles that count more than those of the device's family.
// `config` and `weights` must outlive the backend. Throws Error(kUsage) for a model that the kernels
// cannot run, naming the limit.
std::unique_ptr<Backend> make_gpu_backend(const Config& config, const Weights& weights,
                                          std::unique_ptr<gpu::Device> device,
                                          std::span<const gpu::TileRow> tuned = {});

}  // namespace esker
