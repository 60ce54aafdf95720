// SPDX-License-Identifier: MIT
#include "stream/arena_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace esker {
namespace {

// Slot codes are int32, and sizes must not overflow: no model comes near either limit.
constexpr uint64_t kRecordsMax = INT32_MAX;
constexpr uint64_t kRecordBytesMax = uint64_t{1} << 32;

[[noreturn]] void raise_request(const char* what, const std::string& got, const std::string& want) {
  raise(ErrorKind::kUsage, "plan",
        {.what = what, .got = got, .want = want, .where = {}, .hint = {}});
}

void check_request(const ArenaRequest& request) {
  const uint64_t n_layer = request.record_bytes.size();
  if (n_layer == 0 || request.n_expert == 0 || n_layer > kRecordsMax / request.n_expert) {
    raise_request("the model's expert records cannot be planned for",
                  std::to_string(n_layer) + " layers of " + std::to_string(request.n_expert) +
                      " experts",
                  "1 to " + std::to_string(kRecordsMax) + " records");
  }
  for (size_t layer = 0; layer < n_layer; ++layer) {
    const uint64_t bytes = request.record_bytes[layer];
    if (bytes != 0 && bytes <= kRecordBytesMax) continue;
    raise_request(("the expert records of layer " + std::to_string(layer) + " cannot be").c_str(),
                  std::to_string(bytes) + " bytes",
                  "1 to " + std::to_string(kRecordBytesMax));
  }
  if (!(request.class_waste >= 0 && request.class_waste < 1)) {
    raise_request("the class waste is out of range", std::to_string(request.class_waste),
                  "0 or more and less than 1");
  }
}

// One class while slots are shared out.
struct Share {
  uint64_t slot_bytes = 0;
  uint64_t n_layer = 0;
  uint64_t slots_min = 0;
  uint64_t slots_max = 0;
};

struct Cut {
  std::vector<SlotClass> classes;
  std::vector<uint32_t> class_of_layer;
  std::vector<Share> shares;  // per class
};

Cut cut_classes(const ArenaRequest& request) {
  const size_t n_layer = request.record_bytes.size();
  std::vector<uint32_t> pages(n_layer);
  for (size_t layer = 0; layer < n_layer; ++layer) {
    pages[layer] = static_cast<uint32_t>(div_ceil(request.record_bytes[layer], kSlotPageBytes));
  }
  std::vector<size_t> order(n_layer);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pages[a] > pages[b]; });

  Cut cut;
  cut.class_of_layer.resize(n_layer);
  for (const size_t layer : order) {
    const uint32_t largest = cut.classes.empty() ? 0 : cut.classes.back().pages;
    const bool joins = largest != 0 && static_cast<double>(largest - pages[layer]) <=
                                           request.class_waste * static_cast<double>(largest);
    if (!joins) {
      cut.classes.push_back({.pages = pages[layer], .slots = 0, .base_bytes = 0});
      cut.shares.push_back({.slot_bytes = cut.classes.back().slot_bytes()});
    }
    cut.class_of_layer[layer] = static_cast<uint32_t>(cut.classes.size() - 1);
    cut.shares.back().n_layer += 1;
  }
  const uint32_t least = std::min(request.n_expert, std::max(request.turn_slots, 1u));
  for (Share& share : cut.shares) {
    share.slots_max = share.n_layer * request.n_expert;
    share.slots_min = std::min<uint64_t>(std::max(request.min_slots, least), share.slots_max);
  }
  return cut;
}

uint64_t least_bytes(const Cut& cut) {
  uint64_t bytes = 0;
  for (const Share& share : cut.shares) bytes += share.slots_min * share.slot_bytes;
  return bytes;
}

uint64_t slots_at(const Share& share, uint64_t per_layer) {
  return std::clamp(per_layer * share.n_layer, share.slots_min, share.slots_max);
}

uint64_t bytes_at(const Cut& cut, uint64_t per_layer) {
  uint64_t bytes = 0;
  for (const Share& share : cut.shares) bytes += slots_at(share, per_layer) * share.slot_bytes;
  return bytes;
}

// In proportion to the bytes of a class's layers means: the same number of slots for every layer,
// where the class's least and most allow it.
void share_out(Cut& cut, uint32_t n_expert, uint64_t arena_bytes) {
  uint64_t low = 0, high = n_expert;
  while (low < high) {
    const uint64_t middle = (low + high + 1) / 2;
    if (bytes_at(cut, middle) <= arena_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  uint64_t left = arena_bytes - std::min(arena_bytes, bytes_at(cut, low));
  for (size_t i = 0; i < cut.classes.size(); ++i) {
    cut.classes[i].slots = static_cast<uint32_t>(slots_at(cut.shares[i], low));
  }
  // What is left goes slot by slot to the class that has the fewest for each of its layers.
  while (true) {
    size_t poorest = cut.classes.size();
    for (size_t i = 0; i < cut.classes.size(); ++i) {
      const Share& share = cut.shares[i];
      if (cut.classes[i].slots >= share.slots_max || share.slot_bytes > left) continue;
      if (poorest == cut.classes.size() ||
          cut.classes[i].slots * cut.shares[poorest].n_layer <
              cut.classes[poorest].slots * share.n_layer) {
        poorest = i;
      }
    }
    if (poorest == cut.classes.size()) return;
    cut.classes[poorest].slots += 1;
    left -= cut.shares[poorest].slot_bytes;
  }
}

}  // namespace

uint64_t SlotClass::slot_bytes() const { return pages * kSlotPageBytes; }

uint64_t ArenaPlan::slot_count() const {
  uint64_t count = 0;
  for (const SlotClass& c : classes) count += c.slots;
  return count;
}

uint64_t least_arena_bytes(const ArenaRequest& request) {
  check_request(request);
  return least_bytes(cut_classes(request));
}

ArenaPlan plan_arena(const ArenaRequest& request) {
  check_request(request);
  Cut cut = cut_classes(request);
  const uint64_t least = least_bytes(cut);
  if (request.arena_bytes < least) {
    std::string classes;
    for (const Share& share : cut.shares) {
      if (!classes.empty()) classes += ", ";
      classes += std::to_string(share.slots_min) + " slots of " + format_bytes(share.slot_bytes);
    }
    raise(ErrorKind::kPlan, "plan",
          {.what = "the expert arena is too small",
           .got = std::to_string(request.arena_bytes) + " bytes",
           .want = "at least " + std::to_string(least) + " bytes (" + format_bytes(least) + ")",
           .where = classes,
           .hint = "raise --arena or --memory until the arena gets that much, or ask for fewer "
                   "slots per class"});
  }
  share_out(cut, request.n_expert, request.arena_bytes);

  ArenaPlan plan;
  plan.classes = std::move(cut.classes);
  plan.class_of_layer = std::move(cut.class_of_layer);
  for (SlotClass& c : plan.classes) {
    c.base_bytes = plan.total_bytes;
    plan.total_bytes += c.slots * c.slot_bytes();
  }
  return plan;
}

}  // namespace esker
