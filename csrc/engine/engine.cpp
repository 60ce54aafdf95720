// SPDX-License-Identifier: MIT
#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/gpu/devices.h"
#include "backends/gpu/gpu_backend.h"
#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "engine/model_plan.h"
#include "formats/quants.h"
#include "graph/ngram.h"

namespace esker {
namespace {

// The host's turns of a run: what the backend asks, the stream answers.
class StreamTurns final : public HostTurns {
 public:
  StreamTurns(ExpertStream& stream, const PollFn& poll, bool split_turn)
      : stream_(stream), poll_(poll), split_turn_(split_turn) {}
  void begin_turn(int layer, std::span<const int32_t> picks,
                  std::span<const int32_t> wanted) override {
    stream_.begin_layer(layer, picks, wanted, poll_);
  }
  void guessed(int layer, std::span<const float> scores) override { stream_.guessed(layer, scores); }
  ExpertRound finish_turn(int layer, int round) override {
    const TurnResult r = stream_.at_layer(layer, round, poll_);
    return {.experts = r.experts, .residency = stream_.residency(layer), .fills = stream_.fills(layer),
            .more = r.more, .held = r.held};
  }
  ExpertRound resident(int layer) override {
    if (!stream_.holds_all()) return {};
    return {.experts = {}, .residency = stream_.residency(layer), .fills = stream_.fills(layer)};
  }
  bool splits_turn() const override { return split_turn_; }
  void after_turn(int layer) override { stream_.after_layer(layer, poll_); }

 private:
  ExpertStream& stream_;
  const PollFn& poll_;
  const bool split_turn_;
};

std::unique_ptr<Backend> make_backend(const EngineOptions& options, const Config& config,
                                      const Weights& weights) {
  if (options.backend == "cpu") {
    return make_cpu_backend(config, weights,
                            {.threads = options.threads, .activations = options.activations});
  }
  return make_gpu_backend(
      config, weights,
      gpu::open_device(options.backend, {.cache_folder = options.cache_folder, .wire = options.wire}),
      options.tiles);
}

// Finds the row with a NaN or an infinity, if any: [rows, width].
void check_finite(const float* logits, uint32_t rows, uint32_t width, uint64_t first_position) {
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t i = 0; i < width; ++i) {
      const float v = logits[r * width + i];
      if (std::isfinite(v)) continue;
      raise(ErrorKind::kNumeric, "engine",
            {.what = "the model computed a logit that is not a number",
             .got = std::to_string(v),
             .want = "finite logits",
             .where = "position " + std::to_string(first_position + r) + ", token " + std::to_string(i),
             .hint = "the file may be damaged (compare its hash with the publisher's)"});
    }
  }
}

}  // namespace

std::shared_ptr<Engine> Engine::open(const EngineOptions& options, const PollFn& poll) {
  std::shared_ptr<Engine> engine(new Engine);
  engine->load(options, poll);
  return engine;
}

Engine::~Engine() = default;

void Engine::load(const EngineOptions& options, const PollFn& poll) {
  const std::shared_ptr<const Gguf> model = Gguf::open(options.path);
  if (poll) poll();
  const std::shared_ptr<const Gguf> table =
      options.ngram_table.empty() ? model : Gguf::open(options.ngram_table);
  config_ = read_config(*model, *table);
  weights_ = std::make_unique<Weights>(model, table, config_);
  if (poll) poll();
  memory_ = gpu::device_memory(options.backend);
  const bool has_own_memory = static_cast<bool>(memory_);
  if (!has_own_memory) memory_ = options.memory;
  plan_ = plan_model(options, config_, *weights_, memory_());
  if (plan_.guess_layers > 0) weights_->make_router_copies();
  if (poll) poll();
  window_graph_ = build_graph(config_, GraphMode::kWindow, plan_.guess_layers);
  prompt_graph_ = build_graph(config_, GraphMode::kPrompt, std::min(plan_.guess_layers, 1u));
  layout_ = make_state_layout(config_, plan_.context);
  backend_ = make_backend(options, config_, *weights_);
  scratch_ = backend_->allocate(
      std::max(window_graph_.scratch_width, prompt_graph_.scratch_width) * sizeof(float) * plan_.chunk,
      MemoryUse::kWork, "prompt scratch");
  open_stream(options, poll);
  if (options.wire) wire(!has_own_memory);
  governor_ = options.governor && !has_own_memory;  // what is short of memory is the system, not the device
  split_turn_ = options.split_turn;

  Hash hash;
  for (const TensorInfo& t : model->tensors()) {
    hash.add(t.name);
    hash.add(t.type_id);
    hash.add(t.offset);
    for (uint64_t d : t.dims) hash.add(d);
  }
  const Weight& norm = weights_->global(Role::kOutputHcNorm);
  hash.add(norm.data, norm.bytes);
  for (uint32_t i = 0; i < config_.n_layer; ++i) {
    const Weight& w = weights_->layer(i, Role::kHcAttnNorm);
    hash.add(w.data, w.bytes);
  }
  fingerprint_ = hash.value();
}

void Engine::open_stream(const EngineOptions& options, const PollFn& poll) {
  std::vector<std::shared_ptr<File>> files(weights_->gguf().files().size());
  const auto file = [&](uint32_t index) {
    if (!files[index]) files[index] = options.open_file(weights_->gguf().files()[index]->path());
    return files[index];
  };
  std::vector<RecordLayout> records;
  for (uint32_t i = 0; i < config_.n_layer; ++i) {
    const ExpertLayout& layout = weights_->experts(i);
    RecordLayout record{.pieces = {}, .record_bytes = layout.record_bytes};
    for (const ExpertPiece& p : layout.pieces) {
      record.pieces.push_back({.file = file(p.file), .offset = p.offset, .stride_bytes = p.bytes,
                               .bytes = p.bytes, .record_offset = p.record_offset});
    }
    records.push_back(std::move(record));
    const SlotClass& slots = plan_.arena.classes[plan_.arena.class_of_layer[i]];
    arena_view_.base_bytes.push_back(slots.base_bytes);
    arena_view_.slot_bytes.push_back(slots.slot_bytes());
  }
  prior_ = {.bonus = options.cache_prior, .protect = options.protect, .favoured = nullptr};
  arena_ = backend_->allocate(plan_.arena.total_bytes, MemoryUse::kArena, "the expert arena");
  arena_view_.memory = arena_.get();
  const int readers = options.reader_threads > 0 ? options.reader_threads : kReaderThreads;
  stream_ = std::make_unique<ExpertStream>(
      std::move(records), config_.n_expert, plan_.arena, arena_->host(),
      StreamOptions{.reader_threads = readers,
                    .n_expert_used = config_.n_expert_used,
                    .read_ahead = read_ahead_depth(options, config_, *weights_),
                    .read_ahead_2 = options.read_ahead_2,
                    .touch_guesses = options.touch_guesses,
                    .cache_prior = options.cache_prior,
                    .protect = options.protect,
                    .starvation = options.starvation,
                    .split_turn = options.split_turn});
  if (config_.has_ple()) {
    const TableLayout& t = weights_->table();
    row_cache_ = std::make_unique<RowCache>(options.open_file(t.path), t.offset, t.row_bytes, t.rows,
                                            plan_.row_cache_bytes, readers);
    row_cache_->load_all(poll);
  }
}

void Engine::wire(bool with_arena) {
  WiredPart dense{.what = "dense weights", .bytes = 0, .error_number = 0};
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto wire_one = [&](const Weight& w) {
    if (!w) return;
    const auto begin = reinterpret_cast<uintptr_t>(w.data) / page * page;
    const size_t bytes = reinterpret_cast<uintptr_t>(w.data) + w.bytes - begin;
    const int error = wire_pages(reinterpret_cast<const uint8_t*>(begin), bytes);
    if (error == 0) dense.bytes += w.bytes;
    if (dense.error_number == 0) dense.error_number = error;
  };
  for (size_t r = 0; r < static_cast<size_t>(Role::kCount); ++r) {
    const Role role = static_cast<Role>(r);
    const bool tied = role == Role::kOutput &&
                      weights_->global(role).data == weights_->global(Role::kTokenEmbd).data;
    if (!tied) wire_one(weights_->global(role));
    for (uint32_t i = 0; i < config_.n_layer; ++i) wire_one(weights_->layer(i, role));
  }
  if (!with_arena) {
    wired_ = {dense};
    return;
  }
  const int error = wire_pages(arena_->host(), arena_->size_bytes());
  wired_ = {dense, {.what = "expert arena", .bytes = error == 0 ? arena_->size_bytes() : 0,
                    .error_number = error}};
}

uint64_t Engine::fill(std::span<const std::pair<uint32_t, uint32_t>> ranked, const PollFn& poll) {
  const std::lock_guard lock(mutex_);
  return stream_->fill(ranked, poll);
}

std::vector<uint64_t> Engine::pick_counts() {
  const std::lock_guard lock(mutex_);
  const std::span<const uint64_t> counts = stream_->pick_counts();
  return {counts.begin(), counts.end()};
}

void Engine::set_readers(int threads, uint64_t chunk_bytes) {
  const std::lock_guard lock(mutex_);
  stream_->set_readers(threads, chunk_bytes);
}

// Between tokens. The plan leaves the system a reserve; when others have taken half of it, the arena
// gives what is missing of that half, and takes it again once there are three quarters. Where the system
// itself complains, it gives a sixteenth (a quarter when things are critical) whatever the numbers say.
void Engine::govern() {
  constexpr int64_t kEveryNs = 250'000'000;
  const int64_t now = now_ns();
  if (governed_ns_ != 0 && now - governed_ns_ < kEveryNs) return;
  governed_ns_ = now;
  const MachineMemory machine = memory_();
  const uint64_t reserve = plan_.reserve_bytes != 0 ? plan_.reserve_bytes : system_reserve(machine);
  if (machine.pressure != MemoryPressure::kNone) {
    const uint64_t share = machine.pressure == MemoryPressure::kCritical ? 4 : 16;
    stream_->shrink(std::max(reserve / 2 - std::min(reserve / 2, machine.available_bytes),
                             plan_.arena.total_bytes / share));
  } else if (machine.available_bytes < reserve / 2) {
    stream_->shrink(reserve / 2 - machine.available_bytes);
  } else if (machine.available_bytes > reserve / 4 * 3) {
    stream_->grow(machine.available_bytes - reserve / 4 * 3);
  }
}

SessionState Engine::new_state() {
  using enum MemoryUse;
  return {.before = backend_->allocate(layout_.n_recurrent * sizeof(float), kWork, "a session's state"),
          .after = backend_->allocate(layout_.n_recurrent * sizeof(float), kWork, "a session's state"),
          .appended = backend_->allocate(layout_.n_appended * sizeof(float), kWork, "a session's context")};
}

void Engine::fetch_ple_rows(std::span<const int32_t> history, std::span<const int32_t> tokens,
                            const PollFn& poll) {
  const uint64_t n = tokens.size() * config_.n_ple_head();
  const TableLayout& table = weights_->table();
  ple_ids_.resize(n);
  ple_blocks_.resize(n * table.row_bytes);
  ple_rows_.resize(n * config_.d_ple_row);
  ngram_rows(config_, history, tokens, ple_ids_.data());
  row_cache_->fetch(ple_ids_, ple_blocks_.data(), poll);
  weight_decoder(table.type)(ple_blocks_.data(), ple_rows_.data(),
                             static_cast<int64_t>(ple_rows_.size()));
}

void Engine::run(SessionState& state, std::span<const int32_t> history,
                 std::span<const int32_t> tokens, uint32_t n_logit_rows, float* logits,
                 const PollFn& poll) {
  const std::lock_guard lock(mutex_);
  weights_->check_files_unchanged();
  if (governor_) govern();
  if (tokens.size() <= kMaxWindow && prompt_scratch_) {
    backend_->trim(*scratch_, kMaxWindow * window_graph_.scratch_width * sizeof(float));
    prompt_scratch_ = false;
  }
  prompt_scratch_ = prompt_scratch_ || tokens.size() > kMaxWindow;
  if (config_.has_ple()) fetch_ple_rows(history, tokens, poll);
  const bool decode = tokens.size() <= kMaxWindow;
  const Graph& graph = decode ? window_graph_ : prompt_graph_;
  // A prompt's picks are exact: most experts are read for it anyway.
  const CachePrior prior{.bonus = decode ? prior_.bonus : 0,
                         .protect = prior_.protect,
                         .favoured = stream_->favoured().data()};
  const Run run{.n_tokens = static_cast<uint32_t>(tokens.size()),
                .n_logit_rows = n_logit_rows,
                .position = history.size(),
                .tokens = tokens.data(),
                .ple_rows = ple_rows_.data(),
                .logits = logits,
                .state_in = state.before.get(),
                .state_out = state.after.get(),
                .appended = state.appended.get(),
                .layout = &layout_,
                .arena = &arena_view_,
                .prior = prior,
                .scratch = scratch_.get()};
  StreamTurns turns(*stream_, poll, split_turn_);
  stream_->begin_run(decode ? TurnKind::kDecode : TurnKind::kPrompt, run.n_tokens);
  try {
    backend_->run_graph_seg(graph, run, turns, poll);
  } catch (...) {
    stream_->abandon_turn();
    throw;
  }
  weights_->check_files_unchanged();
  check_finite(logits, n_logit_rows, config_.n_vocab, run.position + tokens.size() - n_logit_rows);
}

EngineCounters Engine::counters() const {
  EngineCounters c;
  c.stream = stream_->counters();
  if (row_cache_) c.rows = row_cache_->counters();
  c.device_ns = backend_->device_ns();
  return c;
}

}  // namespace esker
