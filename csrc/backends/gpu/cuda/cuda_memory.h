// SPDX-License-Identifier: MIT
//
// The memory of a CUDA device. Its own memory and the host's are two:
//   kWork    the device's; the host reads and writes it by copies
//   kArena   the host's while records are read, the device's once published. Where the host has room it is
//            pinned, so that a record is read into pages that are there and travels from them; else its
//            pages are given back, and what is published travels by way of pinned buffers
//   kShared  the host's, pinned, which the device reaches over the bus
// and a file's weights are copied to the device.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backends/gpu/cuda/cuda_api.h"
#include "backends/gpu/device.h"
#include "base/aligned_buffer.h"

namespace esker::gpu::cuda {

// The process's context on one GPU, as long as anybody needs it.
class Context {
 public:
  explicit Context(DeviceId device);
  ~Context();
  Context(const Context&) = delete;
  // Calls of this thread are for it from now on.
  void enter() const { driver().cuCtxSetCurrent(handle_); }

 private:
  const DeviceId device_;
  ContextHandle handle_ = nullptr;
};

// Pinned memory of the host, zero at first.
class Pinned {
 public:
  Pinned(std::shared_ptr<Context> context, size_t bytes, const char* purpose);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  uint8_t* data() const { return data_; }
  DevicePointer device() const { return device_; }

 private:
  const std::shared_ptr<Context> context_;
  uint8_t* data_ = nullptr;
  DevicePointer device_ = 0;
};

// Memory of the device.
class Block {
 public:
  Block(std::shared_ptr<Context> context, size_t bytes, const char* purpose);
  ~Block();
  Block(const Block&) = delete;
  DevicePointer device() const { return device_; }

 private:
  const std::shared_ptr<Context> context_;
  DevicePointer device_ = 0;
};

// Copies between pageable memory and the device's through a ring of pinned buffers, on a stream of its own:
// while one buffer travels the next is filled. Any thread.
class Copier {
 public:
  explicit Copier(std::shared_ptr<Context> context);
  ~Copier();
  Copier(const Copier&) = delete;
  // There when flush() returns; pinned memory must be as it is until then.
  void upload(DevicePointer to, const uint8_t* from, size_t bytes);
  void upload_pinned(DevicePointer to, const uint8_t* from, size_t bytes);
  void zero(DevicePointer to, size_t bytes);
  void download(uint8_t* to, DevicePointer from, size_t bytes);
  void flush();

 private:
  struct Part {
    std::unique_ptr<Pinned> memory;
    EventHandle copied = nullptr;
  };
  Part& next_free();

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  StreamHandle stream_ = nullptr;
  std::vector<Part> ring_;
  size_t next_ = 0;
};

class CudaMemory : public DeviceMemory {
 public:
  explicit CudaMemory(size_t bytes) : bytes_(bytes) {}
  uint8_t* host() override { return nullptr; }
  size_t size_bytes() const override { return bytes_; }
  virtual DevicePointer device() const = 0;

 private:
  const size_t bytes_;
};

class WorkMemory final : public CudaMemory {
 public:
  // The block may be another memory's too: that of weights that a model uses twice.
  WorkMemory(size_t bytes, std::shared_ptr<Block> block, std::shared_ptr<Copier> copier)
      : CudaMemory(bytes), block_(std::move(block)), copier_(std::move(copier)) {}
  DevicePointer device() const override { return block_->device(); }
  void read(uint64_t offset, void* to, size_t bytes) override;
  void write(uint64_t offset, const void* from, size_t bytes) override;

 private:
  const std::shared_ptr<Block> block_;
  const std::shared_ptr<Copier> copier_;
};

class SharedMemory final : public CudaMemory {
 public:
  SharedMemory(std::shared_ptr<Context> context, size_t bytes, const char* purpose)
      : CudaMemory(bytes), pinned_(std::move(context), bytes, purpose) {}
  uint8_t* host() override { return pinned_.data(); }
  DevicePointer device() const override { return pinned_.device(); }

 private:
  Pinned pinned_;
};

class ArenaMemory final : public CudaMemory {
 public:
  ArenaMemory(const std::shared_ptr<Context>& context, size_t bytes, const char* purpose);
  uint8_t* host() override { return pinned_ ? pinned_->data() : pageable_.data(); }
  DevicePointer device() const override { return block_.device(); }
  void publish(std::span<const ByteRange> ranges);

 private:
  void publish_some(Copier& copier, std::span<const ByteRange> ranges);

  Block block_;
  std::unique_ptr<Pinned> pinned_;  // or
  AlignedBuffer pageable_;
  std::vector<std::unique_ptr<Copier>> copiers_;  // a thread each
};

}  // namespace esker::gpu::cuda
