// SPDX-License-Identifier: MIT
#include <atomic>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "check.h"

using esker::ThreadPool;

TEST(thread_pool_runs_every_index_once) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          if (thread < 0 || thread >= threads) std::terminate();
          for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& count : seen) CHECK_EQUAL(count.load(), 1);
      }
    }
  }
}

TEST(thread_pool_writes_are_visible_to_the_next_loop) {
  ThreadPool pool(4);
  std::vector<int64_t> values(257);  // plain memory: the sanitizer sees a missing fence
  for (int round = 1; round <= 2000; ++round) {
    pool.parallel_for(257, 1 + round % 40, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += 1;
    });
    CHECK_EQUAL(values[static_cast<size_t>(round % 257)], round);
  }
}

TEST(thread_pool_poll_ends_a_long_loop) {
  ThreadPool pool(2);
  pool.set_poll([] { throw esker::Interrupted(); });
  std::atomic<int64_t> parts{0};
  (void)MESSAGE_OF(esker::Interrupted, pool.parallel_for(100000, 1, [&](int64_t, int64_t, int) {
    parts.fetch_add(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }));
  CHECK(parts.load() < 1000);
  pool.set_poll({});
  int64_t again = 0;
  pool.parallel_for(10, 100, [&](int64_t begin, int64_t end, int) { again += end - begin; });
  CHECK_EQUAL(again, 10);
}
