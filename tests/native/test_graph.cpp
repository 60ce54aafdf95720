// SPDX-License-Identifier: MIT
#include "graph/graph.h"

#include <set>
#include <string>

#include "check.h"
#include "graph/ngram.h"

using namespace esker;

namespace {

Config small_config() {
  Config c;
  c.n_layer = 8, c.context_length = 64, c.d_model = 32, c.n_vocab = 50, c.rms_eps = 1e-6f;
  c.n_stream = 4, c.low_rank = 8;
  c.n_key_head = 2, c.n_value_head = 6, c.d_linear_head = 16, c.conv_kernel = 4;
  c.n_head = 4, c.n_kv_head = 2, c.d_head = 16, c.n_rope = 8, c.rope_base = 1e4f;
  c.n_index_head = 4, c.d_index = 16, c.index_budget = 16;
  c.n_expert = 12, c.n_expert_used = 3, c.d_expert = 24, c.d_shared = 16;
  for (uint32_t i = 0; i < c.n_layer; ++i) {
    c.is_linear.push_back((i + 1) % 4 != 0);
    c.compress_ratio.push_back(i == 3 ? 4 : 0);  // layer 7 attends densely
    c.is_ple.push_back(i == 1);
  }
  c.ngram_size = 3, c.heads_per_ngram = 2, c.ple_conv_kernel = 4, c.ple_eos = 49, c.d_ple_row = 8;
  c.ple_multipliers = {1, 1000, 1000000};
  c.ple_head_offsets = {0, 101, 204, 311};
  c.ple_head_sizes = {101, 103, 107, 109};
  c.ple_table_rows = 420;
  return c;
}

bool alive_together(const BufferDesc& a, const BufferDesc& b) {
  return a.first_op <= b.last_op && b.first_op <= a.last_op;
}

}  // namespace

TEST(graph_buffers_alive_together_never_overlap) {
  for (GraphMode mode : {GraphMode::kWindow, GraphMode::kPrompt}) {
    const Graph g = build_graph(small_config(), mode);
    for (size_t i = 0; i < g.buffers.size(); ++i) {
      const BufferDesc& a = g.buffers[i];
      if (a.kind != BufferKind::kScratch) continue;
      CHECK(a.first_op <= a.last_op);
      CHECK(a.offset + a.width <= g.scratch_width);
      for (size_t j = 0; j < i; ++j) {
        const BufferDesc& b = g.buffers[j];
        if (b.kind != BufferKind::kScratch || !alive_together(a, b)) continue;
        CHECK(a.offset + a.width <= b.offset || b.offset + b.width <= a.offset);
      }
    }
  }
}

TEST(graph_buffers_are_written_before_they_are_read) {
  const Graph g = build_graph(small_config(), GraphMode::kPrompt);
  std::set<BufferId> written;
  for (size_t i = 0; i < g.buffers.size(); ++i) {
    if (g.buffers[i].kind == BufferKind::kPleRows) written.insert(static_cast<BufferId>(i));
  }
  for (const Op& op : g.ops) {
    for (BufferId id : op.in) CHECK(id == kNoBuffer || written.count(id) == 1);
    for (BufferId id : op.out) {
      if (id != kNoBuffer) written.insert(id);
    }
  }
}

TEST(graph_has_one_segment_a_layer_with_the_shared_expert_between_signal_and_cut) {
  const Config c = small_config();
  const Graph g = build_graph(c, GraphMode::kWindow);
  CHECK_EQUAL(g.segments.size(), size_t{c.n_layer});
  int32_t last_end = 0;
  for (size_t i = 0; i < g.segments.size(); ++i) {
    const Segment& s = g.segments[i];
    CHECK_EQUAL(s.layer, static_cast<int32_t>(i));
    CHECK(last_end <= s.signal && s.signal < s.cut && s.cut < s.end);
    CHECK(g.ops[static_cast<size_t>(s.signal) - 1].kind == OpKind::kRoute);
    CHECK(g.ops[static_cast<size_t>(s.cut)].kind == OpKind::kExperts);
    CHECK_EQUAL(g.ops[static_cast<size_t>(s.cut)].in[1], s.picks);
    for (int32_t op = s.signal; op < s.cut; ++op) {
      CHECK(g.ops[static_cast<size_t>(op)].kind != OpKind::kExperts);
    }
    last_end = s.end;
  }
}

TEST(graph_of_window_and_prompt_differ_in_the_delta_net_only) {
  const Graph window = build_graph(small_config(), GraphMode::kWindow);
  const Graph prompt = build_graph(small_config(), GraphMode::kPrompt);
  CHECK_EQUAL(window.ops.size(), prompt.ops.size());
  for (size_t i = 0; i < window.ops.size(); ++i) {
    const OpKind a = window.ops[i].kind, b = prompt.ops[i].kind;
    CHECK(a == b || (a == OpKind::kDeltaStep && b == OpKind::kDeltaChunk));
  }
  CHECK(dump(window).find("delta_step L0") != std::string::npos);
  CHECK(dump(prompt).find("delta_chunk L0") != std::string::npos);
}

TEST(graph_selects_blocks_only_where_the_layer_compresses) {
  const Graph g = build_graph(small_config(), GraphMode::kWindow);
  for (const Op& op : g.ops) {
    if (op.kind == OpKind::kBlockSelect) CHECK_EQUAL(op.layer, 3);
    if (op.kind == OpKind::kAttention) CHECK((op.in[2] == kNoBuffer) == (op.layer == 7));
  }
}

TEST(state_layout_places_do_not_overlap) {
  const Config c = small_config();
  const StateLayout s = make_state_layout(c, 64);
  const uint64_t qkv = c.qkv_width(), d = c.d_linear_head;
  CHECK_EQUAL(s.layers[0].delta - s.layers[0].conv, 3 * qkv);
  CHECK_EQUAL(s.layers[1].conv - s.layers[1].ple, uint64_t{9} * 4 * 32);
  CHECK_EQUAL(s.layers[2].conv - s.layers[1].delta, 6 * d * d);
  CHECK_EQUAL(s.layers[3].values - s.layers[3].keys, uint64_t{64} * 32);
  CHECK_EQUAL(s.n_appended, uint64_t{2} * 2 * 64 * 32 + 16 * 16);
}

TEST(ngram_rows_follow_the_hash_and_reset_at_eos) {
  const Config c = small_config();
  const auto want = [&](uint64_t now, uint64_t one, uint64_t two, uint64_t* rows) {
    const uint64_t bigram = now ^ one * 1000, trigram = bigram ^ two * 1000000;
    rows[0] = bigram % 101, rows[1] = bigram % 103 + 101;
    rows[2] = trigram % 107 + 204, rows[3] = trigram % 109 + 311;
  };
  const std::vector<int32_t> history{7, 8}, tokens{3, 49, 5, 6, 7};
  std::vector<uint64_t> rows(5 * 4), expected(5 * 4);
  ngram_rows(c, history, tokens, rows.data());
  want(3, 8, 7, &expected[0]);
  want(49, 3, 8, &expected[4]);   // its own being EOS cuts nothing
  want(5, 49, 49, &expected[8]);  // behind an EOS all reads as EOS
  want(6, 5, 49, &expected[12]);
  want(7, 6, 5, &expected[16]);
  CHECK(rows == expected);
  ngram_rows(c, {}, tokens, rows.data());
  want(3, 49, 49, &expected[0]);  // before the sequence
  want(49, 3, 49, &expected[4]);
  CHECK(rows == expected);
}
