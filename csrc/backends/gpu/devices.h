// SPDX-License-Identifier: MIT
//
// The devices there are, by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/device.h"
#include "base/machine.h"

namespace esker::gpu {

struct DeviceOptions {
  std::string cache_folder;  // where compiled kernels are kept; empty: nowhere
  bool wire = false;         // keep what is mapped in memory, as far as the system allows
};

// Names of the devices that this build knows, whether or not the machine has one.
std::vector<std::string> device_names();

// A device that is no part of the build comes from a library of its own, which ESKER_<NAME>_LIBRARY names and
// which exports `extern "C" esker::gpu::Device* esker_make_device(const esker::gpu::DeviceOptions*)`: so the
// tests bring "simt", which runs the Metal kernels on the CPU, and "metal" on a system without Metal.
// Throws Error(kUsage) for another name, or where the library cannot be loaded; Error(kDevice) where the
// machine has no such device.
std::unique_ptr<Device> open_device(const std::string& name, const DeviceOptions& options = {});

// Asks for the memory of a device that has its own, and keeps the device open meanwhile; empty for those that
// use the machine's, the cpu backend among them. Throws as open_device.
std::function<MachineMemory()> device_memory(const std::string& name);

}  // namespace esker::gpu
