// SPDX-License-Identifier: MIT
//
// Quantisers against the decoders: exact where exact is possible, Q2_0 against every half there is,
// no block that knows its neighbours, nothing that is not a number. Errors beside those of another
// implementation: tests/test_quantize.py.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "check.h"
#include "formats/quantize.h"
#include "formats/quants.h"

namespace {

using esker::WeightType;
using esker::WeightTypeInfo;

std::vector<WeightTypeInfo> quantised_types() {
  std::vector<WeightTypeInfo> types;
  for (const WeightTypeInfo& info : esker::kWeightTypes) {
    if (esker::can_quantize(info.type)) types.push_back(info);
  }
  return types;
}

class Random {
 public:
  explicit Random(uint32_t seed) : x_(seed) {}
  uint32_t bits() {
    x_ = x_ * 1664525u + 1013904223u;
    return x_ >> 8;
  }
  float normal() {  // near enough: a sum of uniform values
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(bits()) * 0x1p-24f;
    return sum - 6.0f;
  }
  std::vector<float> normals(size_t n, float std) {
    std::vector<float> x(n);
    for (float& v : x) v = std * normal();
    return x;
  }

 private:
  uint32_t x_;
};

std::vector<uint8_t> encode(const WeightTypeInfo& info, const std::vector<float>& x) {
  std::vector<uint8_t> blocks(x.size() / info.block_elements * info.block_bytes);
  esker::quantize(info.type, x.data(), blocks.data(), static_cast<int64_t>(x.size()));
  return blocks;
}

std::vector<float> decode(const WeightTypeInfo& info, const std::vector<uint8_t>& blocks) {
  std::vector<float> x(blocks.size() / info.block_bytes * info.block_elements);
  esker::weight_decoder(info.type)(blocks.data(), x.data(), static_cast<int64_t>(x.size()));
  return x;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += e * e;
  }
  return sum;
}

const WeightTypeInfo& info_of(WeightType type) { return esker::weight_type_info(type); }

// Blocks of random integers whose extremes occur, so that they are the best for what they decode
// to: the quantiser must find weights without any error.
std::vector<uint8_t> extreme_block(WeightType type, Random& random) {
  const WeightTypeInfo& info = info_of(type);
  std::vector<uint8_t> block(info.block_bytes);
  for (uint8_t& b : block) b = static_cast<uint8_t>(random.bits());
  const auto put_scale = [&](size_t at, uint16_t half) {
    block[at] = static_cast<uint8_t>(half), block[at + 1] = static_cast<uint8_t>(half >> 8);
  };
  const auto scale = static_cast<uint16_t>(0x2000 + random.bits() % 0x1000);
  switch (type) {
    case WeightType::kQ8_0:
      put_scale(0, scale);
      for (size_t i = 2; i < 34; ++i) block[i] = block[i] == 0x80 ? 0x81 : block[i];
      block[2 + random.bits() % 32] = random.bits() % 2 ? 127 : 0x81;
      break;
    case WeightType::kQ2_0: put_scale(0, scale); break;
    case WeightType::kIQ4_NL:
      put_scale(0, scale);
      block[2] = 0xf0;  // the last level of either side
      break;
    case WeightType::kIQ4_XS:
      put_scale(0, scale);
      put_scale(2, static_cast<uint16_t>(random.bits()) & 0xfffc);
      block[4] &= 0xf0;  // sub-block 0 has s = -32
      for (size_t i = 8; i < 136; i += 16) block[i] = 0xf0;
      break;
    case WeightType::kQ4_K:
      put_scale(0, scale);
      put_scale(2, scale);
      block[4] |= 63, block[9] |= 63;  // the largest scale and minimum occur
      for (size_t i = 16; i < 144; i += 32) block[i] = 0xf0, block[i + 1] = 0x0f;
      break;
    case WeightType::kQ6_K:
      put_scale(208, scale);
      block[192 + random.bits() % 16] = 0x80;
      for (size_t i = 0; i < 128; i += 16) block[i] = 0, block[i + 1] = 0xff;
      for (size_t i = 128; i < 192; i += 16) block[i] = 0, block[i + 1] = 0xff;
      break;
    default: break;
  }
  return block;
}

}  // namespace

TEST(quantize_float_to_half_is_the_nearest_with_ties_to_even) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const float x = esker::half_to_float(static_cast<uint16_t>(h));
    const float next = h == 0x7bff ? 65536.0f : esker::half_to_float(static_cast<uint16_t>(h + 1));
    const float middle = (x + next) / 2;  // exact
    CHECK_EQUAL(esker::float_to_half(x), h);
    CHECK_EQUAL(esker::float_to_half(-x), h | 0x8000);
    CHECK_EQUAL(esker::float_to_half(middle), h + h % 2);
    CHECK_EQUAL(esker::float_to_half(std::nextafter(middle, 0.0f)), h);
    CHECK_EQUAL(esker::float_to_half(std::nextafter(middle, next)), h + 1);
  }
  CHECK_EQUAL(esker::float_to_half(std::numeric_limits<float>::max()), 0x7c00);
  CHECK_EQUAL(esker::float_to_half(-std::numeric_limits<float>::infinity()), 0xfc00);
  CHECK(std::isnan(esker::half_to_float(esker::float_to_half(std::nanf("")))));
  CHECK_EQUAL(esker::float_to_half(1e-30f), 0);
}

TEST(quantize_float_to_bfloat16_is_the_nearest_with_ties_to_even) {
  CHECK_EQUAL(esker::float_to_bfloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  CHECK_EQUAL(esker::float_to_bfloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  CHECK_EQUAL(esker::float_to_bfloat16(std::bit_cast<float>(0xbf808001u)), 0xbf81);
  CHECK_EQUAL(esker::float_to_bfloat16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
  CHECK(std::isnan(esker::bfloat16_to_float(esker::float_to_bfloat16(std::nanf("1")))));
}

TEST(quantize_finds_what_can_be_had_without_error) {
  Random random(1);
  for (const WeightTypeInfo& info : quantised_types()) {
    if (info.block_elements == 1) continue;
    for (int i = 0; i < 50; ++i) {
      const std::vector<float> x = decode(info, extreme_block(info.type, random));
      const std::vector<float> y = decode(info, encode(info, x));
      CHECK_EQUAL(squared_error(x, y), 0.0);
    }
  }
}

TEST(quantize_plain_types_keep_what_they_can_hold) {
  for (const float x : {0.0f, -0.0f, 1.0f, -2.5f, 0x1p-24f, 65504.0f}) {
    for (const WeightType type : {WeightType::kF32, WeightType::kF16}) {
      const float y = decode(info_of(type), encode(info_of(type), {x}))[0];
      CHECK_EQUAL(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(y));
    }
  }
  const float most = std::numeric_limits<float>::max();
  CHECK_EQUAL(decode(info_of(WeightType::kF16), encode(info_of(WeightType::kF16), {-most}))[0],
              -65504.0f);
  const float rounded =
      decode(info_of(WeightType::kBF16), encode(info_of(WeightType::kBF16), {most}))[0];
  CHECK_EQUAL(std::bit_cast<uint32_t>(rounded), 0x7f7f0000u);
}

TEST(quantize_q2_0_is_the_best_of_all_halves) {
  const WeightTypeInfo& info = info_of(WeightType::kQ2_0);
  Random random(2);
  for (int i = 0; i < 6; ++i) {
    std::vector<float> x = random.normals(64, i == 5 ? 3e-7f : 0.02f);
    if (i == 3) x[5] = 0.3f;
    if (i == 4) x.assign(64, -0.125f);
    const double got = squared_error(x, decode(info, encode(info, x)));
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t h = 0; h < 0x7c00; ++h) {
      for (const double sign : {1.0, -1.0}) {
        const double d = sign * static_cast<double>(esker::half_to_float(static_cast<uint16_t>(h)));
        double error = 0;
        for (const float v : x) {
          const double q =
              d != 0 ? std::clamp(std::nearbyint(static_cast<double>(v) / d), -1.0, 2.0) : 0.0;
          error += (static_cast<double>(v) - q * d) * (static_cast<double>(v) - q * d);
        }
        least = std::min(least, error);
      }
    }
    CHECK(got <= least * (1 + 1e-6));
  }
}

TEST(quantize_blocks_do_not_know_each_other) {
  Random random(3);
  for (const WeightTypeInfo& info : quantised_types()) {
    const std::vector<float> x = random.normals(5 * info.block_elements, 1.0f);
    const std::vector<uint8_t> all = encode(info, x);
    for (size_t i = 0; i < 5; ++i) {
      const auto begin = x.begin() + static_cast<ptrdiff_t>(i * info.block_elements);
      const std::vector<uint8_t> one = encode(info, {begin, begin + info.block_elements});
      CHECK(std::equal(one.begin(), one.end(),
                       all.begin() + static_cast<ptrdiff_t>(i * info.block_bytes)));
    }
  }
}

TEST(quantize_any_finite_weights_decode_to_finite_ones) {
  Random random(4);
  for (const WeightTypeInfo& info : quantised_types()) {
    const size_t n = info.block_elements;
    for (const float size : {0.0f, 1e-42f, 1e-30f, 1e-12f, 1e-7f, 1e-5f, 1.0f, 1e4f, 1e6f, 1e30f}) {
      const std::vector<float> x = random.normals(n, size);
      const std::vector<float> y = decode(info, encode(info, x));
      double energy = 0;
      for (const float v : x) energy += static_cast<double>(v) * static_cast<double>(v);
      for (const float v : y) CHECK(std::isfinite(v));
      CHECK(squared_error(x, y) <= energy);  // never worse than zeros
      if (size == 0.0f) {
        for (const float v : y) CHECK_EQUAL(v, 0.0f);
      }
    }
    // One sign, one value, one outlier, the largest there are.
    const float most = std::numeric_limits<float>::max();
    for (const float v : {0.7f, -0.7f, most, -most}) {
      std::vector<float> x(n, v);
      for (const float y : decode(info, encode(info, x))) CHECK(std::isfinite(y));
      x[n / 2] = most;
      for (const float y : decode(info, encode(info, x))) CHECK(std::isfinite(y));
    }
  }
}

TEST(quantize_constant_blocks_are_near) {
  for (const WeightTypeInfo& info : quantised_types()) {
    for (const float v : {0.7f, -0.7f}) {
      const std::vector<float> x(info.block_elements, v);
      for (const float y : decode(info, encode(info, x))) CHECK(std::fabs(y - v) < 0.004f);
    }
  }
}

TEST(quantize_refuses_what_is_no_number_and_types_it_does_not_know) {
  for (const WeightTypeInfo& info : quantised_types()) {
    std::vector<float> x(2 * info.block_elements, 1.0f);
    x.back() = std::nanf("");
    std::vector<uint8_t> blocks(2 * info.block_bytes);
    const auto n = static_cast<int64_t>(x.size());
    const std::string message =
        MESSAGE_OF(esker::Error, esker::quantize(info.type, x.data(), blocks.data(), n));
    CHECK_EQUAL(message, "[formats] weights to quantise hold a value that is not a number: got "
                         "NaN in element " + std::to_string(n - 1) + ", want finite numbers");
    x.back() = -std::numeric_limits<float>::infinity();
    CHECK(MESSAGE_OF(esker::Error, esker::quantize(info.type, x.data(), blocks.data(), n))
              .find("got infinity in element") != std::string::npos);
  }
  CHECK(!esker::can_quantize(WeightType::kIQ2_S));
  const float x[256] = {};
  uint8_t block[82];
  CHECK_EQUAL(MESSAGE_OF(esker::Error, esker::quantize(WeightType::kIQ2_S, x, block, 256)),
              "[formats] no quantiser for this weight type: got IQ2_S, "
              "want F32, F16, BF16, Q8_0, Q2_0, Q4_K, Q6_K, IQ4_NL or IQ4_XS");
}
