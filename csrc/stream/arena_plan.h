// SPDX-License-Identifier: MIT
//
// How the arena is cut: slot classes, their sizes and where they lie. Pure arithmetic: it knows
// neither memory nor files, and the same request gives the same plan on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esker {

struct SlotClass {
  uint32_t pages = 0;        // slot size in pages of 16 KiB
  uint32_t slots = 0;
  uint64_t base_bytes = 0;   // of slot 0, from the start of the arena
  uint64_t slot_bytes() const;
};

struct ArenaPlan {
  std::vector<SlotClass> classes;   // largest first
  std::vector<uint32_t> class_of_layer;
  uint64_t total_bytes = 0;
  uint64_t slot_count() const;
};

struct ArenaRequest {
  std::vector<uint64_t> record_bytes;  // per layer
  uint32_t n_expert = 0;
  uint64_t arena_bytes = 0;            // what may be used
  double class_waste = 0.15;           // layers whose sizes differ by at most this share a class
  // Per class. 0, or fewer than every turn can work with, means that least: the experts that one
  // decode turn can pin. A prompt needs no more, since it comes in rounds.
  uint32_t min_slots = 0;
  uint32_t turn_slots = 0;             // the most experts that one decode turn can pin: T x k
};

// Layers whose record sizes (in pages) differ by at most the waste fraction of the larger share a
// class of the larger size. The arena is shared out in proportion to the bytes of the class's
// layers, so that every layer has the same number of slots; but no class gets less than its minimum
// (the others then share what remains), and none more than all its records need.
// Throws Error(kPlan) naming the least arena that would do.
ArenaPlan plan_arena(const ArenaRequest& request);

// The least arena_bytes that plan_arena accepts for this request.
uint64_t least_arena_bytes(const ArenaRequest& request);

}  // namespace esker
