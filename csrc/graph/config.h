// SPDX-License-Identifier: MIT
//
// The hyper-parameters of a qwen4exp model, read from GGUF metadata and validated: whoever holds a
// Config may divide by, allocate and index with its numbers.
// Shape letters: D hidden width, C residual streams, q low rank, V vocabulary, E experts,
// K experts per token, F expert width.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/gguf.h"

namespace esker {

struct Config {
  uint32_t n_layer = 0;          // without MTP blocks
  uint32_t n_mtp_layer = 0;      // nextn_predict_layers
  uint32_t context_length = 0;   // what the model was made for
  uint32_t d_model = 0;          // D
  uint32_t n_vocab = 0;          // V, rows of token_embd
  float rms_eps = 0;

  uint32_t n_stream = 0;         // C, hyper-connection count
  uint32_t low_rank = 0;         // q

  std::vector<uint8_t> is_linear;  // per layer: 1 gated delta net, 0 full attention

  // Gated delta net.
  uint32_t n_key_head = 0;       // nk
  uint32_t n_value_head = 0;     // nv, a multiple of nk
  uint32_t d_linear_head = 0;    // d, of keys and of values
  uint32_t conv_kernel = 0;

  // Full attention.
  uint32_t n_head = 0;           // H
  uint32_t n_kv_head = 0;        // divides H
  uint32_t d_head = 0;           // hd
  uint32_t n_rope = 0;           // first dims of a head that turn, even, <= hd and <= d_index
  float rope_base = 0;

  // QSA indexer.
  uint32_t n_index_head = 0;
  uint32_t d_index = 0;
  uint32_t index_budget = 0;               // tokens
  std::vector<uint32_t> compress_ratio;    // per layer: block length; 0 attends densely

  // Mixture of experts.
  uint32_t n_expert = 0;         // E
  uint32_t n_expert_used = 0;    // K <= E
  uint32_t d_expert = 0;         // F
  uint32_t d_shared = 0;         // shared expert's width

  // PLE, the n-gram embedding. No layers: the model has none.
  std::vector<uint8_t> is_ple;   // per layer
  uint32_t ngram_size = 0;       // N; also the convolution's dilation
  uint32_t heads_per_ngram = 0;  // P
  uint32_t ple_conv_kernel = 0;
  uint32_t ple_eos = 0;
  uint32_t d_ple_row = 0;        // (N-1) * P * d_ple_row = D
  std::vector<uint64_t> ple_multipliers;   // [N]
  std::vector<uint64_t> ple_head_offsets;  // [(N-1) P]
  std::vector<uint64_t> ple_head_sizes;    // [(N-1) P]
  uint64_t ple_table_rows = 0;

  uint32_t n_ple_head() const { return (ngram_size - 1) * heads_per_ngram; }
  uint32_t qkv_width() const { return (2 * n_key_head + n_value_head) * d_linear_head; }
  uint32_t value_width() const { return n_value_head * d_linear_head; }
  uint32_t ple_history() const { return (ple_conv_kernel - 1) * ngram_size; }
  bool has_ple() const;
};

// The architecture this library runs.
inline constexpr const char* kArchitecture = "qwen4exp";

// Limits that no real model nears; they keep products of sizes far from overflow.
inline constexpr uint64_t kMaxLayers = 1024;
inline constexpr uint64_t kMaxWidth = 1u << 20;
inline constexpr uint64_t kMaxExperts = 65536;
inline constexpr uint64_t kMaxVocab = 1u << 24;
inline constexpr uint64_t kMaxContext = 1u << 24;
inline constexpr uint64_t kMaxConvKernel = 64;  // the real model: 4; backends size arrays by it

// Throws Error(kFormat) naming the key, what stands there and what was wanted.
// `table` is the file that holds the n-gram table (the model itself, or its sidecar).
Config read_config(const Gguf& model, const Gguf& table);

}  // namespace esker
