// SPDX-License-Identifier: MIT
#include "stream/policy.h"

#include <stdexcept>
#include <string>

#include "base/error.h"
#include "base/units.h"

namespace esker {
namespace {

void require(bool ok, const char* what, uint64_t where) {
  if (!ok) throw std::logic_error("residency: " + std::string(what) + " " + std::to_string(where));
}

}  // namespace

ResidencyPolicy::ResidencyPolicy(const ArenaPlan& plan, uint32_t n_expert)
    : n_expert_(n_expert), class_of_layer_(plan.class_of_layer) {
  require(plan.slot_count() <= INT32_MAX, "too many slots:", plan.slot_count());
  for (const SlotClass& shape : plan.classes) {
    const uint32_t index = static_cast<uint32_t>(classes_.size());
    require(shape.slots > 0, "no slot in class", index);
    Class& c = classes_.emplace_back();
    c.first_slot = static_cast<uint32_t>(slots_.size());
    c.slots = shape.slots;
    c.base_bytes = shape.base_bytes;
    c.slot_bytes = shape.slot_bytes();
    c.free = c.first_slot;
    for (uint32_t i = 0; i < c.slots; ++i) {
      Slot& slot = slots_.emplace_back();
      slot.class_index = index;
      slot.older = i + 1 < c.slots ? c.first_slot + i + 1 : kNone;
    }
  }
  for (const uint32_t index : class_of_layer_) {
    require(index < classes_.size(), "no such class:", index);
  }
  where_.assign(class_of_layer_.size() * n_expert_, kNone);
  residency_.assign(class_of_layer_.size() * n_expert_, -1);
}

uint32_t ResidencyPolicy::slot_count(uint32_t layer) const {
  return classes_[class_of_layer_[layer]].slots;
}

std::span<const ResidencyPolicy::Load> ResidencyPolicy::request(uint32_t layer,
                                                                std::span<const int32_t> experts) {
  require(loading_ == 0, "a turn began before all reads had ended; loading:", loading_);
  require(layer < n_layer(), "no such layer:", layer);
  int64_t before = -1;
  for (const int32_t expert : experts) {
    require(expert > before && expert < static_cast<int64_t>(n_expert_),
            "experts out of order or range, layer", layer);
    before = expert;
  }
  Class& c = classes_[class_of_layer_[layer]];
  if (experts.size() > c.slots) raise_no_slot(layer, experts.size());
  loads_.clear();
  loads_.reserve(experts.size());

  ++stamp_;
  for (const int32_t expert : experts) {
    const uint32_t slot = where_[cell(layer, static_cast<uint32_t>(expert))];
    if (slot != kNone) touch(slot);
  }
  for (const int32_t wanted : experts) {
    const uint32_t expert = static_cast<uint32_t>(wanted);
    if (where_[cell(layer, expert)] != kNone) continue;
    Load load{.expert = expert, .slot = kNone, .evicts = false};
    load.slot = take_slot(c, &load.evicts);
    Slot& slot = slots_[load.slot];
    slot.layer = layer;
    slot.expert = expert;
    slot.state = SlotState::kLoading;
    slot.stamp = stamp_;
    push_newest(load.slot);
    where_[cell(layer, expert)] = load.slot;
    ++loading_;
    loads_.push_back(load);
  }
  return loads_;
}

// A slot in no list and without an owner. The oldest of a class is unstamped here: the turn wants
// no more experts than the class has slots, and those it has got are at the other end.
uint32_t ResidencyPolicy::take_slot(Class& c, bool* evicts) {
  *evicts = c.free == kNone;
  if (!*evicts) {
    const uint32_t index = c.free;
    c.free = slots_[index].older;
    slots_[index].older = kNone;
    return index;
  }
  const uint32_t index = c.oldest;
  Slot& slot = slots_[index];
  require(slot.state == SlotState::kReady && slot.stamp != stamp_, "victim is pinned: slot", index);
  unlink(index);
  where_[cell(slot.layer, slot.expert)] = kNone;
  residency_[cell(slot.layer, slot.expert)] = -1;
  return index;
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
  slot.layer = slot.expert = kNone;
  slot.state = SlotState::kFree;
  --loading_;
  Class& c = classes_[slot.class_index];
  slot.older = c.free;
  c.free = index;
}

std::span<const int32_t> ResidencyPolicy::residency(uint32_t layer) const {
  return std::span(residency_).subspan(cell(layer, 0), n_expert_);
}

uint64_t ResidencyPolicy::slot_offset_bytes(uint32_t index) const {
  const Class& c = classes_[slots_[index].class_index];
  return c.base_bytes + (index - c.first_slot) * c.slot_bytes;
}

void ResidencyPolicy::touch(uint32_t index) {
  unlink(index);
  push_newest(index);
  slots_[index].stamp = stamp_;
}

void ResidencyPolicy::push_newest(uint32_t index) {
  Slot& slot = slots_[index];
  Class& c = classes_[slot.class_index];
  slot.older = c.newest;
  slot.newer = kNone;
  (c.newest == kNone ? c.oldest : slots_[c.newest].newer) = index;
  c.newest = index;
}

void ResidencyPolicy::unlink(uint32_t index) {
  Slot& slot = slots_[index];
  Class& c = classes_[slot.class_index];
  (slot.newer == kNone ? c.newest : slots_[slot.newer].older) = slot.older;
  (slot.older == kNone ? c.oldest : slots_[slot.older].newer) = slot.newer;
  slot.older = slot.newer = kNone;
}

void ResidencyPolicy::raise_no_slot(uint32_t layer, size_t wanted) const {
  const uint32_t index = class_of_layer_[layer];
  uint64_t arena_bytes = 0;
  for (size_t i = 0; i < classes_.size(); ++i) {
    const uint64_t slots = i == index ? wanted : classes_[i].slots;
    arena_bytes += slots * classes_[i].slot_bytes;
  }
  raise(ErrorKind::kPlan, "stream",
        {.what = "the layer's slot class cannot hold the experts of one turn",
         .got = std::to_string(classes_[index].slots) + " slots",
         .want = std::to_string(wanted),
         .where = "layer " + std::to_string(layer) + ", class " + std::to_string(index),
         .hint = "an arena of " + std::to_string(arena_bytes) + " bytes would do"});
}

void ResidencyPolicy::check_invariants() const {
  uint64_t owned = 0, loading = 0;
  for (uint32_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (slot.state == SlotState::kFree) {
      require(slot.layer == kNone && slot.expert == kNone, "a free slot has an owner: slot", index);
      continue;
    }
    ++owned;
    require(slot.layer < n_layer() && slot.expert < n_expert_, "no such owner: slot", index);
    require(class_of_layer_[slot.layer] == slot.class_index, "owner of another class: slot", index);
    require(where_[cell(slot.layer, slot.expert)] == index, "where-table disagrees: slot", index);
    const int32_t code = static_cast<int32_t>(index - classes_[slot.class_index].first_slot);
    const bool ready = slot.state == SlotState::kReady;
    require(residency_[cell(slot.layer, slot.expert)] == (ready ? code : -1),
            "residency map disagrees: slot", index);
    require(slot.stamp <= stamp_, "stamp of a turn to come: slot", index);
    require(ready || slot.stamp == stamp_, "loading for a turn gone by: slot", index);
    loading += !ready;
  }
  require(loading == loading_, "wrong count of loading slots:", loading_);
  uint64_t placed = 0, resident = 0;
  for (const uint32_t slot : where_) placed += slot != kNone;
  for (const int32_t code : residency_) resident += code != -1;
  require(placed == owned, "experts placed and slots owned differ:", placed);
  require(resident == owned - loading, "experts published and slots ready differ:", resident);
  for (const Class& c : classes_) check_class(c);
}

// Every slot of the class is in exactly one of its two lists.
void ResidencyPolicy::check_class(const Class& c) const {
  uint64_t seen = 0, stamp = stamp_;
  const auto in_class = [&](uint32_t index) {
    return index >= c.first_slot && index - c.first_slot < c.slots && ++seen <= c.slots;
  };
  uint32_t newer = kNone;
  for (uint32_t index = c.newest; index != kNone; index = slots_[index].older) {
    require(in_class(index), "list by recency leaves its class at slot", index);
    const Slot& slot = slots_[index];
    require(slot.state != SlotState::kFree, "free, but in the list by recency: slot", index);
    require(slot.newer == newer, "broken list by recency at slot", index);
    require(slot.stamp <= stamp, "stamps out of order at slot", index);
    newer = index;
    stamp = slot.stamp;
  }
  require(c.oldest == newer, "wrong oldest slot:", c.oldest);
  for (uint32_t index = c.free; index != kNone; index = slots_[index].older) {
    require(in_class(index), "free list leaves its class at slot", index);
    require(slots_[index].state == SlotState::kFree, "used, but in the free list: slot", index);
  }
  require(seen == c.slots, "slots in no list; slots in lists:", seen);
}

}  // namespace esker
