// SPDX-License-Identifier: MIT
#include "engine/session.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace esker {

Session::Session(std::shared_ptr<Engine> engine)
    : engine_(std::move(engine)), state_(engine_->new_state()) {}

std::span<const float> Session::logits() const {
  if (logits_.empty()) {
    raise(ErrorKind::kUsage, "session",
          {.what = "there are no logits",
           .got = tokens_.empty() ? "an empty session" : "a prompt that was not read to its end",
           .want = "at least one token read since",
           .where = {},
           .hint = "call prefill or decode first"});
  }
  return logits_;
}

void Session::check_tokens(std::span<const int32_t> tokens) const {
  if (tokens.empty()) {
    raise(ErrorKind::kUsage, "session",
          {.what = "nothing to run", .got = "0 tokens", .want = "at least 1", .where = {}, .hint = {}});
  }
  if (tokens.size() > context() - position()) {
    raise(ErrorKind::kUsage, "session",
          {.what = "the prompt does not fit into the context",
           .got = std::to_string(tokens.size()) + " tokens at position " + std::to_string(position()),
           .want = "at most " + std::to_string(context()) + " tokens in all",
           .where = {},
           .hint = "load the model with a larger --context, or shorten the prompt"});
  }
  const auto n_vocab = static_cast<int32_t>(engine_->config().n_vocab);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < n_vocab) continue;
    raise(ErrorKind::kUsage, "session",
          {.what = "not a token of this model",
           .got = std::to_string(tokens[i]),
           .want = "0 to " + std::to_string(n_vocab - 1),
           .where = "token " + std::to_string(i) + " of the prompt",
           .hint = "was the text tokenised for another model?"});
  }
}

void Session::advance(std::span<const int32_t> tokens, uint32_t n_logit_rows, float* logits,
                      const PollFn& poll) {
  engine_->run(state_, tokens_, tokens, n_logit_rows, logits, poll);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  std::swap(state_.before, state_.after);
}

void Session::prefill(std::span<const int32_t> tokens, uint32_t chunk, const Progress& progress,
                      const PollFn& poll) {
  check_tokens(tokens);
  const uint32_t most = engine_->plan().chunk;
  const size_t step = chunk == 0 ? most : std::min(chunk, most);
  std::vector<float> last(engine_->config().n_vocab);
  for (size_t at = 0; at < tokens.size(); at += step) {
    const size_t n = std::min(step, tokens.size() - at);
    const bool is_last = at + n == tokens.size();
    advance(tokens.subspan(at, n), is_last ? 1 : 0, last.data(), poll);
    if (is_last) {
      logits_ = std::move(last);
    } else {
      logits_.clear();  // those at hand belong to an earlier token
    }
    if (progress) progress(at + n, tokens.size());
  }
}

void Session::evaluate(std::span<const int32_t> tokens, uint32_t chunk, float* to,
                       const PollFn& poll) {
  check_tokens(tokens);
  const uint32_t most = engine_->plan().chunk, n_vocab = engine_->config().n_vocab;
  const size_t step = chunk == 0 ? most : std::min(chunk, most);
  for (size_t at = 0; at < tokens.size(); at += step) {
    const size_t n = std::min(step, tokens.size() - at);
    float* rows = to + at * n_vocab;
    advance(tokens.subspan(at, n), static_cast<uint32_t>(n), rows, poll);
    const float* last = rows + (n - 1) * n_vocab;
    logits_.assign(last, last + n_vocab);
  }
}

std::unique_ptr<Session> Session::fork() {
  auto copy = std::make_unique<Session>(engine_);
  const StateLayout& layout = engine_->layout();
  std::vector<float> part;
  const auto copy_part = [&](DeviceMemory& from, DeviceMemory& to, uint64_t offset, uint64_t n) {
    part.resize(n);
    from.read(offset * sizeof(float), part.data(), n * sizeof(float));
    to.write(offset * sizeof(float), part.data(), n * sizeof(float));
  };
  copy_part(*state_.before, *copy->state_.before, 0, layout.n_recurrent);
  for (const auto& [offset, n] : used_ranges(engine_->config(), layout, position())) {
    copy_part(*state_.appended, *copy->state_.appended, offset, n);
  }
  copy->tokens_ = tokens_;
  copy->logits_ = logits_;
  return copy;
}

uint32_t Session::checkpoint() {
  std::vector<float> recurrent(engine_->layout().n_recurrent);
  state_.before->read(0, recurrent.data(), recurrent.size() * sizeof(float));
  checkpoints_[next_checkpoint_] = {
      .position = position(), .recurrent = std::move(recurrent), .logits = logits_};
  return next_checkpoint_++;
}

void Session::rewind(uint32_t id) {
  const auto found = checkpoints_.find(id);
  if (found == checkpoints_.end()) {
    raise(ErrorKind::kUsage, "session",
          {.what = "no such checkpoint",
           .got = std::to_string(id),
           .want = "one made by checkpoint() and not passed by a rewind",
           .where = {},
           .hint = {}});
  }
  const Checkpoint& point = found->second;
  state_.before->write(0, point.recurrent.data(), point.recurrent.size() * sizeof(float));
  tokens_.resize(point.position);
  logits_ = point.logits;
  // Rows past this position will be overwritten: later points lose their ground.
  std::erase_if(checkpoints_, [&](const auto& c) { return c.second.position > point.position; });
}

std::vector<std::pair<uint64_t, uint64_t>> used_ranges(const Config& config,
                                                       const StateLayout& layout,
                                                       uint64_t position) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  const uint64_t kv = uint64_t{config.n_kv_head} * config.d_head;
  for (uint32_t i = 0; i < config.n_layer; ++i) {
    if (config.is_linear[i]) continue;
    ranges.emplace_back(layout.layers[i].keys, position * kv);
    ranges.emplace_back(layout.layers[i].values, position * kv);
    if (const uint64_t r = config.compress_ratio[i]; r != 0) {
      ranges.emplace_back(layout.layers[i].block_keys, position / r * config.d_index);
    }
  }
  return ranges;
}

}  // namespace esker
