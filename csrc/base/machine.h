// SPDX-License-Identifier: MIT
//
// What this machine has to give: memory (within the limits of a container) and cores.
#pragma once

#include <cstdint>

namespace esker {

struct MachineMemory {
  uint64_t total_bytes = 0;      // of the machine, or the container's limit if that is less
  uint64_t available_bytes = 0;  // what could be used now without swapping
  bool is_limit = false;         // total_bytes is a container's limit: nobody else lives below it
};

MachineMemory machine_memory();

// Cores this process may run on.
int machine_cores();

}  // namespace esker
