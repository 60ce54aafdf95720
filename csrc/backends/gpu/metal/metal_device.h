// SPDX-License-Identifier: MIT
//
// Apple's GPUs, through metal-cpp. From the M1 on, macOS 14 or newer; residency sets from macOS 15 on.
#pragma once

#include <memory>

#include "backends/gpu/devices.h"

namespace esker::gpu {

// Throws Error(kDevice) where there is no such GPU.
std::unique_ptr<Device> make_metal_device(const DeviceOptions& options);

}  // namespace esker::gpu
