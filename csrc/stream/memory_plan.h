// SPDX-License-Identifier: MIT
//
// What goes where in memory, settled before anything is allocated (DESIGN section 6). Pure: from
// the model's sizes, the machine's and the options to a plan, or to an error with what would do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/machine.h"
#include "stream/arena_plan.h"

namespace esker {

struct PlanRequest {
  // The model.
  std::vector<uint64_t> record_bytes;  // per layer
  uint32_t n_expert = 0;
  uint32_t n_expert_used = 0;
  uint64_t dense_bytes = 0;            // mapped
  uint64_t table_bytes = 0;            // n-gram table, stays on disk
  uint64_t table_cache_bytes = 0;      // of a row cache that holds all of it
  uint64_t scratch_bytes_per_token = 0;
  uint64_t guess_bytes = 0;            // of what read-ahead guesses with
  uint32_t guess_layers = 0;           // for how many layers it does, if anything is left to read
  uint64_t recurrent_bytes = 0;        // of one session; held twice (before and after a run)
  uint64_t appended_bytes = 0;         // of one session at the full context
  // The options; 0 = choose.
  uint64_t memory_bytes = 0;           // all that may be used
  uint64_t keep_free_bytes = 0;        // of what is available now, left to others
  uint64_t arena_bytes = 0;
  double arena_fraction = 0;           // of all experts
  uint32_t slots_per_layer = 0;
  uint32_t min_slots = 0;              // per class
  double class_waste = ArenaRequest{}.class_waste;
  uint32_t chunk = 0;                  // tokens of a prompt chunk
  uint64_t context = 0;                // settled before: sizes above depend on it
  MachineMemory machine;
};

struct PlanRow {
  std::string what;
  uint64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<PlanRow> rows;   // in memory; their sum is total_bytes
  uint64_t total_bytes = 0;
  uint64_t limit_bytes = 0;    // what the plan has to fit into
  uint64_t reserve_bytes = 0;  // of the machine's memory, left out of the limit
  uint64_t least_arena_bytes = 0;
  uint64_t row_cache_bytes = 0;
  uint32_t chunk = 0;
  uint64_t context = 0;
  uint32_t guess_layers = 0;   // 0 where the arena holds every expert
  ArenaPlan arena;
  // What it was made for.
  MachineMemory machine;
  std::vector<uint64_t> record_bytes;  // per layer
  uint32_t n_expert = 0;
  uint64_t expert_bytes = 0;           // of all records, as they lie on the disk
  uint64_t table_bytes = 0;

  // Only an arena that was asked for by size or slots can exceed what the machine has to give.
  bool fits() const { return total_bytes <= limit_bytes; }
  uint64_t least_total_bytes() const { return total_bytes - arena.total_bytes + least_arena_bytes; }
};

// What a plan leaves to the system where nothing else is said.
uint64_t system_reserve(const MachineMemory& machine);

// A machine with this much memory, none of it in use: for plans that ask "what if".
MachineMemory idle_machine(uint64_t total_bytes);

// Throws Error(kPlan) with what was asked, what there is and the least that would do: where no
// arena was asked for and the least does not fit, and where the plan exceeds memory_bytes or would
// leave less than keep_free_bytes.
MemoryPlan make_memory_plan(const PlanRequest& request);

}  // namespace esker
