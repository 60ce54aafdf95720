// SPDX-License-Identifier: MIT
//
// Queues, command buffers, encoders and events. Each queue has a thread that runs what was committed in
// order; handlers are called on a thread of their own, as Metal does. Buffers that Metal does not track are
// ordered between encoders by fences alone; who forgets one has a fault, whatever the order of the run.
// A fault of the host spoils its command buffer: it ends with an error that says what was wrong.
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "metal.h"

namespace fake {

struct QueueState {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<CommandBuffer*> committed;
  bool closing = false;
};

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_us(int64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// How a command buffer ended, when not well.
struct Failure {
  long code;
  std::string text;
};

std::string text_of_code(long code) {
  switch (code) {
    case kTimeout: return "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)";
    case 3: return "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)";
    case kAccessRevoked:
      return "Ignored (for causing prior/excessive GPU errors) "
             "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)";
    case kOutOfMemory: return "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)";
    default: return "Internal Error (0000000e:kIOGPUCommandBufferCallbackErrorInternal)";
  }
}

// --- running

struct Completions {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<CommandBuffer*> done;

  static Completions& all() {
    static Completions& one = *new Completions;
    return one;
  }
  Completions() { std::thread([this] { work(); }).detach(); }

  void add(CommandBuffer* buffer) {
    const std::lock_guard lock(mutex);
    done.push_back(buffer);
    changed.notify_all();
  }

  void work() {
    for (;;) {
      CommandBuffer* buffer = nullptr;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return !done.empty(); });
        buffer = done.front();
        done.pop_front();
      }
      sleep_us(setting("late_handlers_us"));
      push_pool(buffer);
      for (Block* handler : buffer->handlers) call_block(handler, buffer);
      pop_pool(buffer);
      {
        const std::lock_guard lock(buffer->mutex);
        buffer->is_over = true;
        buffer->changed.notify_all();
      }
      release(buffer);
    }
  }
};

void set_status(CommandBuffer* buffer, unsigned long status) {
  const std::lock_guard lock(buffer->mutex);
  buffer->status = status;
  buffer->changed.notify_all();
}

// Runs a buffer's steps up to the first that fails.
void run(CommandBuffer* buffer) {
  const int64_t nth = count("command buffers run");
  set_status(buffer, kScheduled);
  buffer->begin = now_seconds();
  try {
    if (setting("lose_device") != 0 && nth >= setting("lose_device")) {
      throw Failure{kAccessRevoked, text_of_code(kAccessRevoked)};
    }
    if (nth == setting("fail_command")) throw Failure{setting("fail_code"), text_of_code(setting("fail_code"))};
    if (!buffer->spoiled.empty()) throw Failure{kInvalidResource, buffer->spoiled};
    for (const auto& step : buffer->steps) step();
  } catch (const Failure& failure) {
    buffer->error = new Error("MTLCommandBufferErrorDomain", failure.code, failure.text);
  }
  buffer->end = now_seconds();
  set_status(buffer, buffer->error != nullptr ? kFailed : kCompleted);
  Completions::all().add(buffer);
}

void work(const std::shared_ptr<QueueState>& state) {
  for (;;) {
    CommandBuffer* buffer = nullptr;
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->closing || !state->committed.empty(); });
      if (state->committed.empty()) return;
      buffer = state->committed.front();
      state->committed.pop_front();
    }
    run(buffer);
  }
}

[[noreturn]] void fail(const std::string& text) {
  fault(text);
  throw Failure{kInvalidResource, text};
}

void wait_for(const SharedEvent* event, EventState& state, uint64_t value) {
  const double begin = now_seconds();
  std::unique_lock lock(state.mutex);
  for (;;) {
    if (!is_alive(event)) fail("a queue waits for an event that is gone: " + described(event));
    if (state.value >= value) return;
    state.changed.wait_for(lock, std::chrono::milliseconds(20));
    const int64_t limit = setting("wait_limit_ms");
    if (limit != 0 && (now_seconds() - begin) * 1e3 > static_cast<double>(limit)) {
      throw Failure{kTimeout, text_of_code(kTimeout)};
    }
  }
}

bool is_resident(CommandQueue* queue, const Dispatch& d, Buffer* buffer) {
  if (d.used.count(buffer) != 0) return true;
  const std::lock_guard lock(queue->mutex);
  return std::ranges::any_of(queue->sets, [&](ResidencySet* set) {
    const std::lock_guard inner(set->mutex);
    return set->committed.count(buffer) != 0;
  });
}

void run(CommandQueue* queue, const Dispatch& d) {
  if (!is_alive(d.pipeline)) fail("a dispatch's pipeline is gone: " + described(d.pipeline));
  std::vector<simt::Buffer> buffers;
  for (const auto& [index, bound] : d.bound) {
    buffers.resize(index + 1);
    const std::string name = d.pipeline->kernel + ": buffer " + std::to_string(index);
    if (bound.buffer == nullptr) {
      buffers[index] = {const_cast<uint8_t*>(bound.bytes.data()), bound.bytes.size()};
      continue;
    }
    if (!is_alive(bound.buffer)) fail(name + " is gone before the kernel ran");
    if (!is_resident(queue, d, bound.buffer)) {
      fail(name + " is not resident: in no committed set of its queue, and not named by useResource");
    }
    buffers[index] = {static_cast<uint8_t*>(bound.buffer->data) + bound.offset, bound.buffer->bytes - bound.offset};
  }
  static thread_local std::minstd_rand random{1};
  if (const int64_t slow = setting("slow_us"); slow > 0) sleep_us(random() % slow);
  const auto narrow = [](unsigned long n) { return static_cast<uint32_t>(n); };
  const std::string error = d.pipeline->library->run(
      d.pipeline->index, buffers,
      {narrow(d.groups.x), narrow(d.groups.y), narrow(d.groups.z), narrow(d.threads.x), narrow(d.threads.y),
       narrow(d.threads.z)},
      d.pipeline->constants, d.threadgroup_bytes, simt::order_of_environment());
  count("dispatches");
  if (!error.empty()) fail(d.pipeline->kernel + ": " + error);
}

}  // namespace

// --- queues

CommandQueue::CommandQueue() : Object("MTLCommandQueue"), state(std::make_shared<QueueState>()) {
  std::thread([s = state] { work(s); }).detach();
}

CommandQueue::~CommandQueue() {
  {
    const std::lock_guard lock(state->mutex);
    state->closing = true;
    state->changed.notify_all();
  }
  for (ResidencySet* set : sets) release(set);
}

void Ordered::add(const Ordered& other) {
  all_below = std::max(all_below, other.all_below);
  also.insert(other.also.begin(), other.also.end());
  while (also.erase(all_below) != 0) ++all_below;
  also.erase(also.begin(), also.lower_bound(all_below));
}

// --- command buffers

CommandBuffer::CommandBuffer(CommandQueue* of, bool keeps_what_it_uses)
    : Object("MTLCommandBuffer"), queue(retain(of)), retains(keeps_what_it_uses) {}

CommandBuffer::~CommandBuffer() {
  if (status == kNotEnqueued && !steps.empty()) fault("never committed: " + described(this));
  for (Object* o : retained) release(o);
  for (Block* handler : handlers) release_block(handler);
  if (error != nullptr) release(error);
  release(queue);
}

void CommandBuffer::spoil(const std::string& text) {
  fault(text);
  if (spoiled.empty()) spoiled = text;
}

bool CommandBuffer::can_encode(const char* what) {
  if (status != kNotEnqueued) {
    fault(std::string(what) + " after commit");
    return false;
  }
  if (open != nullptr) spoil(std::string(what) + " while an encoder is open");
  return true;
}

// --- encoders

Encoder::Encoder(CommandBuffer* of, bool runs_serially)
    : Object("MTLComputeCommandEncoder"), buffer(retain(of)), number(++of->queue->encoders), serial(runs_serially) {
  buffer->open = this;
}

Encoder::~Encoder() {
  if (!ended) buffer->spoil("an encoder was let go without endEncoding");
  if (buffer->open == this) buffer->open = nullptr;
  release(buffer);
}

bool Encoder::is_usable(const char* what) {
  if (!ended) return true;
  fault(std::string(what) + " after endEncoding");
  return false;
}

void Encoder::bind(unsigned long index, Dispatch::Bound bound) {
  constexpr unsigned long kBuffersMost = 31;
  if (index >= kBuffersMost) return buffer->spoil("buffer index " + std::to_string(index) + ": there are 31");
  if (bound.buffer != nullptr) {
    if (!is_alive(bound.buffer)) die("setBuffer: of a dead " + described(bound.buffer));
    if (bound.offset >= bound.buffer->bytes) {
      return buffer->spoil("buffer " + std::to_string(index) + ": offset " + std::to_string(bound.offset) + " of " +
                           std::to_string(bound.buffer->bytes) + " bytes");
    }
    if (buffer->retains) buffer->retained.push_back(retain(bound.buffer));
  }
  next.bound[index] = std::move(bound);
}

void Encoder::dispatch(Size groups, Size threads) {
  if (!is_usable("dispatchThreadgroups")) return;
  if (next.pipeline == nullptr) return buffer->spoil("dispatchThreadgroups without a pipeline");
  const unsigned long n = threads.x * threads.y * threads.z;
  if (n == 0 || n > next.pipeline->threads_max) {
    return buffer->spoil(next.pipeline->kernel + ": " + std::to_string(n) + " threads a threadgroup, at most " +
                         std::to_string(next.pipeline->threads_max));
  }
  // Who wrote or read the same memory, on this queue, without a fence between.
  for (const auto& [index, bound] : next.bound) {
    const auto parameter = next.pipeline->text.buffers.find(index);
    if (bound.buffer == nullptr || bound.buffer->is_tracked() || parameter == next.pipeline->text.buffers.end()) continue;
    CommandQueue::Touched& touched = buffer->queue->touched[bound.buffer];
    const auto is_loose = [&](uint64_t encoder) { return encoder != 0 && encoder != number && !after.has(encoder); };
    const bool writes = parameter->second.writable;
    if (is_loose(touched.wrote) || (writes && std::ranges::any_of(touched.read, is_loose))) {
      buffer->spoil(next.pipeline->kernel + ": no fence orders it after an encoder that uses its buffer " +
                    parameter->second.name);
    }
    if (writes) {
      touched.wrote = number;
      touched.read.clear();
    } else {
      std::erase_if(touched.read, [&](uint64_t encoder) { return after.has(encoder); });
      touched.read.insert(number);
    }
  }
  Dispatch d = next;
  d.groups = groups;
  d.threads = threads;
  batch.push_back(std::move(d));
  if (serial) close_batch();
}

// Dispatches that may overlap run in one order or another.
void Encoder::close_batch() {
  static std::mt19937& random = *new std::mt19937(1);
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  const simt::Order order = simt::order_of_environment();
  if (order == simt::Order::kReverse) std::ranges::reverse(batch);
  if (order == simt::Order::kRandom) std::ranges::shuffle(batch, random);
  for (Dispatch& d : batch) {
    buffer->steps.push_back([queue = buffer->queue, d = std::move(d)] { run(queue, d); });
  }
  batch.clear();
}

// --- events

void EventState::set(uint64_t to, const char* who) {
  const std::lock_guard lock(mutex);
  if (to < value) {
    fault(std::string(who) + " sets an event from " + std::to_string(value) + " back to " + std::to_string(to));
  }
  value = to;
  changed.notify_all();
}

// --- the classes

namespace {

void commit(CommandBuffer* self) {
  if (self->status != kNotEnqueued) return fault("committed twice: " + described(self));
  if (self->open != nullptr) self->spoil("commit while an encoder is open");
  set_status(self, kCommitted);
  retain(self);
  const std::lock_guard lock(self->queue->state->mutex);
  self->queue->state->committed.push_back(self);
  self->queue->state->changed.notify_all();
}

void define_queues() {
  const char* queue = "MTLCommandQueue";
  method(queue, "commandBuffer",
         +[](CommandQueue* self, Selector) { return autorelease(new CommandBuffer(self, true)); });
  method(queue, "commandBufferWithUnretainedReferences",
         +[](CommandQueue* self, Selector) { return autorelease(new CommandBuffer(self, false)); });
  method(queue, "addResidencySet:",
         +[](CommandQueue* self, Selector, ResidencySet* set) {
           const std::lock_guard lock(self->mutex);
           if (self->sets.insert(set).second) retain(set);
         },
         15);
  method(queue, "removeResidencySet:",
         +[](CommandQueue* self, Selector, ResidencySet* set) {
           const std::lock_guard lock(self->mutex);
           if (self->sets.erase(set) != 0) release(set);
         },
         15);
}

void define_command_buffers() {
  const char* buffer = "MTLCommandBuffer";
  method(buffer, "computeCommandEncoderWithDispatchType:",
         +[](CommandBuffer* self, Selector, unsigned long type) -> Encoder* {
           if (!self->can_encode("computeCommandEncoder")) return nullptr;
           return autorelease(new Encoder(self, type == 0));
         });
  method(buffer, "computeCommandEncoder", +[](CommandBuffer* self, Selector) -> Encoder* {
    if (!self->can_encode("computeCommandEncoder")) return nullptr;
    return autorelease(new Encoder(self, true));
  });
  method(buffer, "encodeSignalEvent:value:", +[](CommandBuffer* self, Selector, SharedEvent* event, uint64_t value) {
    if (!self->can_encode("encodeSignalEvent")) return;
    if (self->retains) self->retained.push_back(retain(event));
    self->steps.push_back([event, state = event->state, value] {
      if (!is_alive(event)) fail("a queue signals an event that is gone: " + described(event));
      const int64_t nth = count("signals"), lost = setting("lose_signal");
      if (lost == 0 || nth < lost) state->set(value, "a queue");
    });
  });
  method(buffer, "encodeWaitForEvent:value:", +[](CommandBuffer* self, Selector, SharedEvent* event, uint64_t value) {
    if (!self->can_encode("encodeWaitForEvent")) return;
    if (self->retains) self->retained.push_back(retain(event));
    self->steps.push_back([event, state = event->state, value] { wait_for(event, *state, value); });
  });
  method(buffer, "addCompletedHandler:", +[](CommandBuffer* self, Selector, const void* block) {
    if (self->status != kNotEnqueued) return fault("addCompletedHandler after commit");
    self->handlers.push_back(copy_block(block));
  });
  method(buffer, "commit", +[](CommandBuffer* self, Selector) { commit(self); });
  method(buffer, "status", +[](CommandBuffer* self, Selector) {
    const std::lock_guard lock(self->mutex);
    return self->status;
  });
  method(buffer, "error", +[](CommandBuffer* self, Selector) {
    const std::lock_guard lock(self->mutex);
    return self->status == kFailed ? self->error : nullptr;
  });
  method(buffer, "GPUStartTime", +[](CommandBuffer* self, Selector) { return self->begin; });
  method(buffer, "GPUEndTime", +[](CommandBuffer* self, Selector) { return self->end; });
  method(buffer, "waitUntilCompleted", +[](CommandBuffer* self, Selector) {
    std::unique_lock lock(self->mutex);
    if (self->status == kNotEnqueued) return fault("waitUntilCompleted before commit");
    self->changed.wait(lock, [&] { return self->is_over; });
  });
}

void define_encoders() {
  const char* encoder = "MTLComputeCommandEncoder";
  method(encoder, "setComputePipelineState:", +[](Encoder* self, Selector, Pipeline* pipeline) {
    if (!self->is_usable("setComputePipelineState")) return;
    if (pipeline != nullptr && !is_alive(pipeline)) die("setComputePipelineState: a dead " + described(pipeline));
    if (self->buffer->retains) self->buffer->retained.push_back(retain(pipeline));
    self->next.pipeline = pipeline;
  });
  method(encoder, "setBuffer:offset:atIndex:",
         +[](Encoder* self, Selector, Buffer* buffer, unsigned long offset, unsigned long index) {
           if (!self->is_usable("setBuffer")) return;
           if (buffer == nullptr) {
             self->next.bound.erase(index);
           } else {
             self->bind(index, {buffer, offset, {}});
           }
         });
  method(encoder, "setBytes:length:atIndex:",
         +[](Encoder* self, Selector, const uint8_t* bytes, unsigned long n, unsigned long index) {
           if (!self->is_usable("setBytes")) return;
           if (n == 0 || n > kSetBytesMost) {
             return self->buffer->spoil("setBytes of " + std::to_string(n) + " bytes, want 1 to " +
                                        std::to_string(kSetBytesMost));
           }
           self->bind(index, {nullptr, 0, {bytes, bytes + n}});
         });
  method(encoder, "setThreadgroupMemoryLength:atIndex:",
         +[](Encoder* self, Selector, unsigned long n, unsigned long index) {
           if (n % 16 != 0) self->buffer->spoil("setThreadgroupMemoryLength: want a multiple of 16");
           self->next.threadgroup_bytes.resize(std::max(self->next.threadgroup_bytes.size(), index + 1));
           self->next.threadgroup_bytes[index] = n;
         });
  method(encoder, "dispatchThreadgroups:threadsPerThreadgroup:",
         +[](Encoder* self, Selector, Size groups, Size threads) { self->dispatch(groups, threads); });
  method(encoder, "memoryBarrierWithScope:", +[](Encoder* self, Selector, unsigned long scope) {
    if (!self->is_usable("memoryBarrier")) return;
    if ((scope & 1) != 0) self->close_batch();
  });
  method(encoder, "useResource:usage:", +[](Encoder* self, Selector, Object* resource, unsigned long) {
    self->next.used.insert(resource);
  });
  method(encoder, "useResources:count:usage:",
         +[](Encoder* self, Selector, Object* const* resources, unsigned long n, unsigned long) {
           self->next.used.insert(resources, resources + n);
         });
  method(encoder, "waitForFence:", +[](Encoder* self, Selector, Fence* fence) {
    if (!self->is_usable("waitForFence")) return;
    self->after.add(self->buffer->queue->fences[fence]);
  });
  method(encoder, "updateFence:", +[](Encoder* self, Selector, Fence* fence) {
    if (!self->is_usable("updateFence")) return;
    Ordered& ordered = self->buffer->queue->fences[fence];
    ordered = self->after;
    ordered.add({1, {self->number}});
  });
  method(encoder, "endEncoding", +[](Encoder* self, Selector) {
    if (!self->is_usable("endEncoding")) return;
    self->close_batch();
    self->ended = true;
    self->buffer->open = nullptr;
  });
}

void define_events() {
  const char* event = "MTLSharedEvent";
  method(event, "signaledValue", +[](SharedEvent* self, Selector) {
    const std::lock_guard lock(self->state->mutex);
    return self->state->value;
  });
  method(event, "setSignaledValue:",
         +[](SharedEvent* self, Selector, uint64_t value) { self->state->set(value, "the host"); });
  method(event, "waitUntilSignaledValue:timeoutMS:", +[](SharedEvent* self, Selector, uint64_t value, uint64_t ms) {
    EventState& state = *self->state;
    std::unique_lock lock(state.mutex);
    return state.changed.wait_for(lock, std::chrono::milliseconds(ms), [&] { return state.value >= value; });
  });
}

}  // namespace

void define_metal_commands() {
  define_queues();
  define_command_buffers();
  define_encoders();
  define_events();
}

}  // namespace fake
