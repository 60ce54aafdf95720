// SPDX-License-Identifier: MIT
//
// Fixed worker threads that share loops with the calling thread.
//
// Between loops workers spin briefly (a start costs about a microsecond while a token is being
// computed) and then sleep. A thread takes the parts of a stretch of its own in ascending order, so
// that it reads memory as one stream, and then the last parts of others' stretches. Which thread does
// which part is not fixed, so a loop's body must give the same result for any split: that is what
// makes results equal for any thread count.
// Threads: one caller at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace esker {

class ThreadPool {
 public:
  // body(begin, end, thread): thread in [0, size()) names the scratch memory it may use.
  using Body = std::function<void(int64_t, int64_t, int)>;

  explicit ThreadPool(int threads);  // counts the caller; at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Runs body over [0, n) in parts of `grain` (longer ones where n is beyond 2^31 of them). The body
  // must not throw.
  // The caller's poll (see set_poll) runs about every 20 ms on the calling thread; if it throws, the
  // parts not yet begun are dropped and the exception leaves here once all threads have stopped.
  void parallel_for(int64_t n, int64_t grain, const Body& body);

  void set_poll(std::function<void()> poll) { poll_ = std::move(poll); }

 private:
  // Parts [begin, end) not yet taken of a thread's stretch, begin in the upper half. Each in a cache
  // line of its own, which only its thread touches until others have nothing left.
  struct alignas(64) Stretch {
    std::atomic<uint64_t> range{0};
    bool is_empty() const;
    int64_t take_first();  // -1: none left
    int64_t take_last();
    int64_t drop();  // takes all; returns how many
  };

  void work(int thread);
  void run_parts(int thread, bool caller);

  const int size_;  // fixed before the first worker starts
  std::vector<std::thread> workers_;
  std::unique_ptr<Stretch[]> stretches_;
  std::function<void()> poll_;
  // The loop at hand. The caller writes it before it fills the stretches; whoever takes a part may
  // read it until it has counted that part in done_. A worker that wakes late finds nothing left (or
  // the next loop's parts) and holds nobody up.
  const Body* body_ = nullptr;
  int64_t n_ = 0, grain_ = 1;
  std::atomic<int64_t> done_{0};  // parts finished
  std::atomic<uint32_t> epoch_{0};  // raised to wake sleepers
  std::atomic<bool> stop_{false};
};

}  // namespace esker
