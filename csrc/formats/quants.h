// SPDX-License-Identifier: MIT
//
// What the bytes of a quantised block mean: a scalar decoder for every weight type.
// This is the truth that every backend's kernels are tested against; it is bit-equal to the
// `gguf` package's dequantize where that has the type.
#pragma once

#include <cstdint>

#include "abi/weight_types.h"

namespace esker {

// Decodes n weights (a multiple of the block's elements) to float32.
using DecodeFn = void (*)(const uint8_t* blocks, float* to, int64_t n);

DecodeFn weight_decoder(WeightType type);

}  // namespace esker
