// SPDX-License-Identifier: MIT
//
// The simt device: gpu::Device on the CPU, with a thread that takes what queues commit, so that host and
// device run side by side as on a GPU. The kernels are the libraries that tests/gpu/simt.py builds of each
// .metal file; ESKER_SIMT_KERNEL_LIBRARIES names them, with colons between. What may overlap (dispatches without a barrier between) runs in the
// order of ESKER_SIMT_ORDER, as do the lanes of each: forward, reverse or random. All must give the same.
#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/gpu/devices.h"
#include "base/aligned_buffer.h"
#include "base/error.h"
#include "simt.h"

namespace esker::gpu {
namespace {

simt::Order order_of_environment() {
  const std::string order = std::getenv("ESKER_SIMT_ORDER") ? std::getenv("ESKER_SIMT_ORDER") : "";
  if (order == "reverse") return simt::Order::kReverse;
  return order == "random" ? simt::Order::kRandom : simt::Order::kForward;
}

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

// A library of kernels (capi.cpp).
struct Library {
  explicit Library(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto bind = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw std::runtime_error(path + " lacks " + name);
    };
    bind(count, "simt_kernel_count");
    bind(name, "simt_kernel_name");
    bind(constant_type, "simt_constant_type");
    bind(dispatch, "simt_dispatch");
  }
  size_t (*count)();
  const char* (*name)(size_t);
  const char* (*constant_type)(size_t, uint32_t);
  const char* (*dispatch)(size_t, const simt::Buffer*, size_t, const uint32_t*, const simt::ConstantValue*, size_t,
                          const size_t*, size_t, uint32_t, uint64_t, uint32_t, uint32_t);
};

class SimtKernel final : public Kernel {
 public:
  SimtKernel(const Library& library, size_t index, std::span<const Constant> constants)
      : library_(library), index_(index) {
    for (const Constant& c : constants) {
      if (library.constant_type(index, c.index) != nullptr) values_.push_back({c.index, c.value});
    }
  }
  std::string name() const { return library_.name(index_); }
  // Empty when all is well.
  std::string run(std::span<const simt::Buffer> buffers, const Extent& groups, const Extent& threads,
                  simt::Order order) const {
    const uint32_t sizes[] = {groups.x, groups.y, groups.z, threads.x, threads.y, threads.z};
    const char* error =
        library_.dispatch(index_, buffers.data(), buffers.size(), sizes, values_.data(), values_.size(), nullptr,
                          0, static_cast<uint32_t>(order), 1, 1, 0);
    return error == nullptr ? "" : error;
  }

 private:
  const Library& library_;
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
  SimtDevice() {
    std::istringstream paths(std::getenv("ESKER_SIMT_KERNEL_LIBRARIES") ? std::getenv("ESKER_SIMT_KERNEL_LIBRARIES") : "");
    for (std::string path; std::getline(paths, path, ':');) {
      const Library& library = libraries_.emplace_back(path);
      for (size_t i = 0; i < library.count(); ++i) kernels_[library.name(i)] = {&library, i};
    }
  }
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
      const auto found = kernels_.find(spec.name);
      if (found == kernels_.end()) {
        raise(ErrorKind::kDevice, "simt",
              {.what = "no such kernel", .got = spec.name, .want = "a kernel of metal/", .where = {}, .hint = {}});
      }
      made.push_back(std::make_unique<SimtKernel>(*found->second.first, found->second.second, spec.constants));
    }
    return made;
  }
  std::unique_ptr<Event> event() override { return std::make_unique<SimtEvent>(); }
  std::unique_ptr<Queue> queue() override { return std::make_unique<SimtQueue>(order_); }
  void trim(DeviceMemory& memory, size_t keep_bytes) override {
    release_pages_behind(memory.host(), memory.size_bytes(), keep_bytes);
  }

 private:
  const simt::Order order_ = order_of_environment();
  std::deque<Library> libraries_;
  std::map<std::string, std::pair<const Library*, size_t>> kernels_;
};

}  // namespace
}  // namespace esker::gpu

extern "C" __attribute__((visibility("default"))) esker::gpu::Device* esker_make_device(const esker::gpu::DeviceOptions*) {
  return new esker::gpu::SimtDevice;
}
