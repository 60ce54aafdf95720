// SPDX-License-Identifier: MIT
//
// The same for a shared library that Python loads: plain C, and every buffer is copied to memory that ends at
// a page nobody may touch, so that an access out of bounds is found where it happens. Under a sanitizer that
// is its allocator's work.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "simt.h"

namespace {

// A copy of a buffer, as far from everything else as memory allows.
class Guarded {
 public:
  explicit Guarded(const simt::Buffer& b) : original_(b) {
    if (b.data == nullptr) return;
#if defined(SIMT_ASAN) || defined(SIMT_TSAN)
    memory_ = static_cast<unsigned char*>(std::malloc(b.bytes == 0 ? 1 : b.bytes));
    data_ = memory_;
#else
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t whole = (b.bytes + page - 1) / page * page;
    mapped_bytes_ = whole + 2 * kGuardBytes;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, mapped_bytes_, PROT_NONE, kFlags, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<unsigned char*>(memory);
    mprotect(memory_ + kGuardBytes, whole, PROT_READ | PROT_WRITE);
    data_ = memory_ + kGuardBytes + (whole - (b.bytes + kAlignment - 1) / kAlignment * kAlignment);
    std::memset(memory_ + kGuardBytes, kFiller, whole);
#endif
    std::memcpy(data_, b.data, b.bytes);
  }
  ~Guarded() {
#if defined(SIMT_ASAN) || defined(SIMT_TSAN)
    std::free(memory_);
#else
    if (memory_ != nullptr) munmap(memory_, mapped_bytes_);
#endif
  }
  Guarded(const Guarded&) = delete;

  const simt::Buffer& original() const { return original_; }
  simt::Buffer buffer() const { return {data_, original_.bytes}; }
  void copy_back() const { std::memcpy(original_.data, data_, original_.bytes); }

  // What surrounds the copy within its pages is as it was.
  bool intact() const {
#if !defined(SIMT_ASAN) && !defined(SIMT_TSAN)
    if (memory_ == nullptr) return true;
    const unsigned char* end = memory_ + mapped_bytes_ - kGuardBytes;
    for (const unsigned char* p = memory_ + kGuardBytes; p < end; ++p) {
      if (p == data_) p += original_.bytes;
      if (p < end && *p != kFiller) return false;
    }
#endif
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 1 << 20;
  static constexpr size_t kAlignment = 16;
  static constexpr unsigned char kFiller = 0xff;  // a NaN to who reads it
  simt::Buffer original_;
  unsigned char* memory_ = nullptr;
  unsigned char* data_ = nullptr;
  size_t mapped_bytes_ = 0;
};

std::string run(const simt::Kernel& kernel, const simt::Buffer* buffers, size_t n_buffer,
                const simt::Launch& launch) {
  // An array that is bound twice has one copy; arrays that overlap otherwise cannot be told apart.
  std::vector<std::unique_ptr<Guarded>> copies;
  std::vector<simt::Buffer> bound;
  for (size_t i = 0; i < n_buffer; ++i) {
    const simt::Buffer& b = buffers[i];
    const Guarded* same = nullptr;
    for (const auto& c : copies) {
      const simt::Buffer& o = c->original();
      if (b.data == nullptr || o.data == nullptr) continue;
      if (b.data == o.data && b.bytes == o.bytes) {
        same = c.get();
      } else if (static_cast<char*>(b.data) < static_cast<char*>(o.data) + o.bytes &&
                 static_cast<char*>(o.data) < static_cast<char*>(b.data) + b.bytes) {
        return "[simt] buffer " + std::to_string(i) + " overlaps another one";
      }
    }
    if (same == nullptr) same = copies.emplace_back(new Guarded(b)).get();
    bound.push_back(same->buffer());
  }
  const std::string error = simt::dispatch(kernel, bound, launch);
  if (!error.empty()) return error;
  for (const auto& c : copies) {
    if (!c->intact()) {
      return std::string("[simt] ") + kernel.name + ": a write right behind or before a buffer of " +
             std::to_string(c->original().bytes) + " bytes";
    }
  }
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    if (kernel.parameters[i].source != simt::Source::kBuffer || !kernel.types[i].writable) continue;
    const uint32_t index = kernel.parameters[i].index;
    if (index >= n_buffer || buffers[index].data == nullptr) continue;
    for (const auto& c : copies) {
      if (c->original().data == buffers[index].data) c->copy_back();
    }
  }
  return "";
}

}  // namespace

#define SIMT_EXPORT extern "C" __attribute__((visibility("default")))

SIMT_EXPORT size_t simt_kernel_count() { return simt::kernels().size(); }
SIMT_EXPORT const char* simt_kernel_name(size_t i) { return simt::kernels()[i]->name; }

// Null for a number that kernel i's file does not have.
SIMT_EXPORT const char* simt_constant_type(size_t kernel, uint32_t index) {
  for (const simt::Constant& c : simt::kernels()[kernel]->module->constants) {
    if (c.index == index) return c.type;
  }
  return nullptr;
}

// sizes: groups, then threads; order 0 to 2 as in simt::Order; guarded 0: on the buffers themselves, without
// copies. Null when all is well; a text is valid until the thread's next call.
SIMT_EXPORT const char* simt_dispatch(size_t kernel, const simt::Buffer* buffers, size_t n_buffer,
                                      const uint32_t sizes[6], const simt::ConstantValue* constants,
                                      size_t n_constant, const size_t* threadgroup_bytes,
                                      size_t n_threadgroup_bytes, uint32_t order, uint64_t seed,
                                      uint32_t workers, uint32_t guarded) {
  static thread_local std::string error;
  simt::Launch launch;
  launch.groups = {sizes[0], sizes[1], sizes[2]};
  launch.threads = {sizes[3], sizes[4], sizes[5]};
  launch.constants = {constants, n_constant};
  launch.threadgroup_bytes = {threadgroup_bytes, n_threadgroup_bytes};
  launch.order = static_cast<simt::Order>(order);
  launch.seed = seed;
  launch.workers = workers;
  const simt::Kernel& of = *simt::kernels()[kernel];
  try {
    error = guarded != 0 ? run(of, buffers, n_buffer, launch)
                         : simt::dispatch(of, {buffers, n_buffer}, launch);
  } catch (const std::exception& e) {
    error = std::string("[simt] ") + e.what();
  }
  return error.empty() ? nullptr : error.c_str();
}
