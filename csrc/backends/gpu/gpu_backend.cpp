// SPDX-License-Identifier: MIT
#include "backends/gpu/gpu_backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "backends/gpu/lowering.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/units.h"
#include "graph/small_tensors.h"

namespace esker {
namespace gpu {
namespace {

constexpr int64_t kPollNs = 20'000'000;
// No segment of a model takes as long, not even on the CPU under a sanitizer.
constexpr double kLostSeconds = 60;

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
      : config_(config), weights_(weights), device_(std::move(device)), tiles_(device_->family()) {
    for (const TileRow& row : tuned) tiles_.add(row);
    check_limits();
    check_records();
    load_weights();
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
                           .protect = run.prior.protect};
    const Lowering lowering(config_, weights_, *run.layout, *run.arena, tiles_);
    prepare(graph, run);
    const uint64_t base = std::exchange(clock_, clock_ + 2 * graph.segments.size() + 2);
    try {
      encode(lowering.lower(graph, what), run, base);
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
    const size_t n = size_t{run.n_logit_rows} * config_.n_vocab;
    std::copy_n(logits_.get()->floats(), n, run.logits);
  }

  void trim(DeviceMemory& scratch, size_t keep_bytes) override {
    device_->trim(scratch, keep_bytes);
    for (Growing* g : {&extra_, &ple_rows_, &logits_, &turns_, &tokens_}) g->release();
  }

 private:
  // --- memory

  struct Placed {
    DeviceMemory* memory = nullptr;
    uint64_t offset = 0;
  };

  void load_weights() {
    const SmallTensors small(config_, weights_);
    constexpr size_t kRoles = static_cast<size_t>(Role::kCount);
    uint64_t small_bytes = 0;
    std::vector<std::pair<size_t, WeightRef>> small_refs;
    matrices_.resize((config_.n_layer + 1) * kRoles);
    small_.resize(matrices_.size());
    const auto add = [&](WeightRef ref, const Weight& w) {
      if (!w) return;
      const size_t at = place_of(ref.layer, ref.role);
      if (small.get(ref) != nullptr) {
        small_refs.emplace_back(at, ref);
        small_[at] = {nullptr, small_bytes};
        small_bytes += align_up(w.rows * w.cols * sizeof(float), 64);
      }
      wrapped_.push_back(placed_matrix(w, role_name(ref.role)));
      matrices_[at] = {wrapped_.back().get(), 0};
    };
    for (size_t r = 0; r < kRoles; ++r) {
      const Role role = static_cast<Role>(r);
      add({role, -1}, weights_.global(role));
      for (uint32_t i = 0; i < config_.n_layer; ++i) {
        add({role, static_cast<int32_t>(i)}, weights_.layer(i, role));
      }
    }
    small_memory_ = device_->allocate(std::max<uint64_t>(small_bytes, 64), MemoryUse::kWork, "small tensors");
    for (const auto& [at, ref] : small_refs) {
      const Weight& w = weights_.get(ref);
      small_[at].memory = small_memory_.get();
      std::memcpy(small_memory_->host() + small_[at].offset, small.get(ref),
                  w.rows * w.cols * sizeof(float));
    }
  }

  // Kernels load a block in words as wide as its size allows; a file may lie less well.
  static uint64_t alignment_of(WeightType type) {
    const uint64_t bytes = weight_type_info(type).block_elements == 1 ? 16 : weight_type_info(type).block_bytes;
    return std::min<uint64_t>(16, bytes & (~bytes + 1));
  }

  std::unique_ptr<DeviceMemory> placed_matrix(const Weight& w, const char* what) {
    if (reinterpret_cast<uintptr_t>(w.data) % alignment_of(w.type) == 0) {
      return device_->wrap(w.data, w.bytes, what);
    }
    std::unique_ptr<DeviceMemory> copy = device_->allocate(w.bytes, MemoryUse::kWork, what);
    std::memcpy(copy->host(), w.data, w.bytes);
    return copy;
  }

  // What the kernels' registers and threadgroup memory are cut for; the real model has 512 experts, 10 a
  // token, and heads of 256 and 128.
  void check_limits() const {
    const auto check = [](const char* what, uint32_t got, uint32_t most, uint32_t multiple) {
      if (got <= most && got % multiple == 0) return;
      raise(ErrorKind::kUsage, "gpu",
            {.what = "the kernels are not made for this model's " + std::string(what),
             .got = std::to_string(got),
             .want = "at most " + std::to_string(most) +
                     (multiple > 1 ? ", a multiple of " + std::to_string(multiple) : ""),
             .where = {},
             .hint = "run it on the cpu backend"});
    };
    check("number of experts", config_.n_expert, 1024, 1);
    check("experts a token", config_.n_expert_used, 32, 1);
    check("head width", config_.d_head, 256, 4);
    check("index head width", config_.d_index, 256, 4);
    check("delta net head width", config_.d_linear_head, 256, 1);
  }

  // Records are read where they land.
  void check_records() const {
    for (uint32_t i = 0; i < config_.n_layer; ++i) {
      const ExpertLayout& e = weights_.experts(i);
      const std::pair<WeightType, uint64_t> pieces[] = {
          {e.gate_type, e.gate_offset}, {e.up_type, e.up_offset}, {e.down_type, e.down_offset}};
      for (const auto& [type, offset] : pieces) {
        if (offset % alignment_of(type) == 0) continue;
        raise(ErrorKind::kUsage, "gpu",
              {.what = "an expert's matrix begins where the kernels cannot read it",
               .got = "offset " + std::to_string(offset) + " in the record",
               .want = "a multiple of " + std::to_string(alignment_of(type)),
               .where = "layer " + std::to_string(i) + ", " + weight_type_info(type).name,
               .hint = "run it on the cpu backend, or requantise its experts to one type"});
      }
    }
  }

  static size_t place_of(int32_t layer, Role role) {
    return static_cast<size_t>(layer + 1) * static_cast<size_t>(Role::kCount) + static_cast<size_t>(role);
  }

  // Everything the run's kernels read that the host knows beforehand.
  void prepare(const Graph& graph, const Run& run) {
    const uint64_t tokens = run.n_tokens, end = run.position + tokens;
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

  Placed placed(const Operand& o, const Run& run, bool in_round) const {
    switch (o.place) {
      case Place::kScratch: return {run.scratch, o.offset};
      case Place::kExtra: return {extra_.get(), o.offset};
      case Place::kWeight: return matrices_[place_of(o.layer, o.role)];
      case Place::kSmall: return small_[place_of(o.layer, o.role)];
      case Place::kStateIn: return {run.state_in, o.offset};
      case Place::kStateOut: return {run.state_out, o.offset};
      case Place::kAppended: return {run.appended, o.offset};
      case Place::kArena:
        return {run.arena->memory, run.arena->base_bytes[static_cast<size_t>(o.layer)]};
      case Place::kSlots: return {slots_.get(), in_round ? round_row_ * slots_bytes() : o.offset};
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

  static std::string key_of(const Launch& launch) {
    std::string key = launch.kernel;
    for (uint32_t i = 0; i < launch.n_constants; ++i) {
      key.append(",").append(std::to_string(launch.constants[i].index));
      key.append("=").append(std::to_string(launch.constants[i].value));
    }
    return key;
  }

  // Has what the launches need made, as one lot.
  void make_kernels(std::span<const Launch* const> launches) {
    std::map<std::string, KernelSpec> missing;
    for (const Launch* l : launches) {
      std::string key = key_of(*l);
      if (kernels_.contains(key)) continue;
      missing.emplace(std::move(key),
                      KernelSpec{l->kernel, {l->constants.begin(), l->constants.begin() + l->n_constants}});
    }
    if (missing.empty()) return;
    std::vector<KernelSpec> specs;
    for (const auto& [key, spec] : missing) specs.push_back(spec);
    std::vector<std::unique_ptr<Kernel>> made = device_->kernels(specs);
    size_t i = 0;
    for (const auto& [key, spec] : missing) kernels_.emplace(key, std::move(made[i++]));
  }

  void encode(Queue& queue, const Launch& launch, const Run& run, bool in_round) {
    bindings_.clear();
    for (const Operand& o : launch.operands) {
      const Placed p = placed(o, run, in_round);
      bindings_.push_back({p.memory, p.offset});
    }
    if (launch.barrier) queue.barrier();
    queue.dispatch({.kernel = kernels_.at(key_of(launch)).get(),
                    .args = {launch.args.data(), launch.args_bytes},
                    .buffers = bindings_,
                    .groups = launch.groups,
                    .threads = launch.threads});
  }

  // The whole run. It is handed over after 1, 2, 4 ... segments: the device begins at once, and commands
  // are few.
  void encode(const std::vector<Step>& steps, const Run& run, uint64_t base) {
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
          queue_->signal(*reached_, base + 2 * s + 1);
          if (std::has_single_bit(s + 1)) queue_->commit();
          break;
        case Step::Kind::kCut:
          queue_->signal(*reached_, base + 2 * s + 2);
          queue_->wait(*go_, base + s + 1);
          break;
      }
    }
    queue_->commit();
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
    const auto ints = [&](BufferId id) {
      const BufferDesc& b = graph.buffers[static_cast<size_t>(id)];
      const auto* data = reinterpret_cast<const int32_t*>(run.scratch->floats() + b.offset * run.n_tokens);
      return std::span(data, size_t{b.width} * run.n_tokens);
    };
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
      for (const int64_t start = now_ns(); !done && !lost_ && now_ns() - start < lost_ns_;) {
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
  std::vector<std::unique_ptr<DeviceMemory>> wrapped_;
  std::unique_ptr<DeviceMemory> small_memory_;
  std::vector<Placed> matrices_, small_;  // by layer + 1 and role
  Growing extra_{MemoryUse::kWork, "kernels' scratch"}, slots_{MemoryUse::kShared, "slots"},
      tokens_{MemoryUse::kShared, "tokens"}, ple_rows_{MemoryUse::kShared, "n-gram rows"},
      turns_{MemoryUse::kShared, "rotations"}, favoured_{MemoryUse::kShared, "the cache prior"},
      logits_{MemoryUse::kShared, "logits"};
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
  std::unique_ptr<Event> reached_, go_;
  std::unique_ptr<Queue> queue_, rounds_;
  const int64_t lost_ns_ = lost_ns();
  bool lost_ = false;  // it stopped answering: nothing is waited for any more
  uint64_t clock_ = 0;
  size_t all_row_ = 0, round_row_ = 0;
  std::vector<Binding> bindings_;
  std::vector<int32_t> experts_;
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
