// SPDX-License-Identifier: MIT
//
// Groups the weights of the window's ops into the rows of the table. A row is a call where its
// tensors are computed in one go: an expert's gate and up, a mixer's down, up and inject.
#include "graph/traffic.h"

#include <algorithm>

#include "base/units.h"

namespace esker {
namespace {

enum class Group : uint8_t {
  kQkv, kExpertsIn, kMixers, kOutput, kGdnGate, kGdnOut, kExpertsOut, kQ, kRouter, kReadAhead,
  kAttnOut, kShared, kPle, kNarrow, kSharedRouter, kVectors, kEmbedding, kNgramRows, kCount,
};

struct GroupSpec {
  Group group;
  TrafficKind kind;
  const char* role;
};

constexpr GroupSpec kGroups[] = {
    {Group::kQkv, TrafficKind::kMatrix, "attn_qkv"},
    {Group::kExpertsIn, TrafficKind::kMatrix, "moe gate+up"},
    {Group::kMixers, TrafficKind::kMatrix, "mixers"},
    {Group::kOutput, TrafficKind::kMatrix, "output"},
    {Group::kGdnGate, TrafficKind::kMatrix, "attn_gate"},
    {Group::kGdnOut, TrafficKind::kMatrix, "ssm_out"},
    {Group::kExpertsOut, TrafficKind::kMatrix, "moe down"},
    {Group::kQ, TrafficKind::kMatrix, "attn_q"},
    {Group::kRouter, TrafficKind::kMatrix, "router"},
    {Group::kReadAhead, TrafficKind::kReadAhead, "read-ahead routers"},
    {Group::kAttnOut, TrafficKind::kMatrix, "attn_output"},
    {Group::kShared, TrafficKind::kMatrix, "shared expert"},
    {Group::kPle, TrafficKind::kMatrix, "ple key+value"},
    {Group::kNarrow, TrafficKind::kMatrix, "indexer/k/v/alpha/beta"},
    {Group::kSharedRouter, TrafficKind::kMatrix, "shared router"},
    {Group::kVectors, TrafficKind::kSmall, "norms, convolutions, decays"},
    {Group::kEmbedding, TrafficKind::kSmall, "embedding row"},
    {Group::kNgramRows, TrafficKind::kSmall, "n-gram rows"},
};
static_assert(std::size(kGroups) == static_cast<size_t>(Group::kCount));

constexpr bool groups_in_order() {
  for (size_t i = 0; i < std::size(kGroups); ++i) {
    if (static_cast<size_t>(kGroups[i].group) != i) return false;
  }
  return true;
}
static_assert(groups_in_order(), "row() indexes the rows by group");

// Of a matrix product's weight.
Group group_of(Role role) {
  switch (role) {
    case Role::kQkv: return Group::kQkv;
    case Role::kOutput: return Group::kOutput;
    case Role::kOutputHcDown: case Role::kOutputHcUp:
    case Role::kHcAttnDown: case Role::kHcAttnUp: case Role::kHcAttnInject:
    case Role::kHcFfnDown: case Role::kHcFfnUp: case Role::kHcFfnInject: return Group::kMixers;
    case Role::kGdnGate: return Group::kGdnGate;
    case Role::kGdnOut: return Group::kGdnOut;
    case Role::kQ: return Group::kQ;
    case Role::kRouter: return Group::kRouter;
    case Role::kAttnOut: return Group::kAttnOut;
    case Role::kSharedGate: case Role::kSharedUp: case Role::kSharedDown: return Group::kShared;
    case Role::kPleKey: case Role::kPleValue: return Group::kPle;
    case Role::kSharedRouter: return Group::kSharedRouter;
    default: return Group::kNarrow;
  }
}

// A mixer is one call, though it has three matrices.
bool is_call(Role role) {
  switch (role) {
    case Role::kOutputHcUp: case Role::kHcAttnUp: case Role::kHcAttnInject: case Role::kHcFfnUp:
    case Role::kHcFfnInject: return false;
    default: return true;
  }
}

template <class T>
void add_once(std::vector<T>& list, const T& item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

class Counter {
 public:
  Counter(const Config& config, const Weights& weights) : c_(config), weights_(weights) {
    for (const GroupSpec& spec : kGroups) {
      TrafficRow& row = traffic_.rows.emplace_back();
      row.role = spec.role;
      row.kind = spec.kind;
    }
  }

  Traffic count() {
    for (const Op& op : build_graph(c_, GraphMode::kWindow).ops) count_op(op);
    count_read_ahead();
    if (c_.has_ple()) {
      const TableLayout& table = weights_.table();
      TrafficRow& row = row_of(Group::kNgramRows);
      row.calls = c_.n_ple_head();  // looked up once, however many layers use them
      row.bytes = row.calls * table.row_bytes;
      row.types[weight_type_info(table.type).name] += 1;
      row.tensors = {"per_layer_token_embd.weight"};
      row.shapes = {{c_.d_ple_row, table.rows}};
    }
    std::erase_if(traffic_.rows, [](const TrafficRow& row) { return row.calls == 0; });
    return std::move(traffic_);
  }

 private:
  TrafficRow& row_of(Group group) { return traffic_.rows[static_cast<size_t>(group)]; }

  const Weight& weight(const WeightRef& ref) const {
    return ref.layer < 0 ? weights_.global(ref.role)
                         : weights_.layer(static_cast<uint32_t>(ref.layer), ref.role);
  }

  void add(Group group, const std::string& tensor, WeightType type, uint64_t n_in, uint64_t n_out,
           uint64_t calls, uint64_t bytes) {
    TrafficRow& row = row_of(group);
    row.calls += calls;
    row.bytes += bytes;
    row.types[weight_type_info(type).name] += 1;
    add_once(row.tensors, tensor);
    add_once(row.shapes, {n_in, n_out});
  }

  void count_op(const Op& op) {
    if (op.kind == OpKind::kExperts) count_experts(static_cast<uint32_t>(op.layer));
    for (const WeightRef& ref : op.w) {
      if (ref.role == Role::kCount) continue;
      const Weight& w = weight(ref);
      if (op.kind == OpKind::kEmbed) {
        add(Group::kEmbedding, role_name(ref.role), w.type, w.cols, w.rows, 1, w.row_bytes());
      } else if (op.kind == OpKind::kMatmul) {
        add(group_of(ref.role), role_name(ref.role), w.type, w.cols, w.rows,
            is_call(ref.role) ? 1 : 0, w.bytes);
      } else {
        add(Group::kVectors, role_name(ref.role), w.type, w.cols, w.rows, 1, w.bytes);
      }
    }
  }

  // Of the experts that a token uses, whichever they are: all of a layer have one size.
  void count_experts(uint32_t layer) {
    const ExpertLayout& e = weights_.experts(layer);
    const uint64_t used = c_.n_expert_used, weights = uint64_t{c_.d_model} * c_.d_expert;
    const uint64_t gate = used * weight_bytes(e.gate_type, weights);
    const uint64_t up = used * weight_bytes(e.up_type, weights);
    const bool fused = e.pieces.size() == 2;
    const char* first = fused ? "ffn_gate_up_exps.weight" : "ffn_gate_exps.weight";
    add(Group::kExpertsIn, first, e.gate_type, c_.d_model, c_.d_expert, used, gate + up);
    if (!fused) {
      add_once<std::string>(row_of(Group::kExpertsIn).tensors, "ffn_up_exps.weight");
      // Gate and up count as one tensor unless they differ.
      if (e.up_type != e.gate_type) {
        row_of(Group::kExpertsIn).types[weight_type_info(e.up_type).name] += 1;
      }
    }
    add(Group::kExpertsOut, "ffn_down_exps.weight", e.down_type, c_.d_expert, c_.d_model, used,
        used * weight_bytes(e.down_type, weights));
  }

  void count_read_ahead() {
    constexpr WeightTypeInfo kCopy = weight_type_info(WeightType::kQ8_0);
    const uint64_t row_bytes = div_ceil(c_.d_model, kCopy.block_elements) * kCopy.block_bytes;
    for (uint32_t ahead = 1; ahead <= kReadAheadLayers; ++ahead) {
      for (uint32_t layer = ahead; layer < c_.n_layer; ++layer) {
        add(Group::kReadAhead, role_name(Role::kRouter), kCopy.type, c_.d_model, c_.n_expert, 1,
            row_bytes * c_.n_expert);
      }
    }
  }

  const Config& c_;
  const Weights& weights_;
  Traffic traffic_;
};

}  // namespace

const char* traffic_kind_name(TrafficKind kind) {
  switch (kind) {
    case TrafficKind::kMatrix: return "matrix";
    case TrafficKind::kReadAhead: return "read_ahead";
    case TrafficKind::kSmall: break;
  }
  return "small";
}

uint64_t Traffic::bytes(TrafficKind kind) const {
  uint64_t sum = 0;
  for (const TrafficRow& row : rows) sum += row.kind == kind ? row.bytes : 0;
  return sum;
}

Traffic decode_traffic(const Config& config, const Weights& weights) {
  return Counter(config, weights).count();
}

}  // namespace esker
