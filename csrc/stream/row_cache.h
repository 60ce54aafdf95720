// SPDX-License-Identifier: MIT
//
// Rows of a table too large for memory (the n-gram table), read from disk as they are needed, with
// a bounded least-recently-used cache in front. The table itself is never mapped, and loaded only
// where the cache has room for all of it.
//
// Knows nothing of what rows mean. Rows of a call are touched in the order in which they were asked
// for, those that were read last of all, so that what is cached never depends on the disk's speed.
// Threads: one caller at a time; the readers are its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "io/file.h"
#include "io/read_queue.h"

namespace esker {

struct RowCacheCounters {
  uint64_t lookups = 0;     // rows asked for
  uint64_t hits = 0;        // of which needed no read of their own: cached, or asked for twice
  uint64_t bytes_read = 0;  // as asked of the disk
};

class RowCache {
 public:
  // Rows of row_bytes each from `offset` on; the cache takes at most capacity_bytes, bookkeeping
  // included (but holds at least one row). Throws Error(kFormat) if the rows exceed the file.
  RowCache(std::shared_ptr<File> file, uint64_t offset, uint64_t row_bytes, uint64_t n_rows,
           uint64_t capacity_bytes, int reader_threads);
  ~RowCache();

  // What a cache of all rows takes.
  static uint64_t bytes_for_all(uint64_t row_bytes, uint64_t n_rows);
  // Reads all rows where the cache has room for them, and else nothing. Throws as fetch.
  void load_all(const InterruptCheck& check);

  // Copies rows [n] to `to` [n, row_bytes]. Misses of one call are read in parallel, each distinct
  // row once, also when n exceeds the cache. Throws Error(kRead); the cache stays usable.
  void fetch(std::span<const uint64_t> rows, uint8_t* to, const InterruptCheck& check);

  RowCacheCounters counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace esker
