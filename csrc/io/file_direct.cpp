// SPDX-License-Identifier: MIT
//
// Files read past the page cache, and the loop that turns single attempts into whole reads.
//
// Direct reads want offset, length and address in multiples of a block. Whatever is not goes
// through a bounce buffer that each reading thread owns (its pages are committed when first used
// and given back when the thread ends). A file system that refuses direct reads (tmpfs, some
// overlays) turns the file into a plain one for good, which drops its cached pages behind itself,
// so that expert records never push other memory out either way.
//
// Knows nothing of what is read. Threads: read_some may be called from any number of threads.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/aligned_buffer.h"
#include "base/error.h"
#include "base/units.h"
#include "io/file.h"

namespace esker {
namespace {

// Serves disks with blocks of 512 and of 4096 bytes; a file system that wants more refuses the
// first read and is then read plainly.
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kBounceBytes = uint64_t{1} << 20;
// One pread: macOS refuses more than INT_MAX.
constexpr uint64_t kReadBytesMax = uint64_t{1} << 30;

std::string reason_of(int error_number) {
  return std::generic_category().message(error_number);
}

// Null when the system has no memory left.
uint8_t* bounce_of_this_thread() {
  thread_local AlignedBuffer buffer;
  if (buffer.data() == nullptr) {
    try {
      buffer = AlignedBuffer(kBounceBytes, "a read buffer");
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  return buffer.data();
}

class DirectFile final : public File {
 public:
  DirectFile(std::string path, int fd, uint64_t size_bytes, bool direct)
      : path_(std::move(path)), fd_(fd), size_bytes_(size_bytes), direct_(direct) {}
  ~DirectFile() override { ::close(fd_); }
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  const std::string& path() const override { return path_; }
  uint64_t size_bytes() const override { return size_bytes_; }
  bool is_direct() const override { return direct_.load(std::memory_order_relaxed); }

  int64_t read_some(void* to, size_t n, uint64_t offset) override {
    if (n == 0) return 0;
    n = std::min<uint64_t>(n, kReadBytesMax);
    if (is_direct()) {
      const int64_t got = read_blocks(static_cast<uint8_t*>(to), n, offset);
      if (got != -EINVAL) return got;
      become_plain();
    }
    return read_plain(to, n, offset);
  }

 private:
  // Not inlined: GCC 12 would see the aligned path with the one-byte probe below and warn.
  [[gnu::noinline]] int64_t pread_once(void* to, uint64_t n, uint64_t offset) {
    const ssize_t got = ::pread(fd_, to, n, static_cast<off_t>(offset));
    return got < 0 ? -static_cast<int64_t>(errno) : got;
  }

  int64_t read_blocks(uint8_t* to, uint64_t n, uint64_t offset) {
    const bool aligned =
        offset % kBlockBytes == 0 && reinterpret_cast<uintptr_t>(to) % kBlockBytes == 0;
    if (aligned && n >= kBlockBytes) return pread_once(to, align_down(n, kBlockBytes), offset);

    uint8_t* bounce = bounce_of_this_thread();
    if (bounce == nullptr) return -ENOMEM;
    const uint64_t start = align_down(offset, kBlockBytes);
    const uint64_t skip = offset - start;
    const uint64_t want = std::min(align_up(skip + n, kBlockBytes), kBounceBytes);
    const int64_t got = pread_once(bounce, want, start);
    if (got < 0) return got;
    if (static_cast<uint64_t>(got) <= skip) return 0;
    const uint64_t useful = std::min(static_cast<uint64_t>(got) - skip, n);
    std::memcpy(to, bounce + skip, useful);
    return static_cast<int64_t>(useful);
  }

  int64_t read_plain(void* to, uint64_t n, uint64_t offset) {
    const int64_t got = pread_once(to, n, offset);
#ifdef POSIX_FADV_DONTNEED
    if (got > 0) {
      // Only whole pages are dropped, so the range is widened to them.
      const uint64_t start = align_down(offset, kBlockBytes);
      const uint64_t end = align_up(offset + static_cast<uint64_t>(got), kBlockBytes);
      ::posix_fadvise(fd_, static_cast<off_t>(start), static_cast<off_t>(end - start),
                      POSIX_FADV_DONTNEED);
    }
#endif
    return got;
  }

  // Safe beside reads in flight: each of them was started in one mode or the other, and one that
  // is refused comes here too.
  void become_plain() {
#ifdef O_DIRECT
    const int flags = ::fcntl(fd_, F_GETFL);
    if (flags >= 0) ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
#endif
    direct_.store(false, std::memory_order_relaxed);
  }

  const std::string path_;
  const int fd_;
  const uint64_t size_bytes_;
  std::atomic<bool> direct_;
};

// Sets `direct` to whether reads will pass the page cache. Returns the descriptor or -errno.
int open_past_cache(const std::string& path, bool* direct) {
  // A FIFO must not block the open; regular files do not heed O_NONBLOCK.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
#if defined(O_DIRECT)
  int fd = ::open(path.c_str(), flags | O_DIRECT);
  *direct = fd >= 0;
  if (fd < 0 && errno == EINVAL) {
    fd = ::open(path.c_str(), flags);
    if (fd >= 0) ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  }
  return fd < 0 ? -errno : fd;
#elif defined(F_NOCACHE)
  const int fd = ::open(path.c_str(), flags);
  if (fd < 0) return -errno;
  *direct = ::fcntl(fd, F_NOCACHE, 1) == 0;
  ::fcntl(fd, F_RDAHEAD, 0);
  return fd;
#else
  *direct = false;
  const int fd = ::open(path.c_str(), flags);
  return fd < 0 ? -errno : fd;
#endif
}

[[noreturn]] void raise_open(const std::string& path, const std::string& reason) {
  raise(ErrorKind::kRead, "io",
        {.what = "cannot open the file: " + reason,
         .got = {},
         .want = {},
         .where = path,
         .hint = "check the path, and that the file may be read"});
}

[[noreturn]] void raise_read(const File& file, const std::string& what, uint64_t got, uint64_t want,
                             uint64_t offset, const char* hint) {
  raise(ErrorKind::kRead, "io",
        {.what = what,
         .got = std::to_string(got) + " bytes",
         .want = std::to_string(want) + " bytes",
         .where = file.path() + ", offset " + std::to_string(offset),
         .hint = hint});
}

}  // namespace

std::shared_ptr<File> open_direct(const std::string& path) {
  bool direct = false;
  const int fd = open_past_cache(path, &direct);
  if (fd < 0) raise_open(path, reason_of(-fd));
  struct stat status{};
  if (::fstat(fd, &status) != 0) {
    const int error_number = errno;
    ::close(fd);
    raise_open(path, reason_of(error_number));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(fd);
    raise_open(path, "not a regular file");
  }
  auto file =
      std::make_shared<DirectFile>(path, fd, static_cast<uint64_t>(status.st_size), direct);
  // The first read shows whether direct reads are served; an error shows again when it matters.
  uint8_t probe = 0;
  if (direct) file->read_some(&probe, 1, 0);
  return file;
}

bool sync_to_disk(int fd) {
#if defined(F_FULLFSYNC)
  // fsync() on macOS leaves it in the disk's cache. Some file systems know only that.
  if (::fcntl(fd, F_FULLFSYNC) == 0) return true;
#endif
  return ::fsync(fd) == 0;
}

void read_exactly(File& file, void* to, size_t n, uint64_t offset) {
  uint8_t* out = static_cast<uint8_t*>(to);
  uint64_t got = 0;
  bool retried = false;
  while (got < n) {
    const int64_t step = file.read_some(out + got, n - got, offset + got);
    if (step > 0) {
      got += static_cast<uint64_t>(step);
    } else if (step == 0) {
      raise_read(file, "the file ends too early", got, n, offset,
                 "the file was cut, or its copy never finished; fetch it again");
    } else if (step != -EINTR) {
      if (retried) {
        raise_read(file, "cannot read the file: " + reason_of(static_cast<int>(-step)), got, n,
                   offset, "check the disk and its connection, then try again");
      }
      retried = true;
    }
  }
}

}  // namespace esker
