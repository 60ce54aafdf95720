// SPDX-License-Identifier: MIT
//
// What Metal's compiler would know of a text: its kernels, what each does with its buffers, and its function
// constants. Read off the text as the project's kernels are written; nothing is compiled.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace fake {

struct MetalText {
  struct Parameter {
    std::string name;
    bool writable;
  };
  struct KernelText {
    std::map<uint64_t, Parameter> buffers;  // by index
  };
  std::map<std::string, KernelText> kernels;     // by the name a host asks for
  std::map<uint64_t, std::string> constants;     // type by number
};

// Throws std::runtime_error with what the compiler would say.
MetalText read_metal(const std::string& text);

}  // namespace fake
