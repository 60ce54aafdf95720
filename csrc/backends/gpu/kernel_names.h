// SPDX-License-Identifier: MIT
//
// The names of the kernels of metal/, made here and nowhere else (tests/gpu compares them with the sources).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "abi/weight_types.h"

namespace esker::gpu {

// "matvec", Q4_K, 2 rows -> "matvec_Q4_K_r2"; rows 0: the kernel has no variants by rows.
std::string kernel_name(const char* base, WeightType type, uint32_t rows = 0,
                        bool threadgroup_table = false);

// Whether there is a variant with the type's codebook in threadgroup memory: of the grids, and of the 16 values
// of IQ4_NL and IQ4_XS in "matvec", which otherwise computes them.
bool has_threadgroup_table(std::string_view base, WeightType type);

// Every name that a lowering may use.
std::vector<std::string> all_kernel_names();

}  // namespace esker::gpu
