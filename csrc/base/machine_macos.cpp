// SPDX-License-Identifier: MIT
#if defined(__APPLE__)
#include <dispatch/dispatch.h>
#include <libproc.h>
#include <mach/mach.h>
#include <objc/message.h>
#include <objc/runtime.h>
#include <pthread/qos.h>
#include <sys/resource.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/machine.h"

namespace esker {
namespace {

template <typename T>
std::optional<T> system_value(const char* name) {
  T value{};
  size_t size = sizeof value;
  if (sysctlbyname(name, &value, &size, nullptr, 0) != 0 || size != sizeof value) return {};
  return value;
}

std::optional<vm_statistics64_data_t> vm_statistics() {
  static const mach_port_t host = mach_host_self();  // each call would take another right to it
  vm_statistics64_data_t stats{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&stats), &count) !=
      KERN_SUCCESS) {
    return {};
  }
  return stats;
}

// The system tells of a change once, and may have taken it back before anyone asks: a source of events
// remembers the worst of them.
class PressureWatch {
 public:
  PressureWatch() {
    const unsigned long kinds =
        DISPATCH_MEMORYPRESSURE_NORMAL | DISPATCH_MEMORYPRESSURE_WARN | DISPATCH_MEMORYPRESSURE_CRITICAL;
    source_ = dispatch_source_create(DISPATCH_SOURCE_TYPE_MEMORYPRESSURE, 0, kinds,
                                     dispatch_get_global_queue(QOS_CLASS_UTILITY, 0));
    if (source_ == nullptr) return;
    dispatch_set_context(source_, this);
    dispatch_source_set_event_handler_f(source_, [](void* self) {
      static_cast<PressureWatch*>(self)->changed();
    });
    dispatch_resume(source_);
    // Events come with changes only.
    const std::optional<int> level = system_value<int>("kern.memorystatus_vm_pressure_level");
    note(level.value_or(1) >= 4   ? MemoryPressure::kCritical
         : level.value_or(1) >= 2 ? MemoryPressure::kWarning
                                  : MemoryPressure::kNone);
  }

  MemoryPressure worst_since_asked() { return worst_.exchange(now_.load()); }

 private:
  void changed() {
    const unsigned long what = dispatch_source_get_data(source_);
    if (what & DISPATCH_MEMORYPRESSURE_CRITICAL) return note(MemoryPressure::kCritical);
    note(what & DISPATCH_MEMORYPRESSURE_WARN ? MemoryPressure::kWarning : MemoryPressure::kNone);
  }
  void note(MemoryPressure level) {
    now_ = level;
    MemoryPressure worst = worst_.load();
    while (worst < level && !worst_.compare_exchange_weak(worst, level)) {
    }
  }

  dispatch_source_t source_ = nullptr;
  std::atomic<MemoryPressure> now_{MemoryPressure::kNone}, worst_{MemoryPressure::kNone};
};

// Lives as long as the process: its queue may call it at any moment.
PressureWatch& pressure_watch() {
  static PressureWatch* watch = new PressureWatch;
  return *watch;
}

std::optional<bool> low_power_mode() {
  const Class process_info = objc_lookUpClass("NSProcessInfo");
  if (process_info == nullptr) return {};
  const auto object = reinterpret_cast<id (*)(Class, SEL)>(objc_msgSend)(process_info,
                                                                         sel_registerName("processInfo"));
  return reinterpret_cast<BOOL (*)(id, SEL)>(objc_msgSend)(object,
                                                           sel_registerName("isLowPowerModeEnabled"));
}

}  // namespace

MachineMemory machine_memory() {
  MachineMemory m;
  m.total_bytes = system_value<uint64_t>("hw.memsize").value_or(0);
  if (const auto vm = vm_statistics()) {
    m.available_bytes = (uint64_t{vm->free_count} + vm->inactive_count) * vm_kernel_page_size;
  }
  m.pressure = pressure_watch().worst_since_asked();
  return m;
}

int machine_cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

MemoryReading read_memory(int pid) {
  MemoryReading r;
  r.total_bytes = system_value<uint64_t>("hw.memsize");
  if (const auto vm = vm_statistics()) {
    const uint64_t page = vm_kernel_page_size;
    r.free_bytes = vm->free_count * page;
    r.available_bytes = (uint64_t{vm->free_count} + vm->inactive_count) * page;
    r.cached_bytes = vm->external_page_count * page;
    r.swap_in_pages = vm->swapins;
    r.swap_out_pages = vm->swapouts;
    r.page_in_kib = vm->pageins * page / 1024;
    r.decompressions = vm->decompressions;
  }
  if (const auto swap = system_value<xsw_usage>("vm.swapusage")) {
    r.swap_total_bytes = swap->xsu_total;
    r.swap_used_bytes = swap->xsu_used;
  }
  r.pressure_level = system_value<int>("kern.memorystatus_vm_pressure_level");
  rusage_info_v2 usage{};
  if (proc_pid_rusage(pid == 0 ? getpid() : pid, RUSAGE_INFO_V2,
                      reinterpret_cast<rusage_info_t*>(&usage)) == 0) {
    r.rss_bytes = usage.ri_resident_size;
    r.footprint_bytes = usage.ri_phys_footprint;
  }
  return r;
}

SystemFacts system_facts() {
  SystemFacts facts{.low_power_mode = low_power_mode(),
                    .wire_limit_bytes = system_value<uint64_t>("vm.global_user_wire_limit"),
                    .gpu_wire_limit_bytes = {}};
  if (const auto mib = system_value<int>("iogpu.wired_limit_mb")) {
    facts.gpu_wire_limit_bytes = static_cast<uint64_t>(std::max(*mib, 0)) << 20;
  }
  return facts;
}

void hurry_this_thread() { pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0); }

}  // namespace esker
#endif
