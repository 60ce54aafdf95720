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
// Experts a token that are guessed for the next layer: what was asked for, else 8 for every 5 that a
// token uses, which is 16 of the real model's 10; but none where records are so small that requests,
// not bytes, are what the disk is short of.
uint32_t read_ahead_depth(const EngineOptions& options, const Config& config, const Weights& weights);

MemoryPlan plan_model(const EngineOptions& options, const Config& config, const Weights& weights,
                      const MachineMemory& machine);

}  // namespace esker
