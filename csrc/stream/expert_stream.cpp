// SPDX-License-Identifier: MIT
#include "stream/expert_stream.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "stream/guess.h"

namespace esker {
namespace {

constexpr uint32_t kWindowMax = 4;  // tokens whose experts a turn of decode may want together

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
  using Load = ResidencyPolicy::Load;
  struct Round {
    std::vector<int32_t> experts;  // ascending
    std::vector<Load> loads;       // that have not ended; empty once the round is finished
  };

  State(std::vector<RecordLayout> records, uint32_t n_expert, const ArenaPlan& plan,
        uint8_t* memory, const StreamOptions& wanted)
      : layers(std::move(records)),
        arena(memory),
        arena_bytes(plan.total_bytes),
        options(wanted),
        policy(plan, n_expert, wanted.starvation),
        picked(n_expert, 0),
        tickets(plan.slot_count()),
        counts(size_t{policy.n_layer()} * n_expert, 0),
        fills(counts.size(), 0),
        queue(std::make_unique<ReadQueue>(wanted.reader_threads)) {
    abandoned.reserve(tickets.size());  // giving up must not fail
    std::vector<uint64_t> wanted_slots(plan.classes.size(), 0);
    for (const uint32_t c : plan.class_of_layer) wanted_slots[c] += n_expert;
    for (size_t c = 0; c < plan.classes.size(); ++c) {
      class_bytes.push_back(plan.classes[c].slots * plan.classes[c].slot_bytes());
      holds_all = holds_all && plan.classes[c].slots >= wanted_slots[c];
    }
  }

  void check_layer(int layer) const;
  void gather_experts(int layer, std::span<const int32_t> picks);
  void begin(int layer, std::span<const int32_t> picks, const InterruptCheck& check);
  bool start_round(Round& to, bool overlapped);
  void finish_round(const InterruptCheck& check);
  void submit(uint32_t in_layer, const Load& load, ReadPriority priority);
  void await(const Load& load, const InterruptCheck& check);
  void await_abandoned(const InterruptCheck& check);
  void give_up() noexcept;
  void give_up(Round& of) noexcept;
  void loaded(uint32_t in_layer, const Load& load);
  void tidy(int layer, const InterruptCheck& check);
  void read_ahead(uint32_t to_layer, uint32_t depth, std::span<const float> scores);

  const std::vector<RecordLayout> layers;
  uint8_t* const arena;
  uint64_t arena_bytes;
  std::vector<uint64_t> class_bytes;
  const StreamOptions options;
  ResidencyPolicy policy;
  std::vector<uint8_t> picked;    // [n_expert] scratch, zero between calls
  std::vector<int32_t> experts;   // scratch: of the turn; candidates for read-ahead
  StreamCounters counters;
  TurnKind kind = TurnKind::kDecode;
  uint32_t n_tokens = 1;
  // The turn at hand.
  bool begun = false;
  uint32_t layer = 0;
  int next_round = 0;
  bool held = false;
  Round current, upcoming;        // the round the device asks for, the one being read meanwhile
  std::vector<int32_t> answer;
  std::vector<std::pair<uint32_t, std::span<const float>>> guesses;  // (layer, scores)
  std::vector<std::shared_ptr<ReadTicket>> tickets;  // by slot: loading, pre and limbo
  // Reads of a turn that failed or was interrupted, still running into slots that are free by now.
  // The next turn awaits them before anything else, so a stalled disk cannot hold up an interrupt,
  // and no decision depends on when they end.
  std::vector<std::shared_ptr<ReadTicket>> abandoned;
  std::vector<uint64_t> counts;   // [n_layer, n_expert] picks of decode turns
  std::vector<uint32_t> fills;    // [n_layer, n_expert]
  bool holds_all = true;
  std::unique_ptr<ReadQueue> queue;  // last: its readers end before all else goes
};

void ExpertStream::State::check_layer(int l) const {
  if (l >= 0 && static_cast<uint32_t>(l) < policy.n_layer()) return;
  raise(ErrorKind::kUsage, "stream",
        {.what = "no such layer",
         .got = std::to_string(l),
         .want = "0 to " + std::to_string(policy.n_layer() - 1),
         .where = {},
         .hint = {}});
}

void ExpertStream::State::gather_experts(int l, std::span<const int32_t> picks) {
  const int64_t n_expert = policy.n_expert();
  for (const int32_t pick : picks) {
    if (pick >= 0 && pick < n_expert) continue;
    raise(ErrorKind::kUsage, "stream",
          {.what = "a picked expert does not exist",
           .got = std::to_string(pick),
           .want = "0 to " + std::to_string(n_expert - 1),
           .where = "layer " + std::to_string(l),
           .hint = {}});
  }
  experts.clear();
  experts.reserve(picked.size());
  for (const int32_t pick : picks) {
    picked[static_cast<size_t>(pick)] = 1;
    if (kind == TurnKind::kDecode) counts[static_cast<size_t>(l * n_expert + pick)] += 1;
  }
  for (size_t expert = 0; expert < picked.size(); ++expert) {
    if (picked[expert]) experts.push_back(static_cast<int32_t>(expert));
    picked[expert] = 0;
  }
}

void ExpertStream::State::await_abandoned(const InterruptCheck& check) {
  const Stopwatch waiting(&counters.wait_ns);
  while (!abandoned.empty()) {
    queue->wait_until_done(*abandoned.back(), check);
    abandoned.pop_back();
  }
}

void ExpertStream::State::submit(uint32_t in_layer, const Load& load, ReadPriority priority) {
  std::vector<ReadPiece> pieces;
  pieces.reserve(layers[in_layer].pieces.size());
  uint8_t* const record = arena + policy.slot_offset_bytes(load.slot);
  for (const RecordPiece& piece : layers[in_layer].pieces) {
    pieces.push_back({.file = piece.file,
                      .offset = piece.offset + load.expert * piece.stride_bytes,
                      .bytes = piece.bytes,
                      .to = record + piece.record_offset});
  }
  tickets[load.slot] = queue->submit(std::move(pieces), priority);
}

void ExpertStream::State::begin(int l, std::span<const int32_t> picks, const InterruptCheck& check) {
  give_up();
  check_layer(l);
  gather_experts(l, picks);
  await_abandoned(check);
  layer = static_cast<uint32_t>(l);
  policy.begin_turn(layer, experts, kind);
  begun = true;
  next_round = 0;
  counters.turns += 1;
  guesses.clear();
  upcoming.experts.clear();  // of a turn that was given up
  start_round(current, false);
  held = !policy.has_more();
}

// Looks the next round's experts up and submits its reads. False when an overlapped one must wait.
bool ExpertStream::State::start_round(Round& to, bool overlapped) {
  const ResidencyPolicy::Round round = policy.next_round(overlapped);
  to.experts.assign(round.experts.begin(), round.experts.end());
  to.loads.assign(round.loads.begin(), round.loads.end());
  counters.lookups += to.experts.size();
  counters.hits += to.experts.size() - to.loads.size();
  for (const Load& load : to.loads) {
    if (load.claimed) {
      counters.ahead_hits += 1;
      counters.ahead_late += !queue->is_done(*tickets[load.slot]);
      queue->promote(*tickets[load.slot]);
    } else {
      counters.demand_misses += 1;
      counters.evictions += load.evicts;
      submit(layer, load, ReadPriority::kDemand);
    }
  }
  return !to.experts.empty();
}

// A read-ahead that failed is tried again now that it is wanted: nothing depends on when it was read.
void ExpertStream::State::await(const Load& load, const InterruptCheck& check) {
  queue->wait_until_done(*tickets[load.slot], check);
  if (load.claimed) {
    try {
      queue->wait(*tickets[load.slot], {});
      return;
    } catch (const Error&) {
      submit(layer, load, ReadPriority::kDemand);
      queue->wait_until_done(*tickets[load.slot], check);
    }
  }
  queue->wait(*tickets[load.slot], {});
}

// Waits for the round's reads and makes its experts resident.
void ExpertStream::State::finish_round(const InterruptCheck& check) {
  try {
    const Stopwatch waiting(&counters.wait_ns);
    for (const Load& load : current.loads) await(load, check);
  } catch (...) {
    give_up();
    throw;
  }
  for (const Load& load : current.loads) {
    loaded(layer, load);
    for (const RecordPiece& piece : layers[layer].pieces) {
      counters.bytes_read += piece.bytes;
      if (load.claimed) counters.bytes_ahead += piece.bytes;
    }
  }
  current.loads.clear();
}

void ExpertStream::State::loaded(uint32_t in_layer, const Load& load) {
  policy.loaded(load.slot);
  tickets[load.slot].reset();
  fills[size_t{in_layer} * policy.n_expert() + load.expert] += 1;
}

void ExpertStream::State::give_up() noexcept {
  if (!begun) return;
  begun = false;
  give_up(current);
  give_up(upcoming);
}

// All of its loads, read or not: what is resident must not depend on how far the disk had come.
void ExpertStream::State::give_up(Round& of) noexcept {
  for (const Load& load : of.loads) {
    std::shared_ptr<ReadTicket>& ticket = tickets[load.slot];
    if (ticket && !queue->drop(*ticket)) abandoned.push_back(ticket);
    ticket.reset();
    policy.failed(load.slot);
  }
  of.loads.clear();
}

// Nothing here decides by what the disk has done: a read-ahead that no turn wanted waits in limbo for
// a whole layer, and then its slot is free.
void ExpertStream::State::tidy(int l, const InterruptCheck& check) {
  for (const uint32_t slot : policy.limbo()) {
    queue->wait_until_done(*tickets[slot], check);
    const uint64_t bytes = queue->bytes_begun(*tickets[slot]);
    counters.bytes_read += bytes;
    counters.bytes_wasted += bytes;
    tickets[slot].reset();
  }
  policy.free_limbo();
  for (const uint32_t slot : policy.retire(static_cast<uint32_t>(l))) {
    counters.ahead_wasted += 1;
    queue->drop(*tickets[slot]);
  }
  for (const auto& [to_layer, scores] : guesses) {
    const uint32_t depth = to_layer == layer + 1 ? options.read_ahead : options.read_ahead_2;
    if (depth > 0) read_ahead(to_layer, depth, scores);
  }
  guesses.clear();
}

void ExpertStream::State::read_ahead(uint32_t to_layer, uint32_t depth,
                                     std::span<const float> scores) {
  GuessRule rule{.n_expert = policy.n_expert(), .depth = depth, .protect = options.protect,
                 .prior = options.cache_prior};
  if (kind == TurnKind::kDecode) {
    std::span<const uint8_t> favoured;
    if (options.cache_prior > 0) {
      policy.publish_favoured(to_layer);
      favoured = policy.favoured().subspan(size_t{to_layer} * policy.n_expert(), policy.n_expert());
    }
    rank_guesses(rule, scores, favoured, &experts);
  } else {
    rule.depth = options.n_expert_used;
    gather_guesses(rule, scores, &experts);
  }
  const uint32_t keep = std::min(n_tokens * options.n_expert_used, policy.n_expert());
  for (const Load& load : policy.read_ahead(to_layer, experts, kind, keep, options.touch_guesses)) {
    counters.ahead_reads += 1;
    counters.evictions += load.evicts;
    submit(to_layer, load, ReadPriority::kAhead);
  }
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

uint64_t ExpertStream::fill(std::span<const std::pair<uint32_t, uint32_t>> ranked,
                            const InterruptCheck& check) {
  State& s = *state_;
  s.give_up();
  s.await_abandoned(check);
  // In batches, so that a fault or an interrupt loses no more than one.
  constexpr size_t kBatch = 64;
  uint64_t filled = 0;
  for (size_t at = 0; at < ranked.size(); at += kBatch) {
    const auto batch = ranked.subspan(at, std::min(kBatch, ranked.size() - at));
    for (const auto& [layer, expert] : batch) {
      if (layer < s.policy.n_layer() && expert < s.policy.n_expert()) continue;
      raise(ErrorKind::kUsage, "stream",
            {.what = "the profile names an expert that does not exist",
             .got = "layer " + std::to_string(layer) + ", expert " + std::to_string(expert),
             .want = std::to_string(s.policy.n_layer()) + " layers of " +
                     std::to_string(s.policy.n_expert()),
             .where = {},
             .hint = "was it made for another model?"});
    }
    const std::span<const State::Load> loads = s.policy.fill(batch);
    s.current.loads.assign(loads.begin(), loads.end());
    s.begun = true;  // so that giving up cleans up
    for (const State::Load& load : s.current.loads) {
      s.submit(s.policy.layer_of(load.slot), load, ReadPriority::kDemand);
    }
    try {
      for (const State::Load& load : s.current.loads) {
        s.queue->wait_until_done(*s.tickets[load.slot], check);
        s.queue->wait(*s.tickets[load.slot], {});
      }
    } catch (...) {
      s.give_up();
      throw;
    }
    for (const State::Load& load : s.current.loads) {
      for (const RecordPiece& piece : s.layers[s.policy.layer_of(load.slot)].pieces) {
        s.counters.bytes_read += piece.bytes;
      }
      s.loaded(s.policy.layer_of(load.slot), load);
    }
    filled += s.current.loads.size();
    s.current.loads.clear();
    s.begun = false;
  }
  return filled;
}

std::span<const uint64_t> ExpertStream::pick_counts() const { return state_->counts; }

void ExpertStream::set_readers(int threads, uint64_t chunk_bytes) {
  State& s = *state_;
  s.give_up();
  // What is being read ends first; a read-ahead that was only queued is read when it is wanted.
  for (const std::shared_ptr<ReadTicket>& ticket : s.tickets) {
    if (ticket) s.queue->drop(*ticket);
  }
  const int64_t busy_ns = s.queue->busy_ns();
  s.queue = std::make_unique<ReadQueue>(threads, chunk_bytes);
  s.counters.read_ns += busy_ns;
}

uint64_t ExpertStream::shrink(uint64_t bytes) {
  State& s = *state_;
  s.give_up();
  uint64_t given = 0;
  for (uint32_t c = 0; c < s.policy.n_class(); ++c) {
    // The classes share it by what they are planned to hold.
    const uint64_t of_class = static_cast<uint64_t>(
        static_cast<double>(bytes) * static_cast<double>(s.class_bytes[c]) /
        static_cast<double>(s.arena_bytes));
    const uint64_t slot_bytes = s.policy.slot_bytes(c);
    const auto n = static_cast<uint32_t>(
        std::min<uint64_t>((of_class + slot_bytes - 1) / slot_bytes, UINT32_MAX));
    const uint32_t keep = 2 * std::min(kWindowMax * s.options.n_expert_used, s.policy.n_expert());
    for (const uint32_t slot : s.policy.withdraw(c, n, keep)) {
      release_pages(s.arena + s.policy.slot_offset_bytes(slot), slot_bytes);
      given += slot_bytes;
    }
  }
  s.counters.withdrawn_bytes += given;
  return given;
}

uint64_t ExpertStream::grow(uint64_t bytes) {
  State& s = *state_;
  uint64_t taken = 0;
  for (uint32_t c = 0; c < s.policy.n_class() && taken < bytes; ++c) {
    const uint64_t slot_bytes = s.policy.slot_bytes(c);
    const auto n = static_cast<uint32_t>(std::min<uint64_t>((bytes - taken) / slot_bytes, UINT32_MAX));
    for (const uint32_t slot : s.policy.restore(c, n)) {
      reuse_pages(s.arena + s.policy.slot_offset_bytes(slot), slot_bytes);
      taken += slot_bytes;
    }
  }
  s.counters.withdrawn_bytes -= taken;
  return taken;
}

void ExpertStream::begin_run(TurnKind kind, uint32_t n_tokens) {
  State& s = *state_;
  s.give_up();
  s.kind = kind;
  s.n_tokens = n_tokens;
  if (kind == TurnKind::kPrompt) s.policy.begin_prompt();
  s.policy.publish_favoured(0);
}

void ExpertStream::begin_layer(int layer, std::span<const int32_t> picks,
                               std::span<const int32_t> wanted, const InterruptCheck& check) {
  State& s = *state_;
  const Stopwatch host(&s.counters.host_ns);
  s.begin(layer, picks, check);
  const size_t k = s.options.n_expert_used;
  for (size_t at = 0; at < wanted.size(); at += k) {
    s.counters.displaced +=
        s.policy.note_displaced(s.layer, picks.subspan(at, k), wanted.subspan(at, k));
  }
}

void ExpertStream::guessed(int layer, std::span<const float> scores) {
  state_->check_layer(layer);
  state_->guesses.emplace_back(static_cast<uint32_t>(layer), scores);
}

TurnResult ExpertStream::at_layer(int layer, int round, const InterruptCheck& check) {
  State& s = *state_;
  const Stopwatch host(&s.counters.host_ns);
  if (!s.begun || static_cast<int64_t>(s.layer) != layer || s.next_round != round) {
    raise(ErrorKind::kUsage, "stream",
          {.what = "the round was not begun",
           .got = "round " + std::to_string(round),
           .want = s.begun ? "round " + std::to_string(s.next_round) + " of layer " +
                                 std::to_string(s.layer)
                           : "a layer to be begun first",
           .where = "layer " + std::to_string(layer),
           .hint = {}});
  }
  s.next_round += 1;
  s.answer.clear();
  const auto is_loading = [&](int32_t expert) {
    return std::ranges::binary_search(s.current.loads, static_cast<uint32_t>(expert), {},
                                      &State::Load::expert);
  };
  if (s.held) {
    // Those that are there first, while the others are being read.
    const bool split = !s.current.loads.empty() && s.current.loads.size() < s.current.experts.size();
    if (split && round == 0) {
      std::ranges::copy_if(s.current.experts, std::back_inserter(s.answer),
                           [&](int32_t expert) { return !is_loading(expert); });
      return {.experts = s.answer, .more = true, .held = true};
    }
    std::ranges::copy_if(s.current.experts, std::back_inserter(s.answer), [&](int32_t expert) {
      return round == 0 || is_loading(expert);
    });
    s.finish_round(check);
  } else {
    if (round > 0) {
      std::swap(s.current, s.upcoming);
      if (s.current.experts.empty()) s.start_round(s.current, false);
      s.upcoming.experts.clear();
    }
    s.finish_round(check);
    s.answer = s.current.experts;
    if (s.policy.has_more()) s.start_round(s.upcoming, true);
  }
  const bool more = s.policy.has_more() || !s.upcoming.loads.empty() || !s.upcoming.experts.empty();
  if (!more) {
    s.begun = false;
    if (s.options.cache_prior > 0) s.policy.publish_favoured((s.layer + 1) % s.policy.n_layer());
    if (!s.options.split_turn) s.tidy(layer, check);
  }
#ifndef NDEBUG
  s.policy.check_invariants();
#endif
  return {.experts = s.answer, .more = more, .held = s.held};
}

void ExpertStream::abandon_turn() noexcept { state_->give_up(); }

void ExpertStream::after_layer(int layer, const InterruptCheck& check) {
  const Stopwatch after(&state_->counters.after_ns);
  state_->check_layer(layer);
  if (state_->options.split_turn) state_->tidy(layer, check);
}

std::span<const int32_t> ExpertStream::residency(int layer) const {
  state_->check_layer(layer);
  return state_->policy.residency(static_cast<uint32_t>(layer));
}

std::span<const uint32_t> ExpertStream::fills(int layer) const {
  state_->check_layer(layer);
  const size_t n = state_->policy.n_expert();
  return std::span<const uint32_t>(state_->fills).subspan(static_cast<size_t>(layer) * n, n);
}

bool ExpertStream::holds_all() const { return state_->holds_all; }

std::span<const uint8_t> ExpertStream::favoured() const { return state_->policy.favoured(); }

StreamCounters ExpertStream::counters() const {
  StreamCounters c = state_->counters;
  c.read_ns += state_->queue->busy_ns();
  return c;
}

void ExpertStream::check_invariants() const { state_->policy.check_invariants(); }

}  // namespace esker
