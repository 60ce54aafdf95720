// SPDX-License-Identifier: MIT
#pragma once

#include <math.h>  // as Apple's does

using CFTimeInterval = double;
using CFTypeRef = const void*;
using CFStringRef = const struct __CFString*;

extern "C" CFStringRef __CFStringMakeConstantString(const char* text);
