// SPDX-License-Identifier: MIT
//
// The expert stream over files in memory: what lies in every slot is compared with the file after
// every turn, for arenas from the least to everything, and under every fault a disk can show.
#include <algorithm>
#include <random>

#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/units.h"
#include "check.h"
#include "fault_file.h"
#include "stream/expert_stream.h"

using namespace esker;
using namespace esker::test;

namespace {

constexpr uint32_t kExperts = 16;
constexpr int kLayers = 4;
const InterruptCheck kNoCheck;

// Four layers of two record sizes in two files, nothing aligned. Even layers keep gate, up and down
// in matrices of their own, odd ones keep whole experts side by side.
struct Bench {
  std::shared_ptr<FaultFile> a = std::make_shared<FaultFile>(pattern_bytes(3000000, 1), "a.bin");
  std::shared_ptr<FaultFile> b = std::make_shared<FaultFile>(pattern_bytes(2000000, 2), "b.bin");
  std::vector<RecordLayout> layers;
  ArenaRequest request;
  ArenaPlan plan;
  AlignedBuffer arena;
  std::unique_ptr<ExpertStream> stream;

  uint64_t guessed = 0;  // times

  // arena_bytes 0: the least.
  explicit Bench(uint64_t arena_bytes, int threads = 2, uint32_t read_ahead = 0,
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

std::vector<int32_t> random_picks(std::mt19937& random, size_t n_max) {
  std::vector<int32_t> picks(random() % (n_max + 1));
  for (int32_t& pick : picks) {
    pick = static_cast<int32_t>(std::min(random() % kExperts, random() % kExperts));
  }
  return picks;
}

void run_trace(Bench& bench, uint32_t seed, int turns) {
  std::mt19937 random(seed);
  for (int i = 0; i < turns; ++i) {
    // Mostly decode, now and then a prompt.
    const bool prompt = i % 9 == 0;
    bench.stream->begin_run(prompt ? TurnKind::kPrompt : TurnKind::kDecode, prompt ? 13 : 1);
    bench.turn(i % kLayers, random_picks(random, prompt ? 40 : 3));
  }
}

const std::vector<uint64_t> kArenas = {0, 30 * kSlotPageBytes, 100 * kSlotPageBytes,
                                       150 * kSlotPageBytes, uint64_t{1} << 40};

}  // namespace

TEST(expert_stream_contents_for_every_arena) {
  for (const uint64_t arena : kArenas) {
    for (const int threads : {1, 2, 3, 4}) {
      Bench bench(arena, threads);
      run_trace(bench, static_cast<uint32_t>(threads), 60);
      const StreamCounters c = bench.stream->counters();
      CHECK_EQUAL(c.turns, 60u);
      CHECK_EQUAL(c.lookups, c.hits + c.ahead_hits + c.demand_misses);
      CHECK(c.host_ns >= c.wait_ns && c.wait_ns >= 0 && c.after_ns >= 0);
    }
  }
}

TEST(expert_stream_counters_of_a_fixed_trace) {
  Bench bench(uint64_t{1} << 40);
  bench.turn(0, {3, 1, 3});
  bench.turn(1, {1, 2, 3});
  bench.turn(0, {1, 5});
  bench.turn(2, {});
  const StreamCounters c = bench.stream->counters();
  CHECK_EQUAL(c.turns, 4u);
  CHECK_EQUAL(c.lookups, 7u);
  CHECK_EQUAL(c.hits, 1u);
  CHECK_EQUAL(c.demand_misses, 6u);
  CHECK_EQUAL(c.evictions, 0u);
  CHECK_EQUAL(c.bytes_read, 3u * 65000 + 3u * 30001);
  CHECK_EQUAL(bench.stream->residency(0)[5], 2);
}

TEST(expert_stream_everything_fits_reads_each_record_once) {
  Bench bench(uint64_t{1} << 40);
  CHECK_EQUAL(bench.plan.slot_count(), kLayers * kExperts);
  std::vector<int32_t> all(kExperts);
  for (uint32_t i = 0; i < kExperts; ++i) all[i] = static_cast<int32_t>(kExperts - 1 - i);
  for (int pass = 0; pass < 2; ++pass) {
    for (int layer = 0; layer < kLayers; ++layer) CHECK_EQUAL(bench.turn(layer, all), 1);
  }
  const StreamCounters c = bench.stream->counters();
  CHECK_EQUAL(c.demand_misses, kLayers * kExperts);
  CHECK_EQUAL(c.hits, kLayers * kExperts);
  CHECK_EQUAL(c.evictions, 0u);
}

TEST(expert_stream_rounds_depend_on_picks_and_arena_only) {
  std::vector<std::vector<int32_t>> first;
  for (const int threads : {1, 4}) {
    Bench bench(0, threads);  // three slots a class
    const std::vector<int32_t> picks = {15, 2, 9, 4, 4, 7, 0, 12};
    CHECK_EQUAL(bench.turn(0, {9, 12}), 1);
    std::vector<std::vector<int32_t>> rounds;
    for (int pass = 0; pass < 2; ++pass) {
      bench.stream->begin_layer(0, picks, {}, kNoCheck);
      std::vector<int32_t> seen;
      bool more = true;
      for (int round = 0; more; ++round) {
        const TurnResult r = bench.stream->at_layer(0, round, kNoCheck);
        CHECK(!r.held && !r.experts.empty() && r.experts.size() <= 3);
        rounds.emplace_back(r.experts.begin(), r.experts.end());
        seen.insert(seen.end(), r.experts.begin(), r.experts.end());
        more = r.more;
        bench.check_contents();
      }
      CHECK(seen == (std::vector<int32_t>{0, 2, 4, 7, 9, 12, 15}));
    }
    CHECK_EQUAL(bench.stream->counters().turns, 3u);
    CHECK_EQUAL(bench.turn(0, {}), 1);
    if (first.empty()) first = rounds;
    CHECK(rounds == first);
  }
}

TEST(expert_stream_evicts_in_whichever_layer_it_is) {
  Bench bench(0);
  bench.turn(0, {0, 1, 2});
  bench.turn(1, {0, 1, 2});  // of the other class: nobody leaves
  CHECK_EQUAL(bench.stream->counters().evictions, 0u);
  bench.turn(2, {7});        // of the same class
  CHECK_EQUAL(bench.stream->residency(0)[0], -1);
  CHECK(bench.stream->residency(0)[1] >= 0);
  CHECK_EQUAL(bench.stream->counters().evictions, 1u);
}

TEST(expert_stream_transient_faults_change_nothing) {
  Bench calm(30 * kSlotPageBytes), troubled(30 * kSlotPageBytes);
  run_trace(calm, 5, 40);
  troubled.set_hooks(fail_each_once(EIO));
  run_trace(troubled, 5, 40);
  CHECK(calm.maps() == troubled.maps());
  CHECK_EQUAL(calm.stream->counters().bytes_read, troubled.stream->counters().bytes_read);

  Bench slow(30 * kSlotPageBytes);
  slow.set_hooks(short_reads(7000, 4));
  run_trace(slow, 5, 40);
  CHECK(calm.maps() == slow.maps());
}

TEST(expert_stream_decides_the_same_however_slow_the_disk) {
  for (const uint64_t arena : kArenas) {
    Bench calm(arena, 4);
    run_trace(calm, 6, 50);
    for (const uint64_t seed : {1u, 2u}) {
      Bench slow(arena, 4);
      slow.set_hooks(stall_randomly(seed, 400));
      run_trace(slow, 6, 50);
      CHECK(calm.maps() == slow.maps());
      CHECK_EQUAL(calm.stream->counters().evictions, slow.stream->counters().evictions);
    }
  }
}

TEST(expert_stream_permanent_fault_is_clear_and_passes) {
  for (const int threads : {1, 4}) {
    Bench bench(30 * kSlotPageBytes, threads);
    bench.turn(0, {1, 2});
    const auto before = bench.maps();
    bench.a->set_hook(fail_always(EIO));
    for (int i = 0; i < 3; ++i) {
      const std::vector<int32_t> picks = {2, 8, 9};
      const Error error = error_of([&] { bench.whole_round(0, picks, kNoCheck); });
      CHECK(error.kind() == ErrorKind::kRead);
      CHECK(contains(error.what(), "Input/output error"));
      CHECK(contains(error.what(), "a.bin, offset "));
      bench.check_contents();
      CHECK(bench.maps() == before);
    }
    bench.turn(1, {4, 5});  // the other file is well
    bench.a->cut(1000);
    bench.a->set_hook({});
    const std::vector<int32_t> picks = {3};
    CHECK(contains(error_of([&] { bench.whole_round(2, picks, kNoCheck); }).what(),
                   "the file ends too early"));
    bench.a->cut(UINT64_MAX);
    const StreamCounters c = bench.stream->counters();
    CHECK_EQUAL(c.lookups, c.hits + c.demand_misses);
    CHECK_EQUAL(c.bytes_read, 2u * 65000 + 2u * 30001);
    run_trace(bench, 7, 40);
  }
}

TEST(expert_stream_recovers_from_faults_on_any_read) {
  for (uint64_t nth = 0; nth < 24; ++nth) {
    Bench bench(0, 2);
    bench.turn(0, {14, 15});
    // Twice in a row, so that the retry fails as well (or another read does).
    bench.set_hooks(fail_reads(nth, 2, EIO));
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::vector<int32_t> picks = {0, 3, 5, 8, 9, 11};
      try {
        bench.stream->begin_layer(layer, picks, {}, kNoCheck);
        for (int round = 0; bench.stream->at_layer(layer, round, kNoCheck).more; ++round) {
          bench.check_contents();
        }
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::kRead);
      }
      bench.check_contents();
    }
    bench.set_hooks({});
    run_trace(bench, 8, 12);
  }
}

TEST(expert_stream_interrupt_does_not_wait_for_a_stalled_disk) {
  for (const int threads : {1, 3}) {
    Bench bench(0, threads);
    bench.turn(0, {1, 2, 3});
    Gate gate;
    bench.set_hooks(gate.hook());
    const InterruptCheck stop = [] { throw Interrupted(); };
    const std::vector<int32_t> picks = {3, 7, 8};
    for (int i = 0; i < 2; ++i) {
      const int64_t start = now_ns();
      MESSAGE_OF(Interrupted, bench.whole_round(0, picks, stop));
      CHECK((now_ns() - start) / 1000000 < 300);
      bench.check_contents();
      CHECK(bench.stream->residency(0)[3] >= 0);
      CHECK_EQUAL(bench.stream->residency(0)[7], -1);
    }
    gate.open();
    const StreamCounters c = bench.stream->counters();
    CHECK_EQUAL(c.bytes_read, 3u * 65000);
    CHECK_EQUAL(c.lookups, c.hits + c.demand_misses);
    bench.turn(0, picks);
    run_trace(bench, 9, 20);
  }
}

TEST(expert_stream_interrupts_do_not_depend_on_how_far_the_disk_had_come) {
  // The same turn is interrupted with none, some and all but one of its reads finished.
  std::vector<int32_t> maps;
  for (const uint64_t finished : {0u, 4u, 8u}) {
    Bench bench(0, 4);
    bench.turn(0, {1, 2, 3});
    Gate gate;
    bench.a->set_hook([&](FaultFile& f, const FaultFile::Read& read) {
      if (read.index >= finished) gate.pass();
      return f.serve(read);
    });
    const std::vector<int32_t> picks = {4, 5, 6};
    MESSAGE_OF(Interrupted,
               bench.whole_round(0, picks, [] { throw Interrupted(); }));
    gate.open();
    run_trace(bench, 10, 20);
    if (maps.empty()) maps = bench.maps();
    CHECK(maps == bench.maps());
  }
}

TEST(expert_stream_reuses_no_slot_while_an_old_read_runs) {
  Bench bench(0, 3);
  Gate gate;
  bench.set_hooks([&](FaultFile& f, const FaultFile::Read& read) {
    if (read.index == 0) gate.pass();
    return f.serve(read);
  });
  const InterruptCheck stop = [] { throw Interrupted(); };
  const std::vector<int32_t> picks = {3, 7, 8}, others = {9};
  MESSAGE_OF(Interrupted, bench.whole_round(0, picks, stop));
  // Its own reads would be served at once.
  MESSAGE_OF(Interrupted, bench.whole_round(0, others, stop));
  gate.open();
  bench.turn(0, others);
  bench.turn(0, picks);
}

TEST(expert_stream_may_go_with_reads_still_running) {
  Gate gate;
  std::thread opener;
  {
    Bench bench(0, 2);
    bench.set_hooks(gate.hook());
    const std::vector<int32_t> picks = {3, 7, 8};
    MESSAGE_OF(Interrupted,
               bench.whole_round(0, picks, [] { throw Interrupted(); }));
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
  }
  opener.join();
}

TEST(expert_stream_refuses_misuse) {
  Bench bench(0);
  const auto usage = [&](int layer, std::vector<int32_t> picks, int round) {
    const Error e = error_of([&] {
      bench.stream->begin_layer(layer, picks, {}, kNoCheck);
      bench.stream->at_layer(layer, round, kNoCheck);
    });
    return e.kind() == ErrorKind::kUsage;
  };
  CHECK(usage(-1, {1}, 0));
  CHECK(usage(kLayers, {1}, 0));
  CHECK(usage(0, {1, 16}, 0));
  CHECK(usage(0, {-1}, 0));
  CHECK(usage(0, {1}, 1));
  CHECK(usage(0, {}, 1));
  CHECK(usage(0, {1}, -1));
  const auto other = [&](int layer) { bench.stream->at_layer(layer, 0, kNoCheck); };
  bench.stream->abandon_turn();
  CHECK(contains(error_of([&] { other(0); }).what(), "begun first"));
  bench.stream->begin_layer(0, std::vector<int32_t>{1}, {}, kNoCheck);
  CHECK(contains(error_of([&] { other(1); }).what(), "round 0 of layer 0"));
  bench.stream->abandon_turn();
  const std::vector<float> scores(kExperts);
  CHECK(error_of([&] { bench.stream->guessed(kLayers, scores); }).kind() == ErrorKind::kUsage);
  CHECK(error_of([&] { bench.stream->after_layer(kLayers, kNoCheck); }).kind() == ErrorKind::kUsage);
  CHECK(error_of([&] { bench.stream->residency(-1); }).kind() == ErrorKind::kUsage);
  bench.turn(0, {1});
  CHECK(bench.stream->residency(0)[1] >= 0);
}

TEST(expert_stream_refuses_records_beyond_slot_or_file) {
  Bench bench(0);
  const auto refused = [&](auto change) {
    auto layers = bench.layers;
    change(layers[2]);
    return error_of([&] {
             ExpertStream(layers, kExperts, bench.plan, bench.arena.data(), StreamOptions{});
           }).kind();
  };
  CHECK(refused([](RecordLayout& l) { l.record_bytes = 90000; }) == ErrorKind::kUsage);
  CHECK(refused([](RecordLayout& l) { l.pieces[2].record_offset = 41002; }) == ErrorKind::kUsage);
  CHECK(refused([](RecordLayout& l) { l.pieces[2].record_offset = UINT64_MAX; }) ==
        ErrorKind::kUsage);
  CHECK(refused([](RecordLayout& l) { l.pieces[0].offset = 3000000; }) == ErrorKind::kFormat);
  CHECK(refused([](RecordLayout& l) { l.pieces[0].offset = UINT64_MAX; }) == ErrorKind::kFormat);
  CHECK(refused([](RecordLayout& l) { l.pieces[0].stride_bytes = UINT64_MAX / 15; }) ==
        ErrorKind::kFormat);
  auto layers = bench.layers;
  layers.pop_back();
  CHECK(error_of([&] {
          ExpertStream(layers, kExperts, bench.plan, bench.arena.data(), StreamOptions{});
        }).kind() == ErrorKind::kUsage);
}

TEST(expert_stream_read_ahead_serves_what_was_guessed) {
  Bench bench(100 * kSlotPageBytes, 2, 4);
  std::vector<float> scores(kExperts);
  for (uint32_t e = 0; e < kExperts; ++e) scores[e] = e == 5 || e == 7 || e == 9 || e == 11 ? 9 : 1;
  const auto first_layer = [&] {
    bench.stream->begin_layer(0, std::vector<int32_t>{1}, {}, kNoCheck);
    bench.stream->guessed(1, scores);
    bench.stream->at_layer(0, 0, kNoCheck);
    bench.stream->after_layer(0, kNoCheck);
  };
  first_layer();
  CHECK_EQUAL(bench.stream->counters().ahead_reads, 4u);
  bench.turn(1, {2, 7, 11});
  const StreamCounters c = bench.stream->counters();
  CHECK_EQUAL(c.ahead_hits, 2u);
  CHECK_EQUAL(c.demand_misses, 2u);
  CHECK_EQUAL(c.ahead_wasted, 2u);
  CHECK_EQUAL(c.bytes_ahead, 2u * 30001);
  CHECK(bench.stream->residency(1)[7] >= 0);
  CHECK_EQUAL(bench.stream->residency(1)[5], -1);
}

TEST(expert_stream_read_ahead_that_fails_is_read_again) {
  for (const bool for_good : {false, true}) {
    Bench bench(100 * kSlotPageBytes, 1, 4);
    std::vector<float> scores(kExperts);
    scores[7] = 9;
    bench.stream->begin_layer(0, std::vector<int32_t>{1}, {}, kNoCheck);
    bench.stream->guessed(1, scores);
    bench.stream->at_layer(0, 0, kNoCheck);
    bench.b->set_hook(fail_always(EIO));
    bench.stream->after_layer(0, kNoCheck);
    while (bench.b->reads() < 8) std::this_thread::yield();  // four, each tried twice
    if (!for_good) bench.b->set_hook({});
    const std::vector<int32_t> picks = {7};
    if (for_good) {
      const Error error = error_of([&] { bench.whole_round(1, picks, kNoCheck); });
      CHECK(error.kind() == ErrorKind::kRead);
      bench.b->set_hook({});
      bench.check_contents();
    }
    bench.turn(1, picks);
    CHECK_EQUAL(bench.stream->counters().ahead_hits, 1u);
    run_trace(bench, 3, 30);
  }
}

TEST(expert_stream_decides_the_same_however_slow_its_read_aheads) {
  for (const uint64_t arena : kArenas) {
    for (const bool split : {false, true}) {
      Bench calm(arena, 4, 4, split);
      run_trace(calm, 13, 80);
      const StreamCounters want = calm.stream->counters();
      CHECK_EQUAL(want.lookups, want.hits + want.ahead_hits + want.demand_misses);
      for (const uint64_t seed : {1u, 2u, 3u}) {
        Bench slow(arena, 1 + static_cast<int>(seed), 4, split);
        slow.set_hooks(stall_randomly(seed, 400));
        run_trace(slow, 13, 80);
        const StreamCounters got = slow.stream->counters();
        CHECK(calm.maps() == slow.maps());
        CHECK_EQUAL(got.evictions, want.evictions);
        CHECK_EQUAL(got.ahead_hits, want.ahead_hits);
        CHECK_EQUAL(got.ahead_reads, want.ahead_reads);
        CHECK_EQUAL(got.ahead_wasted, want.ahead_wasted);
        CHECK_EQUAL(got.demand_misses, want.demand_misses);
      }
    }
  }
}

TEST(expert_stream_begin_does_not_wait) {
  Bench bench(0, 2);
  Gate gate;
  bench.set_hooks(gate.hook());
  const std::vector<int32_t> picks = {3, 7, 8};
  bench.stream->begin_layer(0, picks, {}, kNoCheck);  // hangs if it waits
  gate.await(2);
  CHECK_EQUAL(bench.stream->residency(0)[3], -1);
  gate.open();
  bench.turn(0, picks);
  CHECK_EQUAL(bench.stream->counters().demand_misses, 6u);  // the turn begun first was given up
}

TEST(expert_stream_abandoned_turns_leave_no_trace_but_evictions) {
  for (const bool explicitly : {false, true}) {
    Bench bench(0, 2);
    bench.turn(0, {1, 2, 3});
    Gate gate;
    bench.set_hooks(gate.hook());
    const std::vector<int32_t> picks = {3, 7, 8};
    bench.stream->begin_layer(0, picks, {}, kNoCheck);
    gate.await(2);
    if (explicitly) bench.stream->abandon_turn();
    if (explicitly) bench.stream->abandon_turn();
    gate.open();
    bench.check_contents();
    bench.turn(2, {4, 5});  // another layer: a turn that was only begun is given up
    CHECK_EQUAL(bench.stream->residency(0)[7], -1);
    run_trace(bench, 12, 20);
  }
}
