// SPDX-License-Identifier: MIT
//
// From a model and the options to its memory plan. The engine applies it, `esker plan` shows it:
// one plan, made here.
#pragma once

#include "base/machine.h"
#include "engine/engine.h"

namespace esker {

// Needs no data of the model's files. Throws Error(kUsage) for a context that the model was not
// made for, Error(kPlan) as make_memory_plan does.
MemoryPlan plan_model(const EngineOptions& options, const Config& config, const Weights& weights,
                      const MachineMemory& machine);

}  // namespace esker
