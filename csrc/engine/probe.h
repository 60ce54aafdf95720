// SPDX-License-Identifier: MIT
//
// Measures the parts that a token's time is made of, on their own: matrix products through the
// backend that runs models, plain reads of memory with the same threads, direct reads of a file
// through the queue that reads experts. Whatever gets faster there shows here without a change.
//
// Every probe returns raw nanoseconds, one per repeat, and the bytes they stand for; what follows
// from them is the caller's business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "abi/weight_types.h"
#include "backends/cpu/cpu_backend.h"
#include "graph/backend.h"

namespace esker {

struct MatmulProbe {
  WeightType type = WeightType::kF32;
  uint64_t rows = 0, cols = 0;  // of a matrix; cols a whole number of blocks
  uint32_t tokens = 1;          // vectors multiplied at once
  uint32_t copies = 1;          // different matrices, used in turn: together larger than the caches
  uint32_t repeats = 1;         // passes over all copies
  int threads = 0;              // 0: one per available core
  Activations activations = Activations::kExact;
};

struct MatmulTimes {
  uint64_t matrix_bytes = 0;
  uint64_t read_bytes = 0;       // of all copies
  std::vector<int64_t> op_ns;    // [repeats * copies]
  std::vector<int64_t> read_ns;  // [repeats]: a plain read of all copies after each pass
};

// Random valid blocks, random vectors. The first rows of every result are checked against the scalar
// decoder: a wrong kernel throws Error(kNumeric). Throws Error(kUsage) for an impossible shape.
MatmulTimes probe_matmul(const MatmulProbe& probe, const PollFn& poll);

// Reads a buffer of that many bytes with the given threads (0: one per available core): ns each.
std::vector<int64_t> probe_read(uint64_t bytes, uint32_t repeats, int threads, const PollFn& poll);

struct DiskProbe {
  std::string path;
  uint64_t read_bytes = 0;   // of one request
  uint32_t depth = 1;        // requests under way at a time
  uint32_t readers = 0;      // threads that carry them out; 0: as many as depth
  uint64_t total_bytes = 0;  // read in all, rounded up to whole requests
  uint64_t seed = 1;         // of the order of places
};

struct DiskTimes {
  bool is_direct = false;  // whether reads went past the page cache
  uint64_t bytes = 0;      // read in all
  int64_t ns = 0;          // from the first request to the end of the last
  std::vector<int64_t> latency_ns;  // of each request, from asking to having
};

// Reads stretches of a file in random order, each once before any is read again. Throws
// Error(kUsage) if the file is shorter than one request, Error(kRead) if a read fails.
DiskTimes probe_disk(const DiskProbe& probe, const PollFn& poll);

// `bytes` of random blocks whose weights are finite and of moderate size; a whole number of blocks.
std::vector<uint8_t> random_blocks(WeightType type, uint64_t bytes, uint64_t seed);

}  // namespace esker
