// SPDX-License-Identifier: MIT
//
// ResidencyPolicy: which expert is in which slot, and which one leaves when another must come.
//
// Pure: it knows neither threads, files nor memory, so its decisions depend on the order of its
// calls and on nothing else; when a read ends is not among them. The engine, the simulator and the
// tests run this same code.
//
// A turn names the experts of one layer, ascending. It begins by touching those that are there, and
// then comes in rounds of ascending experts, one where all of them fit at once. In a round every
// expert that is ready is touched, one that is being read ahead is claimed, and any other gets a slot:
// a free one (the last that became free; at first the lowest), else that of a victim. While a round is
// computed the next may be read: the slots of both are pinned.
//
// Used slots of a class stand in two lists by recency. Hot ones were last wanted by a decode turn,
// cold ones by a prompt. The victim is the oldest cold one that is not pinned, then the oldest hot one;
// a prompt takes hot ones only when there is no other way on, and begin_prompt() sets a few aside
// for it. So a prompt streams through a few slots, and decode finds the others as it left them.
//
// Read-ahead puts experts of later layers into slots that are `pre` until their turn claims them. Those
// it does not claim are retired to limbo, where a slot stays until its read has surely ended.
//
// Invariants (check_invariants): a slot is free, loading, pre, ready, in limbo or withdrawn; an expert has at most
// one slot, a slot at most one expert, and where-table, slot table and residency map agree; only ready
// slots are in the residency map; loading and pinned slots are never victims, nor are pre and limbo
// ones; pinned slots are the most recent of their list. Every decision is O(1) a slot.
// Threads: none of its own; one caller at a time.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "stream/arena_plan.h"

namespace esker {

enum class TurnKind : uint8_t { kDecode, kPrompt };

class ResidencyPolicy {
 public:
  // A read that a round needs before its experts may be computed, or a read-ahead.
  struct Load {
    uint32_t expert = 0;
    uint32_t slot = 0;     // counted over all classes
    bool evicts = false;   // the slot held another expert
    bool claimed = false;  // it was read ahead: its read is under way or has ended
  };
  struct Round {
    std::span<const int32_t> experts;  // ascending
    std::span<const Load> loads;       // of those that are not ready yet, ascending
  };

  // starvation: see note_displaced; 0: no limit.
  // Throws std::logic_error if the plan has no slot in a class or names a class it has not.
  ResidencyPolicy(const ArenaPlan& plan, uint32_t n_expert, uint32_t starvation = 0);

  uint32_t n_layer() const { return static_cast<uint32_t>(class_of_layer_.size()); }
  uint32_t n_expert() const { return n_expert_; }
  // Slots in the layer's class.
  uint32_t slot_count(uint32_t layer) const;

  // Before the turns of a prompt: the oldest hot slots become cold until enough are.
  void begin_prompt();

  // Begins a turn; `experts`: ascending, no duplicates. Every load of the turn before must have ended
  // (loaded or failed).
  void begin_turn(uint32_t layer, std::span<const int32_t> experts, TurnKind kind);
  // Whether experts of the turn are in no round yet.
  bool has_more() const { return next_ < experts_.size(); }
  // The turn's next round, valid until the next call. `overlapped`: the round before is still being
  // computed, so its slots stay pinned; an empty round then says that nothing can be read meanwhile.
  // Throws Error(kPlan) if a round that is not overlapped finds no slot: the plan prevents it.
  Round next_round(bool overlapped);

  // The read of a loading slot has ended: its expert is resident from here on, or the slot is free.
  void loaded(uint32_t slot);
  void failed(uint32_t slot);

  // Reads ahead for a later layer: each of `candidates` (in order, the best first) that has no slot
  // gets one, without evicting what is pinned, as long as `keep` slots of the class and, in a prompt,
  // half of what it may use remain for turns. `touch`: candidates that are ready become recent.
  // Valid until the next call.
  std::span<const Load> read_ahead(uint32_t layer, std::span<const int32_t> candidates, TurnKind kind,
                                   uint32_t keep, bool touch);
  // The layer's turn is over: its read-aheads that no turn claimed go to limbo. Returns their slots.
  std::span<const uint32_t> retire(uint32_t layer);
  // Slots in limbo; once their reads have ended they are set free, in order of slots.
  std::span<const uint32_t> limbo() const { return limbo_; }
  void free_limbo();

  // Fills free slots with the experts of a profile, the most picked first: (layer, expert) pairs.
  // They count as hot, the first as the most recent. Loads in the order of the pairs.
  std::span<const Load> fill(std::span<const std::pair<uint32_t, uint32_t>> ranked);

  // Takes up to n slots of a class out of use, free ones first, then victims, as long as `keep` slots
  // remain for turns; and puts them back. Between turns. Returns the slots, valid until the next call.
  std::span<const uint32_t> withdraw(uint32_t class_index, uint32_t n, uint32_t keep);
  std::span<const uint32_t> restore(uint32_t class_index, uint32_t n);
  uint32_t n_class() const { return static_cast<uint32_t>(classes_.size()); }
  uint64_t slot_bytes(uint32_t class_index) const { return classes_[class_index].slot_bytes; }
  uint32_t withdrawn(uint32_t class_index) const {
    return static_cast<uint32_t>(classes_[class_index].withdrawn.size());
  }

  // With a cache prior, of one token: what it picked, and what it would have picked without. An expert
  // that was displaced `starvation` times in a row is owed: it counts as favoured until it is picked.
  // Returns how many were displaced.
  uint32_t note_displaced(uint32_t layer, std::span<const int32_t> picks, std::span<const int32_t> wanted);
  // [n_layer, n_expert] 1 for what the cache prior favours: experts that are ready, or owed, when the
  // layer's row was published. Read-aheads do not count: when they end is the disk's affair.
  std::span<const uint8_t> favoured() const { return favoured_; }
  void publish_favoured(uint32_t layer);

  // [n_expert] slot code within the layer's class of every expert that may be computed, or -1.
  std::span<const int32_t> residency(uint32_t layer) const;
  // Whose expert a slot holds, or is to hold.
  uint32_t layer_of(uint32_t slot) const { return slots_[slot].layer; }
  // Where a slot lies, in bytes from the start of the arena.
  uint64_t slot_offset_bytes(uint32_t slot) const;

  // Throws std::logic_error saying which invariant is broken and where.
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  enum class SlotState : uint8_t { kFree, kLoading, kPre, kReady, kLimbo, kWithdrawn };

  struct Slot {
    uint32_t older = kNone;    // neighbours in a list; `older` also links free slots
    uint32_t newer = kNone;
    uint32_t layer = kNone;    // owner, kNone when free or in limbo
    uint32_t expert = kNone;
    uint32_t class_index = 0;
    SlotState state = SlotState::kFree;
    bool hot = false;          // which list
    uint64_t stamp = 0;        // the round that wanted it last
  };

  struct Recency {
    uint32_t newest = kNone;
    uint32_t oldest = kNone;
    uint32_t count = 0;
  };

  struct Class {
    uint32_t first_slot = 0;
    uint32_t slots = 0;
    uint64_t base_bytes = 0;
    uint64_t slot_bytes = 0;
    Recency hot, cold;         // loading and ready slots
    uint32_t free = kNone;
    uint32_t free_count = 0;
    uint32_t pre_count = 0;
    uint32_t limbo_count = 0;
    std::vector<uint32_t> withdrawn;
    // Slots that are in use at all.
    uint32_t usable() const { return slots - static_cast<uint32_t>(withdrawn.size()); }
  };

  size_t cell(uint32_t layer, uint32_t expert) const {
    return static_cast<size_t>(layer) * n_expert_ + expert;
  }
  Class& class_of(uint32_t layer) { return classes_[class_of_layer_[layer]]; }
  Recency& list_of(Class& c, const Slot& slot) { return slot.hot ? c.hot : c.cold; }
  bool is_pinned(uint32_t slot) const { return slots_[slot].stamp >= pinned_from_; }
  void check_experts(uint32_t layer, std::span<const int32_t> experts) const;
  uint32_t count_before(const Recency& list, uint64_t stamp, uint32_t at_most) const;
  uint32_t available(const Class& c, bool overlapped, uint32_t at_most) const;
  uint32_t take_slot(Class& c, bool may_take_hot, bool* evicts);
  void give(uint32_t slot, uint32_t layer, uint32_t expert, SlotState state);
  void push_free(uint32_t slot);
  void push_newest(uint32_t slot);
  void unlink(uint32_t slot);
  void touch(uint32_t slot, TurnKind kind);
  [[noreturn]] void raise_no_slot(uint32_t layer) const;
  void check_list(const Class& c, const Recency& list, bool hot) const;

  uint32_t n_expert_;
  std::vector<uint32_t> class_of_layer_;
  std::vector<Class> classes_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> where_;      // [n_layer, n_expert] slot, loading and pre included, or kNone
  std::vector<int32_t> residency_;   // [n_layer, n_expert] slot code of ready ones, or -1
  std::vector<uint8_t> favoured_;    // [n_layer, n_expert]
  std::vector<uint32_t> displaced_;  // [n_layer, n_expert] times in a row
  uint32_t starvation_;
  std::vector<std::vector<uint32_t>> pres_;  // [n_layer] slots, in the order they were taken
  std::vector<uint32_t> limbo_;      // ascending
  std::vector<uint32_t> retired_;
  std::vector<Load> loads_;
  // The turn at hand.
  uint32_t layer_ = 0;
  TurnKind kind_ = TurnKind::kDecode;
  std::vector<int32_t> experts_;
  size_t next_ = 0;                  // the first expert in no round yet
  uint64_t turn_stamp_ = 0;          // of what was ready when the turn began
  uint64_t stamp_ = 0;               // of the round at hand
  uint64_t pinned_from_ = 1;         // slots with this stamp or a later one are pinned
  uint32_t loading_ = 0;             // slots
};

}  // namespace esker
