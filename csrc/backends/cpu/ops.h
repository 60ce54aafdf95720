// SPDX-License-Identifier: MIT
//
// What the CPU ops share: one run's view of graph, weights, buffers and threads; and the list of ops.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/kernels.h"
#include "base/thread_pool.h"
#include "graph/backend.h"
#include "graph/graph.h"
#include "graph/small_tensors.h"
#include "graph/weights.h"

namespace esker::cpu {

struct Context;

// Packed forms of the buffers of a run, made when first wanted and shared by the products that read
// the same buffer (gate and up, all projections of a layer). A buffer has one value in its life, so
// its id is the key.
class PackCache {
 public:
  // At the start of a run.
  void clear();
  // Of the op's rows of a buffer whose vectors have n values, `parts` bytes a value. Valid until four
  // others were wanted.
  const Packed& get(const Context& c, const Op& op, BufferId id, Order order, int parts, int64_t n);
  static constexpr size_t kEntries = 4;
  // Gives all of it back.
  void trim() {
    entries_ = {};
    experts_ = {};
  }
  // For the routed experts' activations, whose values change from round to round.
  Packed& experts() { return experts_; }

 private:
  struct Entry {
    BufferId id = kNoBuffer;
    Packed packed;
  };
  std::array<Entry, kEntries> entries_;
  size_t next_ = 0;
  Packed experts_;
};

// Cosines and sines [n_rope/2] each of a run's positions, made once for all layers and heads.
class RopeTable {
 public:
  // Of a position of the run; the following positions' lie behind it, n_rope apart.
  const float* of(const Context& c, int64_t position);

 private:
  int64_t first_ = -1, tokens_ = 0;
  std::vector<float> turns_;
};

struct Context {
  const Config& config;
  const Weights& weights;
  const SmallTensors& small;
  const Graph& graph;
  const Run& run;
  ThreadPool& pool;
  const Kernels& kernels;
  PackCache& packs;
  RopeTable& rope;
  std::vector<std::vector<float>>& thread_floats;  // scratch of each thread, grown by reserve()
  int parts;  // bytes an activation, where nothing is decided

  int64_t rows(const Op& op) const {
    return op.rows == Rows::kAll ? run.n_tokens : run.n_logit_rows;
  }
  // First row an op works on: the logits' rows are the run's last.
  int64_t first_row(const Op& op) const { return run.n_tokens - rows(op); }

  float* floats(BufferId id) const;
  int32_t* ints(BufferId id) const { return reinterpret_cast<int32_t*>(floats(id)); }
  int64_t width(BufferId id) const { return graph.buffers[static_cast<size_t>(id)].width; }

  const Weight& weight(WeightRef ref) const { return weights.get(ref); }
  const float* vector(WeightRef ref) const { return small.get(ref); }
  const LayerState& state(const Op& op) const {
    return run.layout->layers[static_cast<size_t>(op.layer)];
  }
  // At least n floats for each thread; call before the parallel loop.
  void reserve(int64_t n) const;
};

void embed(const Context&, const Op&);
void matmul(const Context&, const Op&);
void swiglu(const Context&, const Op&);
void stream_norm(const Context&, const Op&);
void mix_read(const Context&, const Op&);
void mix_write(const Context&, const Op&);
void ple_gate(const Context&, const Op&);
void ple_conv(const Context&, const Op&);
void gdn_conv(const Context&, const Op&);
void gdn_gates(const Context&, const Op&);
void delta_step(const Context&, const Op&);
void delta_chunk(const Context&, const Op&);
void gdn_norm(const Context&, const Op&);
void attn_prepare(const Context&, const Op&);
void index_prepare(const Context&, const Op&);
void block_select(const Context&, const Op&);
void attention(const Context&, const Op&);
void route(const Context&, const Op&);
// `held`: experts of earlier rounds whose outputs are still to be added; empty before the first round.
void experts(const Context&, const Op&, const ExpertRound&, bool first_round, std::vector<int32_t>& held);
void moe_combine(const Context&, const Op&);

}  // namespace esker::cpu
