// SPDX-License-Identifier: MIT
//
// The residency policy on random traces against a plain list, for many arenas and with failing
// reads; invariants are checked after every step.
#include <algorithm>
#include <list>
#include <random>
#include <set>
#include <stdexcept>

#include "check.h"
#include "fault_file.h"
#include "stream/policy.h"

using namespace esker;
using esker::test::contains;
using esker::test::error_of;

namespace {

constexpr uint32_t kExperts = 12;

// Three layers of class 0, two of class 1.
ArenaPlan small_plan(uint32_t slots_0, uint32_t slots_1) {
  ArenaPlan plan;
  plan.classes = {{.pages = 2, .slots = slots_0, .base_bytes = 0},
                  {.pages = 1, .slots = slots_1, .base_bytes = uint64_t{slots_0} * 2 * 16384}};
  plan.class_of_layer = {0, 1, 0, 1, 0};
  plan.total_bytes = (uint64_t{slots_0} * 2 + slots_1) * 16384;
  return plan;
}

// Least recently used, as one would write it on a blackboard.
struct Model {
  struct Entry {
    uint32_t layer, expert;
    int32_t code;
  };
  std::vector<std::list<Entry>> by_recency;  // per class, most recent first
  std::vector<std::vector<int32_t>> free;    // per class, a stack
  std::vector<uint32_t> class_of_layer;

  explicit Model(const ArenaPlan& plan)
      : by_recency(plan.classes.size()),
        free(plan.classes.size()),
        class_of_layer(plan.class_of_layer) {
    for (size_t i = 0; i < free.size(); ++i) {
      for (uint32_t s = plan.classes[i].slots; s > 0; --s) {
        free[i].push_back(static_cast<int32_t>(s) - 1);
      }
    }
  }

  // Returns the entries to load.
  std::vector<Entry> request(uint32_t layer, const std::vector<int32_t>& experts, int* evictions) {
    auto& list = by_recency[class_of_layer[layer]];
    auto& stack = free[class_of_layer[layer]];
    std::vector<uint32_t> missing;
    for (const int32_t wanted : experts) {
      const uint32_t expert = static_cast<uint32_t>(wanted);
      const auto at = std::find_if(list.begin(), list.end(), [&](const Entry& e) {
        return e.layer == layer && e.expert == expert;
      });
      if (at == list.end()) {
        missing.push_back(expert);
      } else {
        list.splice(list.begin(), list, at);
      }
    }
    std::vector<Entry> loads;
    for (const uint32_t expert : missing) {
      int32_t code = 0;
      if (!stack.empty()) {
        code = stack.back();
        stack.pop_back();
      } else {
        code = list.back().code;
        list.pop_back();
        *evictions += 1;
      }
      list.push_front({layer, expert, code});
      loads.push_back(list.front());
    }
    return loads;
  }

  void fail(const Entry& load) {
    const uint32_t c = class_of_layer[load.layer];
    by_recency[c].remove_if(
        [&](const Entry& e) { return e.layer == load.layer && e.expert == load.expert; });
    free[c].push_back(load.code);
  }

  std::vector<int32_t> residency(uint32_t layer) const {
    std::vector<int32_t> map(kExperts, -1);
    for (const Entry& e : by_recency[class_of_layer[layer]]) {
      if (e.layer == layer) map[e.expert] = e.code;
    }
    return map;
  }
};

std::vector<int32_t> random_experts(std::mt19937& random, uint32_t n_max) {
  const uint32_t n = std::min<uint32_t>(static_cast<uint32_t>(random() % 6), n_max);
  std::set<int32_t> chosen;
  // Low experts are popular, so that there are hits.
  while (chosen.size() < n) {
    chosen.insert(static_cast<int32_t>(std::min(random() % kExperts, random() % kExperts)));
  }
  return {chosen.begin(), chosen.end()};
}

// One request on both, its loads ending in random order, some of them failing.
void step(ResidencyPolicy& policy, Model& model, std::mt19937& random, bool faults) {
  const uint32_t layer = static_cast<uint32_t>(random() % 5);
  const auto experts = random_experts(random, policy.slot_count(layer));
  int evictions = 0, evicts = 0;
  const auto want = model.request(layer, experts, &evictions);
  const auto span = policy.request(layer, experts);
  std::vector<ResidencyPolicy::Load> loads(span.begin(), span.end());
  policy.check_invariants();
  CHECK_EQUAL(loads.size(), want.size());
  for (size_t i = 0; i < loads.size(); ++i) {
    CHECK_EQUAL(loads[i].expert, want[i].expert);
    CHECK_EQUAL(policy.residency(layer)[loads[i].expert], -1);
    evicts += loads[i].evicts;
  }
  CHECK_EQUAL(evicts, evictions);
  std::vector<size_t> order(loads.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    if (faults && random() % 7 == 0) {
      policy.failed(loads[i].slot);
      model.fail(want[i]);
    } else {
      policy.loaded(loads[i].slot);
    }
    policy.check_invariants();
  }
  for (uint32_t l = 0; l < 5; ++l) {
    const auto map = policy.residency(l);
    CHECK(std::vector<int32_t>(map.begin(), map.end()) == model.residency(l));
  }
}

}  // namespace

TEST(policy_agrees_with_a_list_for_many_arenas) {
  for (uint32_t slots = 1; slots <= 3 * kExperts; ++slots) {
    const ArenaPlan plan = small_plan(slots, std::min(slots, 2 * kExperts));
    for (const bool faults : {false, true}) {
      ResidencyPolicy policy(plan, kExperts);
      Model model(plan);
      std::mt19937 random(slots);
      policy.check_invariants();
      for (int i = 0; i < 400; ++i) step(policy, model, random, faults);
    }
  }
}

TEST(policy_decides_the_same_whatever_order_reads_end_in) {
  ResidencyPolicy a(small_plan(7, 5), kExperts), b(small_plan(7, 5), kExperts);
  std::mt19937 trace(1), order(2);
  for (int i = 0; i < 1000; ++i) {
    const uint32_t layer = static_cast<uint32_t>(trace() % 5);
    const auto experts = random_experts(trace, 5);
    const auto loads_a = a.request(layer, experts);
    for (const auto& load : loads_a) a.loaded(load.slot);
    const auto loads_b = b.request(layer, experts);
    std::vector<ResidencyPolicy::Load> shuffled(loads_b.begin(), loads_b.end());
    std::shuffle(shuffled.begin(), shuffled.end(), order);
    for (const auto& load : shuffled) b.loaded(load.slot);
    for (uint32_t l = 0; l < 5; ++l) CHECK(std::ranges::equal(a.residency(l), b.residency(l)));
  }
}

TEST(policy_never_evicts_what_the_turn_wants) {
  ResidencyPolicy policy(small_plan(3, 1), kExperts);
  const std::vector<int32_t> first = {5, 6, 7}, second = {1, 5, 9};
  for (const auto& load : policy.request(0, first)) policy.loaded(load.slot);
  // 5 is the least recently used, and it comes after the first miss.
  const auto loads = policy.request(0, second);
  CHECK_EQUAL(loads.size(), 2u);
  CHECK_EQUAL(loads[0].expert, 1u);
  CHECK_EQUAL(loads[1].expert, 9u);
  CHECK(policy.residency(0)[5] >= 0);
  CHECK_EQUAL(policy.residency(0)[6], -1);
  CHECK_EQUAL(policy.residency(0)[7], -1);
}

TEST(policy_places_slots_within_their_class) {
  ResidencyPolicy policy(small_plan(3, 4), kExperts);
  const std::vector<int32_t> experts = {0, 1, 2};
  for (const uint32_t layer : {0u, 1u}) {
    const uint64_t base = layer == 0 ? 0 : 3 * 2 * 16384;
    const uint64_t slot_bytes = layer == 0 ? 2 * 16384 : 16384;
    for (const auto& load : policy.request(layer, experts)) {
      policy.loaded(load.slot);
      const int32_t code = policy.residency(layer)[load.expert];
      CHECK_EQUAL(code, static_cast<int32_t>(load.expert));  // lowest free slot first
      CHECK_EQUAL(policy.slot_offset_bytes(load.slot),
                  base + static_cast<uint64_t>(code) * slot_bytes);
    }
  }
}

TEST(policy_too_many_experts_changes_nothing) {
  ResidencyPolicy policy(small_plan(3, 2), kExperts);
  const std::vector<int32_t> few = {1, 2}, many = {0, 1, 2, 3};
  for (const auto& load : policy.request(2, few)) policy.loaded(load.slot);
  const Error error = error_of([&] { policy.request(2, many); });
  CHECK(error.kind() == ErrorKind::kPlan);
  const std::string text = error.what();
  CHECK(contains(text, "layer 2, class 0"));
  CHECK(contains(text, "got 3 slots, want 4"));
  CHECK(contains(text, std::to_string((4 * 2 + 2) * 16384)));
  policy.check_invariants();
  CHECK_EQUAL(policy.request(2, few).size(), 0u);
}

TEST(policy_refuses_misuse) {
  using Broken = std::logic_error;
  ResidencyPolicy policy(small_plan(3, 2), kExperts);
  const std::vector<int32_t> falling = {2, 1}, twice = {1, 1}, beyond = {12}, negative = {-1},
                             one = {1};
  MESSAGE_OF(Broken, policy.request(0, falling));
  MESSAGE_OF(Broken, policy.request(0, twice));
  MESSAGE_OF(Broken, policy.request(0, beyond));
  MESSAGE_OF(Broken, policy.request(0, negative));
  MESSAGE_OF(Broken, policy.request(5, one));
  MESSAGE_OF(Broken, policy.loaded(0));
  MESSAGE_OF(Broken, policy.failed(99));
  const uint32_t slot = policy.request(0, one)[0].slot;
  MESSAGE_OF(Broken, policy.request(0, one));  // its read has not ended
  policy.loaded(slot);
  MESSAGE_OF(Broken, policy.loaded(slot));
  policy.check_invariants();
  ArenaPlan empty = small_plan(3, 2);
  empty.classes[1].slots = 0;
  MESSAGE_OF(Broken, ResidencyPolicy(empty, kExperts));
}
