// SPDX-License-Identifier: MIT
//
// Page-aligned memory of its own, zero at first touch, given back to the system when dropped.
// Pages are committed when first written, so a large buffer costs what is used of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace esker {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws Error(kPlan) naming `purpose` when the system refuses the memory.
  AlignedBuffer(size_t bytes, const char* purpose);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Gives the pages of part of such memory back to the system; it reads as anything until it is written
// again. Both ends on pages of the system.
void release_pages(uint8_t* data, size_t bytes);
// Before released pages are written again: macOS would go on counting them as given back.
void reuse_pages(uint8_t* data, size_t bytes);

// The same for all that lies behind the first keep_bytes of a buffer, in whole pages of any system.
void release_pages_behind(uint8_t* data, size_t bytes, size_t keep_bytes);
// `bytes`: of the buffer, as far as it will be used.
void reuse_pages_behind(uint8_t* data, size_t bytes, size_t kept_bytes);

// Keeps memory from being paged out. Returns 0 or the errno of the refusal.
int wire_pages(const uint8_t* data, size_t bytes);

}  // namespace esker
