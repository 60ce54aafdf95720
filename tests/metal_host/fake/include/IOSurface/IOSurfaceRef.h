// SPDX-License-Identifier: MIT
#pragma once

using IOSurfaceRef = struct __IOSurface*;
