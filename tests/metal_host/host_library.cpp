// SPDX-License-Identifier: MIT
//
// The Metal host as a library for csrc/backends/gpu/devices.cpp: what ESKER_METAL_LIBRARY names.
#include "backends/gpu/metal/metal_device.h"

extern "C" __attribute__((visibility("default"))) esker::gpu::Device* esker_make_device(
    const esker::gpu::DeviceOptions* options) {
  return esker::gpu::make_metal_device(*options).release();
}
