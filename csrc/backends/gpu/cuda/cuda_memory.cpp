// SPDX-License-Identifier: MIT
#include "backends/gpu/cuda/cuda_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/machine.h"
#include "base/units.h"

namespace esker::gpu::cuda {
namespace {

constexpr size_t kPartBytes = size_t{4} << 20;
constexpr size_t kParts = 4;
// An arena that takes no more than this part of what the host has left is pinned there too.
constexpr size_t kPinnedShare = 4;
// Threads that copy from pages that are given back: one copies 2 to 3 GB/s on a large server.
constexpr size_t kCopiers = 4;

[[noreturn]] void raise_full(const char* whose, size_t bytes, const char* purpose) {
  size_t free_bytes = 0, all_bytes = 0;
  driver().cuMemGetInfo_v2(&free_bytes, &all_bytes);
  raise(ErrorKind::kPlan, "cuda",
        {.what = std::string(whose) + " refused memory for " + purpose,
         .got = format_bytes(free_bytes) + " of " + format_bytes(all_bytes) + " free on the GPU",
         .want = format_bytes(bytes),
         .where = {},
         .hint = "lower --memory, --arena or --context, or end what else uses the GPU"});
}

}  // namespace

Context::Context(DeviceId device) : device_(device) {
  check(driver().cuDevicePrimaryCtxRetain(&handle_, device), "open the GPU");
}
Context::~Context() { driver().cuDevicePrimaryCtxRelease_v2(device_); }

Pinned::Pinned(std::shared_ptr<Context> context, size_t bytes, const char* purpose)
    : context_(std::move(context)) {
  context_->enter();
  void* data = nullptr;
  if (driver().cuMemHostAlloc(&data, std::max<size_t>(bytes, 1), kHostAllocPortable | kHostAllocMapped) != 0) {
    raise_full("the system", bytes, purpose);
  }
  data_ = static_cast<uint8_t*>(data);
  std::memset(data_, 0, bytes);
  check(driver().cuMemHostGetDevicePointer_v2(&device_, data, 0), "map pinned memory");
}
Pinned::~Pinned() {
  context_->enter();
  driver().cuMemFreeHost(data_);
}

Block::Block(std::shared_ptr<Context> context, size_t bytes, const char* purpose) : context_(std::move(context)) {
  context_->enter();
  if (driver().cuMemAlloc_v2(&device_, std::max<size_t>(bytes, 1)) != 0) raise_full("the GPU", bytes, purpose);
}
Block::~Block() {
  context_->enter();
  driver().cuMemFree_v2(device_);
}

Copier::Copier(std::shared_ptr<Context> context) : context_(std::move(context)) {
  context_->enter();
  check(driver().cuStreamCreate(&stream_, kStreamNonBlocking), "make a stream");
  for (size_t i = 0; i < kParts; ++i) {
    Part part{std::make_unique<Pinned>(context_, kPartBytes, "copies to the GPU"), nullptr};
    check(driver().cuEventCreate(&part.copied, kEventDefault), "make an event");
    ring_.push_back(std::move(part));
  }
}

Copier::~Copier() {
  context_->enter();
  driver().cuStreamSynchronize(stream_);
  for (const Part& p : ring_) driver().cuEventDestroy_v2(p.copied);
  driver().cuStreamDestroy_v2(stream_);
}

Copier::Part& Copier::next_free() {
  Part& part = ring_[next_++ % ring_.size()];
  check(driver().cuEventSynchronize(part.copied), "copy");
  return part;
}

void Copier::upload(DevicePointer to, const uint8_t* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  context_->enter();
  for (size_t at = 0; at < bytes; at += kPartBytes) {
    const size_t n = std::min(kPartBytes, bytes - at);
    Part& part = next_free();
    std::memcpy(part.memory->data(), from + at, n);
    check(driver().cuMemcpyHtoDAsync_v2(to + at, part.memory->data(), n, stream_), "copy to the GPU");
    check(driver().cuEventRecord(part.copied, stream_), "copy to the GPU");
  }
}

void Copier::upload_pinned(DevicePointer to, const uint8_t* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  context_->enter();
  check(driver().cuMemcpyHtoDAsync_v2(to, from, bytes, stream_), "copy to the GPU");
}

void Copier::zero(DevicePointer to, size_t bytes) {
  const std::lock_guard lock(mutex_);
  context_->enter();
  check(driver().cuMemsetD8Async(to, 0, bytes, stream_), "clear memory");
}

void Copier::download(uint8_t* to, DevicePointer from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  context_->enter();
  for (size_t at = 0; at < bytes; at += kPartBytes) {
    const size_t n = std::min(kPartBytes, bytes - at);
    Part& part = next_free();
    check(driver().cuMemcpyDtoHAsync_v2(part.memory->data(), from + at, n, stream_), "copy from the GPU");
    check(driver().cuStreamSynchronize(stream_), "copy from the GPU");
    std::memcpy(to + at, part.memory->data(), n);
  }
}

void Copier::flush() {
  const std::lock_guard lock(mutex_);
  context_->enter();
  check(driver().cuStreamSynchronize(stream_), "copy");
}

void WorkMemory::read(uint64_t offset, void* to, size_t bytes) {
  copier_->download(static_cast<uint8_t*>(to), device() + offset, bytes);
}

void WorkMemory::write(uint64_t offset, const void* from, size_t bytes) {
  copier_->upload(device() + offset, static_cast<const uint8_t*>(from), bytes);
  copier_->flush();
}

ArenaMemory::ArenaMemory(const std::shared_ptr<Context>& context, size_t bytes, const char* purpose)
    : CudaMemory(bytes), block_(context, bytes, purpose) {
  if (machine_memory().available_bytes / kPinnedShare >= bytes) {
    pinned_ = std::make_unique<Pinned>(context, bytes, purpose);
  } else {
    pageable_ = AlignedBuffer(bytes, purpose);
  }
  for (size_t i = 0; i < (pinned_ ? 1 : kCopiers); ++i) copiers_.push_back(std::make_unique<Copier>(context));
}

void ArenaMemory::publish(std::span<const ByteRange> ranges) {
  if (pinned_) {
    for (const ByteRange& r : ranges) {
      copiers_[0]->upload_pinned(device() + r.offset, pinned_->data() + r.offset, r.bytes);
    }
    return copiers_[0]->flush();
  }
  const size_t each = div_ceil(ranges.size(), copiers_.size());
  std::vector<std::future<void>> others;
  for (size_t i = 1; i * each < ranges.size(); ++i) {
    others.push_back(std::async(std::launch::async, [&, i] {
      publish_some(*copiers_[i], ranges.subspan(i * each, std::min(each, ranges.size() - i * each)));
    }));
  }
  publish_some(*copiers_[0], ranges.first(std::min(each, ranges.size())));
  for (std::future<void>& other : others) other.get();
}

void ArenaMemory::publish_some(Copier& copier, std::span<const ByteRange> ranges) {
  for (const ByteRange& r : ranges) copier.upload(device() + r.offset, pageable_.data() + r.offset, r.bytes);
  copier.flush();
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const ByteRange& r : ranges) {
    const uint64_t begin = align_up(r.offset, page), end = (r.offset + r.bytes) / page * page;
    if (begin < end) release_pages(pageable_.data() + begin, end - begin);
  }
}

}  // namespace esker::gpu::cuda
