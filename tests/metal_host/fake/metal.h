// SPDX-License-Identifier: MIT
//
// Metal's objects: what a compute host uses of them. Nothing is drawn, copied or cached: a kernel reads
// host memory as it is when its turn comes.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "blocks.h"
#include "foundation.h"
#include "kernel_libraries.h"
#include "metal_text.h"

namespace fake {

inline constexpr size_t kPageBytes = 16384;  // of a Mac
inline constexpr size_t kSetBytesMost = 4096;

// Numbers of Metal's headers.
enum CommandBufferStatus : unsigned long { kNotEnqueued, kEnqueued, kCommitted, kScheduled, kCompleted, kFailed };
enum CommandBufferError : long { kTimeout = 2, kAccessRevoked = 4, kOutOfMemory = 8, kInvalidResource = 9 };

struct Size {
  unsigned long x, y, z;
};

struct Buffer final : Object {
  Buffer(void* memory, size_t n, unsigned long of_options, bool is_own)
      : Object("MTLBuffer"), data(memory), bytes(n), options(of_options), owns(is_own) {}
  ~Buffer() override;
  bool is_tracked() const { return (options >> 8 & 3) != 1; }
  bool is_private() const { return (options >> 4 & 15) == 2; }

  void* data;
  size_t bytes;
  unsigned long options;
  bool owns;
  Block* deallocator = nullptr;
};

struct ResidencySet final : Object {
  ResidencySet() : Object("MTLResidencySet") {}
  ~ResidencySet() override;
  std::mutex mutex;
  std::set<Object*> wanted, committed;  // each counted
};

struct Library final : Object {
  Library() : Object("MTLLibrary") {}
  MetalText text;
  size_t hash = 0;
};

struct Function final : Object {
  Function() : Object("MTLFunction") {}
  std::string key;  // what an archive knows it by
  const simt::KernelLibrary* library = nullptr;
  size_t index = 0;
  MetalText::KernelText text;
  std::vector<simt::ConstantValue> constants;
};

struct Pipeline final : Object {
  Pipeline() : Object("MTLComputePipelineState") {}
  unsigned long threads_max = 0;
  const simt::KernelLibrary* library = nullptr;
  size_t index = 0;
  std::string kernel;
  MetalText::KernelText text;
  std::vector<simt::ConstantValue> constants;
};

// Apart from the event, so that a queue may wait while a host that does wrong lets the event go.
struct EventState {
  void set(uint64_t to, const char* who);
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t value = 0;
};

struct SharedEvent final : Object {
  SharedEvent() : Object("MTLSharedEvent") {}
  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

struct Fence final : Object {
  Fence() : Object("MTLFence") {}
};

// What an encoder left: a kernel with all it is given.
struct Dispatch {
  struct Bound {
    Buffer* buffer = nullptr;
    size_t offset = 0;
    std::vector<uint8_t> bytes;  // where there is no buffer
  };
  Pipeline* pipeline = nullptr;
  std::map<unsigned long, Bound> bound;
  std::set<const Object*> used;  // useResource
  std::vector<size_t> threadgroup_bytes;
  Size groups{}, threads{};
};

// Encoders of a queue that were ordered before something by a fence: all up to a number, and these.
struct Ordered {
  uint64_t all_below = 1;
  std::set<uint64_t> also;
  bool has(uint64_t encoder) const { return encoder < all_below || also.count(encoder) != 0; }
  void add(const Ordered& other);
};

struct QueueState;

struct CommandQueue final : Object {
  CommandQueue();
  ~CommandQueue() override;
  std::shared_ptr<QueueState> state;
  std::mutex mutex;
  std::set<ResidencySet*> sets;  // each counted
  // As encoded: which encoder touched a buffer last, and what a fence stands for.
  uint64_t encoders = 0;
  struct Touched {
    uint64_t wrote = 0;
    std::set<uint64_t> read;
  };
  std::map<const Buffer*, Touched> touched;
  std::map<const Fence*, Ordered> fences;
};

struct Encoder;

struct CommandBuffer final : Object {
  CommandBuffer(CommandQueue* of, bool keeps_what_it_uses);
  ~CommandBuffer() override;
  // A fault of the host: the buffer will end with an error.
  void spoil(const std::string& text);
  bool can_encode(const char* what);

  CommandQueue* queue;
  const bool retains;
  std::vector<Object*> retained;
  std::vector<std::function<void()>> steps;
  std::string spoiled;
  Encoder* open = nullptr;
  std::vector<Block*> handlers;

  std::mutex mutex;
  std::condition_variable changed;
  unsigned long status = kNotEnqueued;
  bool is_over = false;  // handlers and all
  Error* error = nullptr;
  double begin = 0, end = 0;
};

struct Encoder final : Object {
  Encoder(CommandBuffer* of, bool runs_serially);
  ~Encoder() override;
  bool is_usable(const char* what);
  void bind(unsigned long index, Dispatch::Bound bound);
  void dispatch(Size groups, Size threads);
  void close_batch();

  CommandBuffer* const buffer;
  const uint64_t number;
  const bool serial;
  bool ended = false;
  Dispatch next;
  std::vector<Dispatch> batch;  // since the last barrier: in any order
  Ordered after;                // encoders that a fence put before what is encoded now
};

void define_metal_commands();

}  // namespace fake
