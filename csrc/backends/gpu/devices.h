// SPDX-License-Identifier: MIT
//
// The devices there are, by name.
#pragma once

#include <memory>
#include <string>

#include "backends/gpu/device.h"

namespace esker::gpu {

// "simt": the tests' device, which runs the Metal kernels on the CPU. It is no part of the package but a
// library of its own, built from the same headers, that exports `extern "C" esker::gpu::Device*
// esker_make_device()`; ESKER_SIMT_LIBRARY names it.
// Throws Error(kUsage) for another name, or where the library cannot be loaded.
std::unique_ptr<Device> open_device(const std::string& name);

}  // namespace esker::gpu
