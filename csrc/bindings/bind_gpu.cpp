// SPDX-License-Identifier: MIT
//
// Tiles of the gpu kernels: what is known of a family, and timing them on a device (backends/gpu/tune.h).
#include <array>

#include "backends/gpu/devices.h"
#include "backends/gpu/kernel_names.h"
#include "backends/gpu/tune.h"
#include "base/error.h"
#include "bindings/bindings.h"

namespace esker::python {
namespace {

// L, R, S, K, codebook in threadgroup memory, x staged there.
using TileTuple = std::array<uint32_t, 6>;

gpu::Tile tile_of(const TileTuple& t) {
  return {.lanes = t[0], .rows = t[1], .simdgroups = t[2], .split = t[3], .threadgroup_table = t[4] != 0,
          .stage = t[5] != 0};
}
TileTuple tuple_of(const gpu::Tile& t) {
  return {t.lanes, t.rows, t.simdgroups, t.split, t.threadgroup_table ? 1u : 0u, t.stage ? 1u : 0u};
}

gpu::TileUse use_named(const std::string& name) {
  if (name == "matvec") return gpu::TileUse::kMatvec;
  if (name == "gate_up") return gpu::TileUse::kGateUp;
  if (name == "down") return gpu::TileUse::kDown;
  raise(ErrorKind::kUsage, "tune",
        {.what = "unknown use of a tile", .got = name, .want = "matvec, gate_up or down", .where = {},
         .hint = {}});
}

TileTuple tile(const std::string& family, const std::string& use, const std::string& type, uint64_t rows,
               uint64_t cols) {
  return tuple_of(gpu::TileTable(family.c_str()).find(use_named(use), type_named(type), rows, cols));
}

bool fits(const std::string& use, const std::string& type, const TileTuple& t) {
  return gpu::tile_fits(use_named(use), type_named(type), tile_of(t));
}

nb::dict tune(const std::string& backend, const std::string& use, const std::string& type, uint32_t rows,
              uint32_t cols, const std::vector<TileTuple>& tiles, uint64_t bytes, uint32_t launches,
              uint32_t repeats, uint32_t top_k) {
  const gpu::TuneCase what{.use = use_named(use), .type = type_named(type), .rows = rows, .cols = cols,
                           .top_k = top_k, .bytes = bytes, .launches = launches, .repeats = repeats};
  std::vector<gpu::Tile> of;
  for (const TileTuple& t : tiles) of.push_back(tile_of(t));
  gpu::TuneTimes times;
  {
    const nb::gil_scoped_release no_gil;
    const std::unique_ptr<gpu::Device> device = gpu::open_device(backend);
    times = gpu::tune(*device, what, of, make_poll());
  }
  nb::dict d;
  d["bytes"] = times.bytes, d["anchor_ns"] = times.anchor_ns, d["tile_ns"] = times.tile_ns;
  return d;
}

nb::dict device_info(const std::string& backend) {
  const std::unique_ptr<gpu::Device> device = gpu::open_device(backend);
  nb::dict d;
  d["name"] = device->name(), d["family"] = device->family();
  return d;
}

}  // namespace

gpu::TileRow tile_row(const TunedRow& row) {
  const auto& [use, type, rows, cols, tile] = row;
  return {.use = use_named(use), .type = type_named(type), .min_cols = cols, .max_cols = cols,
          .min_rows = rows, .max_rows = rows, .tile = tile_of(tile), .evidence = "esker tune"};
}

void bind_gpu(nb::module_& m) {
  m.def("gpu_device", &device_info, nb::arg("backend"), "Name and family of a device.");
  m.def("gpu_kernel_names", &gpu::all_kernel_names, "Every kernel that a lowering may use.");
  m.def("gpu_tile", &tile, nb::arg("family"), nb::arg("use"), nb::arg("type"), nb::arg("rows"), nb::arg("cols"),
        "The tile (L, R, S, K, table in threadgroup memory, x staged there) that a family's table gives a product.");
  m.def("gpu_tile_fits", &fits, nb::arg("use"), nb::arg("type"), nb::arg("tile"),
        "Whether the kernel for this use and type can be cut by the tile.");
  m.def("gpu_tune", &tune, nb::arg("backend"), nb::arg("use"), nb::arg("type"), nb::arg("rows"), nb::arg("cols"),
        nb::arg("tiles"), nb::arg("bytes"), nb::arg("launches"), nb::arg("repeats"), nb::arg("top_k"),
        "Times tiles on a device, the first before and after each round: ns of a launch.");
}

}  // namespace esker::python
