// SPDX-License-Identifier: MIT
#include "backends/gpu/device_probe.h"

#include <algorithm>
#include <memory>
#include <span>

#include "abi/kernel_args.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"

namespace esker::gpu {
namespace {

constexpr int64_t kPollNs = 20'000'000;
constexpr int64_t kLostNs = 60'000'000'000;
constexpr uint32_t kThreads = 256;
constexpr uint32_t kSmall = 256;  // elements of a small launch

// Elementwise work of any size on three arrays.
class Streaming {
 public:
  Streaming(Device& device, uint64_t bytes) : n_(std::max<uint64_t>(bytes / (3 * sizeof(float)), kSmall)) {
    const KernelSpec spec{"swiglu", {}};
    kernels_ = device.kernels({&spec, 1});
    const std::vector<float> halves(n_, 0.5f);
    for (auto& m : memory_) {
      m = device.allocate(n_ * sizeof(float), MemoryUse::kWork, "a probe");
      m->write(0, halves.data(), n_ * sizeof(float));
    }
  }
  uint32_t elements() const { return static_cast<uint32_t>(n_); }

  void launch(Queue& queue, uint32_t n) const {
    const SwigluArgs args{.n = n};
    const Binding bindings[] = {{memory_[0].get(), 0}, {memory_[1].get(), 0}, {memory_[2].get(), 0}};
    queue.barrier();
    queue.dispatch({.kernel = kernels_.front().get(),
                    .args = {reinterpret_cast<const uint8_t*>(&args), sizeof args},
                    .buffers = bindings,
                    .groups = {static_cast<uint32_t>(div_ceil(n, kThreads)), 1, 1},
                    .threads = {kThreads, 1, 1}});
  }

 private:
  uint64_t n_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::unique_ptr<DeviceMemory> memory_[3];
};

template <class Reached>
void await(const std::function<void()>& poll, const Reached& reached) {
  for (const int64_t start = now_ns(); !reached(kPollNs);) {
    if (poll) poll();
    if (now_ns() - start < kLostNs) continue;
    raise(ErrorKind::kDevice, "gpu",
          {.what = "the device does not answer", .got = {}, .want = "the end of a probe", .where = {},
           .hint = {}});
  }
}

}  // namespace

ProbeTimes probe_stream(Device& device, uint64_t bytes, uint32_t launches, uint32_t repeats,
                        const std::function<void()>& poll) {
  const Streaming work(device, bytes);
  const std::unique_ptr<Queue> queue = device.queue();
  ProbeTimes times;
  for (uint32_t r = 0; r <= repeats; ++r) {  // the first is not counted
    const int64_t start = now_ns(), device_start = queue->device_ns();
    for (uint32_t i = 0; i < launches; ++i) work.launch(*queue, work.elements());
    queue->commit();
    await(poll, [&](int64_t ns) { return queue->finish(ns); });
    if (r == 0) continue;
    times.wall_ns.push_back((now_ns() - start) / launches);
    times.device_ns.push_back((queue->device_ns() - device_start) / launches);
  }
  return times;
}

ProbeTimes probe_handshake(Device& device, Handshake how, uint32_t segments, uint64_t work_bytes,
                           uint32_t repeats, const std::function<void()>& poll) {
  const Streaming work(device, work_bytes);
  const std::unique_ptr<Queue> queue = device.queue();
  const std::unique_ptr<Event> reached = device.event(), go = device.event();
  ProbeTimes times;
  uint64_t clock = 0;
  for (uint32_t r = 0; r <= repeats; ++r, clock += segments) {
    const int64_t start = now_ns(), device_start = queue->device_ns();
    for (uint32_t s = 1; s <= segments; ++s) {
      work.launch(*queue, kSmall);
      if (how != Handshake::kCovered) work.launch(*queue, work.elements());
      if (how == Handshake::kNone) continue;
      queue->signal(*reached, clock + s);
      if (how == Handshake::kCovered) work.launch(*queue, work.elements());
      queue->wait(*go, clock + s);
    }
    queue->commit();
    if (how != Handshake::kNone) {
      for (uint32_t s = 1; s <= segments; ++s) {
        await(poll, [&](int64_t ns) { return reached->wait(clock + s, ns); });
        go->set(clock + s);
      }
    }
    await(poll, [&](int64_t ns) { return queue->finish(ns); });
    if (r == 0) continue;
    times.wall_ns.push_back(now_ns() - start);
    times.device_ns.push_back(queue->device_ns() - device_start);
  }
  return times;
}

}  // namespace esker::gpu
