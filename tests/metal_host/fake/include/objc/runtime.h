// SPDX-License-Identifier: MIT
//
// What metal-cpp names of the Objective-C runtime. The fake's own is in runtime.cpp and messages.S.
#pragma once

struct objc_class;
struct objc_object {
  objc_class* isa;
};
using Class = objc_class*;
using id = objc_object*;
using SEL = struct objc_selector*;
using Method = struct objc_method*;
using BOOL = bool;

extern "C" {
SEL sel_registerName(const char* name);
void* objc_lookUpClass(const char* name);
void* objc_getProtocol(const char* name);
Class object_getClass(id object);
Method class_getInstanceMethod(Class of, SEL selector);
}
