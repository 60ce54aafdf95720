// SPDX-License-Identifier: MIT
//
// Tensors by role: shapes, types, experts' records, and the refusals.
#include "graph/weights.h"

#include <limits>

#include "base/error.h"
#include "check.h"
#include "gguf_bytes.h"

using namespace esker;
using esker::test::GgufBytes;
using esker::test::raw;
using esker::test::TempFolder;
using esker::test::tiny_model;

using esker::test::check_contains;

namespace {

// Weights need their files only while they are read here.
struct Loaded {
  TempFolder folder;
  std::shared_ptr<const Gguf> gguf;
  Config config;
  std::unique_ptr<Weights> weights;
  explicit Loaded(const GgufBytes& bytes) {
    gguf = Gguf::open(folder.write("test.gguf", bytes.build()));
    config = read_config(*gguf, *gguf);
    weights = std::make_unique<Weights>(gguf, gguf, config);
  }
};

std::string refusal(const GgufBytes& bytes) {
  try {
    const Loaded loaded(bytes);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    CHECK(std::string(error.what()).find("test.gguf") != std::string::npos);
    return error.what();
  }
  return "nothing was thrown";
}

void set_value(GgufBytes& g, const std::string& tensor, size_t index, float value) {
  g.tensor(tensor).data.replace(index * 4, 4, raw(value));
}

}  // namespace

TEST(weights_of_the_oracles_file) {
  const auto gguf = Gguf::open(std::string(ESKER_TEST_DATA) + "/oracle/micro-f16.gguf");
  const Config config = read_config(*gguf, *gguf);
  const Weights w(gguf, gguf, config);
  CHECK(w.unused().empty());
  const Weight& qkv = w.layer(0, Role::kQkv);
  CHECK_EQUAL(qkv.rows, 320u);
  CHECK_EQUAL(qkv.cols, 128u);
  CHECK(qkv.type == WeightType::kF16);
  CHECK_EQUAL(qkv.row_bytes(), 256u);
  CHECK(qkv.data == gguf->data(*gguf->find_tensor("blk.0.attn_qkv.weight")));
  CHECK_EQUAL(w.layer(0, Role::kSharedRouter).rows, 1u);  // [128, 1] in this file
  CHECK_EQUAL(w.layer(0, Role::kSharedRouter).cols, 128u);
  CHECK(!w.layer(0, Role::kQ));
  CHECK(!w.layer(3, Role::kQkv));
  CHECK(static_cast<bool>(w.layer(1, Role::kPleKey)));
  CHECK(!w.layer(0, Role::kPleKey));
  const ExpertLayout& experts = w.experts(2);
  CHECK_EQUAL(experts.pieces.size(), 3u);
  CHECK_EQUAL(experts.record_bytes, 3u * 8192);
  CHECK_EQUAL(experts.up_offset, 8192u);
  CHECK_EQUAL(experts.down_offset, 16384u);
  CHECK_EQUAL(experts.pieces[2].offset, gguf->find_tensor("blk.2.ffn_down_exps.weight")->offset);
  CHECK_EQUAL(w.table().row_bytes, 64u);
  CHECK_EQUAL(w.table().rows, 1280u);
  CHECK_EQUAL(w.table().path, gguf->path());
  w.check_files_unchanged();
}

TEST(weights_sum_their_dense_bytes) {
  const Loaded loaded(tiny_model());
  uint64_t bytes = 0;
  for (const TensorInfo& t : loaded.gguf->tensors()) {
    const bool streamed = t.name.find("_exps.") != t.name.npos ||
                          t.name.find("per_layer") != t.name.npos;
    if (!streamed) bytes += t.bytes;
  }
  CHECK_EQUAL(loaded.weights->dense_bytes(), bytes);
}

TEST(weights_tie_a_missing_output_to_the_embedding) {
  const Loaded whole(tiny_model());
  GgufBytes g = tiny_model();
  g.erase_tensor("output.weight");
  const Loaded tied(g);
  CHECK(tied.weights->global(Role::kOutput).data == tied.weights->global(Role::kTokenEmbd).data);
  CHECK_EQUAL(tied.weights->dense_bytes() + 160, whole.weights->dense_bytes());
}

TEST(weights_take_fused_experts) {
  GgufBytes g = tiny_model();
  for (const char* name : {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"}) {
    g.erase_tensor(name);
  }
  g.add("blk.0.ffn_gate_up_exps.weight", {8, 8, 3});
  const Loaded loaded(g);
  const ExpertLayout& fused = loaded.weights->experts(0);
  const ExpertLayout& apart = loaded.weights->experts(1);
  CHECK_EQUAL(fused.pieces.size(), 2u);
  CHECK_EQUAL(fused.pieces[0].bytes, 256u);
  CHECK_EQUAL(fused.up_offset, apart.up_offset);
  CHECK_EQUAL(fused.down_offset, apart.down_offset);
  CHECK_EQUAL(fused.record_bytes, apart.record_bytes);
}

TEST(weights_name_every_missing_tensor) {
  const GgufBytes whole = tiny_model();
  for (const auto& tensor : whole.tensors) {
    if (tensor.name == "output.weight") continue;
    GgufBytes g = whole;
    g.erase_tensor(tensor.name);
    check_contains(refusal(g), "tensor " + tensor.name);
    check_contains(refusal(g), "is missing: got no such tensor, want [");
  }
}

TEST(weights_name_every_tensor_of_another_shape) {
  const GgufBytes whole = tiny_model();
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const std::string& name = whole.tensors[i].name;
    GgufBytes g = whole;
    g.tensors[i] = {};
    g.add(name, {whole.tensors[i].dims[0] + 1, 7});
    g.tensors[i] = g.tensors.back();
    g.tensors.pop_back();
    const std::string text = refusal(g);
    check_contains(text, "tensor " + name + " has the wrong shape: got [");
    check_contains(text, ", want [");
  }
}

TEST(weights_refuse_types_that_nobody_decodes) {
  GgufBytes g = tiny_model();
  g.tensor("blk.1.attn_q.weight").type = 99;
  check_contains(refusal(g), "[weights] tensor blk.1.attn_q.weight has a type that Esker cannot "
                             "decode: got unknown type 99, want");
}

TEST(weights_list_tensors_that_nobody_needs) {
  GgufBytes g = tiny_model();
  g.add("rope_freqs.weight", {4});
  g.tensor("rope_freqs.weight").type = 99;
  g.add("blk.2.attn_q.weight", {3});  // of an MTP block
  const Loaded loaded(g);
  CHECK(loaded.weights->unused() == std::vector<std::string>{"rope_freqs.weight (unknown type 99)",
                                                             "blk.2.attn_q.weight (F32)"});
}

TEST(weights_refuse_values_that_are_not_numbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::pair<const char*, size_t> places[] = {
      {"output_hc_norm.weight", 15}, {"blk.0.ssm_a", 0},        {"blk.0.ssm_dt.bias", 2},
      {"blk.0.ssm_conv1d.weight", 39}, {"blk.0.ple_conv1d.weight", 63},
      {"blk.1.ffn_gate_inp_shexp.weight", 3}, {"blk.1.indexer.k_norm.weight", 1}};
  for (const auto& [name, index] : places) {
    GgufBytes g = tiny_model();
    set_value(g, name, index, nan);
    check_contains(refusal(g), std::string("tensor ") + name + " holds a value that is not a "
                               "number: got NaN in element " + std::to_string(index));
    set_value(g, name, index, -infinity);
    check_contains(refusal(g), "got infinity in element " + std::to_string(index));
  }
}

TEST(weights_refuse_data_at_odd_addresses) {
  GgufBytes g = tiny_model();
  g.alignment = 1;
  g.set<uint32_t>("general.alignment", 1);
  while (g.header().size() % 4 != 1) g.set_string("pad", std::string(g.header().size() % 7, 'x'));
  check_contains(refusal(g), "is not aligned for its type: got offset ");
}

TEST(weights_find_the_table_in_its_sidecar) {
  GgufBytes model = tiny_model(), table;
  model.erase_tensor("per_layer_token_embd.weight");
  table.add("other", {3});
  table.add("per_layer_token_embd.weight", {2, 26});
  const TempFolder folder;
  const auto m = Gguf::open(folder.write("model.gguf", model.build()));
  const auto t = Gguf::open(folder.write("table.gguf", table.build()));
  const Weights w(m, t, read_config(*m, *t));
  CHECK_EQUAL(w.table().path, t->path());
  CHECK_EQUAL(w.table().offset, t->find_tensor("per_layer_token_embd.weight")->offset);
  CHECK(w.unused() == std::vector<std::string>{"other (F32)"});
  w.check_files_unchanged();
  folder.write("table.gguf", "cut");
  CHECK(MESSAGE_OF(Error, w.check_files_unchanged()).find("cut since") != std::string::npos);
}

TEST(weights_have_a_name_for_every_role) {
  CHECK_EQUAL(std::string(role_name(Role::kTokenEmbd)), "token_embd.weight");
  CHECK_EQUAL(std::string(role_name(Role::kPleConv)), "ple_conv1d.weight");
  CHECK_EQUAL(std::string(role_name(Role::kCount)), "");
}

TEST(weights_need_no_data_for_their_places_and_sizes) {
  GgufBytes g = tiny_model();
  set_value(g, "output_hc_norm.weight", 0, std::numeric_limits<float>::quiet_NaN());
  const TempFolder folder;
  const std::string path = folder.write("test.gguf", g.header());
  const auto gguf = Gguf::open(path, Extent::kHeaderOnly);
  const Config config = read_config(*gguf, *gguf);
  const Weights head(gguf, gguf, config);
  const Loaded whole(tiny_model());
  CHECK_EQUAL(head.dense_bytes(), whole.weights->dense_bytes());
  CHECK_EQUAL(head.experts(1).record_bytes, whole.weights->experts(1).record_bytes);
  CHECK_EQUAL(head.experts(1).pieces[2].offset, whole.weights->experts(1).pieces[2].offset);
  CHECK_EQUAL(head.table().offset, whole.weights->table().offset);
  CHECK(static_cast<bool>(head.layer(0, Role::kQkv)) && !head.layer(1, Role::kQkv));
  CHECK(head.layer(0, Role::kQkv).data == nullptr);
  CHECK(head.layer(0, Role::kConv).data == nullptr);
}
