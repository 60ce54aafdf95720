// SPDX-License-Identifier: MIT
//
// Routing and the experts (SPEC section 7). Experts run in ascending order whatever the rounds, and a
// token's outputs are summed in that order: the arena's size never shows in a result.
#include <algorithm>
#include <cmath>

#include "backends/cpu/math.h"
#include "backends/cpu/ops.h"
#include "formats/quants.h"

namespace esker::cpu {
namespace {

// The picks of one round, grouped by expert.
struct Plan {
  std::vector<const uint8_t*> records;  // of each expert of the round
  std::vector<int64_t> first;           // [experts + 1] into picks
  std::vector<int64_t> picks;           // t * K + rank, ascending within an expert
};

Plan group_picks(const Context& c, const Op& op, const ExpertRound& round) {
  const int64_t n = int64_t{c.run.n_tokens} * c.config.n_expert_used;
  const int32_t* picked = c.ints(op.in[1]);
  const auto layer = static_cast<size_t>(op.layer);
  const ArenaView& arena = *c.run.arena;
  std::vector<int64_t> place(c.config.n_expert, -1);
  Plan plan;
  for (const int32_t e : round.experts) {
    place[static_cast<size_t>(e)] = static_cast<int64_t>(plan.records.size());
    const auto slot = static_cast<uint64_t>(round.residency[static_cast<size_t>(e)]);
    plan.records.push_back(arena.memory->host() + arena.base_bytes[layer] + slot * arena.slot_bytes[layer]);
  }
  plan.first.assign(plan.records.size() + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = place[static_cast<size_t>(picked[i])];
    if (at >= 0) ++plan.first[static_cast<size_t>(at) + 1];
  }
  for (size_t i = 1; i < plan.first.size(); ++i) plan.first[i] += plan.first[i - 1];
  plan.picks.resize(static_cast<size_t>(plan.first.back()));
  std::vector<int64_t> next(plan.first.begin(), plan.first.end() - 1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = place[static_cast<size_t>(picked[i])];
    if (at >= 0) plan.picks[static_cast<size_t>(next[static_cast<size_t>(at)]++)] = i;
  }
  return plan;
}

// h[pick, f] = silu(gate_f x) * (up_f x), each weight row decoded once for all its tokens.
void gate_and_up(const Context& c, const Op& op, const Plan& plan) {
  const ExpertLayout& layout = c.weights.experts(static_cast<uint32_t>(op.layer));
  const int64_t d = c.config.d_model, f = c.config.d_expert, k = c.config.n_expert_used;
  const uint64_t gate_row = weight_bytes(layout.gate_type, static_cast<uint64_t>(d));
  const uint64_t up_row = weight_bytes(layout.up_type, static_cast<uint64_t>(d));
  const DecodeFn decode_gate = weight_decoder(layout.gate_type);
  const DecodeFn decode_up = weight_decoder(layout.up_type);
  const float* x = c.floats(op.in[0]);
  float* h = c.floats(op.out[1]);
  c.reserve(2 * d);
  const int64_t n = static_cast<int64_t>(plan.records.size()) * f;
  c.pool.parallel_for(n, std::max<int64_t>(1, 16384 / d), [&](int64_t begin, int64_t end, int thread) {
    float* gate = c.thread_floats[static_cast<size_t>(thread)].data();
    float* up = gate + d;
    for (int64_t i = begin; i < end; ++i) {
      const auto e = static_cast<size_t>(i / f);
      const auto row = static_cast<uint64_t>(i % f);
      decode_gate(plan.records[e] + layout.gate_offset + row * gate_row, gate, d);
      decode_up(plan.records[e] + layout.up_offset + row * up_row, up, d);
      for (int64_t j = plan.first[e]; j < plan.first[e + 1]; ++j) {
        const int64_t pick = plan.picks[static_cast<size_t>(j)];
        const float* xt = x + pick / k * d;
        h[pick * f + static_cast<int64_t>(row)] = silu(dot(gate, xt, d)) * dot(up, xt, d);
      }
    }
  });
}

// y[t, :] += w[pick] down_e h[pick], experts ascending.
void down(const Context& c, const Op& op, const Plan& plan, bool clear) {
  const ExpertLayout& layout = c.weights.experts(static_cast<uint32_t>(op.layer));
  const int64_t d = c.config.d_model, f = c.config.d_expert, k = c.config.n_expert_used;
  const uint64_t row_bytes = weight_bytes(layout.down_type, static_cast<uint64_t>(f));
  const DecodeFn decode = weight_decoder(layout.down_type);
  const float *weights = c.floats(op.in[2]), *h = c.floats(op.out[1]);
  float* y = c.floats(op.out[0]);
  c.reserve(f);
  c.pool.parallel_for(d, std::max<int64_t>(1, 4096 / f), [&](int64_t begin, int64_t end, int thread) {
    float* row = c.thread_floats[static_cast<size_t>(thread)].data();
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t t = 0; clear && t < c.run.n_tokens; ++t) y[t * d + r] = 0;
      for (size_t e = 0; e < plan.records.size(); ++e) {
        decode(plan.records[e] + layout.down_offset + static_cast<uint64_t>(r) * row_bytes, row, f);
        for (int64_t j = plan.first[e]; j < plan.first[e + 1]; ++j) {
          const int64_t pick = plan.picks[static_cast<size_t>(j)];
          y[pick / k * d + r] += weights[pick] * dot(row, h + pick * f, f);
        }
      }
    }
  });
}

}  // namespace

void route(const Context& c, const Op& op) {
  const int64_t n = c.config.n_expert, k = c.config.n_expert_used;
  const float* scores = c.floats(op.in[0]);
  int32_t* picks = c.ints(op.out[0]);
  float* weights = c.floats(op.out[1]);
  c.reserve(n);
  c.pool.parallel_for(c.run.n_tokens, 1, [&](int64_t begin, int64_t end, int thread) {
    float* p = c.thread_floats[static_cast<size_t>(thread)].data();
    for (int64_t t = begin; t < end; ++t) {
      const float* s = scores + t * n;
      const float top = *std::max_element(s, s + n);
      float sum = 0;
      for (int64_t e = 0; e < n; ++e) sum += p[e] = std::exp(s[e] - top);
      for (int64_t e = 0; e < n; ++e) p[e] /= sum;
      float picked = 0;
      for (int64_t rank = 0; rank < k; ++rank) {
        // The largest left, the lowest index among equals. Taken ones are marked -1; a NaN is never
        // larger, so that k different experts come out whatever the scores.
        int64_t best = -1;
        for (int64_t e = 0; e < n; ++e) {
          if (p[e] != -1.0f && (best < 0 || p[e] > p[best])) best = e;
        }
        picks[t * k + rank] = static_cast<int32_t>(best);
        weights[t * k + rank] = p[best];
        picked += p[best];
        p[best] = -1.0f;
      }
      for (int64_t rank = 0; rank < k; ++rank) weights[t * k + rank] /= picked;
    }
  });
}

void experts(const Context& c, const Op& op, const ExpertRound& round, bool first_round) {
  const Plan plan = group_picks(c, op, round);
  gate_and_up(c, op, plan);
  down(c, op, plan, first_round);
}

void moe_combine(const Context& c, const Op& op) {
  const int64_t d = c.config.d_model;
  const float *shared = c.floats(op.in[0]), *share = c.floats(op.in[1]);
  float* y = c.floats(op.out[0]);
  for (int64_t t = 0; t < c.run.n_tokens; ++t) {
    add_scaled(y + t * d, sigmoid(share[t]), shared + t * d, d);
  }
}

}  // namespace esker::cpu
