// SPDX-License-Identifier: MIT
//
// Reads a qwen4exp model's hyper-parameters (SPEC 9.1) and proves what the rest of the library
// takes for granted: no divisor is zero, heads divide, products of sizes fit, tables are indexed
// inside their bounds.
#include "graph/config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace esker {
namespace {

constexpr const char* kComponent = "config";
constexpr uint64_t kMaxHeads = 65536;
constexpr uint64_t kMaxHeadWidth = 4096;    // the real model: 256
constexpr uint64_t kMaxStreams = 64;        // the real model: 4
constexpr uint64_t kMaxNgram = 16;          // the real model: 3
constexpr double kMaxRopeBase = 1e15;
constexpr uint32_t kDefaultRatio = 4;       // block length of files without compress_ratios
constexpr const char* kTableName = "per_layer_token_embd.weight";
constexpr const char* kConvertAgain = "convert the model again with a current converter";

class ConfigReader {
 public:
  ConfigReader(const Gguf& model, const Gguf& table) : model_(model), table_(table) {}

  Config read() {
    check_architecture();
    read_sizes();
    read_layer_kinds();
    read_attention();
    read_delta_net();
    read_experts();
    read_indexer();
    read_ple();
    return config_;
  }

 private:
  static std::string full_key(const char* key) { return std::string(kArchitecture) + "." + key; }

  [[noreturn]] void fail(const char* key, const std::string& problem, const std::string& got,
                         const std::string& want) const {
    raise(ErrorKind::kFormat, kComponent,
          {"metadata key " + full_key(key) + " " + problem, got, want, model_.path(),
           kConvertAgain});
  }
  void expect(bool ok, const char* key, uint64_t got, const std::string& want) const {
    if (!ok) fail(key, "does not fit the other keys", std::to_string(got), want);
  }
  uint32_t number(const char* key, uint64_t min, uint64_t max) const {
    return static_cast<uint32_t>(model_.require_uint(full_key(key), min, max));
  }
  std::vector<uint64_t> numbers(const char* key) const {
    return model_.require_uint_array(full_key(key));
  }
  bool has(const char* key) const { return model_.find(full_key(key)) != nullptr; }

  void check_architecture() const;
  void read_sizes();
  void read_layer_kinds();
  void read_attention();
  void read_delta_net();
  void read_experts();
  void read_indexer();
  void read_ple();
  void read_ple_layers();
  void read_ple_hash();
  uint32_t heads(const char* key) const;
  std::vector<uint64_t> per_layer(const char* key) const;
  const TensorInfo& table_tensor() const;

  const Gguf& model_;
  const Gguf& table_;
  Config config_;
};

void ConfigReader::check_architecture() const {
  const std::string& found = model_.require_string("general.architecture");
  if (found == kArchitecture) return;
  std::string shown = found.substr(0, 60);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  raise(ErrorKind::kFormat, kComponent,
        {"this model has another architecture", "\"" + shown + "\"",
         std::string("\"") + kArchitecture + "\"", model_.path() + ", key general.architecture",
         "Esker runs Qwen3.8-Flash-Next and other models of architecture qwen4exp"});
}

void ConfigReader::read_sizes() {
  Config& c = config_;
  const uint32_t blocks = number("block_count", 1, kMaxLayers);
  // MTP blocks are counted by block_count but are no layers of the model.
  c.n_mtp_layer = has("nextn_predict_layers") ? number("nextn_predict_layers", 0, kMaxLayers) : 0;
  expect(c.n_mtp_layer < blocks, "nextn_predict_layers", c.n_mtp_layer,
         "less than block_count, " + std::to_string(blocks));
  c.n_layer = blocks - c.n_mtp_layer;
  c.context_length = number("context_length", 1, kMaxContext);
  c.d_model = number("embedding_length", 1, kMaxWidth);
  const double eps = model_.require_float(full_key("attention.layer_norm_rms_epsilon"));
  c.rms_eps = static_cast<float>(eps);
  if (!(c.rms_eps > 0) || c.rms_eps > 1) {
    fail("attention.layer_norm_rms_epsilon", "is out of range", std::to_string(eps),
         "more than 0, at most 1");
  }
  c.n_stream = number("hyper_connection.count", 1, kMaxStreams);
  c.low_rank = number("hyper_connection.low_rank", 1, kMaxWidth);
  expect(uint64_t{c.n_stream} * c.d_model <= kMaxWidth, "hyper_connection.count", c.n_stream,
         "a count that times embedding_length is at most " + std::to_string(kMaxWidth));
  const TensorInfo* embd = model_.find_tensor("token_embd.weight");
  if (embd == nullptr) {
    raise(ErrorKind::kFormat, kComponent,
          {"tensor token_embd.weight is missing", "no such tensor",
           "[" + std::to_string(c.d_model) + ", vocabulary]", model_.path(), kConvertAgain});
  }
  if (embd->dims.size() != 2 || embd->dims[1] > kMaxVocab) {
    raise(ErrorKind::kFormat, kComponent,
          {"tensor token_embd.weight has the wrong shape", embd->shape(),
           "[" + std::to_string(c.d_model) + ", 1 to " + std::to_string(kMaxVocab) + "]",
           model_.path() + ", tensor token_embd.weight", kConvertAgain});
  }
  c.n_vocab = static_cast<uint32_t>(embd->dims[1]);
}

// An array with one entry per layer; entries for MTP blocks may follow and are dropped.
std::vector<uint64_t> ConfigReader::per_layer(const char* key) const {
  std::vector<uint64_t> values = numbers(key);
  const size_t blocks = config_.n_layer + config_.n_mtp_layer;
  if (values.size() != config_.n_layer && values.size() != blocks) {
    fail(key, "has the wrong length", std::to_string(values.size()) + " entries",
         std::to_string(config_.n_layer) + ", one a layer");
  }
  values.resize(config_.n_layer);
  return values;
}

void ConfigReader::read_layer_kinds() {
  Config& c = config_;
  c.is_linear.resize(c.n_layer);
  if (has("attention.recurrent_layers")) {
    const std::vector<uint64_t> recurrent = per_layer("attention.recurrent_layers");
    for (uint32_t i = 0; i < c.n_layer; ++i) {
      if (recurrent[i] > 1) {
        fail("attention.recurrent_layers", "is out of range", std::to_string(recurrent[i]),
             "true or false");
      }
      c.is_linear[i] = static_cast<uint8_t>(recurrent[i]);
    }
    return;
  }
  const uint32_t interval = number("full_attention_interval", 1, kMaxLayers);
  for (uint32_t i = 0; i < c.n_layer; ++i) c.is_linear[i] = (i + 1) % interval != 0;
}

// A head count: one number, or one per layer, of which only those of full layers count.
uint32_t ConfigReader::heads(const char* key) const {
  const MetaValue* value = model_.find(full_key(key));
  if (value == nullptr || value->type != MetaType::kArray) return number(key, 1, kMaxHeads);
  const std::vector<uint64_t> counts = per_layer(key);
  uint64_t count = 0;
  for (uint32_t i = 0; i < config_.n_layer; ++i) {
    if (config_.is_linear[i]) continue;
    if (counts[i] < 1 || counts[i] > kMaxHeads || (count != 0 && counts[i] != count)) {
      fail(key, "is out of range", std::to_string(counts[i]) + " in entry " + std::to_string(i),
           "the same number from 1 to " + std::to_string(kMaxHeads) + " in all full layers");
    }
    count = counts[i];
  }
  return static_cast<uint32_t>(std::max<uint64_t>(count, 1));
}

void ConfigReader::read_attention() {
  Config& c = config_;
  c.n_head = heads("attention.head_count");
  c.n_kv_head = heads("attention.head_count_kv");
  expect(c.n_head % c.n_kv_head == 0, "attention.head_count_kv", c.n_kv_head,
         "a divisor of attention.head_count, " + std::to_string(c.n_head));
  c.d_head = number("attention.key_length", 1, kMaxHeadWidth);
  const uint32_t d_value = number("attention.value_length", 1, kMaxHeadWidth);
  expect(d_value == c.d_head, "attention.value_length", d_value,
         "attention.key_length, " + std::to_string(c.d_head));
  expect(2 * uint64_t{c.n_head} * c.d_head <= kMaxWidth, "attention.head_count", c.n_head,
         "a count that times attention.key_length is at most " + std::to_string(kMaxWidth / 2));
  c.n_rope = number("rope.dimension_count", 1, kMaxHeadWidth);
  expect(c.n_rope % 2 == 0 && c.n_rope <= c.d_head, "rope.dimension_count", c.n_rope,
         "an even number up to attention.key_length, " + std::to_string(c.d_head));
  const double base = model_.require_float(full_key("rope.freq_base"));
  c.rope_base = static_cast<float>(base);
  if (!(c.rope_base > 0) || c.rope_base > kMaxRopeBase) {
    fail("rope.freq_base", "is out of range", std::to_string(base), "more than 0, at most 1e15");
  }
}

void ConfigReader::read_delta_net() {
  Config& c = config_;
  c.n_key_head = number("ssm.group_count", 1, kMaxHeads);
  c.n_value_head = number("ssm.time_step_rank", 1, kMaxHeads);
  expect(c.n_value_head % c.n_key_head == 0, "ssm.time_step_rank", c.n_value_head,
         "a multiple of ssm.group_count, " + std::to_string(c.n_key_head));
  c.d_linear_head = number("ssm.state_size", 1, kMaxHeadWidth);
  const uint64_t width = uint64_t{c.n_value_head} * c.d_linear_head;
  const uint32_t inner = number("ssm.inner_size", 1, kMaxWidth);
  expect(inner == width, "ssm.inner_size", inner,
         "ssm.time_step_rank times ssm.state_size, " + std::to_string(width));
  const uint64_t qkv = width + 2 * uint64_t{c.n_key_head} * c.d_linear_head;
  expect(qkv <= kMaxWidth, "ssm.inner_size", inner,
         "keys, queries and values of at most " + std::to_string(kMaxWidth) + " together");
  c.conv_kernel = number("ssm.conv_kernel", 1, kMaxConvKernel);
}

void ConfigReader::read_experts() {
  Config& c = config_;
  c.n_expert = number("expert_count", 1, kMaxExperts);
  c.n_expert_used = number("expert_used_count", 1, kMaxExperts);
  expect(c.n_expert_used <= c.n_expert, "expert_used_count", c.n_expert_used,
         "at most expert_count, " + std::to_string(c.n_expert));
  c.d_expert = number("expert_feed_forward_length", 1, kMaxWidth);
  c.d_shared = number("expert_shared_feed_forward_length", 1, kMaxWidth);
}

void ConfigReader::read_indexer() {
  Config& c = config_;
  constexpr const char* kRatios = "attention.compress_ratios";
  std::vector<uint64_t> ratios(c.n_layer, kDefaultRatio);
  if (has(kRatios)) ratios = per_layer(kRatios);
  c.compress_ratio.assign(c.n_layer, 0);
  bool any = false;
  for (uint32_t i = 0; i < c.n_layer; ++i) {
    if (c.is_linear[i]) continue;
    if (ratios[i] > kMaxContext) {
      fail(kRatios, "is out of range", std::to_string(ratios[i]) + " in entry " + std::to_string(i),
           "0 (dense) to " + std::to_string(kMaxContext));
    }
    c.compress_ratio[i] = static_cast<uint32_t>(ratios[i]);
    any = any || ratios[i] > 0;
  }
  if (!any) return;  // every full layer attends densely
  c.n_index_head = number("attention.indexer.head_count", 1, kMaxHeads);
  c.d_index = number("attention.indexer.key_length", 1, kMaxHeadWidth);
  c.index_budget = number("attention.indexer.top_k", 1, kMaxContext);
  expect(uint64_t{c.n_index_head} * c.d_index <= kMaxWidth, "attention.indexer.head_count",
         c.n_index_head,
         "a count that times attention.indexer.key_length is at most " + std::to_string(kMaxWidth));
  expect(c.n_rope <= c.d_index, "attention.indexer.key_length", c.d_index,
         "at least rope.dimension_count, " + std::to_string(c.n_rope));
  for (const uint32_t ratio : c.compress_ratio) {
    expect(ratio == 0 || c.index_budget % ratio == 0, "attention.indexer.top_k", c.index_budget,
           "a multiple of the layer's attention.compress_ratios entry, " + std::to_string(ratio));
  }
}

const TensorInfo& ConfigReader::table_tensor() const {
  const TensorInfo* tensor = table_.find_tensor(kTableName);
  if (tensor == nullptr) tensor = model_.find_tensor(kTableName);
  if (tensor == nullptr) {
    raise(ErrorKind::kFormat, kComponent,
          {std::string("tensor ") + kTableName + " (the n-gram table) is missing",
           "no such tensor",
           "[" + std::to_string(config_.d_ple_row) + ", rows]", table_.path(),
           "if the table is a file of its own, name it with --ngram-table"});
  }
  return *tensor;
}

void ConfigReader::read_ple_layers() {
  Config& c = config_;
  for (const uint64_t layer : numbers("ple.layers")) {
    if (layer >= c.n_layer || c.is_ple[layer]) {
      fail("ple.layers", "is out of range", "layer " + std::to_string(layer),
           "layers from 0 to " + std::to_string(c.n_layer - 1) + ", each once");
    }
    c.is_ple[layer] = 1;
  }
}

void ConfigReader::read_ple() {
  Config& c = config_;
  c.is_ple.assign(c.n_layer, 0);
  if (has("ple.layers")) {
    read_ple_layers();
  } else if (model_.find_tensor(kTableName) != nullptr ||
             std::any_of(model_.tensors().begin(), model_.tensors().end(), [](const auto& t) {
               return t.name.find(".ple_") != std::string::npos;
             })) {
    read_ple_layers();  // throws: the tensors say that the key should be there
  }
  if (!c.has_ple()) return;
  c.ngram_size = number("ple.ngram_size", 2, kMaxNgram);
  c.heads_per_ngram = number("ple.heads_per_ngram", 1, kMaxHeads);
  c.ple_conv_kernel = number("ple.conv_kernel", 1, kMaxConvKernel);
  c.ple_eos = number("ple.eos_token_id", 0, c.n_vocab - 1);
  c.d_ple_row = number("embedding_length_per_layer_input", 1, kMaxWidth);
  const uint64_t width = uint64_t{c.ngram_size - 1} * c.heads_per_ngram * c.d_ple_row;
  expect(width == c.d_model, "embedding_length_per_layer_input", c.d_ple_row,
         "a width that times " + std::to_string(c.n_ple_head()) +
             " rows gives embedding_length, " + std::to_string(c.d_model));
  read_ple_hash();
}

void ConfigReader::read_ple_hash() {
  Config& c = config_;
  const auto sized = [&](const char* key, size_t count) {
    std::vector<uint64_t> values = numbers(key);
    if (values.size() != count) {
      fail(key, "has the wrong length", std::to_string(values.size()) + " entries",
           std::to_string(count));
    }
    return values;
  };
  c.ple_multipliers = sized("ple.layer_multipliers", c.ngram_size);
  c.ple_head_offsets = sized("ple.head_offsets", c.n_ple_head());
  c.ple_head_sizes = sized("ple.head_vocab_sizes", c.n_ple_head());
  // Products of a token id and a multiplier stay below 2^63, so that signedness never matters.
  const uint64_t multiplier_max = INT64_MAX / c.n_vocab;
  for (const uint64_t m : c.ple_multipliers) {
    if (m == 0 || m > multiplier_max) {
      fail("ple.layer_multipliers", "is out of range", std::to_string(m),
           "1 to " + std::to_string(multiplier_max));
    }
  }
  const TensorInfo& tensor = table_tensor();
  if (tensor.dims.size() != 2 || tensor.dims[0] != c.d_ple_row) {
    raise(ErrorKind::kFormat, kComponent,
          {std::string("tensor ") + kTableName + " has the wrong shape", tensor.shape(),
           "[" + std::to_string(c.d_ple_row) + ", rows]", table_.path(), kConvertAgain});
  }
  c.ple_table_rows = tensor.dims[1];
  for (uint32_t h = 0; h < c.n_ple_head(); ++h) {
    const uint64_t offset = c.ple_head_offsets[h], size = c.ple_head_sizes[h];
    if (size == 0 || size > c.ple_table_rows) {
      fail("ple.head_vocab_sizes", "is out of range",
           std::to_string(size) + " in entry " + std::to_string(h),
           "1 to the table's rows, " + std::to_string(c.ple_table_rows));
    }
    if (offset > c.ple_table_rows - size) {
      fail("ple.head_offsets", "is out of range",
           std::to_string(offset) + " in entry " + std::to_string(h),
           "at most " + std::to_string(c.ple_table_rows - size) + ", so that the head's " +
               std::to_string(size) + " rows lie in the table");
    }
  }
}

}  // namespace

bool Config::has_ple() const {
  return std::find(is_ple.begin(), is_ple.end(), 1) != is_ple.end();
}

Config read_config(const Gguf& model, const Gguf& table) {
  return ConfigReader(model, table).read();
}

}  // namespace esker
