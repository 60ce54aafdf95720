// SPDX-License-Identifier: MIT
//
// One conversation's timeline on a model: its tokens, its state, the logits of its last token.
//
// A call that fails or is interrupted leaves the session as it was before the chunk at hand: a run
// writes a second state block, and the two change places only when it has succeeded.
// Threads: one caller at a time per session; sessions of one engine may be used from several.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace esker {

class Session {
 public:
  using Progress = std::function<void(uint64_t done, uint64_t total)>;

  explicit Session(std::shared_ptr<Engine> engine);

  uint64_t position() const { return tokens_.size(); }
  uint64_t context() const { return engine_->plan().context; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Of the last token, [V]. Throws Error(kUsage) before the first.
  std::span<const float> logits() const;

  // Appends tokens in chunks (0: the plan's; never more than it). Throws Error(kUsage) before any
  // work when they do not fit into the context or are no tokens of the model.
  void prefill(std::span<const int32_t> tokens, uint32_t chunk, const Progress& progress,
               const PollFn& poll);
  void decode(int32_t token, const PollFn& poll) { prefill({&token, 1}, 1, {}, poll); }
  // As prefill, with the logits of every token: to [n, V].
  void evaluate(std::span<const int32_t> tokens, uint32_t chunk, float* to, const PollFn& poll);

  // A second session that goes on from here on its own.
  std::unique_ptr<Session> fork();

  // Remembers this point. Rewinding to it forgets the points that lie later.
  uint32_t checkpoint();
  void rewind(uint32_t checkpoint);

  // The session as a file (engine/snapshot.cpp). Saving is atomic: the path holds the old file or
  // the whole new one. Restoring needs the same model and a context as long as the session.
  void save(const std::string& path);
  void restore(const std::string& path);

 private:
  struct Checkpoint {
    uint64_t position = 0;
    std::vector<float> recurrent;
    std::vector<float> logits;
  };

  void advance(std::span<const int32_t> tokens, uint32_t n_logit_rows, float* logits,
               const PollFn& poll);
  void check_tokens(std::span<const int32_t> tokens) const;

  std::shared_ptr<Engine> engine_;
  SessionState state_;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
  std::map<uint32_t, Checkpoint> checkpoints_;
  uint32_t next_checkpoint_ = 0;
};

// The parts of the appended block that `position` tokens have written, as (offset, count) in floats.
std::vector<std::pair<uint64_t, uint64_t>> used_ranges(const Config& config,
                                                       const StateLayout& layout,
                                                       uint64_t position);

}  // namespace esker
