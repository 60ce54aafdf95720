// SPDX-License-Identifier: MIT
//
// The config of good models, and every key that must not be missing, of another type, zero or huge.
#include "graph/config.h"

#include "base/error.h"
#include "check.h"
#include "gguf_bytes.h"

using namespace esker;
using esker::test::GgufBytes;
using esker::test::TempFolder;
using esker::test::tiny_model;

using esker::test::check_contains;

namespace {

Config config_of(const GgufBytes& bytes) {
  const TempFolder folder;
  const auto gguf = Gguf::open(folder.write("test.gguf", bytes.build()));
  return read_config(*gguf, *gguf);
}

std::string refusal(const GgufBytes& bytes) {
  try {
    config_of(bytes);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    return error.what();
  }
  return "nothing was thrown";
}

// tiny_model with one number changed.
template <class T>
std::string refusal_of(const std::string& key, T value) {
  GgufBytes g = tiny_model();
  g.set("qwen4exp." + key, value);
  return refusal(g);
}

template <class T>
std::string refusal_of_array(const std::string& key, const std::vector<T>& values) {
  GgufBytes g = tiny_model();
  g.set_array("qwen4exp." + key, values);
  return refusal(g);
}

const char* const kNumbers[] = {
    "block_count", "context_length", "embedding_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "rope.dimension_count", "expert_count", "expert_used_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
    "ssm.time_step_rank", "ssm.inner_size", "full_attention_interval", "hyper_connection.count",
    "hyper_connection.low_rank", "attention.indexer.head_count", "attention.indexer.key_length",
    "attention.indexer.top_k", "ple.ngram_size", "ple.heads_per_ngram", "ple.conv_kernel",
    "embedding_length_per_layer_input"};

const char* const kArrays[] = {"ple.layers", "ple.layer_multipliers", "ple.head_offsets",
                               "ple.head_vocab_sizes"};

}  // namespace

TEST(config_of_the_oracles_file) {
  const auto gguf = Gguf::open(std::string(ESKER_TEST_DATA) + "/oracle/micro-f16.gguf");
  const Config c = read_config(*gguf, *gguf);
  CHECK_EQUAL(c.n_layer, 4u);
  CHECK_EQUAL(c.d_model, 128u);
  CHECK_EQUAL(c.n_vocab, 512u);
  CHECK_EQUAL(c.n_stream, 4u);
  CHECK_EQUAL(c.low_rank, 16u);
  CHECK_EQUAL(c.rms_eps, 1e-6f);
  CHECK(c.is_linear == std::vector<uint8_t>{1, 1, 1, 0});
  CHECK(c.compress_ratio == std::vector<uint32_t>{0, 0, 0, 4});
  CHECK_EQUAL(c.qkv_width(), 320u);
  CHECK_EQUAL(c.value_width(), 192u);
  CHECK_EQUAL(c.n_rope, 32u);
  CHECK_EQUAL(c.rope_base, 1e7f);
  CHECK_EQUAL(c.index_budget, 16u);
  CHECK(c.is_ple == std::vector<uint8_t>{0, 1, 0, 0});
  CHECK_EQUAL(c.n_ple_head(), 4u);
  CHECK_EQUAL(c.ple_history(), 9u);
  CHECK_EQUAL(c.ple_table_rows, 1280u);
  CHECK(c.ple_multipliers == std::vector<uint64_t>{4295158889763781, 17440218147737327,
                                                   1270917961434445});
}

TEST(config_of_the_tiny_model) {
  const Config c = config_of(tiny_model());
  CHECK(c.is_linear == std::vector<uint8_t>{1, 0});
  CHECK(c.has_ple());
  CHECK_EQUAL(c.n_head, 2u);
}

TEST(config_names_every_missing_key) {
  for (const char* key : kNumbers) {
    GgufBytes g = tiny_model();
    g.erase(std::string("qwen4exp.") + key);
    check_contains(refusal(g), std::string("metadata key qwen4exp.") + key + " is missing: got no");
  }
  for (const char* key : kArrays) {
    GgufBytes g = tiny_model();
    g.erase(std::string("qwen4exp.") + key);
    check_contains(refusal(g), std::string("metadata key qwen4exp.") + key + " is missing: got no");
  }
  GgufBytes g = tiny_model();
  g.erase("general.architecture");
  check_contains(refusal(g), "metadata key general.architecture is missing");
}

TEST(config_names_every_key_of_another_type) {
  for (const char* key : kNumbers) {
    GgufBytes g = tiny_model();
    g.set_string(std::string("qwen4exp.") + key, "4");
    check_contains(refusal(g),
                   std::string("metadata key qwen4exp.") + key + " has the wrong type: got STRING");
  }
  for (const char* key : kArrays) {
    check_contains(refusal_of(key, 3u), std::string(key) + " has the wrong type: got UINT32 3");
  }
}

TEST(config_names_every_key_that_is_zero_or_huge) {
  for (const char* key : kNumbers) {
    const std::string problem = std::string("metadata key qwen4exp.") + key + " is out of range";
    check_contains(refusal_of(key, uint32_t{0}), problem + ": got UINT32 0, want");
    check_contains(refusal_of(key, ~uint32_t{0}), problem + ": got UINT32 4294967295, want");
    check_contains(refusal_of(key, ~uint64_t{0}), problem + ": got UINT64 18446744073709551615");
    check_contains(refusal_of(key, int32_t{-1}), problem + ": got INT32 -1, want");
  }
  for (const float bad : {0.0f, -1.0f, 1e30f}) {
    check_contains(refusal_of("attention.layer_norm_rms_epsilon", bad), "is out of range: got ");
    check_contains(refusal_of("rope.freq_base", bad), "is out of range: got ");
  }
  check_contains(refusal_of("rope.freq_base", 7u), "wrong type: got UINT32 7, want a finite");
  check_contains(refusal_of("ple.eos_token_id", 5u), "out of range: got UINT32 5, want an integer");
}

TEST(config_refuses_another_architecture) {
  GgufBytes g = tiny_model();
  g.set_string("general.architecture", "llama");
  check_contains(refusal(g), "another architecture: got \"llama\", want \"qwen4exp\"");
}

TEST(config_refuses_keys_that_do_not_fit_together) {
  check_contains(refusal_of("attention.head_count_kv", 3u), "want a divisor of");
  check_contains(refusal_of("attention.value_length", 2u), "want attention.key_length, 4");
  check_contains(refusal_of("rope.dimension_count", 3u), "want an even number");
  check_contains(refusal_of("rope.dimension_count", 6u), "up to attention.key_length, 4");
  check_contains(refusal_of("attention.indexer.key_length", 1u), "at least rope.dimension_count");
  check_contains(refusal_of("attention.indexer.top_k", 6u), "want a multiple of");
  check_contains(refusal_of("ssm.inner_size", 8u), "want ssm.time_step_rank times ssm.state_size");
  check_contains(refusal_of("ssm.group_count", 2u), "want a multiple of ssm.group_count, 2");
  check_contains(refusal_of("expert_used_count", 4u), "got 4, want at most expert_count, 3");
  check_contains(refusal_of("embedding_length_per_layer_input", 3u), "gives embedding_length, 8");
  check_contains(refusal_of("nextn_predict_layers", 2u), "got 2, want less than block_count, 2");
  check_contains(refusal_of("attention.head_count", 65536u * 4), "out of range");
}

TEST(config_refuses_bad_arrays) {
  check_contains(refusal_of_array<int32_t>("ple.layers", {2}), "got layer 2, want layers from 0");
  check_contains(refusal_of_array<int32_t>("ple.layers", {0, 0}), "each once");
  check_contains(refusal_of_array<int32_t>("ple.layers", {-1}), "got -1 in entry 0");
  check_contains(refusal_of_array<int32_t>("attention.compress_ratios", {4}),
                 "has the wrong length: got 1 entries, want 2, one a layer");
  check_contains(refusal_of_array<int32_t>("attention.compress_ratios", {0, -4}), "got -4");
  check_contains(refusal_of_array<int32_t>("attention.recurrent_layers", {0, 2}), "got 2, want");
  check_contains(refusal_of_array<uint64_t>("ple.layer_multipliers", {1, 2}), "got 2 entries");
  check_contains(refusal_of_array<uint64_t>("ple.layer_multipliers", {1, 2, 0}), "got 0, want 1");
  check_contains(refusal_of_array<uint64_t>("ple.layer_multipliers", {1, 2, 1ull << 62}),
                 "got 4611686018427387904, want 1 to 1844674407370955161");
  check_contains(refusal_of_array<uint64_t>("ple.head_vocab_sizes", {3, 5, 0, 11}),
                 "got 0 in entry 2, want 1 to the table's rows, 26");
  check_contains(refusal_of_array<uint64_t>("ple.head_offsets", {0, 3, 8, 16}),
                 "got 16 in entry 3, want at most 15");
  check_contains(refusal_of_array<uint64_t>("ple.head_offsets", {0, 3, ~0ull, 15}), "in entry 2");
}

TEST(config_takes_variants) {
  GgufBytes g = tiny_model();
  g.set_array<bool>("qwen4exp.attention.recurrent_layers", {false, true});
  g.erase("qwen4exp.full_attention_interval");
  g.erase("qwen4exp.attention.compress_ratios");
  Config c = config_of(g);
  CHECK(c.is_linear == std::vector<uint8_t>{0, 1});
  CHECK(c.compress_ratio == std::vector<uint32_t>{4, 0});

  g = tiny_model();  // every full layer dense: no indexer needed
  g.set_array<int32_t>("qwen4exp.attention.compress_ratios", {0, 0});
  for (const char* key : {"head_count", "key_length", "top_k"}) {
    g.erase(std::string("qwen4exp.attention.indexer.") + key);
  }
  CHECK_EQUAL(config_of(g).n_index_head, 0u);

  g = tiny_model();  // no PLE
  g.erase("qwen4exp.ple.layers");
  std::erase_if(g.tensors, [](const auto& t) {
    return t.name.find("ple_") != t.name.npos || t.name.find("per_layer") != t.name.npos;
  });
  CHECK(!config_of(g).has_ple());

  g = tiny_model();  // an MTP block at the end; arrays that count it
  g.set<uint32_t>("qwen4exp.block_count", 3);
  g.set<uint32_t>("qwen4exp.nextn_predict_layers", 1);
  g.set_array<int32_t>("qwen4exp.attention.compress_ratios", {0, 4, 4});
  g.set_array<uint32_t>("qwen4exp.attention.head_count_kv", {0, 1, 1});
  c = config_of(g);
  CHECK_EQUAL(c.n_layer, 2u);
  CHECK_EQUAL(c.n_mtp_layer, 1u);
  CHECK_EQUAL(c.n_kv_head, 1u);
}

TEST(config_finds_the_table_in_its_sidecar) {
  GgufBytes model = tiny_model(), table;
  table.add("per_layer_token_embd.weight", {2, 26});
  model.erase_tensor("per_layer_token_embd.weight");
  const TempFolder folder;
  const auto m = Gguf::open(folder.write("model.gguf", model.build()));
  const auto t = Gguf::open(folder.write("table.gguf", table.build()));
  CHECK_EQUAL(read_config(*m, *t).ple_table_rows, 26u);
  check_contains(MESSAGE_OF(Error, read_config(*m, *m)), "--ngram-table");
  table.tensors[0].dims = {4, 13};
  const auto wrong = Gguf::open(folder.write("wrong.gguf", table.build()));
  check_contains(MESSAGE_OF(Error, read_config(*m, *wrong)), "got [4, 13], want [2, rows]");
}
