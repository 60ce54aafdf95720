// SPDX-License-Identifier: MIT
//
// What tests ask the fake, in plain C. Texts are valid until the thread's next call.
#include <string>

#include "runtime.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

// Objects that are alive, of one class or, where the name is null, of all.
FAKE_EXPORT long fake_metal_live_objects(const char* class_name) {
  long n = 0;
  for (const auto& [name, live] : fake::live_objects()) {
    if (class_name == nullptr || name == class_name) n += live;
  }
  return n;
}

// Lines "live CLASS N" and "fault TEXT".
FAKE_EXPORT const char* fake_metal_report() {
  static thread_local std::string text;
  text.clear();
  for (const auto& [name, live] : fake::live_objects()) {
    if (live != 0) text += "live " + name + " " + std::to_string(live) + "\n";
  }
  for (const std::string& f : fake::faults()) text += "fault " + f + "\n";
  return text.c_str();
}

FAKE_EXPORT int64_t fake_metal_count(const char* name) { return fake::counted(name); }
FAKE_EXPORT void fake_metal_set(const char* name, int64_t value) { fake::set_setting(name, value); }

// Faults and counts begin anew.
FAKE_EXPORT void fake_metal_forget() {
  fake::forget_faults();
  fake::forget_counts();
}
