// SPDX-License-Identifier: MIT
//
// Builds the op list of SPEC sections 2 to 7 and lays the scratch buffers out.
#include "graph/graph.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/units.h"

namespace esker {
namespace {

class Builder {
 public:
  Builder(const Config& config, GraphMode mode, uint32_t guess_layers)
      : c_(config), guess_layers_(guess_layers) {
    g_.mode = mode;
  }

  Graph build() {
    residual_ = buffer("residual", c_.n_stream * c_.d_model);
    add({.kind = OpKind::kEmbed, .w = {global(Role::kTokenEmbd)}, .out = {residual_}});
    for (uint32_t i = 0; i < c_.n_layer; ++i) {
      layer_ = static_cast<int32_t>(i);
      if (c_.is_ple[i]) ple();
      auto [x, inject] = mix(Role::kHcAttnNorm, Role::kHcAttnDown, Role::kHcAttnUp,
                             Role::kHcAttnInject, Rows::kAll);
      write(c_.is_linear[i] ? delta_net(x) : attention(x), inject);
      std::tie(x, inject) = mix(Role::kHcFfnNorm, Role::kHcFfnDown, Role::kHcFfnUp,
                                Role::kHcFfnInject, Rows::kAll);
      write(experts(x), inject);
    }
    head();
    place_buffers();
    return std::move(g_);
  }

 private:
  WeightRef global(Role role) const { return {role, -1}; }
  WeightRef of(Role role) const { return {role, layer_}; }

  BufferId buffer(const char* name, uint32_t width, bool is_int = false,
                  BufferKind kind = BufferKind::kScratch) {
    g_.buffers.push_back({name, kind, width, is_int, INT32_MAX, -1, 0});
    return static_cast<BufferId>(g_.buffers.size() - 1);
  }

  int32_t add(Op op) {
    op.layer = layer_;
    g_.ops.push_back(op);
    return static_cast<int32_t>(g_.ops.size() - 1);
  }

  BufferId matmul(const char* name, WeightRef w, BufferId x, uint32_t width,
                  Rows rows = Rows::kAll, Epilogue epilogue = Epilogue::kNone, float scale = 1) {
    const BufferId y = buffer(name, width);
    add({.kind = OpKind::kMatmul, .rows = rows, .epilogue = epilogue, .scale = scale, .w = {w},
         .in = {x}, .out = {y}});
    return y;
  }

  // The hyper-connection's read: x and, unless it is the last, the raw inject weights.
  std::pair<BufferId, BufferId> mix(Role norm, Role down, Role up, Role inject, Rows rows) {
    const bool last = norm == Role::kOutputHcNorm;
    const auto w = [&](Role r) { return last ? global(r) : of(r); };
    const uint32_t wide = c_.n_stream * c_.d_model;
    const BufferId normed = buffer("normed", wide);
    add({.kind = OpKind::kStreamNorm, .rows = rows, .w = {w(norm)}, .in = {residual_},
         .out = {normed}});
    const BufferId low = matmul("low_rank", w(down), normed, c_.low_rank, rows, Epilogue::kSilu,
                                1.0f / static_cast<float>(c_.n_stream));
    const BufferId gates = matmul("mix_gates", w(up), low, wide, rows);
    const BufferId raw =
        last ? kNoBuffer : matmul("inject", w(inject), normed, c_.n_stream, rows);
    const BufferId x = buffer("mixed", c_.d_model);
    add({.kind = OpKind::kMixRead, .rows = rows, .in = {normed, gates, low}, .out = {x}});
    return {x, raw};
  }

  void write(BufferId y, BufferId inject) {
    add({.kind = OpKind::kMixWrite, .in = {y, inject}, .out = {residual_}});
  }

  void ple() {
    const uint32_t wide = c_.n_stream * c_.d_model;
    const BufferId rows = buffer("ple_rows", c_.d_model, false, BufferKind::kPleRows);
    const BufferId key = matmul("ple_key", of(Role::kPleKey), rows, wide);
    const BufferId value = matmul("ple_value", of(Role::kPleValue), rows, c_.d_model);
    const BufferId v = buffer("ple_gated", wide);
    const BufferId n = buffer("ple_normed", wide);
    add({.kind = OpKind::kPleGate,
         .w = {of(Role::kPleNormKey), of(Role::kPleNormQuery), of(Role::kPleNormConv)},
         .in = {key, value, residual_},
         .out = {v, n}});
    add({.kind = OpKind::kPleConv, .w = {of(Role::kPleConv)}, .in = {v, n}, .out = {residual_}});
  }

  BufferId delta_net(BufferId x) {
    const uint32_t values = c_.value_width();
    const BufferId qkv = matmul("qkv", of(Role::kQkv), x, c_.qkv_width());
    const BufferId z = matmul("gdn_gate", of(Role::kGdnGate), x, values);
    const BufferId alpha = matmul("alpha", of(Role::kAlpha), x, c_.n_value_head);
    const BufferId beta = matmul("beta_raw", of(Role::kBeta), x, c_.n_value_head);
    const BufferId conv = buffer("qkv_conv", c_.qkv_width());
    add({.kind = OpKind::kGdnConv, .w = {of(Role::kConv)}, .in = {qkv}, .out = {conv}});
    const BufferId decay = buffer("log_decay", c_.n_value_head);
    const BufferId rate = buffer("beta", c_.n_value_head);
    add({.kind = OpKind::kGdnGates, .w = {of(Role::kDecay), of(Role::kDtBias)},
         .in = {alpha, beta}, .out = {decay, rate}});
    const BufferId o = buffer("delta_out", values);
    add({.kind = g_.mode == GraphMode::kWindow ? OpKind::kDeltaStep : OpKind::kDeltaChunk,
         .in = {conv, decay, rate}, .out = {o}});
    const BufferId gated = buffer("gdn_normed", values);
    add({.kind = OpKind::kGdnNorm, .w = {of(Role::kGdnNorm)}, .in = {o, z}, .out = {gated}});
    return matmul("branch", of(Role::kGdnOut), gated, c_.d_model);
  }

  BufferId attention(BufferId x) {
    const uint32_t heads = c_.n_head * c_.d_head, kv = c_.n_kv_head * c_.d_head;
    const uint32_t ratio = c_.compress_ratio[static_cast<size_t>(layer_)];
    const BufferId qg = matmul("q_and_gate", of(Role::kQ), x, 2 * heads);
    const BufferId k = matmul("k", of(Role::kK), x, kv);
    const BufferId v = matmul("v", of(Role::kV), x, kv);
    const BufferId q = buffer("q", heads);
    add({.kind = OpKind::kAttnPrepare, .w = {of(Role::kQNorm), of(Role::kKNorm)},
         .in = {qg, k, v}, .out = {q}});
    BufferId selected = kNoBuffer;
    if (ratio != 0) {
      const BufferId iq = matmul("index_q", of(Role::kIndexQ), x, c_.n_index_head * c_.d_index);
      const BufferId ik = matmul("index_k", of(Role::kIndexK), x, c_.d_index);
      const BufferId turned = buffer("index_q_turned", c_.n_index_head * c_.d_index);
      add({.kind = OpKind::kIndexPrepare, .w = {of(Role::kIndexQNorm), of(Role::kIndexKNorm)},
           .in = {iq, ik}, .out = {turned}});
      selected = buffer("selected", 1 + c_.index_budget / ratio, true);
      add({.kind = OpKind::kBlockSelect, .in = {turned}, .out = {selected}});
    }
    const BufferId o = buffer("attended", heads);
    add({.kind = OpKind::kAttention, .in = {q, qg, selected}, .out = {o}});
    return matmul("branch", of(Role::kAttnOut), o, c_.d_model);
  }

  BufferId experts(BufferId x) {
    const BufferId scores = matmul("router", of(Role::kRouter), x, c_.n_expert);
    const BufferId picks = buffer("picks", c_.n_expert_used, true);
    const BufferId weights = buffer("pick_weights", c_.n_expert_used);
    const BufferId wanted = buffer("wanted", c_.n_expert_used, true);
    add({.kind = OpKind::kRoute, .in = {scores}, .out = {picks, weights, wanted}});

    Segment s{.layer = layer_, .signal = next_op(), .cut = 0, .end = 0, .picks = picks, .wanted = wanted};
    for (uint32_t i = 0; i < guess_layers_; ++i) {
      const int32_t later = layer_ + 1 + static_cast<int32_t>(i);
      if (later >= static_cast<int32_t>(c_.n_layer)) break;
      s.guesses[i] = matmul("guess", {Role::kRouterAhead, later}, x, c_.n_expert);
    }
    const BufferId gate = matmul("shared_gate", of(Role::kSharedGate), x, c_.d_shared);
    const BufferId up = matmul("shared_up", of(Role::kSharedUp), x, c_.d_shared);
    const BufferId act = buffer("shared_act", c_.d_shared);
    add({.kind = OpKind::kSwiglu, .in = {gate, up}, .out = {act}});
    const BufferId shared = matmul("shared_out", of(Role::kSharedDown), act, c_.d_model);
    const BufferId share = matmul("shared_router", of(Role::kSharedRouter), x, 1);

    s.cut = next_op();
    const BufferId y = buffer("branch", c_.d_model);
    const BufferId h = buffer("expert_act", c_.n_expert_used * c_.d_expert);
    add({.kind = OpKind::kExperts, .in = {x, picks, weights}, .out = {y, h}});
    s.end = next_op();
    g_.segments.push_back(s);
    add({.kind = OpKind::kMoeCombine, .in = {shared, share}, .out = {y}});
    return y;
  }

  void head() {
    layer_ = -1;
    const BufferId x = mix(Role::kOutputHcNorm, Role::kOutputHcDown, Role::kOutputHcUp,
                           Role::kCount, Rows::kLogits).first;
    const BufferId logits = buffer("logits", c_.n_vocab, false, BufferKind::kLogits);
    add({.kind = OpKind::kMatmul, .rows = Rows::kLogits, .w = {global(Role::kOutput)}, .in = {x},
         .out = {logits}});
  }

  int32_t next_op() const { return static_cast<int32_t>(g_.ops.size()); }

  // First fit by time: a buffer takes the lowest place that no buffer alive with it holds.
  void place_buffers() {
    for (int32_t i = 0; i < next_op(); ++i) {
      const auto touch = [&](BufferId id) {
        if (id == kNoBuffer) return;
        BufferDesc& b = g_.buffers[static_cast<size_t>(id)];
        b.first_op = std::min(b.first_op, i);
        b.last_op = std::max(b.last_op, i);
      };
      for (BufferId id : g_.ops[static_cast<size_t>(i)].in) touch(id);
      for (BufferId id : g_.ops[static_cast<size_t>(i)].out) touch(id);
    }
    // The host looks at what was picked while the device goes on to the cut, and at guesses while it goes
    // on to the next one.
    for (size_t i = 0; i < g_.segments.size(); ++i) {
      const int32_t until = i + 1 < g_.segments.size() ? g_.segments[i + 1].cut : next_op() - 1;
      BufferDesc& wanted = g_.buffers[static_cast<size_t>(g_.segments[i].wanted)];
      wanted.last_op = std::max(wanted.last_op, g_.segments[i].cut);
      for (const BufferId id : g_.segments[i].guesses) {
        if (id != kNoBuffer) g_.buffers[static_cast<size_t>(id)].last_op = until;
      }
    }
    std::vector<BufferDesc*> placed;
    for (BufferDesc& b : g_.buffers) {
      if (b.kind != BufferKind::kScratch) continue;
      std::vector<const BufferDesc*> alive;
      for (const BufferDesc* p : placed) {
        if (p->first_op <= b.last_op && b.first_op <= p->last_op) alive.push_back(p);
      }
      std::sort(alive.begin(), alive.end(),
                [](const BufferDesc* p, const BufferDesc* q) { return p->offset < q->offset; });
      const uint64_t width = padded(b.width);
      uint64_t offset = 0;
      for (const BufferDesc* p : alive) {
        if (offset + width <= p->offset) break;
        offset = std::max(offset, p->offset + padded(p->width));
      }
      b.offset = offset;
      g_.scratch_width = std::max(g_.scratch_width, offset + width);
      placed.push_back(&b);
    }
  }

  // 64 bytes, so that every buffer begins on a cache line whatever T is.
  static uint64_t padded(uint32_t width) { return align_up(width, 16); }

  const Config& c_;
  const uint32_t guess_layers_;
  Graph g_;
  int32_t layer_ = -1;
  BufferId residual_ = kNoBuffer;
};

}  // namespace

Graph build_graph(const Config& config, GraphMode mode, uint32_t guess_layers) {
  return Builder(config, mode, guess_layers).build();
}

StateLayout make_state_layout(const Config& c, uint64_t context) {
  StateLayout s;
  s.context = context;
  s.layers.resize(c.n_layer);
  const auto take = [](uint64_t& total, uint64_t n) {
    const uint64_t at = total;
    total += align_up(n, 16);
    return at;
  };
  for (uint32_t i = 0; i < c.n_layer; ++i) {
    LayerState& l = s.layers[i];
    if (c.is_ple[i]) {
      l.ple = take(s.n_recurrent, uint64_t{c.ple_history()} * c.n_stream * c.d_model);
    }
    if (c.is_linear[i]) {
      l.conv = take(s.n_recurrent, uint64_t{c.conv_kernel - 1} * c.qkv_width());
      l.delta = take(s.n_recurrent, uint64_t{c.n_value_head} * c.d_linear_head * c.d_linear_head);
      continue;
    }
    const uint64_t kv = uint64_t{c.n_kv_head} * c.d_head;
    l.keys = take(s.n_appended, context * kv);
    l.values = take(s.n_appended, context * kv);
    if (const uint64_t r = c.compress_ratio[i]; r != 0) {
      l.index_tail = take(s.n_recurrent, r * c.d_index);
      l.block_keys = take(s.n_appended, div_ceil(context, r) * c.d_index);
    }
  }
  return s;
}

const char* op_name(OpKind kind) {
  static const char* const kNames[] = {
      "embed", "matmul", "stream_norm", "mix_read", "mix_write", "ple_gate", "ple_conv",
      "gdn_conv", "gdn_gates", "delta_step", "delta_chunk", "gdn_norm", "attn_prepare",
      "index_prepare", "block_select", "attention", "route", "swiglu", "experts", "moe_combine"};
  return kNames[static_cast<size_t>(kind)];
}

std::string dump(const Graph& graph) {
  std::string text;
  const auto name = [&](BufferId id) { return graph.buffers[static_cast<size_t>(id)].name; };
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    for (const Segment& s : graph.segments) {
      if (s.signal == static_cast<int32_t>(i)) text += "-- signal " + std::to_string(s.layer) + "\n";
      if (s.cut == static_cast<int32_t>(i)) text += "-- cut " + std::to_string(s.layer) + "\n";
    }
    text += std::to_string(i) + " " + op_name(op.kind);
    if (op.layer >= 0) text += " L" + std::to_string(op.layer);
    for (const WeightRef& w : op.w) {
      if (w.role != Role::kCount) text += std::string(" ") + role_name(w.role);
    }
    for (BufferId id : op.in) {
      if (id != kNoBuffer) text += std::string(" ") + name(id);
    }
    text += " ->";
    for (BufferId id : op.out) {
      if (id != kNoBuffer) text += std::string(" ") + name(id);
    }
    text += "\n";
  }
  return text;
}

}  // namespace esker
