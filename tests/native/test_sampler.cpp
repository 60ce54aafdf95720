// SPDX-License-Identifier: MIT
//
// Which tokens may come, how often they come, and that the same seed gives the same ones.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "engine/sampler.h"

namespace {

using esker::Error;
using esker::ErrorKind;
using esker::Sampler;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// How often each token came in n draws.
std::vector<int> count_draws(const Sampler::Options& options, const std::vector<float>& logits,
                             int n) {
  Sampler sampler(options);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < n; ++i) ++counts[static_cast<size_t>(sampler.sample(logits))];
  return counts;
}

struct ChiSquare {
  double statistic;
  double degrees;  // of freedom
};

// Pearson's statistic of counts against probabilities. Cells with less than 5 expected are pooled,
// as the approximation wants; tokens of probability 0 must not come.
ChiSquare chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  double n = 0.0, pooled_count = 0.0, pooled_expected = 0.0;
  for (int count : counts) n += count;
  ChiSquare result = {0.0, -1.0};
  const auto add = [&](double count, double expected) {
    result.statistic += (count - expected) * (count - expected) / expected;
    result.degrees += 1.0;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = n * probabilities[i];
    if (expected == 0.0) {
      CHECK_EQUAL(counts[i], 0);
    } else if (expected < 5.0) {
      pooled_count += counts[i];
      pooled_expected += expected;
    } else {
      add(counts[i], expected);
    }
  }
  if (pooled_expected > 0.0) add(pooled_count, pooled_expected);
  return result;
}

// Many logits without two equal ones in a row, some far out; no library generator.
std::vector<float> many_logits(size_t n, float spread) {
  std::vector<float> logits(n);
  uint32_t x = 12345;
  for (float& logit : logits) {
    float sum = 0.0f;
    for (int i = 0; i < 4; ++i) {
      x = x * 1664525u + 1013904223u;
      sum += static_cast<float>(x >> 8) * 0x1p-24f - 0.5f;
    }
    logit = sum * spread;
  }
  return logits;
}

// The tokens that the rules keep, by the book: sort everything, in double.
std::vector<double> probabilities_by_the_book(const Sampler::Options& o,
                                              const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (o.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(o.top_k)));
  std::vector<double> p;
  double total = 0.0;
  for (size_t i : order) {
    p.push_back(std::exp((double{logits[i]} - double{logits[order[0]]}) / double{o.temperature}));
    total += p.back();
  }
  size_t n_kept = 0;
  for (double sum = 0.0; n_kept < p.size() && (n_kept == 0 || sum < double{o.top_p} * total);) {
    sum += p[n_kept++];
  }
  while (p[n_kept - 1] < double{o.min_p}) --n_kept;
  total = 0.0;
  for (size_t i = 0; i < n_kept; ++i) total += p[i];
  std::vector<double> probabilities(logits.size());
  for (size_t i = 0; i < n_kept; ++i) probabilities[order[i]] = p[i] / total;
  return probabilities;
}

ErrorKind kind_of(const std::vector<float>& logits, const Sampler::Options& options) {
  Sampler sampler(options);
  const Sampler::State before = sampler.state();
  try {
    sampler.sample(logits);
  } catch (const Error& e) {
    CHECK(sampler.state() == before);
    return e.kind();
  }
  throw esker::test::Failure("nothing was thrown");
}

}  // namespace

TEST(sampler_greedy_takes_the_lowest_of_equal_logits) {
  Sampler sampler({.temperature = 0.0f});
  const Sampler::State before = sampler.state();
  CHECK_EQUAL(sampler.sample(std::vector<float>{1, 3, 2, 3}), 1);
  CHECK_EQUAL(sampler.sample(std::vector<float>{-0.0f, 0.0f}), 0);
  CHECK_EQUAL(sampler.sample(std::vector<float>{-kInf, -5.0f, -kInf}), 1);
  CHECK_EQUAL(sampler.sample(std::vector<float>{-3e38f}), 0);
  std::vector<float> wide(1003, -1.0f);  // not a multiple of the lanes
  wide[1001] = wide[1002] = 2.0f;
  CHECK_EQUAL(sampler.sample(wide), 1001);
  CHECK(sampler.state() == before);
}

TEST(sampler_top_k_1_is_greedy_at_any_temperature) {
  Sampler sampler({.temperature = 100.0f, .top_k = 1});
  for (int i = 0; i < 50; ++i) {
    CHECK_EQUAL(sampler.sample(std::vector<float>{1, 3, 2, 3, 3}), 1);
  }
}

TEST(sampler_cuts_never_remove_the_most_likely_token) {
  for (const Sampler::Options& o : {Sampler::Options{.top_p = 0.0f},
                                    Sampler::Options{.top_p = 1e-6f},
                                    Sampler::Options{.min_p = 1.0f},
                                    Sampler::Options{.temperature = 1e-40f},
                                    Sampler::Options{.temperature = 1e-3f}}) {
    Sampler sampler(o);
    for (int i = 0; i < 20; ++i) {
      CHECK_EQUAL(sampler.sample(std::vector<float>{0.5f, 2.0f, 3.0f, -kInf, 1.0f}), 2);
    }
  }
}

TEST(sampler_top_p_counts_the_token_that_reaches_it) {
  const std::vector<float> logits = logits_of({0.1, 0.5, 0.25, 0.15});
  const auto tokens = [&](float top_p) {
    int set = 0;
    const std::vector<int> counts = count_draws({.top_p = top_p}, logits, 400);
    for (size_t i = 0; i < counts.size(); ++i) set |= (counts[i] > 0) << i;
    return set;
  };
  CHECK_EQUAL(tokens(0.49f), 0b0010);
  CHECK_EQUAL(tokens(0.51f), 0b0110);
  CHECK_EQUAL(tokens(0.76f), 0b1110);
  CHECK_EQUAL(tokens(0.91f), 0b1111);
}

TEST(sampler_top_k_goes_before_top_p_and_min_p_after_it) {
  const std::vector<float> logits = logits_of({0.4, 0.3, 0.2, 0.1});
  // Of the two kept, 0.4 has 4/7 = 0.571: top_p 0.55 is reached by it alone, which needs top_k.
  CHECK_EQUAL(count_draws({.top_k = 2, .top_p = 0.55f}, logits, 200)[0], 200);
  CHECK(count_draws({.top_p = 0.55f}, logits, 200)[1] > 0);
  // min_p 0.6 keeps 0.3 against 0.4; shares of top_p are those of the whole.
  const std::vector<int> counts = count_draws({.top_p = 0.65f, .min_p = 0.6f}, logits, 200);
  CHECK(counts[1] > 0);
  CHECK_EQUAL(counts[2] + counts[3], 0);
}

TEST(sampler_top_k_keeps_the_first_of_equal_logits) {
  const std::vector<int> counts =
      count_draws({.top_k = 3}, std::vector<float>{0, 1, 0, 0, 1, 0, 0, 0, 0}, 500);
  CHECK(counts[0] > 0 && counts[1] > 0 && counts[4] > 0);
  CHECK_EQUAL(counts[0] + counts[1] + counts[4], 500);
}

TEST(sampler_draws_follow_the_distribution) {
  const std::vector<double> p = {0.02, 0.3, 0.08, 0.25, 0.05, 0.1, 0.2};
  const std::vector<float> logits = logits_of(p);
  // 99.9 % points: 22.46 for 6 degrees of freedom, 13.82 for 2.
  CHECK(chi_square(count_draws({.seed = 7}, logits, 100000), p).statistic < 22.46);
  const std::vector<double> head = {0, 0.4, 0, 1.0 / 3.0, 0, 0, 0.8 / 3.0};
  CHECK(chi_square(count_draws({.top_k = 3, .seed = 8}, logits, 100000), head).statistic < 13.82);
  // Temperature 0.5 squares the probabilities.
  std::vector<double> squared;
  double sum = 0.0;
  for (double x : p) sum += x * x;
  for (double x : p) squared.push_back(x * x / sum);
  const std::vector<int> counts = count_draws({.temperature = 0.5f, .seed = 9}, logits, 100000);
  CHECK(chi_square(counts, squared).statistic < 22.46);
}

TEST(sampler_keeps_what_the_rules_keep) {
  const std::vector<float> logits = many_logits(300, 3.0f);
  for (const Sampler::Options& o :
       {Sampler::Options{}, Sampler::Options{.top_p = 0.9f}, Sampler::Options{.min_p = 0.05f},
        Sampler::Options{.temperature = 2.0f, .top_k = 100},
        Sampler::Options{.temperature = 0.7f, .top_p = 0.6f},
        Sampler::Options{.top_k = 1000, .top_p = 0.95f, .min_p = 0.02f},
        Sampler::Options{.temperature = 3.0f, .top_k = 5000, .top_p = 0.99f}}) {
    const std::vector<double> expected = probabilities_by_the_book(o, logits);
    const ChiSquare x = chi_square(count_draws(o, logits, 20000), expected);
    CHECK(x.degrees > 5.0);
    CHECK(std::abs(x.statistic - x.degrees) < 4.0 * std::sqrt(2.0 * x.degrees));
  }
}

TEST(sampler_same_seed_same_draws) {
  const std::vector<float> logits = many_logits(5000, 8.0f);
  const Sampler::Options options = {.temperature = 0.8f, .top_k = 200, .top_p = 0.95f, .seed = 42};
  Sampler::Options other = options;
  other.seed = 43;
  Sampler a(options), b(options), c(other);
  int differing = 0;
  for (int i = 0; i < 100; ++i) {
    const int32_t token = a.sample(logits);
    CHECK_EQUAL(token, b.sample(logits));
    differing += token != c.sample(logits);
  }
  CHECK(differing > 50);
}

TEST(sampler_draws_are_pinned) {
  // These may change only with a "Break:" line in the changelog.
  const std::vector<float> logits = many_logits(5000, 8.0f);
  Sampler sampler({.temperature = 0.8f, .top_k = 200, .top_p = 0.95f, .seed = 42});
  const std::vector<int32_t> pinned = {403,  1873, 476,  2645, 1391, 4974,
                                       4835, 2095, 4974, 2228, 2513, 3058};
  for (int32_t token : pinned) CHECK_EQUAL(sampler.sample(logits), token);
}

TEST(sampler_state_moves_to_another_sampler) {
  const std::vector<float> logits = many_logits(300, 4.0f);
  Sampler a({.seed = 1}), b({.seed = 2});
  for (int i = 0; i < 10; ++i) a.sample(logits);
  b.set_state(a.state());
  for (int i = 0; i < 50; ++i) CHECK_EQUAL(a.sample(logits), b.sample(logits));
  CHECK_EQUAL(MESSAGE_OF(Error, b.set_state({})),
              "[sampler] not the state of a generator: got all zero, want any other\n"
              "hint: the saved session may be damaged");
}

TEST(sampler_one_draw_a_token_whatever_the_logits) {
  // Even where there is no choice: the state then depends on the number of tokens only.
  Sampler a({.seed = 5}), b({.seed = 5});
  a.sample(std::vector<float>{1.0f});
  b.sample(many_logits(100, 1.0f));
  CHECK(a.state() == b.state());
}

TEST(sampler_refuses_what_is_no_number) {
  for (const Sampler::Options& o :
       {Sampler::Options{.temperature = 0.0f}, Sampler::Options{}, Sampler::Options{.top_k = 2}}) {
    for (size_t at : {0, 7, 8, 18}) {
      for (float bad : {kNan, -kNan, kInf}) {
        std::vector<float> logits(19, 1.0f);
        logits[at] = bad;
        CHECK(kind_of(logits, o) == ErrorKind::kNumeric);
      }
    }
    CHECK(kind_of(std::vector<float>(9, -kInf), o) == ErrorKind::kNumeric);
    CHECK(kind_of({}, o) == ErrorKind::kUsage);
  }
  Sampler sampler({});
  CHECK_EQUAL(MESSAGE_OF(Error, sampler.sample(std::vector<float>{0, kNan, kInf})),
              "[sampler] cannot choose a token from these logits: got nan at token 1, "
              "want finite logits\n"
              "hint: the model file may be damaged, or a value overflowed while computing");
  CHECK_EQUAL(MESSAGE_OF(Error, sampler.sample(std::vector<float>{-kInf, -kInf})),
              "[sampler] cannot choose a token from these logits: got -inf for all 2 tokens, "
              "want finite logits\n"
              "hint: the model file may be damaged, or a value overflowed while computing");
}

TEST(sampler_refuses_options_out_of_range) {
  CHECK_EQUAL(MESSAGE_OF(Error, Sampler({.temperature = -1.0f})),
              "[sampler] temperature out of range: got -1.000000, want 0 or more, finite\n"
              "hint: 0 always takes the most likely token");
  CHECK_EQUAL(MESSAGE_OF(Error, Sampler({.top_k = -1})),
              "[sampler] top_k out of range: got -1, want 0 or more\nhint: 0 keeps all tokens");
  CHECK_EQUAL(MESSAGE_OF(Error, Sampler({.top_p = 1.5f})),
              "[sampler] top_p out of range: got 1.500000, want 0 to 1\n"
              "hint: 1 keeps all tokens");
  CHECK_EQUAL(MESSAGE_OF(Error, Sampler({.min_p = -0.5f})),
              "[sampler] min_p out of range: got -0.500000, want 0 to 1\n"
              "hint: 0 keeps all tokens");
  for (const Sampler::Options& o :
       {Sampler::Options{.temperature = kNan}, Sampler::Options{.temperature = kInf},
        Sampler::Options{.top_p = kNan}, Sampler::Options{.top_p = -0.1f},
        Sampler::Options{.min_p = kNan}, Sampler::Options{.min_p = 1.1f}}) {
    MESSAGE_OF(Error, Sampler{o});
  }
}
