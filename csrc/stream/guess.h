// SPDX-License-Identifier: MIT
//
// How guesses of a later layer's router are ranked: which experts read-ahead brings in, and in which
// order. Pure, and by the same rule as the router itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace esker {

struct GuessRule {
  uint32_t n_expert = 0;
  uint32_t depth = 0;    // experts a token
  uint32_t protect = 0;  // ranks by score alone; those behind them by score + prior where favoured
  float prior = 0;       // in logits
};

// Decode. scores: [T, n_expert]; favoured: [n_expert], or empty where there is no prior. Each token's
// best, rank by rank, the tokens of a rank in order, every expert once. Among equals the lowest index
// comes first; what is not a number comes last.
void rank_guesses(const GuessRule& rule, std::span<const float> scores,
                  std::span<const uint8_t> favoured, std::vector<int32_t>* ranked);

// Prompt. The experts that any token has among its `depth` best, ascending, as the rounds want them.
void gather_guesses(const GuessRule& rule, std::span<const float> scores,
                    std::vector<int32_t>* ascending);

}  // namespace esker
