// SPDX-License-Identifier: MIT
#include "backends/gpu/devices.h"

#include <dlfcn.h>

#include <cctype>

#include "base/env.h"
#include "base/error.h"
#if defined(__APPLE__)
#include "backends/gpu/metal/metal_device.h"
#elif defined(__linux__)
#include "backends/gpu/cuda/cuda_device.h"
#endif

namespace esker::gpu {
namespace {

std::string library_variable(const std::string& name) {
  std::string variable = "ESKER_";
  for (const char c : name) variable += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable + "_LIBRARY";
}

std::unique_ptr<Device> load_device(const std::string& path, const DeviceOptions& options) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* make = library != nullptr ? dlsym(library, "esker_make_device") : nullptr;
  if (make == nullptr) {
    const char* why = dlerror();
    raise(ErrorKind::kUsage, "gpu",
          {.what = "the device's library cannot be used",
           .got = why != nullptr ? why : "no reason given",
           .want = "a library that exports esker_make_device",
           .where = path,
           .hint = "such devices belong to the tests: unset the variable that names the library"});
  }
  return std::unique_ptr<Device>(reinterpret_cast<Device* (*)(const DeviceOptions*)>(make)(&options));
}

}  // namespace

std::vector<std::string> device_names() {
#if defined(__APPLE__)
  return {"metal"};
#elif defined(__linux__)
  return {"cuda"};
#else
  return {};
#endif
}

std::unique_ptr<Device> open_device(const std::string& name, const DeviceOptions& options) {
  const std::string library = environment(library_variable(name).c_str());
  if (!library.empty()) return load_device(library, options);
#if defined(__APPLE__)
  if (name == "metal") return make_metal_device(options);
#elif defined(__linux__)
  if (name == "cuda") return make_cuda_device(options);
#endif
  std::string names;
  for (const std::string& n : device_names()) names += (names.empty() ? "" : ", ") + n;
  raise(ErrorKind::kUsage, "gpu",
        {.what = "no such device in this build",
         .got = name,
         .want = names.empty() ? "none: this build knows no GPU" : names,
         .where = {},
         .hint = "the cpu backend needs none"});
}

std::function<MachineMemory()> device_memory([[maybe_unused]] const std::string& name) {
#if defined(__linux__)
  if (name == "cuda" && environment(library_variable(name).c_str()).empty()) return cuda_memory();
#endif
  return {};
}

}  // namespace esker::gpu
