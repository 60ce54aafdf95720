// SPDX-License-Identifier: MIT
//
// The engine: one model, open and planned, with its device, its arena and its stream. The one place
// that joins graph, stream and backend. Sessions (engine/session.h) run through it one at a time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/gpu/tiles.h"
#include "base/machine.h"
#include "graph/backend.h"
#include "graph/config.h"
#include "graph/graph.h"
#include "graph/weights.h"
#include "io/file.h"
#include "stream/expert_stream.h"
#include "stream/memory_plan.h"
#include "stream/row_cache.h"

namespace esker {

inline constexpr uint64_t kDefaultContext = 4096;
inline constexpr int kReaderThreads = 4;
inline constexpr uint32_t kProtect = 3;
inline constexpr uint32_t kStarvation = 16;

struct EngineOptions {
  std::string path;
  std::string backend = "cpu";   // or a device of backends/gpu/devices.h
  std::string cache_folder = {};  // where a device keeps compiled kernels; empty: nowhere
  std::vector<gpu::TileRow> tiles = {};  // what `esker tune` found for it
  std::string ngram_table;       // GGUF with the n-gram table; empty: in the model
  uint64_t context = 0;          // tokens; 0: the model's, at most kDefaultContext
  uint64_t memory_bytes = 0;     // 0: what the machine has to give
  uint64_t keep_free_bytes = 0;  // of what is available, left to others; 0: the plan's reserve
  uint64_t arena_bytes = 0;      // at most one of these three; 0: what the plan leaves
  double arena_fraction = 0;     // of all experts, 0..1
  uint32_t slots = 0;            // per layer
  uint32_t min_slots = 0;        // per slot class; 0: what one turn needs
  double class_waste = ArenaRequest{}.class_waste;  // see stream/arena_plan.h
  uint32_t chunk = 0;            // tokens of a prompt chunk; 0: the plan's choice
  int threads = 0;               // 0: one per core
  Activations activations = Activations::kExact;
  int reader_threads = 0;        // 0: kReaderThreads
  int32_t read_ahead = -1;           // guesses a token for the next layer; -1: read_ahead_depth()
  uint32_t read_ahead_2 = 0;         // and for the layer after it
  bool touch_guesses = false;
  bool split_turn = true;
  float cache_prior = 0;             // logits; not exact unless 0
  uint32_t protect = kProtect;
  uint32_t starvation = kStarvation;
  bool wire = false;             // ask the system to keep weights and arena in memory
  bool governor = false;         // give arena back while the system is short of memory
  FileOpener open_file = open_direct;
  std::function<MachineMemory()> memory = machine_memory;
};

struct EngineCounters {
  StreamCounters stream;
  RowCacheCounters rows;
  int64_t device_ns = 0;  // the device's own clock, over all runs; 0 where it has none
};

// What was wired, or why not.
struct WiredPart {
  std::string what;
  uint64_t bytes = 0;
  int error_number = 0;  // errno of the first refusal
};

// One session's state on the device. `before` is what a run reads, `after` what it writes;
// they change places when the run has succeeded.
struct SessionState {
  std::unique_ptr<DeviceMemory> before, after, appended;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // Throws Error; `poll` may throw to give up.
  static std::shared_ptr<Engine> open(const EngineOptions& options, const PollFn& poll);
  ~Engine();

  const Config& config() const { return config_; }
  const Weights& weights() const { return *weights_; }
  const MemoryPlan& plan() const { return plan_; }
  const StateLayout& layout() const { return layout_; }
  const Graph& graph(GraphMode mode) const {
    return mode == GraphMode::kWindow ? window_graph_ : prompt_graph_;
  }
  Backend& backend() { return *backend_; }
  EngineCounters counters() const;
  std::vector<OpTime> op_times() const { return backend_->op_times(); }
  void check_invariants() const { stream_->check_invariants(); }
  const std::vector<WiredPart>& wired() const { return wired_; }
  // See stream/expert_stream.h.
  uint64_t fill(std::span<const std::pair<uint32_t, uint32_t>> ranked, const PollFn& poll);
  std::vector<uint64_t> pick_counts();
  void set_readers(int threads, uint64_t chunk_bytes);
  // Of the file's tensor table and norms: tells saved sessions of different models apart.
  uint64_t fingerprint() const { return fingerprint_; }

  SessionState new_state();

  // Runs tokens [T], T <= plan().chunk, at `history.size()`; history: all tokens before. The state's
  // `after` and `appended` blocks are written; on an exception they are undefined from there on and
  // `before` is untouched. logits: [n_logit_rows, V] of the last rows. Serialised by a lock.
  void run(SessionState& state, std::span<const int32_t> history, std::span<const int32_t> tokens,
           uint32_t n_logit_rows, float* logits, const PollFn& poll);

 private:
  Engine() = default;
  void load(const EngineOptions& options, const PollFn& poll);
  void open_stream(const EngineOptions& options, const PollFn& poll);
  void wire(bool with_arena);
  void govern();
  void fetch_ple_rows(std::span<const int32_t> history, std::span<const int32_t> tokens,
                      const PollFn& poll);

  std::mutex mutex_;
  Config config_;
  std::unique_ptr<Weights> weights_;
  StateLayout layout_;
  Graph window_graph_, prompt_graph_;
  MemoryPlan plan_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceMemory> arena_, scratch_;
  ArenaView arena_view_;
  CachePrior prior_;
  std::unique_ptr<ExpertStream> stream_;
  std::unique_ptr<RowCache> row_cache_;
  std::vector<WiredPart> wired_;
  bool prompt_scratch_ = false;  // a prompt's scratch is still held
  bool governor_ = false;
  bool split_turn_ = true;
  std::function<MachineMemory()> memory_;
  int64_t governed_ns_ = 0;
  uint64_t fingerprint_ = 0;
  std::vector<uint64_t> ple_ids_;
  std::vector<uint8_t> ple_blocks_;
  std::vector<float> ple_rows_;
};

}  // namespace esker
