// SPDX-License-Identifier: MIT
//
// The arena plan: the worked numbers, the least arena, limits, and requests that make no sense.
#include <cmath>
#include <limits>

#include "base/units.h"
#include "check.h"
#include "fault_file.h"
#include "stream/arena_plan.h"

using namespace esker;
using esker::test::contains;
using esker::test::error_of;

namespace {

// The K = 512 pack of the worked numbers: gate and up in IQ3_S, IQ2_S or IQ2_XXS, down in Q2_0.
ArenaRequest pack_512() {
  constexpr uint64_t kDownBytes = 460800;
  ArenaRequest request;
  for (int layer = 0; layer < 48; ++layer) {
    const uint64_t gate_bytes = layer < 2 ? 704000 : layer < 36 ? 524800 : 422400;
    request.record_bytes.push_back(2 * gate_bytes + kDownBytes);
  }
  request.n_expert = 512;
  request.arena_bytes = 6'800'000'000;
  request.min_slots = 576;
  return request;
}

void check_layout(const ArenaPlan& plan, const ArenaRequest& request) {
  uint64_t at = 0;
  for (const SlotClass& c : plan.classes) {
    CHECK_EQUAL(c.base_bytes, at);
    CHECK_EQUAL(c.base_bytes % kSlotPageBytes, 0u);
    at += c.slots * c.slot_bytes();
  }
  CHECK_EQUAL(plan.total_bytes, at);
  CHECK(plan.total_bytes <= request.arena_bytes);
  CHECK_EQUAL(plan.class_of_layer.size(), request.record_bytes.size());
  std::vector<uint64_t> n_layer(plan.classes.size(), 0);
  for (size_t layer = 0; layer < plan.class_of_layer.size(); ++layer) {
    const SlotClass& c = plan.classes[plan.class_of_layer[layer]];
    const uint64_t pages = div_ceil(request.record_bytes[layer], kSlotPageBytes);
    CHECK(pages <= c.pages);
    CHECK(static_cast<double>(c.pages - pages) <= request.class_waste * c.pages);
    n_layer[plan.class_of_layer[layer]] += 1;
  }
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    CHECK(plan.classes[i].slots >= 1 && plan.classes[i].slots <= n_layer[i] * request.n_expert);
    CHECK(i == 0 || plan.classes[i].pages < plan.classes[i - 1].pages);
  }
}

}  // namespace

TEST(arena_plan_worked_numbers_two_classes) {
  const ArenaRequest request = pack_512();
  const ArenaPlan plan = plan_arena(request);
  check_layout(plan, request);
  CHECK_EQUAL(plan.classes.size(), 2u);
  CHECK_EQUAL(plan.classes[0].pages, 115u);
  CHECK_EQUAL(plan.classes[1].pages, 93u);
  CHECK_EQUAL(plan.classes[0].slots, 576u);
  CHECK_EQUAL(plan.slot_count(), 4326u);
  CHECK_EQUAL(plan.class_of_layer[1], 0u);
  CHECK_EQUAL(plan.class_of_layer[2], 1u);
  CHECK_EQUAL(plan.class_of_layer[47], 1u);
}

TEST(arena_plan_worked_numbers_record_pages) {
  ArenaRequest request = pack_512();
  request.class_waste = 0;
  const ArenaPlan plan = plan_arena(request);
  check_layout(plan, request);
  CHECK_EQUAL(plan.classes.size(), 3u);
  CHECK_EQUAL(plan.classes[0].pages, 115u);
  CHECK_EQUAL(plan.classes[1].pages, 93u);
  CHECK_EQUAL(plan.classes[2].pages, 80u);
}

TEST(arena_plan_worked_numbers_one_class) {
  ArenaRequest request = pack_512();
  request.class_waste = 0.35;
  const ArenaPlan plan = plan_arena(request);
  check_layout(plan, request);
  CHECK_EQUAL(plan.classes.size(), 1u);
  CHECK_EQUAL(plan.classes[0].pages, 115u);
  CHECK_EQUAL(plan.slot_count(), 3609u);
}

TEST(arena_plan_worked_numbers_waste_between) {
  ArenaRequest request = pack_512();
  request.class_waste = 0.25;
  const ArenaPlan plan = plan_arena(request);
  check_layout(plan, request);
  CHECK_EQUAL(plan.classes.size(), 2u);
  CHECK_EQUAL(plan.classes[0].pages, 115u);
  CHECK_EQUAL(plan.classes[1].pages, 80u);
}

TEST(arena_plan_worked_numbers_256) {
  ArenaRequest request;
  request.record_bytes.assign(48, 3 * 460800);
  request.n_expert = 256;
  request.arena_bytes = 3'800'000'000;
  const ArenaPlan plan = plan_arena(request);
  check_layout(plan, request);
  CHECK_EQUAL(plan.classes.size(), 1u);
  CHECK_EQUAL(plan.classes[0].pages, 85u);
  CHECK_EQUAL(plan.slot_count(), 2728u);
}

TEST(arena_plan_least_is_one_turn_per_class) {
  ArenaRequest request = pack_512();
  request.min_slots = 0;
  request.turn_slots = 40;
  const uint64_t least = least_arena_bytes(request);
  CHECK_EQUAL(least, 40 * (115 + 93) * kSlotPageBytes);
  request.arena_bytes = least;
  const ArenaPlan plan = plan_arena(request);
  check_layout(plan, request);
  CHECK_EQUAL(plan.classes[0].slots, 40u);
  CHECK_EQUAL(plan.classes[1].slots, 40u);

  request.turn_slots = 5000;  // more than there are experts
  CHECK_EQUAL(least_arena_bytes(request), 512 * (115 + 93) * kSlotPageBytes);
  request.turn_slots = 0;
  CHECK_EQUAL(least_arena_bytes(request), (115 + 93) * kSlotPageBytes);
  request.turn_slots = 40;
  request.min_slots = 10;  // fewer than a turn needs
  CHECK_EQUAL(least_arena_bytes(request), least);
}

TEST(arena_plan_too_small_says_what_would_do) {
  ArenaRequest request = pack_512();
  const uint64_t least = least_arena_bytes(request);
  request.arena_bytes = least - 1;
  const Error error = error_of([&] { plan_arena(request); });
  CHECK(error.kind() == ErrorKind::kPlan);
  const std::string text = error.what();
  CHECK(contains(text, "[plan] the expert arena is too small"));
  CHECK(contains(text, std::to_string(least - 1)));
  CHECK(contains(text, std::to_string(least)));
  CHECK(contains(text, "576 slots of 1.88 MB, 576 slots of 1.52 MB"));
  CHECK(contains(text, "hint: "));
  request.arena_bytes = least;
  CHECK_EQUAL(plan_arena(request).slot_count(), 1152u);
}

TEST(arena_plan_never_more_than_the_records) {
  ArenaRequest request = pack_512();
  request.arena_bytes = uint64_t{1} << 40;
  const ArenaPlan plan = plan_arena(request);
  check_layout(plan, request);
  CHECK_EQUAL(plan.slot_count(), 48u * 512);
  request.min_slots = 100000;
  CHECK_EQUAL(plan_arena(request).slot_count(), 48u * 512);
}

TEST(arena_plan_shares_by_layer_and_wastes_less_than_a_slot) {
  ArenaRequest request = pack_512();
  request.min_slots = 0;
  request.turn_slots = 10;
  for (uint64_t bytes = least_arena_bytes(request); bytes < 40'000'000'000; bytes += 777'777'777) {
    request.arena_bytes = bytes;
    const ArenaPlan plan = plan_arena(request);
    check_layout(plan, request);
    const double a = plan.classes[0].slots / 2.0, b = plan.classes[1].slots / 46.0;
    const bool full = plan.slot_count() == 48u * 512;
    CHECK(full || plan.classes[0].slots == 10 || plan.classes[1].slots == 10 ||
          std::abs(a - b) <= 1);
    CHECK(full || bytes - plan.total_bytes < plan.classes[0].slot_bytes());
  }
}

TEST(arena_plan_refuses_nonsense) {
  const auto refused = [](auto change) {
    ArenaRequest request = pack_512();
    change(request);
    return error_of([&] { plan_arena(request); }).kind() == ErrorKind::kUsage &&
           error_of([&] { least_arena_bytes(request); }).kind() == ErrorKind::kUsage;
  };
  CHECK(refused([](ArenaRequest& r) { r.record_bytes.clear(); }));
  CHECK(refused([](ArenaRequest& r) { r.n_expert = 0; }));
  CHECK(refused([](ArenaRequest& r) { r.n_expert = UINT32_MAX; }));
  CHECK(refused([](ArenaRequest& r) { r.record_bytes[3] = 0; }));
  CHECK(refused([](ArenaRequest& r) { r.record_bytes[3] = UINT64_MAX; }));
  CHECK(refused([](ArenaRequest& r) { r.class_waste = -0.1; }));
  CHECK(refused([](ArenaRequest& r) { r.class_waste = 1; }));
  CHECK(refused([](ArenaRequest& r) {
    r.class_waste = std::numeric_limits<double>::quiet_NaN();
  }));
}
