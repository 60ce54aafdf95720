// SPDX-License-Identifier: MIT
//
// The libraries of kernels (capi.cpp) that tests/gpu/simt.py builds of each .metal file, as devices load
// them: ESKER_SIMT_KERNEL_LIBRARIES names them, with colons between. ESKER_SIMT_ORDER says in which order
// lanes run, and dispatches that may overlap: forward, reverse or random. All must give the same.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "simt.h"

namespace simt {

inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

inline Order order_of_environment() {
  const std::string order = variable("ESKER_SIMT_ORDER");
  if (order == "reverse") return Order::kReverse;
  return order == "random" ? Order::kRandom : Order::kForward;
}

struct KernelLibrary {
  explicit KernelLibrary(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto bind = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) throw std::runtime_error(path + " lacks " + symbol);
    };
    bind(count, "simt_kernel_count");
    bind(name, "simt_kernel_name");
    bind(constant_type, "simt_constant_type");
    bind(dispatch, "simt_dispatch");
  }
  // Empty when all is well.
  std::string run(size_t kernel, std::span<const Buffer> buffers, const uint32_t (&sizes)[6],
                  std::span<const ConstantValue> constants, std::span<const size_t> threadgroup_bytes,
                  Order order) const {
    const char* error = dispatch(kernel, buffers.data(), buffers.size(), sizes, constants.data(), constants.size(),
                                 threadgroup_bytes.data(), threadgroup_bytes.size(),
                                 static_cast<uint32_t>(order), 1, 1, 0);
    return error == nullptr ? "" : error;
  }

  size_t (*count)();
  const char* (*name)(size_t);
  const char* (*constant_type)(size_t, uint32_t);
  const char* (*dispatch)(size_t, const Buffer*, size_t, const uint32_t*, const ConstantValue*, size_t,
                          const size_t*, size_t, uint32_t, uint64_t, uint32_t, uint32_t);
};

// All of them, and where each kernel is.
class KernelLibraries {
 public:
  using Place = std::pair<const KernelLibrary*, size_t>;

  KernelLibraries() {
    std::istringstream paths(variable("ESKER_SIMT_KERNEL_LIBRARIES"));
    for (std::string path; std::getline(paths, path, ':');) {
      const KernelLibrary& library = libraries_.emplace_back(path);
      for (size_t i = 0; i < library.count(); ++i) kernels_[library.name(i)] = {&library, i};
    }
  }
  KernelLibraries(const KernelLibraries&) = delete;

  // Null where there is no such kernel.
  const Place* find(const std::string& name) const {
    const auto found = kernels_.find(name);
    return found == kernels_.end() ? nullptr : &found->second;
  }

 private:
  std::deque<KernelLibrary> libraries_;
  std::map<std::string, Place> kernels_;
};

}  // namespace simt
