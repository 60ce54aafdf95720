// SPDX-License-Identifier: MIT
//
// A device in a library of its own, built from the same headers: how the tests' simt device, which runs
// the Metal kernels on the CPU, comes under the gpu backend without being part of the package.
#pragma once

#include <memory>
#include <string>

#include "backends/gpu/device.h"

namespace esker::gpu {

// The library exports `extern "C" esker::gpu::Device* esker_make_device()`. It stays loaded. Throws
// Error(kUsage) where it cannot be loaded or has no such function.
std::unique_ptr<Device> load_device(const std::string& path);

}  // namespace esker::gpu
