// SPDX-License-Identifier: MIT
#include "backends/cpu/cpu_backend.h"

#include <algorithm>

#include "backends/cpu/ops.h"
#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/machine.h"

namespace esker {
namespace cpu {

float* Context::floats(BufferId id) const {
  const BufferDesc& b = graph.buffers[static_cast<size_t>(id)];
  switch (b.kind) {
    case BufferKind::kPleRows: return const_cast<float*>(run.ple_rows);  // ops only read it
    case BufferKind::kLogits: return run.logits - (run.n_tokens - run.n_logit_rows) * int64_t{b.width};
    case BufferKind::kScratch: break;
  }
  return run.scratch->floats() + b.offset * run.n_tokens;
}

void Context::reserve(int64_t n) const {
  for (std::vector<float>& v : thread_floats) {
    if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
  }
}

}  // namespace cpu

namespace {

class CpuMemory final : public DeviceMemory {
 public:
  CpuMemory(size_t bytes, const char* purpose) : buffer_(bytes, purpose) {}
  uint8_t* host() override { return buffer_.data(); }
  size_t size_bytes() const override { return buffer_.size_bytes(); }

 private:
  AlignedBuffer buffer_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Config& config, const Weights& weights, int threads, Activations activations)
      : config_(config),
        weights_(weights),
        small_(config, weights),
        pool_(threads),
        kernels_(cpu::kernels()),
        parts_(static_cast<int>(activations)),
        thread_floats_(static_cast<size_t>(pool_.size())) {}

  const char* name() const override { return "cpu"; }

  std::unique_ptr<DeviceMemory> allocate(size_t bytes, MemoryUse, const char* purpose) override {
    return std::make_unique<CpuMemory>(bytes, purpose);
  }

  void run_graph_seg(const Graph& graph, const Run& run, HostTurns& turns,
                     const PollFn& poll) override {
    pool_.set_poll(poll);
    packs_.clear();
    const size_t scratch_bytes = size_t{graph.scratch_width} * run.n_tokens * sizeof(float);
    if (scratch_bytes > kept_bytes_) {
      reuse_pages_behind(run.scratch->host(), scratch_bytes, kept_bytes_);
      kept_bytes_ = scratch_bytes;
    }
    const cpu::Context c{config_, weights_, small_, graph, run,
                         pool_, kernels_, packs_, rope_, thread_floats_, parts_};
    auto segment = graph.segments.begin();
    for (int32_t i = 0; i < static_cast<int32_t>(graph.ops.size()); ++i) {
      if (segment != graph.segments.end() && i == segment->signal) {
        const size_t n = size_t{run.n_tokens} * config_.n_expert_used;
        turns.begin_turn(segment->layer, {c.ints(segment->picks), n},
                         {c.ints(segment->wanted), run.prior.bonus > 0 ? n : 0});
      }
      if (segment != graph.segments.end() && i == segment->cut) {
        for (size_t a = 0; a < segment->guesses.size(); ++a) {
          const BufferId scores = segment->guesses[a];
          if (scores == kNoBuffer) continue;
          turns.guessed(segment->layer + 1 + static_cast<int>(a),
                        {c.floats(scores), size_t{run.n_tokens} * config_.n_expert});
        }
        run_rounds(c, *segment, turns);
        i = segment->end;
        ++segment;
      }
      if (poll) poll();
      const Op& op = graph.ops[static_cast<size_t>(i)];
      const OpClock clock(*this, op);
      execute(c, op);
    }
  }

  void trim(DeviceMemory& scratch, size_t keep_bytes) override {
    release_pages_behind(scratch.host(), scratch.size_bytes(), keep_bytes);
    kept_bytes_ = keep_bytes;
    packs_.trim();
    for (std::vector<float>& v : thread_floats_) std::vector<float>().swap(v);
  }

  std::vector<OpTime> op_times() const override {
    std::vector<OpTime> called;
    for (const OpTime& t : times_) {
      if (t.calls > 0) called.push_back(t);
    }
    return called;
  }

 private:
  static constexpr size_t kRoles = static_cast<size_t>(Role::kCount) + 1;

  // Adds the time it lives to its op's. Two readings of the clock an op: a thousandth of a token.
  class OpClock {
   public:
    OpClock(CpuBackend& backend, const Op& op) : start_ns_(now_ns()) {
      const Role role = op.kind == OpKind::kMatmul ? op.w[0].role : Role::kCount;
      time_ = &backend.times_[static_cast<size_t>(op.kind) * kRoles + static_cast<size_t>(role)];
      time_->kind = op.kind;
      time_->role = role;
    }
    ~OpClock() {
      time_->calls += 1;
      time_->ns += now_ns() - start_ns_;
    }
    OpClock(const OpClock&) = delete;
    OpClock& operator=(const OpClock&) = delete;

   private:
    OpTime* time_;
    int64_t start_ns_;
  };

  void run_rounds(const cpu::Context& c, const Segment& segment, HostTurns& turns) {
    ExpertRound round{.experts = {}, .residency = {}, .more = true};
    held_.clear();
    for (int r = 0; round.more; ++r) {
      round = turns.finish_turn(segment.layer, r);
      // The next layers' experts are read while this one's are computed.
      if (!round.more) turns.after_turn(segment.layer);
      const Op& op = c.graph.ops[static_cast<size_t>(segment.cut)];
      const OpClock clock(*this, op);
      cpu::experts(c, op, round, r == 0, held_);
    }
  }

  static void execute(const cpu::Context& c, const Op& op) {
    if (c.rows(op) == 0) return;
    switch (op.kind) {
      case OpKind::kEmbed: return cpu::embed(c, op);
      case OpKind::kMatmul: return cpu::matmul(c, op);
      case OpKind::kStreamNorm: return cpu::stream_norm(c, op);
      case OpKind::kMixRead: return cpu::mix_read(c, op);
      case OpKind::kMixWrite: return cpu::mix_write(c, op);
      case OpKind::kPleGate: return cpu::ple_gate(c, op);
      case OpKind::kPleConv: return cpu::ple_conv(c, op);
      case OpKind::kGdnConv: return cpu::gdn_conv(c, op);
      case OpKind::kGdnGates: return cpu::gdn_gates(c, op);
      case OpKind::kDeltaStep: return cpu::delta_step(c, op);
      case OpKind::kDeltaChunk: return cpu::delta_chunk(c, op);
      case OpKind::kGdnNorm: return cpu::gdn_norm(c, op);
      case OpKind::kAttnPrepare: return cpu::attn_prepare(c, op);
      case OpKind::kIndexPrepare: return cpu::index_prepare(c, op);
      case OpKind::kBlockSelect: return cpu::block_select(c, op);
      case OpKind::kAttention: return cpu::attention(c, op);
      case OpKind::kRoute: return cpu::route(c, op);
      case OpKind::kSwiglu: return cpu::swiglu(c, op);
      case OpKind::kMoeCombine: return cpu::moe_combine(c, op);
      case OpKind::kExperts: return;  // only inside a segment: run_rounds
    }
  }

  const Config& config_;
  const Weights& weights_;
  SmallTensors small_;
  ThreadPool pool_;
  const cpu::Kernels& kernels_;
  int parts_;
  cpu::PackCache packs_;
  cpu::RopeTable rope_;
  std::vector<std::vector<float>> thread_floats_;
  size_t kept_bytes_ = SIZE_MAX;  // of the scratch: what lies behind was given back
  std::vector<int32_t> held_;  // experts of the turn's earlier rounds that wait for their last part
  std::vector<OpTime> times_ =
      std::vector<OpTime>((static_cast<size_t>(OpKind::kMoeCombine) + 1) * kRoles);
};

}  // namespace

uint64_t cpu_bytes_per_token(const Config& c) {
  const uint64_t widest = std::max<uint64_t>(uint64_t{c.n_stream} * c.d_model,
                                             std::max<uint64_t>(c.value_width(), c.n_head * c.d_head));
  return cpu::PackCache::kEntries * cpu::Packed::bytes_for(static_cast<int64_t>(widest)) +
         c.n_expert_used * cpu::Packed::bytes_for(c.d_expert);
}

const char* cpu_instruction_set() { return cpu::kernels().isa; }

std::unique_ptr<Backend> make_cpu_backend(const Config& config, const Weights& weights,
                                          const CpuOptions& options) {
  const int threads = options.threads > 0 ? options.threads : machine_cores();
  return std::make_unique<CpuBackend>(config, weights, threads, options.activations);
}

}  // namespace esker
