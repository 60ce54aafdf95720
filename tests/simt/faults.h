// SPDX-License-Identifier: MIT
//
// Signals that a kernel's bad access or division raises, as errors. Not under a sanitizer, which has its
// own handlers.
#pragma once

#include <string>

namespace simt {

struct Fault {
  int signal = 0;  // 0: none
  void* address = nullptr;      // that was accessed
  void* instruction = nullptr;  // that did it, where the machine is known

  // "segmentation fault at 0x.. [library+0x..]"
  std::string describe(bool in_guard_page) const;
};

// While it lives, signals of this OS thread go to the handler, which must not return if it wants them. On a
// stack of its own. One OS thread at a time may be the first to install and the last to remove it.
class FaultHandler {
 public:
  using Function = void (*)(const Fault&);
  explicit FaultHandler(Function function);
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;

 private:
  void* stack_ = nullptr;
  void* old_stack_ = nullptr;
};

}  // namespace simt
