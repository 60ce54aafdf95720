// SPDX-License-Identifier: MIT
//
// What metal-cpp's headers declare (selectors, classes, constants), defined once. No Metal code lies here.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include <Metal/Metal.hpp>
