// SPDX-License-Identifier: MIT
//
// Full attention with the QSA indexer (SPEC section 6). Keys, values and block keys are appended to
// the session's state at their positions; a query reads only the blocks it selected.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backends/cpu/math.h"
#include "backends/cpu/ops.h"

namespace esker::cpu {
namespace {

// Rotates the first n values of x by a position's cosines and sines [n/2] each, pairs (j, j + n/2).
void rope(float* x, int64_t n, const float* turn) {
  const int64_t half = n / 2;
  for (int64_t j = 0; j < half; ++j) {
    const float a = x[j], b = x[j + half];
    x[j] = a * turn[j] - b * turn[half + j];
    x[j + half] = b * turn[j] + a * turn[half + j];
  }
}

// to = rope(rms(x; g)) of one head.
void norm_and_turn(const Config& config, const float* x, const float* g, float* to, int64_t d,
                   const float* turn) {
  const float s = inverse_rms(x, d, config.rms_eps);
  for (int64_t i = 0; i < d; ++i) to[i] = x[i] * s * g[i];
  rope(to, config.n_rope, turn);
}

int64_t ratio_of(const Context& c, const Op& op) {
  return c.config.compress_ratio[static_cast<size_t>(op.layer)];
}

// Keeps the `keep` best of the n scores, ties to the lower index, as ascending indices in `to`.
void select_best(const float* scores, int64_t n, int64_t keep, std::vector<int32_t>& order,
                 int32_t* to) {
  order.resize(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (keep < n) {
    std::nth_element(order.begin(), order.begin() + keep, order.end(), [&](int32_t a, int32_t b) {
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    });
    std::sort(order.begin(), order.begin() + keep);
  }
  std::copy_n(order.begin(), std::min(keep, n), to);
}

// The runs of positions a query attends to, ascending.
struct Span {
  int64_t begin, end;
};

// Fills `spans` for query position p; selected is the op's [1 + budget/r] row, or null when dense.
void attended_spans(const int32_t* selected, int64_t ratio, int64_t p, std::vector<Span>& spans) {
  spans.clear();
  if (selected == nullptr) {
    spans.push_back({0, p + 1});
    return;
  }
  const auto append = [&](int64_t begin, int64_t end) {
    if (!spans.empty() && spans.back().end == begin) {
      spans.back().end = end;
    } else if (begin < end) {
      spans.push_back({begin, end});
    }
  };
  for (int32_t i = 0; i < selected[0]; ++i) {
    append(selected[1 + i] * ratio, (selected[1 + i] + 1) * ratio);
  }
  append((p + 1) / ratio * ratio, p + 1);
}

}  // namespace

const float* RopeTable::of(const Context& c, int64_t position) {
  const int64_t width = c.config.n_rope, first = static_cast<int64_t>(c.run.position);
  if (first_ != first || tokens_ < c.run.n_tokens) {
    first_ = first, tokens_ = c.run.n_tokens;
    turns_.resize(static_cast<size_t>(tokens_ * width));
    for (int64_t t = 0; t < tokens_; ++t) rope_turn(c.config, first + t, turns_.data() + t * width);
  }
  return turns_.data() + (position - first) * width;
}

void attn_prepare(const Context& c, const Op& op) {
  const Config& config = c.config;
  const int64_t hd = config.d_head, heads = config.n_head, kv = config.n_kv_head;
  const int64_t position = static_cast<int64_t>(c.run.position);
  const float *qg = c.floats(op.in[0]), *k = c.floats(op.in[1]), *v = c.floats(op.in[2]);
  const float *gq = c.vector(op.w[0]), *gk = c.vector(op.w[1]);
  float* q = c.floats(op.out[0]);
  float* keys = c.run.appended->floats() + c.state(op).keys;
  float* values = c.run.appended->floats() + c.state(op).values;
  const float* turns = c.rope.of(c, position);
  c.pool.parallel_for(c.run.n_tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t p = position + t;
      const float* turn = turns + t * config.n_rope;
      for (int64_t h = 0; h < heads; ++h) {
        norm_and_turn(config, qg + (t * heads + h) * 2 * hd, gq, q + (t * heads + h) * hd, hd, turn);
      }
      for (int64_t h = 0; h < kv; ++h) {
        norm_and_turn(config, k + (t * kv + h) * hd, gk, keys + (p * kv + h) * hd, hd, turn);
      }
      std::copy_n(v + t * kv * hd, kv * hd, values + p * kv * hd);
    }
  });
}

void index_prepare(const Context& c, const Op& op) {
  const Config& config = c.config;
  const int64_t id = config.d_index, heads = config.n_index_head, r = ratio_of(c, op);
  const int64_t position = static_cast<int64_t>(c.run.position), tokens = c.run.n_tokens;
  const float *iq = c.floats(op.in[0]), *raw = c.floats(op.in[1]);
  const float *gq = c.vector(op.w[0]), *gk = c.vector(op.w[1]);
  float* turned = c.floats(op.out[0]);
  const float* old_tail = c.run.state_in->floats() + c.state(op).index_tail;
  float* tail = c.run.state_out->floats() + c.state(op).index_tail;
  float* block_keys = c.run.appended->floats() + c.state(op).block_keys;
  const float* turns = c.rope.of(c, position);
  c.reserve(config.n_rope);
  // The raw key at a position of the block at hand or later.
  const auto raw_key = [&](int64_t p) {
    return p < position ? old_tail + p % r * id : raw + (p - position) * id;
  };
  c.pool.parallel_for(tokens, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t p = position + t;
      for (int64_t h = 0; h < heads; ++h) {
        norm_and_turn(config, iq + (t * heads + h) * id, gq, turned + (t * heads + h) * id, id,
                      turns + t * config.n_rope);
      }
      if ((p + 1) % r != 0) continue;
      float* key = block_keys + p / r * id;
      std::fill_n(key, id, 0.0f);
      for (int64_t i = p + 1 - r; i <= p; ++i) add_scaled(key, 1.0f, raw_key(i), id);
      for (int64_t i = 0; i < id; ++i) key[i] /= static_cast<float>(r);
      float* turn = c.thread_floats[static_cast<size_t>(thread)].data();
      rope_turn(config, p + 1 - r, turn);  // the block's first position may lie before the run
      norm_and_turn(config, key, gk, key, id, turn);
    }
  });
  const int64_t next = position + tokens;
  std::fill_n(tail, r * id, 0.0f);
  for (int64_t p = next / r * r; p < next; ++p) std::copy_n(raw_key(p), id, tail + p % r * id);
}

void block_select(const Context& c, const Op& op) {
  const Config& config = c.config;
  const int64_t id = config.d_index, heads = config.n_index_head, r = ratio_of(c, op);
  const int64_t keep = config.index_budget / r, position = static_cast<int64_t>(c.run.position);
  const int64_t width = c.width(op.out[0]);
  const float* iq = c.floats(op.in[0]);
  const float* block_keys = c.run.appended->floats() + c.state(op).block_keys;
  int32_t* out = c.ints(op.out[0]);
  const int64_t most = (position + c.run.n_tokens) / r;
  c.reserve(most);
  std::vector<std::vector<int32_t>> orders(static_cast<size_t>(c.pool.size()));
  for (auto& order : orders) order.reserve(static_cast<size_t>(most));
  c.pool.parallel_for(c.run.n_tokens, 1, [&](int64_t begin, int64_t end, int thread) {
    float* scores = c.thread_floats[static_cast<size_t>(thread)].data();
    for (int64_t t = begin; t < end; ++t) {
      const int64_t full = (position + t + 1) / r;  // blocks complete as seen from this query
      int32_t* to = out + t * width;
      to[0] = static_cast<int32_t>(std::min(keep, full));
      for (int64_t b = 0; b < full && full > keep; ++b) {
        float score = 0;
        for (int64_t h = 0; h < heads; ++h) {
          const float s = dot(iq + (t * heads + h) * id, block_keys + b * id, id);
          if (s > 0) score += s;  // a NaN counts as 0: the order must stay total
        }
        scores[b] = score;
      }
      select_best(scores, full, keep, orders[static_cast<size_t>(thread)], to + 1);
    }
  });
}

void attention(const Context& c, const Op& op) {
  const Config& config = c.config;
  const int64_t hd = config.d_head, heads = config.n_head, kv = config.n_kv_head;
  const int64_t position = static_cast<int64_t>(c.run.position), r = ratio_of(c, op);
  const bool dense = op.in[2] == kNoBuffer;
  const float *q = c.floats(op.in[0]), *qg = c.floats(op.in[1]);
  const int32_t* selected = dense ? nullptr : c.ints(op.in[2]);
  const int64_t selected_width = dense ? 0 : c.width(op.in[2]);
  const float* keys = c.run.appended->floats() + c.state(op).keys;
  const float* values = c.run.appended->floats() + c.state(op).values;
  float* out = c.floats(op.out[0]);
  const float scale = 1.0f / std::sqrt(static_cast<float>(hd));
  const int64_t seen = position + c.run.n_tokens;
  const int64_t most = dense ? seen : std::min(seen, (selected_width - 1) * r + r);
  c.reserve(most);
  std::vector<std::vector<Span>> spans(static_cast<size_t>(c.pool.size()));
  for (auto& s : spans) s.reserve(static_cast<size_t>(selected_width) + 1);
  c.pool.parallel_for(c.run.n_tokens * heads, 1, [&](int64_t begin, int64_t end, int thread) {
    float* p = c.thread_floats[static_cast<size_t>(thread)].data();
    std::vector<Span>& where = spans[static_cast<size_t>(thread)];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / heads, h = i % heads, group = h / (heads / kv);
      attended_spans(dense ? nullptr : selected + t * selected_width, r, position + t, where);
      float top = -INFINITY;
      int64_t n = 0;
      for (const Span s : where) {
        for (int64_t at = s.begin; at < s.end; ++at, ++n) {
          p[n] = scale * dot(q + i * hd, keys + (at * kv + group) * hd, hd);
          top = std::max(top, p[n]);
        }
      }
      const float sum = exp_sum(p, top, n);
      float* o = out + i * hd;
      std::fill_n(o, hd, 0.0f);
      n = 0;
      for (const Span s : where) {
        for (int64_t at = s.begin; at < s.end; ++at, ++n) {
          add_scaled(o, p[n] / sum, values + (at * kv + group) * hd, hd);
        }
      }
      gate(o, qg + i * 2 * hd + hd, hd);
    }
  });
}

}  // namespace esker::cpu
