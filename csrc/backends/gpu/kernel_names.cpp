// SPDX-License-Identifier: MIT
#include "backends/gpu/kernel_names.h"

namespace esker::gpu {

std::string kernel_name(const char* base, WeightType type, uint32_t rows, bool threadgroup_table) {
  std::string name = std::string(base) + "_" + weight_type_info(type).name;
  if (rows != 0) name += "_r" + std::to_string(rows);
  if (threadgroup_table) name += "_tg";
  return name;
}

bool has_threadgroup_table(std::string_view base, WeightType type) {
  switch (type) {
    case WeightType::kIQ4_NL: case WeightType::kIQ4_XS: return base == "matvec";
    case WeightType::kIQ1_S: case WeightType::kIQ1_M: case WeightType::kIQ2_XXS: case WeightType::kIQ2_XS:
    case WeightType::kIQ2_S: case WeightType::kIQ3_XXS: case WeightType::kIQ3_S: return true;
    default: return false;
  }
}

std::vector<std::string> all_kernel_names() {
  std::vector<std::string> names = {
      "stream_norm", "mix_read", "mix_write", "swiglu", "moe_combine", "ple_gate", "ple_conv",
      "gdn_conv", "gdn_gates", "gdn_norm", "delta_step", "delta_prepare", "delta_chunk", "attn_prepare",
      "index_prepare", "block_scores", "block_select", "attention", "attention_part",
      "attention_join", "route", "plan_count",
      "plan_scan", "plan_scatter", "expert_combine", "logits_top"};
  for (const WeightTypeInfo& t : kWeightTypes) {
    for (const char* base : {"embed", "mix_up_read", "matmat", "expert_gate_up_mm", "expert_down_mm"}) {
      names.push_back(kernel_name(base, t.type));
    }
    for (const char* base : {"matvec", "expert_gate_up", "expert_down"}) {
      for (const uint32_t rows : {1u, 2u, 4u}) {
        names.push_back(kernel_name(base, t.type, rows));
        if (has_threadgroup_table(base, t.type)) names.push_back(kernel_name(base, t.type, rows, true));
      }
    }
  }
  return names;
}

}  // namespace esker::gpu
