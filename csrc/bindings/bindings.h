// SPDX-License-Identifier: MIT
//
// What the binding files share.
#pragma once

#include <array>
#include <tuple>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "backends/gpu/tiles.h"
#include "graph/backend.h"
#include "stream/memory_plan.h"

namespace esker::python {

namespace nb = nanobind;

using FloatArray = nb::ndarray<nb::numpy, float>;

// A check for Ctrl-C to be called without the GIL; looks at most every 20 ms, throws
// nanobind::python_error (KeyboardInterrupt).
PollFn make_poll();

// A float32 numpy array of its own: [rows, cols], or [cols] when rows is 0.
FloatArray make_array(size_t rows, size_t cols);

void bind_errors(nb::module_& m);   // bind_errors.cpp
void bind_formats(nb::module_& m);  // bind_formats.cpp
void bind_gpu(nb::module_& m);      // bind_gpu.cpp
void bind_engine(nb::module_& m);   // bind_engine.cpp
void bind_plan(nb::module_& m);     // bind_plan.cpp
void bind_policy(nb::module_& m);  // bind_policy.cpp
void bind_probe(nb::module_& m);    // bind_probe.cpp

// The file's metadata, arrays as lists; and facts about a model (bind_formats.cpp).
nb::dict metadata(const Gguf& gguf);
nb::dict model_info(const Weights& weights, const Config& config);

// Throws Error(kUsage) naming the types there are (bind_probe.cpp).
WeightType type_named(const std::string& name);

// A row that `esker tune` found: use, type, rows, columns, tile (bind_gpu.cpp).
using TunedRow = std::tuple<std::string, std::string, uint32_t, uint32_t, std::array<uint32_t, 6>>;
gpu::TileRow tile_row(const TunedRow& row);

// A memory plan as rows, classes and totals (bind_plan.cpp).
nb::dict plan_dict(const MemoryPlan& plan);

}  // namespace esker::python
