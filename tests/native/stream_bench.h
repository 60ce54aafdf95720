// SPDX-License-Identifier: MIT
//
// An expert stream over files in memory, and traces to drive it.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>

#include "base/aligned_buffer.h"
#include "base/units.h"
#include "check.h"
#include "fault_file.h"
#include "stream/expert_stream.h"

namespace esker::test {

constexpr uint32_t kExperts = 16;
constexpr int kLayers = 4;
inline const InterruptCheck kNoCheck;

// Four layers of two record sizes in two files, nothing aligned. Even layers keep gate, up and down
// in matrices of their own, odd ones keep whole experts side by side.
struct StreamBench {
  std::shared_ptr<FaultFile> a = std::make_shared<FaultFile>(pattern_bytes(3000000, 1), "a.bin");
  std::shared_ptr<FaultFile> b = std::make_shared<FaultFile>(pattern_bytes(2000000, 2), "b.bin");
  std::vector<RecordLayout> layers;
  ArenaRequest request;
  ArenaPlan plan;
  AlignedBuffer arena;
  std::unique_ptr<ExpertStream> stream;

  uint64_t guessed = 0;  // times

  // arena_bytes 0: the least.
  explicit StreamBench(uint64_t arena_bytes, int threads = 2, uint32_t read_ahead = 0,
                 bool split_turn = true) {
    const uint32_t turn_slots = 3;
    for (int layer = 0; layer < kLayers; ++layer) layers.push_back(layout(layer));
    for (const RecordLayout& l : layers) request.record_bytes.push_back(l.record_bytes);
    request.n_expert = kExperts;
    request.turn_slots = turn_slots;
    request.arena_bytes = std::max(arena_bytes, least_arena_bytes(request));
    plan = plan_arena(request);
    arena = AlignedBuffer(plan.total_bytes, "a test");
    stream = std::make_unique<ExpertStream>(layers, kExperts, plan, arena.data(),
                                            StreamOptions{.reader_threads = threads,
                                                          .n_expert_used = turn_slots,
                                                          .read_ahead = read_ahead,
                                                          .read_ahead_2 = read_ahead / 2,
                                                          .split_turn = split_turn});
  }

  RecordLayout layout(int layer) const {
    const uint64_t i = static_cast<uint64_t>(layer);
    if (layer % 2 == 1) {
      const uint64_t bytes = 30001;
      return {.pieces = {{b, 17 + i / 2 * 600000, 30007, bytes, 0}}, .record_bytes = bytes};
    }
    const uint64_t base = i / 2 * 1500000 + 5;
    return {.pieces = {{a, base, 20000, 20000, 0},
                       {a, base + 400001, 20000, 20000, 20480},
                       {a, base + 900002, 25013, 25000, 41000}},
            .record_bytes = 66001};
  }

  // Every record that any map names, byte for byte.
  void check_contents() const {
    stream->check_invariants();
    for (int layer = 0; layer < kLayers; ++layer) {
      const SlotClass& c = plan.classes[plan.class_of_layer[static_cast<size_t>(layer)]];
      const auto map = stream->residency(layer);
      CHECK_EQUAL(map.size(), kExperts);
      for (uint32_t expert = 0; expert < kExperts; ++expert) {
        if (map[expert] == -1) continue;
        CHECK(map[expert] >= 0 && static_cast<uint32_t>(map[expert]) < c.slots);
        const uint8_t* record =
            arena.data() + c.base_bytes + static_cast<uint64_t>(map[expert]) * c.slot_bytes();
        for (const RecordPiece& piece : layers[static_cast<size_t>(layer)].pieces) {
          const auto& file = static_cast<const FaultFile&>(*piece.file);
          const uint8_t* want = file.bytes().data() + piece.offset + expert * piece.stride_bytes;
          CHECK(std::memcmp(record + piece.record_offset, want, piece.bytes) == 0);
        }
      }
    }
  }

  // A whole turn, all rounds; returns their number.
  int turn(int layer, const std::vector<int32_t>& picks) {
    std::vector<int32_t> seen;
    int round = 0;
    stream->begin_layer(layer, picks, {}, kNoCheck);
    std::vector<std::vector<float>> scores;
    for (int later = layer + 1; later < std::min(layer + 3, kLayers); ++later) {
      std::mt19937 random(static_cast<uint32_t>(++guessed));
      std::vector<float>& of = scores.emplace_back(kExperts);
      for (float& score : of) score = static_cast<float>(random() % 100);
      stream->guessed(later, of);
    }
    for (bool more = true; more; ++round) {
      const TurnResult result = stream->at_layer(layer, round, kNoCheck);
      more = result.more;
      // What is held is computed at the end.
      if (!result.held) seen_here.clear();
      seen_here.insert(seen_here.end(), result.experts.begin(), result.experts.end());
      for (const int32_t expert : seen_here) {
        CHECK(stream->residency(layer)[static_cast<size_t>(expert)] >= 0);
      }
      CHECK(std::ranges::is_sorted(result.experts));
      CHECK(result.held || seen.empty() || result.experts.empty() || seen.back() < result.experts[0]);
      seen.insert(seen.end(), result.experts.begin(), result.experts.end());
      check_contents();
    }
    stream->after_layer(layer, kNoCheck);
    for (const int32_t expert : seen_here) {  // still being computed
      CHECK(stream->residency(layer)[static_cast<size_t>(expert)] >= 0);
    }
    seen_here.clear();
    std::ranges::sort(seen);
    std::vector<int32_t> want(picks);
    std::ranges::sort(want);
    want.erase(std::unique(want.begin(), want.end()), want.end());
    CHECK(seen == want);
    return round;
  }

  std::vector<int32_t> seen_here;  // of the turn's last round, or all that are held

  // Begins a turn and waits until it has all experts of its first round.
  void whole_round(int layer, const std::vector<int32_t>& picks, const InterruptCheck& check) {
    stream->begin_layer(layer, picks, {}, check);
    if (stream->at_layer(layer, 0, check).more) stream->at_layer(layer, 1, check);
  }

  std::vector<int32_t> maps() const {
    std::vector<int32_t> all;
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto map = stream->residency(layer);
      all.insert(all.end(), map.begin(), map.end());
    }
    return all;
  }

  void set_hooks(const FaultFile::Hook& hook) {
    a->set_hook(hook);
    b->set_hook(hook);
  }
};

inline std::vector<int32_t> random_picks(std::mt19937& random, size_t n_max) {
  std::vector<int32_t> picks(random() % (n_max + 1));
  for (int32_t& pick : picks) {
    pick = static_cast<int32_t>(std::min(random() % kExperts, random() % kExperts));
  }
  return picks;
}

inline void run_trace(StreamBench& bench, uint32_t seed, int turns) {
  std::mt19937 random(seed);
  for (int i = 0; i < turns; ++i) {
    // Mostly decode, now and then a prompt.
    const bool prompt = i % 9 == 0;
    bench.stream->begin_run(prompt ? TurnKind::kPrompt : TurnKind::kDecode, prompt ? 13 : 1);
    bench.turn(i % kLayers, random_picks(random, prompt ? 40 : 3));
  }
}

inline const std::vector<uint64_t> kArenas = {0, 30 * kSlotPageBytes, 100 * kSlotPageBytes,
                                       150 * kSlotPageBytes, uint64_t{1} << 40};

}  // namespace esker::test
