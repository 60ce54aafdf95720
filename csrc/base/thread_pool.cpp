// SPDX-License-Identifier: MIT
#include "base/thread_pool.h"

#include <algorithm>
#include <exception>

#include "base/clock.h"

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

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        relax();
      } else {
        epoch_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stop_.load()) return;
    run_parts(thread, false);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::run_parts(int thread, bool caller) {
  int64_t last_poll = caller && poll_ ? now_ns() : 0;
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= n_) return;
    (*body_)(begin, std::min(begin + grain_, n_), thread);
    if (last_poll != 0 && now_ns() - last_poll > kPollNs) {
      last_poll = now_ns();
      poll_();
    }
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  body_ = &body;
  n_ = n;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  const bool share = !workers_.empty() && n > grain;
  if (share) {
    running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  std::exception_ptr error;
  try {
    run_parts(0, true);
  } catch (...) {
    error = std::current_exception();
    next_.store(n, std::memory_order_relaxed);
  }
  while (share && running_.load(std::memory_order_acquire) != 0) relax();
  if (error) std::rethrow_exception(error);
}

}  // namespace esker
