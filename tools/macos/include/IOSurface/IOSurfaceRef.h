// SPDX-License-Identifier: MIT
//
// For the cross-build: the one name of this framework that metal-cpp's headers use.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
