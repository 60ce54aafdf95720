// SPDX-License-Identifier: MIT
//
// Every kernel of every instruction set this machine has, against the scalar decoder in double.
#include "backends/cpu/kernels.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "formats/quants.h"

using namespace esker;
using namespace esker::cpu;

namespace {

// Random blocks whose scales are small finite numbers: bytes as they fall, then every half-precision
// field (and every float of the float types) made one.
std::vector<uint8_t> random_weights(WeightType type, int64_t n, std::mt19937_64& rng) {
  const WeightTypeInfo& info = weight_type_info(type);
  std::vector<uint8_t> bytes(weight_bytes(type, static_cast<uint64_t>(n)));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng() >> 40);
  const auto put = [&](size_t at, auto value) { std::memcpy(&bytes[at], &value, sizeof value); };
  const auto half = [&] { return static_cast<uint16_t>(0x2000 | (rng() & 0x83ff)); };  // 2^-7
  for (size_t b = 0; b < bytes.size(); b += info.block_bytes) {
    switch (type) {
      case WeightType::kF32: put(b, static_cast<float>(rng() % 2001) / 1000.0f - 1.0f); break;
      case WeightType::kF16: put(b, half()); break;
      case WeightType::kBF16: put(b, static_cast<uint16_t>(0x3e00 | (rng() & 0x80ff))); break;
      case WeightType::kQ6_K: put(b + 208, half()); break;
      case WeightType::kQ3_K: put(b + 108, half()); break;
      case WeightType::kQ2_K: put(b + 80, half()), put(b + 82, half()); break;
      case WeightType::kTQ1_0: put(b + 52, half()); break;
      case WeightType::kTQ2_0: put(b + 64, half()); break;
      case WeightType::kMXFP4: bytes[b] = static_cast<uint8_t>(118 + rng() % 8); break;
      case WeightType::kNVFP4:
        for (size_t i = 0; i < 4; ++i) bytes[b + i] = static_cast<uint8_t>(rng() % 0x60);
        break;
      case WeightType::kIQ1_M:  // its half is spread over the upper nibbles of four words
        for (size_t i = 0; i < 4; ++i) bytes[b + 49 + 2 * i] &= 0x0f;
        bytes[b + 55] |= 0x20;
        break;
      default:
        put(b, half());
        if (type == WeightType::kQ4_K || type == WeightType::kQ5_K || type == WeightType::kQ4_1 ||
            type == WeightType::kQ5_1) {
          put(b + 2, half());
        }
    }
  }
  return bytes;
}

struct Case {
  WeightType type;
  int64_t rows, cols, tokens;
  std::vector<uint8_t> w;
  std::vector<float> x;

  Case(WeightType t, int64_t n_rows, int64_t n_cols, int64_t n_tokens, uint64_t seed)
      : type(t), rows(n_rows), cols(n_cols), tokens(n_tokens) {
    std::mt19937_64 rng(seed);
    w = random_weights(type, rows * cols, rng);
    x.resize(static_cast<size_t>(tokens * cols));
    for (float& v : x) {
      v = static_cast<float>(rng() % 20001) / 10000.0f - 1.0f;
      if (rng() % 320 == 0) v *= 20;  // outliers, as real activations have
    }
  }
  int64_t row_bytes() const { return static_cast<int64_t>(w.size()) / rows; }

  Packed pack(const Kernels& k, int parts) const {
    Packed packed;
    packed.x = x.data();
    packed.resize(k.of(type).order, parts, cols, tokens);
    for (int64_t t = 0; t < tokens; ++t) k.pack(packed, t);
    return packed;
  }
  std::vector<float> run(const Kernels& k, const Packed& packed, int64_t first, int64_t n) const {
    std::vector<float> y(static_cast<size_t>(tokens * rows), -1.0f);
    k.of(type).rows({.w = w.data(), .row_bytes = static_cast<uint64_t>(row_bytes()), .n_rows = rows,
                     .x = &packed, .tokens = n, .y = y.data(), .y_stride = rows, .first = first});
    return y;
  }
  // Relative L2 distance from the sum in double.
  double error(const std::vector<float>& y) const {
    std::vector<float> row(static_cast<size_t>(cols));
    double off = 0, all = 0;
    for (int64_t r = 0; r < rows; ++r) {
      weight_decoder(type)(w.data() + r * row_bytes(), row.data(), cols);
      for (int64_t t = 0; t < tokens; ++t) {
        double sum = 0;
        for (int64_t i = 0; i < cols; ++i) {
          sum += double{row[static_cast<size_t>(i)]} * double{x[static_cast<size_t>(t * cols + i)]};
        }
        const double d = double{y[static_cast<size_t>(t * rows + r)]} - sum;
        off += d * d, all += sum * sum;
      }
    }
    return std::sqrt(off / all);
  }
};

const int64_t kCols[] = {4, 32, 64, 96, 160, 192, 256, 320, 512, 640, 768, 1280, 2560};

// Bytes an activation, and how far off a product may be for it.
struct Fineness {
  int parts;
  double error_most;
};
constexpr Fineness kFineness[] = {{3, 4e-6}, {2, 4e-4}, {1, 4e-2}};

void check_against_decoder(const Kernels& k, const Case& c) {
  for (const Fineness& f : kFineness) {
    const double error = c.error(c.run(k, c.pack(k, f.parts), 0, c.tokens));
    if (error < f.error_most) continue;  // a NaN must fail
    throw test::Failure(std::string(k.isa) + " " + weight_type_info(c.type).name + " rows " +
                        std::to_string(c.rows) + " cols " + std::to_string(c.cols) + " tokens " +
                        std::to_string(c.tokens) + " bytes " + std::to_string(f.parts) + ": " +
                        std::to_string(error));
  }
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double off = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    off += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    all += double{b[i]} * double{b[i]};
  }
  return std::sqrt(off / all);
}

// y of tokens computed `n` at a time.
std::vector<float> run_by(const Case& c, const Kernels& k, const Packed& packed, int64_t n) {
  std::vector<float> y(static_cast<size_t>(c.tokens * c.rows));
  for (int64_t first = 0; first < c.tokens; first += n) {
    const int64_t count = std::min(n, c.tokens - first);
    const std::vector<float> part = c.run(k, packed, first, count);
    std::copy_n(part.begin() + first * c.rows, count * c.rows, y.begin() + first * c.rows);
  }
  return y;
}

}  // namespace

TEST(cpu_kernels_agree_with_the_decoder_in_double) {
  for (const Kernels* k : available_kernels()) {
    for (const WeightTypeInfo& info : kWeightTypes) {
      for (const int64_t cols : kCols) {
        if (cols % info.block_elements != 0) continue;
        for (const int64_t tokens : {1, 3, 11}) {
          // Rows that do not divide by what a kernel takes at once; many of them, to mean over, for one token.
          check_against_decoder(*k, Case(info.type, tokens == 1 ? 39 : 7, cols, tokens,
                                         static_cast<uint64_t>(cols)));
        }
      }
      if (2560 % info.block_elements == 0) check_against_decoder(*k, Case(info.type, 37, 2560, 9, 1));
    }
  }
}

// A window of a few tokens (drafts) gives what its tokens give one by one, and a prompt does not depend
// on how it is cut, as long as its pieces are no windows.
TEST(cpu_kernels_give_a_row_the_same_bits_whatever_is_computed_beside_it) {
  for (const Kernels* k : available_kernels()) {
    for (const WeightTypeInfo& info : kWeightTypes) {
      for (const int64_t cols : {640, 768}) {
        if (cols % info.block_elements != 0) continue;
        const Case c(info.type, 5, cols, 19, 3);
        const Packed packed = c.pack(*k, 2);
        const std::vector<float> one = run_by(c, *k, packed, 1), all = run_by(c, *k, packed, 19);
        for (const int64_t n : {2, 3, 4}) CHECK(run_by(c, *k, packed, n) == one);
        CHECK(run_by(c, *k, packed, 10) == all);
        CHECK(distance(all, one) < 1e-6);
      }
    }
  }
}

TEST(cpu_kernels_follow_index_lists) {
  for (const Kernels* k : available_kernels()) {
    const Case c(WeightType::kIQ3_S, 6, 512, 9, 5);
    const Packed packed = c.pack(*k, 3);
    const std::vector<float> all = run_by(c, *k, packed, 1);
    const std::vector<int32_t> in{8, 1, 1, 4}, out{2, 0, 3, 1};
    std::vector<float> y(4 * 6);
    k->of(c.type).rows({.w = c.w.data(), .row_bytes = static_cast<uint64_t>(c.row_bytes()),
                        .n_rows = 6, .x = &packed, .tokens = 4, .y = y.data(), .y_stride = 6,
                        .in = in.data(), .out = out.data()});
    for (size_t i = 0; i < 4; ++i) {
      for (size_t r = 0; r < 6; ++r) {
        CHECK_EQUAL(y[static_cast<size_t>(out[i]) * 6 + r], all[static_cast<size_t>(in[i]) * 6 + r]);
      }
    }
  }
}

TEST(cpu_kernels_take_zeros_tiny_and_huge_activations) {
  for (const Kernels* k : available_kernels()) {
    Case c(WeightType::kQ8_0, 3, 256, 4, 9);
    for (int64_t i = 0; i < 256; ++i) {
      c.x[static_cast<size_t>(i)] = 0;
      c.x[static_cast<size_t>(256 + i)] *= 1e-38f;
      c.x[static_cast<size_t>(512 + i)] *= 1e30f;
    }
    const std::vector<float> y = c.run(*k, c.pack(*k, 3), 0, 4);
    for (size_t r = 0; r < 3; ++r) {
      CHECK_EQUAL(y[r], 0.0f);
      CHECK(std::fabs(y[3 + r]) < 1e-30f);
      CHECK(std::isfinite(y[6 + r]) && std::fabs(y[6 + r]) > 1e20f);
    }
  }
}
