// SPDX-License-Identifier: MIT
#include "stream/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace esker {
namespace {

constexpr uint32_t kDefaultChunk = 512;
constexpr uint32_t kLeastChunk = 32;
constexpr uint64_t kRowCacheBytes = 16u << 20;  // 58,000 rows of the real model; a token reads 16

void settle_limit(const PlanRequest& r, MemoryPlan& plan) {
  const uint64_t available = r.machine.available_bytes;
  const uint64_t reserve =
      r.keep_free_bytes != 0 ? r.keep_free_bytes : system_reserve(r.machine);
  plan.limit_bytes = available - std::min(available, reserve);
  plan.reserve_bytes = reserve;
  if (r.memory_bytes == 0) return;
  if (r.keep_free_bytes != 0 && plan.limit_bytes <= r.memory_bytes) return;
  plan.limit_bytes = r.memory_bytes;
  plan.reserve_bytes = 0;
}

uint64_t all_records_bytes(const PlanRequest& r) {
  uint64_t sum = 0;
  for (uint64_t bytes : r.record_bytes) sum += align_up(bytes, kSlotPageBytes) * r.n_expert;
  return sum;
}

// The arena that holds every record: classes waste some, so it may exceed the sum of the records.
uint64_t full_arena_bytes(ArenaRequest request) {
  const uint64_t most = *std::max_element(request.record_bytes.begin(), request.record_bytes.end());
  request.arena_bytes =
      align_up(most, kSlotPageBytes) * request.n_expert * request.record_bytes.size();
  return plan_arena(request).total_bytes;
}

uint32_t choose_chunk(const PlanRequest& r, uint64_t limit) {
  uint32_t chunk = r.chunk != 0 ? r.chunk : kDefaultChunk;
  chunk = static_cast<uint32_t>(std::min<uint64_t>(chunk, r.context));
  if (r.chunk != 0) return chunk;
  // A chunk's scratch may take a tenth: past that, slots are worth more than longer chunks.
  while (chunk > kLeastChunk && chunk * r.scratch_bytes_per_token > limit / 10) chunk /= 2;
  return chunk;
}

[[noreturn]] void raise_limit(const PlanRequest& r, const MemoryPlan& plan, uint64_t fixed,
                              uint64_t arena, const char* arena_name) {
  const bool asked = r.arena_bytes != 0 || r.arena_fraction != 0 || r.slots_per_layer != 0;
  std::string hint = "lower ";
  if (asked) hint += r.slots_per_layer != 0 ? "--slots, " : "--arena, ";
  if (!asked && r.min_slots != 0) hint += "--min-slots, ";
  hint += "--context or --chunk, or ";
  hint += r.memory_bytes != 0 ? "give more with --memory" : "set a limit of your own with --memory";
  raise(ErrorKind::kPlan, "plan",
        {.what = "the model does not fit into the memory it may use",
         .got = format_bytes(plan.limit_bytes),
         .want = "at least " + format_bytes(fixed + arena) + " (" + format_bytes(fixed) +
                 " besides the arena, " + format_bytes(arena) + " for " + arena_name + ")",
         .where = {},
         .hint = hint});
}

// The bytes that the arena may take.
uint64_t settle_arena(const PlanRequest& r, const MemoryPlan& plan, uint64_t fixed,
                      const ArenaRequest& arena) {
  if (r.arena_bytes != 0) return r.arena_bytes;
  if (r.arena_fraction != 0) {
    return static_cast<uint64_t>(r.arena_fraction * static_cast<double>(all_records_bytes(r)));
  }
  if (r.slots_per_layer != 0) {
    return full_arena_bytes(arena) / r.n_expert * std::min(r.slots_per_layer, r.n_expert);
  }
  if (plan.limit_bytes < fixed + plan.least_arena_bytes) {
    raise_limit(r, plan, fixed, plan.least_arena_bytes, "the smallest arena");
  }
  return plan.limit_bytes - fixed;
}

}  // namespace

// Left to the system when the limit is our own choice: 7 GB of 24 GB kept the machine of
// the reference measurements from paging (DESIGN section 6), scaled to this machine.
// Below a container's limit no system has to fit: a sixteenth covers the interpreter and what the
// kernel counts against us.
uint64_t system_reserve(const MachineMemory& machine) {
  return machine.is_limit ? machine.total_bytes / 16 : machine.total_bytes / 24 * 7;
}

MachineMemory idle_machine(uint64_t total_bytes) {
  return {.total_bytes = total_bytes, .available_bytes = total_bytes};
}

MemoryPlan make_memory_plan(const PlanRequest& r) {
  MemoryPlan plan;
  settle_limit(r, plan);
  plan.context = r.context;
  plan.chunk = choose_chunk(r, plan.limit_bytes);
  plan.row_cache_bytes = std::min(kRowCacheBytes, r.table_cache_bytes);
  plan.machine = r.machine;
  plan.record_bytes = r.record_bytes;
  plan.n_expert = r.n_expert;
  plan.table_bytes = r.table_bytes;
  for (const uint64_t bytes : r.record_bytes) plan.expert_bytes += bytes * r.n_expert;
  plan.rows = {{"dense weights (mapped)", r.dense_bytes},
               {"state for the context", 2 * r.recurrent_bytes + r.appended_bytes},
               {"prompt scratch", plan.chunk * r.scratch_bytes_per_token},
               {"n-gram row cache", plan.row_cache_bytes}};
  uint64_t fixed = 0;
  for (const PlanRow& row : plan.rows) fixed += row.bytes;
  ArenaRequest arena{.record_bytes = r.record_bytes, .n_expert = r.n_expert, .arena_bytes = 0,
                     .class_waste = r.class_waste, .min_slots = r.min_slots,
                     .turn_slots = r.n_expert_used};
  plan.least_arena_bytes = least_arena_bytes(arena);
  arena.arena_bytes = settle_arena(r, plan, fixed, arena);
  plan.arena = plan_arena(arena);
  if (r.guess_layers > 0 && plan.arena.slot_count() < r.n_expert * r.record_bytes.size()) {
    // Something will be read, so reading ahead pays: its memory comes before the arena's.
    plan.guess_layers = r.guess_layers;
    plan.rows.push_back({"routers for read-ahead", r.guess_bytes});
    fixed += r.guess_bytes;
    arena.arena_bytes = settle_arena(r, plan, fixed, arena);
    plan.arena = plan_arena(arena);
  }
  plan.rows.push_back({"expert arena", plan.arena.total_bytes});
  plan.total_bytes = fixed + plan.arena.total_bytes;
  const bool limited = r.memory_bytes != 0 || r.keep_free_bytes != 0;
  if (limited && !plan.fits()) {
    raise_limit(r, plan, fixed, plan.arena.total_bytes, "the arena that was asked for");
  }
  return plan;
}

}  // namespace esker
