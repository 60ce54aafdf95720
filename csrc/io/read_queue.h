// SPDX-License-Identifier: MIT
//
// Reads carried out by a fixed set of reader threads: demand reads before all others, in the order
// in which they were asked for within a priority.
//
// Large pieces are read in chunks, so that several threads share one record, and a demand read
// waits for no more than the chunks that are running. Knows nothing of what is read.
// Threads: every method may be called from any thread; one mutex guards the queues and all tickets.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "io/file.h"

namespace esker {

// A record of about 1.4 MB becomes three or four chunks: enough for four readers to share it, and
// still large enough for an SSD to serve at full speed.
inline constexpr uint64_t kReadChunkBytes = uint64_t{512} << 10;

enum class ReadPriority { kDemand = 0, kAhead = 1 };

// Called by code that waits, about every 50 ms; throws to end the wait.
using InterruptCheck = std::function<void()>;

// One or more pieces that are wanted together. The memory must live until the ticket is done.
struct ReadPiece {
  std::shared_ptr<File> file;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint8_t* to = nullptr;
};

// State of one submitted request. Thread-safe; owned jointly by queue and submitter.
class ReadTicket;

class ReadQueue {
 public:
  // chunk_bytes: the most that one reader reads at a time.
  explicit ReadQueue(int threads, uint64_t chunk_bytes = kReadChunkBytes);
  ~ReadQueue();  // drops queued reads, waits for running ones

  std::shared_ptr<ReadTicket> submit(std::vector<ReadPiece> pieces, ReadPriority priority);

  // True when every piece has been read or has failed; never blocks.
  bool is_done(const ReadTicket& ticket) const;
  // Blocks until done, then rethrows the Error(kRead) if the request failed. `check` is called
  // about every 50 ms and may throw; the request then goes on.
  // A request that was dropped before it was complete counts as failed.
  void wait(const ReadTicket& ticket, const InterruptCheck& check);
  // The same, but says nothing of how the request ended.
  void wait_until_done(const ReadTicket& ticket, const InterruptCheck& check);
  // A request that was queued behind others is wanted now: it moves to the end of the demand reads.
  void promote(const ReadTicket& ticket);
  // Of the request, as far as reads have begun.
  uint64_t bytes_begun(const ReadTicket& ticket) const;
  // Time in which at least one read was running, in ns.
  int64_t busy_ns() const;
  // Drops the request if no piece has started; otherwise waits for the running piece to end (never
  // longer than one read). Afterwards the memory is free to use. Never throws.
  void cancel(const ReadTicket& ticket) noexcept;
  // Drops what has not started and does not wait for the rest. True when nothing of it is running,
  // so that the memory is free to use.
  bool drop(const ReadTicket& ticket) noexcept;

 private:
  struct Chunk;

  void run_reader();
  void stop_readers();
  Chunk take_chunk_locked();
  void drop_locked(const ReadTicket& ticket, std::exception_ptr reason);

  const uint64_t chunk_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable work_;  // a queue is no longer empty, or the readers shall stop
  std::condition_variable done_;  // a ticket is done
  // Requests with chunks that have not started, by priority. A request leaves when its last chunk
  // starts, when a chunk of it fails, or when it is dropped.
  std::deque<std::shared_ptr<ReadTicket>> queued_[2];
  bool stopping_ = false;
  int running_ = 0;  // reads
  int64_t busy_since_ns_ = 0, busy_ns_ = 0;
  std::vector<std::thread> readers_;
};

}  // namespace esker
