// SPDX-License-Identifier: MIT
//
// Quantisers: float32 weights to the blocks of a weight type, for packing and for synthetic models.
// Each looks for the least squared error of what the decoder (quants.h) will read, with every scale
// as it is stored, rounded to half. The same input gives the same bytes on every machine; a block
// depends on its own weights only, so that callers may split the work between threads.
#pragma once

#include <cstdint>

#include "abi/weight_types.h"

namespace esker {

// F32, F16, BF16, Q8_0, Q2_0, Q4_K, Q6_K, IQ4_NL, IQ4_XS.
bool can_quantize(WeightType type);

// Encodes n weights (a multiple of the block's elements). What is too large for the type becomes
// its largest value, never an infinity.
// Throws a numeric error for NaN and infinity, a usage error for a type without a quantiser.
void quantize(WeightType type, const float* x, uint8_t* blocks, int64_t n);

}  // namespace esker
