// SPDX-License-Identifier: MIT
//
// The weight types of GGUF files: ids, elements and bytes per block.
// Read by the host and, later, by the kernels: plain numbers only.
// Source of the numbers: the GGUF format as published by the ggml project (SPEC 9.3).
#pragma once

#include <cstdint>

namespace esker {

// The enumerator's value is the type id that stands in the file.
enum class WeightType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ2_0 = 42,
};

struct WeightTypeInfo {
  WeightType type;
  const char* name;         // as the community writes it: "IQ4_XS"
  uint32_t block_elements;  // weights in a block
  uint32_t block_bytes;     // bytes of a block
};

inline constexpr WeightTypeInfo kWeightTypes[] = {
    {WeightType::kF32, "F32", 1, 4},           {WeightType::kF16, "F16", 1, 2},
    {WeightType::kQ4_0, "Q4_0", 32, 18},       {WeightType::kQ4_1, "Q4_1", 32, 20},
    {WeightType::kQ5_0, "Q5_0", 32, 22},       {WeightType::kQ5_1, "Q5_1", 32, 24},
    {WeightType::kQ8_0, "Q8_0", 32, 34},       {WeightType::kQ2_K, "Q2_K", 256, 84},
    {WeightType::kQ3_K, "Q3_K", 256, 110},     {WeightType::kQ4_K, "Q4_K", 256, 144},
    {WeightType::kQ5_K, "Q5_K", 256, 176},     {WeightType::kQ6_K, "Q6_K", 256, 210},
    {WeightType::kIQ2_XXS, "IQ2_XXS", 256, 66}, {WeightType::kIQ2_XS, "IQ2_XS", 256, 74},
    {WeightType::kIQ3_XXS, "IQ3_XXS", 256, 98}, {WeightType::kIQ1_S, "IQ1_S", 256, 50},
    {WeightType::kIQ4_NL, "IQ4_NL", 32, 18},   {WeightType::kIQ3_S, "IQ3_S", 256, 110},
    {WeightType::kIQ2_S, "IQ2_S", 256, 82},    {WeightType::kIQ4_XS, "IQ4_XS", 256, 136},
    {WeightType::kIQ1_M, "IQ1_M", 256, 56},    {WeightType::kBF16, "BF16", 1, 2},
    {WeightType::kTQ1_0, "TQ1_0", 256, 54},    {WeightType::kTQ2_0, "TQ2_0", 256, 66},
    {WeightType::kMXFP4, "MXFP4", 32, 17},     {WeightType::kNVFP4, "NVFP4", 64, 36},
    {WeightType::kQ2_0, "Q2_0", 64, 18},
};

// The type with this id, or null when the id is not one we decode.
constexpr const WeightTypeInfo* find_weight_type(uint32_t id) {
  for (const WeightTypeInfo& t : kWeightTypes) {
    if (static_cast<uint32_t>(t.type) == id) return &t;
  }
  return nullptr;
}

constexpr const WeightTypeInfo& weight_type_info(WeightType type) {
  return *find_weight_type(static_cast<uint32_t>(type));
}

// Bytes of n weights of a type; n is a multiple of block_elements.
constexpr uint64_t weight_bytes(WeightType type, uint64_t n) {
  const WeightTypeInfo& t = weight_type_info(type);
  return n / t.block_elements * t.block_bytes;
}

}  // namespace esker
