// SPDX-License-Identifier: MIT
#include "backends/gpu/cuda/cuda_queue.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"

namespace esker::gpu::cuda {
namespace {

// Shorter runs of kernels are launched one by one.
constexpr size_t kGraphFrom = 24;
// A model of 48 layers has two a layer and window width.
constexpr size_t kGraphsMost = 512;
constexpr size_t kSeenMost = 1024;
// Waits for the host that a stream may have in it.
constexpr size_t kWaitsMost = 2;
// For so long a thread that waits does nothing else: a decoding turn is over within it.
constexpr int64_t kSpinNs = 200'000;

void pause(int64_t since_ns) {
  if (now_ns() - since_ns < kSpinNs) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return;
  }
  sched_yield();
}

}  // namespace

CudaKernel::CudaKernel(std::shared_ptr<Context> context, const std::string& name, const std::string& code)
    : context_(std::move(context)), name_(name) {
  context_->enter();
  check(driver().cuModuleLoadData(&module_, code.data()), "load a kernel");
  check(driver().cuModuleGetFunction(&function_, module_, name.c_str()), "find a kernel");
  const auto asked = [&](FunctionAttribute attribute) {
    int value = 0;
    check(driver().cuFuncGetAttribute(&value, attribute, function_), "ask about a kernel");
    return static_cast<uint32_t>(value);
  };
  resources_ = {.registers = asked(kRegisters), .spilled_bytes = asked(kLocalBytes),
                .threadgroup_bytes = asked(kSharedBytes), .threads_most = asked(kMaxThreads)};
}
CudaKernel::~CudaKernel() {
  context_->enter();
  driver().cuModuleUnload(module_);
}

void Shared::pump() {
  for (CudaQueue* q : queues) q->pump();
}

bool CudaEvent::has(uint64_t value) const {
  return std::atomic_ref<uint64_t>(*word()).load(std::memory_order_acquire) >= value;
}

void CudaEvent::set(uint64_t value) {
  if (!has(value)) std::atomic_ref<uint64_t>(*word()).store(value, std::memory_order_release);
  shared_->pump();
}

bool CudaEvent::wait(uint64_t value, int64_t timeout_ns) {
  for (const int64_t start = now_ns(); !has(value); pause(start)) {
    shared_->pump();
    if (now_ns() - start >= timeout_ns) return false;
  }
  return true;
}

CudaQueue::CudaQueue(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
  shared_->context->enter();
  check(driver().cuStreamCreate(&stream_, kStreamNonBlocking), "make a stream");
  check(driver().cuEventCreate(&begin_, kEventDefault), "make an event");
  check(driver().cuEventCreate(&end_, kEventDefault), "make an event");
  shared_->queues.push_back(this);
}

CudaQueue::~CudaQueue() {
  std::erase(shared_->queues, this);
  shared_->context->enter();
  for (const auto& g : graphs_) destroy(*g);
  driver().cuEventDestroy_v2(begin_);
  driver().cuEventDestroy_v2(end_);
  driver().cuStreamDestroy_v2(stream_);
}

void CudaQueue::dispatch(const Dispatch& d) {
  if (d.groups.x == 0 || d.groups.y == 0 || d.groups.z == 0) return;
  const auto& kernel = static_cast<const CudaKernel&>(*d.kernel);
  const uint32_t most = kernel.resources().threads_most;
  if (d.threads.x * d.threads.y * d.threads.z > most) {
    raise(ErrorKind::kDevice, "cuda",
          {.what = "this GPU cannot run a kernel with so many threads",
           .got = std::to_string(d.threads.x * d.threads.y * d.threads.z),
           .want = "at most " + std::to_string(most),
           .where = kernel.name(),
           .hint = "run `esker tune`, or the model on the cpu backend"});
  }
  Op& op = encoded_.emplace_back();
  LaunchOp& launch = op.launch;
  launch.function = kernel.function();
  launch.groups = d.groups;
  launch.threads = d.threads;
  launch.waits = std::exchange(after_barrier_, false) ? 1 : 0;
  launch.n_buffers = static_cast<uint32_t>(d.buffers.size());
  for (size_t i = 0; i < d.buffers.size(); ++i) {
    launch.buffers.at(i) = static_cast<const CudaMemory*>(d.buffers[i].memory)->device() + d.buffers[i].offset_bytes;
  }
  std::copy_n(d.args.data(), std::min(d.args.size(), kArgsBytes), launch.args.data());
}

void CudaQueue::signal(Event& event, uint64_t value) {
  encoded_.push_back({Op::Kind::kSignal, static_cast<CudaEvent*>(&event), value, {}});
  after_barrier_ = true;
}
void CudaQueue::wait(Event& event, uint64_t value) {
  encoded_.push_back({Op::Kind::kWait, static_cast<CudaEvent*>(&event), value, {}});
  after_barrier_ = true;
}

void CudaQueue::commit() {
  encoded_.push_back({Op::Kind::kCommit, nullptr, 0, {}});
  after_barrier_ = true;
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(next_));
  next_ = 0;
  pending_.insert(pending_.end(), encoded_.begin(), encoded_.end());
  encoded_.clear();
  pump();
}

void CudaQueue::pump() {
  if (next_ == pending_.size() || !error_.empty()) return;
  shared_->context->enter();
  const Driver& cu = driver();
  while (next_ < pending_.size()) {
    Op& op = pending_[next_];
    Status status = 0;
    size_t taken = 1;
    switch (op.kind) {
      case Op::Kind::kLaunch: {
        while (next_ + taken < pending_.size() && pending_[next_ + taken].kind == Op::Kind::kLaunch) ++taken;
        begin_timing();
        launch(std::span(pending_).subspan(next_, taken));
        break;
      }
      case Op::Kind::kSignal:
        begin_timing();
        status = cu.cuStreamWriteValue64_v2(stream_, op.event->device(), op.value, kWriteDefault);
        break;
      case Op::Kind::kWait:
        while (!waits_.empty() && waits_.front().first->has(waits_.front().second)) waits_.pop_front();
        if (waits_.size() >= kWaitsMost) return;
        begin_timing();
        waits_.emplace_back(op.event, op.value);
        status = cu.cuStreamWaitValue64_v2(stream_, op.event->device(), op.value, kWaitGreaterOrEqual);
        break;
      case Op::Kind::kCommit:
        if (running_) status = cu.cuEventRecord(end_, stream_);
        break;
    }
    if (status != 0) fail("a command was refused", status);
    if (!error_.empty()) return;
    next_ += taken;
  }
}

void CudaQueue::begin_timing() {
  if (!std::exchange(running_, true)) driver().cuEventRecord(begin_, stream_);
}

CudaQueue::Parameters CudaQueue::parameters_of(LaunchOp& op) {
  Parameters p{};
  p[0] = op.args.data();
  for (uint32_t i = 0; i < op.n_buffers; ++i) p[1 + i] = &op.buffers[i];
  p[1 + op.n_buffers] = &op.waits;
  return p;
}

KernelNodeParams CudaQueue::node_params(const LaunchOp& op, Parameters& parameters) {
  return {.function = op.function, .grid_x = op.groups.x, .grid_y = op.groups.y, .grid_z = op.groups.z,
          .block_x = op.threads.x, .block_y = op.threads.y, .block_z = op.threads.z, .shared_bytes = 0,
          .parameters = parameters.data(), .extra = nullptr, .kernel = nullptr, .context = nullptr};
}

void CudaQueue::launch(LaunchOp& op) {
  LaunchAttribute overlap;
  overlap.allowed = 1;
  const LaunchConfig config{.grid_x = op.groups.x, .grid_y = op.groups.y, .grid_z = op.groups.z,
                            .block_x = op.threads.x, .block_y = op.threads.y, .block_z = op.threads.z,
                            .shared_bytes = 0, .stream = stream_, .attributes = &overlap,
                            .n_attributes = shared_->can_overlap ? 1u : 0u};
  Parameters parameters = parameters_of(op);
  const Status status = driver().cuLaunchKernelEx(&config, op.function, parameters.data(), nullptr);
  if (status != 0) fail("a kernel could not be launched", status);
}

void CudaQueue::launch(std::span<Op> ops) {
  if (use_graphs_ && ops.size() >= kGraphFrom && launch_graph(ops)) return;
  for (Op& op : ops) launch(op.launch);
}

uint64_t CudaQueue::key_of(std::span<Op> ops) {
  Hash hash;
  for (const Op& op : ops) {
    hash.add(reinterpret_cast<uintptr_t>(op.launch.function) ^ op.launch.waits);
    for (uint32_t i = 0; i < op.launch.n_buffers; ++i) hash.add(op.launch.buffers[i]);
  }
  return hash.value();
}

// False where these kernels were not seen before: what comes once is not worth a graph.
bool CudaQueue::launch_graph(std::span<Op> ops) {
  const uint64_t key = key_of(ops);
  const auto found = std::ranges::find(graphs_, key, [](const auto& g) { return g->key; });
  Graph* graph = found != graphs_.end() ? found->get() : nullptr;
  if (graph == nullptr) {
    if (seen_.insert(key).second) {
      if (seen_.size() > kSeenMost) seen_.clear();
      return false;
    }
    graph = make_graph(key, ops);
    if (graph == nullptr) return false;
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    LaunchOp& now = graph->launches[i];
    if (std::memcmp(&now, &ops[i].launch, sizeof now) == 0) continue;
    now = ops[i].launch;
    Parameters parameters = parameters_of(now);
    const KernelNodeParams params = node_params(now, parameters);
    const Status status = driver().cuGraphExecKernelNodeSetParams_v2(graph->exec, graph->nodes[i], &params);
    if (status != 0) {
      fail("a graph's kernel could not be changed", status);
      return true;
    }
  }
  graph->used = ++clock_;
  const Status status = driver().cuGraphLaunch(graph->exec, stream_);
  if (status != 0) fail("a graph could not be launched", status);
  return true;
}

CudaQueue::Graph* CudaQueue::make_graph(uint64_t key, std::span<Op> ops) {
  const Driver& cu = driver();
  if (graphs_.size() >= kGraphsMost) {
    // To destroy one that may still run waits for it, and it may wait for the host.
    const auto oldest = std::ranges::min_element(graphs_, {}, [](const auto& g) { return g->used; });
    if ((*oldest)->used > idle_since_) return nullptr;
    destroy(**oldest);
    graphs_.erase(oldest);
  }
  const bool overlap = shared_->can_overlap && cu.cuGraphAddDependencies_v2 != nullptr;
  auto made = std::make_unique<Graph>();
  made->key = key;
  Status status = cu.cuGraphCreate(&made->graph, 0);
  for (size_t i = 0; i < ops.size() && status == 0; ++i) {
    LaunchOp& op = made->launches.emplace_back(ops[i].launch);
    Parameters parameters = parameters_of(op);
    const KernelNodeParams params = node_params(op, parameters);
    NodeHandle before = i > 0 ? made->nodes.back() : nullptr, node = nullptr;
    status = cu.cuGraphAddKernelNode_v2(&node, made->graph, &before, i > 0 && !overlap ? 1 : 0, &params);
    made->nodes.push_back(node);
    if (status != 0 || i == 0 || !overlap) continue;
    const EdgeData programmatic;
    status = cu.cuGraphAddDependencies_v2(made->graph, &before, &node, &programmatic, 1);
  }
  if (status == 0) status = cu.cuGraphInstantiateWithFlags(&made->exec, made->graph, 0);
  if (status != 0) {
    destroy(*made);
    use_graphs_ = false;
    return nullptr;
  }
  graphs_.push_back(std::move(made));
  return graphs_.back().get();
}

void CudaQueue::destroy(Graph& graph) {
  if (graph.exec != nullptr) driver().cuGraphExecDestroy(graph.exec);
  if (graph.graph != nullptr) driver().cuGraphDestroy(graph.graph);
}

// After an error the context takes no more commands: nothing is left to be waited for.
void CudaQueue::fail(const std::string& got, Status status) {
  if (!error_.empty()) return;
  const char* name = nullptr;
  driver().cuGetErrorName(status, &name);
  error_ = got + ": " + (name != nullptr ? name : std::to_string(status));
}

bool CudaQueue::finish(int64_t timeout_ns) {
  shared_->context->enter();
  for (const int64_t start = now_ns();; pause(start)) {
    pump();
    if (error_.empty() && next_ == pending_.size()) {
      if (!running_) return true;
      const Status status = driver().cuEventQuery(end_);
      if (status == 0) {
        float ms = 0;
        if (driver().cuEventElapsedTime(&ms, begin_, end_) == 0) ns_ += static_cast<int64_t>(ms * 1e6f);
        running_ = false;
        idle_since_ = clock_;
        waits_.clear();
        return true;
      }
      if (status != kNotReady) fail("a kernel failed", status);
    }
    if (!error_.empty()) {
      pending_.clear();
      next_ = 0;
      running_ = false;
      raise(ErrorKind::kDevice, "cuda",
            {.what = "the GPU stopped at an error",
             .got = std::exchange(error_, {}),
             .want = "kernels that run to their end",
             .where = shared_->name,
             .hint = "open the model in a new process, or run it on the cpu backend"});
    }
    if (now_ns() - start >= timeout_ns) return false;
  }
}

}  // namespace esker::gpu::cuda
