// SPDX-License-Identifier: MIT
//
// The read queue over files that fail, stall and come short on order: every byte, the order of
// priorities, cancelling, errors, interrupts, and many threads at once (for the thread sanitizer).
#include <algorithm>
#include <random>

#include "base/clock.h"
#include "check.h"
#include "fault_file.h"
#include "io/read_queue.h"

using namespace esker;
using namespace esker::test;

namespace {

struct Request {
  std::vector<uint8_t> to;
  std::vector<ReadPiece> pieces;
};

// Several pieces of random size and place, side by side in memory.
Request random_request(const std::shared_ptr<FaultFile>& file, std::mt19937& random,
                       uint64_t bytes_max) {
  Request request;
  const size_t n = 1 + random() % 4;
  uint64_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t offset = random() % file->size_bytes();
    const uint64_t bytes = random() % std::min(bytes_max, file->size_bytes() - offset + 1);
    request.pieces.push_back({.file = file, .offset = offset, .bytes = bytes, .to = nullptr});
    total += bytes;
  }
  request.to.resize(total);
  uint64_t at = 0;
  for (ReadPiece& piece : request.pieces) {
    piece.to = request.to.data() + at;
    at += piece.bytes;
  }
  return request;
}

bool holds(const Request& request, const FaultFile& file) {
  return std::ranges::all_of(request.pieces, [&](const ReadPiece& piece) {
    return std::memcmp(piece.to, file.bytes().data() + piece.offset, piece.bytes) == 0;
  });
}

ReadPiece piece_of(const std::shared_ptr<FaultFile>& file, uint64_t offset, uint64_t bytes,
                   std::vector<uint8_t>& to) {
  return {.file = file, .offset = offset, .bytes = bytes, .to = to.data() + offset};
}

}  // namespace

TEST(read_queue_reads_every_byte) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(3000001, 1));
  for (const int threads : {1, 2, 3, 4}) {
    ReadQueue queue(threads);
    std::mt19937 random(static_cast<uint32_t>(threads));
    std::vector<Request> requests;
    for (int i = 0; i < 40; ++i) {
      requests.push_back(random_request(file, random, i % 4 == 0 ? 2000000 : 3000));
    }
    std::vector<std::shared_ptr<ReadTicket>> tickets;
    for (const Request& request : requests) {
      const bool ahead = random() % 2 == 0;
      tickets.push_back(
          queue.submit(request.pieces, ahead ? ReadPriority::kAhead : ReadPriority::kDemand));
    }
    for (size_t i = 0; i < tickets.size(); ++i) {
      queue.wait(*tickets[i], {});
      CHECK(queue.is_done(*tickets[i]));
      CHECK(holds(requests[i], *file));
    }
  }
}

TEST(read_queue_nothing_to_read_is_done) {
  ReadQueue queue(1);
  const auto file = std::make_shared<FaultFile>(pattern_bytes(10, 2));
  const auto none = queue.submit({}, ReadPriority::kDemand);
  const auto empty = queue.submit({{.file = file, .offset = 5, .bytes = 0, .to = nullptr}},
                                  ReadPriority::kDemand);
  CHECK(queue.is_done(*none) && queue.is_done(*empty));
  queue.wait(*none, {});
  queue.cancel(*empty);
  CHECK_EQUAL(file->reads(), 0u);
}

TEST(read_queue_demand_goes_first_and_in_order) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(1000, 3));
  std::mutex mutex;
  std::vector<uint64_t> order;
  Gate gate;
  file->set_hook([&](FaultFile& f, const FaultFile::Read& read) {
    if (read.index == 0) gate.pass();
    const std::lock_guard lock(mutex);
    order.push_back(read.offset);
    return f.serve(read);
  });
  std::vector<uint8_t> to(1000);
  ReadQueue queue(1);
  const auto submit = [&](uint64_t offset, ReadPriority priority) {
    return queue.submit({piece_of(file, offset, 10, to), piece_of(file, offset + 1, 10, to)},
                        priority);
  };
  const auto a = submit(0, ReadPriority::kAhead);
  gate.await(1);
  const auto b = submit(100, ReadPriority::kAhead);
  const auto c = submit(200, ReadPriority::kDemand);
  const auto d = submit(300, ReadPriority::kDemand);
  gate.open();
  for (const auto& ticket : {a, b, c, d}) queue.wait(*ticket, {});
  const std::vector<uint64_t> want = {0, 200, 201, 300, 301, 1, 100, 101};
  CHECK(order == want);
}

TEST(read_queue_readers_share_a_large_piece) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(1400000, 4));
  Gate gate;
  file->set_hook(gate.hook());
  std::vector<uint8_t> to(1400000);
  ReadQueue queue(3);
  const auto ticket = queue.submit({piece_of(file, 0, 1400000, to)}, ReadPriority::kDemand);
  gate.await(3);  // hangs if one reader takes it all
  gate.open();
  queue.wait(*ticket, {});
  CHECK(to == file->bytes());
  CHECK_EQUAL(file->reads(), 3u);
}

TEST(read_queue_cancel_drops_what_has_not_started) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(2000000, 5));
  Gate gate;
  file->set_hook(gate.hook());
  std::vector<uint8_t> to(2000000);
  ReadQueue queue(1);
  const auto running = queue.submit({piece_of(file, 0, 1500000, to)}, ReadPriority::kDemand);
  const auto waiting = queue.submit({piece_of(file, 1500000, 500000, to)}, ReadPriority::kAhead);
  gate.await(1);
  queue.cancel(*waiting);
  CHECK(queue.is_done(*waiting));
  const Error error = error_of([&] { queue.wait(*waiting, {}); });
  CHECK(error.kind() == ErrorKind::kRead);
  CHECK(contains(error.what(), "[io] the read was dropped before its end"));

  CHECK(!queue.drop(*running));
  CHECK(!queue.is_done(*running));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  queue.cancel(*running);
  CHECK(queue.is_done(*running));
  opener.join();
  CHECK_EQUAL(file->reads(), 1u);
  queue.cancel(*running);
  CHECK(queue.drop(*running));

  const auto again = queue.submit({piece_of(file, 0, 2000000, to)}, ReadPriority::kDemand);
  queue.wait(*again, {});
  CHECK(to == file->bytes());
  queue.cancel(*again);
  queue.wait(*again, {});  // it was complete: no error
}

TEST(read_queue_failure_ends_its_request_only) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(2000000, 6), "bad.bin");
  const auto good = std::make_shared<FaultFile>(pattern_bytes(2000000, 7));
  file->set_hook(fail_always(EIO));
  std::vector<uint8_t> to(2000000), other(2000000);
  for (const int threads : {1, 4}) {
    const uint64_t before = file->reads();
    ReadQueue queue(threads);
    const auto failing = queue.submit({piece_of(file, 0, 2000000, to)}, ReadPriority::kDemand);
    const auto fine = queue.submit({piece_of(good, 0, 2000000, other)}, ReadPriority::kDemand);
    for (int i = 0; i < 2; ++i) {
      const Error error = error_of([&] { queue.wait(*failing, {}); });
      CHECK(error.kind() == ErrorKind::kRead);
      CHECK(contains(error.what(), "Input/output error"));
      CHECK(contains(error.what(), "bad.bin, offset "));
    }
    queue.wait(*fine, {});
    CHECK(other == good->bytes());
    // Each try is made twice; what had not started is never tried.
    CHECK(file->reads() - before <= 2u * static_cast<uint64_t>(threads));
  }
}

TEST(read_queue_transient_faults_do_not_show) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(2000000, 8));
  std::vector<uint8_t> to(2000000);
  ReadQueue queue(3);
  file->set_hook(fail_each_once(EIO));
  queue.wait(*queue.submit({piece_of(file, 0, 2000000, to)}, ReadPriority::kDemand), {});
  CHECK(to == file->bytes());
  std::fill(to.begin(), to.end(), uint8_t{0});
  file->set_hook(short_reads(10000, 5));
  queue.wait(*queue.submit({piece_of(file, 0, 2000000, to)}, ReadPriority::kDemand), {});
  CHECK(to == file->bytes());
}

TEST(read_queue_interrupt_ends_the_wait_only) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(1000, 9));
  Gate gate;
  file->set_hook(gate.hook());
  std::vector<uint8_t> to(1000);
  ReadQueue queue(1);
  const auto ticket = queue.submit({piece_of(file, 0, 1000, to)}, ReadPriority::kDemand);
  int polls = 0;
  const int64_t start = now_ns();
  MESSAGE_OF(Interrupted, queue.wait(*ticket, [&] {
    if (++polls == 3) throw Interrupted();
  }));
  const int64_t took_ms = (now_ns() - start) / 1000000;
  CHECK(took_ms >= 100 && took_ms < 1000);
  CHECK(!queue.is_done(*ticket));
  gate.open();
  queue.wait(*ticket, [] {});
  CHECK(to == file->bytes());
}

TEST(read_queue_destructor_drops_queued_reads) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(1000, 10));
  Gate gate;
  file->set_hook(gate.hook());
  std::vector<uint8_t> to(1000);
  std::thread opener;
  {
    ReadQueue queue(1);
    for (uint64_t i = 0; i < 50; ++i) {
      queue.submit({piece_of(file, i * 10, 10, to)}, ReadPriority::kDemand);
    }
    gate.await(1);
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
  }
  opener.join();
  CHECK(file->reads() < 50);
}

TEST(read_queue_no_wake_up_is_lost) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(1000, 11));
  std::vector<uint8_t> to(1000);
  ReadQueue queue(3);
  const int64_t start = now_ns();
  for (int i = 0; i < 3000; ++i) {
    queue.wait(*queue.submit({piece_of(file, 0, 1000, to)}, ReadPriority::kAhead), {});
  }
  // A waiter that misses its call would look again after 50 ms.
  CHECK((now_ns() - start) / 1000000 < 3000 * 25);
}

TEST(read_queue_many_threads_submit_wait_and_cancel) {
  const auto file = std::make_shared<FaultFile>(pattern_bytes(1200000, 12));
  file->set_hook(stall_randomly(1, 200));
  std::atomic<int> wrong{0};
  {
    ReadQueue queue(4);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        for (int i = 0; i < 60; ++i) {
          const Request request = random_request(file, random, 1100000);
          const auto ticket = queue.submit(
              request.pieces, random() % 2 ? ReadPriority::kAhead : ReadPriority::kDemand);
          if (random() % 3 == 0) {
            queue.cancel(*ticket);
            continue;  // the memory goes: a read that still ran would write to it
          }
          queue.wait(*ticket, {});
          if (!holds(request, *file)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK_EQUAL(wrong.load(), 0);
}

TEST(read_queue_refuses_a_silly_number_of_threads) {
  for (const int threads : {0, -1, 100000}) {
    CHECK(error_of([&] { ReadQueue queue(threads); }).kind() == ErrorKind::kUsage);
  }
}
