// SPDX-License-Identifier: MIT
#include "backends/gpu/gpu_backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "backends/gpu/lowering.h"
#include "backends/gpu/placed_weights.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "graph/small_tensors.h"

namespace esker {
namespace gpu {
namespace {

constexpr int64_t kPollNs = 20'000'000;
// No segment of a model takes as long, not even on the CPU under a sanitizer.
constexpr double kLostSeconds = 60;
// One that counts as lost may only have lost a signal: memory must not go while it still runs.
constexpr int64_t kLastChanceNs = 2'000'000'000;

int64_t lost_ns() {
  const std::string text = environment("ESKER_DEVICE_TIMEOUT");
  const double seconds = text.empty() ? kLostSeconds : std::strtod(text.c_str(), nullptr);
  return static_cast<int64_t>((seconds > 0 ? seconds : kLostSeconds) * 1e9);
}

// Memory that grows with the longest run so far.
class Growing {
 public:
  Growing(MemoryUse use, const char* purpose) : use_(use), purpose_(purpose) {}
  DeviceMemory* at_least(Device& device, size_t bytes) {
    if (!memory_ || memory_->size_bytes() < bytes) {
      memory_.reset();
      memory_ = device.allocate(std::max<size_t>(bytes, 64), use_, purpose_);
    }
    return memory_.get();
  }
  DeviceMemory* get() const { return memory_.get(); }
  void release() { memory_.reset(); }

 private:
  const MemoryUse use_;
  const char* purpose_;
  std::unique_ptr<DeviceMemory> memory_;
};

class GpuBackend final : public Backend {
 public:
  GpuBackend(const Config& config, const Weights& weights, std::unique_ptr<Device> device,
             std::span<const TileRow> tuned)
      : config_(config), weights_(weights), device_(std::move(device)), tiles_(device_->family()),
        placed_(config, weights, *device_) {
    for (const TileRow& row : tuned) tiles_.add(row);
    queue_ = device_->queue();
    rounds_ = device_->queue();
    reached_ = device_->event();
    go_ = device_->event();
  }

  // Whatever still runs uses this object's memory.
  ~GpuBackend() override { drain(); }

  const char* name() const override { return device_->name(); }
  int64_t device_ns() const override { return queue_->device_ns(); }

  std::unique_ptr<DeviceMemory> allocate(size_t bytes, MemoryUse use, const char* purpose) override {
    return device_->allocate(bytes, use, purpose);
  }

  void run_graph_seg(const Graph& graph, const Run& run, HostTurns& turns,
                     const PollFn& poll) override {
    if (lost_) raise_lost();
    const LoweringRun what{.n_tokens = run.n_tokens,
                           .n_logit_rows = run.n_logit_rows,
                           .position = run.position,
                           .has_prior = run.prior.bonus > 0,
                           .prior_factor = std::exp(run.prior.bonus),
                           .protect = run.prior.protect,
                           .ahead = false};
    const Lowering lowering(config_, weights_, *run.layout, *run.arena, tiles_);
    prepare(graph, run);
    if (graph.mode == GraphMode::kWindow && run_ahead(lowering, graph, run, what, turns, poll)) return;
    is_clean_ = true;
    const uint64_t base = std::exchange(clock_, clock_ + 2 * graph.segments.size() + 2);
    try {
      encode(lowering.lower(graph, what), run, base, false);
      for (size_t s = 0; s < graph.segments.size(); ++s) {
        take_turn(lowering, graph, run, what, turns, poll, s, base);
      }
      await(poll, [&](int64_t ns) { return queue_->finish(ns); });
    } catch (...) {
      // Let the device run out: no expert is in any round any more.
      for (size_t s = 0; s < graph.segments.size(); ++s) write_slots(s, {}, {}, false);
      go_->set(base + graph.segments.size());
      drain();
      throw;
    }
    copy_logits(run);
  }

  void trim(DeviceMemory& scratch, size_t keep_bytes) override {
    device_->trim(scratch, keep_bytes);
    for (Growing* g : {&extra_, &ple_rows_, &logits_, &turns_, &tokens_, &handed_}) g->release();
  }

 private:
  // --- memory

  // Everything the run's kernels read that the host knows beforehand.
  void prepare(const Graph& graph, const Run& run) {
    const uint64_t tokens = run.n_tokens, end = run.position + tokens;
    arena_ = run.arena;
    device_->extend(*run.scratch, size_t{graph.scratch_width} * tokens * sizeof(float));
    extra_.at_least(*device_, extra_layout(config_, tokens, end).bytes);
    slots_.at_least(*device_, (graph.segments.size() + 2) * slots_bytes());
    all_row_ = graph.segments.size();  // every expert in the round
    round_row_ = all_row_ + 1;         // the round at hand, before the last
    auto* every = reinterpret_cast<int32_t*>(slots_.get()->host() + all_row_ * slots_bytes());
    std::fill_n(every, 1 + config_.n_expert, 0);
    every[0] = 1;
    std::copy_n(run.tokens, tokens,
                reinterpret_cast<int32_t*>(tokens_.at_least(*device_, tokens * 4)->host()));
    if (config_.has_ple()) {
      const size_t n = tokens * config_.d_model;
      std::copy_n(run.ple_rows, n, ple_rows_.at_least(*device_, n * 4)->floats());
    }
    const uint64_t first = Lowering::first_turn(config_, run.position), n_rope = config_.n_rope;
    float* turn = turns_.at_least(*device_, (end - first) * n_rope * sizeof(float))->floats();
    for (uint64_t p = first; p < end; ++p, turn += n_rope) {
      rope_turn(config_, static_cast<int64_t>(p), turn);
    }
    handed_layout_ = handed_layout(graph, tokens);
    handed_.at_least(*device_, handed_layout_.bytes);
    favoured_.at_least(*device_, size_t{config_.n_layer} * config_.n_expert);
    copy_favoured(run, 0);
    logits_.at_least(*device_, size_t{run.n_logit_rows} * config_.n_vocab * sizeof(float));
  }

  void copy_favoured(const Run& run, size_t layer) {
    if (run.prior.bonus <= 0 || layer >= config_.n_layer) return;
    const size_t at = layer * config_.n_expert;
    std::copy_n(run.prior.favoured + at, config_.n_expert, favoured_.get()->host() + at);
  }

  size_t slots_bytes() const { return (1 + size_t{config_.n_expert}) * 4; }

  void write_slots(size_t row, std::span<const int32_t> experts, std::span<const int32_t> residency,
                   bool first) {
    auto* to = reinterpret_cast<int32_t*>(slots_.get()->host() + row * slots_bytes());
    std::fill_n(to + 1, config_.n_expert, -1);
    to[0] = first;
    for (const int32_t e : experts) to[1 + e] = residency[static_cast<size_t>(e)];
  }

  Binding placed(const Operand& o, const Run& run, bool in_round) const {
    switch (o.place) {
      case Place::kScratch: return {run.scratch, o.offset};
      case Place::kExtra: return {extra_.get(), o.offset};
      case Place::kWeight: return placed_.matrix(o.layer, o.role);
      case Place::kSmall: return placed_.small(o.layer, o.role);
      case Place::kStateIn: return {run.state_in, o.offset};
      case Place::kStateOut: return {run.state_out, o.offset};
      case Place::kAppended: return {run.appended, o.offset};
      case Place::kArena:
        return {run.arena->memory, run.arena->base_bytes[static_cast<size_t>(o.layer)]};
      case Place::kSlots:
        if (ahead_) return {resident_slots_.get(), o.offset};
        return {slots_.get(), in_round ? round_row_ * slots_bytes() : o.offset};
      case Place::kHanded: return {ahead_ ? handed_ahead_.get() : handed_.get(), o.offset};
      case Place::kTokens: return {tokens_.get(), 0};
      case Place::kPleRows: return {ple_rows_.get(), 0};
      case Place::kTurns: return {turns_.get(), 0};
      case Place::kFavoured:
        return {favoured_.get(), static_cast<uint64_t>(o.layer) * config_.n_expert};
      case Place::kLogits: return {logits_.get(), 0};
    }
    return {};
  }

  // --- encoding

  static std::span<const Constant> constants_of(const Launch& l) { return {l.constants.data(), l.n_constants}; }

  // Has what the launches need made, as one lot.
  void make_kernels(std::span<const Launch* const> launches) {
    std::vector<KernelSpec> missing;
    for (const Launch* l : launches) {
      if (find_kernel(*l) != nullptr) continue;
      const std::span<const Constant> constants = constants_of(*l);
      const bool is_known = std::ranges::any_of(missing, [&](const KernelSpec& m) {
        return m.name == l->kernel && std::ranges::equal(m.constants, constants);
      });
      if (!is_known) missing.push_back({l->kernel, {constants.begin(), constants.end()}});
    }
    if (missing.empty()) return;
    std::vector<std::unique_ptr<Kernel>> made = device_->kernels(missing);
    for (size_t i = 0; i < missing.size(); ++i) {
      kernels_[missing[i].name].push_back({std::move(missing[i].constants), std::move(made[i])});
    }
  }

  const Kernel* find_kernel(const Launch& launch) const {
    const auto found = kernels_.find(launch.kernel);
    if (found == kernels_.end()) return nullptr;
    for (const Made& m : found->second) {
      if (std::ranges::equal(m.constants, constants_of(launch))) return m.kernel.get();
    }
    return nullptr;
  }

  void encode(Queue& queue, const Launch& launch, const Run& run, bool in_round) {
    bindings_.clear();
    for (const Operand& o : launch.operands) {
      bindings_.push_back(placed(o, run, in_round));
    }
    if (launch.barrier) queue.barrier();
    queue.dispatch({.kernel = find_kernel(launch),
                    .args = {launch.args.data(), launch.args_bytes},
                    .buffers = bindings_,
                    .groups = launch.groups,
                    .threads = launch.threads});
  }

  // The whole run. It is handed over after 1, 2, 4 ... segments: the device begins at once, and commands
  // are few. A run ahead of its turns neither signals nor waits.
  void encode(const std::vector<Step>& steps, const Run& run, uint64_t base, bool ahead) {
    std::vector<const Launch*> launches;
    for (const Step& step : steps) {
      if (step.kind == Step::Kind::kLaunch) launches.push_back(&step.launch);
    }
    make_kernels(launches);
    for (const Step& step : steps) {
      const auto s = static_cast<uint64_t>(step.segment);
      switch (step.kind) {
        case Step::Kind::kLaunch: encode(*queue_, step.launch, run, false); break;
        case Step::Kind::kSignal:
          if (!ahead) queue_->signal(*reached_, base + 2 * s + 1);
          if (std::has_single_bit(s + 1)) queue_->commit();
          break;
        case Step::Kind::kCut:
          if (ahead) break;
          queue_->signal(*reached_, base + 2 * s + 2);
          queue_->wait(*go_, base + s + 1);
          break;
      }
    }
    queue_->commit();
  }

  // --- without waiting for the host

  // Where every expert has a slot of its own, a window's layers need no turn between them as long as all they
  // pick is resident: the whole run goes to the device at once, and the turns are taken afterwards. Where a pick
  // was not there, false: what was computed is dropped (the state before the run is still there), and the run
  // is done again turn by turn. It is tried once a run found everything resident.
  bool run_ahead(const Lowering& lowering, const Graph& graph, const Run& run, const LoweringRun& what,
                 HostTurns& turns, const PollFn& poll) {
    if (!is_clean_ || what.has_prior || graph.segments.empty() || !place_residents(graph, turns)) return false;
    handed_ahead_.at_least(*device_, handed_layout_.bytes);
    ahead_ = true;
    try {
      LoweringRun at_once = what;
      at_once.ahead = true;
      encode(lowering.lower(graph, at_once), run, 0, true);
      await(poll, [&](int64_t ns) { return queue_->finish(ns); });
    } catch (...) {
      ahead_ = false;
      drain();
      throw;
    }
    ahead_ = false;
    ahead_copy_.resize(handed_layout_.bytes);
    handed_ahead_.get()->read(0, ahead_copy_.data(), ahead_copy_.size());
    for (const Segment& segment : graph.segments) {
      const std::span<const int32_t> picks = handed(graph, segment.picks, run, ahead_copy_.data());
      check_picks(segment.layer, picks);
      const std::span<const int32_t> residency = turns.resident(segment.layer).residency;
      is_clean_ = is_clean_ && std::ranges::all_of(picks, [&](int32_t e) {
        return residency[static_cast<size_t>(e)] >= 0;
      });
    }
    if (!is_clean_) return false;
    for (const Segment& segment : graph.segments) {
      turns.begin_turn(segment.layer, handed(graph, segment.picks, run, ahead_copy_.data()), {});
      for (int r = 0; turns.finish_turn(segment.layer, r).more; ++r) {
      }
      turns.after_turn(segment.layer);
    }
    copy_logits(run);
    return true;
  }

  // Every layer's slots as they are; what changed goes to the device. False where a turn may not be put off.
  bool place_residents(const Graph& graph, HostTurns& turns) {
    const size_t row = 1 + size_t{config_.n_expert}, n = graph.segments.size() * row;
    std::vector<int32_t> rows = std::exchange(resident_rows_, {});  // known again once the device has them
    bool changed = rows.size() != n;
    rows.resize(n, 0);
    for (size_t s = 0; s < graph.segments.size(); ++s) {
      const int layer = graph.segments[s].layer;
      const ExpertRound now = turns.resident(layer);
      if (now.residency.empty()) return false;
      const auto to = rows.begin() + static_cast<ptrdiff_t>(s * row);
      if (to[0] == 1 && std::equal(now.residency.begin(), now.residency.end(), to + 1)) continue;
      to[0] = 1;
      std::copy(now.residency.begin(), now.residency.end(), to + 1);
      all_experts_.clear();
      for (size_t e = 0; e < now.residency.size(); ++e) {
        if (now.residency[e] >= 0) all_experts_.push_back(static_cast<int32_t>(e));
      }
      publish(layer, all_experts_, now);
      changed = true;
    }
    if (changed) {
      resident_slots_.at_least(*device_, n * sizeof(int32_t))->write(0, rows.data(), n * sizeof(int32_t));
    }
    resident_rows_ = std::move(rows);
    return true;
  }

  void copy_logits(const Run& run) {
    std::copy_n(logits_.get()->floats(), size_t{run.n_logit_rows} * config_.n_vocab, run.logits);
  }

  // A handed buffer of the run, in a copy of their memory.
  std::span<const int32_t> handed(const Graph& graph, BufferId id, const Run& run, const uint8_t* memory) const {
    const auto at = static_cast<size_t>(id);
    return {reinterpret_cast<const int32_t*>(memory + handed_layout_.offset[at]),
            size_t{graph.buffers[at].width} * run.n_tokens};
  }

  // Sees to it that the device has these experts' records as they are now.
  void publish(int layer, std::span<const int32_t> experts, const ExpertRound& round) {
    seen_.resize(size_t{config_.n_layer} * config_.n_expert, 0);
    uint32_t* seen = seen_.data() + static_cast<size_t>(layer) * config_.n_expert;
    ranges_.clear();
    const auto l = static_cast<size_t>(layer);
    for (const int32_t e : experts) {
      const auto i = static_cast<size_t>(e);
      if (seen[i] == round.fills[i]) continue;
      is_clean_ = false;
      ranges_.push_back({arena_->base_bytes[l] + static_cast<uint64_t>(round.residency[i]) * arena_->slot_bytes[l],
                         weights_.experts(static_cast<uint32_t>(layer)).record_bytes});
    }
    if (!ranges_.empty() && device_->needs_publish()) device_->publish(*arena_->memory, ranges_);
    // Not before: what failed is tried again.
    for (const int32_t e : experts) {
      const auto i = static_cast<size_t>(e);
      seen[i] = round.fills[i];
    }
  }

  // --- the host's turns

  template <class Reached>
  void await(const PollFn& poll, const Reached& reached) {
    for (const int64_t start = now_ns(); !reached(kPollNs);) {
      if (poll) poll();
      queue_->finish(0);  // throws what went wrong there
      if (now_ns() - start < lost_ns_) continue;
      lost_ = true;
      raise_lost();
    }
  }

  [[noreturn]] void raise_lost() const {
    raise(ErrorKind::kDevice, "gpu",
          {.what = "the device does not answer",
           .got = "nothing for " + std::to_string(lost_ns_ / 1'000'000'000) + " s",
           .want = "the end of a layer",
           .where = device_->name(),
           .hint = "open the model again, or run it on the cpu backend"});
  }

  void take_turn(const Lowering& lowering, const Graph& graph, const Run& run, const LoweringRun& what,
                 HostTurns& turns, const PollFn& poll, size_t s, uint64_t base) {
    const Segment& segment = graph.segments[s];
    const auto ints = [&](BufferId id) { return handed(graph, id, run, handed_.get()->host()); };
    const auto guess = [&] {
      await(poll, [&](int64_t ns) { return reached_->wait(base + 2 * s + 2, ns); });
      for (size_t a = 0; a < segment.guesses.size(); ++a) {
        if (segment.guesses[a] == kNoBuffer) continue;
        const std::span<const int32_t> scores = ints(segment.guesses[a]);
        turns.guessed(segment.layer + 1 + static_cast<int>(a),
                      {reinterpret_cast<const float*>(scores.data()), scores.size()});
      }
    };
    await(poll, [&](int64_t ns) { return reached_->wait(base + 2 * s + 1, ns); });
    const std::span<const int32_t> picks = ints(segment.picks);
    const std::span<const int32_t> wanted = ints(segment.wanted).first(what.has_prior ? picks.size() : 0);
    check_picks(segment.layer, picks);
    check_picks(segment.layer, wanted);
    turns.begin_turn(segment.layer, picks, wanted);
    if (!turns.splits_turn()) guess();
    finish_turn(lowering, graph, run, what, turns, poll, s);
    copy_favoured(run, static_cast<size_t>(segment.layer) + 1);
    go_->set(base + s + 1);
    if (turns.splits_turn()) guess();
    turns.after_turn(segment.layer);
  }

  // What a device gone wrong says must not become an index.
  void check_picks(int layer, std::span<const int32_t> picks) const {
    for (const int32_t e : picks) {
      if (e >= 0 && static_cast<uint32_t>(e) < config_.n_expert) continue;
      raise(ErrorKind::kDevice, "gpu",
            {.what = "the device picked an expert that is not there",
             .got = std::to_string(e),
             .want = "0 to " + std::to_string(config_.n_expert - 1),
             .where = "layer " + std::to_string(layer),
             .hint = "run it on the cpu backend, and report this with the device's name"});
    }
  }

  // Rounds before the last run on a queue of their own, while the run's waits at its cut. Where all
  // experts stay until the turn ends they run together.
  void finish_turn(const Lowering& lowering, const Graph& graph, const Run& run, const LoweringRun& what,
                   HostTurns& turns, const PollFn& poll, size_t s) {
    const Segment& segment = graph.segments[s];
    experts_.clear();
    bool first = true;
    for (int r = 0;; ++r) {
      const ExpertRound round = turns.finish_turn(segment.layer, r);
      publish(segment.layer, round.experts, round);
      experts_.insert(experts_.end(), round.experts.begin(), round.experts.end());
      if (!round.more) return write_slots(s, experts_, round.residency, first);
      if (round.held) continue;
      write_slots(round_row_, experts_, round.residency, first);
      const std::vector<Launch> launches = lowering.lower_round(graph, what, s);
      std::vector<const Launch*> all;
      for (const Launch& launch : launches) all.push_back(&launch);
      make_kernels(all);
      for (const Launch& launch : launches) encode(*rounds_, launch, run, true);
      rounds_->commit();
      await(poll, [&](int64_t ns) { return rounds_->finish(ns); });
      experts_.clear();
      first = false;
    }
  }

  // Runs out what was encoded, committed or not, so that nothing of it is left for the next run; what goes
  // wrong has been reported, or nobody is left to hear of it.
  void drain() noexcept {
    for (Queue* queue : {rounds_.get(), queue_.get()}) {
      bool done = queue == nullptr, committed = false;
      const int64_t patience = lost_ ? std::min(lost_ns_, kLastChanceNs) : lost_ns_;
      for (const int64_t start = now_ns(); !done && now_ns() - start < patience;) {
        try {
          if (!std::exchange(committed, true)) queue->commit();
          done = queue->finish(kPollNs);
        } catch (...) {
          continue;
        }
      }
    }
  }

  const Config& config_;
  const Weights& weights_;
  std::unique_ptr<Device> device_;
  TileTable tiles_;
  const PlacedWeights placed_;
  Growing extra_{MemoryUse::kWork, "kernels' scratch"}, slots_{MemoryUse::kShared, "slots"},
      tokens_{MemoryUse::kShared, "tokens"}, ple_rows_{MemoryUse::kShared, "n-gram rows"},
      turns_{MemoryUse::kShared, "rotations"}, favoured_{MemoryUse::kShared, "the cache prior"},
      logits_{MemoryUse::kShared, "logits"}, handed_{MemoryUse::kShared, "picks"},
      handed_ahead_{MemoryUse::kWork, "picks of runs ahead"},
      resident_slots_{MemoryUse::kWork, "slots of what is resident"};
  struct Made {
    std::vector<Constant> constants;
    std::unique_ptr<Kernel> kernel;
  };
  std::unordered_map<std::string, std::vector<Made>> kernels_;
  std::unique_ptr<Event> reached_, go_;
  std::unique_ptr<Queue> queue_, rounds_;
  const int64_t lost_ns_ = lost_ns();
  bool lost_ = false;  // it stopped answering: no run is begun any more
  uint64_t clock_ = 0;
  size_t all_row_ = 0, round_row_ = 0;
  std::vector<Binding> bindings_;
  std::vector<int32_t> experts_, all_experts_;
  HandedLayout handed_layout_;
  const ArenaView* arena_ = nullptr;
  std::vector<uint32_t> seen_;  // [n_layer, n_expert] fills (ExpertRound) of what the device has
  std::vector<ByteRange> ranges_;
  bool ahead_ = false;     // at hand is a run that waits for no turn
  bool is_clean_ = false;  // the last run found all it wanted resident
  std::vector<int32_t> resident_rows_;  // [segment, 1 + n_expert], as resident_slots_ has them
  std::vector<uint8_t> ahead_copy_;
};

}  // namespace
}  // namespace gpu

uint64_t gpu_bytes_per_token(const Config& config, uint64_t context) {
  const gpu::ExtraLayout one = gpu::extra_layout(config, kMaxWindow + 1, context);
  return one.bytes / (kMaxWindow + 1) + 1;
}

std::unique_ptr<Backend> make_gpu_backend(const Config& config, const Weights& weights,
                                          std::unique_ptr<gpu::Device> device,
                                          std::span<const gpu::TileRow> tuned) {
  return std::make_unique<gpu::GpuBackend>(config, weights, std::move(device), tuned);
}

}  // namespace esker
