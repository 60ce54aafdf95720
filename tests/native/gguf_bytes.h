// SPDX-License-Identifier: MIT
//
// Writes GGUF files for tests, good and bad ones: keys and tensors are kept as they will stand in
// the file, so that a test can spoil any of them. Also: a whole model of a few KB.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats/gguf.h"

namespace esker::test {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string raw_string(const std::string& text) {
  return raw(static_cast<uint64_t>(text.size())) + text;
}

template <class T>
constexpr MetaType meta_type_of() {
  if constexpr (std::is_same_v<T, bool>) return MetaType::kBool;
  if constexpr (std::is_same_v<T, float>) return MetaType::kF32;
  if constexpr (std::is_same_v<T, double>) return MetaType::kF64;
  constexpr bool is_signed = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1: return is_signed ? MetaType::kI8 : MetaType::kU8;
    case 2: return is_signed ? MetaType::kI16 : MetaType::kU16;
    case 4: return is_signed ? MetaType::kI32 : MetaType::kU32;
    default: return is_signed ? MetaType::kI64 : MetaType::kU64;
  }
}

class GgufBytes {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    std::string data;
    int64_t offset = -1;  // -1: the next free one
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;  // where build() puts tensors; the key is the caller's
  std::vector<std::pair<std::string, std::string>> keys;  // key, type and value as in the file
  std::vector<Tensor> tensors;

  void set_raw(const std::string& key, MetaType type, const std::string& bytes) {
    const std::string value = raw(static_cast<uint32_t>(type)) + bytes;
    for (auto& entry : keys) {
      if (entry.first == key) {
        entry.second = value;
        return;
      }
    }
    keys.emplace_back(key, value);
  }
  template <class T>
  void set(const std::string& key, T value) {
    set_raw(key, meta_type_of<T>(), raw(value));
  }
  void set_string(const std::string& key, const std::string& text) {
    set_raw(key, MetaType::kString, raw_string(text));
  }
  template <class T>
  void set_array(const std::string& key, const std::vector<T>& values) {
    std::string bytes = raw(static_cast<uint32_t>(meta_type_of<T>())) +
                        raw(static_cast<uint64_t>(values.size()));
    for (const T value : values) bytes += raw(value);
    set_raw(key, MetaType::kArray, bytes);
  }
  void erase(const std::string& key) {
    std::erase_if(keys, [&](const auto& entry) { return entry.first == key; });
  }

  // A float32 tensor of small values.
  void add(const std::string& name, const std::vector<uint64_t>& dims) {
    uint64_t elements = 1;
    for (const uint64_t dim : dims) elements *= dim;
    Tensor tensor{name, dims, 0, "", -1};
    for (uint64_t i = 0; i < elements; ++i) {
      tensor.data += raw(static_cast<float>(i % 7) / 8.0f - 0.25f);
    }
    tensors.push_back(std::move(tensor));
  }
  Tensor& tensor(const std::string& name) {
    for (Tensor& t : tensors) {
      if (t.name == name) return t;
    }
    throw std::runtime_error("the test asks for an unknown tensor: " + name);
  }
  void erase_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
  }

  std::string header() const {
    std::string out = magic + raw(version) + raw(static_cast<uint64_t>(tensors.size())) +
                      raw(static_cast<uint64_t>(keys.size()));
    for (const auto& [key, value] : keys) out += raw_string(key) + value;
    uint64_t next = 0;
    for (const Tensor& t : tensors) {
      out += raw_string(t.name) + raw(static_cast<uint32_t>(t.dims.size()));
      for (const uint64_t dim : t.dims) out += raw(dim);
      out += raw(t.type) + raw(t.offset >= 0 ? static_cast<uint64_t>(t.offset) : next);
      next = round_up(next + t.data.size());
    }
    return out;
  }
  std::string build() const {
    std::string out = header();
    out.resize(round_up(out.size()), '\0');
    const size_t start = out.size();
    for (const Tensor& t : tensors) {
      out.resize(start + round_up(out.size() - start), '\0');
      out += t.data;
    }
    return out;
  }

 private:
  uint64_t round_up(uint64_t n) const { return (n + alignment - 1) / alignment * alignment; }
};

// A folder of the test's own, removed at its end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "esker-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = (path_ / name).string();
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw std::runtime_error("cannot write " + path);
    return path;
  }
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void add_tiny_keys(GgufBytes& g) {
  const auto u32 = [&](const char* key, uint32_t value) {
    g.set(std::string("qwen4exp.") + key, value);
  };
  g.set_string("general.architecture", "qwen4exp");
  u32("block_count", 2);
  u32("context_length", 64);
  u32("embedding_length", 8);
  u32("attention.head_count", 2);
  u32("attention.head_count_kv", 1);
  u32("attention.key_length", 4);
  u32("attention.value_length", 4);
  g.set("qwen4exp.attention.layer_norm_rms_epsilon", 1e-6f);
  u32("rope.dimension_count", 2);
  g.set("qwen4exp.rope.freq_base", 1e7f);
  u32("expert_count", 3);
  u32("expert_used_count", 2);
  u32("expert_feed_forward_length", 4);
  u32("expert_shared_feed_forward_length", 6);
  u32("ssm.conv_kernel", 4);
  u32("ssm.state_size", 2);
  u32("ssm.group_count", 1);
  u32("ssm.time_step_rank", 3);
  u32("ssm.inner_size", 6);
  u32("full_attention_interval", 2);
  u32("hyper_connection.count", 2);
  u32("hyper_connection.low_rank", 3);
  u32("attention.indexer.head_count", 1);
  u32("attention.indexer.key_length", 4);
  u32("attention.indexer.top_k", 8);
  g.set_array<int32_t>("qwen4exp.attention.compress_ratios", {0, 4});
  g.set_array<int32_t>("qwen4exp.ple.layers", {0});
  u32("ple.ngram_size", 3);
  u32("ple.heads_per_ngram", 2);
  u32("ple.conv_kernel", 4);
  u32("ple.eos_token_id", 4);
  u32("embedding_length_per_layer_input", 2);
  g.set_array<uint64_t>("qwen4exp.ple.layer_multipliers", {11, 13, 17});
  g.set_array<uint64_t>("qwen4exp.ple.head_offsets", {0, 3, 8, 15});
  g.set_array<uint64_t>("qwen4exp.ple.head_vocab_sizes", {3, 5, 7, 11});
}

inline void add_tiny_layer(GgufBytes& g, const std::string& blk, bool linear) {
  for (const char* part : {"hc_attn", "hc_ffn"}) {
    g.add(blk + part + "_norm.weight", {16});
    g.add(blk + part + "_down.weight", {16, 3});
    g.add(blk + part + "_up.weight", {3, 16});
    g.add(blk + part + "_inject.weight", {16, 2});
  }
  g.add(blk + "ffn_gate_inp.weight", {8, 3});
  g.add(blk + "ffn_gate_inp_shexp.weight", {8});
  g.add(blk + "ffn_gate_shexp.weight", {8, 6});
  g.add(blk + "ffn_up_shexp.weight", {8, 6});
  g.add(blk + "ffn_down_shexp.weight", {6, 8});
  g.add(blk + "ffn_gate_exps.weight", {8, 4, 3});
  g.add(blk + "ffn_up_exps.weight", {8, 4, 3});
  g.add(blk + "ffn_down_exps.weight", {4, 8, 3});
  if (linear) {
    g.add(blk + "attn_qkv.weight", {8, 10});
    g.add(blk + "attn_gate.weight", {8, 6});
    g.add(blk + "ssm_alpha.weight", {8, 3});
    g.add(blk + "ssm_beta.weight", {8, 3});
    g.add(blk + "ssm_a", {3});
    g.add(blk + "ssm_dt.bias", {3});
    g.add(blk + "ssm_conv1d.weight", {4, 10});
    g.add(blk + "ssm_norm.weight", {2});
    g.add(blk + "ssm_out.weight", {6, 8});
    return;
  }
  g.add(blk + "attn_q.weight", {8, 16});
  g.add(blk + "attn_k.weight", {8, 4});
  g.add(blk + "attn_v.weight", {8, 4});
  g.add(blk + "attn_output.weight", {8, 8});
  g.add(blk + "attn_q_norm.weight", {4});
  g.add(blk + "attn_k_norm.weight", {4});
  g.add(blk + "indexer.q_proj.weight", {8, 4});
  g.add(blk + "indexer.k_proj.weight", {8, 4});
  g.add(blk + "indexer.q_norm.weight", {4});
  g.add(blk + "indexer.k_norm.weight", {4});
}

// A complete model: a linear layer with PLE, then a full one. D 8, 2 streams, vocabulary 5,
// 3 experts of width 4; everything float32.
inline GgufBytes tiny_model() {
  GgufBytes g;
  add_tiny_keys(g);
  g.add("token_embd.weight", {8, 5});
  g.add("output.weight", {8, 5});
  g.add("output_hc_norm.weight", {16});
  g.add("output_hc_down.weight", {16, 3});
  g.add("output_hc_up.weight", {3, 16});
  g.add("per_layer_token_embd.weight", {2, 26});
  add_tiny_layer(g, "blk.0.", true);
  g.add("blk.0.ple_key.weight", {8, 16});
  g.add("blk.0.ple_value.weight", {8, 8});
  g.add("blk.0.ple_norm_key.weight", {16});
  g.add("blk.0.ple_norm_query.weight", {16});
  g.add("blk.0.ple_norm_conv.weight", {16});
  g.add("blk.0.ple_conv1d.weight", {4, 16});
  add_tiny_layer(g, "blk.1.", false);
  return g;
}

}  // namespace esker::test
