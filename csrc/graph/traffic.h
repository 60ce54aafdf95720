// SPDX-License-Identifier: MIT
//
// How many bytes of weights one decoded token reads, by tensor role. Pure: it walks the window's
// graph, so it counts what a backend is told to compute, each weight of each op once.
// Needs no data: the header of a file is enough.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace esker {

// Which sum a row belongs to.
enum class TrafficKind : uint8_t {
  kMatrix,     // read by a matrix product of every token
  kReadAhead,  // read to guess the next layers' experts, which only decides what is read early
  kSmall,      // vectors, convolution kernels and single rows of tables
};
const char* traffic_kind_name(TrafficKind kind);  // "matrix", "read_ahead", "small"

struct TrafficRow {
  std::string role;                        // "attn_qkv", "moe gate+up", ...
  TrafficKind kind = TrafficKind::kMatrix;
  uint64_t calls = 0;                      // per token; one for what is computed in one go
  uint64_t bytes = 0;                      // per token
  std::map<std::string, uint64_t> types;   // weight type -> tensors of that type
  std::vector<std::string> tensors;        // names without "blk.N."
  std::vector<std::array<uint64_t, 2>> shapes;  // n_in, n_out; each once
};

struct Traffic {
  std::vector<TrafficRow> rows;  // those that the model has, in a fixed order
  uint64_t bytes(TrafficKind kind) const;
};

// Read-ahead applies the routers of the next layers to a layer's router input, in Q8_0 copies
// (DESIGN section 4).
inline constexpr uint32_t kReadAheadLayers = 2;

Traffic decode_traffic(const Config& config, const Weights& weights);

}  // namespace esker
