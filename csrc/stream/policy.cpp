// SPDX-License-Identifier: MIT
#include "stream/policy.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "base/units.h"

namespace esker {
namespace {

// Of a class, what begin_prompt sets aside: a quarter, between these. 64 experts of a round are read
// in about the time in which 64 others are computed; smaller classes have nothing to keep hot.
constexpr uint32_t kPromptSlotsMin = 32, kPromptSlotsMax = 128;

void require(bool ok, const char* what, uint64_t where) {
  if (!ok) throw std::logic_error("residency: " + std::string(what) + " " + std::to_string(where));
}

uint32_t prompt_slots(uint32_t slots) {
  return std::min(slots, std::clamp(slots / 4, kPromptSlotsMin, kPromptSlotsMax));
}

}  // namespace

ResidencyPolicy::ResidencyPolicy(const ArenaPlan& plan, uint32_t n_expert, uint32_t starvation)
    : n_expert_(n_expert),
      class_of_layer_(plan.class_of_layer),
      starvation_(starvation),
      pres_(plan.class_of_layer.size()) {
  require(plan.slot_count() <= INT32_MAX, "too many slots:", plan.slot_count());
  for (const SlotClass& shape : plan.classes) {
    const uint32_t index = static_cast<uint32_t>(classes_.size());
    require(shape.slots > 0, "no slot in class", index);
    Class& c = classes_.emplace_back();
    c.first_slot = static_cast<uint32_t>(slots_.size());
    c.slots = shape.slots;
    c.base_bytes = shape.base_bytes;
    c.slot_bytes = shape.slot_bytes();
    slots_.resize(slots_.size() + c.slots);
    for (uint32_t i = c.slots; i-- > 0;) {
      slots_[c.first_slot + i].class_index = index;
      push_free(c.first_slot + i);
    }
  }
  for (const uint32_t index : class_of_layer_) {
    require(index < classes_.size(), "no such class:", index);
  }
  where_.assign(class_of_layer_.size() * n_expert_, kNone);
  residency_.assign(class_of_layer_.size() * n_expert_, -1);
  favoured_.assign(residency_.size(), 0);
  displaced_.assign(residency_.size(), 0);
}

uint32_t ResidencyPolicy::slot_count(uint32_t layer) const {
  return classes_[class_of_layer_[layer]].slots;
}

void ResidencyPolicy::begin_prompt() {
  require(loading_ == 0, "a prompt began before all reads had ended; loading:", loading_);
  pinned_from_ = stamp_ + 1;  // nothing is, between turns
  for (Class& c : classes_) {
    const uint32_t hot_max = c.usable() - prompt_slots(c.usable());
    while (c.hot.count > hot_max) {
      const uint32_t slot = c.hot.oldest;
      unlink(slot);
      slots_[slot].hot = false;
      push_newest(slot);
    }
  }
}

void ResidencyPolicy::check_experts(uint32_t layer, std::span<const int32_t> experts) const {
  require(layer < n_layer(), "no such layer:", layer);
  int64_t before = -1;
  for (const int32_t expert : experts) {
    require(expert > before && expert < static_cast<int64_t>(n_expert_),
            "experts out of order or range, layer", layer);
    before = expert;
  }
}

void ResidencyPolicy::begin_turn(uint32_t layer, std::span<const int32_t> experts, TurnKind kind) {
  require(loading_ == 0, "a turn began before all reads had ended; loading:", loading_);
  check_experts(layer, experts);
  layer_ = layer;
  kind_ = kind;
  experts_.assign(experts.begin(), experts.end());
  next_ = 0;
  turn_stamp_ = ++stamp_;
  pinned_from_ = stamp_ + 1;
  // The last first: what later rounds want leaves before what the next one wants.
  for (size_t i = experts_.size(); i-- > 0;) {
    const uint32_t slot = where_[cell(layer, static_cast<uint32_t>(experts_[i]))];
    if (slot != kNone && slots_[slot].state == SlotState::kReady) touch(slot, kind);
  }
}

ResidencyPolicy::Round ResidencyPolicy::next_round(bool overlapped) {
  require(overlapped || loading_ == 0, "a round began before all reads had ended; loading:", loading_);
  loads_.clear();
  const size_t first = next_;
  if (!has_more()) return {};
  Class& c = class_of(layer_);
  const uint64_t stamp = stamp_ + 1;
  pinned_from_ = overlapped ? stamp_ : stamp;
  uint32_t missing = 0;
  for (size_t i = next_; i < experts_.size(); ++i) {
    missing += where_[cell(layer_, static_cast<uint32_t>(experts_[i]))] == kNone;
  }
  const uint32_t usable = available(c, overlapped, missing);
  if (overlapped && usable == 0 && missing > 0) return {};
  // What does not fit at once comes in rounds of half of what a turn may use, so that one round can be
  // read while another is computed.
  const uint32_t others = c.pre_count + c.limbo_count + (kind_ == TurnKind::kPrompt ? c.hot.count : 0);
  const uint32_t half = std::max((c.usable() - std::min(c.usable(), others)) / 2, 1u);
  const uint32_t limit = usable >= missing ? missing : std::min(usable, half);

  stamp_ = stamp;
  for (; next_ < experts_.size(); ++next_) {
    const uint32_t expert = static_cast<uint32_t>(experts_[next_]);
    const uint32_t at = where_[cell(layer_, expert)];
    if (at != kNone && slots_[at].state == SlotState::kReady) {
      touch(at, kind_);
      continue;
    }
    Load load{.expert = expert, .slot = at, .evicts = false, .claimed = at != kNone};
    if (load.claimed) {
      std::erase(pres_[layer_], at);
      --c.pre_count;
    } else {
      if (loads_.size() >= limit && next_ > first) break;
      load.slot = take_slot(c, !overlapped || kind_ == TurnKind::kDecode, &load.evicts);
      if (load.slot == kNone) {
        if (next_ > first) break;
        raise_no_slot(layer_);
      }
    }
    give(load.slot, layer_, expert, SlotState::kLoading);
    slots_[load.slot].hot = kind_ == TurnKind::kDecode;
    slots_[load.slot].stamp = stamp_;
    push_newest(load.slot);
    ++loading_;
    loads_.push_back(load);
  }
  return {.experts = std::span<const int32_t>(experts_).subspan(first, next_ - first),
          .loads = loads_};
}

// Slots of the list with a stamp before this one, counted up to at_most: the others are more recent.
uint32_t ResidencyPolicy::count_before(const Recency& list, uint64_t stamp, uint32_t at_most) const {
  uint32_t n = 0;
  for (uint32_t slot = list.oldest; n < at_most && slot != kNone && slots_[slot].stamp < stamp; ++n) {
    slot = slots_[slot].newer;
  }
  return n;
}

// Slots that a round may take, counted up to at_most. Only when there is nothing else, and nothing to
// wait for: what the turn itself wants later and, in a prompt, hot slots.
uint32_t ResidencyPolicy::available(const Class& c, bool overlapped, uint32_t at_most) const {
  const auto count = [&](uint64_t stamp, bool with_hot) {
    uint32_t n = std::min(c.free_count, at_most);
    n += count_before(c.cold, stamp, at_most - n);
    if (with_hot) n += count_before(c.hot, stamp, at_most - n);
    return n;
  };
  const bool decode = kind_ == TurnKind::kDecode;
  uint32_t n = count(turn_stamp_, decode);
  if (n == 0 && !overlapped) n = count(pinned_from_, decode);
  if (n == 0 && !overlapped) n = count(pinned_from_, true);
  return n;
}

// A slot in no list and without an owner; kNone if there is none.
uint32_t ResidencyPolicy::take_slot(Class& c, bool may_take_hot, bool* evicts) {
  *evicts = c.free == kNone;
  if (!*evicts) {
    const uint32_t index = c.free;
    c.free = slots_[index].older;
    slots_[index].older = kNone;
    --c.free_count;
    return index;
  }
  uint32_t index = c.cold.oldest;
  if (index == kNone || is_pinned(index)) {
    index = may_take_hot ? c.hot.oldest : kNone;
  }
  if (index == kNone || is_pinned(index)) return kNone;
  Slot& slot = slots_[index];
  require(slot.state == SlotState::kReady, "victim is not ready: slot", index);
  unlink(index);
  where_[cell(slot.layer, slot.expert)] = kNone;
  residency_[cell(slot.layer, slot.expert)] = -1;
  return index;
}

void ResidencyPolicy::give(uint32_t index, uint32_t layer, uint32_t expert, SlotState state) {
  Slot& slot = slots_[index];
  slot.layer = layer;
  slot.expert = expert;
  slot.state = state;
  where_[cell(layer, expert)] = index;
}

void ResidencyPolicy::loaded(uint32_t index) {
  require(index < slots_.size(), "no such slot:", index);
  Slot& slot = slots_[index];
  require(slot.state == SlotState::kLoading, "not loading: slot", index);
  slot.state = SlotState::kReady;
  --loading_;
  residency_[cell(slot.layer, slot.expert)] =
      static_cast<int32_t>(index - classes_[slot.class_index].first_slot);
}

void ResidencyPolicy::failed(uint32_t index) {
  require(index < slots_.size(), "no such slot:", index);
  Slot& slot = slots_[index];
  require(slot.state == SlotState::kLoading, "not loading: slot", index);
  unlink(index);
  where_[cell(slot.layer, slot.expert)] = kNone;
  --loading_;
  push_free(index);
}

std::span<const ResidencyPolicy::Load> ResidencyPolicy::read_ahead(
    uint32_t layer, std::span<const int32_t> candidates, TurnKind kind, uint32_t keep, bool touch_ready) {
  require(layer < n_layer(), "no such layer:", layer);
  Class& c = class_of(layer);
  loads_.clear();
  uint32_t reserved = keep;
  if (kind == TurnKind::kPrompt) {
    reserved = std::max(reserved, c.hot.count + (c.usable() - c.hot.count + 1) / 2);
  }
  for (const int32_t candidate : candidates) {
    require(candidate >= 0 && candidate < static_cast<int64_t>(n_expert_), "no such expert, layer", layer);
    const uint32_t expert = static_cast<uint32_t>(candidate);
    const uint32_t at = where_[cell(layer, expert)];
    if (at != kNone) {
      if (touch_ready && slots_[at].state == SlotState::kReady) touch(at, kind);
      continue;
    }
    if (c.pre_count + c.limbo_count + reserved >= c.usable()) break;
    Load load{.expert = expert, .slot = kNone, .evicts = false, .claimed = false};
    load.slot = take_slot(c, kind == TurnKind::kDecode, &load.evicts);
    if (load.slot == kNone) break;
    give(load.slot, layer, expert, SlotState::kPre);
    pres_[layer].push_back(load.slot);
    ++c.pre_count;
    loads_.push_back(load);
  }
  return loads_;
}

std::span<const uint32_t> ResidencyPolicy::retire(uint32_t layer) {
  require(layer < n_layer(), "no such layer:", layer);
  Class& c = class_of(layer);
  retired_.swap(pres_[layer]);
  pres_[layer].clear();
  for (const uint32_t index : retired_) {
    Slot& slot = slots_[index];
    where_[cell(slot.layer, slot.expert)] = kNone;
    slot.layer = slot.expert = kNone;
    slot.state = SlotState::kLimbo;
    --c.pre_count;
    ++c.limbo_count;
    limbo_.insert(std::ranges::upper_bound(limbo_, index), index);
  }
  return retired_;
}

void ResidencyPolicy::free_limbo() {
  for (size_t i = limbo_.size(); i-- > 0;) {  // the lowest is taken first
    --classes_[slots_[limbo_[i]].class_index].limbo_count;
    push_free(limbo_[i]);
  }
  limbo_.clear();
}

std::span<const ResidencyPolicy::Load> ResidencyPolicy::fill(
    std::span<const std::pair<uint32_t, uint32_t>> ranked) {
  require(loading_ == 0, "a fill began before all reads had ended; loading:", loading_);
  loads_.clear();
  for (const auto& [layer, expert] : ranked) {
    require(layer < n_layer() && expert < n_expert_, "no such expert, layer", layer);
    Class& c = class_of(layer);
    if (c.free == kNone || where_[cell(layer, expert)] != kNone) continue;
    Load load{.expert = expert, .slot = kNone, .evicts = false, .claimed = false};
    load.slot = take_slot(c, false, &load.evicts);
    give(load.slot, layer, expert, SlotState::kLoading);
    slots_[load.slot].hot = true;
    slots_[load.slot].stamp = 0;
    ++loading_;
    loads_.push_back(load);
  }
  for (size_t i = loads_.size(); i-- > 0;) push_newest(loads_[i].slot);
  return loads_;
}

std::span<const uint32_t> ResidencyPolicy::withdraw(uint32_t index, uint32_t n, uint32_t keep) {
  require(loading_ == 0, "slots were withdrawn before all reads had ended; loading:", loading_);
  pinned_from_ = stamp_ + 1;  // nothing is, between turns
  Class& c = classes_.at(index);
  retired_.clear();
  while (retired_.size() < n && c.usable() > c.pre_count + c.limbo_count + std::max(keep, 1u)) {
    bool evicts = false;
    const uint32_t slot = take_slot(c, true, &evicts);
    if (slot == kNone) break;
    slots_[slot].layer = slots_[slot].expert = kNone;
    slots_[slot].state = SlotState::kWithdrawn;
    c.withdrawn.push_back(slot);
    retired_.push_back(slot);
  }
  return retired_;
}

std::span<const uint32_t> ResidencyPolicy::restore(uint32_t index, uint32_t n) {
  Class& c = classes_.at(index);
  retired_.clear();
  for (; retired_.size() < n && !c.withdrawn.empty(); c.withdrawn.pop_back()) {
    push_free(c.withdrawn.back());
    retired_.push_back(c.withdrawn.back());
  }
  return retired_;
}

uint32_t ResidencyPolicy::note_displaced(uint32_t layer, std::span<const int32_t> picks,
                                         std::span<const int32_t> wanted) {
  uint32_t displaced = 0;
  for (const int32_t expert : wanted) {
    if (std::ranges::find(picks, expert) != picks.end()) continue;
    ++displaced;
    ++displaced_[cell(layer, static_cast<uint32_t>(expert))];
  }
  for (const int32_t expert : picks) displaced_[cell(layer, static_cast<uint32_t>(expert))] = 0;
  return displaced;
}

void ResidencyPolicy::publish_favoured(uint32_t layer) {
  for (uint32_t expert = 0; expert < n_expert_; ++expert) {
    const size_t at = cell(layer, expert);
    const bool owed = starvation_ != 0 && displaced_[at] >= starvation_;
    favoured_[at] = residency_[at] >= 0 || owed;
  }
}

std::span<const int32_t> ResidencyPolicy::residency(uint32_t layer) const {
  return std::span(residency_).subspan(cell(layer, 0), n_expert_);
}

uint64_t ResidencyPolicy::slot_offset_bytes(uint32_t index) const {
  const Class& c = classes_[slots_[index].class_index];
  return c.base_bytes + (index - c.first_slot) * c.slot_bytes;
}

// What a prompt wants stays hot if it was.
void ResidencyPolicy::touch(uint32_t index, TurnKind kind) {
  unlink(index);
  if (kind == TurnKind::kDecode) slots_[index].hot = true;
  slots_[index].stamp = stamp_;
  push_newest(index);
}

void ResidencyPolicy::push_free(uint32_t index) {
  Slot& slot = slots_[index];
  Class& c = classes_[slot.class_index];
  slot.layer = slot.expert = kNone;
  slot.state = SlotState::kFree;
  slot.older = c.free;
  c.free = index;
  ++c.free_count;
}

void ResidencyPolicy::push_newest(uint32_t index) {
  Slot& slot = slots_[index];
  Recency& list = list_of(classes_[slot.class_index], slot);
  slot.older = list.newest;
  slot.newer = kNone;
  (list.newest == kNone ? list.oldest : slots_[list.newest].newer) = index;
  list.newest = index;
  ++list.count;
}

void ResidencyPolicy::unlink(uint32_t index) {
  Slot& slot = slots_[index];
  Recency& list = list_of(classes_[slot.class_index], slot);
  (slot.newer == kNone ? list.newest : slots_[slot.newer].older) = slot.older;
  (slot.older == kNone ? list.oldest : slots_[slot.older].newer) = slot.newer;
  slot.older = slot.newer = kNone;
  --list.count;
}

void ResidencyPolicy::raise_no_slot(uint32_t layer) const {
  const uint32_t index = class_of_layer_[layer];
  const Class& c = classes_[index];
  const uint32_t taken = c.pre_count + c.limbo_count + loading_;
  uint64_t arena_bytes = 0;
  for (const Class& each : classes_) {
    arena_bytes += (each.slots + (&each == &c ? taken + 1 : 0)) * each.slot_bytes;
  }
  raise(ErrorKind::kPlan, "stream",
        {.what = "the layer's slot class has no slot for an expert",
         .got = std::to_string(c.slots) + " slots, " + std::to_string(taken) + " of them being read",
         .want = std::to_string(c.slots + taken + 1),
         .where = "layer " + std::to_string(layer) + ", class " + std::to_string(index),
         .hint = "an arena of " + std::to_string(arena_bytes) + " bytes would do"});
}

void ResidencyPolicy::check_invariants() const {
  uint64_t owned = 0, loading = 0, resident = 0, pre = 0, limbo = 0;
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    loading += slot.state == SlotState::kLoading;
    pre += slot.state == SlotState::kPre;
    limbo += slot.state == SlotState::kLimbo;
    if (slot.state == SlotState::kFree || slot.state == SlotState::kLimbo ||
        slot.state == SlotState::kWithdrawn) {
      require(slot.layer == kNone && slot.expert == kNone, "ownerless slot has an owner:", index);
      continue;
    }
    ++owned;
    require(slot.layer < n_layer() && slot.expert < n_expert_, "owner out of range: slot", index);
    require(class_of_layer_[slot.layer] == slot.class_index, "owner of another class: slot", index);
    require(where_[cell(slot.layer, slot.expert)] == index, "where-table disagrees: slot", index);
    const bool ready = slot.state == SlotState::kReady;
    const int32_t code = static_cast<int32_t>(index - classes_[slot.class_index].first_slot);
    require(residency_[cell(slot.layer, slot.expert)] == (ready ? code : -1),
            "residency map disagrees: slot", index);
    resident += ready;
  }
  const auto count = [](const auto& table, auto none) {
    return static_cast<uint64_t>(std::ranges::count_if(table, [&](auto v) { return v != none; }));
  };
  require(count(where_, kNone) == owned, "where-table names slots that are not owned; owned:", owned);
  require(count(residency_, -1) == resident, "residency map names slots that are not ready:", resident);
  require(loading == loading_, "wrong count of loading slots:", loading_);
  uint64_t listed = 0;
  for (size_t layer = 0; layer < pres_.size(); ++layer) {
    listed += pres_[layer].size();
    for (const uint32_t index : pres_[layer]) {
      require(slots_[index].state == SlotState::kPre && slots_[index].layer == layer,
              "not read ahead for its layer: slot", index);
    }
  }
  require(listed == pre, "read-aheads in no list; listed:", listed);
  require(limbo_.size() == limbo && std::ranges::is_sorted(limbo_), "wrong limbo list:", limbo);
  for (const uint32_t index : limbo_) {
    require(slots_[index].state == SlotState::kLimbo, "listed but not in limbo: slot", index);
  }
  for (const Class& c : classes_) {
    check_list(c, c.hot, true);
    check_list(c, c.cold, false);
    uint32_t free = 0;
    for (uint32_t index = c.free; index != kNone; index = slots_[index].older, ++free) {
      require(free < c.slots && index - c.first_slot < c.slots, "free list leaves its class at slot", index);
      require(slots_[index].state == SlotState::kFree, "used, but in the free list: slot", index);
    }
    require(free == c.free_count, "wrong count of free slots:", c.free_count);
    for (const uint32_t index : c.withdrawn) {
      require(slots_[index].state == SlotState::kWithdrawn, "in use, but withdrawn: slot", index);
    }
    require(c.hot.count + c.cold.count + free + c.pre_count + c.limbo_count == c.usable(),
            "slots in no list; slots:", c.slots);
  }
}

void ResidencyPolicy::check_list(const Class& c, const Recency& list, bool hot) const {
  uint32_t newer = kNone, seen = 0;
  bool pinned = true;
  for (uint32_t index = list.newest; index != kNone; index = slots_[index].older, ++seen) {
    require(seen < c.slots && index - c.first_slot < c.slots, "list leaves its class at slot", index);
    const Slot& slot = slots_[index];
    require(slot.state == SlotState::kReady || slot.state == SlotState::kLoading,
            "listed, but neither ready nor loading: slot", index);
    require(slot.hot == hot, "in the other list: slot", index);
    require(slot.newer == newer, "list is torn at slot", index);
    require(pinned || !is_pinned(index), "pinned behind one that is not: slot", index);
    require(slot.state != SlotState::kLoading || is_pinned(index) || slot.stamp == 0,
            "loading, but not pinned: slot", index);
    pinned = is_pinned(index);
    newer = index;
  }
  require(list.oldest == newer, "wrong oldest slot:", list.oldest);
  require(list.count == seen, "wrong length of a list:", list.count);
}

}  // namespace esker
