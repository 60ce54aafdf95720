// SPDX-License-Identifier: MIT
//
// The only place where native code reads the environment. Options of a model are Python's business;
// these are diagnostic switches.
//
//   ESKER_CPU_ISA        instruction set of the CPU kernels: avx512, avx2, neon or scalar; default the best
//   ESKER_<DEVICE>_LIBRARY   where a device lies that is no part of the build (backends/gpu/devices.h)
//   ESKER_NVRTC          folder of CUDA's compiler, where it is not found by itself (gpu/cuda/cuda_api.h)
//   ESKER_DEVICE_TIMEOUT seconds without an answer after which a device counts as lost; default 60
#pragma once

#include <string>

namespace esker {

// The variable's value, empty when it is unset.
std::string environment(const char* name);

}  // namespace esker
