// SPDX-License-Identifier: MIT
//
// From names of kernels to machine code: NVRTC, and a folder that keeps what it made.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "backends/gpu/device.h"

namespace esker::gpu::cuda {

// The code of each for an architecture such as 90, in their order; what is not in the folder is compiled, on
// several threads. A file of the folder is written whole and read only where it is what was written; with an
// empty folder nothing is kept. Throws Error(kDevice) for a kernel that there is not or that NVRTC refuses.
std::vector<std::string> machine_code(std::span<const KernelSpec> specs, int architecture,
                                      const std::string& cache_folder);

}  // namespace esker::gpu::cuda
