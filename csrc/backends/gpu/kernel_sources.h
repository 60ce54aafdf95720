// SPDX-License-Identifier: MIT
//
// The kernels' sources, as the build put them into the library (tools/embed_kernels.py).
#pragma once

#include <span>
#include <string_view>

namespace esker::gpu {

struct KernelSource {
  std::string_view file;                      // "matvec": metal/matvec.metal
  std::string_view text;                      // with its includes in place
  std::span<const std::string_view> kernels;  // the names in it
};

// For Metal's own compiler.
std::span<const KernelSource> metal_sources();
// For NVRTC.
std::span<const KernelSource> cuda_sources();

// The source that has a kernel. Throws Error(kDevice) where none has.
const KernelSource& source_of(std::span<const KernelSource> sources, std::string_view kernel);

}  // namespace esker::gpu
