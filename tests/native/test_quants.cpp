// SPDX-License-Identifier: MIT
//
// The scalar decoders against blocks worked out by hand, and their behaviour over many blocks.
// Every bit of every type against the gguf package: tests/test_quants.py.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "formats/codebooks.inc"
#include "formats/quants.h"

namespace {

using esker::weight_decoder;
using esker::WeightType;
using esker::WeightTypeInfo;

// Halves used below, low byte first: 1, 0.5, -2, 0.25.
constexpr uint8_t kOne[2] = {0x00, 0x3c};
constexpr uint8_t kHalf[2] = {0x00, 0x38};
constexpr uint8_t kMinusTwo[2] = {0x00, 0xc0};
constexpr uint8_t kQuarter[2] = {0x00, 0x34};

// A zeroed block with bytes put where they belong.
class Block {
 public:
  explicit Block(WeightType type)
      : type_(type), bytes_(esker::weight_type_info(type).block_bytes) {}

  Block& put(size_t at, std::initializer_list<int> values) {
    for (int v : values) bytes_.at(at++) = static_cast<uint8_t>(v);
    return *this;
  }
  Block& put(size_t at, const uint8_t (&half)[2]) { return put(at, {half[0], half[1]}); }
  Block& fill(size_t at, size_t n, int value) {
    for (size_t i = 0; i < n; ++i) bytes_.at(at + i) = static_cast<uint8_t>(value);
    return *this;
  }
  std::vector<float> decode() const {
    std::vector<float> weights(esker::weight_type_info(type_).block_elements);
    weight_decoder(type_)(bytes_.data(), weights.data(), static_cast<int64_t>(weights.size()));
    return weights;
  }

 private:
  WeightType type_;
  std::vector<uint8_t> bytes_;
};

std::vector<uint8_t> random_bytes(size_t n) {
  std::vector<uint8_t> bytes(n);
  uint32_t x = 2463534242u;
  for (uint8_t& b : bytes) {
    x = x * 1664525u + 1013904223u;
    b = static_cast<uint8_t>(x >> 24);
  }
  return bytes;
}

bool same_bits(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

// The value of a half by the definition, without bit tricks.
float half_by_the_book(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  float x = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                          : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  if (exponent == 31) x = std::numeric_limits<float>::infinity();
  return h >> 15 != 0 ? -x : x;
}

}  // namespace

TEST(quants_many_blocks_at_once_are_the_blocks_one_by_one) {
  constexpr size_t kBlocks = 7;
  for (const WeightTypeInfo& info : esker::kWeightTypes) {
    const size_t n = kBlocks * info.block_elements;
    const std::vector<uint8_t> bytes = random_bytes(kBlocks * info.block_bytes);
    std::vector<float> all(n), single(n);
    weight_decoder(info.type)(bytes.data(), all.data(), static_cast<int64_t>(n));
    for (size_t i = 0; i < kBlocks; ++i) {
      weight_decoder(info.type)(bytes.data() + i * info.block_bytes,
                                single.data() + i * info.block_elements, info.block_elements);
    }
    CHECK(same_bits(all.data(), single.data(), n));
  }
}

TEST(quants_blocks_may_stand_at_any_address) {
  for (const WeightTypeInfo& info : esker::kWeightTypes) {
    const size_t n = 3 * info.block_elements;
    const std::vector<uint8_t> bytes = random_bytes(3 * info.block_bytes);
    std::vector<float> expected(n), got(n);
    weight_decoder(info.type)(bytes.data(), expected.data(), static_cast<int64_t>(n));
    for (size_t shift : {1, 2, 3, 5}) {
      std::vector<uint8_t> moved(shift);
      moved.insert(moved.end(), bytes.begin(), bytes.end());
      weight_decoder(info.type)(moved.data() + shift, got.data(), static_cast<int64_t>(n));
      CHECK(same_bits(expected.data(), got.data(), n));
    }
  }
}

TEST(quants_nothing_is_written_behind_the_last_block) {
  for (const WeightTypeInfo& info : esker::kWeightTypes) {
    const std::vector<uint8_t> bytes(info.block_bytes);
    std::vector<float> to(info.block_elements + 1, 7.0f);
    weight_decoder(info.type)(bytes.data(), to.data(), 0);
    for (float x : to) CHECK_EQUAL(x, 7.0f);
    weight_decoder(info.type)(bytes.data(), to.data(), info.block_elements);
    CHECK_EQUAL(to[info.block_elements], 7.0f);
  }
}

TEST(quants_unknown_type_is_an_error) {
  CHECK_EQUAL(MESSAGE_OF(esker::Error, weight_decoder(static_cast<WeightType>(41))),
              "[formats] no decoder for this weight type: got type id 41, "
              "want an id of abi/weight_types.h");
}

TEST(quants_f16_every_half) {
  std::vector<uint8_t> bytes(2 * 65536);
  std::vector<float> got(65536);
  for (size_t h = 0; h < 65536; ++h) {
    bytes[2 * h] = static_cast<uint8_t>(h);
    bytes[2 * h + 1] = static_cast<uint8_t>(h >> 8);
  }
  weight_decoder(WeightType::kF16)(bytes.data(), got.data(), 65536);
  for (size_t h = 0; h < 65536; ++h) {
    const bool is_nan = (h >> 10 & 31) == 31 && (h & 1023) != 0;
    CHECK_EQUAL(std::isnan(got[h]), is_nan);
    if (is_nan) continue;
    const float expected = half_by_the_book(static_cast<uint16_t>(h));
    CHECK_EQUAL(std::bit_cast<uint32_t>(got[h]), std::bit_cast<uint32_t>(expected));
  }
}

TEST(quants_q4_0_and_q4_1_by_hand) {
  // Byte 0 is value 0 (low nibble) and 16 (high nibble).
  const std::vector<float> a =
      Block(WeightType::kQ4_0).put(0, kMinusTwo).put(2, {0xf0, 0x87}).decode();
  CHECK_EQUAL(a[0], 16.0f);
  CHECK_EQUAL(a[16], -14.0f);
  CHECK_EQUAL(a[1], 2.0f);
  CHECK_EQUAL(a[17], 0.0f);
  CHECK(std::signbit(a[17]));  // -2 times 0
  const std::vector<float> b =
      Block(WeightType::kQ4_1).put(0, kHalf).put(2, kMinusTwo).put(4, {0xf1}).decode();
  CHECK_EQUAL(b[0], -1.5f);
  CHECK_EQUAL(b[16], 5.5f);
  CHECK_EQUAL(b[31], -2.0f);
}

TEST(quants_q5_0_by_hand) {
  // Fifth bits of values 1 and 31.
  const std::vector<float> x =
      Block(WeightType::kQ5_0).put(0, kHalf).put(2, {2, 0, 0, 0x80}).put(6, {3, 4}).decode();
  CHECK_EQUAL(x[0], -6.5f);
  CHECK_EQUAL(x[1], 2.0f);
  CHECK_EQUAL(x[31], 0.0f);
  CHECK_EQUAL(x[30], -8.0f);
}

TEST(quants_q8_0_and_q2_0_by_hand) {
  const std::vector<float> a =
      Block(WeightType::kQ8_0).put(0, kQuarter).put(2, {0x80, 0x7f}).put(33, {0xff}).decode();
  CHECK_EQUAL(a[0], -32.0f);
  CHECK_EQUAL(a[1], 31.75f);
  CHECK_EQUAL(a[31], -0.25f);
  // 0b11'10'01'00: the lowest bits come first.
  const std::vector<float> b =
      Block(WeightType::kQ2_0).put(0, kHalf).put(2, {0xe4}).put(17, {0x40}).decode();
  const float expected[5] = {-0.5f, 0.0f, 0.5f, 1.0f, -0.5f};
  for (size_t i = 0; i < 5; ++i) CHECK_EQUAL(b[i], expected[i]);
  CHECK_EQUAL(b[62], -0.5f);
  CHECK_EQUAL(b[63], 0.0f);
}

TEST(quants_q4_k_by_hand) {
  // Sub-block 0: scale 63, minimum 1. Sub-block 5: scale 0x2f (low 15, high 2), minimum 0x13.
  const std::vector<float> x = Block(WeightType::kQ4_K)
                                   .put(0, kHalf)
                                   .put(2, kOne)
                                   .put(4, {63, 0x80, 0, 0, 1, 0x40, 0, 0, 0, 0x3f})
                                   .put(16, {0x0f})
                                   .fill(16 + 64, 32, 0x90)
                                   .decode();
  CHECK_EQUAL(x[0], 31.5f * 15 - 1);
  CHECK_EQUAL(x[1], -1.0f);
  CHECK_EQUAL(x[160], 23.5f * 9 - 0x13);
  CHECK_EQUAL(x[191], 23.5f * 9 - 0x13);
  CHECK_EQUAL(x[192], 0.0f);
}

TEST(quants_q6_k_by_hand) {
  // Value 100 = quarter 3 of the first half, l = 4: high nibble of byte 36, bits 6..7 of byte 132.
  const std::vector<float> x = Block(WeightType::kQ6_K)
                                   .put(36, {0x50})
                                   .put(132, {0x80})
                                   .put(192 + 6, {0xfd})
                                   .put(208, kHalf)
                                   .decode();
  CHECK_EQUAL(x[100], -1.5f * (0x25 - 32));
  CHECK_EQUAL(x[101], -1.5f * -32);
  CHECK_EQUAL(x[112], 0.0f);
}

TEST(quants_iq4_by_hand) {
  const std::vector<float> a =
      Block(WeightType::kIQ4_NL).put(0, kHalf).put(2, {0xf0, 0x78}).decode();
  CHECK_EQUAL(a[0], -63.5f);
  CHECK_EQUAL(a[16], 56.5f);
  CHECK_EQUAL(a[1], 0.5f);
  CHECK_EQUAL(a[17], -5.0f);
  // Sub-block 3: scale nibble 5 (high half of byte 5), two more bits 2: 37 - 32 = 5.
  const std::vector<float> b = Block(WeightType::kIQ4_XS)
                                   .put(0, kOne)
                                   .put(2, {2 << 6, 0})
                                   .put(5, {0x50})
                                   .put(8 + 48, {0x0f})
                                   .decode();
  CHECK_EQUAL(b[96], 565.0f);
  CHECK_EQUAL(b[97], -635.0f);
  CHECK_EQUAL(b[0], -127.0f * -32);
}

TEST(quants_iq2_and_iq3_by_hand) {
  // Signs 0x01 become 0x81 (an even number of ones): values 0 and 7 of eight are negative.
  const auto& row = esker::codebooks::kGridIq2Xs[300];
  const std::vector<float> a = Block(WeightType::kIQ2_XS)
                                   .put(0, kOne)
                                   .put(2 + 2 * 5, {300 & 255, 300 >> 8 | 1 << 1})
                                   .put(66 + 1, {0x07})
                                   .decode();
  for (size_t j = 0; j < 8; ++j) {
    const float sign = j == 0 || j == 7 ? -1.0f : 1.0f;
    CHECK_EQUAL(a[40 + j], sign * 7.5f * 0.25f * static_cast<float>(row[j]));
  }
  // Entry 9 of IQ3_S with its ninth index bit; its sign byte is shared with entry 8.
  const auto& last = esker::codebooks::kGridIq3S[0x1ff];
  const std::vector<float> b = Block(WeightType::kIQ3_S)
                                   .put(0, kHalf)
                                   .put(2 + 9, {0xff})
                                   .put(66 + 1, {1 << 1})
                                   .put(74 + 4, {0xa0})
                                   .put(106, {0x30})
                                   .decode();
  for (size_t j = 0; j < 4; ++j) {
    const float sign = j % 2 == 1 ? -1.0f : 1.0f;
    CHECK_EQUAL(b[36 + j], sign * 3.5f * static_cast<float>(last[j]));
  }
}

TEST(quants_iq1_m_gathers_its_scale) {
  // d = 1.0 = 0x3c00: nibbles 0, 0, 0xc, 0x3 in the top of the four words.
  const auto& row = esker::codebooks::kGridIq1[0x5ab];
  const std::vector<float> x = Block(WeightType::kIQ1_M)
                                   .put(1, {0xab})
                                   .put(32, {0xd0})
                                   .put(48, {2, 0x00, 0, 0x00, 0, 0xc0, 0, 0x30})
                                   .decode();
  for (size_t j = 0; j < 8; ++j) {
    CHECK_EQUAL(x[8 + j], 5.0f * (static_cast<float>(row[j]) - 0.125f));
  }
}

TEST(quants_small_floats_by_hand) {
  // 2^(127-128) times the doubled 4-bit floats.
  const std::vector<float> a =
      Block(WeightType::kMXFP4).put(0, {127}).put(1, {0x71, 0xf8}).decode();
  CHECK_EQUAL(a[0], 0.5f);
  CHECK_EQUAL(a[16], 6.0f);
  CHECK_EQUAL(a[1], 0.0f);
  CHECK(!std::signbit(a[1]));
  CHECK_EQUAL(a[17], -6.0f);
  CHECK_EQUAL(Block(WeightType::kMXFP4).put(1, {0x01}).decode()[0], std::ldexp(1.0f, -128));
  // Scales 1.5 (0x3c), the smallest (2^-9), the largest (448), and the NaN that counts as 0.
  const std::vector<float> b = Block(WeightType::kNVFP4)
                                   .put(0, {0x3c, 0x01, 0x7e, 0x7f})
                                   .fill(4, 32, 0x72)
                                   .decode();
  const float low[4] = {1.5f, std::ldexp(1.0f, -9), 448.0f, 0.0f};
  for (size_t i = 0; i < 4; ++i) {
    CHECK_EQUAL(b[16 * i], low[i]);
    CHECK_EQUAL(b[16 * i + 8], 6.0f * low[i]);
  }
}

TEST(quants_ternary_by_hand) {
  // 0.(2 1 0 2 1) in base 3, as a fraction of 256 rounded up: ceil(196 * 256 / 243) = 207.
  const std::vector<float> x =
      Block(WeightType::kTQ1_0).put(3, {207}).put(52, kHalf).decode();
  const float digits[5] = {0.5f, 0.0f, -0.5f, 0.5f, 0.0f};
  for (size_t k = 0; k < 5; ++k) CHECK_EQUAL(x[32 * k + 3], digits[k]);
  CHECK_EQUAL(x[255], -0.5f);
}
