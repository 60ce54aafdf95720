// SPDX-License-Identifier: MIT
//
// Queues and events of a CUDA device.
//
// A queue is a stream. Its kernels overlap (msl_cuda.h, begin_kernel): one that a barrier stands before waits for
// those before it, and nothing but its launch is over by then. Many kernels in a row become a CUDA graph, kept for
// the next run that launches the same kernels on the same memory; arguments and grids that differ are exchanged.
//
// A stream takes a limited number of commands, then the call that adds one blocks; so no more is handed to it than
// what lies before the second of the host's events that it would wait for. pump() hands over the rest in time:
// whoever sets an event, or waits for one or for the queue, calls it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "backends/gpu/cuda/cuda_memory.h"
#include "backends/gpu/device.h"

namespace esker::gpu::cuda {

class CudaKernel final : public Kernel {
 public:
  CudaKernel(std::shared_ptr<Context> context, const std::string& name, const std::string& code);
  ~CudaKernel() override;
  CudaKernel(const CudaKernel&) = delete;
  FunctionHandle function() const { return function_; }
  const std::string& name() const { return name_; }
  KernelResources resources() const override { return resources_; }

 private:
  const std::shared_ptr<Context> context_;
  const std::string name_;
  ModuleHandle module_ = nullptr;
  FunctionHandle function_ = nullptr;
  KernelResources resources_;
};

class CudaQueue;

// What a device, its queues and its events share.
struct Shared {
  std::shared_ptr<Context> context;
  std::shared_ptr<Copier> copier;
  std::string name;           // of the GPU
  bool can_overlap = false;   // kernels begin while those before them end
  std::vector<CudaQueue*> queues;

  void pump();
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), word_(shared_->context, sizeof(uint64_t), "an event") {}
  void set(uint64_t value) override;
  bool wait(uint64_t value, int64_t timeout_ns) override;
  bool has(uint64_t value) const;
  DevicePointer device() const { return word_.device(); }

 private:
  uint64_t* word() const { return reinterpret_cast<uint64_t*>(word_.data()); }

  const std::shared_ptr<Shared> shared_;
  Pinned word_;
};

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(std::shared_ptr<Shared> shared);
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;

  void dispatch(const Dispatch& dispatch) override;
  void barrier() override { after_barrier_ = true; }
  void signal(Event& event, uint64_t value) override;
  void wait(Event& event, uint64_t value) override;
  void commit() override;
  bool finish(int64_t timeout_ns) override;
  int64_t device_ns() const override { return ns_; }

  // Hands the stream what it may take.
  void pump();

 private:
  static constexpr size_t kArgsBytes = 64, kBuffers = 11;
  struct LaunchOp {
    alignas(16) std::array<uint8_t, kArgsBytes> args{};
    std::array<DevicePointer, kBuffers> buffers{};
    FunctionHandle function = nullptr;
    Extent groups, threads;
    uint32_t n_buffers = 0;
    uint32_t waits = 1;  // for the kernels before it
  };
  static_assert(std::has_unique_object_representations_v<LaunchOp>, "launches are compared as bytes");
  struct Op {
    enum class Kind : uint8_t { kLaunch, kSignal, kWait, kCommit };
    Kind kind = Kind::kLaunch;
    CudaEvent* event = nullptr;
    uint64_t value = 0;
    LaunchOp launch;
  };
  struct Graph {
    uint64_t key = 0, used = 0;
    std::vector<LaunchOp> launches;
    std::vector<NodeHandle> nodes;
    GraphHandle graph = nullptr;
    GraphExecHandle exec = nullptr;
  };
  using Parameters = std::array<void*, kBuffers + 2>;

  static Parameters parameters_of(LaunchOp& op);
  static KernelNodeParams node_params(const LaunchOp& op, Parameters& parameters);
  static uint64_t key_of(std::span<Op> ops);
  void begin_timing();
  void launch(LaunchOp& op);
  void launch(std::span<Op> ops);
  bool launch_graph(std::span<Op> ops);
  Graph* make_graph(uint64_t key, std::span<Op> ops);
  void destroy(Graph& graph);
  void fail(const std::string& got, Status status);

  const std::shared_ptr<Shared> shared_;
  StreamHandle stream_ = nullptr;
  EventHandle begin_ = nullptr, end_ = nullptr;
  std::vector<Op> encoded_, pending_;
  size_t next_ = 0;           // of pending_
  bool after_barrier_ = true;
  bool running_ = false;      // something was handed over since the queue was empty
  std::deque<std::pair<CudaEvent*, uint64_t>> waits_;  // that the stream has and that may still hold it up
  std::vector<std::unique_ptr<Graph>> graphs_;
  std::unordered_set<uint64_t> seen_;  // keys of runs of kernels that have no graph yet
  bool use_graphs_ = true;
  uint64_t clock_ = 0;       // graphs launched
  uint64_t idle_since_ = 0;  // the clock when nothing ran
  int64_t ns_ = 0;
  std::string error_;
};

}  // namespace esker::gpu::cuda
