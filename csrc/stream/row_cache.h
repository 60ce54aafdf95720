// SPDX-License-Identifier: MIT
//
// Rows of a table too large for memory (the n-gram table), read from disk as they are needed, with
// a bounded least-recently-used cache in front. The table itself is never loaded or mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "io/file.h"
#include "io/read_queue.h"

namespace esker {

struct RowCacheCounters {
  uint64_t lookups = 0;
  uint64_t hits = 0;
  uint64_t bytes_read = 0;  // as asked of the disk
};

class RowCache {
 public:
  // rows of row_bytes each from `offset` on; the cache holds at most capacity_bytes (at least one row).
  RowCache(std::shared_ptr<File> file, uint64_t offset, uint64_t row_bytes, uint64_t n_rows,
           uint64_t capacity_bytes, int reader_threads);
  ~RowCache();

  // Copies rows [n] to `to` [n, row_bytes]. Misses of one call are read in parallel, each distinct
  // row once, also when n exceeds the cache. Throws Error(kRead); the cache stays usable.
  void fetch(std::span<const uint64_t> rows, uint8_t* to, const InterruptCheck& check);

  RowCacheCounters counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace esker
