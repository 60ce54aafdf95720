// SPDX-License-Identifier: MIT
//
// The scheduler. Every operation that lanes do together ends a round of their simdgroup: a lane runs to its
// next such operation and hands over to the next lane; the last one hands over to the scheduler. All lanes
// must then be at the same place, so nothing can deadlock, and a divergence is found where it happens.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "faults.h"
#include "fiber.h"
#include "lane.h"

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address))
#endif
#ifdef SIMT_TSAN
#include <sanitizer/tsan_interface.h>
constexpr bool kDetectsRaces = true;
#else
constexpr bool kDetectsRaces = false;
#define __tsan_acquire(address) ((void)(address))
#define __tsan_release(address) ((void)(address))
#endif

namespace simt {
namespace {

// Around every threadgroup array: what is written there was written out of bounds.
constexpr size_t kGapBytes = 64;
constexpr size_t kArraysMax = 64;
constexpr size_t kArgumentsMax = 31;  // of threadgroup memory, as in Metal
constexpr size_t kArenaBytes = kThreadgroupMemoryBytesMax + (kArraysMax + kArgumentsMax + 1) * 2 * kGapBytes;

std::vector<const Module*>& modules() {
  static std::vector<const Module*> list;
  return list;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
  template <typename T>
  void shuffle(T* v, uint32_t n) {
    for (uint32_t i = n; i > 1; --i) std::swap(v[i - 1], v[below(i)]);
  }

 private:
  uint64_t state_;
};

uint64_t volume(const Size& s) { return uint64_t{s.x} * s.y * s.z; }

Position place(uint64_t i, const Size& s) {
  return {{static_cast<uint32_t>(i % s.x), static_cast<uint32_t>(i / s.x % s.y),
           static_cast<uint32_t>(i / s.x / s.y)}};
}

std::string text_of(const Position& p) {
  return "(" + std::to_string(p.v[0]) + ", " + std::to_string(p.v[1]) + ", " + std::to_string(p.v[2]) + ")";
}

// How a lane's share of a round ends.
enum class Stop : uint32_t { kSimd, kBarrier, kReturn };

bool same(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// Not a call to memcpy or memset: the race detector would see those.
void copy_bytes(volatile unsigned char* to, const volatile unsigned char* from, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = from[i];
}

struct Simdgroup {
  uint32_t first = 0, count = 0;  // its lanes
  uint32_t order[kSimdWidth];
  uint32_t arrived = 0;  // lanes that have ended the round at hand
  uint32_t rounds = 0;
  uint32_t leader = 0;  // who ended it first, how and where
  Stop stop = Stop::kSimd;
  Site site = Site("");
  alignas(64) unsigned char slots[2][kSimdWidth][kSlotBytes];  // by parity of the round
};

struct Array {
  const char* name = nullptr;
  unsigned char* memory = nullptr;
  size_t bytes = 0;
};

// What the threadgroups of a dispatch share.
struct Dispatch {
  Dispatch(const Kernel& k, const Launch& l) : kernel(k), launch(l) {}

  const Kernel& kernel;
  const Launch& launch;
  std::vector<void*> buffers;
  std::vector<uint64_t> groups;  // in the order in which they run
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string error;  // the first
  char begun = 0, ended = 0;  // addresses at which the race detector orders memory
};

// The race detector must not take lane i of one threadgroup for lane i of the next: neighbours in time have
// fibers of their own.
constexpr uint32_t kBanks = kDetectsRaces ? 2 : 1;

// Fibers are kept for the OS thread's next dispatch: there may be hundreds a second.
const std::unique_ptr<Fiber>* fibers_of_thread(uint32_t n) {
  static thread_local std::vector<std::unique_ptr<Fiber>> fibers;
  while (fibers.size() < n) {
    fibers.push_back(std::make_unique<Fiber>());
    fibers.back()->allocate();
  }
  return fibers.data();
}

// One OS thread, running one threadgroup at a time.
class Worker {
 public:
  explicit Worker(Dispatch& dispatch);
  void run();

  Simdgroup& simdgroup() { return simdgroups_[lane_ / kSimdWidth]; }
  uint32_t lane() const { return lane_; }
  void arrive(Stop stop, const Site& site);
  void barrier(Stop stop, bool orders_memory, const Site& site);
  void* array(uint32_t number, size_t bytes, const char* name, const Site& site);
  Position value(Source source) const;
  [[noreturn]] void stop_with(const std::string& message);
  [[noreturn]] void stop_at_fault(const Fault& fault);

 private:
  static void lane_main();
  void prepare_group(uint64_t group);
  bool run_group();
  bool run_round(Simdgroup& s);
  bool pass_barrier();
  bool check_gaps();
  std::string where(uint32_t lane) const;
  std::string state(Stop stop, const Site& site) const;
  unsigned char* take(size_t bytes, const char* name);

  Dispatch& dispatch_;
  Size groups_, threads_;
  uint32_t n_lane_, lane_ = 0;
  Fiber main_;
  const std::unique_ptr<Fiber>* const all_fibers_;
  const std::unique_ptr<Fiber>* fibers_ = nullptr;  // of the threadgroup at hand
  uint32_t groups_begun_ = 0;
  std::vector<Simdgroup> simdgroups_;
  std::vector<uint32_t> order_;  // of the simdgroups
  Position group_ = {};
  Random random_{0};
  uint32_t barriers_ = 0;
  std::string error_;
  Fault fault_ = {};

  // The poisoned arena of the threadgroup at hand, begun by two addresses a simdgroup, and two for all, at
  // which the race detector orders memory. Under it every threadgroup has its own, freed at the end.
  std::vector<std::unique_ptr<unsigned char[]>> arenas_;
  unsigned char* arena_ = nullptr;
  size_t sync_bytes_, used_ = 0, declared_bytes_ = 0;
  std::vector<Array> taken_;      // in order of their addresses
  void* arrays_[kArraysMax];      // by number
  std::vector<void*> arguments_;  // by index
  unsigned char poison_[8];
};

__attribute__((tls_model("initial-exec"))) thread_local Worker* worker = nullptr;

Worker::Worker(Dispatch& dispatch)
    : dispatch_(dispatch),
      groups_(dispatch.launch.groups),
      threads_(dispatch.launch.threads),
      n_lane_(static_cast<uint32_t>(volume(threads_))),
      all_fibers_(fibers_of_thread(n_lane_ * kBanks)),
      simdgroups_((n_lane_ + kSimdWidth - 1) / kSimdWidth),
      order_(simdgroups_.size()),
      sync_bytes_((simdgroups_.size() * 2 + 2 + 63) / 64 * 64) {
  main_.adopt_thread();
  for (uint32_t i = 0; i < simdgroups_.size(); ++i) {
    Simdgroup& s = simdgroups_[i];
    s.first = i * kSimdWidth;
    s.count = std::min(kSimdWidth, n_lane_ - s.first);
    std::memset(s.slots, 0xff, sizeof s.slots);
  }
}

void Worker::run() {
  worker = this;
  const FaultHandler handler([](const Fault& fault) {
    if (worker != nullptr) worker->stop_at_fault(fault);
  });
  while (!dispatch_.failed) {
    const size_t i = dispatch_.next++;
    if (i >= dispatch_.groups.size()) break;
    prepare_group(dispatch_.groups[i]);
    if (run_group() && check_gaps()) continue;
    __tsan_acquire(&dispatch_.ended);
    const std::lock_guard lock(dispatch_.mutex);
    if (!dispatch_.failed.exchange(true)) dispatch_.error = error_;
  }
  __tsan_acquire(&dispatch_.ended);
  for (const auto& arena : arenas_) ASAN_UNPOISON_MEMORY_REGION(arena.get(), sync_bytes_ + kArenaBytes);
  worker = nullptr;
}

void Worker::prepare_group(uint64_t group) {
  const Launch& launch = dispatch_.launch;
  group_ = place(group, groups_);
  random_ = Random(launch.seed * 0x2545f4914f6cdd1du + group);
  std::iota(order_.begin(), order_.end(), 0u);
  if (launch.order == Order::kReverse) std::reverse(order_.begin(), order_.end());
  for (Simdgroup& s : simdgroups_) {
    std::iota(s.order, s.order + s.count, s.first);
    if (launch.order == Order::kReverse) std::reverse(s.order, s.order + s.count);
    s.stop = Stop::kSimd;
  }
  // What nobody wrote is NaN in the first order, large but finite in the second, anything in the third.
  const uint64_t poison = launch.order == Order::kForward   ? ~uint64_t{0}
                          : launch.order == Order::kReverse ? 0x7b7b7b7b7b7b7b7bu
                                                            : random_.next();
  std::memcpy(poison_, &poison, sizeof poison_);
  if (arenas_.empty() || kDetectsRaces) arenas_.emplace_back(new unsigned char[sync_bytes_ + kArenaBytes]);
  arena_ = arenas_.back().get() + sync_bytes_;
  ASAN_UNPOISON_MEMORY_REGION(arena_, kArenaBytes);
  for (size_t i = 0; i < kArenaBytes; ++i) arena_[i] = poison_[i % 8];
  ASAN_POISON_MEMORY_REGION(arena_, kArenaBytes);
  used_ = declared_bytes_ = 0;
  taken_.clear();
  std::fill(std::begin(arrays_), std::end(arrays_), nullptr);
  arguments_.clear();
  for (const size_t bytes : launch.threadgroup_bytes) {
    declared_bytes_ += bytes;
    arguments_.push_back(take(bytes, "an argument"));
  }
  fibers_ = all_fibers_ + groups_begun_++ % kBanks * n_lane_;
  for (uint32_t i = 0; i < n_lane_; ++i) fibers_[i]->prepare(lane_main);
  __tsan_release(&dispatch_.begun);
}

unsigned char* Worker::take(size_t bytes, const char* name) {
  unsigned char* memory = arena_ + used_ + kGapBytes;
  used_ += (bytes + 15) / 16 * 16 + kGapBytes;
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  taken_.push_back({name, memory, bytes});
  return memory;
}

void Worker::lane_main() {
  Worker& w = *worker;
  w.fibers_[w.lane_]->arrived();
  __tsan_acquire(&w.dispatch_.begun);
  const Kernel& kernel = w.dispatch_.kernel;
  kernel.run(kernel.parameters.data(), w.dispatch_.buffers.data(), w.arguments_.data());
  w.arrive(Stop::kReturn, Site("return", "", 0));
  std::abort();  // nothing switches to a lane that has returned
}

bool Worker::run_group() {
  const bool random = dispatch_.launch.order == Order::kRandom;
  for (;;) {
    std::vector<uint32_t> waiting(order_);
    while (!waiting.empty()) {
      const size_t i = random ? random_.below(static_cast<uint32_t>(waiting.size())) : 0;
      Simdgroup& s = simdgroups_[waiting[i]];
      if (random) random_.shuffle(s.order, s.count);
      if (!run_round(s)) return false;
      if (s.stop != Stop::kSimd) waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
    }
    if (simdgroups_[0].stop == Stop::kReturn) {
      for (const Simdgroup& s : simdgroups_) {
        if (s.stop != Stop::kReturn) return pass_barrier();
      }
      return true;
    }
    if (!pass_barrier()) return false;
  }
}

// Every lane runs to its next operation; false after an error.
bool Worker::run_round(Simdgroup& s) {
  s.arrived = 0;
  ++s.rounds;
  lane_ = s.order[0];
  main_.switch_to(*fibers_[lane_]);
  if (fault_.signal != 0) error_ = fault_.describe(fibers_[lane_]->guards(fault_.address)) + where(lane_);
  return error_.empty();
}

// All simdgroups wait at a barrier or have returned: it must be the same one.
bool Worker::pass_barrier() {
  const Simdgroup& a = simdgroups_[0];
  for (const Simdgroup& b : simdgroups_) {
    if (b.stop == a.stop && same(b.site, a.site)) continue;
    error_ = "simdgroups diverge: 0 " + state(a.stop, a.site) + ", " + std::to_string(b.first / kSimdWidth) +
             " " + state(b.stop, b.site) + " in threadgroup " + text_of(group_);
    return false;
  }
  ++barriers_;
  return true;
}

void Worker::arrive(Stop stop, const Site& site) {
  __tsan_release(&dispatch_.ended);  // it may be abandoned here
  Simdgroup& s = simdgroup();
  if (s.arrived == 0) {
    s.stop = stop;
    s.site = site;
    s.leader = lane_;
  } else if (stop != s.stop || !same(site, s.site)) {
    stop_with("lanes of a simdgroup diverge: lane " + std::to_string(s.leader % kSimdWidth) + " " +
              state(s.stop, s.site) + ", lane " + std::to_string(lane_ % kSimdWidth) + " " +
              state(stop, site) + where(lane_));
  }
  Fiber& me = *fibers_[lane_];
  if (++s.arrived == s.count) {
    me.switch_to(main_, stop == Stop::kReturn);
  } else {
    lane_ = s.order[s.arrived];
    me.switch_to(*fibers_[lane_], stop == Stop::kReturn);
  }
}

void Worker::barrier(Stop stop, bool orders_memory, const Site& site) {
  Simdgroup& s = simdgroup();
  // Two addresses take turns: with one, a late reader would also be ordered after the next barrier's writers.
  char* sync = reinterpret_cast<char*>(arena_ - sync_bytes_);
  sync += stop == Stop::kBarrier ? simdgroups_.size() * 2 + barriers_ % 2
                                 : s.first / kSimdWidth * 2 + s.rounds % 2;
  if (orders_memory) __tsan_release(sync);
  arrive(stop, site);
  if (orders_memory) __tsan_acquire(sync);
}

void* Worker::array(uint32_t number, size_t bytes, const char* name, const Site& site) {
  if (number >= kArraysMax) stop_with("more than " + std::to_string(kArraysMax) + " threadgroup arrays");
  if (arrays_[number] == nullptr) {
    declared_bytes_ += bytes;
    if (declared_bytes_ > kThreadgroupMemoryBytesMax) {
      stop_with(std::string(site.file) + ":" + std::to_string(site.line) + ": " +
                std::to_string(declared_bytes_) + " bytes of threadgroup memory with " + name + ", " +
                std::to_string(kThreadgroupMemoryBytesMax) + " are allowed");
    }
    arrays_[number] = take(bytes, name);
  }
  return arrays_[number];
}

// Between the arrays everything is as it was poisoned.
bool Worker::check_gaps() {
#ifndef SIMT_ASAN
  const Array* last = nullptr;
  size_t i = 0;
  const auto check_to = [&](const unsigned char* end) {
    while (arena_ + i < end && arena_[i] == poison_[i % 8]) ++i;
    return arena_ + i >= end;
  };
  for (const Array& a : taken_) {
    if (!check_to(a.memory)) break;
    i = static_cast<size_t>(a.memory - arena_) + a.bytes;
    last = &a;
  }
  if (check_to(arena_ + used_ + kGapBytes)) return true;
  error_ = std::string("a write outside threadgroup memory, ") +
           (last == nullptr ? "before the first array" : std::string("behind ") + last->name) +
           ", in threadgroup " + text_of(group_);
  return false;
#else
  return true;
#endif
}

Position Worker::value(Source source) const {
  const Position thread = place(lane_, threads_);
  switch (source) {
    case Source::kThreadPositionInGrid:
      return {{group_.v[0] * threads_.x + thread.v[0], group_.v[1] * threads_.y + thread.v[1],
               group_.v[2] * threads_.z + thread.v[2]}};
    case Source::kThreadPositionInThreadgroup: return thread;
    case Source::kThreadIndexInThreadgroup: return {{lane_, 0, 0}};
    case Source::kThreadgroupPositionInGrid: return group_;
    case Source::kThreadgroupsPerGrid: return {{groups_.x, groups_.y, groups_.z}};
    case Source::kThreadsPerGrid:
      return {{groups_.x * threads_.x, groups_.y * threads_.y, groups_.z * threads_.z}};
    case Source::kThreadsPerThreadgroup: return {{threads_.x, threads_.y, threads_.z}};
    case Source::kThreadsPerSimdgroup: return {{kSimdWidth, 0, 0}};
    case Source::kThreadIndexInSimdgroup: return {{lane_ % kSimdWidth, 0, 0}};
    case Source::kSimdgroupIndexInThreadgroup: return {{lane_ / kSimdWidth, 0, 0}};
    case Source::kSimdgroupsPerThreadgroup: return {{static_cast<uint32_t>(simdgroups_.size()), 0, 0}};
    case Source::kBuffer:
    case Source::kThreadgroup: break;
  }
  return {};
}

std::string Worker::where(uint32_t lane) const {
  return ", in threadgroup " + text_of(group_) + ", simdgroup " + std::to_string(lane / kSimdWidth) +
         ", lane " + std::to_string(lane % kSimdWidth);
}

std::string Worker::state(Stop stop, const Site& site) const {
  if (stop == Stop::kReturn) return "has returned";
  return std::string("is at ") + site.what + " (" + site.file + ":" + std::to_string(site.line) + ")";
}

void Worker::stop_with(const std::string& message) {
  error_ = message;
  __tsan_release(&dispatch_.ended);
  fibers_[lane_]->switch_to(main_);  // and never back
  std::abort();
}

// Called by the signal handler on its own stack: no memory is asked for here.
void Worker::stop_at_fault(const Fault& fault) {
  fault_ = fault;
  fibers_[lane_]->switch_to(main_);
  std::abort();
}

// What the kernel needs and the host did not give.
std::string check(const Kernel& kernel, std::span<const Buffer> buffers, const Launch& launch) {
  const uint64_t threads = volume(launch.threads);
  if (threads == 0 || threads > kernel.threads_max || threads > kThreadsMax) {
    return "threadgroup of " + std::to_string(threads) + " threads, want 1 to " +
           std::to_string(std::min(kernel.threads_max, kThreadsMax));
  }
  for (const uint32_t place : kernel.constants) {
    const Constant& c = kernel.module->constants[place];
    const auto given = [&](const ConstantValue& v) { return v.index == c.index; };
    if (std::none_of(launch.constants.begin(), launch.constants.end(), given)) {
      return std::string("function constant ") + c.name + " (" + std::to_string(c.index) + ") has no value";
    }
  }
  if (launch.threadgroup_bytes.size() > kArgumentsMax) {
    return "more than " + std::to_string(kArgumentsMax) + " threadgroup arguments";
  }
  size_t threadgroup_bytes = 0;
  for (const size_t bytes : launch.threadgroup_bytes) threadgroup_bytes += bytes;
  if (threadgroup_bytes > kThreadgroupMemoryBytesMax) {
    return std::to_string(threadgroup_bytes) + " bytes of threadgroup memory, " +
           std::to_string(kThreadgroupMemoryBytesMax) + " are allowed";
  }
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const Parameter& p = kernel.parameters[i];
    const ParameterType& type = kernel.types[i];
    const std::string name = p.name + (" (" + std::to_string(p.index)) + ")";
    if (p.source == Source::kThreadgroup && p.index >= launch.threadgroup_bytes.size()) {
      return "threadgroup argument " + name + " has no size";
    }
    if (p.source != Source::kBuffer) continue;
    if (p.index >= buffers.size() || buffers[p.index].data == nullptr) {
      if (p.optional) continue;
      return "buffer " + name + " is not bound";
    }
    const Buffer& b = buffers[p.index];
    if (b.bytes < type.bytes) {
      return "buffer " + name + ": got " + std::to_string(b.bytes) + " bytes, its type has " +
             std::to_string(type.bytes);
    }
    if (reinterpret_cast<uintptr_t>(b.data) % type.alignment != 0) {
      return "buffer " + name + ": not aligned to " + std::to_string(type.alignment) + " bytes";
    }
  }
  return "";
}

void set_constants(const Module& module, std::span<const ConstantValue> values) {
  for (const Constant& c : module.constants) {
    *c.is_set = false;
    std::memset(c.value, 0, c.bytes);
    for (const ConstantValue& v : values) {
      if (v.index != c.index) continue;
      std::memcpy(c.value, &v.bits, c.bytes);
      *c.is_set = true;
    }
  }
  module.compute_constants();
}

}  // namespace

Module::Module(const char* file, std::vector<Kernel> its_kernels, std::vector<Constant> its_constants,
               void (*compute)())
    : file(file),
      kernels(std::move(its_kernels)),
      constants(std::move(its_constants)),
      compute_constants(compute) {
  for (Kernel& k : kernels) k.module = this;
  modules().push_back(this);
}

std::vector<const Kernel*> kernels() {
  std::vector<const Kernel*> out;
  for (const Module* m : modules()) {
    for (const Kernel& k : m->kernels) out.push_back(&k);
  }
  return out;
}

const Kernel* find_kernel(std::string_view name) {
  for (const Module* m : modules()) {
    for (const Kernel& k : m->kernels) {
      if (name == k.name) return &k;
    }
  }
  return nullptr;
}

std::string dispatch(const Kernel& kernel, std::span<const Buffer> buffers, const Launch& launch) {
  static std::mutex mutex;  // function constants are variables of the translated file
  const std::lock_guard lock(mutex);
  const std::string head = std::string("[simt] ") + kernel.name + ": ";
  if (const std::string error = check(kernel, buffers, launch); !error.empty()) return head + error;
  set_constants(*kernel.module, launch.constants);
  Dispatch dispatch(kernel, launch);
  for (const Buffer& b : buffers) dispatch.buffers.push_back(b.data);
  dispatch.groups.resize(volume(launch.groups));
  std::iota(dispatch.groups.begin(), dispatch.groups.end(), uint64_t{0});
  if (launch.order == Order::kReverse) std::reverse(dispatch.groups.begin(), dispatch.groups.end());
  if (launch.order == Order::kRandom) {
    Random(launch.seed).shuffle(dispatch.groups.data(), static_cast<uint32_t>(dispatch.groups.size()));
  }
  const size_t n_worker = std::clamp<size_t>(dispatch.groups.size(), 1, std::max(1u, launch.workers));
  std::vector<std::thread> others;
  for (size_t i = 1; i < n_worker; ++i) others.emplace_back([&] { Worker(dispatch).run(); });
  Worker(dispatch).run();
  for (std::thread& t : others) t.join();
  return dispatch.failed ? head + dispatch.error : "";
}

Position thread_value(Source source) { return worker->value(source); }
uint32_t lane_index() { return worker->lane() % kSimdWidth; }
uint32_t lane_count() { return worker->simdgroup().count; }

Slots exchange(const void* value, size_t bytes, const Site& site) {
  Simdgroup& s = worker->simdgroup();
  auto& slots = s.slots[s.rounds % 2];
  copy_bytes(slots[worker->lane() % kSimdWidth], static_cast<const unsigned char*>(value), bytes);
  worker->arrive(Stop::kSimd, site);
  return slots;
}

void simdgroup_barrier(bool orders_memory, const Site& site) {
  worker->barrier(Stop::kSimd, orders_memory, site);
}

void threadgroup_barrier(bool orders_memory, const Site& site) {
  worker->barrier(Stop::kBarrier, orders_memory, site);
}

void* threadgroup_memory(uint32_t number, size_t bytes, const char* name, const Site& site) {
  return worker->array(number, bytes, name, site);
}

void fail(const std::string& message) { worker->stop_with(message); }

}  // namespace simt
