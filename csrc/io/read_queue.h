// SPDX-License-Identifier: MIT
//
// Reads carried out by a fixed set of reader threads: demand reads before all others, in the order
// in which they were asked for within a priority.
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
  explicit ReadQueue(int threads);
  ~ReadQueue();  // drops queued reads, waits for running ones

  std::shared_ptr<ReadTicket> submit(std::vector<ReadPiece> pieces, ReadPriority priority);

  // True when every piece has been read or has failed; never blocks.
  bool is_done(const ReadTicket& ticket) const;
  // Blocks until done, then rethrows the Error(kRead) if the request failed. `check` is called
  // about every 50 ms and may throw; the request then goes on.
  void wait(const ReadTicket& ticket, const InterruptCheck& check);
  // Drops the request if no piece has started; otherwise waits for the running piece to end (never
  // longer than one read). Afterwards the memory is free to use. Never throws.
  void cancel(const ReadTicket& ticket) noexcept;

  // ... private members are the implementer's.
};

}  // namespace esker
