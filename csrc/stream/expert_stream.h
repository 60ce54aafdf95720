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
#include <vector>

#include "io/file.h"
#include "io/read_queue.h"
#include "stream/arena_plan.h"

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
};

struct StreamCounters {
  uint64_t lookups = 0;         // experts asked for, counted once per turn and expert
  uint64_t hits = 0;            // found resident
  uint64_t demand_misses = 0;   // had to be read while the device waited
  uint64_t evictions = 0;
  uint64_t bytes_read = 0;      // of expert records
  uint64_t turns = 0;
  int64_t host_ns = 0;          // inside at_layer
  int64_t wait_ns = 0;          // of which waiting for reads
  int64_t after_ns = 0;         // inside after_layer
};

// One host turn's answer: the experts that are resident now and may be computed.
struct TurnResult {
  std::span<const int32_t> experts;  // ascending, no duplicates
  bool more = false;                 // another round follows for the same layer
};

class ExpertStream {
 public:
  ExpertStream(std::vector<RecordLayout> layers, uint32_t n_expert, const ArenaPlan& plan,
               uint8_t* arena, const StreamOptions& options);
  ~ExpertStream();

  // At the signal of a layer: looks the picked experts up and starts the reads that are missing, so
  // that the device may compute meanwhile. Optional: at_layer begins what has not been begun.
  void begin_layer(int layer, std::span<const int32_t> picks, const InterruptCheck& check);

  // At the cut of a layer: brings in the picked experts, waits for them, publishes their slot codes
  // in residency(layer).
  // picks: expert indices [n], any order, duplicates allowed; an index out of range throws.
  // When they do not all fit at once (a prompt in a small arena), they come in rounds of ascending
  // experts: round 0 starts the turn, and the caller asks for round r + 1, with the same picks,
  // while `more`. An expert of a finished round may be evicted by a later one. The rounds depend on
  // picks and arena only, never on the speed of the disk. The answer is valid until the next call.
  // On an exception (a failed read, an interrupt) no slot is lost or left loading; the stream works
  // on. Reads of such a turn may run on for a while into slots that are free again: the next turn
  // awaits them first, the destructor last, so the arena must outlive the stream.
  TurnResult at_layer(int layer, std::span<const int32_t> picks, int round,
                      const InterruptCheck& check);

  // Gives up a turn that was begun and will not be finished; nothing happens when there is none.
  void abandon_turn() noexcept;

  // After the device has been let go.
  void after_layer(int layer);

  // [n_expert] slot code within the layer's class, or -1. Valid until the next at_layer.
  std::span<const int32_t> residency(int layer) const;

  StreamCounters counters() const;
  void check_invariants() const;  // throws std::logic_error

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace esker
