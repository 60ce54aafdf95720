// SPDX-License-Identifier: MIT
//
// Weight traffic of a decoded token: every row of a tiny model by hand, and what holds of any.
#include "graph/traffic.h"

#include "check.h"
#include "gguf_bytes.h"

using namespace esker;
using esker::test::GgufBytes;
using esker::test::TempFolder;
using esker::test::tiny_model;

namespace {

struct Counted {
  Traffic traffic;
  uint64_t dense_bytes;

  explicit Counted(const GgufBytes& bytes) {
    const TempFolder folder;
    const auto gguf = Gguf::open(folder.write("head.gguf", bytes.header()), Extent::kHeaderOnly);
    const Config config = read_config(*gguf, *gguf);
    const Weights weights(gguf, gguf, config);
    traffic = decode_traffic(config, weights);
    dense_bytes = weights.dense_bytes();
  }
  const TrafficRow& row(const std::string& role) const {
    for (const TrafficRow& r : traffic.rows) {
      if (r.role == role) return r;
    }
    throw esker::test::Failure("no row " + role);
  }
};

void retype(GgufBytes& g, const std::string& name, uint32_t type, size_t bytes) {
  g.tensor(name).type = type;
  g.tensor(name).data.resize(bytes);
}

}  // namespace

// D 8, 2 streams, low rank 3, 3 experts of which 2 run, width 4; float32.
TEST(traffic_of_the_tiny_model_row_by_row) {
  const Counted c(tiny_model());
  const auto check = [&](const char* role, uint64_t calls, uint64_t bytes) {
    CHECK_EQUAL(std::string(role) + " " + std::to_string(c.row(role).calls),
                std::string(role) + " " + std::to_string(calls));
    CHECK_EQUAL(std::string(role) + " " + std::to_string(c.row(role).bytes),
                std::string(role) + " " + std::to_string(bytes));
  };
  check("attn_qkv", 1, 320);
  check("moe gate+up", 4, 1024);
  check("mixers", 5, 4 * 512 + 384);
  check("output", 1, 160);
  check("attn_gate", 1, 192);
  check("ssm_out", 1, 192);
  check("moe down", 4, 512);
  check("attn_q", 1, 512);
  check("router", 2, 192);
  check("read-ahead routers", 1, 3 * 34);  // of layer 1, for layer 0; a row fills part of a block
  check("attn_output", 1, 256);
  check("shared expert", 6, 1152);
  check("ple key+value", 2, 768);
  check("indexer/k/v/alpha/beta", 6, 704);
  check("shared router", 2, 64);
  check("norms, convolutions, decays", 17, 1024);
  check("embedding row", 1, 32);
  check("n-gram rows", 4, 32);
  CHECK_EQUAL(c.traffic.rows.size(), 18u);
  CHECK_EQUAL(c.traffic.bytes(TrafficKind::kReadAhead), 102u);
  CHECK_EQUAL(c.traffic.bytes(TrafficKind::kSmall), 1024u + 32 + 32);
}

// The engine reads every dense weight once, but for the embedding, of which it reads a row.
TEST(traffic_counts_every_dense_byte_once) {
  const Counted c(tiny_model());
  const uint64_t experts = c.row("moe gate+up").bytes + c.row("moe down").bytes;
  CHECK_EQUAL(c.traffic.bytes(TrafficKind::kMatrix) - experts +
                  c.row("norms, convolutions, decays").bytes + 160,
              c.dense_bytes);
}

TEST(traffic_says_types_shapes_and_tensors) {
  GgufBytes g = tiny_model();
  retype(g, "blk.0.ffn_gate_exps.weight", 1, 8 * 4 * 3 * 2);  // F16
  retype(g, "blk.1.ffn_gate_exps.weight", 1, 8 * 4 * 3 * 2);
  retype(g, "blk.1.ffn_up_exps.weight", 1, 8 * 4 * 3 * 2);
  const Counted c(g);
  const TrafficRow& row = c.row("moe gate+up");
  CHECK_EQUAL(row.bytes, 2u * (128 + 64) + 2u * (64 + 64));
  CHECK(row.types == std::map<std::string, uint64_t>{{"F16", 2}, {"F32", 1}});
  CHECK(row.tensors ==
        std::vector<std::string>{"ffn_gate_exps.weight", "ffn_up_exps.weight"});
  CHECK(row.shapes == std::vector<std::array<uint64_t, 2>>{{8, 4}});
  CHECK(c.row("output").shapes == std::vector<std::array<uint64_t, 2>>{{8, 5}});
  CHECK(c.row("mixers").shapes == std::vector<std::array<uint64_t, 2>>{{16, 3}, {3, 16}, {16, 2}});
  CHECK(c.row("mixers").types == std::map<std::string, uint64_t>{{"F32", 14}});
  CHECK(c.row("read-ahead routers").types == std::map<std::string, uint64_t>{{"Q8_0", 1}});
}

TEST(traffic_is_the_same_with_fused_experts_and_a_tied_output) {
  const Counted apart(tiny_model());
  GgufBytes g = tiny_model();
  for (const char* blk : {"blk.0.", "blk.1."}) {
    g.erase_tensor(std::string(blk) + "ffn_gate_exps.weight");
    g.erase_tensor(std::string(blk) + "ffn_up_exps.weight");
    g.add(std::string(blk) + "ffn_gate_up_exps.weight", {8, 8, 3});
  }
  g.erase_tensor("output.weight");
  const Counted fused(g);
  CHECK_EQUAL(fused.row("moe gate+up").bytes, apart.row("moe gate+up").bytes);
  CHECK_EQUAL(fused.row("output").bytes, apart.row("output").bytes);
  CHECK(fused.row("moe gate+up").tensors ==
        std::vector<std::string>{"ffn_gate_up_exps.weight"});
}
