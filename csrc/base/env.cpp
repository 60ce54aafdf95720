// SPDX-License-Identifier: MIT
#include "base/env.h"

#include <cstdlib>

namespace esker {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace esker
