// SPDX-License-Identifier: MIT
//
// What this machine has to give: memory (within the limits of a container), cores, and what its system says
// of how things stand. machine_macos.cpp, machine_linux.cpp.
#pragma once

#include <cstdint>
#include <optional>

namespace esker {

// What the system says of memory; it is the first to know.
enum class MemoryPressure { kNone, kWarning, kCritical };

struct MachineMemory {
  uint64_t total_bytes = 0;      // of the machine, or the container's limit if that is less
  uint64_t available_bytes = 0;  // what could be used now without swapping
  bool is_limit = false;         // total_bytes is a container's limit: nobody else lives below it
  MemoryPressure pressure = MemoryPressure::kNone;  // the worst since it was last asked; on macOS
};

MachineMemory machine_memory();

// Cores this process may run on.
int machine_cores();

// The user waits for what this thread does. macOS runs other threads on slow cores, and their reads
// behind those of others.
void hurry_this_thread();

#if defined(__APPLE__)

// One look at memory, for records of what a run did to the machine (bench/machine.py, which elsewhere
// reads /proc). Empty: the system does not say.
struct MemoryReading {
  std::optional<uint64_t> total_bytes, free_bytes, available_bytes, cached_bytes;
  std::optional<uint64_t> swap_total_bytes, swap_used_bytes;
  // Since the system started.
  std::optional<uint64_t> swap_in_pages, swap_out_pages, page_in_kib, decompressions;
  std::optional<int> pressure_level;  // 1 none, 2 warning, 4 critical
  // Of a process: what lies in memory, and what would come free with it (compressed and swapped memory
  // counts, mapped files do not).
  std::optional<uint64_t> rss_bytes, footprint_bytes;
};

// pid 0: this process. Another one's numbers are empty where the system keeps them to itself.
MemoryReading read_memory(int pid);

struct SystemFacts {
  std::optional<bool> low_power_mode;
  std::optional<uint64_t> wire_limit_bytes;      // that processes may keep from being paged out
  std::optional<uint64_t> gpu_wire_limit_bytes;  // that a GPU may; 0: the system's own choice
};

SystemFacts system_facts();

#endif

}  // namespace esker
