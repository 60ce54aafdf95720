// SPDX-License-Identifier: MIT
//
// Fibers: a stack, and a switch from one to another on the same OS thread. The sanitizers are told of both.
// This file and the runtime are never instrumented themselves; SIMT_ASAN and SIMT_TSAN say how the kernels
// were compiled.
#pragma once

#include <cstddef>

#if defined(__x86_64__) || defined(__aarch64__)
#define SIMT_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace simt {

inline constexpr size_t kStackBytes = 256 << 10;

class Fiber {
 public:
  Fiber() = default;  // without a stack: stands for the OS thread's own
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void allocate();               // throws std::bad_alloc
  void prepare(void (*entry)());  // the next switch to it calls entry, which never returns
  bool guards(const void* address) const;  // lies beyond the end of the stack

  void adopt_thread();  // of a fiber without a stack: it is the OS thread at hand

  // Goes on in `to`; returns when something switches back. `last`: nothing ever will.
  void switch_to(Fiber& to, bool last = false);
  void arrived();  // first thing in entry

 private:
#ifdef SIMT_OWN_SWITCH
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
  char* memory_ = nullptr;  // a guard page, then the stack
  const void* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* thread_ = nullptr;  // of the race detector
};

}  // namespace simt
