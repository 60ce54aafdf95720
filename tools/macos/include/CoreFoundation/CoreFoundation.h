// SPDX-License-Identifier: MIT
//
// For the cross-build: the names of this framework that metal-cpp's headers use, and the headers that they
// expect from it. On a Mac the system's own is found.
#pragma once

#include <MacTypes.h>
#include <stddef.h>
#include <stdint.h>

typedef double CFTimeInterval;
typedef const void* CFTypeRef;
typedef const struct __CFString* CFStringRef;

#ifdef __cplusplus
extern "C" {
#endif

CFStringRef __CFStringMakeConstantString(const char* text);

#ifdef __cplusplus
}
#endif
