// SPDX-License-Identifier: MIT
//
// The CPU device: executes a graph op by op on a thread pool, reading weights where they lie.
// Results do not depend on the number of threads.
#pragma once

#include <memory>

#include "graph/backend.h"

namespace esker {

struct CpuOptions {
  int threads = 0;  // 0: one per available core
};

// `config` and `weights` must outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(const Config& config, const Weights& weights,
                                          const CpuOptions& options);

}  // namespace esker
