// SPDX-License-Identifier: MIT
//
// From the graph's ops to dispatches of the kernels of metal/: which kernel, tile, arguments, buffers and
// grid, and where a barrier is needed. Plain data from plain data: no device is asked, so that all of it
// can be tested without one. gpu_backend.cpp carries the steps out.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "abi/kernel_args.h"
#include "backends/gpu/device.h"
#include "backends/gpu/tiles.h"
#include "graph/backend.h"
#include "graph/graph.h"

namespace esker::gpu {

// What a buffer of a kernel is. Memory of different places never overlaps.
enum class Place : uint8_t {
  kScratch,    // the run's scratch, laid out by the graph (but see kHanded)
  kExtra,      // scratch of the kernels themselves (ExtraLayout)
  kWeight,     // a matrix as it stands in the file
  kSmall,      // a small tensor as float32
  kStateIn, kStateOut, kAppended,  // the session's
  kArena,      // slot 0 of a layer's class
  kSlots,      // a segment's row of slots (ExpertGateUpArgs), [1 + E]
  kTokens,     // [T] ids
  kPleRows,    // [T, D]
  kTurns,      // rotations of positions, see Lowering::first_turn
  kFavoured,   // a layer's row of the cache prior, [E] bytes
  kLogits,     // [logit rows, V]
  kHanded,     // what segments hand to the host (HandedLayout)
};

struct Operand {
  Place place = Place::kScratch;
  bool writes = false;
  int32_t layer = -1;  // kWeight, kSmall, kArena, kFavoured
  Role role = Role::kCount;
  uint64_t offset = 0, bytes = 0;  // the range that is touched, in bytes
};

struct Launch {
  std::string kernel;
  std::array<Constant, 4> constants{};
  uint32_t n_constants = 0;
  std::array<uint8_t, 64> args{};
  uint32_t args_bytes = 0;
  std::vector<Operand> operands;
  Extent groups, threads;
  bool barrier = false;  // before it
};

template <class Args>
Launch make_launch(std::string kernel, const Args& args, std::vector<Operand> operands, Extent groups,
                   uint32_t threads) {
  static_assert(sizeof(Args) <= sizeof(Launch::args));
  Launch l{.kernel = std::move(kernel), .operands = std::move(operands), .groups = groups,
           .threads = {threads, 1, 1}};
  std::memcpy(l.args.data(), &args, sizeof args);
  l.args_bytes = sizeof args;
  return l;
}

// Launches whose kernel is cut by a tile; operands in the kernel's order.
Launch matvec_launch(WeightType type, const MatrixArgs& args, const Tile& tile,
                     std::vector<Operand> operands);
Launch gate_up_launch(WeightType type, const ExpertGateUpArgs& args, const Tile& tile,
                      std::vector<Operand> operands);
Launch down_launch(WeightType type, const ExpertDownArgs& args, const Tile& tile,
                   std::vector<Operand> operands);

struct Step {
  enum class Kind : uint8_t { kLaunch, kSignal, kCut };
  Kind kind = Kind::kLaunch;
  int32_t segment = -1;  // index of the segment whose signal or cut it is
  Launch launch;
};

// Where the kernels' own scratch lies, in bytes; every part at a multiple of 64.
struct ExtraLayout {
  uint64_t order = 0;       // int [T, K]
  uint64_t counts = 0;      // int [E]
  uint64_t first = 0;       // int [E]
  uint64_t plan = 0;        // int, see PlanArgs
  uint64_t parts = 0;       // [T, K, D]
  uint64_t scores = 0;      // [T, score_stride]
  uint64_t delta = 0;       // of delta_chunk
  uint64_t attention = 0;   // of attention_part
  uint64_t bytes = 0;       // of all
  uint32_t tiles = 0;       // of the plan
  uint32_t score_stride = 0;
  uint64_t order_bytes = 0, counts_bytes = 0, plan_bytes = 0, parts_bytes = 0, scores_bytes = 0,
           delta_bytes = 0, attention_bytes = 0;
};
// Of a run of `tokens` that ends at `end`; what only a prompt or only a window needs
// is empty in the other's.
ExtraLayout extra_layout(const Config& config, uint64_t tokens, uint64_t end);

// Where what the host looks at in its turns lies: the segments' picks, wanted ones and guesses, each in a place
// of its own until the run ends.
struct HandedLayout {
  std::vector<int64_t> offset;  // by buffer, in bytes; -1: it is not handed to the host
  uint64_t bytes = 0;
};
HandedLayout handed_layout(const Graph& graph, uint64_t tokens);

// What a run is, as far as its dispatches depend on it.
struct LoweringRun {
  uint32_t n_tokens = 0;
  uint32_t n_logit_rows = 0;
  uint64_t position = 0;
  bool has_prior = false;
  float prior_factor = 1;  // e^bonus
  uint32_t protect = 0;
  bool ahead = false;  // without the host's turns: signals and cuts keep nothing in order
};

class Lowering {
 public:
  // All of it must outlive the lowering.
  Lowering(const Config& config, const Weights& weights, const StateLayout& layout,
           const ArenaView& arena, const TileTable& tiles);

  // All of a graph, with a signal and a cut for each segment; the ops of a cut once.
  std::vector<Step> lower(const Graph& graph, const LoweringRun& run) const;
  // The routed experts of a segment once more, for a round before the last.
  std::vector<Launch> lower_round(const Graph& graph, const LoweringRun& run, size_t segment) const;
  // Position whose rotation comes first: that of the oldest block the run may complete.
  static uint64_t first_turn(const Config& config, uint64_t position);

 private:
  class Pass;  // lowering_pass.h
  const Config& config_;
  const Weights& weights_;
  const StateLayout& layout_;
  const ArenaView& arena_;
  const TileTable& tiles_;
};

// The steps as text, one a line; for people and tests.
std::string dump(const std::vector<Step>& steps);

}  // namespace esker::gpu
