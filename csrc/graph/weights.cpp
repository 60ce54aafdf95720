// SPDX-License-Identifier: MIT
//
// Finds a model's tensors by role: the names and shapes of SPEC 9.2 stand here and nowhere else.
// Invariant: what a Weight points at lies inside its mapping, has the shape that the config
// demands, a type that we can decode, and rows of whole blocks at an address fit for its type.
// (It points at nothing when only the header was opened; the rest holds all the same.)
#include "graph/weights.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "formats/quantize.h"
#include "formats/quants.h"

namespace esker {
namespace {

constexpr const char* kComponent = "weights";
constexpr const char* kTableName = "per_layer_token_embd.weight";
constexpr const char* kConvertAgain = "convert the model again with a current converter";

// Which layers have a role's tensor.
enum class Scope { kGlobal, kEvery, kLinear, kFull, kIndexed, kPle, kMade };

struct RoleSpec {
  Role role;
  Scope scope;
  const char* name;
};

constexpr RoleSpec kRoles[] = {
    {Role::kTokenEmbd, Scope::kGlobal, "token_embd.weight"},
    {Role::kOutput, Scope::kGlobal, "output.weight"},
    {Role::kOutputHcNorm, Scope::kGlobal, "output_hc_norm.weight"},
    {Role::kOutputHcDown, Scope::kGlobal, "output_hc_down.weight"},
    {Role::kOutputHcUp, Scope::kGlobal, "output_hc_up.weight"},
    {Role::kHcAttnNorm, Scope::kEvery, "hc_attn_norm.weight"},
    {Role::kHcAttnDown, Scope::kEvery, "hc_attn_down.weight"},
    {Role::kHcAttnUp, Scope::kEvery, "hc_attn_up.weight"},
    {Role::kHcAttnInject, Scope::kEvery, "hc_attn_inject.weight"},
    {Role::kHcFfnNorm, Scope::kEvery, "hc_ffn_norm.weight"},
    {Role::kHcFfnDown, Scope::kEvery, "hc_ffn_down.weight"},
    {Role::kHcFfnUp, Scope::kEvery, "hc_ffn_up.weight"},
    {Role::kHcFfnInject, Scope::kEvery, "hc_ffn_inject.weight"},
    {Role::kRouter, Scope::kEvery, "ffn_gate_inp.weight"},
    {Role::kSharedRouter, Scope::kEvery, "ffn_gate_inp_shexp.weight"},
    {Role::kSharedGate, Scope::kEvery, "ffn_gate_shexp.weight"},
    {Role::kSharedUp, Scope::kEvery, "ffn_up_shexp.weight"},
    {Role::kSharedDown, Scope::kEvery, "ffn_down_shexp.weight"},
    {Role::kQkv, Scope::kLinear, "attn_qkv.weight"},
    {Role::kGdnGate, Scope::kLinear, "attn_gate.weight"},
    {Role::kAlpha, Scope::kLinear, "ssm_alpha.weight"},
    {Role::kBeta, Scope::kLinear, "ssm_beta.weight"},
    {Role::kDecay, Scope::kLinear, "ssm_a"},
    {Role::kDtBias, Scope::kLinear, "ssm_dt.bias"},
    {Role::kConv, Scope::kLinear, "ssm_conv1d.weight"},
    {Role::kGdnNorm, Scope::kLinear, "ssm_norm.weight"},
    {Role::kGdnOut, Scope::kLinear, "ssm_out.weight"},
    {Role::kQ, Scope::kFull, "attn_q.weight"},
    {Role::kK, Scope::kFull, "attn_k.weight"},
    {Role::kV, Scope::kFull, "attn_v.weight"},
    {Role::kAttnOut, Scope::kFull, "attn_output.weight"},
    {Role::kQNorm, Scope::kFull, "attn_q_norm.weight"},
    {Role::kKNorm, Scope::kFull, "attn_k_norm.weight"},
    {Role::kIndexQ, Scope::kIndexed, "indexer.q_proj.weight"},
    {Role::kIndexK, Scope::kIndexed, "indexer.k_proj.weight"},
    {Role::kIndexQNorm, Scope::kIndexed, "indexer.q_norm.weight"},
    {Role::kIndexKNorm, Scope::kIndexed, "indexer.k_norm.weight"},
    {Role::kPleKey, Scope::kPle, "ple_key.weight"},
    {Role::kPleValue, Scope::kPle, "ple_value.weight"},
    {Role::kPleNormKey, Scope::kPle, "ple_norm_key.weight"},
    {Role::kPleNormQuery, Scope::kPle, "ple_norm_query.weight"},
    {Role::kPleNormConv, Scope::kPle, "ple_norm_conv.weight"},
    {Role::kPleConv, Scope::kPle, "ple_conv1d.weight"},
    {Role::kRouterAhead, Scope::kMade, "ffn_gate_inp.weight, copy"},
};
static_assert(std::size(kRoles) == static_cast<size_t>(Role::kCount));

constexpr bool roles_in_order() {
  for (size_t i = 0; i < std::size(kRoles); ++i) {
    if (static_cast<size_t>(kRoles[i].role) != i) return false;
  }
  return true;
}
static_assert(roles_in_order(), "role_name() indexes the table by role");

// rows 1 stands for a vector; the product rows * cols has been bounded by read_config.
struct Shape {
  uint64_t rows;
  uint64_t cols;
};

Shape shape_of(Role role, const Config& c) {
  const uint64_t d = c.d_model, streams = uint64_t{c.n_stream} * c.d_model, q = c.low_rank;
  switch (role) {
    case Role::kTokenEmbd: case Role::kOutput: return {c.n_vocab, d};
    case Role::kOutputHcNorm: case Role::kHcAttnNorm: case Role::kHcFfnNorm:
    case Role::kPleNormKey: case Role::kPleNormQuery: case Role::kPleNormConv:
      return {1, streams};
    case Role::kOutputHcDown: case Role::kHcAttnDown: case Role::kHcFfnDown: return {q, streams};
    case Role::kOutputHcUp: case Role::kHcAttnUp: case Role::kHcFfnUp: return {streams, q};
    case Role::kHcAttnInject: case Role::kHcFfnInject: return {c.n_stream, streams};
    case Role::kRouter: case Role::kRouterAhead: return {c.n_expert, d};
    case Role::kSharedRouter: return {1, d};
    case Role::kSharedGate: case Role::kSharedUp: return {c.d_shared, d};
    case Role::kSharedDown: return {d, c.d_shared};
    case Role::kQkv: return {c.qkv_width(), d};
    case Role::kGdnGate: return {c.value_width(), d};
    case Role::kAlpha: case Role::kBeta: return {c.n_value_head, d};
    case Role::kDecay: case Role::kDtBias: return {1, c.n_value_head};
    case Role::kConv: return {c.qkv_width(), c.conv_kernel};
    case Role::kGdnNorm: return {1, c.d_linear_head};
    case Role::kGdnOut: return {d, c.value_width()};
    case Role::kQ: return {2 * uint64_t{c.n_head} * c.d_head, d};
    case Role::kK: case Role::kV: return {uint64_t{c.n_kv_head} * c.d_head, d};
    case Role::kAttnOut: return {d, uint64_t{c.n_head} * c.d_head};
    case Role::kQNorm: case Role::kKNorm: return {1, c.d_head};
    case Role::kIndexQ: return {uint64_t{c.n_index_head} * c.d_index, d};
    case Role::kIndexK: return {c.d_index, d};
    case Role::kIndexQNorm: case Role::kIndexKNorm: return {1, c.d_index};
    case Role::kPleKey: return {streams, d};
    case Role::kPleValue: return {d, d};
    case Role::kPleConv: return {streams, c.ple_conv_kernel};
    case Role::kCount: break;
  }
  return {0, 0};
}

bool has_role(Scope scope, const Config& c, uint32_t layer) {
  switch (scope) {
    case Scope::kGlobal: case Scope::kMade: return false;
    case Scope::kEvery: return true;
    case Scope::kLinear: return c.is_linear[layer] != 0;
    case Scope::kFull: return c.is_linear[layer] == 0;
    case Scope::kIndexed: return c.is_linear[layer] == 0 && c.compress_ratio[layer] > 0;
    case Scope::kPle: return c.is_ple[layer] != 0;
  }
  return false;
}

// Dimensions of 1 say nothing about where a value lies: [D, 1] and [D] are the same vector.
std::vector<uint64_t> without_ones(const std::vector<uint64_t>& dims) {
  std::vector<uint64_t> kept;
  std::copy_if(dims.begin(), dims.end(), std::back_inserter(kept),
               [](uint64_t dim) { return dim != 1; });
  return kept;
}

std::string shape_text(const std::vector<uint64_t>& dims) {
  TensorInfo tensor;
  tensor.dims = dims;
  return tensor.shape();
}

// Looks tensors up in one Gguf and remembers which of them were asked for.
class Finder {
 public:
  explicit Finder(const Gguf& gguf) : gguf_(gguf) {}

  const TensorInfo* find(const std::string& name) {
    const TensorInfo* tensor = gguf_.find_tensor(name);
    if (tensor != nullptr) used_.insert(tensor);
    return tensor;
  }

  // The tensor with these dims (fastest first) and a type that we decode; throws otherwise.
  const TensorInfo& require(const std::string& name, const std::vector<uint64_t>& dims,
                            const char* missing_hint = kConvertAgain) {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) {
      raise(ErrorKind::kFormat, kComponent,
            {"tensor " + name + " is missing", "no such tensor", shape_text(dims), gguf_.path(),
             missing_hint});
    }
    if (without_ones(tensor->dims) != without_ones(dims)) {
      fail(*tensor, "has the wrong shape", tensor->shape(), shape_text(dims), kConvertAgain);
    }
    const WeightTypeInfo* type = find_weight_type(tensor->type_id);
    if (type == nullptr) {
      fail(*tensor, "has a type that Esker cannot decode", tensor->type_name(),
           "one of the types that Esker decodes, F32 to Q2_0", "quantise it to another type");
    }
    if (dims[0] % type->block_elements != 0) {
      fail(*tensor, "has rows that are not whole blocks",
           std::string(type->name) + " rows of " + std::to_string(dims[0]),
           "a multiple of " + std::to_string(type->block_elements), "quantise it to another type");
    }
    const uint64_t alignment = address_alignment(type->type);
    if (tensor->offset % alignment != 0) {
      fail(*tensor, "is not aligned for its type", "offset " + std::to_string(tensor->offset),
           "a multiple of " + std::to_string(alignment), kConvertAgain);
    }
    return *tensor;
  }

  [[noreturn]] void fail(const TensorInfo& tensor, const char* problem, const std::string& got,
                         const std::string& want, const char* hint) const {
    raise(ErrorKind::kFormat, kComponent,
          {"tensor " + tensor.name + " " + problem, got, want,
           gguf_.files()[tensor.file]->path() + ", offset " + std::to_string(tensor.offset), hint});
  }

  // Throws if a value is NaN or infinite. Reads the whole tensor: for small ones.
  void check_finite(const TensorInfo& tensor) const {
    if (gguf_.extent() == Extent::kHeaderOnly) return;
    const WeightTypeInfo& type = *find_weight_type(tensor.type_id);
    const DecodeFn decode = weight_decoder(type.type);
    constexpr uint64_t kChunk = 4096;  // a multiple of every block's elements
    float values[kChunk];
    const uint8_t* blocks = gguf_.data(tensor);
    for (uint64_t at = 0; at < tensor.elements; at += kChunk) {
      const uint64_t count = std::min(kChunk, tensor.elements - at);
      decode(blocks + at / type.block_elements * type.block_bytes, values,
             static_cast<int64_t>(count));
      for (uint64_t i = 0; i < count; ++i) {
        if (std::isfinite(values[i])) continue;
        fail(tensor, "holds a value that is not a number",
             std::string(std::isnan(values[i]) ? "NaN" : "infinity") + " in element " +
                 std::to_string(at + i),
             "finite numbers", "the file is damaged or was converted badly: fetch it again");
      }
    }
  }

  void list_unused(std::vector<std::string>& to) const {
    for (const TensorInfo& tensor : gguf_.tensors()) {
      if (used_.count(&tensor) == 0) to.push_back(tensor.name + " (" + tensor.type_name() + ")");
    }
  }

  const Gguf& gguf() const { return gguf_; }

 private:
  // What a decoder may assume of a block's address: halves in it lie at even offsets.
  static uint64_t address_alignment(WeightType type) {
    if (type == WeightType::kF32) return 4;
    return type == WeightType::kMXFP4 ? 1 : 2;
  }

  const Gguf& gguf_;
  std::set<const TensorInfo*> used_;
};

Weight make_weight(Finder& finder, const std::string& name, Shape shape, bool scan) {
  std::vector<uint64_t> dims = {shape.cols};
  if (shape.rows > 1) dims.push_back(shape.rows);
  const TensorInfo& tensor = finder.require(name, dims);
  if (scan || shape.rows == 1) finder.check_finite(tensor);
  Weight weight;
  weight.data = finder.gguf().data(tensor);
  weight.type = static_cast<WeightType>(tensor.type_id);
  weight.rows = shape.rows;
  weight.cols = shape.cols;
  weight.bytes = tensor.bytes;
  return weight;
}

// Adds one tensor of all experts as the record's next piece; returns where it begins.
uint64_t add_piece(ExpertLayout& layout, const TensorInfo& tensor, uint64_t n_expert) {
  ExpertPiece piece;
  piece.file = tensor.file;
  piece.offset = tensor.offset;
  piece.bytes = tensor.bytes / n_expert;  // exact: an expert is a whole number of rows
  piece.record_offset = layout.record_bytes;
  layout.pieces.push_back(piece);
  layout.record_bytes += piece.bytes;
  return piece.record_offset;
}

ExpertLayout make_experts(Finder& finder, const std::string& prefix, const Config& c) {
  ExpertLayout layout;
  const uint64_t d = c.d_model, f = c.d_expert, e = c.n_expert;
  const std::string fused = prefix + "ffn_gate_up_exps.weight";
  if (finder.gguf().find_tensor(fused) != nullptr) {
    const TensorInfo& tensor = finder.require(fused, {d, 2 * f, e});
    layout.gate_type = layout.up_type = static_cast<WeightType>(tensor.type_id);
    layout.gate_offset = add_piece(layout, tensor, e);
    layout.up_offset = layout.gate_offset + layout.pieces.back().bytes / 2;  // gate rows first
  } else {
    const TensorInfo& gate = finder.require(prefix + "ffn_gate_exps.weight", {d, f, e});
    const TensorInfo& up = finder.require(prefix + "ffn_up_exps.weight", {d, f, e});
    layout.gate_type = static_cast<WeightType>(gate.type_id);
    layout.up_type = static_cast<WeightType>(up.type_id);
    layout.gate_offset = add_piece(layout, gate, e);
    layout.up_offset = add_piece(layout, up, e);
  }
  const TensorInfo& down = finder.require(prefix + "ffn_down_exps.weight", {f, d, e});
  layout.down_type = static_cast<WeightType>(down.type_id);
  layout.down_offset = add_piece(layout, down, e);
  return layout;
}

// Of a router's Q8_0 copy; 0 where it would save nothing.
uint64_t copy_bytes(const Weight& router) {
  if (router.cols % weight_type_info(WeightType::kQ8_0).block_elements != 0) return 0;
  const uint64_t bytes = router.rows * weight_bytes(WeightType::kQ8_0, router.cols);
  return bytes < router.bytes ? bytes : 0;
}

TableLayout make_table(Finder& finder, const Config& c) {
  const TensorInfo& tensor =
      finder.require(kTableName, {c.d_ple_row, c.ple_table_rows},
                     "if the n-gram table is a file of its own, name it with --ngram-table");
  TableLayout table;
  table.path = finder.gguf().files()[tensor.file]->path();
  table.offset = tensor.offset;
  table.rows = c.ple_table_rows;
  table.row_bytes = tensor.bytes / table.rows;
  table.type = static_cast<WeightType>(tensor.type_id);
  return table;
}

}  // namespace

const char* role_name(Role role) {
  const size_t index = static_cast<size_t>(role);
  return index < std::size(kRoles) ? kRoles[index].name : "";
}

Weights::Weights(std::shared_ptr<const Gguf> model, std::shared_ptr<const Gguf> table,
                 const Config& config)
    : model_(std::move(model)),
      table_gguf_(table != nullptr ? std::move(table) : model_),
      layers_(config.n_layer) {
  Finder in_model(*model_), in_table(*table_gguf_);
  const auto add = [&](RoleTable& to, const RoleSpec& spec, const std::string& prefix) {
    const bool is_conv = spec.role == Role::kConv || spec.role == Role::kPleConv;
    Weight& weight = to[static_cast<size_t>(spec.role)];
    weight = make_weight(in_model, prefix + spec.name, shape_of(spec.role, config), is_conv);
    dense_bytes_ += weight.bytes;
  };
  for (const RoleSpec& spec : kRoles) {
    if (spec.scope != Scope::kGlobal) continue;
    if (spec.role == Role::kOutput && model_->find_tensor(spec.name) == nullptr) {
      // Tied embeddings: one matrix, counted once.
      global_[static_cast<size_t>(Role::kOutput)] = global(Role::kTokenEmbd);
    } else {
      add(global_, spec, "");
    }
  }
  for (uint32_t layer = 0; layer < config.n_layer; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    for (const RoleSpec& spec : kRoles) {
      if (has_role(spec.scope, config, layer)) add(layers_[layer], spec, prefix);
    }
    experts_.push_back(make_experts(in_model, prefix, config));
  }
  if (config.has_ple()) {
    const bool own_file =
        table_gguf_ != model_ && table_gguf_->find_tensor(kTableName) != nullptr;
    table_ = make_table(own_file ? in_table : in_model, config);
  }
  in_model.list_unused(unused_);
  if (table_gguf_ != model_) in_table.list_unused(unused_);
}

Weights::Weights(Role role, std::span<const Weight> matrices) : layers_(matrices.size()) {
  for (size_t i = 0; i < matrices.size(); ++i) {
    layers_[i][static_cast<size_t>(role)] = matrices[i];
    dense_bytes_ += matrices[i].bytes;
  }
}

uint64_t Weights::router_copies_bytes() const {
  uint64_t bytes = 0;
  for (const RoleTable& of : layers_) bytes += copy_bytes(of[static_cast<size_t>(Role::kRouter)]);
  return bytes;
}

void Weights::make_router_copies() {
  router_copies_.clear();
  for (RoleTable& of : layers_) {
    const Weight& router = of[static_cast<size_t>(Role::kRouter)];
    Weight& copy = of[static_cast<size_t>(Role::kRouterAhead)];
    copy = router;
    const uint64_t bytes = copy_bytes(router);
    if (bytes == 0) continue;
    std::vector<uint8_t>& blocks = router_copies_.emplace_back(bytes);
    std::vector<float> row(router.cols);
    const DecodeFn decode = weight_decoder(router.type);
    for (uint64_t r = 0; r < router.rows; ++r) {
      decode(router.data + r * router.row_bytes(), row.data(), static_cast<int64_t>(row.size()));
      // A damaged router shows in the logits; here it would only end the load.
      for (float& v : row) v = std::isfinite(v) ? v : 0.0f;
      quantize(WeightType::kQ8_0, row.data(), blocks.data() + r * (bytes / router.rows),
               static_cast<int64_t>(row.size()));
    }
    copy.type = WeightType::kQ8_0;
    copy.data = blocks.data();
    copy.bytes = bytes;
  }
}

void Weights::check_files_unchanged() const {
  for (const auto& file : model_->files()) file->check_unchanged();
  if (table_gguf_ == model_) return;
  for (const auto& file : table_gguf_->files()) file->check_unchanged();
}

}  // namespace esker
