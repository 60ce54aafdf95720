// SPDX-License-Identifier: MIT
//
// What the engine asks of a device. Implemented in backends/; known here so that nobody above needs
// to know which device it is. A backend knows nothing of files: where a routed expert lies it learns
// from the residency map and the arena view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace esker {

// Memory that host and device both know.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Where the host reads and writes it. Null for kWork where the device has memory of its own.
  virtual uint8_t* host() = 0;
  virtual size_t size_bytes() const = 0;
  float* floats() { return reinterpret_cast<float*>(host()); }
  // For kWork memory, while no run is in progress; kArena and kShared are used through host().
  virtual void read(uint64_t offset, void* to, size_t bytes) { std::memcpy(to, host() + offset, bytes); }
  virtual void write(uint64_t offset, const void* from, size_t bytes) {
    std::memcpy(host() + offset, from, bytes);
  }
};

// Who touches memory, and when: where it lies best follows from that.
enum class MemoryUse : uint8_t {
  kWork,    // kernels; the host only between runs: scratch, state
  kArena,   // kernels; records that the host writes at any time, and publishes before they are computed with
  kShared,  // kernels and host by turns within a run; small
};

// Where the slots of each layer's class lie in the arena.
struct ArenaView {
  DeviceMemory* memory = nullptr;
  std::vector<uint64_t> base_bytes;  // per layer: of slot 0
  std::vector<uint64_t> slot_bytes;  // per layer
};

struct ExpertRound {
  std::span<const int32_t> experts;    // ascending: compute these now
  std::span<const int32_t> residency;  // [n_expert] slot code or -1
  std::span<const uint32_t> fills = {};  // [n_expert] how often its record has been brought to a slot
  bool more = false;                   // another round follows
  bool held = false;                   // all experts of the turn stay where they are until its end
};

// The host's side of a run. Called by the backend on the thread that called run_graph_seg.
class HostTurns {
 public:
  virtual ~HostTurns() = default;
  // At the signal: the picks [T * K] of the layer are known, and with a cache prior what would have
  // been picked without (else nothing). Starts the demand reads.
  virtual void begin_turn(int layer, std::span<const int32_t> picks,
                          std::span<const int32_t> wanted) = 0;
  // Guessed scores [T, E] of a later layer, valid until the after-turn; before finish_turn or, where the
  // turn is split, between it and the after-turn.
  virtual void guessed(int layer, std::span<const float> scores) = 0;
  // At the cut: waits until round `round`'s experts are there. May throw; the run then ends.
  virtual ExpertRound finish_turn(int layer, int round) = 0;
  // Whether the guesses are first looked at in the after-turn.
  virtual bool splits_turn() const { return true; }
  // After the device has been let go with the last round; what that computes stays where it is.
  virtual void after_turn(int layer) = 0;
  // Where every expert has a slot of its own a device may run all layers before their turns are taken, with
  // what is resident by then: a layer's slot codes and fills as they are now. Empty: it may not.
  virtual ExpertRound resident(int /*layer*/) { return {}; }
};

// Experts that are favoured when ranks `protect` and up are picked: their logits count for more.
struct CachePrior {
  float bonus = 0;  // in logits; 0: none
  uint32_t protect = 0;
  const uint8_t* favoured = nullptr;  // [L, E]; a layer's row does not change while it may be routed
};

struct Run {
  uint32_t n_tokens = 0;              // T >= 1
  uint32_t n_logit_rows = 0;          // logits of the last n tokens are wanted, 0..T
  uint64_t position = 0;              // of the first token; position + T <= context
  const int32_t* tokens = nullptr;    // [T], each < V
  const float* ple_rows = nullptr;    // [T, D]
  float* logits = nullptr;            // [n_logit_rows, V]
  DeviceMemory* state_in = nullptr;   // recurrent block before the run
  DeviceMemory* state_out = nullptr;  // recurrent block after it; never the same memory
  DeviceMemory* appended = nullptr;   // appended block
  const StateLayout* layout = nullptr;
  const ArenaView* arena = nullptr;
  CachePrior prior = {};
  DeviceMemory* scratch = nullptr;    // at least scratch_width * T * 4 bytes
};

// Called now and then on the running thread; throws to end the run.
using PollFn = std::function<void()>;

// Where a backend's time went, since it was made.
struct OpTime {
  OpKind kind;
  Role role;  // of a matrix product's weight, else kCount
  uint64_t calls = 0;
  int64_t ns = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  // Zero, committed when first written.
  virtual std::unique_ptr<DeviceMemory> allocate(size_t bytes, MemoryUse use, const char* purpose) = 0;
  // Executes the graph. On an exception the state_out block and rows at or past `position` of the
  // appended block are undefined, everything else is as before.
  virtual void run_graph_seg(const Graph& graph, const Run& run, HostTurns& turns,
                             const PollFn& poll) = 0;
  // Gives back what a prompt needed and a window does not: the scratch past keep_bytes among it.
  virtual void trim(DeviceMemory& scratch, size_t keep_bytes) = 0;
  // Nanoseconds that the device says its runs took, waiting for the host included; 0 where it cannot tell.
  virtual int64_t device_ns() const { return 0; }
  // Time by op; what is never called is left out. Empty where a device cannot tell.
  virtual std::vector<OpTime> op_times() const { return {}; }
};

}  // namespace esker
