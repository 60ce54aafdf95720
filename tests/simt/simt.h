// SPDX-License-Identifier: MIT
//
// Runs Metal kernels on the CPU, for tests: what a host sees. tools/msl.py translates a .metal file to
// C++, and that registers its kernels here when it is loaded. A dispatch runs every GPU thread as a fiber
// and checks what a GPU would silently get wrong: all lanes of a simdgroup meet at the same simd
// operation, all threads at the same barrier, threadgroup memory stays within 32 KiB and its arrays, every
// buffer is bound, large enough and aligned. What fails comes back as a text; the process lives on.
// Threads: dispatches of one process take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace simt {

inline constexpr uint32_t kSimdWidth = 32;
inline constexpr uint32_t kThreadsMax = 1024;                   // a threadgroup, as on Apple's GPUs
inline constexpr size_t kThreadgroupMemoryBytesMax = 32 << 10;  // likewise

// What a kernel's parameter is bound to.
enum class Source : uint32_t {
  kBuffer,
  kThreadgroup,
  kThreadPositionInGrid,
  kThreadPositionInThreadgroup,
  kThreadIndexInThreadgroup,
  kThreadgroupPositionInGrid,
  kThreadgroupsPerGrid,
  kThreadsPerGrid,
  kThreadsPerThreadgroup,
  kThreadsPerSimdgroup,
  kThreadIndexInSimdgroup,
  kSimdgroupIndexInThreadgroup,
  kSimdgroupsPerThreadgroup,
};

struct Parameter {
  const char* name;
  Source source;
  uint32_t index;  // of a buffer or of threadgroup memory
  bool optional;   // need not be bound
};

// What the compiler knows of a parameter's type.
struct ParameterType {
  size_t bytes, alignment;  // of what a pointer or a reference refers to; 0 and 1 for void
  bool writable;
};

// A function constant. Its value lies in the translated file.
struct Constant {
  const char* name;
  uint32_t index;
  const char* type;  // "uint"
  void* value;
  uint32_t bytes;
  bool* is_set;
};

struct Module;

struct Kernel {
  const char* name;
  void (*run)(const Parameter* parameters, void* const* buffers, void* const* threadgroup_memory);
  const ParameterType* types;  // one a parameter
  std::vector<Parameter> parameters;
  std::vector<uint32_t> constants;  // places in Module::constants of those that it may read
  uint32_t threads_max = kThreadsMax;
  const Module* module = nullptr;
};

struct Module {
  Module(const char* file, std::vector<Kernel> kernels, std::vector<Constant> constants,
         void (*compute_constants)());
  Module(const Module&) = delete;

  const char* file;
  std::vector<Kernel> kernels;
  std::vector<Constant> constants;
  void (*compute_constants)();  // those whose value follows from function constants
};

std::vector<const Kernel*> kernels();  // of every translated file in this library or program
const Kernel* find_kernel(std::string_view name);

struct Size {
  uint32_t x = 1, y = 1, z = 1;
};

struct Buffer {
  void* data = nullptr;  // null: not bound
  size_t bytes = 0;
};

struct ConstantValue {
  uint32_t index;
  uint64_t bits;  // the value is in the low bytes
};

// Which thread goes first where the language leaves it open. A correct kernel gives the same bits in all
// three, and so does one on memory that is poisoned differently, which the orders do as well.
enum class Order : uint32_t { kForward, kReverse, kRandom };

struct Launch {
  Size groups, threads;
  std::span<const ConstantValue> constants = {};
  std::span<const size_t> threadgroup_bytes = {};  // of the kernel's threadgroup arguments, by index
  Order order = Order::kForward;
  uint64_t seed = 1;     // of kRandom
  uint32_t workers = 1;  // OS threads that share the threadgroups
};

// buffers[i] is bound to index i. Returns once every thread has run; empty when all is well, else what went
// wrong, with file and line of the kernel where they are known.
std::string dispatch(const Kernel& kernel, std::span<const Buffer> buffers, const Launch& launch);

}  // namespace simt
