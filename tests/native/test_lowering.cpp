// SPDX-License-Identifier: MIT
#include "backends/gpu/lowering.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backends/gpu/kernel_names.h"
#include "check.h"
#include "graph/graph.h"

using namespace esker;
using namespace esker::gpu;

namespace {

// A model of the tests with what a lowering wants to know of it.
struct Lowered {
  explicit Lowered(const char* name) {
    const auto gguf = Gguf::open(std::string(ESKER_TEST_DATA) + "/oracle/" + name);
    config = read_config(*gguf, *gguf);
    weights = std::make_unique<Weights>(gguf, gguf, config);
    layout = make_state_layout(config, 512);
    arena.base_bytes.assign(config.n_layer, 0);
    for (uint32_t i = 0; i < config.n_layer; ++i) {
      arena.slot_bytes.push_back(weights->experts(i).record_bytes);
    }
    lowering = std::make_unique<Lowering>(config, *weights, layout, arena, tiles);
  }
  std::vector<Step> steps(GraphMode mode, LoweringRun run) {
    graph = build_graph(config, mode);
    return lowering->lower(graph, run);
  }
  Config config;
  std::unique_ptr<Weights> weights;
  StateLayout layout;
  ArenaView arena;
  TileTable tiles{"none"};
  Graph graph;
  std::unique_ptr<Lowering> lowering;
};

const char* const kModels[] = {"mq-mix1.gguf", "mq-mix2.gguf"};

std::vector<LoweringRun> windows() {
  return {{.n_tokens = 1, .n_logit_rows = 1, .position = 0},
          {.n_tokens = 1, .n_logit_rows = 1, .position = 130},
          {.n_tokens = 3, .n_logit_rows = 3, .position = 17, .has_prior = true, .prior_factor = 1.3f},
          {.n_tokens = 4, .n_logit_rows = 0, .position = 8}};
}
std::vector<LoweringRun> prompts() {
  return {{.n_tokens = 5, .n_logit_rows = 1, .position = 0},
          {.n_tokens = 64, .n_logit_rows = 2, .position = 33},
          {.n_tokens = 100, .n_logit_rows = 0, .position = 0}};
}

bool conflict(const Operand& a, const Operand& b) {
  return (a.writes || b.writes) && a.place == b.place && a.layer == b.layer && a.role == b.role &&
         std::max(a.offset, b.offset) < std::min(a.offset + a.bytes, b.offset + b.bytes);
}
bool conflict(const Launch& a, const Launch& b) {
  return std::ranges::any_of(a.operands, [&](const Operand& x) {
    return std::ranges::any_of(b.operands, [&](const Operand& y) { return conflict(x, y); });
  });
}

template <class Body>
void for_all_runs(const Body& body) {
  for (const char* model : kModels) {
    Lowered l(model);
    for (const LoweringRun& run : windows()) body(l, l.steps(GraphMode::kWindow, run), run);
    for (const LoweringRun& run : prompts()) body(l, l.steps(GraphMode::kPrompt, run), run);
  }
}

}  // namespace

TEST(lowering_uses_kernels_that_have_names) {
  const std::vector<std::string> names = all_kernel_names();
  const std::set<std::string> known(names.begin(), names.end());
  CHECK_EQUAL(known.size(), names.size());
  for_all_runs([&](Lowered&, const std::vector<Step>& steps, const LoweringRun&) {
    for (const Step& s : steps) {
      if (s.kind == Step::Kind::kLaunch) CHECK(known.count(s.launch.kernel) == 1);
    }
  });
}

// Each of the two ways to be wrong: launches that may overlap touch the same memory; a barrier without
// need.
TEST(lowering_has_barriers_where_launches_conflict_and_nowhere_else) {
  for_all_runs([](Lowered&, const std::vector<Step>& steps, const LoweringRun&) {
    std::vector<const Launch*> together;
    for (const Step& s : steps) {
      if (s.kind != Step::Kind::kLaunch) {
        together.clear();
        continue;
      }
      const bool needed = std::ranges::any_of(
          together, [&](const Launch* earlier) { return conflict(*earlier, s.launch); });
      CHECK_EQUAL(needed, s.launch.barrier);
      if (s.launch.barrier) together.clear();
      together.push_back(&s.launch);
    }
  });
}

TEST(lowering_signals_and_cuts_every_segment_once_in_order) {
  for_all_runs([](Lowered& l, const std::vector<Step>& steps, const LoweringRun&) {
    std::vector<std::pair<Step::Kind, int32_t>> marks;
    for (const Step& s : steps) {
      if (s.kind != Step::Kind::kLaunch) marks.emplace_back(s.kind, s.segment);
    }
    CHECK_EQUAL(marks.size(), 2 * l.graph.segments.size());
    for (size_t i = 0; i < marks.size(); ++i) {
      CHECK(marks[i].first == (i % 2 == 0 ? Step::Kind::kSignal : Step::Kind::kCut));
      CHECK_EQUAL(marks[i].second, static_cast<int32_t>(i / 2));
    }
  });
}

// Routed weights are read behind the cut only, and what the host wants before the signal only written there.
TEST(lowering_reads_the_arena_behind_the_cut_only) {
  for_all_runs([](Lowered&, const std::vector<Step>& steps, const LoweringRun&) {
    bool behind_cut = false;
    for (const Step& s : steps) {
      if (s.kind == Step::Kind::kCut) behind_cut = true;
      if (s.kind == Step::Kind::kSignal) behind_cut = false;
      for (const Operand& o : s.launch.operands) {
        if (o.place == Place::kArena || o.place == Place::kSlots) CHECK(behind_cut);
      }
    }
  });
}

TEST(lowering_stays_within_scratch_and_state) {
  for_all_runs([](Lowered& l, const std::vector<Step>& steps, const LoweringRun& run) {
    const uint64_t scratch = l.graph.scratch_width * run.n_tokens * sizeof(float);
    const ExtraLayout extra = extra_layout(l.config, run.n_tokens, run.position + run.n_tokens);
    for (const Step& s : steps) {
      CHECK(s.launch.groups.x > 0 && s.launch.groups.y > 0);
      CHECK(s.launch.threads.x <= 1024);
      for (const Operand& o : s.launch.operands) {
        const uint64_t end = o.offset + o.bytes;
        if (o.place == Place::kScratch) CHECK(end <= scratch);
        if (o.place == Place::kExtra) CHECK(end <= extra.bytes);
        if (o.place == Place::kStateIn || o.place == Place::kStateOut) {
          CHECK(end <= l.layout.n_recurrent * sizeof(float));
        }
        if (o.place == Place::kAppended) CHECK(end <= l.layout.n_appended * sizeof(float));
      }
    }
  });
}

// A window's up product and the read of the streams are one kernel; a prompt's are two.
TEST(lowering_fuses_the_mixers_read_in_a_window) {
  Lowered l(kModels[0]);
  const auto count = [](const std::vector<Step>& steps, const std::string& begin) {
    return std::ranges::count_if(steps, [&](const Step& s) { return s.launch.kernel.starts_with(begin); });
  };
  const auto mixers = static_cast<int64_t>(2 * l.config.n_layer + 1);
  const std::vector<Step> window = l.steps(GraphMode::kWindow, windows()[0]);
  CHECK_EQUAL(count(window, "mix_up_read"), mixers);
  CHECK_EQUAL(count(window, "mix_read"), 0);
  const std::vector<Step> prompt = l.steps(GraphMode::kPrompt, prompts()[0]);
  CHECK_EQUAL(count(prompt, "mix_read"), mixers - 1);
  CHECK_EQUAL(count(prompt, "mix_up_read"), 1);  // of the one row whose logits are wanted
}

TEST(tiles_of_a_family_come_before_the_baseline) {
  const TileTable measured("apple10"), unknown("none");
  CHECK(measured.find(TileUse::kMatvec, WeightType::kIQ4_XS, 12288, 2560) == (Tile{8, 1, 8, 1}));
  CHECK(unknown.find(TileUse::kMatvec, WeightType::kIQ4_XS, 12288, 2560) == Tile{});
  CHECK(measured.find(TileUse::kGateUp, WeightType::kIQ3_S, 640, 2560).threadgroup_table);
  for (const TileRow& row : tile_rows("apple10")) {
    CHECK(row.tile.simdgroups % row.tile.split == 0 && 32 % row.tile.lanes == 0);
    CHECK(std::string(row.evidence).find("GB/s") != std::string::npos);
  }
}
