// SPDX-License-Identifier: MIT
//
// What the driver runs: values times a factor of its arguments and one that is a constant.

#include <metal_stdlib>

using namespace metal;

constant uint kFactor [[function_constant(0)]];

struct ScaleArgs {
  uint count;
  float factor;
};

[[kernel]] void scale(constant ScaleArgs& args [[buffer(0)]], device float* values [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  if (i < args.count) values[i] *= args.factor * float(kFactor);
}
