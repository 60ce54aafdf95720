// SPDX-License-Identifier: MIT
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "runtime.h"

namespace fake {
namespace {

struct Numbers {
  std::mutex mutex;
  std::map<std::string, int64_t> settings = {
      {"macos", 15},           // below 15: no residency sets, no math mode
      {"no_device", 0},        // 1: a machine without Metal
      {"family", 9},           // Apple's number of the GPU's generation
      {"unified", 1},          // 0: a device with memory of its own
      {"simd_width", 32},      // of pipelines
      {"max_threads", 1024},   // a threadgroup of a pipeline, the most
      {"max_buffer", int64_t{16} << 30},
      {"working_set", int64_t{16} << 30},
      {"fail_buffer", 0},      // the nth newBuffer gives nil
      {"fail_library", 0},     // the nth library does not compile
      {"fail_pipeline", 0},    // the nth pipeline is refused
      {"fail_residency", 0},   // the nth residency set is refused
      {"fail_queue", 0},       // the nth command queue gives nil
      {"fail_command", 0},     // the nth command buffer that runs ends with fail_code, before its first kernel
      {"fail_code", 8},        // an MTLCommandBufferError
      {"lose_device", 0},      // from the nth command buffer on, all fail
      {"lose_signal", 0},      // the nth signal of queues and all after it are not given
      {"wait_limit_ms", 0},    // a queue that waits longer for an event fails; 0: waits as long as it takes
      {"slow_us", 0},          // each kernel takes longer by a time up to this
      {"late_handlers_us", 0}  // handlers are called this much later
  };
  std::map<std::string, int64_t> counts;

  Numbers() {
    std::istringstream given(std::getenv("ESKER_FAKE_METAL") ? std::getenv("ESKER_FAKE_METAL") : "");
    for (std::string one; given >> one;) {
      const size_t equals = one.find('=');
      set(one.substr(0, equals), equals == std::string::npos ? 1 : std::stoll(one.substr(equals + 1)));
    }
  }
  void set(const std::string& name, int64_t value) {
    if (settings.count(name) == 0) die("there is no setting " + name);
    settings[name] = value;
  }
};

Numbers& numbers() {
  static Numbers& all = *new Numbers;
  return all;
}

}  // namespace

int64_t setting(const char* name) {
  const std::lock_guard lock(numbers().mutex);
  return numbers().settings.at(name);
}

void set_setting(const std::string& name, int64_t value) {
  const std::lock_guard lock(numbers().mutex);
  numbers().set(name, value);
}

int64_t count(const char* name, int64_t add) {
  const std::lock_guard lock(numbers().mutex);
  return numbers().counts[name] += add;
}

int64_t counted(const std::string& name) {
  const std::lock_guard lock(numbers().mutex);
  return numbers().counts[name];
}

void forget_counts() {
  const std::lock_guard lock(numbers().mutex);
  numbers().counts.clear();
}

bool is_ordered(const char* name_of_setting, const char* name_of_count) {
  return count(name_of_count) == setting(name_of_setting);
}

}  // namespace fake
