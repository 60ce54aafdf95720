// SPDX-License-Identifier: MIT
//
// The system calls of a Mac that a Metal host makes, for one compiled on another: pages are 16 KiB.
// Its sources are compiled with -Dsysconf=fake_sysconf -Dmmap=fake_mmap.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace {

constexpr size_t kPageBytes = 16384;

size_t whole_pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

extern "C" long fake_sysconf(int name) noexcept {
  return name == _SC_PAGESIZE ? static_cast<long>(kPageBytes) : sysconf(name);
}

extern "C" void* fake_mmap(void* where, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  if (where != nullptr || file != -1) return mmap(where, bytes, protection, flags, file, offset);
  const size_t wanted = whole_pages(bytes);
  void* got = mmap(nullptr, wanted + kPageBytes, protection, flags, -1, 0);
  if (got == MAP_FAILED) return got;
  auto* begin = static_cast<uint8_t*>(got);
  const size_t lead = (kPageBytes - reinterpret_cast<uintptr_t>(begin) % kPageBytes) % kPageBytes;
  if (lead != 0) munmap(begin, lead);
  munmap(begin + lead + wanted, kPageBytes - lead);
  return begin + lead;
}
