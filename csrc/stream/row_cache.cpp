// SPDX-License-Identifier: MIT
#include "stream/row_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/error.h"

namespace esker {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
// A cached row costs this beside its bytes: a Link and at most two hash buckets.
constexpr uint64_t kRowOverheadBytes = 32;

// Finaliser of a 64-bit multiplicative hash: row numbers are often runs or multiples.
uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  return x;
}

struct Link {
  uint64_t row = 0;
  uint32_t older = kNone;  // neighbours by recency
  uint32_t newer = kNone;
  uint32_t next = kNone;   // in the same hash bucket
};

// Rows by number with least-recently-used eviction; all memory is set aside at the start.
class LruRows {
 public:
  LruRows(uint32_t capacity, uint64_t row_bytes)
      : row_bytes_(row_bytes),
        capacity_(capacity),
        buckets_(std::bit_ceil(uint64_t{capacity}), kNone),
        bytes_(capacity * row_bytes, "the row cache") {
    links_.reserve(capacity);
  }

  uint32_t capacity() const { return capacity_; }

  // Null when the row is not there; else it is the most recently used now.
  const uint8_t* find(uint64_t row) {
    uint32_t at = bucket(row);
    while (at != kNone && links_[at].row != row) at = links_[at].next;
    if (at == kNone) return nullptr;
    unlink(at);
    push_newest(at);
    return bytes_.data() + at * row_bytes_;
  }

  // The row must not be there yet.
  void insert(uint64_t row, const uint8_t* from) {
    uint32_t at = static_cast<uint32_t>(links_.size());
    if (at < capacity_) {
      links_.emplace_back();
    } else {
      at = oldest_;
      unlink(at);
      uint32_t* link = &bucket(links_[at].row);
      while (*link != at) link = &links_[*link].next;
      *link = links_[at].next;
    }
    links_[at].row = row;
    links_[at].next = std::exchange(bucket(row), at);
    push_newest(at);
    std::memcpy(bytes_.data() + at * row_bytes_, from, row_bytes_);
  }

 private:
  uint32_t& bucket(uint64_t row) { return buckets_[mix(row) & (buckets_.size() - 1)]; }

  void push_newest(uint32_t at) {
    links_[at].older = newest_;
    links_[at].newer = kNone;
    (newest_ == kNone ? oldest_ : links_[newest_].newer) = at;
    newest_ = at;
  }

  void unlink(uint32_t at) {
    const Link& link = links_[at];
    (link.newer == kNone ? newest_ : links_[link.newer].older) = link.older;
    (link.older == kNone ? oldest_ : links_[link.older].newer) = link.newer;
  }

  const uint64_t row_bytes_;
  const uint32_t capacity_;
  uint32_t newest_ = kNone;
  uint32_t oldest_ = kNone;
  std::vector<Link> links_;
  std::vector<uint32_t> buckets_;
  AlignedBuffer bytes_;
};

uint32_t rows_within(uint64_t capacity_bytes, uint64_t row_bytes, uint64_t n_rows) {
  const uint64_t rows = std::min(n_rows, capacity_bytes / (row_bytes + kRowOverheadBytes));
  return static_cast<uint32_t>(std::clamp<uint64_t>(rows, 1, kNone - 1));
}

}  // namespace

struct RowCache::State {
  // Rows of one call that are not cached: read into memory of their own, since the caller's is
  // gone after an exception while a stalled disk may still write.
  struct Misses {
    std::vector<uint64_t> rows;        // distinct, in the order in which they were asked for
    std::vector<uint8_t> bytes;        // [rows, row_bytes]
    std::shared_ptr<ReadTicket> ticket;
  };
  struct Copy {
    size_t position = 0;  // in the caller's rows
    uint64_t row = 0;
    size_t miss_index = 0;
  };

  State(std::shared_ptr<File> source, uint64_t offset, uint64_t bytes, uint64_t count,
        uint64_t capacity_bytes, int reader_threads)
      : file(std::move(source)),
        offset_bytes(offset),
        row_bytes(bytes),
        n_rows(count),
        cached(rows_within(capacity_bytes, bytes, count), bytes),
        queue(reader_threads) {}

  void check_rows(std::span<const uint64_t> rows) const;
  std::vector<Copy> copy_hits(std::span<const uint64_t> rows, uint8_t* to);
  void read_misses(Misses* misses, const InterruptCheck& check);

  const std::shared_ptr<File> file;
  const uint64_t offset_bytes;
  const uint64_t row_bytes;
  const uint64_t n_rows;
  LruRows cached;
  RowCacheCounters counters;
  std::vector<std::unique_ptr<Misses>> abandoned;  // whose reads still run
  ReadQueue queue;  // last: its readers end before the memory they write to goes
};

void RowCache::State::check_rows(std::span<const uint64_t> rows) const {
  for (const uint64_t row : rows) {
    if (row < n_rows) continue;
    raise(ErrorKind::kUsage, "stream",
          {.what = "the table has no such row",
           .got = std::to_string(row),
           .want = "less than " + std::to_string(n_rows),
           .where = file->path(),
           .hint = {}});
  }
}

// Returns what remains to be copied once it has been read, and numbers the distinct rows in it in
// the order in which they were asked for.
std::vector<RowCache::State::Copy> RowCache::State::copy_hits(std::span<const uint64_t> rows,
                                                              uint8_t* to) {
  std::vector<Copy> late;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (const uint8_t* bytes = cached.find(rows[i])) {
      std::memcpy(to + i * row_bytes, bytes, row_bytes);
    } else {
      late.push_back({.position = i, .row = rows[i], .miss_index = 0});
    }
  }
  std::vector<size_t> by_row(late.size());
  for (size_t i = 0; i < by_row.size(); ++i) by_row[i] = i;
  std::sort(by_row.begin(), by_row.end(), [&](size_t a, size_t b) {
    return std::pair(late[a].row, a) < std::pair(late[b].row, b);
  });
  // For now the index of the first copy of the same row; numbers grow with it.
  for (size_t i = 0; i < by_row.size(); ++i) {
    const bool same = i > 0 && late[by_row[i]].row == late[by_row[i - 1]].row;
    late[by_row[i]].miss_index = same ? late[by_row[i - 1]].miss_index : by_row[i];
  }
  size_t distinct = 0;
  for (size_t i = 0; i < late.size(); ++i) {
    const size_t first = late[i].miss_index;
    late[i].miss_index = first == i ? distinct++ : late[first].miss_index;
  }
  return late;
}

void RowCache::State::read_misses(Misses* misses, const InterruptCheck& check) {
  std::vector<ReadPiece> pieces;
  pieces.reserve(misses->rows.size());
  for (size_t i = 0; i < misses->rows.size(); ++i) {
    if (i > 0 && misses->rows[i] == misses->rows[i - 1] + 1) {  // neighbours: one request
      pieces.back().bytes += row_bytes;
      continue;
    }
    pieces.push_back({.file = file,
                      .offset = offset_bytes + misses->rows[i] * row_bytes,
                      .bytes = row_bytes,
                      .to = misses->bytes.data() + i * row_bytes});
  }
  misses->ticket = queue.submit(std::move(pieces), ReadPriority::kDemand);
  counters.bytes_read += misses->bytes.size();
  queue.wait(*misses->ticket, check);
}

RowCache::RowCache(std::shared_ptr<File> file, uint64_t offset, uint64_t row_bytes, uint64_t n_rows,
                   uint64_t capacity_bytes, int reader_threads) {
  const uint64_t size = file->size_bytes();
  if (row_bytes == 0 || n_rows == 0 || offset > size || n_rows > (size - offset) / row_bytes) {
    raise(ErrorKind::kFormat, "stream",
          {.what = "the table exceeds its file",
           .got = std::to_string(n_rows) + " rows of " + std::to_string(row_bytes) + " bytes",
           .want = "1 byte or more, within " + std::to_string(size),
           .where = file->path() + ", offset " + std::to_string(offset),
           .hint = {}});
  }
  state_ = std::make_unique<State>(std::move(file), offset, row_bytes, n_rows, capacity_bytes,
                                   reader_threads);
}

RowCache::~RowCache() = default;

uint64_t RowCache::bytes_for_all(uint64_t row_bytes, uint64_t n_rows) {
  const uint64_t each = row_bytes + kRowOverheadBytes;
  return n_rows > UINT64_MAX / each ? UINT64_MAX : n_rows * each;
}

void RowCache::load_all(const InterruptCheck& check) {
  constexpr uint64_t kBatchBytes = 1 << 20;
  State& s = *state_;
  if (s.cached.capacity() < s.n_rows) return;
  const uint64_t batch = std::max<uint64_t>(1, kBatchBytes / s.row_bytes);
  std::vector<uint64_t> rows;
  std::vector<uint8_t> bytes(batch * s.row_bytes);
  for (uint64_t first = 0; first < s.n_rows; first += batch) {
    rows.resize(std::min(batch, s.n_rows - first));
    std::iota(rows.begin(), rows.end(), first);
    fetch(rows, bytes.data(), check);
  }
  s.counters.lookups = s.counters.hits = 0;  // nobody asked for a row yet
}

void RowCache::fetch(std::span<const uint64_t> rows, uint8_t* to, const InterruptCheck& check) {
  State& s = *state_;
  std::erase_if(s.abandoned, [&](const auto& old) { return s.queue.is_done(*old->ticket); });
  s.check_rows(rows);
  const auto late = s.copy_hits(rows, to);
  auto misses = std::make_unique<State::Misses>();
  for (const auto& copy : late) {
    if (copy.miss_index == misses->rows.size()) misses->rows.push_back(copy.row);
  }
  s.counters.lookups += rows.size();
  s.counters.hits += rows.size() - misses->rows.size();
  if (late.empty()) return;

  misses->bytes.resize(misses->rows.size() * s.row_bytes);
  s.abandoned.reserve(s.abandoned.size() + 1);
  try {
    s.read_misses(misses.get(), check);
  } catch (...) {
    if (misses->ticket && !s.queue.drop(*misses->ticket)) s.abandoned.push_back(std::move(misses));
    throw;
  }
  for (const auto& copy : late) {
    std::memcpy(to + copy.position * s.row_bytes,
                misses->bytes.data() + copy.miss_index * s.row_bytes, s.row_bytes);
  }
  for (size_t i = 0; i < misses->rows.size(); ++i) {
    s.cached.insert(misses->rows[i], misses->bytes.data() + i * s.row_bytes);
  }
}

RowCacheCounters RowCache::counters() const { return state_->counters; }

}  // namespace esker
