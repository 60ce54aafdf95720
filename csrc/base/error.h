// SPDX-License-Identifier: MIT
//
// The one exception of the library, its kinds, and the one form of its message:
//
//     [component] what: got X, want Y (where)
//     hint: what to do about it
//
// Nothing below bindings prints or exits; whatever goes wrong arrives here.
#pragma once

#include <stdexcept>
#include <string>

namespace esker {

enum class ErrorKind {
  kFormat,   // a file is not what it claims to be            -> FormatError (ValueError)
  kRead,     // a file could not be read, was cut or replaced -> ReadError (OSError)
  kPlan,     // memory: the plan does not fit                 -> PlanError (MemoryError)
  kUsage,    // the caller asked for something impossible     -> UsageError (ValueError)
  kDevice,   // a device failed                               -> DeviceError (RuntimeError)
  kNumeric,  // NaN or infinity where a number was due        -> NumericError (ArithmeticError)
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string message)
      : std::runtime_error(std::move(message)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// The parts of a message. Empty parts are left out.
struct Fault {
  std::string what;   // "tensor has the wrong shape"
  std::string got;    // "[256, 64]"
  std::string want;   // "[256, 128]"
  std::string where;  // "model.gguf, tensor blk.0.attn_q.weight, offset 1234"
  std::string hint;   // "convert the model again"
};

std::string format_fault(const char* component, const Fault& fault);

[[noreturn]] void raise(ErrorKind kind, const char* component, const Fault& fault);

// Thrown when the caller's interrupt check asks to stop (Ctrl-C). Not an Error: nothing is wrong.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

}  // namespace esker
