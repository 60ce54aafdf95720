// SPDX-License-Identifier: MIT
//
// Native errors become the exceptions of esker.errors, each also the builtin it resembles.
#include "base/error.h"
#include "bindings/bindings.h"

namespace esker::python {
namespace {

const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kFormat: return "FormatError";
    case ErrorKind::kRead: return "ReadError";
    case ErrorKind::kPlan: return "PlanError";
    case ErrorKind::kUsage: return "UsageError";
    case ErrorKind::kDevice: return "DeviceError";
    case ErrorKind::kNumeric: return "NumericError";
  }
  return "EskerError";
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& e) {
      const nb::object type = nb::module_::import_("esker.errors").attr(class_of(e.kind()));
      PyErr_SetString(type.ptr(), e.what());
    } catch (const Interrupted&) {
      PyErr_SetNone(PyExc_KeyboardInterrupt);
    }
  });
}

}  // namespace esker::python
