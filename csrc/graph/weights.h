// SPDX-License-Identifier: MIT
//
// The tensors of a model by role: names, shapes and types are settled here, once. Backends and the
// graph speak of (layer, role) and never of names.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "abi/weight_types.h"
#include "formats/gguf.h"
#include "graph/config.h"

namespace esker {

enum class Role : uint8_t {
  // Global.
  kTokenEmbd, kOutput, kOutputHcNorm, kOutputHcDown, kOutputHcUp,
  // Every layer.
  kHcAttnNorm, kHcAttnDown, kHcAttnUp, kHcAttnInject,
  kHcFfnNorm, kHcFfnDown, kHcFfnUp, kHcFfnInject,
  kRouter, kSharedRouter, kSharedGate, kSharedUp, kSharedDown,
  // Gated delta net.
  kQkv, kGdnGate, kAlpha, kBeta, kDecay, kDtBias, kConv, kGdnNorm, kGdnOut,
  // Full attention.
  kQ, kK, kV, kAttnOut, kQNorm, kKNorm,
  kIndexQ, kIndexK, kIndexQNorm, kIndexKNorm,
  // PLE.
  kPleKey, kPleValue, kPleNormKey, kPleNormQuery, kPleNormConv, kPleConv,
  // Not of a file: the routers once more, to guess with (make_router_copies).
  kRouterAhead,
  kCount,
};
const char* role_name(Role role);  // the tensor's name without "blk.N.": "attn_qkv.weight"

struct WeightRef {
  Role role = Role::kCount;
  int32_t layer = -1;  // -1: global
};

// A dense matrix [rows, cols] (row-major, a row contiguous) or a vector (rows = 1), mapped in place.
struct Weight {
  const uint8_t* data = nullptr;  // null where the file was opened for its header only
  WeightType type = WeightType::kF32;
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t bytes = 0;  // 0: the model has no such tensor
  explicit operator bool() const { return bytes != 0; }
  uint64_t row_bytes() const { return bytes / rows; }
};

// One matrix of a layer's experts, [n_expert, rows, cols], as it lies in the files.
struct ExpertPiece {
  uint32_t file = 0;             // index into the Gguf's files
  uint64_t offset = 0;           // of expert 0
  uint64_t bytes = 0;            // of one expert; also the stride
  uint64_t record_offset = 0;    // where the piece lies in a record: pieces are packed in order
};

// The layer's records: gate [F, D], up [F, D], down [D, F]. With a fused file gate and up are the
// two halves of one piece; the offsets below hold either way.
struct ExpertLayout {
  std::vector<ExpertPiece> pieces;
  WeightType gate_type = WeightType::kF32, up_type = WeightType::kF32, down_type = WeightType::kF32;
  uint64_t gate_offset = 0, up_offset = 0, down_offset = 0;  // in the record, in bytes
  uint64_t record_bytes = 0;
};

// Where the n-gram table's rows lie; read from disk, never mapped.
struct TableLayout {
  std::string path;              // of the file that holds it
  uint64_t offset = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 0;
  WeightType type = WeightType::kF32;
};

// Immutable once loaded, but for the router copies. Keeps the mapped files alive.
class Weights {
 public:
  // Finds every tensor the model needs and checks type and shape. Throws Error(kFormat) naming
  // tensor, got and wanted. output.weight falls back to token_embd.weight. Tensors nobody needs
  // are listed in unused(), with unknown types noted, and do no harm.
  // Small tensors (vectors and convolution kernels) are scanned: NaN or infinity there throws.
  // Files opened with Extent::kHeaderOnly give everything but the data, and nothing is scanned.
  Weights(std::shared_ptr<const Gguf> model, std::shared_ptr<const Gguf> table, const Config& config);
  // Bare matrices without a model, to run single ops on: matrices[i] is `role` of layer i. Their
  // memory must outlive this; there is no file, so gguf() must not be asked for.
  Weights(Role role, std::span<const Weight> matrices);

  const Weight& global(Role role) const { return global_[static_cast<size_t>(role)]; }
  const Weight& layer(uint32_t layer, Role role) const {
    return layers_[layer][static_cast<size_t>(role)];
  }
  const Weight& get(WeightRef ref) const {
    return ref.layer < 0 ? global(ref.role) : layer(static_cast<uint32_t>(ref.layer), ref.role);
  }
  const ExpertLayout& experts(uint32_t layer) const { return experts_[layer]; }
  const TableLayout& table() const { return table_; }
  const std::vector<std::string>& unused() const { return unused_; }  // "name (type)"
  uint64_t dense_bytes() const { return dense_bytes_; }  // of all dense tensors in use, each once
  const Gguf& gguf() const { return *model_; }

  // Bytes that make_router_copies takes.
  uint64_t router_copies_bytes() const;
  // Makes Role::kRouterAhead of every layer: Q8_0 copies, which are read in half the time of 16-bit
  // ones and decide only what is read early; a router that a copy would not shrink stands for itself.
  void make_router_copies();

  // Throws Error(kRead) if a file was cut, rewritten or replaced since it was opened.
  void check_files_unchanged() const;

 private:
  using RoleTable = std::array<Weight, static_cast<size_t>(Role::kCount)>;
  std::shared_ptr<const Gguf> model_, table_gguf_;
  RoleTable global_{};
  std::vector<RoleTable> layers_;
  std::vector<ExpertLayout> experts_;
  TableLayout table_;
  std::vector<std::string> unused_;
  uint64_t dense_bytes_ = 0;
  std::vector<std::vector<uint8_t>> router_copies_;
};

}  // namespace esker
