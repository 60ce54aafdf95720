// SPDX-License-Identifier: MIT
#include "backends/gpu/cuda/cuda_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <type_traits>
#include <vector>

#include "base/env.h"
#include "base/error.h"

namespace esker::gpu::cuda {
namespace {

constexpr const char* kCompilerHint =
    "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit (12 or newer); or run the model on the cpu backend";

template <class Function>
void bind(void* library, Function& function, const char* name, bool optional = false) {
  function = reinterpret_cast<std::remove_reference_t<Function>>(dlsym(library, name));
  if (function != nullptr || optional) return;
  raise(ErrorKind::kDevice, "cuda",
        {.what = "the installed CUDA is too old",
         .got = std::string("a library without ") + name,
         .want = "CUDA 12 or newer",
         .where = {},
         .hint = "update the NVIDIA driver, or run the model on the cpu backend"});
}
#define ESKER_BIND(name) bind(library, api.name, #name)

Driver load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    raise(ErrorKind::kDevice, "cuda",
          {.what = "there is no NVIDIA driver on this machine",
           .got = why != nullptr ? why : "",
           .want = "libcuda.so.1, which comes with the driver of an NVIDIA GPU",
           .where = {},
           .hint = "install the NVIDIA driver, or run the model on the cpu backend"});
  }
  Driver api{};
  ESKER_BIND(cuInit); ESKER_BIND(cuDriverGetVersion); ESKER_BIND(cuGetErrorName);
  ESKER_BIND(cuGetErrorString); ESKER_BIND(cuDeviceGetCount); ESKER_BIND(cuDeviceGet);
  ESKER_BIND(cuDeviceGetName); ESKER_BIND(cuDeviceTotalMem_v2); ESKER_BIND(cuDeviceGetAttribute);
  ESKER_BIND(cuDevicePrimaryCtxRetain); ESKER_BIND(cuDevicePrimaryCtxRelease_v2);
  ESKER_BIND(cuCtxSetCurrent); ESKER_BIND(cuMemGetInfo_v2); ESKER_BIND(cuMemAlloc_v2);
  ESKER_BIND(cuMemFree_v2); ESKER_BIND(cuMemHostAlloc); ESKER_BIND(cuMemFreeHost);
  ESKER_BIND(cuMemHostGetDevicePointer_v2); ESKER_BIND(cuMemsetD8Async);
  ESKER_BIND(cuMemcpyHtoDAsync_v2); ESKER_BIND(cuMemcpyDtoHAsync_v2); ESKER_BIND(cuModuleLoadData);
  ESKER_BIND(cuModuleUnload); ESKER_BIND(cuModuleGetFunction); ESKER_BIND(cuFuncGetAttribute);
  ESKER_BIND(cuLaunchKernelEx); ESKER_BIND(cuStreamCreate); ESKER_BIND(cuStreamDestroy_v2);
  ESKER_BIND(cuStreamSynchronize); ESKER_BIND(cuStreamWriteValue64_v2);
  ESKER_BIND(cuStreamWaitValue64_v2); ESKER_BIND(cuEventCreate); ESKER_BIND(cuEventDestroy_v2);
  ESKER_BIND(cuEventRecord); ESKER_BIND(cuEventQuery); ESKER_BIND(cuEventSynchronize);
  ESKER_BIND(cuEventElapsedTime); ESKER_BIND(cuGraphCreate); ESKER_BIND(cuGraphDestroy);
  ESKER_BIND(cuGraphAddKernelNode_v2); ESKER_BIND(cuGraphInstantiateWithFlags);
  ESKER_BIND(cuGraphExecDestroy); ESKER_BIND(cuGraphExecKernelNodeSetParams_v2); ESKER_BIND(cuGraphLaunch);
  bind(library, api.cuGraphAddDependencies_v2, "cuGraphAddDependencies_v2", true);
  return api;
}

// A folder's NVRTC, whose part libnvrtc-builtins must be found too: it looks for it by name only.
void* open_compiler_in(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::vector<std::filesystem::path> found, builtins;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libnvrtc.so")) found.push_back(entry.path());
    if (name.starts_with("libnvrtc-builtins.so")) builtins.push_back(entry.path());
  }
  std::ranges::sort(found, std::greater<>());
  for (const auto& path : found) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    for (const auto& part : builtins) dlopen(part.c_str(), RTLD_NOW | RTLD_GLOBAL);
    return library;
  }
  return nullptr;
}

// The package nvidia-cuda-nvrtc in the folder of packages that this library is in.
std::vector<std::filesystem::path> package_folders() {
  std::vector<std::filesystem::path> folders;
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&open_compiler_in), &self) == 0) return folders;
  std::error_code ignored;
  const std::filesystem::path packages = std::filesystem::path(self.dli_fname).parent_path().parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(packages / "nvidia", ignored)) {
    folders.push_back(entry.path() / "lib");
  }
  std::ranges::sort(folders, std::greater<>());
  return folders;
}

void* open_compiler() {
  if (const std::string folder = environment("ESKER_NVRTC"); !folder.empty()) {
    if (void* library = open_compiler_in(folder)) return library;
  }
  for (const auto& folder : package_folders()) {
    if (void* library = open_compiler_in(folder)) return library;
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  for (const char* folder : {"/usr/local/cuda/lib64", "/opt/cuda/lib64"}) {
    if (void* library = open_compiler_in(folder)) return library;
  }
  raise(ErrorKind::kDevice, "cuda",
        {.what = "NVRTC, CUDA's compiler, cannot be found",
         .got = {},
         .want = "libnvrtc.so of CUDA 12 or newer",
         .where = {},
         .hint = kCompilerHint});
}

Compiler load_compiler() {
  void* library = open_compiler();
  Compiler api{};
  ESKER_BIND(nvrtcVersion); ESKER_BIND(nvrtcGetErrorString); ESKER_BIND(nvrtcCreateProgram);
  ESKER_BIND(nvrtcDestroyProgram); ESKER_BIND(nvrtcCompileProgram); ESKER_BIND(nvrtcGetProgramLogSize);
  ESKER_BIND(nvrtcGetProgramLog); ESKER_BIND(nvrtcGetCUBINSize); ESKER_BIND(nvrtcGetCUBIN);
  ESKER_BIND(nvrtcGetNumSupportedArchs); ESKER_BIND(nvrtcGetSupportedArchs);
  return api;
}
#undef ESKER_BIND

}  // namespace

const Driver& driver() {
  static const Driver api = load_driver();
  return api;
}

const Compiler& compiler() {
  static const Compiler api = load_compiler();
  return api;
}

void check(Status status, const char* what) {
  if (status == 0) return;
  const char *name = nullptr, *text = nullptr;
  driver().cuGetErrorName(status, &name);
  driver().cuGetErrorString(status, &text);
  raise(ErrorKind::kDevice, "cuda",
        {.what = std::string("CUDA failed to ") + what,
         .got = std::string(name != nullptr ? name : "an unknown error") + " (" +
                (text != nullptr ? text : "") + ")",
         .want = {},
         .where = {},
         .hint = "open the model again, or run it on the cpu backend"});
}

}  // namespace esker::gpu::cuda
