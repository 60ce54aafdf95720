// SPDX-License-Identifier: MIT
//
// The simt device: gpu::Device on the CPU, with a thread that takes what queues commit, so that host and
// device run side by side as on a GPU. The kernels, and the order in which they run where that is open, come
// as kernel_libraries.h says.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "backends/gpu/devices.h"
#include "base/aligned_buffer.h"
#include "base/error.h"
#include "kernel_libraries.h"

namespace esker::gpu {
namespace {

class SimtMemory final : public DeviceMemory {
 public:
  SimtMemory(size_t bytes, const char* purpose)
      : own_(std::make_unique<AlignedBuffer>(bytes, purpose)), data_(own_->data()), bytes_(bytes) {}
  SimtMemory(const uint8_t* data, size_t bytes) : data_(const_cast<uint8_t*>(data)), bytes_(bytes) {}
  uint8_t* host() override { return data_; }
  size_t size_bytes() const override { return bytes_; }

 private:
  std::unique_ptr<AlignedBuffer> own_;
  uint8_t* data_;  // written only where own_ is
  size_t bytes_;
};

class SimtKernel final : public Kernel {
 public:
  SimtKernel(const simt::KernelLibraries::Place& place, std::span<const Constant> constants)
      : library_(*place.first), index_(place.second) {
    for (const Constant& c : constants) {
      if (library_.constant_type(index_, c.index) != nullptr) values_.push_back({c.index, c.value});
    }
  }
  std::string name() const { return library_.name(index_); }
  // Empty when all is well.
  std::string run(std::span<const simt::Buffer> buffers, const Extent& groups, const Extent& threads,
                  simt::Order order) const {
    return library_.run(index_, buffers, {groups.x, groups.y, groups.z, threads.x, threads.y, threads.z}, values_,
                        {}, order);
  }

 private:
  const simt::KernelLibrary& library_;
  const size_t index_;
  std::vector<simt::ConstantValue> values_;
};

class SimtEvent final : public Event {
 public:
  void set(uint64_t value) override {
    const std::lock_guard lock(mutex_);
    value_ = std::max(value_, value);
    changed_.notify_all();
  }
  bool wait(uint64_t value, int64_t timeout_ns) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return value_ >= value; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t value_ = 0;
};

class SimtQueue final : public Queue {
 public:
  explicit SimtQueue(simt::Order order) : order_(order), thread_([this] { work(); }) {}
  ~SimtQueue() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  void dispatch(const Dispatch& d) override {
    Ready r{.kernel = static_cast<const SimtKernel*>(d.kernel),
            .args = {d.args.begin(), d.args.end()},
            .buffers = {},
            .groups = d.groups,
            .threads = d.threads};
    for (const Binding& b : d.buffers) {
      if (b.memory == nullptr || b.offset_bytes >= b.memory->size_bytes()) {
        throw std::logic_error(r.kernel->name() + ": a buffer is not bound");
      }
      r.buffers.push_back({b.memory->host() + b.offset_bytes, b.memory->size_bytes() - b.offset_bytes});
    }
    batch_.push_back(std::move(r));
  }
  void barrier() override { close_batch(); }
  void signal(Event& event, uint64_t value) override {
    close_batch();
    encoded_.push_back([&event, value] { event.set(value); });
  }
  void wait(Event& event, uint64_t value) override {
    close_batch();
    encoded_.push_back([this, &event, value] {
      while (!event.wait(value, 10'000'000)) {
        const std::lock_guard lock(mutex_);
        if (closing_) return;
      }
    });
  }
  void commit() override {
    close_batch();
    const std::lock_guard lock(mutex_);
    for (auto& step : encoded_) steps_.push_back(std::move(step));
    encoded_.clear();
    changed_.notify_all();
  }
  bool finish(int64_t timeout_ns) override {
    std::unique_lock lock(mutex_);
    const bool done = changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                        [&] { return (steps_.empty() && !busy_) || !error_.empty(); });
    if (error_.empty()) return done;
    const std::string error = std::exchange(error_, {});
    raise(ErrorKind::kDevice, "simt",
          {.what = "a kernel failed", .got = error, .want = "a run without faults", .where = {}, .hint = {}});
  }

 private:
  struct Ready {
    const SimtKernel* kernel;
    std::vector<uint8_t> args;
    std::vector<simt::Buffer> buffers;
    Extent groups, threads;
  };

  void close_batch() {
    if (batch_.empty()) return;
    if (order_ == simt::Order::kReverse) std::ranges::reverse(batch_);
    if (order_ == simt::Order::kRandom) std::ranges::shuffle(batch_, random_);
    for (Ready& r : batch_) {
      encoded_.push_back([this, r = std::move(r)] { run(r); });
    }
    batch_.clear();
  }

  void run(const Ready& r) {
    std::vector<simt::Buffer> buffers{{const_cast<uint8_t*>(r.args.data()), r.args.size()}};
    buffers.insert(buffers.end(), r.buffers.begin(), r.buffers.end());
    const std::string error = r.kernel->run(buffers, r.groups, r.threads, order_);
    if (error.empty()) return;
    const std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = r.kernel->name() + ": " + error;
    changed_.notify_all();
  }

  void work() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return !steps_.empty() || closing_; });
      if (steps_.empty()) return;
      const std::function<void()> step = std::move(steps_.front());
      steps_.pop_front();
      busy_ = true;
      lock.unlock();
      step();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  const simt::Order order_;
  std::mt19937 random_{1};
  std::vector<Ready> batch_;
  std::vector<std::function<void()>> encoded_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> steps_;
  bool busy_ = false, closing_ = false;
  std::string error_;
  std::thread thread_;
};

class SimtDevice final : public Device {
 public:
  const char* name() const override { return "simt"; }
  const char* family() const override { return "simt"; }
  std::unique_ptr<DeviceMemory> allocate(size_t bytes, MemoryUse, const char* purpose) override {
    return std::make_unique<SimtMemory>(bytes, purpose);
  }
  std::unique_ptr<DeviceMemory> wrap(const uint8_t* data, size_t bytes, const char*) override {
    return std::make_unique<SimtMemory>(data, bytes);
  }
  std::string description() const override { return "Metal kernels on the CPU, one fiber a GPU thread"; }
  std::vector<std::unique_ptr<Kernel>> kernels(std::span<const KernelSpec> specs) override {
    std::vector<std::unique_ptr<Kernel>> made;
    for (const KernelSpec& spec : specs) {
      const simt::KernelLibraries::Place* found = kernels_.find(spec.name);
      if (found == nullptr) {
        raise(ErrorKind::kDevice, "simt",
              {.what = "no such kernel", .got = spec.name, .want = "a kernel of metal/", .where = {}, .hint = {}});
      }
      made.push_back(std::make_unique<SimtKernel>(*found, spec.constants));
    }
    return made;
  }
  std::unique_ptr<Event> event() override { return std::make_unique<SimtEvent>(); }
  std::unique_ptr<Queue> queue() override { return std::make_unique<SimtQueue>(order_); }
  void trim(DeviceMemory& memory, size_t keep_bytes) override {
    release_pages_behind(memory.host(), memory.size_bytes(), keep_bytes);
  }

 private:
  const simt::Order order_ = simt::order_of_environment();
  const simt::KernelLibraries kernels_;
};

}  // namespace
}  // namespace esker::gpu

extern "C" __attribute__((visibility("default"))) esker::gpu::Device* esker_make_device(const esker::gpu::DeviceOptions*) {
  return new esker::gpu::SimtDevice;
}
