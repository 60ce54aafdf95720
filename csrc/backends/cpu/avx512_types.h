// SPDX-License-Identifier: MIT
//
// What the files of the AVX-512 kernels know of each other.
#pragma once

#include "backends/cpu/kernels.h"

// Set where the compiler was given the instructions: Zen 4 and newer, Ice Lake and newer.
#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && defined(__GFNI__)
#define ESKER_HAS_AVX512 1
#else
#define ESKER_HAS_AVX512 0
#endif

namespace esker::cpu {

// Each adds its types to the table.
void add_avx512_grids(Kernels& k);
void add_avx512_more(Kernels& k);

}  // namespace esker::cpu
