// SPDX-License-Identifier: MIT
//
// Quantisers of all types but the K family (quantize_k.cpp). Layouts: quants.cpp, quants_iq.cpp.
#include "formats/quantize.h"

#include <string>

#include "base/error.h"
#include "formats/codebooks.inc"
#include "formats/quantize_detail.h"

namespace esker {
namespace quants {
namespace {

void quantize_f32(const float* x, uint8_t* to) {
  const uint32_t bits = std::bit_cast<uint32_t>(*x);
  store_u16(to, static_cast<uint16_t>(bits));
  store_u16(to + 2, static_cast<uint16_t>(bits >> 16));
}

void quantize_f16(const float* x, uint8_t* to) {
  store_u16(to, float_to_half(std::clamp(*x, -65504.0f, 65504.0f)));
}

void quantize_bf16(const float* x, uint8_t* to) {
  const uint16_t rounded = float_to_bfloat16(*x);
  store_u16(to, (rounded & 0x7fff) == 0x7f80 ? static_cast<uint16_t>(rounded - 1) : rounded);
}

// -127..127: not -128, which kernels that take magnitudes of bytes cannot bear.
struct ByteLevels {
  static int index(float v) { return static_cast<int>(nearest(std::clamp(v, -127.0f, 127.0f))); }
  static float value(int q) { return static_cast<float>(q); }
};

void quantize_q8_0(const float* x, uint8_t* block) {
  const float most = largest_magnitude(x, 32);
  double least = std::numeric_limits<double>::infinity(), d = 0;
  // Up to 127.5 the largest weight is off by half a step, as any other may be, and all steps are
  // smaller for it.
  for (const double top : {127.0, 127.2, 127.4, 127.5}) {
    const uint16_t bits = halves_near(most / top).bits[0];
    const double candidate = static_cast<double>(half_to_float(bits));
    const double error = error_of<ByteLevels>(x, 32, candidate);
    if (error < least) least = error, d = candidate, store_u16(block, bits);
  }
  if (most > 0 && d == 0) {  // the least half is better than nothing
    store_u16(block, 1);
    d = 0x1p-24;
  }
  levels_of<ByteLevels>(x, 32, d, block + 2);
}

// Levels -1, 0, 1, 2 times d of either sign.
struct TwoBitLevels {
  static int index(float v) { return static_cast<int>(nearest(std::clamp(v, -1.0f, 2.0f))) + 1; }
  static float value(int q) { return static_cast<float>(q - 1); }
};

// One way to assign the levels: what changes when d passes `at`, downwards.
struct Step {
  double at;
  float x;
  int level;  // of x (times the sign of d) before the change; after it, one further from 0
};

// Exactly the least error that any stored d can give. As |d| falls, weights leave level 0 for
// 1 at |x| = d/2 and 1 for 2 at x = 3d/2; between two such points the levels stay and the error is
// a parabola in d. The error of a d never exceeds any parabola's value there, so the least value
// over all parabolas, each at the half nearest to its vertex, is the least error over all halves.
uint16_t best_two_bit_scale(const float* x) {
  std::array<Step, 128> steps;
  double c = 0, least = 0;
  for (int i = 0; i < 64; ++i) c += static_cast<double>(x[i]) * x[i];
  least = c;  // d = 0
  uint16_t best = 0;
  for (const float sign : {1.0f, -1.0f}) {
    size_t n = 0;
    for (int i = 0; i < 64; ++i) {
      const float v = sign * x[i];
      if (std::fabs(v) < kNothing) continue;
      steps[n++] = {2.0 * std::fabs(v), v, 0};
      if (v > 0) steps[n++] = {static_cast<double>(v) / 1.5, v, 1};
    }
    std::sort(steps.begin(), steps.begin() + n,
              [](const Step& l, const Step& r) { return l.at > r.at; });
    Parabola p{0, 0, c};
    for (size_t k = 0; k < n; ++k) {
      // From q to q + 1 for positive v, from 0 to -1 for negative.
      p.a += 2 * steps[k].level + 1;
      p.b += std::fabs(static_cast<double>(steps[k].x));
      if (p.at(p.best()) >= least) continue;
      const uint16_t bits = halves_near(p.best()).bits[0];
      const double error = p.at(static_cast<double>(half_to_float(bits)));
      if (error < least) {
        least = error;
        best = static_cast<uint16_t>(bits | (sign < 0 ? 0x8000 : 0));
      }
    }
  }
  return best;
}

void quantize_q2_0(const float* x, uint8_t* block) {
  const uint16_t bits = best_two_bit_scale(x);
  store_u16(block, bits);
  uint8_t levels[64];
  levels_of<TwoBitLevels>(x, 64, static_cast<double>(half_to_float(bits)), levels);
  for (int j = 0; j < 16; ++j) {
    const uint8_t* q = levels + 4 * j;
    block[2 + j] = static_cast<uint8_t>(q[0] | q[1] << 2 | q[2] << 4 | q[3] << 6);
  }
}

// The index of the nearest value of the codebook. All midpoints are multiples of a half, so that
// floor(2 v) decides.
constexpr std::array<uint8_t, 512> kNearestIq4 = [] {
  std::array<uint8_t, 512> table{};
  for (int i = 0; i < 512; ++i) {
    const int four_v = 2 * (i - 256) + 1;  // of the middle of the cell
    int index = 0;
    while (index < 15 &&
           2 * (codebooks::kIq4Values[index] + codebooks::kIq4Values[index + 1]) < four_v) {
      ++index;
    }
    table[static_cast<size_t>(i)] = static_cast<uint8_t>(index);
  }
  return table;
}();

struct Iq4Levels {
  static constexpr float kLow = -127.0f, kHigh = 113.0f;
  static constexpr float kParts[] = {0.80f, 0.86f, 0.90f, 0.94f, 0.97f, 1.0f,
                                     1.03f, 1.06f, 1.10f, 1.15f, 1.22f};
  static constexpr int kScaleLow = -32, kScaleHigh = 31, kScaleTries = 12;
  static int index(float v) {
    return kNearestIq4[static_cast<size_t>(std::clamp(2.0f * v, -256.0f, 255.0f) + 256.0f)];
  }
  static float value(int i) { return static_cast<float>(codebooks::kIq4Values[i]); }
};

void store_iq4(const uint8_t* levels, uint8_t* bytes) {
  for (int j = 0; j < 16; ++j) {
    bytes[j] = static_cast<uint8_t>(levels[j] | levels[j + 16] << 4);
  }
}

void quantize_iq4_nl(const float* x, uint8_t* block) {
  const Halves halves = halves_near(fit_scale<Iq4Levels>(x, 32).scale);
  double least = std::numeric_limits<double>::infinity(), d = 0;
  for (int k = 0; k < halves.count; ++k) {
    const double candidate = static_cast<double>(half_to_float(halves.bits[k]));
    const double error = error_of<Iq4Levels>(x, 32, candidate);
    if (error < least) least = error, d = candidate, store_u16(block, halves.bits[k]);
  }
  uint8_t levels[32];
  levels_of<Iq4Levels>(x, 32, d, levels);
  store_iq4(levels, block + 2);
}

void quantize_iq4_xs(const float* x, uint8_t* block) {
  const auto fit = fit_super_block<Iq4Levels, 8, 32>(x);
  store_u16(block, fit.d_bits);
  int high = 0;
  std::fill(block + 4, block + 8, uint8_t{0});
  for (int i = 0; i < 8; ++i) {
    const int s = fit.s[i] + 32;
    block[4 + i / 2] = static_cast<uint8_t>(block[4 + i / 2] | (s & 15) << i % 2 * 4);
    high |= s >> 4 << 2 * i;
    uint8_t levels[32];
    levels_of<Iq4Levels>(x + 32 * i, 32, fit.scale(i), levels);
    store_iq4(levels, block + 8 + 16 * i);
  }
  store_u16(block + 2, static_cast<uint16_t>(high));
}

using EncodeFn = void (*)(const float* x, uint8_t* block);

EncodeFn encoder(WeightType type) {
  using T = WeightType;
  switch (type) {
    case T::kF32: return quantize_f32;
    case T::kF16: return quantize_f16;
    case T::kBF16: return quantize_bf16;
    case T::kQ8_0: return quantize_q8_0;
    case T::kQ2_0: return quantize_q2_0;
    case T::kQ4_K: return quantize_q4_k;
    case T::kQ6_K: return quantize_q6_k;
    case T::kIQ4_NL: return quantize_iq4_nl;
    case T::kIQ4_XS: return quantize_iq4_xs;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace quants

bool can_quantize(WeightType type) { return quants::encoder(type) != nullptr; }

void quantize(WeightType type, const float* x, uint8_t* blocks, int64_t n) {
  const quants::EncodeFn encode = quants::encoder(type);
  if (encode == nullptr) {
    const WeightTypeInfo* info = find_weight_type(static_cast<uint32_t>(type));
    raise(ErrorKind::kUsage, "formats",
          {.what = "no quantiser for this weight type",
           .got = info != nullptr ? info->name
                                  : "type id " + std::to_string(static_cast<uint32_t>(type)),
           .want = "F32, F16, BF16, Q8_0, Q2_0, Q4_K, Q6_K, IQ4_NL or IQ4_XS",
           .where = "",
           .hint = ""});
  }
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(x[i])) continue;
    raise(ErrorKind::kNumeric, "formats",
          {.what = "weights to quantise hold a value that is not a number",
           .got = std::string(std::isnan(x[i]) ? "NaN" : "infinity") + " in element " +
                  std::to_string(i),
           .want = "finite numbers",
           .where = "",
           .hint = ""});
  }
  const WeightTypeInfo& info = weight_type_info(type);
  for (int64_t i = 0; i < n / info.block_elements; ++i) {
    encode(x + i * info.block_elements, blocks + i * info.block_bytes);
  }
}

}  // namespace esker
