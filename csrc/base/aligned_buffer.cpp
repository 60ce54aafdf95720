// SPDX-License-Identifier: MIT
#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace esker {
namespace {

constexpr size_t kAnyPage = size_t{64} << 10;  // whole pages of any system

size_t behind(size_t keep_bytes, size_t bytes) {
  return std::min<size_t>(align_up(keep_bytes, kAnyPage), bytes);
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes, const char* purpose) : size_bytes_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    raise(ErrorKind::kPlan, "memory",
          {.what = std::string("the system refused memory for ") + purpose,
           .got = {},
           .want = format_bytes(bytes),
           .where = {},
           .hint = "lower --memory, --arena or --context"});
  }
  data_ = static_cast<uint8_t*>(p);
#if defined(MADV_HUGEPAGE)
  constexpr size_t kHugeFrom = size_t{4} << 20;  // below, a huge page would waste much of itself
  // A first touch of 4 KB costs microseconds in a virtual machine: the state of a new session took
  // 112 ms of its first token, in pages of 2 MB 36 ms. A refusal changes nothing but the speed.
  if (bytes >= kHugeFrom) madvise(p, bytes, MADV_HUGEPAGE);
#endif
}

void release_pages(uint8_t* data, size_t bytes) {
#if defined(MADV_FREE_REUSABLE)
  madvise(data, bytes, MADV_FREE_REUSABLE);
#else
  madvise(data, bytes, MADV_DONTNEED);
#endif
}

void reuse_pages(uint8_t* data, size_t bytes) {
#if defined(MADV_FREE_REUSE)
  madvise(data, bytes, MADV_FREE_REUSE);
#else
  (void)data, (void)bytes;
#endif
}

void release_pages_behind(uint8_t* data, size_t bytes, size_t keep_bytes) {
  const size_t begin = behind(keep_bytes, bytes);
  release_pages(data + begin, bytes - begin);
}

void reuse_pages_behind(uint8_t* data, size_t bytes, size_t kept_bytes) {
  const size_t begin = behind(kept_bytes, bytes);
  reuse_pages(data + begin, bytes - begin);
}

int wire_pages(const uint8_t* data, size_t bytes) { return mlock(data, bytes) == 0 ? 0 : errno; }

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace esker
