// SPDX-License-Identifier: MIT
//
// What is used of CUDA's driver API and of NVRTC, its compiler. Both are found at run time, so that nothing of
// CUDA is needed to build or to install. Names and values are CUDA's, written down here as facts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace esker::gpu::cuda {

using Status = int;  // of either library; 0 is success
inline constexpr Status kNotReady = 600;
using DeviceId = int;
using DevicePointer = unsigned long long;
using ContextHandle = struct CUctx_st*;
using ModuleHandle = struct CUmod_st*;
using FunctionHandle = struct CUfunc_st*;
using StreamHandle = struct CUstream_st*;
using EventHandle = struct CUevent_st*;
using GraphHandle = struct CUgraph_st*;
using NodeHandle = struct CUgraphNode_st*;
using GraphExecHandle = struct CUgraphExec_st*;
using ProgramHandle = struct _nvrtcProgram*;

enum DeviceAttribute : int {
  kMaxSharedBytes = 8, kMultiprocessors = 16, kMajor = 75, kMinor = 76, kStreamMemoryOps64 = 122,
};
enum FunctionAttribute : int { kMaxThreads = 0, kSharedBytes = 1, kLocalBytes = 3, kRegisters = 4 };
inline constexpr unsigned kStreamNonBlocking = 1, kHostAllocPortable = 1, kHostAllocMapped = 2;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kWaitGreaterOrEqual = 0, kWriteDefault = 0;

struct LaunchAttribute {
  int id = 6;  // programmatic stream serialization
  char pad[4] = {};
  union {
    char bytes[64] = {};
    int allowed;
  };
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;
  unsigned n_attributes;
};

struct KernelNodeParams {
  FunctionHandle function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void** parameters;
  void** extra;
  void* kernel;
  ContextHandle context;
};

struct EdgeData {
  unsigned char from_port = 1, to_port = 0, type = 1, reserved[5] = {};  // 1: programmatic
};

struct Driver {
  Status (*cuInit)(unsigned);
  Status (*cuDriverGetVersion)(int*);
  Status (*cuGetErrorName)(Status, const char**);
  Status (*cuGetErrorString)(Status, const char**);
  Status (*cuDeviceGetCount)(int*);
  Status (*cuDeviceGet)(DeviceId*, int);
  Status (*cuDeviceGetName)(char*, int, DeviceId);
  Status (*cuDeviceTotalMem_v2)(size_t*, DeviceId);
  Status (*cuDeviceGetAttribute)(int*, int, DeviceId);
  Status (*cuDevicePrimaryCtxRetain)(ContextHandle*, DeviceId);
  Status (*cuDevicePrimaryCtxRelease_v2)(DeviceId);
  Status (*cuCtxSetCurrent)(ContextHandle);
  Status (*cuMemGetInfo_v2)(size_t*, size_t*);
  Status (*cuMemAlloc_v2)(DevicePointer*, size_t);
  Status (*cuMemFree_v2)(DevicePointer);
  Status (*cuMemHostAlloc)(void**, size_t, unsigned);
  Status (*cuMemFreeHost)(void*);
  Status (*cuMemHostGetDevicePointer_v2)(DevicePointer*, void*, unsigned);
  Status (*cuMemsetD8Async)(DevicePointer, unsigned char, size_t, StreamHandle);
  Status (*cuMemcpyHtoDAsync_v2)(DevicePointer, const void*, size_t, StreamHandle);
  Status (*cuMemcpyDtoHAsync_v2)(void*, DevicePointer, size_t, StreamHandle);
  Status (*cuModuleLoadData)(ModuleHandle*, const void*);
  Status (*cuModuleUnload)(ModuleHandle);
  Status (*cuModuleGetFunction)(FunctionHandle*, ModuleHandle, const char*);
  Status (*cuFuncGetAttribute)(int*, int, FunctionHandle);
  Status (*cuLaunchKernelEx)(const LaunchConfig*, FunctionHandle, void**, void**);
  Status (*cuStreamCreate)(StreamHandle*, unsigned);
  Status (*cuStreamDestroy_v2)(StreamHandle);
  Status (*cuStreamSynchronize)(StreamHandle);
  Status (*cuStreamWriteValue64_v2)(StreamHandle, DevicePointer, uint64_t, unsigned);
  Status (*cuStreamWaitValue64_v2)(StreamHandle, DevicePointer, uint64_t, unsigned);
  Status (*cuEventCreate)(EventHandle*, unsigned);
  Status (*cuEventDestroy_v2)(EventHandle);
  Status (*cuEventRecord)(EventHandle, StreamHandle);
  Status (*cuEventQuery)(EventHandle);
  Status (*cuEventSynchronize)(EventHandle);
  Status (*cuEventElapsedTime)(float*, EventHandle, EventHandle);
  Status (*cuGraphCreate)(GraphHandle*, unsigned);
  Status (*cuGraphDestroy)(GraphHandle);
  Status (*cuGraphAddKernelNode_v2)(NodeHandle*, GraphHandle, const NodeHandle*, size_t, const KernelNodeParams*);
  Status (*cuGraphInstantiateWithFlags)(GraphExecHandle*, GraphHandle, unsigned long long);
  Status (*cuGraphExecDestroy)(GraphExecHandle);
  Status (*cuGraphExecKernelNodeSetParams_v2)(GraphExecHandle, NodeHandle, const KernelNodeParams*);
  Status (*cuGraphLaunch)(GraphExecHandle, StreamHandle);
  // Since CUDA 12.3; null before.
  Status (*cuGraphAddDependencies_v2)(GraphHandle, const NodeHandle*, const NodeHandle*, const EdgeData*, size_t);
};

struct Compiler {
  Status (*nvrtcVersion)(int*, int*);
  const char* (*nvrtcGetErrorString)(Status);
  Status (*nvrtcCreateProgram)(ProgramHandle*, const char*, const char*, int, const char* const*,
                               const char* const*);
  Status (*nvrtcDestroyProgram)(ProgramHandle*);
  Status (*nvrtcCompileProgram)(ProgramHandle, int, const char* const*);
  Status (*nvrtcGetProgramLogSize)(ProgramHandle, size_t*);
  Status (*nvrtcGetProgramLog)(ProgramHandle, char*);
  Status (*nvrtcGetCUBINSize)(ProgramHandle, size_t*);
  Status (*nvrtcGetCUBIN)(ProgramHandle, char*);
  Status (*nvrtcGetNumSupportedArchs)(int*);
  Status (*nvrtcGetSupportedArchs)(int*);
};

// Loaded once a process, on the first call. Throws Error(kDevice) where the machine has none; the second
// says how to get it. The compiler is looked for in the folder that ESKER_NVRTC names, among the packages beside
// this library, where the system's linker looks, and where CUDA's toolkit installs itself.
const Driver& driver();
const Compiler& compiler();

// Throws Error(kDevice) unless the driver's status is success.
void check(Status status, const char* what);

}  // namespace esker::gpu::cuda
