// SPDX-License-Identifier: MIT
//
// Memory plans and weight traffic as dicts: of an open engine, and of a file only looked at.
#include <algorithm>
#include <map>
#include <string>

#include "backends/gpu/devices.h"
#include "base/units.h"
#include "bindings/bindings.h"
#include "engine/engine.h"
#include "engine/model_plan.h"
#include "graph/traffic.h"

namespace esker::python {
namespace {

nb::dict class_dict(const MemoryPlan& plan, uint32_t index) {
  const SlotClass& c = plan.arena.classes[index];
  nb::list layers, records;
  std::map<uint64_t, uint64_t, std::greater<>> layers_of_size;
  for (uint32_t layer = 0; layer < plan.arena.class_of_layer.size(); ++layer) {
    if (plan.arena.class_of_layer[layer] != index) continue;
    layers.append(layer);
    layers_of_size[plan.record_bytes[layer]] += 1;
  }
  for (const auto& [bytes, count] : layers_of_size) {
    nb::dict record;
    record["bytes"] = bytes, record["pages"] = div_ceil(bytes, kSlotPageBytes);
    record["layers"] = count;
    records.append(record);
  }
  const double n_layer = static_cast<double>(nb::len(layers));
  nb::dict d;
  d["pages"] = c.pages, d["slots"] = c.slots, d["slot_bytes"] = c.slot_bytes();
  d["bytes"] = c.slots * c.slot_bytes(), d["layers"] = layers, d["records"] = records;
  d["slots_per_layer"] = c.slots / n_layer;
  d["share_of_experts"] = c.slots / (n_layer * plan.n_expert);
  return d;
}

nb::dict traffic_dict(const Traffic& traffic) {
  nb::dict d;
  nb::list rows;
  const uint64_t matrices = traffic.bytes(TrafficKind::kMatrix);
  const uint64_t ahead = traffic.bytes(TrafficKind::kReadAhead);
  const uint64_t small = traffic.bytes(TrafficKind::kSmall);
  for (const TrafficRow& r : traffic.rows) {
    nb::dict row, types;
    nb::list shapes;
    for (const auto& [type, count] : r.types) types[type.c_str()] = count;
    for (const auto& [n_in, n_out] : r.shapes) shapes.append(std::vector<uint64_t>{n_in, n_out});
    row["role"] = r.role, row["kind"] = traffic_kind_name(r.kind), row["calls"] = r.calls;
    row["types"] = types, row["shapes"] = shapes, row["tensors"] = r.tensors;
    row["bytes"] = r.bytes;
    // Of the total, in which small rows are not.
    row["share"] = static_cast<double>(r.bytes) / static_cast<double>(matrices + ahead);
    rows.append(row);
  }
  d["rows"] = rows;
  d["total_bytes"] = matrices + ahead;
  d["total_bytes_without_read_ahead"] = matrices;
  d["read_ahead_bytes"] = ahead;
  d["small_bytes"] = small;
  return d;
}

nb::dict plan_file(const EngineOptions& options, bool header, uint64_t what_if_bytes) {
  const Extent extent = header ? Extent::kHeaderOnly : Extent::kWhole;
  const std::shared_ptr<const Gguf> model = Gguf::open(options.path, extent);
  const std::shared_ptr<const Gguf> table =
      options.ngram_table.empty() ? model : Gguf::open(options.ngram_table, extent);
  const Config config = read_config(*model, *table);
  const Weights weights(model, table, config);
  const auto memory = [&] {
    const std::function<MachineMemory()> of_device = gpu::device_memory(options.backend);
    return of_device ? of_device() : machine_memory();
  };
  nb::dict d = plan_dict(plan_model(
      options, config, weights, what_if_bytes ? idle_machine(what_if_bytes) : memory()));
  d["path"] = options.path, d["what_if"] = what_if_bytes != 0;
  d["traffic"] = traffic_dict(decode_traffic(config, weights));
  return d;
}

}  // namespace

nb::dict plan_dict(const MemoryPlan& plan) {
  nb::list rows, classes;
  for (const PlanRow& r : plan.rows) {
    nb::dict row;
    row["what"] = r.what, row["bytes"] = r.bytes;
    row["share"] = static_cast<double>(r.bytes) / static_cast<double>(plan.total_bytes);
    rows.append(row);
  }
  for (uint32_t i = 0; i < plan.arena.classes.size(); ++i) classes.append(class_dict(plan, i));
  const uint64_t experts = plan.record_bytes.size() * plan.n_expert;
  nb::dict machine, disk, d;
  machine["total_bytes"] = plan.machine.total_bytes;
  machine["available_bytes"] = plan.machine.available_bytes;
  disk["expert_bytes"] = plan.expert_bytes, disk["ngram_table_bytes"] = plan.table_bytes;
  d["rows"] = rows, d["classes"] = classes, d["arena_bytes"] = plan.arena.total_bytes;
  d["slots"] = plan.arena.slot_count(), d["experts"] = experts;
  d["share_of_experts"] =
      static_cast<double>(plan.arena.slot_count()) / static_cast<double>(experts);
  d["context"] = plan.context, d["chunk"] = plan.chunk;
  d["total_bytes"] = plan.total_bytes, d["limit_bytes"] = plan.limit_bytes;
  d["fits"] = plan.fits(), d["reserve_bytes"] = plan.reserve_bytes;
  d["least_arena_bytes"] = plan.least_arena_bytes;
  d["least_total_bytes"] = plan.least_total_bytes();
  d["machine"] = machine, d["disk"] = disk;
  return d;
}

void bind_plan(nb::module_& m) {
  m.def(
      "plan_file",
      [](const std::string& path, const std::optional<std::string>& ngram_table, bool header,
         uint64_t what_if_bytes, uint64_t context, uint64_t memory_bytes, uint64_t keep_free_bytes,
         uint64_t arena_bytes, double arena_fraction, uint32_t slots, uint32_t min_slots,
         double class_waste, uint32_t chunk, int32_t read_ahead, uint32_t read_ahead_2) {
        return plan_file({.path = path, .ngram_table = ngram_table.value_or(""),
                          .context = context, .memory_bytes = memory_bytes,
                          .keep_free_bytes = keep_free_bytes, .arena_bytes = arena_bytes,
                          .arena_fraction = arena_fraction, .slots = slots,
                          .min_slots = min_slots, .class_waste = class_waste, .chunk = chunk,
                          .read_ahead = read_ahead, .read_ahead_2 = read_ahead_2},
                         header, what_if_bytes);
      },
      nb::arg("path"), nb::arg("ngram_table") = nb::none(), nb::arg("header") = false,
      nb::arg("what_if_bytes") = 0, nb::arg("context") = 0, nb::arg("memory_bytes") = 0,
      nb::arg("keep_free_bytes") = 0, nb::arg("arena_bytes") = 0, nb::arg("arena_fraction") = 0.0,
      nb::arg("slots") = 0, nb::arg("min_slots") = 0,
      nb::arg("class_waste") = EngineOptions{}.class_waste, nb::arg("chunk") = 0,
      nb::arg("read_ahead") = -1, nb::arg("read_ahead_2") = 0,
      "The plan that an engine would apply, and the weight traffic of a decoded token; nothing is "
      "loaded. header: the file may end after its tensor table.");
}

}  // namespace esker::python
