// SPDX-License-Identifier: MIT
#include "backends/gpu/tiles.h"

#include <string_view>

namespace esker::gpu {
namespace {

constexpr uint32_t kAny = UINT32_MAX;
using enum WeightType;
using enum TileUse;

// Nobody measured these: 32 lanes on a row read it as one stretch, and one row a group of lanes keeps
// codebook decoding out of register trouble, which is where the measured tables end up too.
constexpr const char* kUnmeasured = "baseline, not measured";

// Apple M5, 10 cores, 24 GB, decode of one token; weights rotated through 1 GB so that no cache holds
// them. Source: k512-decode-notes, sections 3.1 and 3.2 (an earlier engine's kernels of the same tiling:
// a good start, to be confirmed with `esker tune`). Written old tile -> this tile.
constexpr TileRow kApple10[] = {
    {kMatvec, kIQ4_XS, 2560, 2560, 200000, kAny, {32, 2, 4, 1}, "2560x248320: 16,1,4,1 2475 us 136 GB/s -> 2453 us 138 GB/s"},
    {kMatvec, kIQ4_XS, 2560, 2560, 9000, 11000, {32, 2, 4, 1}, "2560x10240: 16,1,4,1 107.7 us 129 GB/s -> 106.5 us 131 GB/s"},
    {kMatvec, kIQ4_XS, 2560, 2560, 11001, 14000, {8, 1, 8, 1}, "2560x12288: 16,1,4,1 202.9 us 82 GB/s -> 156.4 us 107 GB/s"},
    {kMatvec, kIQ4_XS, 2560, 2560, 4096, 8999, {32, 2, 4, 1}, "2560x6144: 16,1,4,1 65.4 us 128 GB/s -> 64.3 us 130 GB/s"},
    {kMatvec, kIQ4_XS, 2560, 2560, 1, 1024, {16, 2, 4, 1}, "2560x640: 32,1,4,1 63.9 us 13.6 GB/s -> 16.2 us 53.9 GB/s"},
    {kMatvec, kIQ4_XS, 6144, 6144, 1024, 4096, {32, 2, 4, 1}, "6144x2560: 32,1,8,2 178.0 us 46.9 GB/s -> 128.4 us 65.1 GB/s"},
    {kMatvec, kIQ3_S, 2560, 2560, 9000, 11000, {4, 2, 4, 1, true}, "2560x10240: 16,1,4,1 425.6 us 26.5 GB/s -> 260.5 us 43.2 GB/s"},
    {kMatvec, kIQ3_S, 2560, 2560, 11001, 14000, {8, 2, 4, 1, true}, "2560x12288: 16,1,4,1 458.3 us 29.5 GB/s -> 262.2 us 51.6 GB/s"},
    {kMatvec, kIQ3_S, 2560, 2560, 4096, 8999, {32, 2, 4, 1, true}, "2560x6144: 16,1,4,1 321.3 us 21.0 GB/s -> 59.7 us 113 GB/s"},
    {kMatvec, kIQ3_S, 2560, 2560, 1, 1024, {32, 2, 4, 1, true}, "2560x640: 32,1,4,1 25.0 us 28.2 GB/s -> 8.8 us 80.2 GB/s"},
    {kMatvec, kIQ3_S, 6144, 6144, 1024, 4096, {4, 2, 4, 1, true}, "6144x2560: 32,1,8,2 233.7 us 28.9 GB/s -> 132.1 us 51.2 GB/s"},
    {kMatvec, kQ6_K, 2560, 2560, 4096, 8999, {16, 1, 4, 1}, "2560x6144: 16,1,4,1 195.8 us 65.9 GB/s, the best of the sweep"},
    {kMatvec, kQ6_K, 2560, 2560, 1, 1024, {32, 2, 4, 1}, "2560x640: 32,1,4,1 102.1 us 13.2 GB/s -> 67.6 us 19.9 GB/s"},
    {kMatvec, kQ6_K, 6144, 6144, 1024, 4096, {16, 1, 4, 1}, "6144x2560: 32,1,8,2 218.6 us 59.0 GB/s -> 106.5 us 121 GB/s"},
    {kMatvec, kQ8_0, 2560, 2560, 1, 1024, {32, 2, 4, 1}, "2560x512: 32,1,4,1 63.0 us 22.1 GB/s -> 51.7 us 26.9 GB/s"},
    // The mixers' low rank: two rows a threadgroup, each split over four simdgroups.
    {kMatvec, kQ8_0, 10240, 10240, 1, 1024, {32, 1, 8, 4}, "10240x324: 1 row of 8 simdgroups 49.6 us 135 GB/s -> 2 rows of 4 42.5 us 158 GB/s"},
    {kGateUp, kIQ2_S, 2560, 2560, 640, 640, {32, 1, 4, 1}, "10 of 2560x640 twice: table in threadgroup memory 111.9 us 93.8 GB/s -> constant 105.4 us 99.6 GB/s; R = 2 spills: 167.2 us"},
    {kGateUp, kIQ2_XXS, 2560, 2560, 640, 640, {16, 1, 4, 1}, "10 of 2560x640 twice: 32,1,4 103.6 us 81.6 GB/s -> 101.0 us 83.6 GB/s"},
    {kGateUp, kIQ3_S, 2560, 2560, 640, 640, {32, 1, 4, 1, true}, "10 of 2560x640 twice: constant table 121.6 us 115.8 GB/s -> threadgroup 118.9 us 118.4 GB/s"},
    {kDown, kQ2_0, 640, 640, 2560, 2560, {8, 2, 4, 1}, "10 of 640x2560: 47.3 us 97.4 GB/s"},
};

// NVIDIA H200, 132 multiprocessors, 4,300 GB/s for a copy; one token, weights rotated through 1 GB, launch
// included: the best of the tiles tried (lanes 8 to 32, rows 1 to 4, simdgroups 4 and 8, split 1 to 8, staged or
// not), on these kernels translated. For other GPUs of the make too, which nobody measured.
constexpr TileRow kNvidia[] = {
    {kMatvec, kF32, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 1623 GB/s"},
    {kMatvec, kF32, 1, kAny, 3001, 99999, {32, 1, 8, 4}, "2560x10240: 4078 GB/s"},
    {kMatvec, kF32, 1, kAny, 100000, kAny, {32, 1, 8, 4}, "2560x248320: 4659 GB/s"},
    {kMatvec, kBF16, 1, kAny, 1, 3000, {32, 1, 8, 4}, "2560x640: 896 GB/s"},
    {kMatvec, kBF16, 1, kAny, 3001, 99999, {32, 4, 8, 2, false, true}, "2560x10240: 3655 GB/s"},
    {kMatvec, kBF16, 1, kAny, 100000, kAny, {32, 4, 8, 4}, "2560x248320: 4589 GB/s"},
    {kMatvec, kQ4_0, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 250 GB/s"},
    {kMatvec, kQ4_0, 1, kAny, 3001, 99999, {16, 2, 4, 1, false, true}, "2560x10240: 1500 GB/s"},
    {kMatvec, kQ4_0, 1, kAny, 100000, kAny, {16, 2, 8, 1, false, true}, "2560x248320: 2666 GB/s"},
    {kMatvec, kQ4_1, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 278 GB/s"},
    {kMatvec, kQ4_1, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 1755 GB/s"},
    {kMatvec, kQ4_1, 1, kAny, 100000, kAny, {16, 2, 4, 1, false, true}, "2560x248320: 2933 GB/s"},
    {kMatvec, kQ5_0, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 295 GB/s"},
    {kMatvec, kQ5_0, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 1692 GB/s"},
    {kMatvec, kQ5_0, 1, kAny, 100000, kAny, {16, 4, 4, 1, false, true}, "2560x248320: 2660 GB/s"},
    {kMatvec, kQ5_1, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 321 GB/s"},
    {kMatvec, kQ5_1, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 1827 GB/s"},
    {kMatvec, kQ5_1, 1, kAny, 100000, kAny, {16, 2, 4, 1, false, true}, "2560x248320: 2933 GB/s"},
    {kMatvec, kQ8_0, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 442 GB/s"},
    {kMatvec, kQ8_0, 1, kAny, 3001, 99999, {16, 2, 8, 1, false, true}, "2560x10240: 2108 GB/s"},
    {kMatvec, kQ8_0, 1, kAny, 100000, kAny, {16, 2, 8, 1, false, true}, "2560x248320: 3569 GB/s"},
    {kMatvec, kQ2_K, 1, kAny, 1, 3000, {32, 1, 8, 4}, "2560x640: 178 GB/s"},
    {kMatvec, kQ2_K, 1, kAny, 3001, 99999, {16, 2, 4, 1, false, true}, "2560x10240: 848 GB/s"},
    {kMatvec, kQ2_K, 1, kAny, 100000, kAny, {8, 2, 4, 1, false, true}, "2560x248320: 1439 GB/s"},
    {kMatvec, kQ3_K, 1, kAny, 1, 3000, {32, 1, 8, 4}, "2560x640: 215 GB/s"},
    {kMatvec, kQ3_K, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 867 GB/s"},
    {kMatvec, kQ3_K, 1, kAny, 100000, kAny, {8, 1, 8, 1, false, true}, "2560x248320: 1319 GB/s"},
    {kMatvec, kQ4_K, 1, kAny, 1, 3000, {32, 1, 8, 4}, "2560x640: 280 GB/s"},
    {kMatvec, kQ4_K, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 1457 GB/s"},
    {kMatvec, kQ4_K, 1, kAny, 100000, kAny, {8, 2, 4, 1, false, true}, "2560x248320: 2426 GB/s"},
    {kMatvec, kQ5_K, 1, kAny, 1, 3000, {32, 1, 8, 4}, "2560x640: 325 GB/s"},
    {kMatvec, kQ5_K, 1, kAny, 3001, 99999, {16, 2, 4, 1, false, true}, "2560x10240: 1523 GB/s"},
    {kMatvec, kQ5_K, 1, kAny, 100000, kAny, {8, 2, 4, 1, false, true}, "2560x248320: 2531 GB/s"},
    {kMatvec, kQ6_K, 1, kAny, 1, 3000, {32, 1, 8, 4}, "2560x640: 364 GB/s"},
    {kMatvec, kQ6_K, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 1548 GB/s"},
    {kMatvec, kQ6_K, 1, kAny, 100000, kAny, {16, 2, 8, 1, false, true}, "2560x248320: 2640 GB/s"},
    {kMatvec, kIQ2_XXS, 1, kAny, 1, 3000, {32, 1, 8, 1, true, true}, "2560x640: 91 GB/s"},
    {kMatvec, kIQ2_XXS, 1, kAny, 3001, 99999, {16, 1, 8, 1, true, true}, "2560x10240: 512 GB/s"},
    {kMatvec, kIQ2_XXS, 1, kAny, 100000, kAny, {8, 4, 8, 1, true, true}, "2560x248320: 988 GB/s"},
    {kMatvec, kIQ2_XS, 1, kAny, 1, 3000, {32, 1, 8, 1, true, true}, "2560x640: 86 GB/s"},
    {kMatvec, kIQ2_XS, 1, kAny, 3001, 99999, {16, 2, 8, 1, true, true}, "2560x10240: 493 GB/s"},
    {kMatvec, kIQ2_XS, 1, kAny, 100000, kAny, {8, 2, 8, 1, true, true}, "2560x248320: 1063 GB/s"},
    {kMatvec, kIQ3_XXS, 1, kAny, 1, 3000, {32, 2, 8, 4, true, true}, "2560x640: 147 GB/s"},
    {kMatvec, kIQ3_XXS, 1, kAny, 3001, 99999, {16, 1, 8, 1, true, true}, "2560x10240: 756 GB/s"},
    {kMatvec, kIQ3_XXS, 1, kAny, 100000, kAny, {16, 4, 8, 1, true, true}, "2560x248320: 1350 GB/s"},
    {kMatvec, kIQ1_S, 1, kAny, 1, 3000, {32, 4, 8, 4, true}, "2560x640: 60 GB/s"},
    {kMatvec, kIQ1_S, 1, kAny, 3001, 99999, {16, 2, 8, 1, true, true}, "2560x10240: 358 GB/s"},
    {kMatvec, kIQ1_S, 1, kAny, 100000, kAny, {8, 2, 8, 1, true, true}, "2560x248320: 804 GB/s"},
    {kMatvec, kIQ4_NL, 1, kAny, 1, 3000, {32, 4, 8, 4}, "2560x640: 232 GB/s"},
    {kMatvec, kIQ4_NL, 1, kAny, 3001, 99999, {32, 4, 4, 1, true, true}, "2560x10240: 1158 GB/s"},
    {kMatvec, kIQ4_NL, 1, kAny, 100000, kAny, {8, 2, 4, 1, false, true}, "2560x248320: 1763 GB/s"},
    {kMatvec, kIQ3_S, 1, kAny, 1, 3000, {32, 2, 8, 4, true, true}, "2560x640: 140 GB/s"},
    {kMatvec, kIQ3_S, 1, kAny, 3001, 99999, {16, 1, 8, 1, true, true}, "2560x10240: 755 GB/s"},
    {kMatvec, kIQ3_S, 1, kAny, 100000, kAny, {8, 2, 4, 1, true, true}, "2560x248320: 1444 GB/s"},
    {kMatvec, kIQ2_S, 1, kAny, 1, 3000, {32, 2, 8, 2, true, true}, "2560x640: 70 GB/s"},
    {kMatvec, kIQ2_S, 1, kAny, 3001, 99999, {16, 2, 8, 1, true, true}, "2560x10240: 446 GB/s"},
    {kMatvec, kIQ2_S, 1, kAny, 100000, kAny, {8, 2, 8, 1, true, true}, "2560x248320: 1128 GB/s"},
    {kMatvec, kIQ4_XS, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 217 GB/s"},
    {kMatvec, kIQ4_XS, 1, kAny, 3001, 99999, {16, 2, 4, 1, true, true}, "2560x10240: 1240 GB/s"},
    {kMatvec, kIQ4_XS, 1, kAny, 100000, kAny, {16, 4, 4, 1, true, true}, "2560x248320: 2329 GB/s"},
    {kMatvec, kIQ1_M, 1, kAny, 1, 3000, {32, 4, 8, 4, true}, "2560x640: 69 GB/s"},
    {kMatvec, kIQ1_M, 1, kAny, 3001, 99999, {16, 2, 8, 1, true, true}, "2560x10240: 378 GB/s"},
    {kMatvec, kIQ1_M, 1, kAny, 100000, kAny, {8, 4, 8, 1, true, true}, "2560x248320: 807 GB/s"},
    {kMatvec, kTQ1_0, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 93 GB/s"},
    {kMatvec, kTQ1_0, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 415 GB/s"},
    {kMatvec, kTQ1_0, 1, kAny, 100000, kAny, {8, 2, 4, 1, false, true}, "2560x248320: 638 GB/s"},
    {kMatvec, kTQ2_0, 1, kAny, 1, 3000, {32, 1, 8, 4}, "2560x640: 141 GB/s"},
    {kMatvec, kTQ2_0, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 703 GB/s"},
    {kMatvec, kTQ2_0, 1, kAny, 100000, kAny, {16, 2, 8, 1, false, true}, "2560x248320: 1206 GB/s"},
    {kMatvec, kMXFP4, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 224 GB/s"},
    {kMatvec, kMXFP4, 1, kAny, 3001, 99999, {16, 2, 4, 1, false, true}, "2560x10240: 1141 GB/s"},
    {kMatvec, kMXFP4, 1, kAny, 100000, kAny, {16, 4, 8, 1, false, true}, "2560x248320: 2052 GB/s"},
    {kMatvec, kNVFP4, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 253 GB/s"},
    {kMatvec, kNVFP4, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 1501 GB/s"},
    {kMatvec, kNVFP4, 1, kAny, 100000, kAny, {8, 2, 8, 1, false, true}, "2560x248320: 2593 GB/s"},
    {kMatvec, kQ2_0, 1, kAny, 1, 3000, {32, 1, 8, 4, false, true}, "2560x640: 143 GB/s"},
    {kMatvec, kQ2_0, 1, kAny, 3001, 99999, {16, 1, 8, 1, false, true}, "2560x10240: 843 GB/s"},
    {kMatvec, kQ2_0, 1, kAny, 100000, kAny, {8, 2, 4, 1, false, true}, "2560x248320: 1521 GB/s"},
    {kMatvec, kQ8_0, 10240, 10240, 1, 1024, {32, 1, 16, 4, false, true}, "10240x320: 32,1,8,4 9.6 us -> 8.6 us"},
    {kMatvec, kQ8_0, 1, 1024, 3001, 99999, {16, 1, 4, 1, false, true}, "320x10240: 16,2,8,1 7.2 us -> 6.7 us"},
    {kMatvec, kIQ4_XS, 6144, 6144, 1024, 3000, {8, 1, 16, 8, true, true}, "6144x2560: 32,1,8,4 15.8 us -> 13.3 us"},
    {kMatvec, kIQ3_S, 6144, 6144, 1024, 3000, {8, 1, 16, 8, false, true}, "6144x2560: 32,2,8,4 15.7 us -> 13.7 us"},
    {kMatvec, kIQ4_NL, 640, 640, 2560, 2560, {16, 2, 4, 4}, "640x2560: 32,4,8,4 6.6 us -> 5.9 us"},
    {kGateUp, kIQ2_S, 2560, 2560, 640, 640, {16, 4, 4, 1}, "10 of 2560x640 twice: 32,1,4,1 368 GB/s -> 513 GB/s"},
    {kGateUp, kIQ3_S, 2560, 2560, 640, 640, {8, 1, 8, 1, true, true}, "10 of 2560x640 twice: 16,4,4,1 not staged 23.6 us -> 18.6 us"},
    {kDown, kQ2_0, 640, 640, 2560, 2560, {4, 2, 8, 8}, "10 of 640x2560: 8,2,4,1 138 GB/s -> 299 GB/s"},
};

// Long rows and few of them: more simdgroups on a row, or most of the GPU would idle.
constexpr TileRow kBaseline[] = {
    {kMatvec, kF32, 4096, kAny, 1, 1024, {32, 1, 8, 4}, kUnmeasured},
    {kMatvec, kF16, 4096, kAny, 1, 1024, {32, 1, 8, 4}, kUnmeasured},
    {kMatvec, kBF16, 4096, kAny, 1, 1024, {32, 1, 8, 4}, kUnmeasured},
    {kMatvec, kQ8_0, 4096, kAny, 1, 1024, {32, 1, 8, 4}, kUnmeasured},
    // Rows of 640 have 20 parts: 8 lanes take them in 3 turns where 32 would idle for a third.
    {kDown, kQ2_0, 1, 1024, 1, kAny, {8, 2, 4, 1}, kUnmeasured},
};

}  // namespace

std::span<const TileRow> tile_rows(const char* family) {
  const std::string_view name = family;
  if (name == "apple10") return kApple10;
  if (name.starts_with("nvidia")) return kNvidia;
  return {};
}

TileTable::TileTable(const char* family) : rows_(std::begin(kBaseline), std::end(kBaseline)) {
  const std::span<const TileRow> own = tile_rows(family);
  rows_.insert(rows_.end(), own.begin(), own.end());
}

Tile TileTable::find(TileUse use, WeightType type, uint64_t rows, uint64_t cols) const {
  Tile tile;
  for (const TileRow& r : rows_) {
    if (r.use == use && r.type == type && r.min_rows <= rows && rows <= r.max_rows &&
        r.min_cols <= cols && cols <= r.max_cols) {
      tile = r.tile;
    }
  }
  return tile;
}

}  // namespace esker::gpu
