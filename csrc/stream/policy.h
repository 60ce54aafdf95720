// SPDX-License-Identifier: MIT
//
// ResidencyPolicy: which expert is in which slot, and which one leaves when another must come.
//
// Pure: it knows neither threads, files nor memory, so its decisions depend on the order of its
// calls and on nothing else. The engine, the simulator and the tests run this same code.
//
// A turn is one request: the experts of one layer that must be resident together, ascending.
//   1. Every wanted expert that is resident is touched, in ascending order: stamped with the turn
//      and moved to the recent end of its class.
//   2. Then, in ascending order, every other one gets a slot: a free one (the last that became
//      free; at first the lowest), else that of the least recently used expert of the class. Its
//      slot is loading from here on, stamped, and at the recent end.
// So a turn never evicts what it wants itself, and recency does not depend on when a read ends.
// Every decision is O(1): a class keeps its used slots in one list by recency and its free slots in
// another, linked by index.
//
// Invariants (check_invariants): a slot is free, loading or ready; an expert has at most one slot,
// a slot at most one expert, and where-table, slot table and residency map agree; a loading slot
// carries the current stamp, is never a victim and is not in the residency map; stamps never grow
// from the recent end of a list to its other end.
// Threads: none of its own; one caller at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stream/arena_plan.h"

namespace esker {

class ResidencyPolicy {
 public:
  // A read that the turn needs before its layer may run.
  struct Load {
    uint32_t expert = 0;
    uint32_t slot = 0;     // counted over all classes
    bool evicts = false;   // the slot held another expert
  };

  // Throws std::logic_error if the plan has no slot in a class or names a class it has not.
  ResidencyPolicy(const ArenaPlan& plan, uint32_t n_expert);

  uint32_t n_layer() const { return static_cast<uint32_t>(class_of_layer_.size()); }
  uint32_t n_expert() const { return n_expert_; }
  // Slots in the layer's class: the most experts that one request can name.
  uint32_t slot_count(uint32_t layer) const;

  // Begins a turn. `experts`: ascending, no duplicates. Returns the loads in ascending order, valid
  // until the next request. Every load of the turn before must have ended (loaded or failed).
  // Throws Error(kPlan), with nothing changed, if the class has too few slots.
  std::span<const Load> request(uint32_t layer, std::span<const int32_t> experts);

  // The read of a loading slot has ended: its expert is resident from here on, or the slot is free.
  void loaded(uint32_t slot);
  void failed(uint32_t slot);

  // [n_expert] slot code within the layer's class of every expert that may be computed, or -1.
  std::span<const int32_t> residency(uint32_t layer) const;
  // Where a slot lies, in bytes from the start of the arena.
  uint64_t slot_offset_bytes(uint32_t slot) const;

  // Throws std::logic_error saying which invariant is broken and where.
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  enum class SlotState : uint8_t { kFree, kLoading, kReady };

  struct Slot {
    uint32_t older = kNone;    // neighbours in the list of used slots; `older` also links free ones
    uint32_t newer = kNone;
    uint32_t layer = kNone;    // owner, kNone when free
    uint32_t expert = kNone;
    uint32_t class_index = 0;
    SlotState state = SlotState::kFree;
    uint64_t stamp = 0;        // the turn that wanted it last
  };

  struct Class {
    uint32_t first_slot = 0;
    uint32_t slots = 0;
    uint64_t base_bytes = 0;
    uint64_t slot_bytes = 0;
    uint32_t newest = kNone;   // used slots by recency
    uint32_t oldest = kNone;
    uint32_t free = kNone;
  };

  size_t cell(uint32_t layer, uint32_t expert) const {
    return static_cast<size_t>(layer) * n_expert_ + expert;
  }
  uint32_t take_slot(Class& c, bool* evicts);
  void push_newest(uint32_t slot);
  void unlink(uint32_t slot);
  void touch(uint32_t slot);
  [[noreturn]] void raise_no_slot(uint32_t layer, size_t wanted) const;
  void check_class(const Class& c) const;

  uint32_t n_expert_;
  std::vector<uint32_t> class_of_layer_;
  std::vector<Class> classes_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> where_;      // [n_layer, n_expert] slot, loading ones included, or kNone
  std::vector<int32_t> residency_;   // [n_layer, n_expert] slot code of ready ones, or -1
  std::vector<Load> loads_;
  uint64_t stamp_ = 0;
  uint32_t loading_ = 0;             // slots
};

}  // namespace esker
