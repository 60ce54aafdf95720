// SPDX-License-Identifier: MIT
//
// What quantize.cpp and quantize_k.cpp share; nobody else includes it.
// Sums of squares are double: weights as large as float32 goes must not overflow them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/half.h"

namespace esker::quants {

// A block's weights below this are nothing to any type: the least half is 6e-8.
inline constexpr float kNothing = 1e-20f;

inline void store_u16(uint8_t* p, uint16_t v) {
  p[0] = static_cast<uint8_t>(v);
  p[1] = static_cast<uint8_t>(v >> 8);
}

// Nearest integer, ties to even, for |x| < 2^22; one addition each way instead of a call.
inline float nearest(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

inline float largest_magnitude(const float* x, int n) {
  float most = 0.0f;
  for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// The half nearest to x and its neighbours in magnitude, those that are finite: one of them is the
// best way to store x, which one depends on the error they make.
struct Halves {
  std::array<uint16_t, 3> bits{};
  int count = 0;
};

inline Halves halves_near(double x) {
  const uint16_t middle = float_to_half(static_cast<float>(std::clamp(x, -65504.0, 65504.0)));
  Halves halves;
  halves.bits[halves.count++] = middle;
  if ((middle & 0x7fff) < 0x7bff) halves.bits[halves.count++] = middle + 1;
  if ((middle & 0x7fff) > 0) halves.bits[halves.count++] = middle - 1;
  return halves;
}

// Quadratic of the squared error in a scale, for levels q that are given:
// error(d) = a d^2 - 2 b d + c, with a = sum q^2, b = sum q x, c = sum x^2.
struct Parabola {
  double a = 0, b = 0, c = 0;
  double best() const { return a > 0 ? b / a : 0.0; }
  double at(double d) const { return (a * d - 2 * b) * d + c; }
};

// The parabola of the levels nearest to x / scale.
template <class Levels>
Parabola parabola_of(const float* x, int n, double scale) {
  const float inverse = scale != 0 ? static_cast<float>(1.0 / scale) : 0.0f;
  Parabola p;
  for (int i = 0; i < n; ++i) {
    const double q = Levels::value(Levels::index(x[i] * inverse));
    p.a += q * q;
    p.b += q * x[i];
    p.c += static_cast<double>(x[i]) * x[i];
  }
  return p;
}

// Error of the levels nearest to x / scale, in exact terms: scale is what the decoder will use.
template <class Levels>
double error_of(const float* x, int n, double scale) {
  return parabola_of<Levels>(x, n, scale).at(scale);
}

template <class Levels>
void levels_of(const float* x, int n, double scale, uint8_t* levels) {
  const float inverse = scale != 0 ? static_cast<float>(1.0 / scale) : 0.0f;
  for (int i = 0; i < n; ++i) levels[i] = static_cast<uint8_t>(Levels::index(x[i] * inverse));
}

struct ScaleFit {
  double scale = 0;
  double curvature = 0;  // a: how much the error grows with the square of a wrong scale
};

// The scale, of either sign, whose nearest levels fit x best; not rounded to anything.
template <class Levels>
ScaleFit fit_scale(const float* x, int n) {
  float most = 0.0f;  // the weight of the largest magnitude, with its sign
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(most)) most = x[i];
  }
  if (std::fabs(most) < kNothing) return {};
  double best_error = std::numeric_limits<double>::infinity(), best_scale = 0;
  const auto consider = [&](double scale) {
    const Parabola p = parabola_of<Levels>(x, n, scale);
    const double error = p.at(p.best());
    if (error < best_error) best_error = error, best_scale = p.best();
  };
  // The largest weight is put at, inside or beyond the last level of either side.
  for (const float end : {Levels::kLow, Levels::kHigh}) {
    for (const float part : Levels::kParts) consider(most / (end * part));
  }
  for (int round = 0; round < 2; ++round) consider(best_scale);
  return {best_scale, parabola_of<Levels>(x, n, best_scale).a};
}

// A super-block: sub-blocks that share d, each with a small integer s; scale = d s.
template <class Levels, int kSubs, int kSize>
struct SuperBlock {
  uint16_t d_bits = 0;
  std::array<int, kSubs> s{};
  double error = std::numeric_limits<double>::infinity();

  double scale(int sub) const { return static_cast<double>(half_to_float(d_bits)) * s[sub]; }
};

// The best s of every sub-block for a stored d; `fits` say where to look.
template <class Levels, int kSubs, int kSize>
SuperBlock<Levels, kSubs, kSize> with_scale(const float* x, uint16_t d_bits,
                                            const std::array<ScaleFit, kSubs>& fits) {
  SuperBlock<Levels, kSubs, kSize> block;
  block.d_bits = d_bits;
  block.error = 0;
  const double d = static_cast<double>(half_to_float(d_bits));
  for (int i = 0; i < kSubs; ++i) {
    const double ideal = d != 0 ? fits[i].scale / d : 0.0;
    const int middle = static_cast<int>(
        std::lround(std::clamp<double>(ideal, Levels::kScaleLow, Levels::kScaleHigh)));
    double least = std::numeric_limits<double>::infinity();
    for (int s = middle - 1; s <= middle + 1; ++s) {
      if (s < Levels::kScaleLow || s > Levels::kScaleHigh) continue;
      const double error = error_of<Levels>(x + i * kSize, kSize, d * s);
      if (error < least) least = error, block.s[i] = s;
    }
    block.error += least;
  }
  return block;
}

// The d that fits best if every sub-block keeps its levels and only scales are rounded.
template <class Levels, int kSubs>
double common_scale(const std::array<ScaleFit, kSubs>& fits) {
  double most = 0;
  for (const ScaleFit& fit : fits) {
    if (std::fabs(fit.scale) > std::fabs(most)) most = fit.scale;
  }
  double best_d = 0, best_error = std::numeric_limits<double>::infinity();
  const auto consider = [&](double d) {
    double error = 0;
    for (const ScaleFit& fit : fits) {
      const double s = std::clamp<double>(static_cast<double>(std::lround(fit.scale / d)),
                                          Levels::kScaleLow, Levels::kScaleHigh);
      error += fit.curvature * (s * d - fit.scale) * (s * d - fit.scale);
    }
    if (error < best_error) best_error = error, best_d = d;
  };
  if (most == 0) return 0;
  for (int k = 0; k < Levels::kScaleTries; ++k) {
    consider(most / (Levels::kScaleLow + k));
    consider(most / (Levels::kScaleHigh - k));
  }
  return best_d;
}

template <class Levels, int kSubs, int kSize>
SuperBlock<Levels, kSubs, kSize> fit_super_block(const float* x) {
  std::array<ScaleFit, kSubs> fits;
  for (int i = 0; i < kSubs; ++i) fits[i] = fit_scale<Levels>(x + i * kSize, kSize);
  SuperBlock<Levels, kSubs, kSize> best;
  double d = common_scale<Levels, kSubs>(fits);
  for (int round = 0; round < 3; ++round) {
    const uint16_t bits = halves_near(d).bits[0];
    const auto block = with_scale<Levels, kSubs, kSize>(x, bits, fits);
    if (!(block.error < best.error)) break;
    best = block;
    // Least squares for d with the levels and the s just found.
    Parabola sum;
    for (int i = 0; i < kSubs; ++i) {
      const Parabola p = parabola_of<Levels>(x + i * kSize, kSize, block.scale(i));
      sum.a += p.a * block.s[i] * block.s[i];
      sum.b += p.b * block.s[i];
    }
    d = sum.best();
  }
  return best;
}

void quantize_q4_k(const float* x, uint8_t* block);  // 256 weights, 144 bytes
void quantize_q6_k(const float* x, uint8_t* block);  // 256 weights, 210 bytes

}  // namespace esker::quants
