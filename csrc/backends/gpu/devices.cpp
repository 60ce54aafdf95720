// SPDX-License-Identifier: MIT
#include "backends/gpu/devices.h"

#include <dlfcn.h>

#include "base/env.h"
#include "base/error.h"

namespace esker::gpu {
namespace {

std::unique_ptr<Device> load_device(const std::string& path) {
  void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* make = library != nullptr ? dlsym(library, "esker_make_device") : nullptr;
  if (make == nullptr) {
    const char* why = path.empty() ? "no path" : dlerror();
    raise(ErrorKind::kUsage, "gpu",
          {.what = "the device's library cannot be used",
           .got = why != nullptr ? why : "no reason given",
           .want = "a library that exports esker_make_device",
           .where = path,
           .hint = "the simt device belongs to the tests: ESKER_SIMT_LIBRARY names its library"});
  }
  return std::unique_ptr<Device>(reinterpret_cast<Device* (*)()>(make)());
}

}  // namespace

std::unique_ptr<Device> open_device(const std::string& name) {
  if (name == "simt") return load_device(environment("ESKER_SIMT_LIBRARY"));
  raise(ErrorKind::kUsage, "gpu",
        {.what = "no such device", .got = name, .want = "simt", .where = {},
         .hint = "the cpu backend needs none"});
}

}  // namespace esker::gpu
