// SPDX-License-Identifier: MIT
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "faults.h"

#include <dlfcn.h>
#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#if defined(__linux__)
#include <ucontext.h>
#endif

namespace simt {

namespace {

constexpr size_t kHandlerStackBytes = 64 << 10;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};

std::mutex mutex;
int users = 0;
FaultHandler::Function function = nullptr;
struct sigaction old_actions[3];

[[maybe_unused]] void handle(int signal, siginfo_t* info, void* context) {
  Fault fault;
  fault.signal = signal;
  fault.address = info->si_addr;
#if defined(__linux__) && defined(__x86_64__)
  const auto* machine = static_cast<const ucontext_t*>(context);
  fault.instruction = reinterpret_cast<void*>(machine->uc_mcontext.gregs[REG_RIP]);
#elif defined(__linux__) && defined(__aarch64__)
  const auto* machine = static_cast<const ucontext_t*>(context);
  fault.instruction = reinterpret_cast<void*>(machine->uc_mcontext.pc);
#else
  (void)context;
#endif
  function(fault);
  // Not a kernel's: the instruction is tried again under the handler that was there before.
  for (int i = 0; i < 3; ++i) {
    if (kSignals[i] == signal) sigaction(signal, &old_actions[i], nullptr);
  }
}

}  // namespace

std::string Fault::describe(bool in_guard_page) const {
  char text[512];
  const char* what = signal == SIGFPE ? "integer division by zero"
                     : in_guard_page  ? "stack overflow"
                                      : "access to memory that is not the kernel's";
  Dl_info info;
  if (instruction != nullptr && dladdr(instruction, &info) != 0 && info.dli_fname != nullptr) {
    const auto offset = static_cast<char*>(instruction) - static_cast<char*>(info.dli_fbase);
    std::snprintf(text, sizeof text, "%s [%s+0x%jx]", what, info.dli_fname, static_cast<uintmax_t>(offset));
    return text;
  }
  return what;
}

#if defined(SIMT_ASAN) || defined(SIMT_TSAN)

FaultHandler::FaultHandler(Function) {}
FaultHandler::~FaultHandler() = default;

#else

FaultHandler::FaultHandler(Function f) {
  stack_ = std::malloc(kHandlerStackBytes);
  old_stack_ = std::calloc(1, sizeof(stack_t));
  stack_t stack = {};
  stack.ss_sp = stack_;
  stack.ss_size = kHandlerStackBytes;
  sigaltstack(&stack, static_cast<stack_t*>(old_stack_));
  const std::lock_guard lock(mutex);
  if (users++ != 0) return;
  function = f;
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler is left by a switch, not a return
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &action, &old_actions[i]);
}

FaultHandler::~FaultHandler() {
  {
    const std::lock_guard lock(mutex);
    if (--users == 0) {
      for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &old_actions[i], nullptr);
    }
  }
  sigaltstack(static_cast<stack_t*>(old_stack_), nullptr);
  std::free(old_stack_);
  std::free(stack_);
}

#endif

}  // namespace simt
