// SPDX-License-Identifier: MIT
//
// Cost: a few linear passes over the vocabulary. Nothing is sorted but the top_k kept, and the few
// tokens about as likely as the last that top_p keeps.
#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "base/error.h"

namespace esker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr const char* kComponent = "sampler";

[[noreturn]] void bad_option(const char* name, const std::string& got, const char* want,
                             const char* hint) {
  raise(ErrorKind::kUsage, kComponent,
        {.what = std::string(name) + " out of range", .got = got, .want = want, .where = "",
         .hint = hint});
}

void check_options(const Sampler::Options& o) {
  // Written so that a NaN fails too.
  if (!(o.temperature >= 0.0f && o.temperature < kInfinity)) {
    bad_option("temperature", std::to_string(o.temperature), "0 or more, finite",
               "0 always takes the most likely token");
  }
  if (o.top_k < 0) bad_option("top_k", std::to_string(o.top_k), "0 or more", "0 keeps all tokens");
  if (!(o.top_p >= 0.0f && o.top_p <= 1.0f)) {
    bad_option("top_p", std::to_string(o.top_p), "0 to 1", "1 keeps all tokens");
  }
  if (!(o.min_p >= 0.0f && o.min_p <= 1.0f)) {
    bad_option("min_p", std::to_string(o.min_p), "0 to 1", "0 keeps all tokens");
  }
}

[[noreturn]] void bad_logits(std::span<const float> logits) {
  std::string got = "-inf for all " + std::to_string(logits.size()) + " tokens";
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < kInfinity) continue;
    got = (logits[i] != logits[i] ? "nan" : "inf") + std::string(" at token ") + std::to_string(i);
    break;
  }
  raise(ErrorKind::kNumeric, kComponent,
        {.what = "cannot choose a token from these logits", .got = got, .want = "finite logits",
         .where = "",
         .hint = "the model file may be damaged, or a value overflowed while computing"});
}

// The largest logit; throws when there is none to choose by. Lanes let the compiler vectorise.
float checked_maximum(std::span<const float> logits) {
  constexpr size_t kLanes = 8;
  if (logits.empty()) {
    raise(ErrorKind::kUsage, kComponent,
          {.what = "nothing to sample", .got = "0 logits", .want = "1 or more", .where = "",
           .hint = ""});
  }
  float best[kLanes];
  int32_t bad[kLanes] = {};
  std::fill_n(best, kLanes, -kInfinity);
  const auto look = [&](float x, size_t lane) {
    best[lane] = x > best[lane] ? x : best[lane];
    bad[lane] |= static_cast<int32_t>(!(x < kInfinity));
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) look(logits[i + lane], lane);
  }
  for (; i < logits.size(); ++i) look(logits[i], 0);
  const float maximum = *std::max_element(best, best + kLanes);
  if (maximum == -kInfinity || std::any_of(bad, bad + kLanes, [](int32_t b) { return b != 0; })) {
    bad_logits(logits);
  }
  return maximum;
}

// e^x for x <= 0, -inf included, to about one unit in the last place; 0 below e^-87.
// Not std::exp: that differs between platforms, and is not vectorised.
inline float exp_nonpositive(float x) {
  const float y = x > -87.0f ? x : -87.0f;
  const int32_t n = static_cast<int32_t>(y * 1.44269504f - 0.5f);  // rounds: y is not positive
  const float n_float = static_cast<float>(n);
  // r = y - n ln 2, with ln 2 in two parts, the first exact in few bits.
  const float r = (y - n_float * 0.693359375f) + n_float * 2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float power = std::bit_cast<float>((n + 127) << 23);
  return x > -87.0f ? p * power : 0.0f;
}

// Spreads a seed over the generator's state (splitmix64).
uint64_t next_seed_word(uint64_t& s) {
  s += 0x9e3779b97f4a7c15u;
  uint64_t z = s;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

}  // namespace

Sampler::Sampler(const Options& options) : options_(options) {
  check_options(options_);
  uint64_t seed = options_.seed;
  for (uint64_t& word : state_) word = next_seed_word(seed);
}

int32_t Sampler::sample(std::span<const float> logits) {
  const float best = checked_maximum(logits);
  if (options_.temperature == 0.0f) {
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), best) - logits.begin());
  }
  keep_top_k(logits);
  const double total = weigh(best);
  if (options_.top_p < 1.0f) keep_top_p(total);
  if (options_.min_p > 0.0f) keep_min_p();
  return draw();
}

void Sampler::set_state(const State& state) {
  if (state == State{}) {
    raise(ErrorKind::kFormat, kComponent,
          {.what = "not the state of a generator", .got = "all zero", .want = "any other",
           .where = "", .hint = "the saved session may be damaged"});
  }
  state_ = state;
}

// A strict total order, so that what is kept, and its order, do not depend on the library's sort.
bool Sampler::before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// Fills candidates_ with logits: all of them in order of token, or the top_k best, best first.
void Sampler::keep_top_k(std::span<const float> logits) {
  const size_t n = logits.size();
  const size_t k = options_.top_k == 0 ? n : std::min(n, static_cast<size_t>(options_.top_k));
  if (k == n) {
    candidates_.resize(n);
    for (size_t i = 0; i < n; ++i) candidates_[i] = {logits[i], static_cast<int32_t>(i)};
    return;
  }
  candidates_.clear();
  // Whatever is not above the k-th best so far is out: an equal logit comes later, hence after it.
  float floor = -kInfinity;
  const auto shrink = [&] {
    if (candidates_.size() < k) return;
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(candidates_.begin(), last, candidates_.end(), before);
    floor = last->value;
    candidates_.resize(k);
  };
  for (size_t i = 0; i < n; ++i) {
    if (!(logits[i] > floor)) continue;
    candidates_.push_back({logits[i], static_cast<int32_t>(i)});
    if (candidates_.size() == 2 * k) shrink();
  }
  shrink();
  std::sort(candidates_.begin(), candidates_.end(), before);
}

// Turns logits into weights, e^((logit - best) / temperature), and returns their sum.
double Sampler::weigh(float best_logit) {
  const float temperature = options_.temperature;
  for (Candidate& c : candidates_) {
    c.value = exp_nonpositive((c.value - best_logit) / temperature);
  }
  double total = 0.0;
  for (const Candidate& c : candidates_) total += static_cast<double>(c.value);
  return total;
}

// Finds the last token kept without sorting them all: sums weights by the leading bits of their
// float, which rise with the weight, walks down to the bucket of the cut, and sorts only that one.
void Sampler::keep_top_p(double total) {
  constexpr int kDroppedBits = 18;
  const auto bucket_of = [](const Candidate& c) {
    return std::bit_cast<uint32_t>(c.value) >> kDroppedBits;
  };
  constexpr size_t kBuckets = (std::bit_cast<uint32_t>(1.0f) >> kDroppedBits) + 1;
  std::array<double, kBuckets> sums{};
  for (const Candidate& c : candidates_) sums[bucket_of(c)] += static_cast<double>(c.value);

  const double target = static_cast<double>(options_.top_p) * total;
  size_t cut = kBuckets - 1;
  double sum = 0.0;
  for (; cut > 0 && sum + sums[cut] < target; --cut) sum += sums[cut];
  at_cut_.clear();
  for (const Candidate& c : candidates_) {
    if (bucket_of(c) == cut) at_cut_.push_back(c);
  }
  if (at_cut_.empty()) return;  // rounding: all of them do not quite reach the target
  std::sort(at_cut_.begin(), at_cut_.end(), before);
  size_t last = 0;
  for (; last + 1 < at_cut_.size(); ++last) {
    sum += static_cast<double>(at_cut_[last].value);
    if (sum >= target) break;
  }
  std::erase_if(candidates_, [&](const Candidate& c) { return before(at_cut_[last], c); });
}

void Sampler::keep_min_p() {
  std::erase_if(candidates_, [&](const Candidate& c) { return c.value < options_.min_p; });
}

int32_t Sampler::draw() {
  double total = 0.0;
  for (const Candidate& c : candidates_) total += static_cast<double>(c.value);
  const double unit = static_cast<double>(next() >> 11) * 0x1p-53;  // [0, 1)
  double rest = unit * total;
  int32_t token = 0;
  for (const Candidate& c : candidates_) {
    if (c.value == 0.0f) continue;
    token = c.token;
    rest -= static_cast<double>(c.value);
    if (rest < 0.0) break;
  }
  return token;  // the last one, if rounding leaves a rest
}

// xoshiro256** of Blackman and Vigna (public domain algorithm).
uint64_t Sampler::next() {
  State& s = state_;
  const uint64_t result = std::rotl(s[1] * 5, 7) * 9;
  const uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = std::rotl(s[3], 45);
  return result;
}

}  // namespace esker
