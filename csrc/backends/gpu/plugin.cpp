// SPDX-License-Identifier: MIT
#include "backends/gpu/plugin.h"

#include <dlfcn.h>

#include "base/error.h"

namespace esker::gpu {

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

}  // namespace esker::gpu
