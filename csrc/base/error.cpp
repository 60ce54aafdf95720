// SPDX-License-Identifier: MIT
#include "base/error.h"

namespace esker {

std::string format_fault(const char* component, const Fault& fault) {
  std::string text = "[";
  text.append(component).append("] ").append(fault.what);
  if (!fault.got.empty()) text += ": got " + fault.got;
  if (!fault.want.empty()) text += (fault.got.empty() ? ": want " : ", want ") + fault.want;
  if (!fault.where.empty()) text += " (" + fault.where + ")";
  if (!fault.hint.empty()) text += "\nhint: " + fault.hint;
  return text;
}

void raise(ErrorKind kind, const char* component, const Fault& fault) {
  throw Error(kind, format_fault(component, fault));
}

}  // namespace esker
