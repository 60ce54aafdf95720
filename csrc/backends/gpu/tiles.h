// SPDX-License-Identifier: MIT
//
// How the matrix-vector kernels are cut, as data: per GPU family, weight type and shape, each row with the
// measurement behind it. `esker tune` adds rows for the device at hand.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "abi/weight_types.h"

namespace esker::gpu {

struct Tile {
  uint32_t lanes = 32;      // L: lanes that share a row
  uint32_t rows = 1;        // R: rows of a group of lanes
  uint32_t simdgroups = 4;  // S: of a threadgroup
  uint32_t split = 1;       // K: simdgroups that share a row
  bool threadgroup_table = false;  // the codebook in threadgroup memory, else constant
  bool stage = false;              // x through threadgroup memory, else the cache; not kDown
  bool operator==(const Tile&) const = default;
};

enum class TileUse : uint8_t { kMatvec, kGateUp, kDown };

// Applies to a product of this type whose columns and rows lie in the ranges; the last that fits counts.
struct TileRow {
  TileUse use;
  WeightType type;
  uint32_t min_cols, max_cols;
  uint32_t min_rows, max_rows;
  Tile tile;
  const char* evidence;  // device, microseconds, GB/s, source; or why, where nobody measured
};

// The rows for a family: those of its own behind those of the families it resembles.
std::span<const TileRow> tile_rows(const char* family);

class TileTable {
 public:
  explicit TileTable(const char* family);
  void add(const TileRow& row) { rows_.push_back(row); }
  Tile find(TileUse use, WeightType type, uint64_t rows, uint64_t cols) const;

 private:
  std::vector<TileRow> rows_;
};

}  // namespace esker::gpu
