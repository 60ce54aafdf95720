// SPDX-License-Identifier: MIT
//
// The whole engine on a real tiny model, with files that fail, stall, come short or are interrupted:
// the same logits, or one clear error and a session that goes on.
#include "engine/engine.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "check.h"
#include "engine/session.h"
#include "fault_file.h"

using namespace esker;
using namespace esker::test;

namespace {

const std::string kModel = std::string(ESKER_TEST_DATA) + "/oracle/micro-f16.gguf";

// A model whose file can be made to fail, in the smallest arena.
struct Bench {
  std::map<std::string, std::shared_ptr<FaultFile>> files;
  std::shared_ptr<Engine> engine;

  explicit Bench(uint32_t slots = 1, int threads = 2, int readers = 3) {
    EngineOptions options;
    options.path = kModel;
    options.slots = slots;
    options.threads = threads;
    options.reader_threads = readers;
    options.read_ahead = 6;
    options.open_file = [this](const std::string& path) -> std::shared_ptr<File> {
      auto& file = files[path];
      if (!file) file = std::make_shared<FaultFile>(open_direct(path));
      return file;
    };
    engine = Engine::open(options, {});
  }
  FaultFile& file() { return *files.begin()->second; }
};

std::vector<int32_t> prompt(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 37 + 11) % 500);
  return tokens;
}

std::vector<float> logits_of(const Session& session) {
  return {session.logits().begin(), session.logits().end()};
}

// Prompt and decoded tokens, the logits of each step one after another.
std::vector<float> short_run(Session& session, int n_prompt = 40, int n_decode = 5) {
  std::vector<float> all;
  session.prefill(prompt(n_prompt), 16, {}, {});
  for (int i = 0; i < n_decode; ++i) {
    const std::vector<float> step = logits_of(session);
    all.insert(all.end(), step.begin(), step.end());
    session.decode((i * 91 + 3) % 500, {});
  }
  return all;
}

std::vector<float> reference() {
  Bench bench;
  Session session(bench.engine);
  return short_run(session);
}

}  // namespace

TEST(engine_gives_the_same_bits_for_every_arena_and_thread_count) {
  const std::vector<float> want = reference();
  for (uint32_t slots = 1; slots <= 6; ++slots) {
    for (int threads = 1; threads <= 3; ++threads) {
      Bench bench(slots, threads, threads);
      Session session(bench.engine);
      CHECK(short_run(session) == want);
    }
  }
}

// The least arena, with room for one read-ahead, and a larger one.
constexpr uint32_t kSlots[] = {1, 2};

TEST(engine_gives_the_same_bits_when_reads_are_late_short_or_interrupted) {
  const std::vector<float> want = reference();
  for (const uint32_t slots : kSlots) {
    Bench bench(slots);
    const std::vector<FaultFile::Hook> hooks{short_reads(100, 3), stall_randomly(5, 300),
                                             fail_each_once(EIO), short_reads(4000, 2)};
    for (const FaultFile::Hook& hook : hooks) {
      bench.file().set_hook(hook);
      Session session(bench.engine);
      CHECK(short_run(session) == want);
    }
    CHECK(bench.engine->counters().stream.ahead_hits > 0);
  }
}

TEST(engine_says_what_failed_and_the_session_goes_on) {
  const auto run = [](Session& session) { return short_run(session, 20, 2); };
  for (const uint32_t slots : kSlots) {
    Bench bench(slots);
    const uint64_t before = bench.file().reads();
    std::vector<float> want;
    {
      Session session(bench.engine);
      want = run(session);
    }
    const uint64_t reads = bench.file().reads() - before;
    CHECK(reads > 20);
    // Every read of a short run in turn fails for good (it and all after it), then the disk heals.
    for (uint64_t first = 0; first < reads; ++first) {
      Bench fresh(slots);
      Session session(fresh.engine);
      fresh.file().set_hook(fail_reads(first, UINT64_MAX / 2, EIO));
      uint64_t position = 0;
      try {
        run(session);
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::kRead);
        CHECK(contains(e.what(), kModel));
        CHECK(contains(e.what(), "Input/output error"));
        position = session.position();
        fresh.engine->check_invariants();
      }
      CHECK(position % 16 == 0 || position >= 20);  // a whole number of chunks, or decoding
      fresh.file().set_hook({});
      if (position > 0) session.decode(1, {});  // usable
      if (first % 8 != 0) continue;  // the whole text again: of every eighth
      Session again(fresh.engine);
      CHECK(run(again) == want);
    }
  }
}

TEST(engine_reports_a_file_cut_while_open) {
  Bench bench;
  Session session(bench.engine);
  bench.file().cut(1000);
  const Error e = error_of([&] { session.prefill(prompt(8), 0, {}, {}); });
  CHECK(e.kind() == ErrorKind::kRead);
  CHECK(contains(e.what(), "hint: "));
  CHECK_EQUAL(session.position(), uint64_t{0});
}

TEST(engine_can_be_interrupted_while_it_waits_for_a_read) {
  const std::vector<float> want = reference();
  Bench bench;
  Session session(bench.engine);
  Gate gate;
  bench.file().set_hook(gate.hook());
  const auto poll = [n = 0]() mutable {
    if (++n > 3) throw Interrupted();
  };
  (void)MESSAGE_OF(Interrupted, session.prefill(prompt(8), 0, {}, poll));
  CHECK_EQUAL(session.position(), uint64_t{0});
  gate.open();
  bench.file().set_hook({});
  bench.engine->check_invariants();
  Session again(bench.engine);
  CHECK(short_run(again) == want);
}

TEST(engine_interrupted_anywhere_leaves_the_session_at_a_chunk) {
  const std::vector<float> want = reference();
  for (int after = 1; after < 400; after += 1 + after / 2) {
    Bench bench;
    Session session(bench.engine);
    int polls = 0;
    try {
      session.prefill(prompt(40), 16, {}, [&] {
        if (++polls == after) throw Interrupted();
      });
    } catch (const Interrupted&) {
    }
    const uint64_t at = session.position();
    CHECK(at == 0 || at == 16 || at == 32 || at == 40);
    if (at == 16 || at == 32) {
      CHECK(contains(error_of([&] { (void)session.logits(); }).what(), "not read to its end"));
    }
    bench.engine->check_invariants();
    if (at < 40) {
      const std::vector<int32_t> all = prompt(40);
      session.prefill(std::span(all).subspan(at), 16, {}, {});
    }
    CHECK(std::equal(want.begin(), want.begin() + 512, logits_of(session).begin()));
  }
}

TEST(engine_refuses_prompts_that_cannot_be) {
  Bench bench;
  Session session(bench.engine);
  const auto message = [&](std::vector<int32_t> tokens) {
    return std::string(error_of([&] { session.prefill(tokens, 0, {}, {}); }).what());
  };
  CHECK(contains(message({}), "0 tokens"));
  CHECK(contains(message({1, -1}), "got -1"));
  CHECK(contains(message({512}), "0 to 511"));
  const std::string too_long = message(std::vector<int32_t>(5000, 1));
  CHECK(contains(too_long, "5000") && contains(too_long, "4096"));
  CHECK_EQUAL(session.position(), uint64_t{0});
  CHECK(contains(error_of([&] { (void)session.logits(); }).what(), "no logits"));
}

TEST(engine_gives_arena_back_while_memory_is_short) {
  uint64_t available = uint64_t{16} << 30;
  EngineOptions options;
  options.path = kModel;
  options.arena_fraction = 1;
  options.governor = true;
  MemoryPressure pressure = MemoryPressure::kNone;
  options.memory = [&] {
    return MachineMemory{.total_bytes = uint64_t{24} << 30, .available_bytes = available, .pressure = pressure};
  };
  const std::shared_ptr<Engine> engine = Engine::open(options, {});
  Session session(engine);
  const std::vector<float> want = reference();
  CHECK(short_run(session) == want);
  CHECK_EQUAL(engine->counters().stream.withdrawn_bytes, 0u);
  const auto later = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Session again(engine);
    CHECK(short_run(again) == want);
    engine->check_invariants();
    return engine->counters().stream.withdrawn_bytes;
  };
  available = 1 << 30;
  const uint64_t given = later();
  CHECK(given > 0 && given < engine->plan().arena.total_bytes);
  available = uint64_t{16} << 30;
  CHECK_EQUAL(later(), 0u);
  // The system's word counts for more than its numbers.
  pressure = MemoryPressure::kWarning;
  const uint64_t warned = later();
  CHECK(warned > 0);
  pressure = MemoryPressure::kCritical;
  CHECK(later() > warned);
  pressure = MemoryPressure::kNone;
  CHECK_EQUAL(later(), 0u);
}

TEST(sessions_fork_rewind_and_come_back_from_a_file) {
  Bench bench(2);
  Session session(bench.engine);
  session.prefill(prompt(37), 7, {}, {});
  const std::vector<float> here = logits_of(session);
  const uint32_t point = session.checkpoint();
  const std::string path =
      std::filesystem::temp_directory_path() / ("session-" + std::to_string(getpid()) + ".esker");
  session.save(path);
  const std::unique_ptr<Session> fork = session.fork();
  const auto go_on = [](Session& s) {
    s.prefill(prompt(30), 0, {}, {});
    s.decode(9, {});
    return logits_of(s);
  };
  const std::vector<float> want = go_on(session);
  CHECK(logits_of(*fork) == here);
  CHECK(go_on(*fork) == want);
  const uint32_t later = session.checkpoint();
  session.rewind(point);
  CHECK(logits_of(session) == here);
  CHECK(go_on(session) == want);
  CHECK(contains(error_of([&] { session.rewind(later); }).what(), "no such checkpoint"));
  Session restored(bench.engine);
  restored.restore(path);
  std::filesystem::remove(path);
  CHECK(restored.tokens() == prompt(37));
  CHECK(logits_of(restored) == here);
  CHECK(go_on(restored) == want);
}
