// SPDX-License-Identifier: MIT
//
// A disk that takes its time, for LD_PRELOAD: each read of 1 KiB and more is late by up to SLOW_READS_US
// microseconds, another time each.
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace {

using Read = ssize_t (*)(int, void*, size_t, off_t);

ssize_t late(const char* name, int file, void* to, size_t bytes, off_t offset) {
  static std::atomic<unsigned> count{0};
  const char* most = std::getenv("SLOW_READS_US");
  if (most != nullptr && bytes >= 1024) {
    const unsigned n = (++count * 2654435761u) >> 8;
    usleep(n % static_cast<unsigned>(std::atoi(most)));
  }
  return reinterpret_cast<Read>(dlsym(RTLD_NEXT, name))(file, to, bytes, offset);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  return late("pread", file, to, bytes, offset);
}

extern "C" __attribute__((visibility("default"))) ssize_t pread64(int file, void* to, size_t bytes, off_t offset) {
  return late("pread64", file, to, bytes, offset);
}
