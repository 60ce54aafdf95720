// SPDX-License-Identifier: MIT
//
// Who orders what on the GPU: nothing is tracked by Metal (buffers are untracked, dispatches of an encoder
// run at once). Within an encoder the lowering's barriers order; from one encoder of a queue to the next a
// fence does; between queues, and between queue and host, events do.
// Memory is the host's own, wrapped without a copy, so that files are read straight to where kernels look
// and pages can be given back. All of it lies in two residency sets that every queue carries.
#include "backends/gpu/metal/metal_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "backends/gpu/metal/metal_pipelines.h"
#include "base/aligned_buffer.h"
#include "base/error.h"
#include "base/units.h"

namespace esker::gpu {
namespace {

// Objects that Metal gives without owning them are released when one of these ends.
class Pool {
 public:
  Pool() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~Pool() { pool_->release(); }
  Pool(const Pool&) = delete;

 private:
  NS::AutoreleasePool* pool_;
};

class MetalKernel final : public Kernel {
 public:
  explicit MetalKernel(PipelinePtr pipeline) : pipeline_(std::move(pipeline)) {}
  MTL::ComputePipelineState* pipeline() const { return pipeline_.get(); }

 private:
  PipelinePtr pipeline_;
};

// The buffers that kernels may touch, resident whenever one of the queues runs. On macOS 14, which has no
// such sets, encoders name the buffers they use.
class Residency {
 public:
  explicit Residency(MTL::Device* device) {
    if (!is_macos(15)) return;
    const auto descriptor = NS::TransferPtr(MTL::ResidencySetDescriptor::alloc()->init());
    NS::Error* error = nullptr;
    set_ = NS::TransferPtr(device->newResidencySet(descriptor.get(), &error));
    if (!set_) raise_metal("Metal gives no residency set", error, "", "");
  }
  MTL::ResidencySet* set() const { return set_.get(); }

  void add(MTL::Buffer* buffer) {
    const std::lock_guard lock(mutex_);
    if (set_) set_->addAllocation(buffer);
    changed_ = true;
  }
  void remove(MTL::Buffer* buffer) {
    const std::lock_guard lock(mutex_);
    if (set_) set_->removeAllocation(buffer);
    changed_ = true;
  }
  // Before any command that uses what was added.
  void settle(bool keep_resident) {
    const std::lock_guard lock(mutex_);
    if (!set_ || !std::exchange(changed_, false)) return;
    set_->commit();
    if (keep_resident) set_->requestResidency();
  }
  void end() {
    if (set_) set_->endResidency();
  }

 private:
  NS::SharedPtr<MTL::ResidencySet> set_;
  std::mutex mutex_;
  bool changed_ = false;
};

// What a device and its memory share.
struct Shared {
  explicit Shared(MTL::Device* d) : device(NS::RetainPtr(d)), own(d), mapped(d) {}

  void settle() {
    own.settle(true);
    mapped.settle(wire);
  }

  NS::SharedPtr<MTL::Device> device;
  Residency own;     // arena, scratch, state: kept resident, or each run would begin by making them so
  Residency mapped;  // the file's pages: kept resident only where the user asked to wire them
  bool wire = false;
};

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Memory of the host under a Metal buffer, which covers whole pages.
class MetalMemory final : public DeviceMemory {
 public:
  MetalMemory(std::shared_ptr<Shared> shared, size_t bytes, const char* purpose)
      : shared_(std::move(shared)), residency_(shared_->own), own_(align_up(bytes, page_bytes()), purpose), data_(own_.data()),
        bytes_(bytes), purpose_(purpose) {
    wrap(bytes);
  }
  MetalMemory(std::shared_ptr<Shared> shared, const uint8_t* data, size_t bytes, const char* what)
      : shared_(std::move(shared)), residency_(shared_->mapped), data_(const_cast<uint8_t*>(data)), bytes_(bytes),
        purpose_(what) {
    lead_ = reinterpret_cast<uintptr_t>(data) % page_bytes();
    wrap(bytes);
  }
  ~MetalMemory() override { unwrap(); }

  uint8_t* host() override { return data_; }
  size_t size_bytes() const override { return bytes_; }

  MTL::Buffer* buffer() const { return buffer_.get(); }
  uint64_t lead() const { return lead_; }  // of data_ in the buffer

  // Kernels will use the first `bytes` only: as long as pages belong to a buffer they stay in memory.
  void cover(size_t bytes) {
    unwrap();
    if (bytes < covered_) {
      release_pages_behind(data_, own_.size_bytes(), bytes);
    } else {
      reuse_pages_behind(data_, bytes, covered_);
    }
    wrap(bytes);
  }
  size_t covered_bytes() const { return covered_; }

 private:
  void wrap(size_t bytes) {
    const size_t length = align_up(lead_ + bytes, page_bytes());
    const size_t most = shared_->device->maxBufferLength();
    if (length <= most) {
      buffer_ = NS::TransferPtr(shared_->device->newBuffer(
          data_ - lead_, length, MTL::ResourceStorageModeShared | MTL::ResourceHazardTrackingModeUntracked,
          nullptr));
    }
    if (!buffer_) {
      raise(ErrorKind::kPlan, "metal",
            {.what = std::string("the GPU cannot be given the memory of ") + purpose_,
             .got = format_bytes(length),
             .want = "at most " + format_bytes(most) + " at once, " +
                     format_bytes(shared_->device->recommendedMaxWorkingSetSize()) + " in all",
             .where = {},
             .hint = "lower --memory, --arena or --context"});
    }
    covered_ = bytes;
    residency_.add(buffer_.get());
  }
  void unwrap() {
    if (!buffer_) return;
    residency_.remove(buffer_.get());
    buffer_ = {};
    shared_->settle();
  }

  const std::shared_ptr<Shared> shared_;  // memory may outlive the device
  Residency& residency_;
  AlignedBuffer own_;
  uint8_t* data_;
  size_t bytes_, covered_ = 0;
  uint64_t lead_ = 0;
  const char* purpose_;
  NS::SharedPtr<MTL::Buffer> buffer_;
};

class MetalEvent final : public Event {
 public:
  explicit MetalEvent(MTL::Device* device) : event_(NS::TransferPtr(device->newSharedEvent())) {
    if (!event_) raise_metal("Metal gives no shared event", nullptr, "", "");
  }
  MTL::SharedEvent* event() const { return event_.get(); }

  void set(uint64_t value) override {
    if (event_->signaledValue() < value) event_->setSignaledValue(value);
  }
  bool wait(uint64_t value, int64_t timeout_ns) override {
    if (event_->signaledValue() >= value) return true;
    if (timeout_ns <= 0) return false;
    return event_->waitUntilSignaledValue(value, static_cast<uint64_t>((timeout_ns + 999'999) / 1'000'000));
  }

 private:
  NS::SharedPtr<MTL::SharedEvent> event_;
};

// What a queue's completion handlers, which run on threads of Metal, leave for the next sync. They may run
// when the queue is gone.
struct Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t running = 0;  // command buffers handed over and not completed
  double seconds = 0;
  std::string error;     // of the first that failed
};

class MetalQueue final : public Queue {
 public:
  explicit MetalQueue(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    queue_ = NS::TransferPtr(shared_->device->newCommandQueue());
    fence_ = NS::TransferPtr(shared_->device->newFence());
    if (!queue_ || !fence_) raise_metal("Metal gives no command queue", nullptr, "", "");
    for (const Residency* r : {&shared_->own, &shared_->mapped}) {
      if (r->set() != nullptr) queue_->addResidencySet(r->set());
    }
  }

  void dispatch(const Dispatch& d) override {
    MTL::ComputePipelineState* pipeline = static_cast<const MetalKernel*>(d.kernel)->pipeline();
    const NS::UInteger threads = NS::UInteger{d.threads.x} * d.threads.y * d.threads.z;
    if (threads > pipeline->maxTotalThreadsPerThreadgroup()) {
      raise(ErrorKind::kDevice, "metal",
            {.what = "this GPU cannot run a kernel with so many threads",
             .got = std::to_string(threads),
             .want = "at most " + std::to_string(pipeline->maxTotalThreadsPerThreadgroup()),
             .where = label_of(pipeline),
             .hint = "run `esker tune`, or the model on the cpu backend"});
    }
    MTL::ComputeCommandEncoder* encoder = open_encoder();
    encoder->setComputePipelineState(pipeline);
    encoder->setBytes(d.args.data(), d.args.size(), 0);
    NS::UInteger index = 1;
    for (const Binding& b : d.buffers) {
      const auto* memory = static_cast<const MetalMemory*>(b.memory);
      encoder->setBuffer(memory->buffer(), memory->lead() + b.offset_bytes, index++);
      if (shared_->own.set() == nullptr && used_.insert(memory->buffer()).second) {
        encoder->useResource(memory->buffer(), MTL::ResourceUsageRead | MTL::ResourceUsageWrite);
      }
    }
    encoder->dispatchThreadgroups(MTL::Size::Make(d.groups.x, d.groups.y, d.groups.z),
                                  MTL::Size::Make(d.threads.x, d.threads.y, d.threads.z));
  }

  void barrier() override {
    if (encoder_) encoder_->memoryBarrier(MTL::BarrierScopeBuffers);
  }

  void signal(Event& event, uint64_t value) override {
    close_encoder();
    open_buffer()->encodeSignalEvent(static_cast<MetalEvent&>(event).event(), value);
  }

  void wait(Event& event, uint64_t value) override {
    close_encoder();
    open_buffer()->encodeWait(static_cast<MetalEvent&>(event).event(), value);
  }

  void commit() override {
    close_encoder();
    if (!buffer_) return;
    shared_->settle();
    {
      const std::lock_guard lock(outcome_->mutex);
      ++outcome_->running;
    }
    buffer_->addCompletedHandler([outcome = outcome_](MTL::CommandBuffer* done) {
      const Pool pool;
      std::string error;
      if (done->status() == MTL::CommandBufferStatusError) error = text_of(done->error());
      const std::lock_guard lock(outcome->mutex);
      --outcome->running;
      outcome->seconds += done->GPUEndTime() - done->GPUStartTime();
      if (outcome->error.empty()) outcome->error = error;
      outcome->changed.notify_all();
    });
    buffer_->commit();
    buffer_ = {};
  }

  bool finish(int64_t timeout_ns) override {
    std::unique_lock lock(outcome_->mutex);
    const bool done =
        outcome_->changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                   [&] { return outcome_->running == 0 || !outcome_->error.empty(); });
    if (outcome_->error.empty()) return done;
    const std::string error = std::exchange(outcome_->error, {});
    lock.unlock();
    const Pool pool;
    raise(ErrorKind::kDevice, "metal",
          {.what = "the GPU stopped at an error",
           .got = error,
           .want = "commands that run to their end",
           .where = shared_->device->name()->utf8String(),
           .hint = "memory may be short: lower --memory or --arena; or run on the cpu backend"});
  }

  int64_t device_ns() const override {
    const std::lock_guard lock(outcome_->mutex);
    return static_cast<int64_t>(outcome_->seconds * 1e9);
  }

 private:
  static std::string text_of(const NS::Error* error) {
    if (error == nullptr) return "an error without a description";
    return std::string(error->localizedDescription()->utf8String()) + " (code " +
           std::to_string(error->code()) + ")";
  }
  static std::string label_of(const MTL::ComputePipelineState* pipeline) {
    const Pool pool;
    const NS::String* label = pipeline->label();
    return label != nullptr ? label->utf8String() : "";
  }

  MTL::CommandBuffer* open_buffer() {
    if (!buffer_) {
      const Pool pool;
      // Whoever uses the backend keeps its memory until all has run.
      buffer_ = NS::RetainPtr(queue_->commandBufferWithUnretainedReferences());
      if (!buffer_) raise_metal("Metal gives no command buffer", nullptr, "", "");
    }
    return buffer_.get();
  }

  MTL::ComputeCommandEncoder* open_encoder() {
    if (!encoder_) {
      const Pool pool;
      encoder_ = NS::RetainPtr(open_buffer()->computeCommandEncoder(MTL::DispatchTypeConcurrent));
      if (!encoder_) raise_metal("Metal gives no encoder", nullptr, "", "");
      if (std::exchange(has_fence_, true)) encoder_->waitForFence(fence_.get());
    }
    return encoder_.get();
  }

  void close_encoder() {
    if (!encoder_) return;
    encoder_->updateFence(fence_.get());
    encoder_->endEncoding();
    encoder_ = {};
    used_.clear();
  }

  const std::shared_ptr<Shared> shared_;
  NS::SharedPtr<MTL::CommandQueue> queue_;
  NS::SharedPtr<MTL::Fence> fence_;
  NS::SharedPtr<MTL::CommandBuffer> buffer_;            // being encoded
  NS::SharedPtr<MTL::ComputeCommandEncoder> encoder_;  // of buffer_
  std::set<const MTL::Buffer*> used_;                  // of encoder_, on macOS 14
  bool has_fence_ = false;                             // an encoder before has updated it, or will
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

// Row of the tile tables.
const char* family_of(MTL::Device* device) {
  constexpr std::pair<MTL::GPUFamily, const char*> kFamilies[] = {{MTL::GPUFamilyApple10, "apple10"},
                                                                  {MTL::GPUFamilyApple9, "apple9"},
                                                                  {MTL::GPUFamilyApple8, "apple8"},
                                                                  {MTL::GPUFamilyApple7, "apple7"}};
  for (const auto& [family, name] : kFamilies) {
    if (device->supportsFamily(family)) return name;
  }
  raise(ErrorKind::kDevice, "metal",
        {.what = "the kernels do not run on this GPU",
         .got = device->name()->utf8String(),
         .want = "an Apple M1 or newer",
         .where = {},
         .hint = "run the model on the cpu backend"});
}

class MetalDevice final : public Device {
 public:
  MetalDevice(MTL::Device* device, const DeviceOptions& options)
      : family_(family_of(device)), shared_(std::make_shared<Shared>(device)), pipelines_(device, options.cache_folder) {
    shared_->wire = options.wire;
    const Pool pool;
    description_ = std::string(device->name()->utf8String()) + ", " +
                   format_bytes(device->recommendedMaxWorkingSetSize()) + " for the GPU, macOS " +
                   NS::ProcessInfo::processInfo()->operatingSystemVersionString()->utf8String();
  }
  ~MetalDevice() override {
    shared_->own.end();
    if (shared_->wire) shared_->mapped.end();
  }

  const char* name() const override { return "metal"; }
  const char* family() const override { return family_; }
  std::string description() const override { return description_; }

  std::unique_ptr<DeviceMemory> allocate(size_t bytes, MemoryUse, const char* purpose) override {
    const Pool pool;
    return std::make_unique<MetalMemory>(shared_, bytes, purpose);
  }
  std::unique_ptr<DeviceMemory> wrap(const uint8_t* data, size_t bytes, const char* what) override {
    const Pool pool;
    return std::make_unique<MetalMemory>(shared_, data, bytes, what);
  }
  std::vector<std::unique_ptr<Kernel>> kernels(std::span<const KernelSpec> specs) override {
    std::vector<std::unique_ptr<Kernel>> made;
    for (PipelinePtr& p : pipelines_.make(specs)) made.push_back(std::make_unique<MetalKernel>(std::move(p)));
    return made;
  }
  std::unique_ptr<Event> event() override { return std::make_unique<MetalEvent>(shared_->device.get()); }
  std::unique_ptr<Queue> queue() override { return std::make_unique<MetalQueue>(shared_); }

  void trim(DeviceMemory& memory, size_t keep_bytes) override {
    const Pool pool;
    auto& of = static_cast<MetalMemory&>(memory);
    if (keep_bytes < of.covered_bytes()) of.cover(keep_bytes);
  }
  void extend(DeviceMemory& memory, size_t bytes) override {
    const Pool pool;
    auto& of = static_cast<MetalMemory&>(memory);
    if (bytes > of.covered_bytes()) of.cover(bytes);
  }

 private:
  const char* family_;
  const std::shared_ptr<Shared> shared_;
  Pipelines pipelines_;
  std::string description_;
};

}  // namespace

std::unique_ptr<Device> make_metal_device(const DeviceOptions& options) {
  const Pool pool;
  const auto device = NS::TransferPtr(MTL::CreateSystemDefaultDevice());
  if (!device) {
    raise(ErrorKind::kDevice, "metal",
          {.what = "this machine has no Metal device", .got = {}, .want = "an Apple M1 or newer", .where = {},
           .hint = "a virtual machine or a remote session may have none: run the model on the cpu backend"});
  }
  return std::make_unique<MetalDevice>(device.get(), options);
}

}  // namespace esker::gpu
