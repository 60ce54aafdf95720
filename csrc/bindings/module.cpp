// SPDX-License-Identifier: MIT
#include "bindings/bindings.h"

#include "base/clock.h"

namespace esker::python {

PollFn make_poll() {
  return [last = now_ns()]() mutable {
    const int64_t now = now_ns();
    if (now - last < 20'000'000) return;
    last = now;
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
}

FloatArray make_array(size_t rows, size_t cols) {
  float* data = new float[(rows == 0 ? 1 : rows) * cols];
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return rows == 0 ? FloatArray(data, {cols}, owner) : FloatArray(data, {rows, cols}, owner);
}

}  // namespace esker::python

NB_MODULE(_core, m) {
  m.doc() = "Esker's native core. The public face is the package esker.";
  esker::python::bind_errors(m);
  esker::python::bind_formats(m);
  esker::python::bind_gpu(m);
  esker::python::bind_engine(m);
  esker::python::bind_plan(m);
  esker::python::bind_policy(m);
  esker::python::bind_probe(m);
}
