// SPDX-License-Identifier: MIT
//
// The expert stream over files in memory: what lies in every slot is compared with the file after
// every turn, for arenas from the least to everything, and under every fault a disk can show.
#include "base/clock.h"
#include "stream_bench.h"

using namespace esker;
using namespace esker::test;
using Bench = StreamBench;

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

TEST(expert_stream_turns_may_be_abandoned_between_rounds) {
  Bench bench(0);
  const std::vector<int32_t> picks = {0, 2, 4, 7, 9, 12, 15};
  for (int rounds = 1; rounds < 6; ++rounds) {
    bench.stream->begin_layer(0, picks, {}, kNoCheck);
    bool more = true;
    for (int round = 0; more && round < rounds; ++round) {
      more = bench.stream->at_layer(0, round, kNoCheck).more;
    }
    CHECK(more || rounds > 1);
    bench.stream->abandon_turn();
    bench.check_contents();
    CHECK_EQUAL(bench.turn(1, {3, 5}), 1);
    bench.turn(0, picks);
  }
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
