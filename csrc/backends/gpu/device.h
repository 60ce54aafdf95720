// SPDX-License-Identifier: MIT
//
// What the gpu backend asks of a device: memory, kernels by name, queues and events. About the least that
// Metal and CUDA have in common, so that everything above is the same for both, and for the device that
// runs the kernels on the CPU in tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/backend.h"

namespace esker::gpu {

struct ByteRange {
  uint64_t offset = 0, bytes = 0;
};

struct Extent {
  uint32_t x = 1, y = 1, z = 1;
  bool operator==(const Extent&) const = default;
};

// A function constant: its number (abi/kernel_args.h) and value.
struct Constant {
  uint32_t index = 0;
  uint32_t value = 0;
  bool operator==(const Constant&) const = default;
};

// A kernel that is wanted.
struct KernelSpec {
  std::string name;
  std::vector<Constant> constants;
};

// What a kernel takes of the device, as far as the device says; 0: it does not.
struct KernelResources {
  uint32_t registers = 0;          // of a thread
  uint32_t spilled_bytes = 0;      // of a thread, in memory for want of registers
  uint32_t threadgroup_bytes = 0;  // declared in the kernel
  uint32_t threads_most = 0;       // that a threadgroup may have
};

// A kernel with its function constants, ready to run.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual KernelResources resources() const { return {}; }
};

struct Binding {
  DeviceMemory* memory = nullptr;
  uint64_t offset_bytes = 0;
};

struct Dispatch {
  const Kernel* kernel = nullptr;
  std::span<const uint8_t> args;     // buffer 0; copied when encoded
  std::span<const Binding> buffers;  // buffer 1 and those after it
  Extent groups, threads;            // threadgroups, and threads of each
};

// A number that only rises, set by the host or by a queue, and waited for by the other.
class Event {
 public:
  virtual ~Event() = default;
  virtual void set(uint64_t value) = 0;
  // False when the time ran out first.
  virtual bool wait(uint64_t value, int64_t timeout_ns) = 0;
};

// Work in the order in which it was encoded. One thread at a time.
class Queue {
 public:
  virtual ~Queue() = default;
  // May run together with those encoded since the last barrier.
  virtual void dispatch(const Dispatch& dispatch) = 0;
  virtual void barrier() = 0;
  // Once all before it has run.
  virtual void signal(Event& event, uint64_t value) = 0;
  // Nothing after it runs before the event has the value.
  virtual void wait(Event& event, uint64_t value) = 0;
  // Hands what was encoded to the device.
  virtual void commit() = 0;
  // True once all that was committed has run, false when the time ran out first. Throws
  // Error(kDevice) with what went wrong on the device since the last call.
  virtual bool finish(int64_t timeout_ns) = 0;
  // Nanoseconds that the device spent on all that has run, waiting at events included; 0 where it cannot tell.
  virtual int64_t device_ns() const { return 0; }
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;    // of the kind: "metal", "cuda", "simt"
  virtual const char* family() const = 0;  // row of the tile tables (gpu/tiles.h)
  virtual std::string description() const = 0;  // for people: model, memory, driver
  virtual std::unique_ptr<DeviceMemory> allocate(size_t bytes, MemoryUse use, const char* purpose) = 0;
  // Memory of the host, which outlives it and which kernels only read: without a copy where the device
  // can.
  virtual std::unique_ptr<DeviceMemory> wrap(const uint8_t* data, size_t bytes, const char* what) = 0;
  // All of them at once, since making one takes long. Throws Error(kDevice) where there is no such kernel
  // or the device's compiler refuses it.
  virtual std::vector<std::unique_ptr<Kernel>> kernels(std::span<const KernelSpec> specs) = 0;
  virtual std::unique_ptr<Event> event() = 0;
  virtual std::unique_ptr<Queue> queue() = 0;
  // Gives back what lies behind keep_bytes; the bytes read as zero or as they were afterwards. No kernel
  // touches them before extend().
  virtual void trim(DeviceMemory& memory, size_t keep_bytes) = 0;
  // Kernels will touch so much of memory that was trimmed.
  virtual void extend(DeviceMemory& memory, size_t bytes) { (void)memory, (void)bytes; }
  // Where kArena memory is not the host's: what the host wrote to these parts is there for all that is let go
  // from now on; on the host it need not be kept.
  virtual bool needs_publish() const { return false; }
  virtual void publish(DeviceMemory& memory, std::span<const ByteRange> ranges) {
    (void)memory, (void)ranges;
  }
};

}  // namespace esker::gpu
