// SPDX-License-Identifier: MIT
//
// Quantisers of the K family. Layouts: quants.cpp.
#include "formats/quantize_detail.h"

namespace esker::quants {
namespace {

struct SixBitLevels {
  static constexpr float kLow = -32.0f, kHigh = 31.0f;
  static constexpr float kParts[] = {0.94f, 0.96f, 0.98f, 1.0f, 1.02f, 1.04f};
  static constexpr int kScaleLow = -128, kScaleHigh = 127, kScaleTries = 16;
  static int index(float v) {
    return static_cast<int>(nearest(std::clamp(v, kLow, kHigh))) + 32;
  }
  static float value(int i) { return static_cast<float>(i - 32); }
};

constexpr int kSubs = 8, kSize = 32;  // of Q4_K

// x is about scale q - minimum, q = 0..15; both are 0 or more.
struct Affine {
  double scale = 0, minimum = 0;
};

// Sums that give the best scale and minimum for levels q, weighed as u = wu q and v = wv.
struct AffineSums {
  double uu = 0, uv = 0, vv = 0, ux = 0, vx = 0, xx = 0;

  // Least squares of scale u - minimum v - x with neither negative.
  Affine best() const {
    const double det = uu * vv - uv * uv;
    Affine a;
    if (det > 1e-12 * uu * vv) {
      a.scale = (ux * vv - vx * uv) / det;
      a.minimum = (ux * uv - vx * uu) / det;
      if (a.scale >= 0 && a.minimum >= 0) return a;
    }
    const double alone = uu > 0 ? std::max(0.0, ux / uu) : 0.0;  // no minimum
    const double flat = vv > 0 ? std::max(0.0, -vx / vv) : 0.0;  // no scale
    return alone * ux >= -flat * vx ? Affine{alone, 0} : Affine{0, flat};
  }
  double error(const Affine& a) const {
    return a.scale * (a.scale * uu - 2 * a.minimum * uv - 2 * ux) +
           a.minimum * (a.minimum * vv + 2 * vx) + xx;
  }
};

inline float four_bit_level(float x, double scale, double minimum) {
  if (scale <= 0) return 0.0f;
  const float v = static_cast<float>((static_cast<double>(x) + minimum) / scale);
  return nearest(std::clamp(v, 0.0f, 15.0f));
}

AffineSums sums_of(const float* x, double scale, double minimum, double wu, double wv) {
  AffineSums s;
  for (int i = 0; i < kSize; ++i) {
    const double u = wu * static_cast<double>(four_bit_level(x[i], scale, minimum));
    s.uu += u * u, s.uv += u * wv, s.ux += u * x[i];
    s.vv += wv * wv, s.vx += wv * x[i];
    s.xx += static_cast<double>(x[i]) * x[i];
  }
  return s;
}

// The best pair for 32 weights, not rounded to anything.
Affine fit_affine(const float* x) {
  const auto [lowest, highest] = std::minmax_element(x, x + kSize);
  const double low = std::min(0.0, static_cast<double>(*lowest)), high = *highest;
  if (high - low < static_cast<double>(kNothing)) return {0, -low};
  Affine best{0, -low};
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Affine& from) {
    const AffineSums s = sums_of(x, from.scale, from.minimum, 1, 1);
    const Affine a = s.best();
    const double error = s.error(a);
    if (error < least) least = error, best = a;
  };
  // The range spread over a little less or more than the 15 steps there are.
  for (double steps = 13.6; steps < 16.5; steps += 0.2) {
    const double scale = (high - low) / steps;
    consider({scale, -low + scale * (15 - steps) / 2});
  }
  for (int round = 0; round < 3; ++round) consider(best);
  return best;
}

struct Q4Block {
  uint16_t d = 0, dmin = 0;
  std::array<int, kSubs> scale{}, minimum{};
  double error = std::numeric_limits<double>::infinity();
  AffineSums sums;  // of the whole block in d and dmin

  Affine pair(int sub) const {
    return {static_cast<double>(half_to_float(d)) * scale[sub],
            static_cast<double>(half_to_float(dmin)) * minimum[sub]};
  }
};

int six_bits(double ideal) {
  return static_cast<int>(std::lround(std::clamp(ideal, 0.0, 63.0)));
}

// The best 6-bit pairs for stored d and dmin.
Q4Block with_scales(const float* x, uint16_t d_bits, uint16_t dmin_bits,
                    const std::array<Affine, kSubs>& fits) {
  Q4Block block;
  block.d = d_bits, block.dmin = dmin_bits, block.error = 0;
  const double d = half_to_float(d_bits), dmin = half_to_float(dmin_bits);
  for (int i = 0; i < kSubs; ++i) {
    const int scale = six_bits(d > 0 ? fits[i].scale / d : 0);
    const int minimum = six_bits(dmin > 0 ? fits[i].minimum / dmin : 0);
    double least = std::numeric_limits<double>::infinity();
    AffineSums best;
    for (int s = std::max(0, scale - 1); s <= std::min(63, scale + 1); ++s) {
      for (int m = std::max(0, minimum - 1); m <= std::min(63, minimum + 1); ++m) {
        const AffineSums sums = sums_of(x + i * kSize, d * s, dmin * m, s, m);
        const double error = sums.error({d, dmin});
        if (error < least) least = error, best = sums, block.scale[i] = s, block.minimum[i] = m;
      }
    }
    block.error += least;
    block.sums.uu += best.uu, block.sums.uv += best.uv, block.sums.vv += best.vv;
    block.sums.ux += best.ux, block.sums.vx += best.vx, block.sums.xx += best.xx;
  }
  return block;
}

Q4Block fit_q4_k(const float* x) {
  std::array<Affine, kSubs> fits;
  Affine most;
  for (int i = 0; i < kSubs; ++i) {
    fits[i] = fit_affine(x + i * kSize);
    most.scale = std::max(most.scale, fits[i].scale);
    most.minimum = std::max(most.minimum, fits[i].minimum);
  }
  Affine common{most.scale / 63, most.minimum / 63};
  Q4Block best;
  for (int round = 0; round < 3; ++round) {
    const uint16_t d = halves_near(common.scale).bits[0];
    const uint16_t dmin = halves_near(common.minimum).bits[0];
    const Q4Block block = with_scales(x, d, dmin, fits);
    if (!(block.error < best.error)) break;
    best = block;
    common = block.sums.best();
  }
  return best;
}

}  // namespace

void quantize_q4_k(const float* x, uint8_t* block) {
  const Q4Block fit = fit_q4_k(x);
  store_u16(block, fit.d);
  store_u16(block + 2, fit.dmin);
  uint8_t* s = block + 4;
  for (int i = 0; i < 4; ++i) {
    const int scale = fit.scale[i + 4], minimum = fit.minimum[i + 4];
    s[i] = static_cast<uint8_t>(fit.scale[i] | scale >> 4 << 6);
    s[i + 4] = static_cast<uint8_t>(fit.minimum[i] | minimum >> 4 << 6);
    s[i + 8] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
  }
  for (int i = 0; i < kSubs; ++i) {
    const Affine a = fit.pair(i);
    uint8_t* bytes = block + 16 + i / 2 * 32;
    for (int j = 0; j < kSize; ++j) {
      const int q = static_cast<int>(four_bit_level(x[i * kSize + j], a.scale, a.minimum));
      bytes[j] = static_cast<uint8_t>(i % 2 == 0 ? q : bytes[j] | q << 4);
    }
  }
}

void quantize_q6_k(const float* x, uint8_t* block) {
  const auto fit = fit_super_block<SixBitLevels, 16, 16>(x);
  std::fill(block, block + 192, uint8_t{0});
  for (int i = 0; i < 16; ++i) {
    uint8_t levels[16];
    levels_of<SixBitLevels>(x + 16 * i, 16, fit.scale(i), levels);
    const int quarter = i / 2 % 4;  // of a half of 128 weights, as in the decoder
    uint8_t* low = block + i / 8 * 64 + quarter % 2 * 32 + i % 2 * 16;
    uint8_t* high = block + 128 + i / 8 * 32 + i % 2 * 16;
    for (int j = 0; j < 16; ++j) {
      low[j] = static_cast<uint8_t>(low[j] | (levels[j] & 15) << quarter / 2 * 4);
      high[j] = static_cast<uint8_t>(high[j] | levels[j] >> 4 << quarter * 2);
    }
    block[192 + i] = static_cast<uint8_t>(static_cast<int8_t>(fit.s[i]));
  }
  store_u16(block + 208, fit.d_bits);
}

}  // namespace esker::quants
