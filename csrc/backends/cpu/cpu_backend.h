// SPDX-License-Identifier: MIT
//
// The CPU device: executes a graph op by op on a thread pool, reading weights where they lie.
// Results do not depend on the number of threads.
#pragma once

#include <memory>

#include "graph/backend.h"

namespace esker {

// How finely the matrix products read their activations: bytes a value (packed.h). Exact is the
// default: with less, routings and choices of blocks that nearly tie fall out otherwise now and then.
// Products that decide directly always read them exactly.
enum class Activations : int { kCoarse = 1, kFine = 2, kExact = 3 };

struct CpuOptions {
  int threads = 0;  // 0: one per available core
  Activations activations = Activations::kExact;
};

// What a token of a prompt's chunk takes besides the graph's scratch: its packed vectors.
uint64_t cpu_bytes_per_token(const Config& config);

// The kernels in use: "avx512", "avx2", "neon" or "scalar". Throws as kernels() does.
const char* cpu_instruction_set();

// `config` and `weights` must outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(const Config& config, const Weights& weights,
                                          const CpuOptions& options);

}  // namespace esker
