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

// Left to the system when the limit is our own choice: 7 GB of 24 GB kept the machine of
// the reference measurements from paging (DESIGN section 6), scaled to this machine.
uint64_t system_reserve(uint64_t total) { return total / 24 * 7; }

uint64_t all_records_bytes(const PlanRequest& r) {
  uint64_t sum = 0;
  for (uint64_t bytes : r.record_bytes) sum += align_up(bytes, kSlotPageBytes) * r.n_expert;
  return sum;
}

// The arena that holds every record: classes waste some, so it may exceed the sum of the records.
uint64_t full_arena_bytes(ArenaRequest request) {
  const uint64_t most = *std::max_element(request.record_bytes.begin(), request.record_bytes.end());
  request.arena_bytes = align_up(most, kSlotPageBytes) * request.n_expert * request.record_bytes.size();
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

}  // namespace

MemoryPlan make_memory_plan(const PlanRequest& r) {
  MemoryPlan plan;
  const uint64_t reserve = system_reserve(r.machine.total_bytes);
  const uint64_t free_now = r.machine.available_bytes - std::min(r.machine.available_bytes, reserve);
  plan.limit_bytes = r.memory_bytes != 0 ? r.memory_bytes : free_now;
  plan.context = r.context;
  plan.chunk = choose_chunk(r, plan.limit_bytes);
  plan.row_cache_bytes = std::min(kRowCacheBytes, r.table_bytes);
  plan.rows = {{"dense weights (mapped)", r.dense_bytes},
               {"state for the context", 2 * r.recurrent_bytes + r.appended_bytes},
               {"prompt scratch", plan.chunk * r.scratch_bytes_per_token},
               {"n-gram row cache", plan.row_cache_bytes}};
  uint64_t fixed = 0;
  for (const PlanRow& row : plan.rows) fixed += row.bytes;

  ArenaRequest arena{.record_bytes = r.record_bytes, .n_expert = r.n_expert, .arena_bytes = 0,
                     .turn_slots = r.n_expert_used};
  if (r.arena_bytes != 0) {
    arena.arena_bytes = r.arena_bytes;
  } else if (r.arena_fraction != 0) {
    arena.arena_bytes = static_cast<uint64_t>(r.arena_fraction * static_cast<double>(all_records_bytes(r)));
  } else if (r.slots_per_layer != 0) {
    const uint64_t slots = std::min(r.slots_per_layer, r.n_expert);
    arena.arena_bytes = full_arena_bytes(arena) / r.n_expert * slots;
  } else {
    const uint64_t least = least_arena_bytes(arena);
    if (plan.limit_bytes < fixed + least) {
      raise(ErrorKind::kPlan, "plan",
            {.what = "the model does not fit into the memory it may use",
             .got = format_bytes(plan.limit_bytes),
             .want = "at least " + format_bytes(fixed + least) + " (" + format_bytes(fixed) +
                     " besides the arena, " + format_bytes(least) + " for the smallest arena)",
             .where = {},
             .hint = "lower --context or --chunk, or give more with --memory"});
    }
    arena.arena_bytes = plan.limit_bytes - fixed;
  }
  plan.arena = plan_arena(arena);
  plan.rows.push_back({"expert arena", plan.arena.total_bytes});
  plan.total_bytes = fixed + plan.arena.total_bytes;
  return plan;
}

}  // namespace esker
