// SPDX-License-Identifier: MIT
//
// One walk of a lowering through a graph: what the two files of the lowering share.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "abi/kernel_args.h"
#include "backends/gpu/lowering.h"
#include "base/units.h"

namespace esker::gpu {

inline constexpr uint64_t kFloat = sizeof(float);
inline uint32_t u32(uint64_t n) { return static_cast<uint32_t>(n); }

// Tokens whose block scores, `stride` a token, are held at a time.
uint64_t score_slice(uint64_t tokens, uint64_t stride);

// Ranges touched since the last barrier.
class Hazards {
 public:
  // Whether a launch must wait for those before it; notes what it touches.
  bool add(const std::vector<Operand>& operands);
  void clear() { touched_.clear(); }

 private:
  std::vector<Operand> touched_;
};

// One walk through a graph.
class Lowering::Pass {
 public:
  Pass(const Lowering& lowering, const Graph& graph, const LoweringRun& run)
      : l_(lowering), c_(lowering.config_), graph_(graph), run_(run),
        extra_(extra_layout(c_, run.n_tokens, run.position + run.n_tokens)),
        handed_(handed_layout(graph, run.n_tokens)) {}

  std::vector<Step> all() {
    size_t segment = 0;
    const auto here = [&](int32_t i, int32_t Segment::*what) {
      return segment < graph_.segments.size() && graph_.segments[segment].*what == i;
    };
    for (int32_t i = 0; i < static_cast<int32_t>(graph_.ops.size()); ++i) {
      if (here(i, &Segment::signal)) mark(Step::Kind::kSignal, segment);
      if (here(i, &Segment::cut)) {
        mark(Step::Kind::kCut, segment);
        experts(graph_.ops[static_cast<size_t>(i)], segment, true);
        ++segment;
        continue;
      }
      op(graph_.ops[static_cast<size_t>(i)]);
    }
    return std::move(steps_);
  }

  std::vector<Launch> round(size_t segment) {
    experts(graph_.ops[static_cast<size_t>(graph_.segments[segment].cut)], segment, false);
    std::vector<Launch> launches;
    for (Step& s : steps_) launches.push_back(std::move(s.launch));
    return launches;
  }

 private:
  // --- operands

  const BufferDesc& desc(BufferId id) const { return graph_.buffers[static_cast<size_t>(id)]; }
  uint32_t width(BufferId id) const { return desc(id).width; }
  uint32_t rows(const Op& op) const { return op.rows == Rows::kAll ? run_.n_tokens : run_.n_logit_rows; }

  // The op's rows of a buffer.
  Operand buffer(const Op& op, BufferId id, bool writes) const {
    const BufferDesc& b = desc(id);
    const uint64_t row = uint64_t{b.width} * kFloat, n = rows(op), skipped = run_.n_tokens - n;
    switch (b.kind) {
      case BufferKind::kPleRows: return {.place = Place::kPleRows, .bytes = run_.n_tokens * row};
      case BufferKind::kLogits:
        return {.place = Place::kLogits, .writes = writes, .bytes = run_.n_logit_rows * row};
      case BufferKind::kScratch: break;
    }
    if (const int64_t at = handed_.offset[static_cast<size_t>(id)]; at >= 0) {
      return {.place = Place::kHanded, .writes = writes, .offset = static_cast<uint64_t>(at), .bytes = n * row};
    }
    return {.place = Place::kScratch, .writes = writes,
            .offset = b.offset * run_.n_tokens * kFloat + skipped * row, .bytes = n * row};
  }
  Operand in(const Op& op, size_t i) const { return buffer(op, op.in[i], false); }
  Operand out(const Op& op, size_t i) const { return buffer(op, op.out[i], true); }
  const Weight& weight(WeightRef ref) const { return l_.weights_.get(ref); }
  Operand matrix(WeightRef ref) const {
    return {.place = Place::kWeight, .layer = ref.layer, .role = ref.role, .bytes = weight(ref).bytes};
  }
  Operand small(WeightRef ref) const {
    return {.place = Place::kSmall, .layer = ref.layer, .role = ref.role,
            .bytes = weight(ref).rows * weight(ref).cols * kFloat};
  }
  Operand state(Place place, uint64_t at, uint64_t floats) const {
    return {.place = place, .writes = place == Place::kStateOut, .offset = at * kFloat,
            .bytes = floats * kFloat};
  }
  // Bound from its layer's first row on; floats [from, from + n) of it are touched.
  Operand whole_appended(uint64_t at, uint64_t from, uint64_t n, bool writes) const {
    return {.place = Place::kAppended, .writes = writes, .offset = at * kFloat,
            .bytes = (from + n) * kFloat};
  }
  Operand extra(uint64_t offset, uint64_t bytes, bool writes) const {
    return {.place = Place::kExtra, .writes = writes, .offset = offset, .bytes = bytes};
  }
  Operand slots(size_t segment) const {
    const uint64_t bytes = (1 + uint64_t{c_.n_expert}) * 4;
    return {.place = Place::kSlots, .offset = segment * bytes, .bytes = bytes};
  }
  Operand arena(int32_t layer) const { return {.place = Place::kArena, .layer = layer, .bytes = 1}; }
  Operand turns() const { return {.place = Place::kTurns, .bytes = 1}; }
  const LayerState& layer_state(const Op& op) const {
    return l_.layout_.layers[static_cast<size_t>(op.layer)];
  }

  // --- launches

  void mark(Step::Kind kind, size_t segment) {
    if (!run_.ahead) hazards_.clear();  // the device is in step with the host there
    steps_.push_back({.kind = kind, .segment = static_cast<int32_t>(segment), .launch = {}});
  }

  void add(Launch l) {
    if (l.groups.x == 0 || l.groups.y == 0) return;
    l.barrier = hazards_.add(l.operands);
    steps_.push_back({.kind = Step::Kind::kLaunch, .segment = -1, .launch = std::move(l)});
  }
  template <class Args>
  void launch(std::string kernel, const Args& args, std::vector<Operand> operands, Extent groups,
              uint32_t threads) {
    add(make_launch(std::move(kernel), args, std::move(operands), groups, threads));
  }

  void op(const Op& op) {
    if (rows(op) == 0) return;
    switch (op.kind) {
      case OpKind::kEmbed: return embed(op);
      case OpKind::kMatmul: return matmul(op);
      case OpKind::kStreamNorm: return stream_norm(op);
      case OpKind::kMixRead: return mix_read(op);
      case OpKind::kMixWrite: return mix_write(op);
      case OpKind::kPleGate: return ple_gate(op);
      case OpKind::kPleConv: return ple_conv(op);
      case OpKind::kGdnConv: return gdn_conv(op);
      case OpKind::kGdnGates: return gdn_gates(op);
      case OpKind::kDeltaStep: return delta_step(op);
      case OpKind::kDeltaChunk: return delta_chunk(op);
      case OpKind::kGdnNorm: return gdn_norm(op);
      case OpKind::kAttnPrepare: return attn_prepare(op);
      case OpKind::kIndexPrepare: return index_prepare(op);
      case OpKind::kBlockSelect: return block_select(op);
      case OpKind::kAttention: return attention(op);
      case OpKind::kRoute: return route(op);
      case OpKind::kSwiglu: return swiglu(op);
      case OpKind::kMoeCombine: return moe_combine(op);
      case OpKind::kExperts: return;  // at a cut
    }
  }

  void embed(const Op& op);
  void matmul(const Op& op);
  void stream_norm(const Op& op);
  void mix_read(const Op& op);
  void mix_write(const Op& op);
  void ple_gate(const Op& op);
  void ple_conv(const Op& op);
  void gdn_conv(const Op& op);
  void gdn_gates(const Op& op);
  void delta_step(const Op& op);
  void delta_chunk(const Op& op);
  void gdn_norm(const Op& op);
  void attn_prepare(const Op& op);
  void index_prepare(const Op& op);
  void block_select(const Op& op);
  void attention(const Op& op);
  void route(const Op& op);
  void swiglu(const Op& op);
  void moe_combine(const Op& op);
  // A segment's routed experts: of the last round, with what belongs after it, or of one before it.
  void experts(const Op& op, size_t segment, bool last);
  template <class Emit>
  void gate_and_up(const Op& op, const Emit& emit);
  ExpertDownArgs down_args(const Op& op) const;
  bool is_read_at_once(const Op& op) const;
  void window_experts(const Op& op, size_t segment);
  void prompt_experts(const Op& op, size_t segment, bool last);

  const Lowering& l_;
  const Config& c_;
  const Graph& graph_;
  const LoweringRun& run_;
  const ExtraLayout extra_;
  const HandedLayout handed_;
  Hazards hazards_;
  std::vector<Step> steps_;
  const Op* up_ = nullptr;  // the up product that the next mix_read makes at once
};

}  // namespace esker::gpu
