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

  // A decode turn. Returns the entries to load.
  std::vector<Entry> request(uint32_t layer, const std::vector<int32_t>& experts, int* evictions) {
    auto& list = by_recency[class_of_layer[layer]];
    auto& stack = free[class_of_layer[layer]];
    const auto find = [&](int32_t expert) {
      return std::find_if(list.begin(), list.end(), [&](const Entry& e) {
        return e.layer == layer && e.expert == static_cast<uint32_t>(expert);
      });
    };
    // What the turn wants is not evicted by it.
    for (auto expert = experts.rbegin(); expert != experts.rend(); ++expert) {
      if (const auto at = find(*expert); at != list.end()) list.splice(list.begin(), list, at);
    }
    std::vector<Entry> loads;
    for (const int32_t expert : experts) {
      if (const auto at = find(expert); at != list.end()) {
        list.splice(list.begin(), list, at);
        continue;
      }
      int32_t code = 0;
      if (!stack.empty()) {
        code = stack.back();
        stack.pop_back();
      } else {
        code = list.back().code;
        list.pop_back();
        *evictions += 1;
      }
      list.push_front({layer, static_cast<uint32_t>(expert), code});
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

using Loads = std::vector<ResidencyPolicy::Load>;

Loads to_vector(std::span<const ResidencyPolicy::Load> loads) { return {loads.begin(), loads.end()}; }

// A turn that fits into one round.
Loads request(ResidencyPolicy& policy, uint32_t layer, const std::vector<int32_t>& experts,
              TurnKind kind = TurnKind::kDecode) {
  policy.begin_turn(layer, experts, kind);
  const ResidencyPolicy::Round round = policy.next_round(false);
  CHECK(!policy.has_more());
  CHECK(std::ranges::equal(round.experts, experts));
  return to_vector(round.loads);
}

void load_all(ResidencyPolicy& policy, const Loads& loads) {
  for (const auto& load : loads) policy.loaded(load.slot);
  policy.check_invariants();
}

bool is_resident(const ResidencyPolicy& policy, uint32_t layer, int32_t expert) {
  return policy.residency(layer)[static_cast<size_t>(expert)] >= 0;
}

std::vector<int32_t> up_to(int32_t n) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) all[static_cast<size_t>(i)] = i;
  return all;
}

// One request on both, its loads ending in random order, some of them failing.
void step(ResidencyPolicy& policy, Model& model, std::mt19937& random, bool faults) {
  const uint32_t layer = static_cast<uint32_t>(random() % 5);
  const auto experts = random_experts(random, policy.slot_count(layer));
  int evictions = 0, evicts = 0;
  const auto want = model.request(layer, experts, &evictions);
  const Loads loads = request(policy, layer, experts);
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
    load_all(a, request(a, layer, experts));
    Loads shuffled = request(b, layer, experts);
    std::shuffle(shuffled.begin(), shuffled.end(), order);
    for (const auto& load : shuffled) b.loaded(load.slot);
    for (uint32_t l = 0; l < 5; ++l) CHECK(std::ranges::equal(a.residency(l), b.residency(l)));
  }
}

TEST(policy_never_evicts_what_the_turn_wants) {
  ResidencyPolicy policy(small_plan(3, 1), kExperts);
  load_all(policy, request(policy, 0, {5, 6, 7}));
  // 5 is the least recently used, and it comes after the first miss.
  const Loads loads = request(policy, 0, {1, 5, 9});
  CHECK_EQUAL(loads.size(), 2u);
  CHECK_EQUAL(loads[0].expert, 1u);
  CHECK_EQUAL(loads[1].expert, 9u);
  CHECK(is_resident(policy, 0, 5));
  CHECK(!is_resident(policy, 0, 6) && !is_resident(policy, 0, 7));
}

TEST(policy_places_slots_within_their_class) {
  ResidencyPolicy policy(small_plan(3, 4), kExperts);
  for (const uint32_t layer : {0u, 1u}) {
    const uint64_t base = layer == 0 ? 0 : 3 * 2 * 16384;
    const uint64_t slot_bytes = layer == 0 ? 2 * 16384 : 16384;
    for (const auto& load : request(policy, layer, {0, 1, 2})) {
      policy.loaded(load.slot);
      const int32_t code = policy.residency(layer)[load.expert];
      CHECK_EQUAL(code, static_cast<int32_t>(load.expert));  // lowest free slot first
      CHECK_EQUAL(policy.slot_offset_bytes(load.slot),
                  base + static_cast<uint64_t>(code) * slot_bytes);
    }
  }
}

// Two layers share a class and each wants every expert, one after the other; the second is read ahead
// while the first is computed. An engine that pinned what it read ahead found no victim here.
TEST(policy_class_of_two_layers_does_not_deadlock_in_a_prompt) {
  for (uint32_t slots = 1; slots <= 2 * kExperts; ++slots) {
    ArenaPlan plan;
    plan.classes = {{.pages = 1, .slots = slots, .base_bytes = 0}};
    plan.class_of_layer = {0, 0};
    ResidencyPolicy policy(plan, kExperts);
    const std::vector<int32_t> all = up_to(kExperts);
    for (int chunk = 0; chunk < 3; ++chunk) {
      policy.begin_prompt();
      for (const uint32_t layer : {0u, 1u}) {
        policy.begin_turn(layer, all, TurnKind::kPrompt);
        Loads current, upcoming;
        std::vector<int32_t> seen;
        bool overlapped = false;
        while (policy.has_more() || overlapped) {
          if (!overlapped) {
            const auto round = policy.next_round(false);
            CHECK(!round.experts.empty());
            seen.insert(seen.end(), round.experts.begin(), round.experts.end());
            current = to_vector(round.loads);
          }
          load_all(policy, current);
          overlapped = false;
          if (!policy.has_more()) break;
          const std::vector<int32_t> computed = seen;
          const auto round = policy.next_round(true);
          overlapped = !round.experts.empty();
          seen.insert(seen.end(), round.experts.begin(), round.experts.end());
          current = to_vector(round.loads);
          policy.check_invariants();
        }
        CHECK(seen == all);
        policy.free_limbo();
        policy.retire(layer);
        if (layer == 0) policy.read_ahead(1, all, TurnKind::kPrompt, 1, false);
        policy.check_invariants();
      }
    }
  }
}

TEST(policy_claims_and_retires_what_was_read_ahead) {
  ResidencyPolicy policy(small_plan(8, 8), kExperts);
  load_all(policy, request(policy, 0, {0, 1}));
  const Loads ahead = to_vector(policy.read_ahead(2, std::vector<int32_t>{4, 9, 6}, TurnKind::kDecode, 2, false));
  policy.check_invariants();
  CHECK_EQUAL(ahead.size(), 3u);
  CHECK_EQUAL(ahead[1].expert, 9u);
  CHECK(!is_resident(policy, 2, 4));
  const Loads loads = request(policy, 2, {3, 9});
  CHECK_EQUAL(loads.size(), 2u);
  CHECK(!loads[0].claimed && loads[1].claimed);
  CHECK_EQUAL(loads[1].slot, ahead[1].slot);
  load_all(policy, loads);
  CHECK(is_resident(policy, 2, 9));
  const auto retired = policy.retire(2);
  CHECK_EQUAL(retired.size(), 2u);
  CHECK_EQUAL(policy.limbo().size(), 2u);
  policy.check_invariants();
  // Slots in limbo are nobody's: eight slots, four used, two in limbo.
  CHECK_EQUAL(to_vector(policy.read_ahead(4, up_to(8), TurnKind::kDecode, 2, false)).size(), 4u);
  policy.check_invariants();
  policy.free_limbo();
  policy.retire(4);
  policy.free_limbo();
  policy.check_invariants();
}

TEST(policy_reads_ahead_only_beyond_what_turns_need) {
  for (uint32_t keep = 1; keep <= 6; ++keep) {
    ResidencyPolicy policy(small_plan(6, 6), kExperts);
    load_all(policy, request(policy, 0, {0, 1, 2}));
    const auto ahead = policy.read_ahead(2, up_to(kExperts), TurnKind::kDecode, keep, false);
    // Not what the turn at hand wants either.
    CHECK_EQUAL(ahead.size(), size_t{std::min(6 - keep, 3u)});
    policy.check_invariants();
    request(policy, 2, up_to(1));
  }
}

TEST(policy_keeps_hot_slots_through_every_prompt) {
  const uint32_t experts = 400;
  ArenaPlan plan;
  plan.classes = {{.pages = 1, .slots = 300, .base_bytes = 0}};
  plan.class_of_layer = {0, 0};
  ResidencyPolicy policy(plan, experts);
  std::vector<int32_t> all = up_to(static_cast<int32_t>(experts));
  for (int turn = 0; turn < 50; ++turn) {  // 300 experts of two layers, the last ones the most recent
    const uint32_t layer = static_cast<uint32_t>(turn % 2);
    std::vector<int32_t> six(6);
    for (int i = 0; i < 6; ++i) six[static_cast<size_t>(i)] = turn / 2 * 6 + i;
    load_all(policy, request(policy, layer, six));
  }
  for (int prompt = 0; prompt < 4; ++prompt) {
    policy.begin_prompt();
    for (const uint32_t layer : {0u, 1u}) {
      policy.begin_turn(layer, all, TurnKind::kPrompt);
      while (policy.has_more()) load_all(policy, to_vector(policy.next_round(false).loads));
    }
    // A quarter of the class was given to the prompt, the oldest: 225 of 300 stay.
    for (int32_t expert = 39; expert < 150; ++expert) {
      CHECK(is_resident(policy, 0, expert) && is_resident(policy, 1, expert));
    }
  }
  // Decode takes what the prompt left before it takes its own.
  load_all(policy, request(policy, 0, {390, 391, 392}));
  CHECK(is_resident(policy, 0, 149) && is_resident(policy, 1, 39));
}

TEST(policy_fills_free_slots_by_rank) {
  ResidencyPolicy policy(small_plan(3, 2), kExperts);
  const std::vector<std::pair<uint32_t, uint32_t>> ranked = {
      {0, 5}, {2, 5}, {1, 1}, {0, 5}, {4, 7}, {0, 6}, {3, 2}, {1, 2}};
  const Loads loads = to_vector(policy.fill(ranked));
  policy.check_invariants();
  CHECK_EQUAL(loads.size(), 5u);
  CHECK_EQUAL(loads[2].expert, 1u);
  load_all(policy, loads);
  CHECK(is_resident(policy, 0, 5) && is_resident(policy, 2, 5) && is_resident(policy, 4, 7));
  CHECK(!is_resident(policy, 0, 6) && !is_resident(policy, 1, 2));
  load_all(policy, request(policy, 0, {1}));  // the last of its class leaves first
  CHECK(!is_resident(policy, 4, 7) && is_resident(policy, 2, 5));
}

TEST(policy_withdraws_slots_and_takes_them_back) {
  ResidencyPolicy policy(small_plan(8, 4), kExperts);
  load_all(policy, request(policy, 0, {0, 1, 2, 3, 4}));
  load_all(policy, request(policy, 2, {7}));
  CHECK_EQUAL(policy.withdraw(0, 4, 3).size(), 4u);  // two free ones, then the least recent
  policy.check_invariants();
  CHECK(!is_resident(policy, 0, 0) && !is_resident(policy, 0, 1));
  CHECK(is_resident(policy, 0, 2) && is_resident(policy, 2, 7));
  CHECK_EQUAL(policy.withdraw(0, 4, 3).size(), 1u);
  CHECK_EQUAL(policy.withdrawn(0), 5u);
  load_all(policy, request(policy, 4, {1, 2, 3}));
  policy.begin_prompt();
  policy.begin_turn(0, up_to(kExperts), TurnKind::kPrompt);
  while (policy.has_more()) load_all(policy, to_vector(policy.next_round(false).loads));
  CHECK_EQUAL(policy.restore(0, 2).size(), 2u);
  policy.check_invariants();
  CHECK_EQUAL(policy.restore(0, 9).size(), 3u);
  load_all(policy, request(policy, 4, up_to(8)));
  CHECK_EQUAL(policy.withdraw(1, 9, 0).size(), 3u);  // never the last
  policy.check_invariants();
}

TEST(policy_without_a_slot_says_what_would_do) {
  ResidencyPolicy policy(small_plan(3, 2), kExperts);
  CHECK_EQUAL(policy.read_ahead(0, up_to(3), TurnKind::kDecode, 0, false).size(), 3u);
  policy.begin_turn(2, std::vector<int32_t>{1}, TurnKind::kDecode);
  const Error error = error_of([&] { policy.next_round(false); });
  CHECK(error.kind() == ErrorKind::kPlan);
  const std::string text = error.what();
  CHECK(contains(text, "layer 2, class 0"));
  CHECK(contains(text, "got 3 slots, 3 of them being read, want 7"));
  CHECK(contains(text, std::to_string((7 * 2 + 2) * 16384)));
  policy.check_invariants();
  CHECK_EQUAL(request(policy, 0, up_to(3)).size(), 3u);
}

TEST(policy_refuses_misuse) {
  using Broken = std::logic_error;
  ResidencyPolicy policy(small_plan(3, 2), kExperts);
  const auto begin = [&](uint32_t layer, std::vector<int32_t> experts) {
    policy.begin_turn(layer, experts, TurnKind::kDecode);
  };
  MESSAGE_OF(Broken, begin(0, {2, 1}));
  MESSAGE_OF(Broken, begin(0, {1, 1}));
  MESSAGE_OF(Broken, begin(0, {12}));
  MESSAGE_OF(Broken, begin(0, {-1}));
  MESSAGE_OF(Broken, begin(5, {1}));
  MESSAGE_OF(Broken, policy.loaded(0));
  MESSAGE_OF(Broken, policy.failed(99));
  MESSAGE_OF(Broken, policy.retire(5));
  MESSAGE_OF(Broken, policy.read_ahead(0, std::vector<int32_t>{12}, TurnKind::kDecode, 0, false));
  const uint32_t slot = request(policy, 0, {1})[0].slot;
  MESSAGE_OF(Broken, begin(0, {1}));  // its read has not ended
  MESSAGE_OF(Broken, policy.begin_prompt());
  policy.loaded(slot);
  MESSAGE_OF(Broken, policy.loaded(slot));
  policy.check_invariants();
  ArenaPlan empty = small_plan(3, 2);
  empty.classes[1].slots = 0;
  MESSAGE_OF(Broken, ResidencyPolicy(empty, kExperts));
}
