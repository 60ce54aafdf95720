// SPDX-License-Identifier: MIT
//
// The probes measure what they say: counts and bytes of every type and shape, results checked on
// the way, wrong requests refused, interrupts and read errors passed on. No time is asserted.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "check.h"
#include "engine/probe.h"
#include "fault_file.h"
#include "formats/quants.h"
#include "gguf_bytes.h"

using namespace esker;
using namespace esker::test;

namespace {

const PollFn kNoPoll;

MatmulProbe small_probe(WeightType type) {
  return {.type = type, .rows = 12, .cols = 512, .tokens = 1, .copies = 2, .repeats = 2, .threads = 2};
}

bool all_positive(const std::vector<int64_t>& times) {
  return std::ranges::all_of(times, [](int64_t ns) { return ns > 0; });
}

std::string bytes_of(size_t n) {
  const std::vector<uint8_t> bytes = pattern_bytes(n, 1);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST(probe_blocks_decode_to_moderate_numbers) {
  for (const WeightTypeInfo& type : kWeightTypes) {
    const uint64_t n = 40;
    const std::vector<uint8_t> blocks = random_blocks(type.type, n * type.block_bytes, 7);
    CHECK_EQUAL(blocks.size(), n * type.block_bytes);
    std::vector<float> weights(n * type.block_elements);
    weight_decoder(type.type)(blocks.data(), weights.data(), static_cast<int64_t>(weights.size()));
    for (const float w : weights) CHECK(std::isfinite(w) && std::abs(w) <= 1.0f);
    CHECK(std::ranges::any_of(weights, [](float w) { return w != 0; }));
    CHECK(blocks == random_blocks(type.type, n * type.block_bytes, 7));
    CHECK(blocks != random_blocks(type.type, n * type.block_bytes, 8));
  }
}

TEST(probe_matmul_of_every_type) {
  for (const WeightTypeInfo& type : kWeightTypes) {
    const MatmulTimes times = probe_matmul(small_probe(type.type), kNoPoll);
    CHECK_EQUAL(times.matrix_bytes, weight_bytes(type.type, 12 * 512));
    CHECK_EQUAL(times.read_bytes, 2 * times.matrix_bytes);
    CHECK_EQUAL(times.op_ns.size(), 4u);
    CHECK_EQUAL(times.read_ns.size(), 2u);
    CHECK(all_positive(times.op_ns) && all_positive(times.read_ns));
  }
}

TEST(probe_matmul_of_several_tokens_and_odd_rows) {
  for (const uint64_t rows : {1u, 7u, 129u}) {
    for (const uint32_t tokens : {1u, 3u, 17u}) {
      MatmulProbe probe = small_probe(WeightType::kQ8_0);
      probe.rows = rows;
      probe.cols = 96;
      probe.tokens = tokens;
      CHECK_EQUAL(probe_matmul(probe, kNoPoll).op_ns.size(), 4u);
    }
  }
}

TEST(probe_matmul_refuses_impossible_shapes) {
  MatmulProbe probe = small_probe(WeightType::kQ6_K);
  probe.cols = 100;
  CHECK_EQUAL(MESSAGE_OF(Error, probe_matmul(probe, kNoPoll)),
              "[probe] columns of the matrix: got 100, want a multiple of 256 for Q6_K");
  probe = small_probe(WeightType::kF32);
  probe.copies = 0;
  CHECK_EQUAL(MESSAGE_OF(Error, probe_matmul(probe, kNoPoll)),
              "[probe] copies: got 0, want 1 to 1048576");
  probe.copies = probe.repeats = 1u << 20;
  probe.rows = 1u << 24;
  CHECK(MESSAGE_OF(Error, probe_matmul(probe, kNoPoll)).starts_with("[probe] bytes of all copies"));
}

TEST(probe_matmul_can_be_interrupted) {
  int polls = 0;
  const PollFn poll = [&] {
    if (++polls == 4) throw Interrupted();
  };
  bool interrupted = false;
  try {
    probe_matmul(small_probe(WeightType::kF16), poll);
  } catch (const Interrupted&) {
    interrupted = true;
  }
  CHECK(interrupted);
}

TEST(probe_read_times_every_repeat) {
  const std::vector<int64_t> times = probe_read(1000003, 5, 2, kNoPoll);
  CHECK_EQUAL(times.size(), 5u);
  CHECK(all_positive(times));
  CHECK(MESSAGE_OF(Error, probe_read(0, 1, 1, kNoPoll)).starts_with("[probe] bytes to read"));
}

TEST(probe_disk_reads_what_was_asked_for) {
  const TempFolder folder;
  const std::string path = folder.write("data.bin", bytes_of(300001));
  for (const uint32_t depth : {1u, 3u}) {
    for (const uint64_t read_bytes : {uint64_t{4096}, uint64_t{5000}, uint64_t{300001}}) {
      const DiskProbe probe{.path = path, .read_bytes = read_bytes, .depth = depth,
                            .readers = 2, .total_bytes = 700000, .seed = 3};
      const DiskTimes times = probe_disk(probe, kNoPoll);
      const uint64_t reads = (700000 + read_bytes - 1) / read_bytes;
      CHECK_EQUAL(times.latency_ns.size(), reads);
      CHECK_EQUAL(times.bytes, reads * read_bytes);
      CHECK(all_positive(times.latency_ns));
      CHECK(times.ns >= *std::ranges::max_element(times.latency_ns));
    }
  }
}

TEST(probe_disk_refuses_and_is_interrupted) {
  const TempFolder folder;
  const std::string path = folder.write("data.bin", bytes_of(10000));
  DiskProbe probe{.path = path, .read_bytes = 10001, .total_bytes = 10001};
  CHECK_EQUAL(MESSAGE_OF(Error, probe_disk(probe, kNoPoll)),
              "[probe] bytes of a read: got 10001, want 1 to 10000");
  probe.read_bytes = 10000;
  probe.depth = 0;
  CHECK(MESSAGE_OF(Error, probe_disk(probe, kNoPoll)).starts_with("[probe] depth"));
  probe.depth = 2;
  probe.total_bytes = uint64_t{1} << 37;  // more than a test would wait for
  bool interrupted = false;
  try {
    probe_disk(probe, [] { throw Interrupted(); });
  } catch (const Interrupted&) {
    interrupted = true;
  }
  CHECK(interrupted);
  probe.path = folder.path("nothing");
  CHECK(MESSAGE_OF(Error, probe_disk(probe, kNoPoll)).starts_with("[io] cannot open"));
}
