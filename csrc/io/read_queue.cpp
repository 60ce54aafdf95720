// SPDX-License-Identifier: MIT
#include "io/read_queue.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/units.h"

namespace esker {
namespace {

constexpr int kReaderThreadsMax = 256;
constexpr auto kInterruptPoll = std::chrono::milliseconds(50);
// Chunks but the last end at this file offset, so that no block is read twice.
constexpr uint64_t kChunkAlignBytes = 4096;

// What is left of `piece` after `done` bytes is cut evenly, so that no reader gets a crumb.
uint64_t next_chunk_bytes(const ReadPiece& piece, uint64_t done, uint64_t most) {
  const uint64_t left = piece.bytes - done;
  const uint64_t even = div_ceil(left, div_ceil(left, most));
  const uint64_t start = piece.offset + done;
  return std::min(left, align_up(start + even, kChunkAlignBytes) - start);
}

std::exception_ptr dropped_error() {
  return std::make_exception_ptr(
      Error(ErrorKind::kRead, format_fault("io", {.what = "the read was dropped before its end",
                                                  .got = {},
                                                  .want = {},
                                                  .where = {},
                                                  .hint = {}})));
}

}  // namespace

// Guarded by the queue's mutex, but for `pieces`, which does not change.
class ReadTicket {
 public:
  explicit ReadTicket(std::vector<ReadPiece> wanted) : pieces(std::move(wanted)) {}
  bool is_done() const { return !queued && running == 0; }

  const std::vector<ReadPiece> pieces;
  size_t piece_index = 0;    // the next chunk starts in this piece,
  uint64_t piece_bytes = 0;  // after this many of its bytes
  bool queued = false;       // a chunk has not started yet
  int running = 0;           // chunks being read now
  std::exception_ptr error;  // the first failure
};

struct ReadQueue::Chunk {
  std::shared_ptr<ReadTicket> ticket;
  File* file = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint8_t* to = nullptr;
};

ReadQueue::ReadQueue(int threads, uint64_t chunk_bytes)
    : chunk_bytes_(std::max(chunk_bytes, kChunkAlignBytes)) {
  if (threads < 1 || threads > kReaderThreadsMax) {
    raise(ErrorKind::kUsage, "io",
          {.what = "the number of reader threads is out of range",
           .got = std::to_string(threads),
           .want = "1 to " + std::to_string(kReaderThreadsMax),
           .where = {},
           .hint = {}});
  }
  readers_.reserve(static_cast<size_t>(threads));
  try {
    for (int i = 0; i < threads; ++i) readers_.emplace_back([this] { run_reader(); });
  } catch (...) {
    stop_readers();
    throw;
  }
}

ReadQueue::~ReadQueue() { stop_readers(); }

void ReadQueue::stop_readers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

std::shared_ptr<ReadTicket> ReadQueue::submit(std::vector<ReadPiece> pieces,
                                              ReadPriority priority) {
  std::erase_if(pieces, [](const ReadPiece& piece) { return piece.bytes == 0; });
  auto ticket = std::make_shared<ReadTicket>(std::move(pieces));
  if (ticket->pieces.empty()) return ticket;
  {
    const std::lock_guard lock(mutex_);
    queued_[static_cast<int>(priority)].push_back(ticket);
    ticket->queued = true;
  }
  work_.notify_all();
  return ticket;
}

bool ReadQueue::is_done(const ReadTicket& ticket) const {
  const std::lock_guard lock(mutex_);
  return ticket.is_done();
}

void ReadQueue::wait_until_done(const ReadTicket& ticket, const InterruptCheck& check) {
  std::unique_lock lock(mutex_);
  while (!done_.wait_for(lock, kInterruptPoll, [&] { return ticket.is_done(); })) {
    if (!check) continue;
    lock.unlock();
    check();
    lock.lock();
  }
}

void ReadQueue::wait(const ReadTicket& ticket, const InterruptCheck& check) {
  wait_until_done(ticket, check);
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = ticket.error;
  }
  if (error) std::rethrow_exception(error);
}

void ReadQueue::promote(const ReadTicket& ticket) {
  const std::lock_guard lock(mutex_);
  auto& ahead = queued_[static_cast<int>(ReadPriority::kAhead)];
  const auto at = std::find_if(ahead.begin(), ahead.end(),
                               [&](const auto& other) { return other.get() == &ticket; });
  if (at == ahead.end()) return;
  queued_[static_cast<int>(ReadPriority::kDemand)].push_back(*at);
  ahead.erase(at);
}

uint64_t ReadQueue::bytes_begun(const ReadTicket& ticket) const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = ticket.piece_bytes;
  for (size_t i = 0; i < ticket.piece_index; ++i) bytes += ticket.pieces[i].bytes;
  return bytes;
}

int64_t ReadQueue::busy_ns() const {
  const std::lock_guard lock(mutex_);
  return busy_ns_ + (running_ > 0 ? now_ns() - busy_since_ns_ : 0);
}

bool ReadQueue::drop(const ReadTicket& ticket) noexcept {
  const std::lock_guard lock(mutex_);
  if (ticket.queued) drop_locked(ticket, dropped_error());
  return ticket.is_done();
}

void ReadQueue::cancel(const ReadTicket& ticket) noexcept {
  if (!drop(ticket)) wait_until_done(ticket, {});
}

// Takes the ticket out of its queue; what is running goes on.
void ReadQueue::drop_locked(const ReadTicket& ticket, std::exception_ptr reason) {
  for (auto& queue : queued_) {
    const auto at = std::find_if(queue.begin(), queue.end(),
                                 [&](const auto& other) { return other.get() == &ticket; });
    if (at == queue.end()) continue;
    const std::shared_ptr<ReadTicket> found = *at;
    queue.erase(at);
    found->queued = false;
    if (!found->error) found->error = std::move(reason);
    if (found->is_done()) done_.notify_all();
    return;
  }
}

ReadQueue::Chunk ReadQueue::take_chunk_locked() {
  auto& queue = queued_[0].empty() ? queued_[1] : queued_[0];
  ReadTicket& ticket = *queue.front();
  const ReadPiece& piece = ticket.pieces[ticket.piece_index];
  const uint64_t done = ticket.piece_bytes;
  const Chunk chunk{queue.front(), piece.file.get(), piece.offset + done,
                    next_chunk_bytes(piece, done, chunk_bytes_), piece.to + done};
  ticket.running += 1;
  ticket.piece_bytes += chunk.bytes;
  if (ticket.piece_bytes == piece.bytes) {
    ticket.piece_index += 1;
    ticket.piece_bytes = 0;
  }
  if (ticket.piece_index == ticket.pieces.size()) {
    ticket.queued = false;
    queue.pop_front();
  }
  return chunk;
}

void ReadQueue::run_reader() {
  hurry_this_thread();
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock,
               [&] { return stopping_ || !queued_[0].empty() || !queued_[1].empty(); });
    if (stopping_) return;
    const Chunk chunk = take_chunk_locked();
    if (running_++ == 0) busy_since_ns_ = now_ns();
    lock.unlock();
    std::exception_ptr error;
    try {
      read_exactly(*chunk.file, chunk.to, chunk.bytes, chunk.offset);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (--running_ == 0) busy_ns_ += now_ns() - busy_since_ns_;
    ReadTicket& ticket = *chunk.ticket;
    ticket.running -= 1;
    if (error) {
      if (ticket.queued) drop_locked(ticket, error);
      if (!ticket.error) ticket.error = error;
    }
    if (ticket.is_done()) done_.notify_all();
  }
}

}  // namespace esker
