// SPDX-License-Identifier: MIT
#include "stream/expert_stream.h"

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "stream/policy.h"

namespace esker {
namespace {

// Adds the time it lives to a counter, also when an exception ends it.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t* total_ns) : total_ns_(total_ns), start_ns_(now_ns()) {}
  ~Stopwatch() { *total_ns_ += now_ns() - start_ns_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  int64_t* total_ns_;
  int64_t start_ns_;
};

void check_layouts(const std::vector<RecordLayout>& layers, uint32_t n_expert,
                   const ArenaPlan& plan) {
  const auto refuse = [](ErrorKind kind, size_t layer, const char* what, uint64_t got,
                         uint64_t want, const std::string& path) {
    raise(kind, "stream",
          {.what = what,
           .got = std::to_string(got) + " bytes",
           .want = "at most " + std::to_string(want),
           .where = (path.empty() ? "" : path + ", ") + ("layer " + std::to_string(layer)),
           .hint = {}});
  };
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const RecordLayout& layout = layers[layer];
    const uint64_t slot_bytes = plan.classes.at(plan.class_of_layer.at(layer)).slot_bytes();
    if (layout.record_bytes > slot_bytes) {
      refuse(ErrorKind::kUsage, layer, "the expert record exceeds its slot", layout.record_bytes,
             slot_bytes, {});
    }
    for (const RecordPiece& piece : layout.pieces) {
      const uint64_t record = layout.record_bytes;
      if (piece.record_offset > record || piece.bytes > record - piece.record_offset) {
        refuse(ErrorKind::kUsage, layer, "a piece exceeds its expert record", piece.bytes, record,
               {});
      }
      const uint64_t size = piece.file->size_bytes();
      const uint64_t strides = n_expert - 1;
      const bool fits = piece.offset <= size && piece.bytes <= size - piece.offset &&
                        (strides == 0 || piece.stride_bytes <=
                                             (size - piece.offset - piece.bytes) / strides);
      if (!fits) {
        refuse(ErrorKind::kFormat, layer, "the experts' weights exceed their file", piece.bytes,
               size, piece.file->path());
      }
    }
  }
}

}  // namespace

struct ExpertStream::State {
  State(std::vector<RecordLayout> records, uint32_t n_expert, const ArenaPlan& plan,
        uint8_t* memory, const StreamOptions& options)
      : layers(std::move(records)),
        arena(memory),
        policy(plan, n_expert),
        picked(n_expert, 0),
        queue(options.reader_threads) {}

  void check_layer(int layer) const;
  void gather_experts(int layer, std::span<const int32_t> picks);
  std::span<const int32_t> round_of(int layer, int round) const;
  void start(int layer, std::span<const int32_t> picks, int round, const InterruptCheck& check);
  void finish(const InterruptCheck& check);
  void give_up() noexcept;
  void await_abandoned(const InterruptCheck& check);

  const std::vector<RecordLayout> layers;
  uint8_t* const arena;
  ResidencyPolicy policy;
  std::vector<uint8_t> picked;    // [n_expert] scratch, zero between calls
  std::vector<int32_t> experts;   // of the turn, ascending
  StreamCounters counters;
  // The round that has been started and not finished: its loads (the policy's) and their reads.
  bool started = false;
  uint32_t started_layer = 0;
  std::span<const ResidencyPolicy::Load> loads;
  std::shared_ptr<ReadTicket> ticket;  // null when nothing had to be read
  // Reads of a turn that failed or was interrupted, still running into slots that are free by now.
  // The next turn awaits them before anything else, so a stalled disk cannot hold up an interrupt,
  // and no decision depends on when they end.
  std::shared_ptr<ReadTicket> abandoned;
  ReadQueue queue;                // last: its readers end before all else goes
};

void ExpertStream::State::check_layer(int layer) const {
  if (layer >= 0 && static_cast<uint32_t>(layer) < policy.n_layer()) return;
  raise(ErrorKind::kUsage, "stream",
        {.what = "no such layer",
         .got = std::to_string(layer),
         .want = "0 to " + std::to_string(policy.n_layer() - 1),
         .where = {},
         .hint = {}});
}

void ExpertStream::State::gather_experts(int layer, std::span<const int32_t> picks) {
  const int64_t n_expert = policy.n_expert();
  for (const int32_t pick : picks) {
    if (pick >= 0 && pick < n_expert) continue;
    raise(ErrorKind::kUsage, "stream",
          {.what = "a picked expert does not exist",
           .got = std::to_string(pick),
           .want = "0 to " + std::to_string(n_expert - 1),
           .where = "layer " + std::to_string(layer),
           .hint = {}});
  }
  experts.clear();
  experts.reserve(picked.size());
  for (const int32_t pick : picks) picked[static_cast<size_t>(pick)] = 1;
  for (size_t expert = 0; expert < picked.size(); ++expert) {
    if (picked[expert]) experts.push_back(static_cast<int32_t>(expert));
    picked[expert] = 0;
  }
}

void ExpertStream::State::await_abandoned(const InterruptCheck& check) {
  if (!abandoned) return;
  const Stopwatch waiting(&counters.wait_ns);
  queue.wait_until_done(*abandoned, check);
  abandoned.reset();
}

// The experts of a round of the turn at hand.
std::span<const int32_t> ExpertStream::State::round_of(int layer, int round) const {
  const size_t per_round = policy.slot_count(static_cast<uint32_t>(layer));
  const size_t first = round < 0 ? experts.size() : static_cast<size_t>(round) * per_round;
  if (round != 0 && first >= experts.size()) {
    raise(ErrorKind::kUsage, "stream",
          {.what = "the turn has no such round",
           .got = std::to_string(round),
           .want = "less than " + std::to_string((experts.size() + per_round - 1) / per_round),
           .where = "layer " + std::to_string(layer),
           .hint = {}});
  }
  const size_t count = std::min(per_round, experts.size() - first);
  return std::span<const int32_t>(experts).subspan(first, count);
}

// Looks a round's experts up and submits all its demand reads at once.
void ExpertStream::State::start(int layer, std::span<const int32_t> picks, int round,
                                const InterruptCheck& check) {
  give_up();
  check_layer(layer);
  gather_experts(layer, picks);
  const std::span<const int32_t> wanted = round_of(layer, round);
  await_abandoned(check);
  const auto l = static_cast<uint32_t>(layer);
  loads = policy.request(l, wanted);
  started = true;
  started_layer = l;
  if (round == 0) counters.turns += 1;
  counters.lookups += wanted.size();
  counters.hits += wanted.size() - loads.size();
  counters.demand_misses += loads.size();
  if (loads.empty()) return;
  std::vector<ReadPiece> pieces;
  pieces.reserve(loads.size() * layers[l].pieces.size());
  for (const auto& load : loads) {
    counters.evictions += load.evicts;
    uint8_t* const record = arena + policy.slot_offset_bytes(load.slot);
    for (const RecordPiece& piece : layers[l].pieces) {
      pieces.push_back({.file = piece.file,
                        .offset = piece.offset + load.expert * piece.stride_bytes,
                        .bytes = piece.bytes,
                        .to = record + piece.record_offset});
    }
  }
  ticket = queue.submit(std::move(pieces), ReadPriority::kDemand);
}

// Waits for the round's reads and makes its experts resident.
void ExpertStream::State::finish(const InterruptCheck& check) {
  if (ticket) {
    const Stopwatch waiting(&counters.wait_ns);
    try {
      queue.wait(*ticket, check);
    } catch (...) {
      give_up();
      throw;
    }
    ticket.reset();
  }
  for (const auto& load : loads) {
    policy.loaded(load.slot);
    for (const auto& piece : layers[started_layer].pieces) counters.bytes_read += piece.bytes;
  }
  started = false;
}

void ExpertStream::State::give_up() noexcept {
  if (!started) return;
  started = false;
  if (ticket && !queue.drop(*ticket)) abandoned = ticket;
  ticket.reset();
  // All of them, read or not: what is resident must not depend on how far the disk had come.
  for (const auto& load : loads) policy.failed(load.slot);
}

ExpertStream::ExpertStream(std::vector<RecordLayout> layers, uint32_t n_expert,
                           const ArenaPlan& plan, uint8_t* arena, const StreamOptions& options) {
  if (layers.empty() || n_expert == 0 || layers.size() != plan.class_of_layer.size()) {
    raise(ErrorKind::kUsage, "stream",
          {.what = "the arena was planned for another model",
           .got = std::to_string(layers.size()) + " layers of " + std::to_string(n_expert) +
                  " experts",
           .want = std::to_string(plan.class_of_layer.size()) + " layers",
           .where = {},
           .hint = {}});
  }
  check_layouts(layers, n_expert, plan);
  state_ = std::make_unique<State>(std::move(layers), n_expert, plan, arena, options);
}

ExpertStream::~ExpertStream() = default;

void ExpertStream::begin_layer(int layer, std::span<const int32_t> picks,
                               const InterruptCheck& check) {
  const Stopwatch host(&state_->counters.host_ns);
  state_->start(layer, picks, 0, check);
}

TurnResult ExpertStream::at_layer(int layer, std::span<const int32_t> picks, int round,
                                  const InterruptCheck& check) {
  State& s = *state_;
  const Stopwatch host(&s.counters.host_ns);
  const bool begun = s.started && round == 0 && static_cast<int64_t>(s.started_layer) == layer;
  if (!begun) s.start(layer, picks, round, check);
  s.finish(check);
#ifndef NDEBUG
  s.policy.check_invariants();
#endif
  const std::span<const int32_t> here = s.round_of(layer, round);
  return {.experts = here, .more = !here.empty() && here.back() != s.experts.back()};
}

void ExpertStream::abandon_turn() noexcept { state_->give_up(); }

void ExpertStream::after_layer(int layer) {
  const Stopwatch after(&state_->counters.after_ns);
  state_->check_layer(layer);
}

std::span<const int32_t> ExpertStream::residency(int layer) const {
  state_->check_layer(layer);
  return state_->policy.residency(static_cast<uint32_t>(layer));
}

StreamCounters ExpertStream::counters() const { return state_->counters; }

void ExpertStream::check_invariants() const { state_->policy.check_invariants(); }

}  // namespace esker
