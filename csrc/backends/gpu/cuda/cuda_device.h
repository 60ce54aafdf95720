// SPDX-License-Identifier: MIT
//
// NVIDIA GPUs through CUDA's driver API: the Metal kernels, translated (tools/msl.py), compiled by NVRTC.
#pragma once

#include <memory>

#include "backends/gpu/devices.h"

namespace esker::gpu {

// The first GPU that CUDA shows. Throws Error(kDevice) where there is no driver, no compiler or no GPU that the
// kernels run on: compute capability 8.0 and up.
std::unique_ptr<Device> make_cuda_device(const DeviceOptions& options);

// Asks for its memory (gpu::device_memory). Throws as make_cuda_device where there is no driver or no GPU.
std::function<MachineMemory()> cuda_memory();

}  // namespace esker::gpu
