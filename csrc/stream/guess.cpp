// SPDX-License-Identifier: MIT
#include "stream/guess.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace esker {
namespace {

// The `n` best of scores, best first.
void best_of(std::span<const float> scores, size_t n, std::vector<int32_t>* order) {
  order->resize(scores.size());
  for (size_t i = 0; i < order->size(); ++i) (*order)[i] = static_cast<int32_t>(i);
  const auto score = [&](int32_t i) {
    const float s = scores[static_cast<size_t>(i)];
    return std::isnan(s) ? -std::numeric_limits<float>::infinity() : s;
  };
  n = std::min(n, order->size());
  std::partial_sort(order->begin(), order->begin() + static_cast<std::ptrdiff_t>(n), order->end(),
                    [&](int32_t a, int32_t b) {
                      return score(a) != score(b) ? score(a) > score(b) : a < b;
                    });
  order->resize(n);
}

}  // namespace

void rank_guesses(const GuessRule& rule, std::span<const float> scores,
                  std::span<const uint8_t> favoured, std::vector<int32_t>* ranked) {
  ranked->clear();
  const size_t tokens = scores.size() / rule.n_expert;
  std::vector<std::vector<int32_t>> of_token(tokens);
  std::vector<float> raised;
  std::vector<int32_t> order;
  for (size_t t = 0; t < tokens; ++t) {
    const std::span<const float> raw = scores.subspan(t * rule.n_expert, rule.n_expert);
    best_of(raw, favoured.empty() ? rule.depth : std::min(rule.protect, rule.depth), &of_token[t]);
    if (favoured.empty()) continue;
    raised.assign(raw.begin(), raw.end());
    for (size_t e = 0; e < raised.size(); ++e) raised[e] += favoured[e] != 0 ? rule.prior : 0.0f;
    for (const int32_t taken : of_token[t]) {
      raised[static_cast<size_t>(taken)] = -std::numeric_limits<float>::infinity();
    }
    best_of(raised, rule.depth - of_token[t].size(), &order);
    of_token[t].insert(of_token[t].end(), order.begin(), order.end());
  }
  std::vector<uint8_t> seen(rule.n_expert, 0);
  for (size_t rank = 0; rank < rule.depth; ++rank) {
    for (const std::vector<int32_t>& of : of_token) {
      if (rank >= of.size() || seen[static_cast<size_t>(of[rank])]++ != 0) continue;
      ranked->push_back(of[rank]);
    }
  }
}

void gather_guesses(const GuessRule& rule, std::span<const float> scores,
                    std::vector<int32_t>* ascending) {
  ascending->clear();
  std::vector<uint8_t> wanted(rule.n_expert, 0);
  std::vector<int32_t> order;
  for (size_t at = 0; at + rule.n_expert <= scores.size(); at += rule.n_expert) {
    best_of(scores.subspan(at, rule.n_expert), rule.depth, &order);
    for (const int32_t expert : order) wanted[static_cast<size_t>(expert)] = 1;
  }
  for (size_t e = 0; e < wanted.size(); ++e) {
    if (wanted[e] != 0) ascending->push_back(static_cast<int32_t>(e));
  }
}

}  // namespace esker
