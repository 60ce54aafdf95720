// SPDX-License-Identifier: MIT
//
// Tiles of the gpu kernels: what is known of a family, and timing them on a device (backends/gpu/tune.h).
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <array>
#include <cstring>
#include <map>

#include "abi/kernel_args.h"
#include "backends/gpu/device_probe.h"
#include "backends/gpu/devices.h"
#include "backends/gpu/kernel_names.h"
#include "backends/gpu/kernel_sources.h"
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
  nb::list resources;
  for (const gpu::KernelResources& r : times.resources) {
    nb::dict of;
    of["registers"] = r.registers, of["spilled_bytes"] = r.spilled_bytes;
    of["threadgroup_bytes"] = r.threadgroup_bytes, of["threads_most"] = r.threads_most;
    resources.append(of);
  }
  d["resources"] = resources;
  return d;
}

// A device on which single kernels are run, for checks.
class OneKernel {
 public:
  explicit OneKernel(const std::string& name, const std::string& cache_folder)
      : device_(gpu::open_device(name, {.cache_folder = cache_folder})), queue_(device_->queue()) {}

  const char* name() const { return device_->name(); }
  const char* family() const { return device_->family(); }
  std::string description() const { return device_->description(); }

  void compile(const std::vector<std::string>& names) {
    const nb::gil_scoped_release no_gil;
    std::vector<gpu::KernelSpec> specs;
    for (const std::string& name : names) specs.push_back({name, {{gpu::kLanesConstant, 32}}});  // some need it
    device_->kernels(specs);
  }

  void run(const std::string& kernel, const std::vector<std::pair<uint32_t, uint32_t>>& constants,
           const nb::bytes& args, const std::vector<nb::ndarray<nb::c_contig, nb::device::cpu>>& buffers,
           const std::array<uint32_t, 3>& groups, const std::array<uint32_t, 3>& threads) {
    gpu::Kernel& made = kernel_of(kernel, constants);
    std::vector<std::unique_ptr<DeviceMemory>> memories;
    std::vector<gpu::Binding> bindings;
    const std::vector<uint8_t> filler(kMargin, kFiller);
    for (size_t i = 0; i < buffers.size(); ++i) {
      const auto& b = buffers[i];
      size_t same = 0;  // an array that is bound twice is one memory
      while (same < i && (buffers[same].data() != b.data() || buffers[same].nbytes() != b.nbytes())) ++same;
      if (same < i && b.nbytes() != 0) {
        memories.push_back(nullptr);
        bindings.push_back(bindings[same]);
        continue;
      }
      // What a kernel writes behind a buffer's end shows in what follows it.
      memories.push_back(device_->allocate(b.nbytes() + kMargin, MemoryUse::kWork, "a buffer of a check"));
      memories.back()->write(0, b.data(), b.nbytes());
      memories.back()->write(b.nbytes(), filler.data(), filler.size());
      bindings.push_back({memories.back().get(), 0});
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(args.c_str());
    queue_->dispatch({.kernel = &made,
                      .args = {bytes, args.size()},
                      .buffers = bindings,
                      .groups = {groups[0], groups[1], groups[2]},
                      .threads = {threads[0], threads[1], threads[2]}});
    queue_->commit();
    {
      const nb::gil_scoped_release no_gil;
      while (!queue_->finish(kPollNs)) {
      }
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!memories[i]) continue;
      const size_t n = buffers[i].nbytes();
      std::vector<uint8_t> behind(kMargin);
      memories[i]->read(n, behind.data(), behind.size());
      if (behind != filler) {
        raise(ErrorKind::kDevice, "gpu",
              {.what = "a kernel wrote behind the end of a buffer", .got = "buffer " + std::to_string(i + 1),
               .want = std::to_string(n) + " bytes", .where = kernel, .hint = {}});
      }
      memories[i]->read(0, buffers[i].data(), n);
    }
  }

 private:
  static constexpr size_t kMargin = 256;
  static constexpr uint8_t kFiller = 0xa5;
  static constexpr int64_t kPollNs = 100'000'000;

  gpu::Kernel& kernel_of(const std::string& name, const std::vector<std::pair<uint32_t, uint32_t>>& constants) {
    std::string key = name;
    gpu::KernelSpec spec{name, {}};
    for (const auto& [index, value] : constants) {
      key += "," + std::to_string(index) + "=" + std::to_string(value);
      spec.constants.push_back({index, value});
    }
    std::unique_ptr<gpu::Kernel>& made = kernels_[key];
    if (!made) made = std::move(device_->kernels({&spec, 1}).front());
    return *made;
  }

  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<gpu::Queue> queue_;
  std::map<std::string, std::unique_ptr<gpu::Kernel>> kernels_;
};

nb::dict times_dict(const gpu::ProbeTimes& times) {
  nb::dict d;
  d["wall_ns"] = times.wall_ns, d["device_ns"] = times.device_ns;
  return d;
}

nb::dict stream(const std::string& backend, uint64_t bytes, uint32_t launches, uint32_t repeats) {
  gpu::ProbeTimes times;
  {
    const nb::gil_scoped_release no_gil;
    times = gpu::probe_stream(*gpu::open_device(backend), bytes, launches, repeats, make_poll());
  }
  return times_dict(times);
}

nb::dict handshake(const std::string& backend, const std::string& how, uint32_t segments, uint64_t work_bytes,
                   uint32_t repeats) {
  using enum gpu::Handshake;
  const gpu::Handshake kind = how == "none" ? kNone : how == "bare" ? kBare : kCovered;
  if (kind == kCovered && how != "covered") {
    raise(ErrorKind::kUsage, "gpu",
          {.what = "unknown handshake", .got = how, .want = "none, bare or covered", .where = {}, .hint = {}});
  }
  gpu::ProbeTimes times;
  {
    const nb::gil_scoped_release no_gil;
    times = gpu::probe_handshake(*gpu::open_device(backend), kind, segments, work_bytes, repeats, make_poll());
  }
  return times_dict(times);
}

std::string kernel_source(const std::string& file) {
  for (const gpu::KernelSource& s : gpu::metal_sources()) {
    if (s.file == file) return std::string(s.text);
  }
  raise(ErrorKind::kUsage, "gpu",
        {.what = "no such kernel file", .got = file, .want = "one of metal/", .where = {}, .hint = {}});
}

std::vector<std::string> kernel_files() {
  std::vector<std::string> files;
  for (const gpu::KernelSource& s : gpu::metal_sources()) files.emplace_back(s.file);
  return files;
}

}  // namespace

gpu::TileRow tile_row(const TunedRow& row) {
  const auto& [use, type, rows, cols, tile] = row;
  return {.use = use_named(use), .type = type_named(type), .min_cols = cols, .max_cols = cols,
          .min_rows = rows, .max_rows = rows, .tile = tile_of(tile), .evidence = "esker tune"};
}

void bind_gpu(nb::module_& m) {
  nb::class_<OneKernel>(m, "GpuDevice", "A GPU on which single kernels are run.")
      .def(nb::init<const std::string&, const std::string&>(), nb::arg("name"), nb::arg("cache_folder") = "")
      .def_prop_ro("name", &OneKernel::name)
      .def_prop_ro("family", &OneKernel::family, "Row of the tile tables.")
      .def_prop_ro("description", &OneKernel::description, "For people.")
      .def("compile", &OneKernel::compile, nb::arg("names"), "Compiles kernels, all at once.")
      .def("run", &OneKernel::run, nb::arg("kernel"), nb::arg("constants"), nb::arg("args"), nb::arg("buffers"),
           nb::arg("groups"), nb::arg("threads"),
           "Runs a kernel once: args is buffer 0, the arrays, updated in place, those after it.");
  m.def("gpu_device_names", &gpu::device_names, "Devices that this build knows.");
  m.def("kernel_files", &kernel_files, "Names of the files of kernels.");
  m.def("kernel_source", &kernel_source, nb::arg("file"), "The Metal text of a file, its includes in place.");
  m.def("gpu_kernel_names", &gpu::all_kernel_names, "Every kernel that a lowering may use.");
  m.def("gpu_tile", &tile, nb::arg("family"), nb::arg("use"), nb::arg("type"), nb::arg("rows"), nb::arg("cols"),
        "The tile (L, R, S, K, table in threadgroup memory, x staged there) that a family's table gives a product.");
  m.def("gpu_tile_fits", &fits, nb::arg("use"), nb::arg("type"), nb::arg("tile"),
        "Whether the kernel for this use and type can be cut by the tile.");
  m.def("gpu_stream", &stream, nb::arg("backend"), nb::arg("bytes"), nb::arg("launches"), nb::arg("repeats"),
        "Streams memory, two arrays read and one written: ns of a launch that moves `bytes` in all.");
  m.def("gpu_handshake", &handshake, nb::arg("backend"), nb::arg("how"), nb::arg("segments"),
        nb::arg("work_bytes"), nb::arg("repeats"),
        "A window whose segments end with \"none\", a \"bare\" or a \"covered\" stop for the host: ns.");
  m.def("gpu_tune", &tune, nb::arg("backend"), nb::arg("use"), nb::arg("type"), nb::arg("rows"), nb::arg("cols"),
        nb::arg("tiles"), nb::arg("bytes"), nb::arg("launches"), nb::arg("repeats"), nb::arg("top_k"),
        "Times tiles on a device, the first before and after each round: ns of a launch.");
}

}  // namespace esker::python
