// SPDX-License-Identifier: MIT
//
// Read-ahead, profiles, readers and sizes that change: the expert stream over files in memory.
#include "stream_bench.h"

using namespace esker;
using namespace esker::test;
using Bench = StreamBench;

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

TEST(expert_stream_fills_from_a_profile) {
  using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;
  Bench bench(100 * kSlotPageBytes);
  Pairs ranked;
  for (uint32_t expert = 0; expert < kExperts; ++expert) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) ranked.emplace_back(layer, expert);
  }
  CHECK_EQUAL(bench.stream->fill(ranked, kNoCheck), bench.plan.slot_count());
  bench.check_contents();
  CHECK(bench.stream->residency(3)[0] >= 0);
  CHECK_EQUAL(bench.turn(0, {0, 1}), 1);
  CHECK_EQUAL(bench.stream->counters().hits, 2u);
  CHECK_EQUAL(bench.stream->pick_counts()[1], 1u);
  CHECK(contains(error_of([&] { bench.stream->fill(Pairs{{0, kExperts}}, kNoCheck); }).what(),
                 "another model"));
  Bench broken(0);
  broken.set_hooks(fail_always(EIO));
  CHECK(error_of([&] { broken.stream->fill(ranked, kNoCheck); }).kind() == ErrorKind::kRead);
  Gate gate;
  broken.set_hooks(gate.hook());
  MESSAGE_OF(Interrupted, broken.stream->fill(ranked, [] { throw Interrupted(); }));
  gate.open();
  broken.set_hooks({});
  run_trace(broken, 3, 20);
}

TEST(expert_stream_may_change_its_readers_and_its_size_between_runs) {
  Bench calm(uint64_t{1} << 40, 2, 4), changed(uint64_t{1} << 40, 2, 4);
  std::mt19937 a(21), b(21);
  for (int i = 0; i < 60; ++i) {
    if (i % 4 == 0) changed.stream->set_readers(1 + i % 3, 4096u << (i % 5));
    if (i % 8 == 4) changed.stream->shrink(40 * kSlotPageBytes);
    if (i % 8 == 7) changed.stream->grow(20 * kSlotPageBytes);
    calm.turn(i % kLayers, random_picks(a, 3));
    changed.turn(i % kLayers, random_picks(b, 3));
  }
  const StreamCounters c = changed.stream->counters();
  CHECK(c.withdrawn_bytes > 0 && calm.stream->counters().withdrawn_bytes == 0);
  CHECK_EQUAL(changed.stream->grow(UINT64_MAX), c.withdrawn_bytes);
  CHECK_EQUAL(changed.stream->counters().withdrawn_bytes, 0u);
  CHECK_EQUAL(c.lookups, calm.stream->counters().lookups);
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
