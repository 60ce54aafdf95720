// SPDX-License-Identifier: MIT
//
// The model's computation as data: ops in order, the buffers they read and write, the weights they
// use by role, and the segments at which the host takes its turn. A backend executes it or lowers
// it to kernels; nothing here knows which.
//
// Two graphs per model: the window's (1 to 4 tokens, decode) and the prompt's (chunks of any size).
// They share every op but two: the delta net (step against chunked form) and the routed experts
// (pick by pick against expert by expert).
// Shapes are per token; T stands for the tokens of the run. Shape letters as in graph/config.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/config.h"
#include "graph/weights.h"

namespace esker {

enum class OpKind : uint8_t {
  kEmbed,        // out0 R[t,c,:] = w0[id_t]
  kMatmul,       // out0[t,:] = epilogue(w0 in0[t,:])
  kStreamNorm,   // out0[t,c,:] = rms(in0[t,c,:]; w0_c)
  kMixRead,      // out0[t,:] = 1/C sum_c sigma(in1[t,c,:]) in0[t,c,:]   in0 normed, in1 gates,
                 // in2 what the gates are made of, for who makes and reads them at once
  kMixWrite,     // out0 R[t,c,:] += 2 sigma(in1[t,c] / C) in0[t,:]
  kPleGate,      // in0 key, in1 value, in2 R; w0..w2 norms key, query, conv -> out0 V, out1 N
  kPleConv,      // out0 R += in0 V + silu(conv(in1 N; w0)), advancing the ple state
  kGdnConv,      // in0 qkv -> out0: silu(conv(in0; w0)), q and k normed; advances the conv state
  kGdnGates,     // in0 alpha, in1 beta; w0 ssm_a, w1 dt_bias -> out0 log decay, out1 beta
  kDeltaStep,    // in0 qkv, in1 log decay, in2 beta -> out0 o, token by token; advances S
  kDeltaChunk,   // the same, in chunks of tokens
  kGdnNorm,      // out0 = rms(in0 o; w0) * sigma(in1 z), per head
  kAttnPrepare,  // in0 q|gate, in1 k, in2 v; w0 q norm, w1 k norm -> out0 q; appends k and v
  kIndexPrepare, // in0 index q, in1 raw index k; w0 q norm, w1 k norm -> out0 iq; block keys
  kBlockSelect,  // in0 iq -> out0 i32 [1 + budget/r]: count, block indices ascending
  kAttention,    // in0 q, in1 q|gate, in2 selection (or none: dense) -> out0 o * sigma(gate)
  kRoute,        // in0 router logits -> out0 i32 picks [K] by rank, out1 weights [K], out2 i32 what it
                 // would pick without the cache prior [K], where there is one
  kSwiglu,       // out0 = silu(in0) * in1
  kExperts,      // in0 x, in1 picks, in2 weights -> out0 y, out1 h [K,F]; waits for the cut
  kMoeCombine,   // out0 y += sigma(in1[t]) * in0 shared
};
const char* op_name(OpKind kind);

enum class Epilogue : uint8_t {
  kNone,
  kSilu,  // silu(scale * v)
};

using BufferId = int16_t;
inline constexpr BufferId kNoBuffer = -1;

enum class BufferKind : uint8_t {
  kScratch,  // of the run
  kPleRows,  // given: [T, D] float32, the n-gram rows of each token
  kLogits,   // wanted: [logit rows, V]
};

struct BufferDesc {
  const char* name;
  BufferKind kind;
  uint32_t width;             // 4-byte elements a token
  bool is_int;                // int32, else float32
  int32_t first_op, last_op;  // where it lives
  uint64_t offset;            // of a scratch buffer, in elements a token: times T is its place
};

enum class Rows : uint8_t {
  kAll,     // every token of the run
  kLogits,  // only the last rows, those whose logits are wanted
};

struct Op {
  OpKind kind;
  Rows rows = Rows::kAll;
  Epilogue epilogue = Epilogue::kNone;
  float scale = 1;
  int32_t layer = -1;
  std::array<WeightRef, 3> w{};
  std::array<BufferId, 3> in{kNoBuffer, kNoBuffer, kNoBuffer};
  std::array<BufferId, 3> out{kNoBuffer, kNoBuffer, kNoBuffer};
};

// One streaming layer's host turn, as op indices: the device signals before op `signal`, runs
// [signal, cut) meanwhile, waits at `cut`, and runs [cut, end) once per round of experts. The guesses,
// router scores [E] of the next layer and of the one after it, are there at the cut.
struct Segment {
  int32_t layer;
  int32_t signal, cut, end;
  BufferId picks, wanted;
  std::array<BufferId, 2> guesses{kNoBuffer, kNoBuffer};
};

// Where a session's state lies, in float32 elements.
struct LayerState {
  // In the recurrent block: rewritten by every run.
  uint64_t conv = 0;        // [conv_kernel - 1, qkv width], oldest first
  uint64_t delta = 0;       // S [nv, d, d]: key dim, then value dim
  uint64_t ple = 0;         // [ple history, C*D], oldest first
  uint64_t index_tail = 0;  // [r, d_index] raw index keys of the block at hand
  // In the appended block: a row is written once, at its position.
  uint64_t keys = 0;        // [context, kv, hd]
  uint64_t values = 0;      // [context, kv, hd]
  uint64_t block_keys = 0;  // [context / r, d_index]
};

struct StateLayout {
  uint64_t context = 0;
  uint64_t n_recurrent = 0;
  uint64_t n_appended = 0;
  std::vector<LayerState> layers;
};
StateLayout make_state_layout(const Config& config, uint64_t context);

enum class GraphMode : uint8_t { kWindow, kPrompt };

// The most tokens of a window.
inline constexpr uint32_t kMaxWindow = 4;

struct Graph {
  GraphMode mode;
  std::vector<BufferDesc> buffers;
  std::vector<Op> ops;
  std::vector<Segment> segments;
  uint64_t scratch_width = 0;  // elements a token, buffers that never live together sharing
};
// guess_layers: for how many layers ahead each segment guesses experts, 0 to 2.
Graph build_graph(const Config& config, GraphMode mode, uint32_t guess_layers = 0);

// The graph as text, one op a line; for people and tests.
std::string dump(const Graph& graph);

}  // namespace esker
