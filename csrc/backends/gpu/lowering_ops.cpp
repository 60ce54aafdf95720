// SPDX-License-Identifier: MIT
//
// Op by op: kernel, arguments, buffers and grid. The grids are those that the kernels' comments state.
#include <cmath>

#include "abi/kernel_args.h"
#include "backends/gpu/kernel_names.h"
#include "backends/gpu/lowering_pass.h"

namespace esker::gpu {
namespace {

// Scores of blocks at a time: 16 MB of floats, whatever the chunk and the context.
constexpr uint64_t kScoreFloats = uint64_t{4} << 20;

uint32_t groups_of(uint64_t n, uint64_t each) { return u32(div_ceil(n, each)); }

// Rows that a threadgroup of the matrix-vector kernels takes.
uint32_t rows_of(const Tile& t) { return t.simdgroups / t.split * (32 / t.lanes) * t.rows; }

template <class Args>
Launch tiled_launch(const char* base, WeightType type, const Args& args, const Tile& t,
                    std::vector<Operand> operands, Extent groups) {
  const bool in_threadgroup = t.threadgroup_table && has_threadgroup_table(base, type);
  Launch l = make_launch(kernel_name(base, type, t.rows, in_threadgroup), args, std::move(operands), groups,
                         32 * t.simdgroups);
  l.constants = {Constant{kLanesConstant, t.lanes}, Constant{kSplitConstant, t.split},
                 Constant{kTokensConstant, args.tokens}, Constant{kStageConstant, t.stage}};
  l.n_constants = 4;
  return l;
}

}  // namespace

Launch matvec_launch(WeightType type, const MatrixArgs& args, const Tile& t, std::vector<Operand> operands) {
  return tiled_launch("matvec", type, args, t, std::move(operands), {groups_of(args.rows, rows_of(t)), 1});
}
Launch gate_up_launch(WeightType type, const ExpertGateUpArgs& args, const Tile& t,
                      std::vector<Operand> operands) {
  return tiled_launch("expert_gate_up", type, args, t, std::move(operands),
                      {groups_of(args.expert_width, rows_of(t)), args.tokens * args.top_k});
}
Launch down_launch(WeightType type, const ExpertDownArgs& args, const Tile& t, std::vector<Operand> operands) {
  return tiled_launch("expert_down", type, args, t, std::move(operands),
                      {groups_of(args.width, rows_of(t)), 1});
}

uint64_t score_slice(uint64_t tokens, uint64_t stride) {
  return std::clamp<uint64_t>(kScoreFloats / std::max<uint64_t>(stride, 1), 1, tokens);
}

void Lowering::Pass::embed(const Op& op) {
  const Weight& w = weight(op.w[0]);
  launch(kernel_name("embed", w.type),
         EmbedArgs{.tokens = run_.n_tokens, .width = c_.d_model, .streams = c_.n_stream,
                   .row_bytes = u32(w.row_bytes())},
         {matrix(op.w[0]), {.place = Place::kTokens, .bytes = run_.n_tokens * 4}, out(op, 0)},
         {groups_of(div_ceil(c_.d_model, 32), 64), run_.n_tokens}, 64);
}

void Lowering::Pass::matmul(const Op& op) {
  if (is_read_at_once(op)) {
    up_ = &op;
    return;
  }
  const Weight& w = weight(op.w[0]);
  const MatrixArgs args{.rows = u32(w.rows), .cols = u32(w.cols), .tokens = rows(op),
                        .row_bytes = u32(w.row_bytes()), .x_stride = width(op.in[0]),
                        .y_stride = width(op.out[0]),
                        .epilogue = op.epilogue == Epilogue::kSilu ? kScaledSilu : kPlain,
                        .scale = op.scale};
  const std::vector<Operand> operands{matrix(op.w[0]), in(op, 0), out(op, 0)};
  if (args.tokens > kMaxWindow) {
    launch(kernel_name("matmat", w.type), args, operands,
           {groups_of(args.tokens, 32), groups_of(w.rows, 128)}, 128);
    return;
  }
  const Tile t = l_.tiles_.find(TileUse::kMatvec, w.type, w.rows, w.cols);
  add(matvec_launch(w.type, args, t, operands));
}

void Lowering::Pass::stream_norm(const Op& op) {
  launch("stream_norm",
         StreamNormArgs{.tokens = rows(op), .streams = c_.n_stream, .width = c_.d_model, .eps = c_.rms_eps},
         {in(op, 0), small(op.w[0]), out(op, 0)}, {c_.n_stream, rows(op)}, 256);
}

// A window's gates are never stored: the up product and the read of the streams are one kernel.
bool Lowering::Pass::is_read_at_once(const Op& op) const {
  const Role r = op.w[0].role;
  return rows(op) <= kMaxWindow &&
         (r == Role::kHcAttnUp || r == Role::kHcFfnUp || r == Role::kOutputHcUp);
}

void Lowering::Pass::mix_read(const Op& op) {
  if (rows(op) > kMaxWindow) {
    launch("mix_read",
           MixReadArgs{.tokens = rows(op), .streams = c_.n_stream, .width = c_.d_model},
           {in(op, 0), in(op, 1), out(op, 0)}, {groups_of(c_.d_model, 256), rows(op)}, 256);
    return;
  }
  const Weight& w = weight(up_->w[0]);
  launch(kernel_name("mix_up_read", w.type),
         MixUpReadArgs{.tokens = rows(op), .streams = c_.n_stream, .width = c_.d_model,
                       .rank = u32(w.cols), .row_bytes = u32(w.row_bytes())},
         {matrix(up_->w[0]), in(op, 2), in(op, 0), out(op, 0)}, {groups_of(c_.d_model, 16), 1}, 128);
}

void Lowering::Pass::mix_write(const Op& op) {
  launch("mix_write",
         MixWriteArgs{.tokens = run_.n_tokens, .streams = c_.n_stream, .width = c_.d_model},
         {in(op, 0), in(op, 1), out(op, 0)}, {groups_of(c_.d_model, 256), run_.n_tokens}, 256);
}

void Lowering::Pass::ple_gate(const Op& op) {
  launch("ple_gate",
         PleGateArgs{.tokens = run_.n_tokens, .streams = c_.n_stream, .width = c_.d_model, .eps = c_.rms_eps},
         {in(op, 0), in(op, 1), in(op, 2), small(op.w[0]), small(op.w[1]), small(op.w[2]), out(op, 0),
          out(op, 1)},
         {c_.n_stream, run_.n_tokens}, 256);
}

void Lowering::Pass::ple_conv(const Op& op) {
  const uint32_t wide = c_.n_stream * c_.d_model;
  const uint64_t history = uint64_t{c_.ple_history()} * wide, at = layer_state(op).ple;
  launch("ple_conv",
         PleConvArgs{.tokens = run_.n_tokens, .width = wide, .taps = c_.ple_conv_kernel,
                     .dilation = c_.ngram_size},
         {in(op, 0), in(op, 1), small(op.w[0]), out(op, 0), state(Place::kStateIn, at, history),
          state(Place::kStateOut, at, history)},
         {groups_of(wide, 256), run_.n_tokens}, 256);
}

void Lowering::Pass::gdn_conv(const Op& op) {
  const uint64_t history = uint64_t{c_.conv_kernel - 1} * c_.qkv_width(), at = layer_state(op).conv;
  launch("gdn_conv",
         GdnConvArgs{.tokens = run_.n_tokens, .n_key_head = c_.n_key_head, .n_value_head = c_.n_value_head,
                     .d = c_.d_linear_head, .taps = c_.conv_kernel},
         {in(op, 0), small(op.w[0]), out(op, 0), state(Place::kStateIn, at, history),
          state(Place::kStateOut, at, history)},
         {groups_of(2 * c_.n_key_head + c_.n_value_head, 4), run_.n_tokens}, 128);
}

void Lowering::Pass::gdn_gates(const Op& op) {
  launch("gdn_gates", GdnGatesArgs{.tokens = run_.n_tokens, .heads = c_.n_value_head},
         {in(op, 0), in(op, 1), small(op.w[0]), small(op.w[1]), out(op, 0), out(op, 1)},
         {groups_of(uint64_t{run_.n_tokens} * c_.n_value_head, 256), 1}, 256);
}

void Lowering::Pass::delta_step(const Op& op) {
  const uint64_t s = uint64_t{c_.n_value_head} * c_.d_linear_head * c_.d_linear_head;
  const uint64_t at = layer_state(op).delta;
  launch("delta_step",
         DeltaStepArgs{.tokens = run_.n_tokens, .commit = run_.n_tokens, .n_key_head = c_.n_key_head,
                       .n_value_head = c_.n_value_head, .d = c_.d_linear_head},
         {in(op, 0), in(op, 1), in(op, 2), state(Place::kStateIn, at, s), state(Place::kStateOut, at, s),
          out(op, 0)},
         {groups_of(c_.d_linear_head, c_.d_linear_head > 128 ? 16 : 32), c_.n_value_head}, 128);
}

void Lowering::Pass::delta_chunk(const Op& op) {
  const uint64_t s = uint64_t{c_.n_value_head} * c_.d_linear_head * c_.d_linear_head;
  const uint64_t at = layer_state(op).delta;
  const DeltaChunkArgs args{.tokens = run_.n_tokens, .n_key_head = c_.n_key_head,
                            .n_value_head = c_.n_value_head, .d = c_.d_linear_head};
  const auto operands = [&](bool prepares) -> std::vector<Operand> {
    Operand after = state(Place::kStateOut, at, s), o = out(op, 0);
    after.writes = o.writes = !prepares;
    return {in(op, 0), in(op, 1), in(op, 2), state(Place::kStateIn, at, s), after, o,
            extra(extra_.delta, extra_.delta_bytes, prepares)};
  };
  launch("delta_prepare", args, operands(true),
         {groups_of(run_.n_tokens, kDeltaTokens), c_.n_key_head}, 128);
  Launch chunks = make_launch("delta_chunk", args, operands(false),
                              {groups_of(c_.d_linear_head, 32), c_.n_value_head}, 128);
  chunks.constants[chunks.n_constants++] = {kHeadConstant, c_.d_linear_head};
  add(std::move(chunks));
}

void Lowering::Pass::gdn_norm(const Op& op) {
  launch("gdn_norm",
         GdnNormArgs{.tokens = run_.n_tokens, .heads = c_.n_value_head, .d = c_.d_linear_head,
                     .eps = c_.rms_eps},
         {in(op, 0), in(op, 1), small(op.w[0]), out(op, 0)},
         {groups_of(c_.n_value_head, 4), run_.n_tokens}, 128);
}

void Lowering::Pass::attn_prepare(const Op& op) {
  const uint64_t kv = uint64_t{c_.n_kv_head} * c_.d_head, from = run_.position * kv;
  const LayerState& at = layer_state(op);
  launch("attn_prepare",
         AttnPrepareArgs{.tokens = run_.n_tokens, .position = u32(run_.position),
                         .first_turn = u32(first_turn(c_, run_.position)), .n_head = c_.n_head,
                         .n_kv_head = c_.n_kv_head, .d_head = c_.d_head, .n_rope = c_.n_rope,
                         .eps = c_.rms_eps},
         {in(op, 0), in(op, 1), in(op, 2), small(op.w[0]), small(op.w[1]), turns(), out(op, 0),
          whole_appended(at.keys, from, run_.n_tokens * kv, true),
          whole_appended(at.values, from, run_.n_tokens * kv, true)},
         {c_.n_head + 2 * c_.n_kv_head, run_.n_tokens}, 32);
}

void Lowering::Pass::index_prepare(const Op& op) {
  const uint32_t ratio = c_.compress_ratio[static_cast<size_t>(op.layer)];
  const LayerState& at = layer_state(op);
  const uint64_t tail = uint64_t{ratio} * c_.d_index;
  const uint64_t first = run_.position / ratio, last = (run_.position + run_.n_tokens) / ratio;
  launch("index_prepare",
         IndexPrepareArgs{.tokens = run_.n_tokens, .position = u32(run_.position),
                          .first_turn = u32(first_turn(c_, run_.position)), .n_head = c_.n_index_head,
                          .d = c_.d_index, .n_rope = c_.n_rope, .ratio = ratio, .eps = c_.rms_eps},
         {in(op, 0), in(op, 1), small(op.w[0]), small(op.w[1]), turns(),
          state(Place::kStateIn, at.index_tail, tail), state(Place::kStateOut, at.index_tail, tail),
          out(op, 0), whole_appended(at.block_keys, first * c_.d_index, (last - first) * c_.d_index, true)},
         {c_.n_index_head + 2, run_.n_tokens}, 32);
}

// The scores of a slice of tokens at a time.
void Lowering::Pass::block_select(const Op& op) {
  const uint32_t ratio = c_.compress_ratio[static_cast<size_t>(op.layer)];
  const uint64_t blocks = (run_.position + run_.n_tokens) / ratio;
  const uint64_t slice = score_slice(run_.n_tokens, extra_.score_stride);
  for (uint64_t t = 0; t < run_.n_tokens; t += slice) {
    const uint64_t n = std::min(slice, run_.n_tokens - t);
    const BlockSelectArgs args{.tokens = u32(n), .position = u32(run_.position + t),
                               .n_head = c_.n_index_head, .d = c_.d_index, .ratio = ratio,
                               .keep = c_.index_budget / ratio, .score_stride = extra_.score_stride};
    const auto part = [&](Operand o, uint64_t row_bytes) {
      o.offset += t * row_bytes, o.bytes = n * row_bytes;
      return o;
    };
    const uint64_t score_bytes = n * extra_.score_stride * kFloat;
    if ((run_.position + t + n) / ratio > args.keep) {
      launch("block_scores", args,
             {part(in(op, 0), width(op.in[0]) * kFloat),
              whole_appended(layer_state(op).block_keys, 0, blocks * c_.d_index, false),
              extra(extra_.scores, score_bytes, true)},
             {groups_of((run_.position + t + n) / ratio, 64), groups_of(n, 4)}, 128);
    }
    launch("block_select", args,
           {extra(extra_.scores, score_bytes, false), part(out(op, 0), width(op.out[0]) * kFloat)},
           {u32(n), 1}, 1024);
  }
}

void Lowering::Pass::attention(const Op& op) {
  const uint32_t ratio = c_.compress_ratio[static_cast<size_t>(op.layer)];
  const uint64_t kv = uint64_t{c_.n_kv_head} * c_.d_head, seen = run_.position + run_.n_tokens;
  const LayerState& at = layer_state(op);
  const bool dense = op.in[2] == kNoBuffer;
  const uint64_t most = dense ? seen : std::min(seen, uint64_t{c_.index_budget / ratio} * ratio + ratio - 1);
  const AttentionArgs args{.tokens = run_.n_tokens, .position = u32(run_.position), .n_head = c_.n_head,
                           .n_kv_head = c_.n_kv_head, .d_head = c_.d_head, .ratio = dense ? 0 : ratio,
                           .keep = dense ? 0 : c_.index_budget / ratio,
                           .spans = u32(std::min<uint64_t>(kAttentionSpans, div_ceil(most, kAttentionChunk))),
                           .scale = 1.0f / std::sqrt(static_cast<float>(c_.d_head))};
  const Operand keys = whole_appended(at.keys, 0, seen * kv, false);
  const Operand values = whole_appended(at.values, 0, seen * kv, false);
  const Operand selected = dense ? in(op, 0) : in(op, 2);
  const uint32_t head_groups = c_.n_kv_head * groups_of(c_.n_head / c_.n_kv_head, 12);
  if (graph_.mode == GraphMode::kPrompt) {
    launch("attention", args, {in(op, 0), in(op, 1), keys, values, selected, out(op, 0)},
           {head_groups, run_.n_tokens}, 128);
    return;
  }
  const auto parts = [&](bool writes) { return extra(extra_.attention, extra_.attention_bytes, writes); };
  launch("attention_part", args, {in(op, 0), keys, values, selected, parts(true)},
         {args.spans, head_groups, run_.n_tokens}, 128);
  launch("attention_join", args, {parts(false), in(op, 1), selected, out(op, 0)},
         {c_.n_head, run_.n_tokens}, 64);
}

void Lowering::Pass::route(const Op& op) {
  launch("route",
         RouteArgs{.tokens = run_.n_tokens, .n_expert = c_.n_expert, .top_k = c_.n_expert_used,
                   .protect = run_.protect, .factor = run_.has_prior ? run_.prior_factor : 1.0f},
         {in(op, 0), {.place = Place::kFavoured, .layer = op.layer, .bytes = c_.n_expert}, out(op, 0),
          out(op, 1), out(op, 2), extra(extra_.order, extra_.order_bytes, true)},
         {run_.n_tokens, 1}, 32);
}

void Lowering::Pass::swiglu(const Op& op) {
  const uint32_t n = width(op.out[0]) * run_.n_tokens;
  launch("swiglu", SwigluArgs{.n = n}, {in(op, 0), in(op, 1), out(op, 0)}, {groups_of(n, 256), 1}, 256);
}

void Lowering::Pass::moe_combine(const Op& op) {
  launch("moe_combine", MoeCombineArgs{.tokens = run_.n_tokens, .width = c_.d_model},
         {in(op, 0), in(op, 1), out(op, 0)}, {groups_of(c_.d_model, 256), run_.n_tokens}, 256);
}

void Lowering::Pass::experts(const Op& op, size_t segment, bool last) {
  graph_.mode == GraphMode::kWindow ? window_experts(op, segment) : prompt_experts(op, segment, last);
}

// Gate and up in one kernel where they are of one type, else one after the other.
template <class Emit>
void Lowering::Pass::gate_and_up(const Op& op, const Emit& emit) {
  const ExpertLayout& layout = l_.weights_.experts(static_cast<uint32_t>(op.layer));
  ExpertGateUpArgs args{.slot_bytes = l_.arena_.slot_bytes[static_cast<size_t>(op.layer)],
                        .gate_offset = layout.gate_offset, .up_offset = layout.up_offset,
                        .tokens = run_.n_tokens, .top_k = c_.n_expert_used, .n_expert = c_.n_expert,
                        .width = c_.d_model, .expert_width = c_.d_expert,
                        .row_bytes = u32(weight_bytes(layout.gate_type, c_.d_model)), .part = kGateAndUp,
                        .tiles = extra_.tiles};
  if (layout.gate_type == layout.up_type) return emit(layout.gate_type, args);
  args.part = kGateOnly;
  emit(layout.gate_type, args);
  args.part = kUpToGate;
  args.row_bytes = u32(weight_bytes(layout.up_type, c_.d_model));
  emit(layout.up_type, args);
}

ExpertDownArgs Lowering::Pass::down_args(const Op& op) const {
  const ExpertLayout& layout = l_.weights_.experts(static_cast<uint32_t>(op.layer));
  return {.slot_bytes = l_.arena_.slot_bytes[static_cast<size_t>(op.layer)],
          .down_offset = layout.down_offset, .tokens = run_.n_tokens, .top_k = c_.n_expert_used,
          .n_expert = c_.n_expert, .width = c_.d_model, .expert_width = c_.d_expert,
          .row_bytes = u32(weight_bytes(layout.down_type, c_.d_expert)), .tiles = extra_.tiles, .pad = 0};
}

void Lowering::Pass::window_experts(const Op& op, size_t segment) {
  gate_and_up(op, [&](WeightType type, const ExpertGateUpArgs& args) {
    const Tile t = l_.tiles_.find(TileUse::kGateUp, type, c_.d_expert, c_.d_model);
    add(gate_up_launch(type, args, t, {arena(op.layer), slots(segment), in(op, 1), in(op, 0), out(op, 1)}));
  });
  const WeightType type = l_.weights_.experts(static_cast<uint32_t>(op.layer)).down_type;
  const Tile t = l_.tiles_.find(TileUse::kDown, type, c_.d_model, c_.d_expert);
  Operand h = out(op, 1);
  h.writes = false;
  add(down_launch(type, down_args(op), t,
                  {arena(op.layer), slots(segment), in(op, 1), extra(extra_.order, extra_.order_bytes, false),
                   in(op, 2), h, out(op, 0)}));
}

// Every round leaves the outputs of its picks; after the last all are added up at once.
void Lowering::Pass::prompt_experts(const Op& op, size_t segment, bool last) {
  const auto plan = [&](bool writes) { return extra(extra_.plan, extra_.plan_bytes, writes); };
  const PlanArgs plan_args{.tokens = run_.n_tokens, .top_k = c_.n_expert_used, .n_expert = c_.n_expert,
                           .tiles = extra_.tiles};
  const auto plan_step = [&](const char* kernel, uint32_t groups, uint32_t threads) {
    launch(kernel, plan_args,
           {in(op, 1), slots(segment), extra(extra_.counts, extra_.counts_bytes, true), plan(true),
            extra(extra_.first, extra_.counts_bytes, true)},
           {groups, 1}, threads);
  };
  plan_step("plan_count", groups_of(c_.n_expert, 4), 128);
  plan_step("plan_scan", 1, 256);
  plan_step("plan_scatter", groups_of(c_.n_expert, 4), 128);
  gate_and_up(op, [&](WeightType type, const ExpertGateUpArgs& args) {
    launch(kernel_name("expert_gate_up_mm", type), args,
           {arena(op.layer), slots(segment), in(op, 1), in(op, 0), out(op, 1), plan(false)},
           {groups_of(c_.d_expert, args.part == kGateAndUp ? 64 : 128), extra_.tiles}, 128);
  });
  const WeightType type = l_.weights_.experts(static_cast<uint32_t>(op.layer)).down_type;
  Operand h = out(op, 1);
  h.writes = false;
  launch(kernel_name("expert_down_mm", type), down_args(op),
         {arena(op.layer), slots(segment), h, extra(extra_.parts, extra_.parts_bytes, true), plan(false)},
         {groups_of(c_.d_model, 128), extra_.tiles}, 128);
  if (!last) return;
  launch("expert_combine",
         ExpertCombineArgs{.tokens = run_.n_tokens, .top_k = c_.n_expert_used, .n_expert = c_.n_expert,
                           .width = c_.d_model},
         {slots(graph_.segments.size()), in(op, 1), extra(extra_.order, extra_.order_bytes, false),
          in(op, 2), extra(extra_.parts, extra_.parts_bytes, false), out(op, 0)},
         {groups_of(c_.d_model, 512), run_.n_tokens}, 128);
}

}  // namespace esker::gpu
