// SPDX-License-Identifier: MIT
#include "backends/gpu/kernel_sources.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace esker::gpu {

const KernelSource& source_of(std::span<const KernelSource> sources, std::string_view kernel) {
  for (const KernelSource& s : sources) {
    if (std::ranges::find(s.kernels, kernel) != s.kernels.end()) return s;
  }
  raise(ErrorKind::kDevice, "gpu",
        {.what = "no such kernel", .got = std::string(kernel), .want = "a kernel of metal/", .where = {},
         .hint = "this is a defect of Esker: report it with the model's `esker info`"});
}

}  // namespace esker::gpu
