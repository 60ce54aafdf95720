// SPDX-License-Identifier: MIT
#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIMT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#ifdef SIMT_OWN_SWITCH

// Saves what a call must preserve, and the stack pointer in *save; goes on with the stack `load`.
extern "C" void simt_switch(void** save, void* load) __asm__("simt_switch");

#if defined(__x86_64__)
__asm__(R"(
.text
.p2align 4
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
__asm__(R"(
.text
.p2align 2
simt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif

#endif

namespace simt {

namespace {
const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

Fiber::~Fiber() {
  if (memory_ == nullptr) return;
#ifdef SIMT_TSAN
  if (thread_ != nullptr) __tsan_destroy_fiber(thread_);
#endif
#ifdef SIMT_ASAN
  __asan_unpoison_memory_region(memory_ + page_bytes, kStackBytes);
#endif
  munmap(memory_, page_bytes + kStackBytes);
}

void Fiber::allocate() {
  void* memory = mmap(nullptr, page_bytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  mprotect(memory_, page_bytes, PROT_NONE);
  stack_ = memory_ + page_bytes;
  stack_bytes_ = kStackBytes;
}

bool Fiber::guards(const void* address) const {
  const char* p = static_cast<const char*>(address);
  return memory_ != nullptr && p >= memory_ && p < memory_ + page_bytes;
}

void Fiber::prepare(void (*entry)()) {
  char* stack = memory_ + page_bytes;
#ifdef SIMT_ASAN
  // An abandoned fiber leaves the shadow of its frames behind.
  __asan_unpoison_memory_region(stack, kStackBytes);
  fake_stack_ = nullptr;
#endif
#ifdef SIMT_TSAN
  if (thread_ == nullptr) thread_ = __tsan_create_fiber(0);
#endif
#if defined(SIMT_OWN_SWITCH) && defined(__x86_64__)
  void** top = reinterpret_cast<void**>(stack + kStackBytes - 16);
  *--top = nullptr;  // entry's return address
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
#elif defined(SIMT_OWN_SWITCH)
  void** top = reinterpret_cast<void**>(stack + kStackBytes - 160);
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(entry);  // x30
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

void Fiber::adopt_thread() {
#if defined(SIMT_ASAN) && defined(__linux__)
  pthread_attr_t attributes;
  void* stack = nullptr;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &stack, &stack_bytes_);
    pthread_attr_destroy(&attributes);
    stack_ = stack;
  }
#endif
#ifdef SIMT_TSAN
  thread_ = __tsan_get_current_fiber();
#endif
}

void Fiber::switch_to(Fiber& to, [[maybe_unused]] bool last) {
#ifdef SIMT_TSAN
  __tsan_switch_to_fiber(to.thread_, 1);  // 1: a switch orders no memory
#endif
#ifdef SIMT_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, to.stack_, to.stack_bytes_);
#endif
#ifdef SIMT_OWN_SWITCH
  simt_switch(&stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&context_, &to.context_);
#endif
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::arrived() {
#ifdef SIMT_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

}  // namespace simt
