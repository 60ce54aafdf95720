// SPDX-License-Identifier: MIT
#include "backends/gpu/lowering.h"

#include <algorithm>

#include "abi/kernel_args.h"
#include "backends/gpu/lowering_pass.h"
#include "base/units.h"

namespace esker::gpu {
namespace {

uint32_t max_ratio(const Config& c) {
  return c.compress_ratio.empty() ? 0 : *std::ranges::max_element(c.compress_ratio);
}

}  // namespace

bool Hazards::add(const std::vector<Operand>& operands) {
  const bool conflict = std::ranges::any_of(operands, [&](const Operand& o) {
    return std::ranges::any_of(touched_, [&](const Operand& t) {
      return (o.writes || t.writes) && o.place == t.place && o.layer == t.layer && o.role == t.role &&
             o.offset < t.offset + t.bytes && t.offset < o.offset + o.bytes;
    });
  });
  if (conflict) touched_.clear();
  for (const Operand& o : operands) {
    const bool is_constant = o.place == Place::kWeight || o.place == Place::kSmall;
    if (!is_constant) touched_.push_back(o);
  }
  return conflict;
}

ExtraLayout extra_layout(const Config& c, uint64_t tokens, uint64_t end) {
  ExtraLayout e;
  const auto take = [&](uint64_t& at, uint64_t bytes) {
    at = e.bytes;
    e.bytes += align_up(bytes, 64);
    return bytes;
  };
  const uint64_t picks = tokens * c.n_expert_used;
  e.order_bytes = take(e.order, picks * 4);
  if (const uint32_t ratio = max_ratio(c); ratio != 0) {
    e.score_stride = u32(align_up(end / ratio + 1, 16));
    e.scores_bytes = take(e.scores, score_slice(tokens, e.score_stride) * e.score_stride * kFloat);
  }
  if (tokens <= kMaxWindow) {
    e.attention_bytes = take(e.attention, tokens * c.n_head * kAttentionSpans * (c.d_head + 2) * kFloat);
    return e;
  }
  e.tiles = u32(std::min<uint64_t>(picks, picks / kTileTokens + c.n_expert));
  e.counts_bytes = take(e.counts, uint64_t{c.n_expert} * 4);
  take(e.first, uint64_t{c.n_expert} * 4);
  e.plan_bytes = take(e.plan, (1 + 3 * uint64_t{e.tiles} + picks) * 4);
  e.parts_bytes = take(e.parts, picks * c.d_model * kFloat);
  e.delta_bytes = take(e.delta, div_ceil(tokens, kDeltaTokens) * c.n_value_head * kDeltaFloats * kFloat);
  return e;
}

HandedLayout handed_layout(const Graph& graph, uint64_t tokens) {
  HandedLayout h;
  h.offset.assign(graph.buffers.size(), -1);
  const auto hand = [&](BufferId id) {
    if (id == kNoBuffer) return;
    h.offset[static_cast<size_t>(id)] = static_cast<int64_t>(h.bytes);
    h.bytes += align_up(graph.buffers[static_cast<size_t>(id)].width * tokens * kFloat, 64);
  };
  for (const Segment& s : graph.segments) {
    hand(s.picks);
    hand(s.wanted);
    for (const BufferId id : s.guesses) hand(id);
  }
  return h;
}

Lowering::Lowering(const Config& config, const Weights& weights, const StateLayout& layout,
                   const ArenaView& arena, const TileTable& tiles)
    : config_(config), weights_(weights), layout_(layout), arena_(arena), tiles_(tiles) {}

std::vector<Step> Lowering::lower(const Graph& graph, const LoweringRun& run) const {
  return Pass(*this, graph, run).all();
}

std::vector<Launch> Lowering::lower_round(const Graph& graph, const LoweringRun& run,
                                          size_t segment) const {
  return Pass(*this, graph, run).round(segment);
}

uint64_t Lowering::first_turn(const Config& config, uint64_t position) {
  const uint64_t before = max_ratio(config) == 0 ? 0 : max_ratio(config) - 1;
  return position - std::min(position, before);
}

std::string dump(const std::vector<Step>& steps) {
  static const char* const kPlaces[] = {"scratch", "extra", "weight", "small", "in", "out", "appended",
                                        "arena", "slots", "tokens", "ple", "turns", "favoured", "logits",
                                        "handed"};
  std::string text;
  for (const Step& s : steps) {
    if (s.kind != Step::Kind::kLaunch) {
      text += (s.kind == Step::Kind::kSignal ? "-- signal " : "-- cut ") + std::to_string(s.segment) + "\n";
      continue;
    }
    const Launch& l = s.launch;
    text += (l.barrier ? "| " : "  ") + l.kernel + " " + std::to_string(l.groups.x) + "x" +
            std::to_string(l.groups.y) + " of " + std::to_string(l.threads.x);
    for (const Operand& o : l.operands) {
      text += std::string(o.writes ? " >" : " ") + kPlaces[static_cast<size_t>(o.place)];
      if (o.role != Role::kCount) text += std::string(":") + role_name(o.role);
    }
    text += "\n";
  }
  return text;
}

}  // namespace esker::gpu
