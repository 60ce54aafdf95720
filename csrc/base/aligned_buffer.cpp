// SPDX-License-Identifier: MIT
#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace esker {

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
}

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
