// SPDX-License-Identifier: MIT
//
// The row cache against a plain list, and under faults, stalls and interrupts.
#include <algorithm>
#include <list>
#include <random>
#include <set>

#include "base/clock.h"
#include "check.h"
#include "fault_file.h"
#include "stream/row_cache.h"

using namespace esker;
using namespace esker::test;

namespace {

constexpr uint64_t kOffset = 1001;
constexpr uint64_t kRows = 500;
constexpr uint64_t kOverheadBytes = 32;  // of a cached row, beside its bytes

std::shared_ptr<FaultFile> table(uint64_t row_bytes) {
  return std::make_shared<FaultFile>(pattern_bytes(kOffset + kRows * row_bytes, row_bytes),
                                     "table.bin");
}

void check_fetch(RowCache& cache, const FaultFile& file, uint64_t row_bytes,
                 const std::vector<uint64_t>& rows) {
  std::vector<uint8_t> to(rows.size() * row_bytes + 1, 0xa5);
  cache.fetch(rows, to.data(), {});
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK(std::memcmp(to.data() + i * row_bytes,
                      file.bytes().data() + kOffset + rows[i] * row_bytes, row_bytes) == 0);
  }
  CHECK_EQUAL(to.back(), 0xa5);
}

std::vector<uint64_t> random_rows(std::mt19937& random, size_t n) {
  std::vector<uint64_t> rows(n);
  for (uint64_t& row : rows) row = std::min(random() % kRows, random() % kRows);
  return rows;
}

struct Fetched {
  size_t rows = 0;   // not in the cache
  size_t reads = 0;  // one for rows that lie side by side and are asked for in that order
};

// Least recently used, as one would write it on a blackboard.
Fetched model_fetch(std::list<uint64_t>& cached, size_t capacity,
                   const std::vector<uint64_t>& rows) {
  std::vector<uint64_t> misses;
  for (const uint64_t row : rows) {
    const auto at = std::find(cached.begin(), cached.end(), row);
    if (at != cached.end()) {
      cached.splice(cached.begin(), cached, at);
    } else if (std::find(misses.begin(), misses.end(), row) == misses.end()) {
      misses.push_back(row);
    }
  }
  for (const uint64_t row : misses) cached.push_front(row);
  while (cached.size() > capacity) cached.pop_back();
  Fetched fetched{.rows = misses.size(), .reads = 0};
  for (size_t i = 0; i < misses.size(); ++i) {
    if (i == 0 || misses[i] != misses[i - 1] + 1) ++fetched.reads;
  }
  return fetched;
}

}  // namespace

TEST(row_cache_agrees_with_a_list_for_many_sizes) {
  for (const uint64_t row_bytes : {1u, 90u, 97u, 320u}) {
    for (const size_t capacity : {1u, 2u, 7u, 64u, 499u, 500u, 9999u}) {
      const auto file = table(row_bytes);
      RowCache cache(file, kOffset, row_bytes, kRows, capacity * (row_bytes + kOverheadBytes), 2);
      std::list<uint64_t> model;
      std::mt19937 random(static_cast<uint32_t>(capacity));
      uint64_t lookups = 0, read = 0, reads = 0;
      for (int i = 0; i < 40; ++i) {
        const auto rows = random_rows(random, i % 8 == 0 ? 100 : random() % 12);
        check_fetch(cache, *file, row_bytes, rows);
        lookups += rows.size();
        const Fetched fetched = model_fetch(model, capacity, rows);
        read += fetched.rows, reads += fetched.reads;
        const RowCacheCounters c = cache.counters();
        CHECK_EQUAL(c.lookups, lookups);
        CHECK_EQUAL(c.lookups - c.hits, read);
        CHECK_EQUAL(c.bytes_read, read * row_bytes);
        CHECK_EQUAL(file->reads(), reads);
      }
    }
  }
}

TEST(row_cache_holds_one_row_at_least) {
  const auto file = table(90);
  RowCache cache(file, kOffset, 90, kRows, 0, 1);
  check_fetch(cache, *file, 90, {7, 7, 8, 7});
  check_fetch(cache, *file, 90, {8});
  check_fetch(cache, *file, 90, {});
  CHECK_EQUAL(cache.counters().lookups, 5u);
  CHECK_EQUAL(cache.counters().hits, 3u);
}

TEST(row_cache_first_and_last_row) {
  const auto file = table(97);
  RowCache cache(file, kOffset, 97, kRows, 10000, 1);
  check_fetch(cache, *file, 97, {kRows - 1, 0});
  std::vector<uint8_t> to(2 * 97);
  const std::vector<uint64_t> beyond = {0, kRows};
  const Error error = error_of([&] { cache.fetch(beyond, to.data(), {}); });
  CHECK(error.kind() == ErrorKind::kUsage);
  CHECK(contains(error.what(), "got 500, want less than 500 (table.bin)"));
  CHECK_EQUAL(cache.counters().lookups, 2u);
}

TEST(row_cache_faults_are_clear_and_pass) {
  const auto file = table(320);
  RowCache cache(file, kOffset, 320, kRows, 20 * 352, 3);
  check_fetch(cache, *file, 320, {1, 2, 3});
  std::vector<uint8_t> to(3 * 320);
  const std::vector<uint64_t> rows = {2, 50, 51};
  file->set_hook(fail_always(EIO));
  for (int i = 0; i < 3; ++i) {
    const Error error = error_of([&] { cache.fetch(rows, to.data(), {}); });
    CHECK(error.kind() == ErrorKind::kRead);
    CHECK(contains(error.what(), "Input/output error"));
    CHECK(contains(error.what(), "table.bin, offset "));
    check_fetch(cache, *file, 320, {3, 2, 1});  // cached: needs no disk
  }
  file->set_hook(fail_each_once(EIO));
  check_fetch(cache, *file, 320, rows);
  file->set_hook(short_reads(100, 3));
  check_fetch(cache, *file, 320, {60, 61, 62, 63});
  file->set_hook({});
  file->cut(kOffset + 320 * 100 + 10);
  const std::vector<uint64_t> lost = {100};
  CHECK(contains(error_of([&] { cache.fetch(lost, to.data(), {}); }).what(),
                 "ends too early: got 10 bytes, want 320 bytes"));
  check_fetch(cache, *file, 320, {99});
}

TEST(row_cache_interrupt_does_not_wait_for_a_stalled_disk) {
  const auto file = table(90);
  RowCache cache(file, kOffset, 90, kRows, 20 * 122, 2);
  check_fetch(cache, *file, 90, {1, 2, 3});
  Gate gate;
  file->set_hook(gate.hook());
  for (int i = 0; i < 3; ++i) {
    // The caller's memory goes while the disk is still stalled.
    std::vector<uint8_t> to(4 * 90);
    const std::vector<uint64_t> rows = {2, 40, 41, 42};
    const int64_t start = now_ns();
    MESSAGE_OF(Interrupted, cache.fetch(rows, to.data(), [] { throw Interrupted(); }));
    CHECK((now_ns() - start) / 1000000 < 300);
  }
  gate.open();
  file->set_hook({});
  check_fetch(cache, *file, 90, {40, 41, 42, 1, 2, 3});
  CHECK_EQUAL(cache.counters().bytes_read, (3u + 3 * 3 + 3) * 90);
}

TEST(row_cache_caches_the_same_however_slow_the_disk) {
  const auto calm = table(90), slow = table(90);
  RowCache a(calm, kOffset, 90, kRows, 30 * 122, 4), b(slow, kOffset, 90, kRows, 30 * 122, 4);
  slow->set_hook(stall_randomly(1, 200));
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    const auto rows = random_rows(random, 20);
    check_fetch(a, *calm, 90, rows);
    check_fetch(b, *slow, 90, rows);
    CHECK_EQUAL(a.counters().hits, b.counters().hits);
  }
}

TEST(row_cache_refuses_a_table_beyond_its_file) {
  const auto file = table(90);
  const auto refused = [&](uint64_t offset, uint64_t row_bytes, uint64_t n_rows) {
    return error_of([&] { RowCache(file, offset, row_bytes, n_rows, 1000, 1); }).kind() ==
           ErrorKind::kFormat;
  };
  CHECK(refused(kOffset + 1, 90, kRows));
  CHECK(refused(kOffset, 90, kRows + 1));
  CHECK(refused(kOffset, 91, kRows));
  CHECK(refused(kOffset, 0, kRows));
  CHECK(refused(kOffset, 90, 0));
  CHECK(refused(UINT64_MAX, 90, 1));
  CHECK(refused(kOffset, uint64_t{1} << 63, 2));
}

TEST(row_cache_loads_all_rows_where_they_fit) {
  constexpr uint64_t kRowBytes = 90;
  std::vector<uint64_t> all(kRows);
  for (uint64_t i = 0; i < kRows; ++i) all[i] = i;
  const uint64_t bytes = RowCache::bytes_for_all(kRowBytes, kRows);
  {
    const auto file = table(kRowBytes);
    RowCache cache(file, kOffset, kRowBytes, kRows, bytes, 2);
    cache.load_all({});
    CHECK_EQUAL(file->reads(), 1u);
    CHECK_EQUAL(cache.counters().lookups, 0u);
    check_fetch(cache, *file, kRowBytes, all);
    CHECK_EQUAL(file->reads(), 1u);
    CHECK_EQUAL(cache.counters().hits, kRows);
  }
  const auto file = table(kRowBytes);
  RowCache cache(file, kOffset, kRowBytes, kRows, bytes - 1, 2);
  cache.load_all({});
  CHECK_EQUAL(file->reads(), 0u);
}
