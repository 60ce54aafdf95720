// SPDX-License-Identifier: MIT
//
// What the host hands to each kernel of metal/: buffer 0 holds the kernel's struct, the other buffers
// follow from index 1 in the order given here. Read by the host's compiler and by the kernels', so:
// plain structs of 4- and 8-byte numbers, sizes asserted on both sides.
//
// T tokens, D width of the model, C streams, E experts, K experts a token, F expert width; a matrix
// [rows, cols] is row-major. Floats are float32; "weights" are a matrix as it stands in the file.
#pragma once

#ifndef __METAL_VERSION__
#include <cstdint>
namespace esker::gpu {
#endif

// Numbers of the function constants.
enum FunctionConstant : uint32_t {
  kLanesConstant = 0,  // lanes that share a row, a power of two up to 32
  kSplitConstant = 1,  // simdgroups that share a row
  kTokensConstant = 2,  // of a window, the most: fewer registers where it is set; 4 where it is not
  kStageConstant = 3,  // matvec, expert_gate_up: 1, x goes through threadgroup memory; 0, or not set: through the cache
  kHeadConstant = 4,   // delta_chunk: the width of a head: code for that one only; any where it is not set
};

enum MatrixEpilogue : uint32_t { kPlain = 0, kScaledSilu = 1 };  // silu(scale * v)

// embed_TYPE: 1 weights [V, D], 2 int tokens [T], 3 out [T, C, D], every stream the token's row
struct EmbedArgs {
  uint32_t tokens, width, streams, row_bytes;
};

// matvec_TYPE_rR: T of 1 to 4; matmat_TYPE: any T.   out[t, r] = epilogue(weights[r] . x[t])
// 1 weights [rows, cols], 2 x [T, x_stride], 3 out [T, y_stride]
struct MatrixArgs {
  uint32_t rows, cols, tokens, row_bytes;
  uint32_t x_stride, y_stride;
  uint32_t epilogue;
  float scale;
};

// stream_norm: out = rms(x; gamma) of each stream.   1 x [T, C, D], 2 gamma [C, D], 3 out [T, C, D]
struct StreamNormArgs {
  uint32_t tokens, streams, width;
  float eps;
};

// mix_read: out[t] = 1/C sum_c sigma(gates[t, c]) normed[t, c].
// 1 normed [T, C, D], 2 gates [T, C, D], 3 out [T, D]
struct MixReadArgs {
  uint32_t tokens, streams, width;
};

// mix_up_read_TYPE: gates = weights low, then mix_read, the gates never stored.
// 1 weights [C D, rank], 2 low [T, rank], 3 normed [T, C, D], 4 out [T, D]
struct MixUpReadArgs {
  uint32_t tokens, streams, width, rank, row_bytes;
};

// mix_write: residual[t, c] += 2 sigma(inject[t, c] / C) y[t].
// 1 y [T, D], 2 inject [T, C], 3 residual [T, C, D]
struct MixWriteArgs {
  uint32_t tokens, streams, width;
};

// ple_gate (SPEC 5): 1 key [T, C, D], 2 value [T, D], 3 residual [T, C, D], gammas [C, D]: 4 of the key,
// 5 of the query, 6 of the convolution; 7 out gated V [T, C, D], 8 out normed N [T, C, D]
struct PleGateArgs {
  uint32_t tokens, streams, width;
  float eps;
};

// ple_conv: residual += gated + silu(conv(normed)); the history advances.
// 1 gated, 2 normed, 3 taps [taps, width], 4 residual [T, width], 5 old history [(taps - 1) dilation,
// width], oldest first, 6 new history
struct PleConvArgs {
  uint32_t tokens, width, taps, dilation;  // width: C D
};

// gdn_conv (SPEC 4): 1 qkv [T, (2 nk + nv) d], 2 taps [taps, (2 nk + nv) d], 3 out as 1: silu(conv), q and
// k of unit length, q over sqrt(d); 4 old history [taps - 1, ...], oldest first, 5 new history
struct GdnConvArgs {
  uint32_t tokens, n_key_head, n_value_head, d, taps;
};

// gdn_gates: 1 alpha [T, nv], 2 beta [T, nv], 3 ssm_a [nv], 4 dt bias [nv], 5 out log decay [T, nv] =
// a softplus(alpha + dt), 6 out rate [T, nv] = sigma(beta)
struct GdnGatesArgs {
  uint32_t tokens, heads;
};

// delta_step: token by token; the state after the first `commit` tokens is written (0: none is).
// In both forms state in and state out may be the same memory.
// 1 qkv as gdn_conv made it, 2 log decay [T, nv], 3 rate [T, nv], 4 state in [nv, d, d] (key, value
// dim), 5 state out, 6 out [T, nv, d]
struct DeltaStepArgs {
  uint32_t tokens, commit, n_key_head, n_value_head, d;
};

// delta_prepare, then delta_chunk: the same in chunks (SPEC 4), the state after all tokens written. Both take
// the same bindings: 1 to 6 as delta_step, 7 scratch: kDeltaFloats floats a value head and chunk of
// kDeltaTokens, the last one counted whole.
enum { kDeltaTokens = 32, kDeltaFloats = 2880 };
struct DeltaChunkArgs {
  uint32_t tokens, n_key_head, n_value_head, d;
};

// gdn_norm: out = rms(o; gamma) sigma(z), per head.   1 o [T, nv, d], 2 z, 3 gamma [d], 4 out
struct GdnNormArgs {
  uint32_t tokens, heads, d;
  float eps;
};

// attn_prepare (SPEC 6.1): 1 q and gate [T, H, 2 hd], 2 k [T, kv, hd], 3 v [T, kv, hd], 4 gamma of q [hd],
// 5 gamma of k [hd], 6 turns, 7 out q [T, H, hd], 8 keys [context, kv, hd], 9 values: rows from
// `position` on are written.
// turns [.., n_rope]: n_rope / 2 cosines, then as many sines, of position first_turn and those after it.
struct AttnPrepareArgs {
  uint32_t tokens, position, first_turn, n_head, n_kv_head, d_head, n_rope;
  float eps;
};

// index_prepare (SPEC 6.3): 1 index q [T, heads, d], 2 raw index k [T, d], 3 gamma of q [d], 4 gamma of k
// [d], 5 turns, 6 old tail [ratio, d]: raw keys of the block at hand, at position mod ratio; 7 new
// tail, zero where the block has no key yet; 8 out q [T, heads, d], 9 block keys [context / ratio, d]:
// those that became complete are written. first_turn <= the first position of the block at hand.
struct IndexPrepareArgs {
  uint32_t tokens, position, first_turn, n_head, d, n_rope, ratio;
  float eps;
};

// block_scores: 1 index q [T, heads, d], 2 block keys, 3 out scores [T, score_stride]: sum over heads of
// max(0, q . key) of the (position + t + 1) / ratio blocks that token t sees whole. score_stride is a multiple
// of 4. Where no token sees more than `keep`, nothing is computed and the kernel need not run.
// block_select: 1 scores, 2 out int [T, 1 + keep]: how many, then the best, ties to the lower index, as
// ascending indices (SPEC 6.4)
struct BlockSelectArgs {
  uint32_t tokens, position, n_head, d, ratio, keep, score_stride;
};

// attention (SPEC 6.6): 1 q [T, H, hd], 2 q and gate [T, H, 2 hd], 3 keys, 4 values, 5 selected as above,
// 6 out [T, H, hd] = softmax(scale q . keys) values sigma(gate), over the selected blocks and the tail;
// ratio 0: over all positions up to the token's, and `selected` is not read (bind anything).
// attention_part, then attention_join: the same bits for few tokens, whose keys are cut into spans: at most
// kAttentionSpans, and at most one for every kAttentionChunk keys. `spans`: room for those of the token with
// the most keys.
// attention_part: 1 q, 2 keys, 3 values, 4 selected, 5 parts, floats [T H spans (hd + 2)]; attention_join:
// 1 parts, 2 q and gate, 3 selected, 4 out.
enum { kAttentionSpans = 64, kAttentionChunk = 64 };
struct AttentionArgs {
  uint32_t tokens, position, n_head, n_kv_head, d_head, ratio, keep, spans;
  float scale;
};

// route (SPEC 7): 1 scores [T, E], 2 favoured [E], a byte each, which the host may change meanwhile: each
// is read once; 3 out int picks [T, K] by rank, 4 out weights [T, K], 5 out int wanted [T, K]: the picks
// without the prior; 6 out int order [T, K]: the ranks in ascending order of their experts
struct RouteArgs {
  uint32_t tokens, n_expert, top_k, protect;
  float factor;  // what a favoured expert's probability counts from rank `protect` on; 1: no prior
};

// The experts. slots [1 + E] int: element 0 is nonzero in a turn's first round, 1 + e is where expert e of
// this round lies in the arena, in slots, -1 for every other. Order of experts in a sum: ascending.

enum ExpertPart : uint32_t { kGateAndUp = 0, kGateOnly = 1, kUpToGate = 2 };

// expert_gate_up_TYPE_rR: h = silu(gate x) * (up x) of every pick in the round; kGateOnly: h = gate x;
// kUpToGate: h = silu(h) * (up x).
// 1 arena (slot 0 of the layer's class), 2 slots, 3 picks [T, K], 4 x [T, D], 5 h [T, K, F]
// expert_gate_up_mm_TYPE: the same from a plan. 6 plan
struct ExpertGateUpArgs {
  uint64_t slot_bytes, gate_offset, up_offset;  // bytes
  uint32_t tokens, top_k, n_expert, width, expert_width, row_bytes, part, tiles;
};

// expert_down_TYPE_rR: y[t] (in the first round 0, else y[t]) + sum over picks in the round of weight *
// (down h[pick]).
// 1 arena, 2 slots, 3 picks, 4 order, 5 weights [T, K], 6 h [T, K, F], 7 y [T, D]
// expert_down_mm_TYPE: parts[pick] = down h[pick], from a plan. 1 arena, 2 slots, 3 h, 4 parts [T, K, D],
// 5 plan
struct ExpertDownArgs {
  uint64_t slot_bytes, down_offset;  // bytes
  uint32_t tokens, top_k, n_expert, width, expert_width, row_bytes, tiles, pad;
};

// The plan of a prompt's round, int [1 + 3 tiles + T K]: how many tiles there are, then of each tile its
// expert, the place in the list of its first pick and how many picks (at most kTileTokens); then the list:
// picks (t K + rank) of the round, by expert ascending, ascending within it.
// plan_count: 1 picks, 2 slots, 3 counts [E]; plan_scan: 3 counts, 4 plan, 5 first [E]; plan_scatter: 1
// picks, 2 slots, 4 plan, 5 first. All three take the same bindings: 1 picks, 2 slots, 3 counts [E],
// 4 plan, 5 first [E].
enum { kTileTokens = 32 };
struct PlanArgs {
  uint32_t tokens, top_k, n_expert, tiles;  // tiles: room for so many
};

// expert_combine: y[t] (in the first round 0, else y[t]) + sum over picks in the round of weight * parts.
// 1 slots, 2 picks, 3 order, 4 weights, 5 parts [T, K, D], 6 y [T, D]
struct ExpertCombineArgs {
  uint32_t tokens, top_k, n_expert, width;
};

// swiglu: out = silu(gate) * up, n values.   1 gate, 2 up, 3 out
struct SwigluArgs {
  uint32_t n;
};

// moe_combine: y[t] += sigma(share[t]) shared[t].   1 shared [T, D], 2 share [T], 3 y [T, D]
struct MoeCombineArgs {
  uint32_t tokens, width;
};

// logits_top: the k largest of each row, ties to the lower index, by rank, k up to 64.
// 1 logits [T, n], 2 out int [T, k], 3 out values [T, k]
struct LogitsTopArgs {
  uint32_t tokens, n, k;
};

static_assert(sizeof(EmbedArgs) == 16, "");
static_assert(sizeof(MatrixArgs) == 32, "");
static_assert(sizeof(StreamNormArgs) == 16, "");
static_assert(sizeof(MixReadArgs) == 12, "");
static_assert(sizeof(MixUpReadArgs) == 20, "");
static_assert(sizeof(MixWriteArgs) == 12, "");
static_assert(sizeof(PleGateArgs) == 16, "");
static_assert(sizeof(PleConvArgs) == 16, "");
static_assert(sizeof(GdnConvArgs) == 20, "");
static_assert(sizeof(GdnGatesArgs) == 8, "");
static_assert(sizeof(DeltaStepArgs) == 20, "");
static_assert(sizeof(DeltaChunkArgs) == 16, "");
static_assert(sizeof(GdnNormArgs) == 16, "");
static_assert(sizeof(AttnPrepareArgs) == 32, "");
static_assert(sizeof(IndexPrepareArgs) == 32, "");
static_assert(sizeof(BlockSelectArgs) == 28, "");
static_assert(sizeof(AttentionArgs) == 36, "");
static_assert(sizeof(RouteArgs) == 20, "");
static_assert(sizeof(ExpertGateUpArgs) == 56, "");
static_assert(sizeof(ExpertDownArgs) == 48, "");
static_assert(sizeof(PlanArgs) == 16, "");
static_assert(sizeof(ExpertCombineArgs) == 16, "");
static_assert(sizeof(SwigluArgs) == 4, "");
static_assert(sizeof(MoeCombineArgs) == 8, "");
static_assert(sizeof(LogitsTopArgs) == 12, "");

#ifndef __METAL_VERSION__
}  // namespace esker::gpu
#endif
