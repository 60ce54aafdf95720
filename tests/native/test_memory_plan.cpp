// SPDX-License-Identifier: MIT
//
// The memory plan: sums, limits, options, other machines, and refusals that say what would do.
#include "stream/memory_plan.h"

#include "base/units.h"
#include "check.h"
#include "fault_file.h"

using namespace esker;
using esker::test::contains;
using esker::test::error_of;

namespace {

constexpr uint64_t kGb = 1'000'000'000;

// The K = 512 pack of the worked numbers on the reference machine of 24 GB, 22 of them free.
PlanRequest pack_512() {
  PlanRequest r;
  for (int layer = 0; layer < 48; ++layer) {
    const uint64_t gate_bytes = layer < 2 ? 704000 : layer < 36 ? 524800 : 422400;
    r.record_bytes.push_back(2 * gate_bytes + 460800);
  }
  r.n_expert = 512;
  r.n_expert_used = 10;
  r.dense_bytes = 3'900'000'000;
  r.table_bytes = 28'800'000'000;
  r.table_cache_bytes = 32'000'000'000;
  r.scratch_bytes_per_token = 200'000;
  r.recurrent_bytes = 120'000'000;
  r.appended_bytes = 400'000'000;
  r.context = 4096;
  r.machine = {.total_bytes = 24 * kGb, .available_bytes = 22 * kGb};
  return r;
}

uint64_t sum(const MemoryPlan& plan) {
  uint64_t bytes = 0;
  for (const PlanRow& row : plan.rows) bytes += row.bytes;
  return bytes;
}

}  // namespace

TEST(memory_plan_leaves_a_container_without_a_system_in_it) {
  PlanRequest r = pack_512();
  r.machine.is_limit = true;
  const MemoryPlan plan = make_memory_plan(r);
  CHECK_EQUAL(plan.reserve_bytes, 24 * kGb / 16);
  CHECK_EQUAL(plan.limit_bytes, 22 * kGb - 24 * kGb / 16);
}

TEST(memory_plan_takes_what_the_machine_has_to_give) {
  const MemoryPlan plan = make_memory_plan(pack_512());
  CHECK_EQUAL(plan.reserve_bytes, 7 * kGb);
  CHECK_EQUAL(plan.limit_bytes, 15 * kGb);
  CHECK_EQUAL(plan.total_bytes, sum(plan));
  CHECK(plan.fits());
  CHECK(plan.limit_bytes - plan.total_bytes < plan.arena.classes[0].slot_bytes());
  CHECK_EQUAL(plan.least_arena_bytes, 10u * (115 + 93) * kSlotPageBytes);
  CHECK_EQUAL(plan.least_total_bytes(),
              plan.total_bytes - plan.arena.total_bytes + plan.least_arena_bytes);
  CHECK_EQUAL(plan.expert_bytes,
              512 * (48 * 460800ull + 2 * (2 * 704000ull + 34 * 524800ull + 12 * 422400ull)));
}

TEST(memory_plan_worked_numbers_with_its_options) {
  PlanRequest r = pack_512();
  r.arena_bytes = 6'800'000'000;
  r.min_slots = 576;
  CHECK_EQUAL(make_memory_plan(r).arena.slot_count(), 4326u);
  r.class_waste = 0.35;
  CHECK_EQUAL(make_memory_plan(r).arena.slot_count(), 3609u);
  r.min_slots = 0;
  r.class_waste = 0;
  CHECK_EQUAL(make_memory_plan(r).arena.classes.size(), 3u);
}

TEST(memory_plan_of_another_machine) {
  PlanRequest r = pack_512();
  r.machine = idle_machine(16 * kGb);
  const MemoryPlan plan = make_memory_plan(r);
  CHECK_EQUAL(plan.reserve_bytes, 16 * kGb / 24 * 7);
  CHECK_EQUAL(plan.limit_bytes, 16 * kGb - plan.reserve_bytes);
  CHECK(plan.total_bytes <= plan.limit_bytes);
  CHECK_EQUAL(plan.machine.total_bytes, 16 * kGb);
}

TEST(memory_plan_limits_and_keeps_free) {
  PlanRequest r = pack_512();
  r.memory_bytes = 8 * kGb;
  MemoryPlan plan = make_memory_plan(r);
  CHECK_EQUAL(plan.limit_bytes, 8 * kGb);
  CHECK_EQUAL(plan.reserve_bytes, 0u);
  CHECK(plan.total_bytes <= 8 * kGb);
  r.keep_free_bytes = 15 * kGb;  // leaves less than --memory allows
  plan = make_memory_plan(r);
  CHECK_EQUAL(plan.limit_bytes, 7 * kGb);
  CHECK_EQUAL(plan.reserve_bytes, 15 * kGb);
  r.keep_free_bytes = kGb;
  CHECK_EQUAL(make_memory_plan(r).limit_bytes, 8 * kGb);
  r.memory_bytes = 0;
  CHECK_EQUAL(make_memory_plan(r).limit_bytes, 21 * kGb);
  r.keep_free_bytes = 100 * kGb;
  CHECK(error_of([&] { make_memory_plan(r); }).kind() == ErrorKind::kPlan);
}

TEST(memory_plan_shortens_chunks_where_memory_is_short) {
  PlanRequest r = pack_512();
  CHECK_EQUAL(make_memory_plan(r).chunk, 512u);
  r.context = 100;
  CHECK_EQUAL(make_memory_plan(r).chunk, 100u);
  r.context = 4096;
  r.scratch_bytes_per_token = 5'000'000;
  CHECK_EQUAL(make_memory_plan(r).chunk, 256u);
  r.chunk = 400;  // asked for
  CHECK_EQUAL(make_memory_plan(r).chunk, 400u);
}

TEST(memory_plan_that_does_not_fit_says_what_would) {
  PlanRequest r = pack_512();
  r.memory_bytes = 4 * kGb;
  Error error = error_of([&] { make_memory_plan(r); });
  CHECK(error.kind() == ErrorKind::kPlan);
  std::string text = error.what();
  CHECK(contains(text, "[plan] the model does not fit into the memory it may use: got 4.00 GB, "
                       "want at least "));
  CHECK(contains(text, "for the smallest arena)"));
  CHECK(contains(text, "hint: lower --context or --chunk, or give more with --memory"));
  r.min_slots = 5000;
  text = error_of([&] { make_memory_plan(r); }).what();
  CHECK(contains(text, "hint: lower --min-slots, --context"));
  r = pack_512();
  r.machine.available_bytes = 8 * kGb;
  text = error_of([&] { make_memory_plan(r); }).what();
  CHECK(contains(text, "a limit of your own with --memory"));

  // The least that the message names does.
  r = pack_512();
  const MemoryPlan plan = make_memory_plan(r);
  r.chunk = plan.chunk;
  r.memory_bytes = plan.least_total_bytes();
  CHECK_EQUAL(make_memory_plan(r).total_bytes, plan.least_total_bytes());
  r.memory_bytes -= 1;
  CHECK(error_of([&] { make_memory_plan(r); }).kind() == ErrorKind::kPlan);
}

TEST(memory_plan_holds_an_arena_that_was_asked_for_against_a_limit_that_was_given) {
  PlanRequest r = pack_512();
  r.arena_bytes = 20 * kGb;
  CHECK(!make_memory_plan(r).fits());  // no limit was given: the caller's word; the plan says so
  r.memory_bytes = 8 * kGb;
  const std::string text = error_of([&] { make_memory_plan(r); }).what();
  CHECK(contains(text, "got 8.00 GB, want at least "));
  CHECK(contains(text, "for the arena that was asked for)"));
  CHECK(contains(text, "hint: lower --arena, --context or --chunk, or give more with --memory"));
  r.arena_bytes = 0;
  r.slots_per_layer = 512;
  CHECK(contains(error_of([&] { make_memory_plan(r); }).what(), "hint: lower --slots, --context"));
  r.slots_per_layer = 20;
  CHECK(make_memory_plan(r).fits());
}

TEST(memory_plan_takes_slots_or_a_share) {
  PlanRequest r = pack_512();
  r.slots_per_layer = 100;
  CHECK_EQUAL(make_memory_plan(r).arena.slot_count(), 4800u);
  r.slots_per_layer = 0;
  r.arena_fraction = 1;
  r.class_waste = 0;
  CHECK_EQUAL(make_memory_plan(r).arena.slot_count(), 48u * 512);
}
