// SPDX-License-Identifier: MIT
#include "base/thread_pool.h"

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "base/machine.h"

namespace esker {
namespace {

// About 50 us of spinning: longer than the gap between two ops of a token, short enough not to be
// seen in the idle load of a machine. 0.8 us a start against 48 us with a condition variable.
constexpr int kSpins = 4000;
constexpr int64_t kPollNs = 20'000'000;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr uint64_t pack(int64_t begin, int64_t end) {
  return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end);
}
constexpr int64_t begin_of(uint64_t range) { return static_cast<int64_t>(range >> 32); }
constexpr int64_t end_of(uint64_t range) { return static_cast<int64_t>(range & 0xffffffff); }

}  // namespace

bool ThreadPool::Stretch::is_empty() const {
  const uint64_t r = range.load(std::memory_order_relaxed);
  return begin_of(r) == end_of(r);
}

int64_t ThreadPool::Stretch::take_first() {
  uint64_t r = range.load(std::memory_order_relaxed);
  while (begin_of(r) < end_of(r)) {
    if (range.compare_exchange_weak(r, pack(begin_of(r) + 1, end_of(r)), std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return begin_of(r);
    }
  }
  return -1;
}

int64_t ThreadPool::Stretch::take_last() {
  uint64_t r = range.load(std::memory_order_relaxed);
  while (begin_of(r) < end_of(r)) {
    if (range.compare_exchange_weak(r, pack(begin_of(r), end_of(r) - 1), std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return end_of(r) - 1;
    }
  }
  return -1;
}

int64_t ThreadPool::Stretch::drop() {
  const uint64_t r = range.exchange(0, std::memory_order_acquire);
  return end_of(r) - begin_of(r);
}

ThreadPool::ThreadPool(int threads)
    : size_(std::max(threads, 1)), stretches_(std::make_unique<Stretch[]>(static_cast<size_t>(size_))) {
  for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::work(int thread) {
  hurry_this_thread();
  int spins = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint32_t epoch = epoch_.load(std::memory_order_acquire);
    if (!stretches_[static_cast<size_t>(thread)].is_empty()) {
      run_parts(thread, false);
      spins = 0;
    } else if (++spins < kSpins) {
      relax();
    } else {
      epoch_.wait(epoch, std::memory_order_acquire);
      spins = 0;
    }
  }
}

void ThreadPool::run_parts(int thread, bool caller) {
  int64_t last_poll = caller && poll_ ? now_ns() : 0;
  for (int i = 0; i < size(); ++i) {
    Stretch& stretch = stretches_[static_cast<size_t>((thread + i) % size())];
    while (true) {
      const int64_t part = i == 0 ? stretch.take_first() : stretch.take_last();
      if (part < 0) break;
      (*body_)(part * grain_, std::min((part + 1) * grain_, n_), thread);
      done_.fetch_add(1, std::memory_order_release);
      if (last_poll != 0 && now_ns() - last_poll > kPollNs) {
        last_poll = now_ns();
        poll_();
      }
    }
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  grain = std::max({grain, int64_t{1}, n >> 31});
  const int64_t parts = (n + grain - 1) / grain;
  if (parts == 1) return body(0, n, 0);
  body_ = &body;
  n_ = n;
  grain_ = grain;
  done_.store(0, std::memory_order_relaxed);
  for (int64_t i = 0; i < size(); ++i) {
    stretches_[static_cast<size_t>(i)].range.store(
        pack(parts * i / size(), parts * (i + 1) / size()), std::memory_order_release);
  }
  if (size_ > 1) {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  std::exception_ptr error;
  int64_t dropped = 0;
  try {
    run_parts(0, true);
  } catch (...) {
    error = std::current_exception();
    for (int i = 0; i < size(); ++i) dropped += stretches_[static_cast<size_t>(i)].drop();
  }
  for (int spins = 0; done_.load(std::memory_order_acquire) + dropped != parts; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();  // more threads than cores: let the worker finish
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace esker
