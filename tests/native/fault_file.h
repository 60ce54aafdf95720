// SPDX-License-Identifier: MIT
//
// A File that fails, stalls, comes short, is interrupted or flips bits on order. It serves bytes of
// its own or wraps another File; a hook sees every read and decides what becomes of it:
//
//     auto file = std::make_shared<FaultFile>(pattern_bytes(1000, 1));
//     file->set_hook(fail_reads(2, 1, EIO));   // the third read fails once
//
// Threads: all methods may be called from any thread; hooks run without a lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "io/file.h"

namespace esker::test {

// Bytes that differ from place to place and from seed to seed.
inline std::vector<uint8_t> pattern_bytes(size_t n, uint64_t seed) {
  std::vector<uint8_t> bytes(n);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return bytes;
}

class FaultFile final : public File {
 public:
  struct Read {
    uint8_t* to = nullptr;
    size_t n = 0;
    uint64_t offset = 0;
    uint64_t index = 0;  // counts the reads since the hook was set
  };
  // Answers as File::read_some does; serve() gives the honest answer.
  using Hook = std::function<int64_t(FaultFile&, const Read&)>;

  explicit FaultFile(std::vector<uint8_t> bytes, std::string path = "fault.bin")
      : bytes_(std::move(bytes)), path_(std::move(path)), size_bytes_(bytes_.size()) {}
  explicit FaultFile(std::shared_ptr<File> inner)
      : inner_(std::move(inner)), path_(inner_->path()), size_bytes_(inner_->size_bytes()) {}

  const std::string& path() const override { return path_; }
  uint64_t size_bytes() const override { return size_bytes_; }
  bool is_direct() const override { return inner_ && inner_->is_direct(); }

  int64_t read_some(void* to, size_t n, uint64_t offset) override {
    std::shared_ptr<const Hook> hook;
    Read read{static_cast<uint8_t*>(to), n, offset, 0};
    {
      const std::lock_guard lock(mutex_);
      hook = hook_;
      read.index = index_++;
      reads_ += 1;
    }
    return hook ? (*hook)(*this, read) : serve(read);
  }

  int64_t serve(const Read& read) {
    const uint64_t end = end_bytes_.load();
    if (read.offset >= end) return 0;
    const size_t n = static_cast<size_t>(std::min<uint64_t>(read.n, end - read.offset));
    if (inner_) return inner_->read_some(read.to, n, read.offset);
    if (read.offset >= bytes_.size()) return 0;
    const size_t served = std::min<size_t>(n, bytes_.size() - read.offset);
    std::memcpy(read.to, bytes_.data() + read.offset, served);
    return static_cast<int64_t>(served);
  }

  // An empty hook heals the file.
  void set_hook(Hook hook) {
    const std::lock_guard lock(mutex_);
    hook_ = hook ? std::make_shared<const Hook>(std::move(hook)) : nullptr;
    index_ = 0;
  }
  // Cuts the file while it is open; its size as known at opening stays.
  void cut(uint64_t end_bytes) { end_bytes_.store(end_bytes); }

  uint64_t reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }  // empty when it wraps another

 private:
  const std::vector<uint8_t> bytes_;
  const std::shared_ptr<File> inner_;
  const std::string path_;
  const uint64_t size_bytes_;
  std::atomic<uint64_t> end_bytes_{UINT64_MAX};
  mutable std::mutex mutex_;
  std::shared_ptr<const Hook> hook_;
  uint64_t index_ = 0;
  uint64_t reads_ = 0;
};

// Reads first .. first + count - 1 since the hook was set fail with the errno.
inline FaultFile::Hook fail_reads(uint64_t first, uint64_t count, int error_number) {
  return [=](FaultFile& file, const FaultFile::Read& read) -> int64_t {
    return read.index - first < count ? -error_number : file.serve(read);
  };
}

inline FaultFile::Hook fail_always(int error_number) {
  return [=](FaultFile&, const FaultFile::Read&) -> int64_t { return -error_number; };
}

// The first read at every offset fails: what a second try would cure.
inline FaultFile::Hook fail_each_once(int error_number) {
  struct Seen {
    std::mutex mutex;
    std::set<uint64_t> offsets;
  };
  return [=, seen = std::make_shared<Seen>()](FaultFile& file,
                                              const FaultFile::Read& read) -> int64_t {
    {
      const std::lock_guard lock(seen->mutex);
      if (seen->offsets.insert(read.offset).second) return -error_number;
    }
    return file.serve(read);
  };
}

// No read gives more than n_max bytes, and each is interrupted by a signal now and then.
inline FaultFile::Hook short_reads(size_t n_max, uint64_t eintr_every) {
  return [=](FaultFile& file, FaultFile::Read read) -> int64_t {
    if (eintr_every != 0 && read.index % eintr_every == 0) return -EINTR;
    read.n = std::min(read.n, n_max);
    return file.serve(read);
  };
}

// The byte at `offset` comes with the bits of `mask` flipped.
inline FaultFile::Hook flip(uint64_t offset, uint8_t mask) {
  return [=](FaultFile& file, const FaultFile::Read& read) -> int64_t {
    const int64_t got = file.serve(read);
    if (got > 0 && offset >= read.offset && offset - read.offset < static_cast<uint64_t>(got)) {
      read.to[offset - read.offset] ^= mask;
    }
    return got;
  };
}

// Every read sleeps for a while that depends on its place and the seed, so that reads end in
// another order than they began.
inline FaultFile::Hook stall_randomly(uint64_t seed, int us_max) {
  return [=](FaultFile& file, const FaultFile::Read& read) -> int64_t {
    const uint64_t mixed = (read.offset + seed) * 0x9e3779b97f4a7c15u >> 33;
    std::this_thread::sleep_for(
        std::chrono::microseconds(mixed % static_cast<uint64_t>(us_max + 1)));
    return file.serve(read);
  };
}

// Holds reads back until it is opened.
class Gate {
 public:
  FaultFile::Hook hook() {
    return [this](FaultFile& file, const FaultFile::Read& read) {
      pass();
      return file.serve(read);
    };
  }
  void pass() {
    std::unique_lock lock(mutex_);
    waiting_ += 1;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  // Returns when n reads in all have come to the gate.
  void await(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= n; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

// The Error that `body` throws.
inline Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  throw Failure("no Error was thrown");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace esker::test
