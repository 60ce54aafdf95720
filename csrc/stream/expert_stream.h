// SPDX-License-Identifier: MIT
//
// ExpertStream: brings expert records into arena slots in time for the layer that needs them.
//
// It joins the residency policy (who may be where; pure) with the read queue (who reads it;
// threads). It knows nothing of kernels: it is told picks and answers with slot codes.
// Every run goes through it, also when all experts fit.
// Threads: one caller at a time (the engine's); the readers are its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "io/file.h"
#include "io/read_queue.h"
#include "stream/arena_plan.h"
#include "stream/policy.h"

namespace esker {

// One matrix of every expert of a layer, as it lies in a file.
struct RecordPiece {
  std::shared_ptr<File> file;
  uint64_t offset = 0;         // of expert 0's piece in the file
  uint64_t stride_bytes = 0;   // from one expert's piece to the next
  uint64_t bytes = 0;          // of one expert's piece
  uint64_t record_offset = 0;  // where the piece lies in the slot
};

struct RecordLayout {
  std::vector<RecordPiece> pieces;
  uint64_t record_bytes = 0;
};

struct StreamOptions {
  int reader_threads = 4;
  uint32_t n_expert_used = 0;   // experts a token picks; with read-ahead, what its turns need
  uint32_t read_ahead = 0;      // guesses a token read ahead for the next layer
  uint32_t read_ahead_2 = 0;    // and for the layer after it
  bool touch_guesses = false;   // guesses that are resident become recent
  float cache_prior = 0;        // bonus in logits of favoured experts, in decode; 0: none
  uint32_t protect = 0;         // ranks that are picked without it
  uint32_t starvation = 0;      // an expert displaced as often in a row is favoured; 0: no limit
  bool split_turn = true;       // read-ahead is seen to after the device has been let go, not before
};

struct StreamCounters {
  uint64_t lookups = 0;         // experts asked for, counted once per turn and expert
  uint64_t hits = 0;            // found resident
  uint64_t ahead_hits = 0;      // found read ahead, or being read
  uint64_t ahead_late = 0;      // of which had to be waited for
  uint64_t demand_misses = 0;   // had to be read while the device waited
  uint64_t ahead_reads = 0;     // experts whose read-ahead was begun
  uint64_t ahead_wasted = 0;    // of which no turn wanted
  uint64_t displaced = 0;       // picks that the cache prior changed
  uint64_t evictions = 0;
  uint64_t bytes_read = 0;      // of expert records
  uint64_t bytes_ahead = 0;     // of which ahead and wanted
  uint64_t bytes_wasted = 0;    // of which ahead and not wanted, as far as reads had begun
  uint64_t withdrawn_bytes = 0; // of the arena, given back to the system for now
  uint64_t turns = 0;
  int64_t host_ns = 0;          // inside begin_layer and at_layer
  int64_t wait_ns = 0;          // of which waiting for reads
  int64_t after_ns = 0;         // inside after_layer
  int64_t read_ns = 0;          // in which reads of experts were running
};

// One host turn's answer: experts that are resident now and may be computed.
struct TurnResult {
  std::span<const int32_t> experts;  // ascending, no duplicates
  bool more = false;                 // another round follows for the same layer
  bool held = false;                 // all experts of the turn stay where they are until its end
};

class ExpertStream {
 public:
  ExpertStream(std::vector<RecordLayout> layers, uint32_t n_expert, const ArenaPlan& plan,
               uint8_t* arena, const StreamOptions& options);
  ~ExpertStream();

  // Reads the experts of a profile into free slots, the most picked first: (layer, expert) pairs, as far
  // as they go. Returns how many were read. Throws as at_layer; what was read by then stays.
  uint64_t fill(std::span<const std::pair<uint32_t, uint32_t>> ranked, const InterruptCheck& check);
  // [n_layer, n_expert] how often each expert was picked in decode.
  std::span<const uint64_t> pick_counts() const;

  // Other readers, between runs.
  void set_readers(int threads, uint64_t chunk_bytes);

  // Gives about so many bytes of the arena back to the system, or takes them again; between runs. What
  // turns need is never given. Returns the bytes that changed hands.
  uint64_t shrink(uint64_t bytes);
  uint64_t grow(uint64_t bytes);

  // Before the layers of a window (decode) or of a prompt's chunk.
  void begin_run(TurnKind kind, uint32_t n_tokens);

  // At the signal of a layer: looks the picked experts up and starts the reads that are missing, so
  // that the device may compute meanwhile.
  // picks: expert indices [n], any order, duplicates allowed; an index out of range throws.
  // wanted: with a cache prior, what would have been picked without it, token by token as picks.
  void begin_layer(int layer, std::span<const int32_t> picks, std::span<const int32_t> wanted,
                   const InterruptCheck& check);

  // The guessed scores [T, n_expert] of a later layer, for the after-turn of the layer at hand, until
  // when they must stay as they are.
  void guessed(int layer, std::span<const float> scores);

  // At the cut of the layer that was begun: waits for the experts of a round and publishes their slot
  // codes in residency(layer). The caller asks for round 0, 1, .. while `more`.
  // Where all experts fit at once they are held until the turn's end: those that are there come in
  // round 0, those that had to be read in round 1. Where not (a prompt in a small arena), rounds of
  // ascending experts, and an expert of a finished round may be evicted by a later one; the next
  // round is read while the device computes this one. The rounds depend on picks and arena only,
  // never on the speed of the disk. The answer is valid until the next call.
  // On an exception (a failed read, an interrupt) no slot is lost or left loading; the stream works
  // on. Reads of such a turn may run on for a while into slots that are free again: the next turn
  // awaits them first, the destructor last, so the arena must outlive the stream.
  TurnResult at_layer(int layer, int round, const InterruptCheck& check);

  // Gives up a turn that was begun and will not be finished; nothing happens when there is none.
  void abandon_turn() noexcept;

  // After the device has been let go with the last round: read-aheads that the layer did not want are
  // retired, those of the layers to come are started.
  void after_layer(int layer, const InterruptCheck& check);

  // [n_layer, n_expert] what the cache prior favours; the row of a layer is settled when the turn of
  // the layer before it ends.
  std::span<const uint8_t> favoured() const;

  // [n_expert] slot code within the layer's class, or -1. Valid until the next at_layer.
  std::span<const int32_t> residency(int layer) const;

  // [n_expert] how often each record of the layer was brought to a slot: a copy of one elsewhere is as old as
  // the number it was made at.
  std::span<const uint32_t> fills(int layer) const;
  // Whether there is a slot for every expert, so that none is ever evicted for another.
  bool holds_all() const;

  StreamCounters counters() const;
  void check_invariants() const;  // throws std::logic_error

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace esker
