// SPDX-License-Identifier: MIT
//
// Read-only mapped files that survive being cut while they are read.
// Owns: the mappings, the list of their address ranges, and the process's SIGBUS handler.
// Reading a page that the file no longer has raises SIGBUS. The handler puts a page of zeros there,
// marks the range as lost and lets the reader go on; check_unchanged() then reports the loss. A
// fault outside our ranges goes to whoever handled SIGBUS before.
// Invariant: the handler only loads atomics and calls mmap; nodes of the list are reused, never
// freed, so it can walk the list at any moment.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "io/file.h"

namespace esker {
namespace {

constexpr const char* kComponent = "io";

// The ranges that the signal handler may repair.

struct Range {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0};  // 0 while the node is unused
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};    // a page of this range was replaced by zeros
  Range* next = nullptr;            // set before the node is published, never changed
};

std::atomic<Range*> g_ranges{nullptr};
uintptr_t g_page_bytes = 0;
struct sigaction g_previous = {};

static_assert(std::atomic<uintptr_t>::is_always_lock_free, "the signal handler must not lock");

Range* take_node() {
  for (Range* node = g_ranges.load(); node != nullptr; node = node->next) {
    bool expected = false;
    if (node->taken.compare_exchange_strong(expected, true)) return node;
  }
  Range* node = new Range;
  node->taken = true;
  node->next = g_ranges.load();
  while (!g_ranges.compare_exchange_weak(node->next, node)) {
  }
  return node;
}

void register_range(const uint8_t* data, uint64_t bytes) {
  Range* node = take_node();
  node->lost = false;
  node->end = reinterpret_cast<uintptr_t>(data) + bytes;
  node->begin = reinterpret_cast<uintptr_t>(data);
}

Range* find_range(uintptr_t address) {
  for (Range* node = g_ranges.load(); node != nullptr; node = node->next) {
    const uintptr_t begin = node->begin.load(), end = node->end.load();
    // The second look rejects a node that changed hands between the two loads.
    if (begin != 0 && address >= begin && address < end && node->begin.load() == begin) return node;
  }
  return nullptr;
}

void unregister_range(const uint8_t* data) {
  Range* node = find_range(reinterpret_cast<uintptr_t>(data));
  if (node == nullptr) return;
  node->begin = 0;
  node->taken = false;
}

// The signal handler. Everything here must be safe at any instruction of the program.

void pass_on(int number, siginfo_t* info, void* context) {
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) {
    g_previous.sa_sigaction(number, info, context);
    return;
  }
  const bool sent = info->si_code <= 0;  // by kill or raise: no instruction will fault again
  if (g_previous.sa_handler == SIG_IGN && sent) return;
  if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) {
    g_previous.sa_handler(number);
    return;
  }
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(number, &standard, nullptr);
  if (sent) ::raise(number);  // else the instruction runs again and ends the process
}

bool map_zeros(uintptr_t page) {
  void* at = reinterpret_cast<void*>(page);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
#if defined(__linux__) && defined(SYS_mmap)
  // Past the sanitizers' own mmap, which is not made for signal handlers and counts as a write.
  return syscall(SYS_mmap, at, g_page_bytes, PROT_READ, flags, -1, 0) != -1;
#else
  return mmap(at, g_page_bytes, PROT_READ, flags, -1, 0) != MAP_FAILED;
#endif
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  Range* range = info->si_code > 0 ? find_range(address) : nullptr;
  if (range != nullptr) {
    range->lost = true;
    if (!map_zeros(address / g_page_bytes * g_page_bytes)) range = nullptr;
  }
  if (range == nullptr) pass_on(number, info, context);
  errno = saved_errno;
}

void install_handler_once() {
  static const bool installed = [] {
    g_page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    // Read first: a fault between two calls must already find where to pass it on.
    sigaction(SIGBUS, nullptr, &g_previous);
    return sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  (void)installed;
}

// Files.

[[noreturn]] void raise_errno(const char* what, int error, const std::string& path) {
  std::string hint;
  if (error == ENOENT) hint = "check the path; a relative one starts at the working directory";
  if (error == EACCES) hint = "this user may not read the file";
  raise(ErrorKind::kRead, kComponent,
        {what, std::generic_category().message(error), "", path, hint});
}

FileIdentity identity_of(const struct stat& s) {
#ifdef __APPLE__
  const struct timespec modified = s.st_mtimespec;
#else
  const struct timespec modified = s.st_mtim;
#endif
  FileIdentity identity;
  identity.device = static_cast<uint64_t>(s.st_dev);
  identity.inode = static_cast<uint64_t>(s.st_ino);
  identity.size_bytes = static_cast<uint64_t>(s.st_size);
  identity.modified_ns = static_cast<int64_t>(modified.tv_sec) * 1000000000 + modified.tv_nsec;
  return identity;
}

// Closes the descriptor on every way out of the constructor; the mapping does not need it.
struct Descriptor {
  int fd;
  ~Descriptor() { close(fd); }
};

}  // namespace

Mapping::Mapping(const std::string& path) : path_(path) {
  install_handler_once();
  // O_NONBLOCK: opening a pipe must not wait for its writer. It changes nothing for a plain file.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) raise_errno("cannot open the file", errno, path);
  const Descriptor descriptor{fd};
  struct stat status = {};
  if (fstat(fd, &status) != 0) raise_errno("cannot look at the file", errno, path);
  if (!S_ISREG(status.st_mode)) {
    raise(ErrorKind::kRead, kComponent,
          {"cannot map the file", S_ISDIR(status.st_mode) ? "a directory" : "a device or pipe",
           "a file", path, "name the model file itself"});
  }
  identity_ = identity_of(status);
  if (identity_.size_bytes == 0) return;
  void* memory = mmap(nullptr, identity_.size_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) raise_errno("cannot map the file", errno, path);
  data_ = static_cast<const uint8_t*>(memory);
  register_range(data_, identity_.size_bytes);
}

Mapping::~Mapping() {
  if (data_ == nullptr) return;
  unregister_range(data_);
  munmap(const_cast<uint8_t*>(data_), identity_.size_bytes);
}

// Looking at the path is enough: the mapping keeps the old file's inode from being reused, so equal
// device and inode mean that the path still leads to the very file that is mapped.
void Mapping::check_unchanged() const {
  const char* hint = "load the model again once the file is complete; do not write to it in place";
  struct stat status = {};
  if (stat(path_.c_str(), &status) != 0) {
    raise(ErrorKind::kRead, kComponent,
          {"the file is gone since it was opened", std::generic_category().message(errno),
           "the file that was opened", path_, hint});
  }
  const FileIdentity now = identity_of(status);
  if (now.device != identity_.device || now.inode != identity_.inode) {
    raise(ErrorKind::kRead, kComponent,
          {"the file was replaced since it was opened", "another file at this path",
           "the file that was opened", path_, hint});
  }
  if (now.size_bytes != identity_.size_bytes) {
    raise(ErrorKind::kRead, kComponent,
          {now.size_bytes < identity_.size_bytes ? "the file was cut since it was opened"
                                                 : "the file has grown since it was opened",
           std::to_string(now.size_bytes) + " bytes",
           std::to_string(identity_.size_bytes) + " bytes", path_, hint});
  }
  const Range* range =
      data_ == nullptr ? nullptr : find_range(reinterpret_cast<uintptr_t>(data_));
  if (range != nullptr && range->lost) {
    raise(ErrorKind::kRead, kComponent,
          {"part of the file could not be read", "a page that the system could not supply",
           "the file's bytes", path_, hint});
  }
  if (now.modified_ns != identity_.modified_ns) {
    raise(ErrorKind::kRead, kComponent,
          {"the file was rewritten since it was opened", "a later modification time",
           "the file as it was opened", path_, hint});
  }
}

}  // namespace esker
