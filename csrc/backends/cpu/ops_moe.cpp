// SPDX-License-Identifier: MIT
//
// Routing and the experts (SPEC section 7). Experts run in ascending order whatever the rounds, and a
// token's outputs are summed in that order: the arena's size never shows in a result.
#include <algorithm>
#include <cmath>

#include "backends/cpu/math.h"
#include "backends/cpu/ops.h"

namespace esker::cpu {
namespace {

// The picks of one round, grouped by expert.
struct Plan {
  std::vector<const uint8_t*> records;  // of each expert of the round
  std::vector<int64_t> first;           // [experts + 1] into picks
  std::vector<int32_t> picks;           // t * K + rank, ascending within an expert
  std::vector<int32_t> tokens;          // of each pick
  int64_t most = 0;                     // picks of the busiest expert
  int64_t count(size_t e) const { return first[e + 1] - first[e]; }
};

Plan group_picks(const Context& c, const Op& op, std::span<const int32_t> experts,
                 std::span<const int32_t> residency) {
  const int64_t n = int64_t{c.run.n_tokens} * c.config.n_expert_used;
  const int32_t* picked = c.ints(op.in[1]);
  const auto layer = static_cast<size_t>(op.layer);
  const ArenaView& arena = *c.run.arena;
  std::vector<int64_t> place(c.config.n_expert, -1);
  Plan plan;
  for (const int32_t e : experts) {
    place[static_cast<size_t>(e)] = static_cast<int64_t>(plan.records.size());
    const auto slot = static_cast<uint64_t>(residency[static_cast<size_t>(e)]);
    plan.records.push_back(arena.memory->host() + arena.base_bytes[layer] + slot * arena.slot_bytes[layer]);
  }
  plan.first.assign(plan.records.size() + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = place[static_cast<size_t>(picked[i])];
    if (at >= 0) ++plan.first[static_cast<size_t>(at) + 1];
  }
  for (size_t i = 1; i < plan.first.size(); ++i) plan.first[i] += plan.first[i - 1];
  plan.picks.resize(static_cast<size_t>(plan.first.back()));
  plan.tokens.resize(plan.picks.size());
  std::vector<int64_t> next(plan.first.begin(), plan.first.end() - 1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = place[static_cast<size_t>(picked[i])];
    if (at < 0) continue;
    const auto j = static_cast<size_t>(next[static_cast<size_t>(at)]++);
    plan.picks[j] = static_cast<int32_t>(i);
    plan.tokens[j] = static_cast<int32_t>(i / c.config.n_expert_used);
  }
  for (size_t e = 0; e < plan.records.size(); ++e) plan.most = std::max(plan.most, plan.count(e));
  return plan;
}

// h[pick, f] = silu(gate_f x) * (up_f x): parts of kRows rows of one expert, for all its tokens.
void gate_and_up(const Context& c, const Op& op, const Plan& plan) {
  constexpr int64_t kRows = 64;
  const ExpertLayout& layout = c.weights.experts(static_cast<uint32_t>(op.layer));
  const int64_t d = c.config.d_model, f = c.config.d_expert, parts = (f + kRows - 1) / kRows;
  const TypeKernel& gate = c.kernels.of(layout.gate_type);
  const TypeKernel& up = c.kernels.of(layout.up_type);
  const Packed& x_gate = c.packs.get(c, op, op.in[0], gate.order, c.parts, d);
  const Packed& x_up = c.packs.get(c, op, op.in[0], up.order, c.parts, d);
  float* h = c.floats(op.out[1]);
  c.reserve(2 * kRows * plan.most);
  const int64_t n = static_cast<int64_t>(plan.records.size()) * parts;
  c.pool.parallel_for(n, 1, [&](int64_t begin, int64_t end, int thread) {
    float* g = c.thread_floats[static_cast<size_t>(thread)].data();
    for (int64_t i = begin; i < end; ++i) {
      const auto e = static_cast<size_t>(i / parts);
      const int64_t row = i % parts * kRows, tokens = plan.count(e);
      float* u = g + kRows * tokens;
      RowsCall call{.n_rows = std::min(kRows, f - row), .tokens = tokens, .y_stride = kRows,
                    .in = plan.tokens.data() + plan.first[e]};
      const auto run = [&](const TypeKernel& k, WeightType type, const Packed& x, uint64_t offset,
                           float* to) {
        call.row_bytes = weight_bytes(type, static_cast<uint64_t>(d));
        call.w = plan.records[e] + offset + static_cast<uint64_t>(row) * call.row_bytes;
        call.x = &x, call.y = to;
        k.rows(call);
      };
      run(gate, layout.gate_type, x_gate, layout.gate_offset, g);
      run(up, layout.up_type, x_up, layout.up_offset, u);
      for (int64_t j = 0; j < tokens; ++j) {
        float* to = h + int64_t{plan.picks[static_cast<size_t>(plan.first[e] + j)]} * f + row;
        silu_times(to, g + j * kRows, u + j * kRows, call.n_rows);
      }
    }
  });
}

// y[t, :] += w[pick] down_e h[pick], experts ascending: parts of rows of all experts, so that no two
// threads add to the same value.
void down(const Context& c, const Op& op, const Plan& plan, bool clear) {
  const ExpertLayout& layout = c.weights.experts(static_cast<uint32_t>(op.layer));
  const int64_t d = c.config.d_model, f = c.config.d_expert;
  // Long runs of a record while a token is decoded, small temporaries for a prompt.
  const int64_t rows = plan.most <= 4 ? 256 : 32;
  const TypeKernel& kernel = c.kernels.of(layout.down_type);
  Packed& h = c.packs.experts();
  h.resize(kernel.order, c.parts, f, int64_t{c.run.n_tokens} * c.config.n_expert_used);
  h.x = c.floats(op.out[1]);
  if (kernel.order != Order::kFloat) {
    c.pool.parallel_for(static_cast<int64_t>(plan.picks.size()), 8,
                        [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) c.kernels.pack(h, plan.picks[static_cast<size_t>(i)]);
    });
  }
  const float* weights = c.floats(op.in[2]);
  float* y = c.floats(op.out[0]);
  c.reserve(rows * plan.most);
  c.pool.parallel_for((d + rows - 1) / rows, 1, [&](int64_t begin, int64_t, int thread) {
    float* part = c.thread_floats[static_cast<size_t>(thread)].data();
    const int64_t first = begin * rows, n = std::min(rows, d - first);
    for (int64_t t = 0; clear && t < c.run.n_tokens; ++t) std::fill_n(y + t * d + first, n, 0.0f);
    RowsCall call{.n_rows = n, .x = &h, .y = part, .y_stride = rows};
    call.row_bytes = weight_bytes(layout.down_type, static_cast<uint64_t>(f));
    for (size_t e = 0; e < plan.records.size(); ++e) {
      call.w = plan.records[e] + layout.down_offset + static_cast<uint64_t>(first) * call.row_bytes;
      call.tokens = plan.count(e);
      call.in = plan.picks.data() + plan.first[e];
      kernel.rows(call);
      for (int64_t j = 0; j < call.tokens; ++j) {
        const auto pick = static_cast<size_t>(plan.first[e] + j);
        add_scaled(y + plan.tokens[pick] * d + first, weights[plan.picks[pick]], part + j * rows, n);
      }
    }
  });
}

// The largest left, the lowest index among equals; marks it as taken. A NaN is never larger, so that
// different experts come out whatever the scores.
int32_t take_best(float* left, int64_t n) {
  int64_t best = -1;
  for (int64_t e = 0; e < n; ++e) {
    if (left[e] != -1.0f && (best < 0 || left[e] > left[best])) best = e;
  }
  left[best] = -1.0f;
  return static_cast<int32_t>(best);
}

}  // namespace

void route(const Context& c, const Op& op) {
  const int64_t n = c.config.n_expert, k = c.config.n_expert_used;
  const CachePrior& prior = c.run.prior;
  const bool has_prior = prior.bonus > 0;
  const uint8_t* favoured = has_prior ? prior.favoured + op.layer * n : nullptr;
  const float factor = std::exp(prior.bonus);
  const float* scores = c.floats(op.in[0]);
  c.reserve(2 * n);
  c.pool.parallel_for(c.run.n_tokens, 1, [&](int64_t begin, int64_t end, int thread) {
    float* p = c.thread_floats[static_cast<size_t>(thread)].data();
    float* left = p + n;  // what is still to be picked from, -1 where taken
    for (int64_t t = begin; t < end; ++t) {
      const float* s = scores + t * n;
      const float top = *std::max_element(s, s + n);
      std::copy_n(s, n, p);
      const float sum = exp_sum(p, top, n);
      for (int64_t e = 0; e < n; ++e) p[e] /= sum;
      int32_t* picks = c.ints(op.out[0]) + t * k;
      std::copy_n(p, n, left);
      if (has_prior) {
        int32_t* wanted = c.ints(op.out[2]) + t * k;
        for (int64_t rank = 0; rank < k; ++rank) wanted[rank] = take_best(left, n);
        std::copy_n(p, n, left);
        const int64_t protect = std::min<int64_t>(prior.protect, k);
        for (int64_t rank = 0; rank < protect; ++rank) {
          picks[rank] = wanted[rank];
          left[wanted[rank]] = -1.0f;
        }
        for (int64_t e = 0; e < n; ++e) {
          if (favoured[e] != 0 && left[e] != -1.0f) left[e] *= factor;
        }
        for (int64_t rank = protect; rank < k; ++rank) picks[rank] = take_best(left, n);
      } else {
        for (int64_t rank = 0; rank < k; ++rank) picks[rank] = take_best(left, n);
      }
      // The weights are the unperturbed probabilities, whatever chose the experts.
      float* weights = c.floats(op.out[1]) + t * k;
      float picked = 0;
      for (int64_t rank = 0; rank < k; ++rank) picked += weights[rank] = p[picks[rank]];
      for (int64_t rank = 0; rank < k; ++rank) weights[rank] /= picked;
    }
  });
}

// Where a turn's experts are held, those that come first are taken as far as their activations, and
// all outputs are added at the end, in order.
void experts(const Context& c, const Op& op, const ExpertRound& round, bool first_round,
             std::vector<int32_t>& held) {
  const Plan plan = group_picks(c, op, round.experts, round.residency);
  gate_and_up(c, op, plan);
  if (!round.held || (held.empty() && !round.more)) return down(c, op, plan, first_round);
  held.insert(held.end(), round.experts.begin(), round.experts.end());
  if (round.more) return;
  std::ranges::sort(held);
  down(c, op, group_picks(c, op, held, round.residency), true);
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
