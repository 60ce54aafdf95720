// SPDX-License-Identifier: MIT
//
// A file that is read at offsets: the interface that tests replace, and the two ways to have one.
//
// open_direct: reads go past the page cache (O_DIRECT on Linux, F_NOCACHE on macOS), at any offset
// and length; where the file system refuses direct reads it falls back to plain reads and drops the
// pages behind itself.
// Mapping: read-only memory, for weights that stay and for parsing headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace esker {

// What a file was when it was opened; a change means that it was cut, rewritten or replaced.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  virtual uint64_t size_bytes() const = 0;
  // One attempt to read [offset, offset + n): returns bytes read (0 at the end of the file, fewer
  // than n when the read came short) or a negative errno. Thread-safe. Does not throw.
  virtual int64_t read_some(void* to, size_t n, uint64_t offset) = 0;
  // Whether reads really bypass the page cache.
  virtual bool is_direct() const { return false; }
};

using FileOpener = std::function<std::shared_ptr<File>(const std::string& path)>;

// Throws Error(kRead) when the file cannot be opened.
std::shared_ptr<File> open_direct(const std::string& path);

// Reads exactly n bytes: resumes after short reads and EINTR, retries once after an error, then
// throws Error(kRead) saying file, offset, bytes got and wanted. Blocking.
void read_exactly(File& file, void* to, size_t n, uint64_t offset);

// Returns once what was written lies on the disk itself: false with errno where it does not.
bool sync_to_disk(int fd);

class Mapping {
 public:
  // Throws Error(kRead) when the file cannot be opened or mapped; an empty file maps to size 0.
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const uint8_t* data() const { return data_; }
  uint64_t size_bytes() const { return identity_.size_bytes; }
  const std::string& path() const { return path_; }

  // Throws Error(kRead) if the path no longer leads to the file that was mapped, or if it was
  // cut or rewritten since. A page lost to a cut file while it was being read is mapped as
  // zeros instead of killing the process, remembered, and reported here.
  void check_unchanged() const;

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  FileIdentity identity_;
};

}  // namespace esker
