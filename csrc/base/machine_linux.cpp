// SPDX-License-Identifier: MIT
#if !defined(__APPLE__)
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/machine.h"

namespace esker {
namespace {

// The number in a file that holds one number; `fallback` when it is missing or says "max".
uint64_t number_in(const std::string& path, uint64_t fallback) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : fallback;
}

// Limit and use of this process's memory cgroup, v2 or v1; the limit is UINT64_MAX without one.
void cgroup_memory(uint64_t& limit, uint64_t& used) {
  limit = UINT64_MAX;
  used = 0;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t a = line.find(':'), b = line.find(':', a + 1);
    if (a == std::string::npos || b == std::string::npos) continue;
    const std::string controllers = line.substr(a + 1, b - a - 1), group = line.substr(b + 1);
    std::string root, limit_name, used_name;
    if (controllers.empty()) {
      root = "/sys/fs/cgroup", limit_name = "/memory.max", used_name = "/memory.current";
    } else if (controllers == "memory") {
      root = "/sys/fs/cgroup/memory";
      limit_name = "/memory.limit_in_bytes", used_name = "/memory.usage_in_bytes";
    } else {
      continue;
    }
    // Inside a container the group's own path may not exist below the mount.
    for (const std::string& folder : {root + group, root}) {
      const uint64_t l = number_in(folder + limit_name, UINT64_MAX);
      if (l >= limit) continue;
      limit = l;
      used = number_in(folder + used_name, 0);
    }
  }
}

}  // namespace

MachineMemory machine_memory() {
  MachineMemory m;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    uint64_t kib = 0;
    fields >> name >> kib;
    if (name == "MemTotal:") m.total_bytes = kib * 1024;
    if (name == "MemAvailable:") m.available_bytes = kib * 1024;
  }
  uint64_t limit, used;
  cgroup_memory(limit, used);
  if (limit < m.total_bytes) {
    m.total_bytes = limit;
    m.is_limit = true;
    m.available_bytes = std::min(m.available_bytes, limit - std::min(limit, used));
  }
  return m;
}

int machine_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void hurry_this_thread() {}

}  // namespace esker
#endif
