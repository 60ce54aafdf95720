// SPDX-License-Identifier: MIT
//
// Measurements of single parts (engine/probe.h), for `esker bench`. Raw nanoseconds and bytes.
#include "engine/probe.h"

#include "base/error.h"
#include "base/machine.h"
#include "bindings/bindings.h"

namespace esker::python {
namespace {

nb::dict matmul(const std::string& type, uint64_t rows, uint64_t cols, uint32_t tokens,
                uint32_t copies, uint32_t repeats, int threads, int activation_bytes) {
  const MatmulProbe probe{.type = type_named(type), .rows = rows, .cols = cols, .tokens = tokens,
                          .copies = copies, .repeats = repeats, .threads = threads,
                          .activations = static_cast<Activations>(activation_bytes)};
  MatmulTimes times;
  {
    const nb::gil_scoped_release no_gil;
    times = probe_matmul(probe, make_poll());
  }
  nb::dict d;
  d["matrix_bytes"] = times.matrix_bytes, d["read_bytes"] = times.read_bytes;
  d["op_ns"] = times.op_ns, d["read_ns"] = times.read_ns;
  return d;
}

std::vector<int64_t> read(uint64_t bytes, uint32_t repeats, int threads) {
  const nb::gil_scoped_release no_gil;
  return probe_read(bytes, repeats, threads, make_poll());
}

nb::dict disk(const std::string& path, uint64_t read_bytes, uint32_t depth, uint64_t total_bytes,
              uint32_t readers, uint64_t seed) {
  const DiskProbe probe{.path = path, .read_bytes = read_bytes, .depth = depth, .readers = readers,
                        .total_bytes = total_bytes, .seed = seed};
  DiskTimes times;
  {
    const nb::gil_scoped_release no_gil;
    times = probe_disk(probe, make_poll());
  }
  nb::dict d;
  d["is_direct"] = times.is_direct, d["bytes"] = times.bytes, d["ns"] = times.ns;
  d["latency_ns"] = times.latency_ns;
  return d;
}

#if defined(__APPLE__)

nb::dict memory_reading(int pid) {
  const MemoryReading r = read_memory(pid);
  nb::dict d;
  d["total_bytes"] = r.total_bytes, d["free_bytes"] = r.free_bytes;
  d["available_bytes"] = r.available_bytes, d["cached_bytes"] = r.cached_bytes;
  d["swap_total_bytes"] = r.swap_total_bytes, d["swap_used_bytes"] = r.swap_used_bytes;
  d["swap_in_pages"] = r.swap_in_pages, d["swap_out_pages"] = r.swap_out_pages;
  d["page_in_kib"] = r.page_in_kib, d["decompressions"] = r.decompressions;
  d["pressure_level"] = r.pressure_level;
  d["rss_bytes"] = r.rss_bytes, d["footprint_bytes"] = r.footprint_bytes;
  return d;
}

nb::dict system_facts_dict() {
  const SystemFacts facts = system_facts();
  nb::dict d;
  d["low_power_mode"] = facts.low_power_mode, d["wire_limit_bytes"] = facts.wire_limit_bytes;
  d["gpu_wire_limit_bytes"] = facts.gpu_wire_limit_bytes;
  return d;
}

#endif

}  // namespace

WeightType type_named(const std::string& name) {
  std::string known;
  for (const WeightTypeInfo& t : kWeightTypes) {
    if (name == t.name) return t.type;
    known += (known.empty() ? "" : ", ") + std::string(t.name);
  }
  raise(ErrorKind::kUsage, "probe",
        {.what = "unknown weight type", .got = name, .want = "one of " + known, .where = {}, .hint = {}});
}

void bind_probe(nb::module_& m) {
  m.def("probe_matmul", &matmul, nb::arg("type"), nb::arg("rows"), nb::arg("cols"),
        nb::arg("tokens") = 1, nb::arg("copies") = 1, nb::arg("repeats") = 1, nb::arg("threads") = 0,
        nb::arg("activation_bytes") = static_cast<int>(Activations::kExact),
        "Times matrix products of a weight type through the CPU backend, a plain read of all copies"
        " after each pass over them.");
  m.def("probe_read", &read, nb::arg("bytes"), nb::arg("repeats") = 1, nb::arg("threads") = 0,
        "Times plain reads of a buffer: ns each.");
  m.def("probe_disk", &disk, nb::arg("path"), nb::arg("read_bytes"), nb::arg("depth"),
        nb::arg("total_bytes"), nb::arg("readers") = 0, nb::arg("seed") = 1,
        "Times direct reads in random places of a file, `depth` requests under way at a time.");
#if defined(__APPLE__)
  m.def("memory_reading", &memory_reading, nb::arg("pid") = 0,
        "The machine's memory and a process's (0: this one), as the system tells natively; None where it"
        " does not.");
  m.def("system_facts", &system_facts_dict, "Low Power Mode and limits of wired memory; None where unknown.");
#endif
}

}  // namespace esker::python
