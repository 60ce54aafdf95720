// SPDX-License-Identifier: MIT
#include "engine/model_plan.h"

#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/gpu/gpu_backend.h"
#include "base/error.h"
#include "stream/row_cache.h"

namespace esker {

uint32_t read_ahead_depth(const EngineOptions& options, const Config& config, const Weights& weights) {
  if (options.read_ahead >= 0) return static_cast<uint32_t>(options.read_ahead);
  // The demo's records of 23 KB: read-ahead a tenth slower; records of 1.4 MB: faster
  // (bench/results/stream-demo.json, stream-real12.json).
  constexpr uint64_t kRecordMin = uint64_t{128} << 10;
  uint64_t largest = 0;
  for (uint32_t i = 0; i < config.n_layer; ++i) {
    largest = std::max(largest, weights.experts(i).record_bytes);
  }
  return largest < kRecordMin ? 0 : (config.n_expert_used * 8 + 4) / 5;
}

MemoryPlan plan_model(const EngineOptions& options, const Config& config, const Weights& weights,
                      const MachineMemory& machine) {
  uint64_t context = options.context;
  if (context == 0) context = std::min<uint64_t>(kDefaultContext, config.context_length);
  if (context > config.context_length) {
    raise(ErrorKind::kUsage, "engine",
          {.what = "the context is longer than the model was made for",
           .got = std::to_string(context) + " tokens",
           .want = "at most " + std::to_string(config.context_length),
           .where = weights.gguf().path(),
           .hint = "lower --context"});
  }
  const StateLayout layout = make_state_layout(config, context);
  PlanRequest request;
  for (uint32_t i = 0; i < config.n_layer; ++i) {
    request.record_bytes.push_back(weights.experts(i).record_bytes);
  }
  request.n_expert = config.n_expert;
  request.n_expert_used = config.n_expert_used;
  request.dense_bytes = weights.dense_bytes();
  if (config.has_ple()) {
    const TableLayout& table = weights.table();
    request.table_bytes = table.rows * table.row_bytes;
    request.table_cache_bytes = RowCache::bytes_for_all(table.row_bytes, table.rows);
  }
  const uint32_t guess_layers = options.read_ahead_2 > 0 ? 2 : read_ahead_depth(options, config, weights) > 0 ? 1 : 0;
  request.guess_layers = guess_layers;
  request.guess_bytes = weights.router_copies_bytes();
  request.scratch_bytes_per_token =
      sizeof(float) *
      std::max(build_graph(config, GraphMode::kWindow, guess_layers).scratch_width,
               build_graph(config, GraphMode::kPrompt, std::min(guess_layers, 1u)).scratch_width);
  request.scratch_bytes_per_token +=
      options.backend == "cpu" ? cpu_bytes_per_token(config) : gpu_bytes_per_token(config, context);
  request.recurrent_bytes = layout.n_recurrent * sizeof(float);
  request.appended_bytes = layout.n_appended * sizeof(float);
  request.memory_bytes = options.memory_bytes;
  request.keep_free_bytes = options.keep_free_bytes;
  request.arena_bytes = options.arena_bytes;
  request.arena_fraction = options.arena_fraction;
  request.slots_per_layer = options.slots;
  request.min_slots = options.min_slots;
  request.class_waste = options.class_waste;
  request.chunk = options.chunk;
  request.context = context;
  request.machine = machine;
  return make_memory_plan(request);
}

}  // namespace esker
