// SPDX-License-Identifier: MIT
//
// From logits to a token.
// Order: the top_k most likely, softmax at the temperature, top_p of what is left, min_p of that.
// A cut never removes the most likely token; among equal logits the lowest token comes first.
// Same seed, options and logits give the same tokens on every platform: the generator, the
// exponential and the order of every sum are our own.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace esker {

class Sampler {
 public:
  // The defaults draw from the model's own distribution.
  struct Options {
    float temperature = 1.0f;  // 0: greedy, the most likely token; draws nothing
    int top_k = 0;             // 0: all tokens
    float top_p = 1.0f;        // the fewest tokens whose probabilities reach top_p; 1: all
    float min_p = 0.0f;        // tokens at least min_p times as likely as the likeliest; 0: all
    uint64_t seed = 0;
  };
  // The generator between two tokens, for saved sessions.
  using State = std::array<uint64_t, 4>;

  // Throws Error(kUsage) on an option out of range.
  explicit Sampler(const Options& options);

  // Throws Error(kNumeric) on a NaN, on +inf, and when every logit is -inf; the state is then as
  // before. A logit of -inf is a token that never comes. One draw for each call, none if greedy.
  int32_t sample(std::span<const float> logits);

  const Options& options() const { return options_; }
  const State& state() const { return state_; }
  // Throws Error(kFormat) on a state that no generator has (all zero).
  void set_state(const State& state);

 private:
  struct Candidate {
    float value;  // logit, or weight: probability over that of the most likely token
    int32_t token;
  };

  static bool before(const Candidate& a, const Candidate& b);
  void keep_top_k(std::span<const float> logits);
  double weigh(float best_logit);
  void keep_top_p(double total);
  void keep_min_p();
  int32_t draw();
  uint64_t next();

  Options options_;
  State state_{};
  // Of the token being chosen; members only to keep their memory.
  std::vector<Candidate> candidates_;
  std::vector<Candidate> at_cut_;
};

}  // namespace esker
