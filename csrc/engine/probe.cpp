// SPDX-License-Identifier: MIT
#include "engine/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "backends/cpu/cpu_backend.h"
#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "formats/quants.h"
#include "graph/weights.h"
#include "io/file.h"
#include "io/read_queue.h"

namespace esker {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 38;  // of a probe's buffers: a mistake, not a machine
constexpr uint32_t kCountMax = 1u << 20;           // copies, repeats, tokens
constexpr uint32_t kDepthMax = 256;
constexpr Role kProbeRole = Role::kQkv;  // any matrix will do
// Blocks are drawn until the largest of their weights lies here: far from overflow, and far from
// the subnormal numbers that processors are slow with.
constexpr float kWeightMin = 0x1p-10f, kWeightMax = 1.0f;
constexpr uint64_t kPoolBytes = uint64_t{64} << 10;
// Kernels may round activations to 8 bits (2 %); whatever is farther off is wrong.
constexpr double kErrorMax = 0.1;
constexpr uint64_t kRowsChecked = 8;

[[noreturn]] void refuse(const char* what, uint64_t got, std::string want) {
  raise(ErrorKind::kUsage, "probe",
        {.what = what, .got = std::to_string(got), .want = std::move(want), .where = {}, .hint = {}});
}

void check_between(const char* what, uint64_t got, uint64_t low, uint64_t high) {
  if (got >= low && got <= high) return;
  refuse(what, got, std::to_string(low) + " to " + std::to_string(high));
}

int thread_count(int threads) { return threads > 0 ? threads : machine_cores(); }

// A row of a model's graph: one matrix product of the matrix of layer `copy`.
Graph one_matmul(uint64_t rows, uint64_t cols, int32_t copy) {
  const auto in_width = static_cast<uint32_t>(cols), out_width = static_cast<uint32_t>(rows);
  Graph graph{.mode = GraphMode::kWindow, .buffers = {}, .ops = {}, .segments = {},
              .scratch_width = cols + rows};
  graph.buffers.push_back({"x", BufferKind::kScratch, in_width, false, 0, 0, 0});
  graph.buffers.push_back({"y", BufferKind::kScratch, out_width, false, 0, 0, cols});
  Op op{.kind = OpKind::kMatmul};
  op.layer = copy;
  op.w[0] = {kProbeRole, copy};
  op.in[0] = 0;
  op.out[0] = 1;
  graph.ops.push_back(op);
  return graph;
}

class NoTurns final : public HostTurns {
 public:
  void begin_turn(int, std::span<const int32_t>, std::span<const int32_t>) override {}
  void guessed(int, std::span<const float>) override {}
  ExpertRound finish_turn(int, int) override { return {}; }
  void after_turn(int) override {}
};

// Sums 64-bit words: one load and one addition each, which no memory can keep up with.
uint64_t sum_words(const uint8_t* data, int64_t words) {
  uint64_t sum[8] = {};
  int64_t i = 0;
  for (; i + 8 <= words; i += 8) {
    uint64_t v[8];
    std::memcpy(v, data + 8 * i, sizeof v);
    for (int k = 0; k < 8; ++k) sum[k] += v[k];
  }
  for (; i < words; ++i) {
    uint64_t v;
    std::memcpy(&v, data + 8 * i, sizeof v);
    sum[0] += v;
  }
  return std::accumulate(sum, sum + 8, uint64_t{0});
}

// A plain read with all threads of a pool, in parts that suit the hardware prefetchers.
class Reader {
 public:
  explicit Reader(int threads, const PollFn& poll) : pool_(threads) { pool_.set_poll(poll); }

  int64_t time_ns(const uint8_t* data, uint64_t bytes) {
    constexpr int64_t kPartWords = 1 << 15;
    const int64_t begin_ns = now_ns();
    pool_.parallel_for(static_cast<int64_t>(bytes / 8), kPartWords, [&](int64_t begin, int64_t end, int) {
      sink_.fetch_add(sum_words(data + 8 * begin, end - begin), std::memory_order_relaxed);
    });
    return now_ns() - begin_ns;
  }

 private:
  ThreadPool pool_;
  std::atomic<uint64_t> sink_{0};  // so that nothing is optimised away
};

void check_result(const MatmulProbe& probe, const Weight& w, const float* x, const float* y) {
  std::vector<float> row(probe.cols);
  for (uint64_t r = 0; r < std::min(kRowsChecked, probe.rows); ++r) {
    weight_decoder(w.type)(w.data + r * w.row_bytes(), row.data(), static_cast<int64_t>(probe.cols));
    for (uint64_t t = 0; t < probe.tokens; ++t) {
      double sum = 0, square = 0;
      for (uint64_t i = 0; i < probe.cols; ++i) {
        const double term = double{row[i]} * double{x[t * probe.cols + i]};
        sum += term;
        square += term * term;
      }
      const double got = double{y[t * probe.rows + r]};
      if (std::abs(got - sum) <= kErrorMax * std::sqrt(square) + 1e-6) continue;
      raise(ErrorKind::kNumeric, "probe",
            {.what = "the matrix product is wrong, so its time means nothing",
             .got = std::to_string(got),
             .want = std::to_string(sum),
             .where = std::string(weight_type_info(w.type).name) + ", row " + std::to_string(r) +
                      ", token " + std::to_string(t),
             .hint = "please report this with your processor's name"});
    }
  }
}

void check_probe(const MatmulProbe& probe) {
  const WeightTypeInfo& type = weight_type_info(probe.type);
  check_between("rows of the matrix", probe.rows, 1, 1u << 24);
  check_between("columns of the matrix", probe.cols, 1, 1u << 24);
  check_between("tokens", probe.tokens, 1, kCountMax);
  check_between("copies", probe.copies, 1, kCountMax);
  check_between("repeats", probe.repeats, 1, kCountMax);
  if (probe.cols % type.block_elements != 0) {
    refuse("columns of the matrix", probe.cols,
           "a multiple of " + std::to_string(type.block_elements) + " for " + type.name);
  }
  const uint64_t bytes = weight_bytes(probe.type, probe.cols) * probe.rows;
  check_between("bytes of all copies", bytes * probe.copies, 1, kBytesMax);
}

}  // namespace

std::vector<uint8_t> random_blocks(WeightType type, uint64_t bytes, uint64_t seed) {
  const WeightTypeInfo& info = weight_type_info(type);
  const DecodeFn decode = weight_decoder(type);
  std::mt19937_64 random(seed);
  std::vector<uint8_t> block(info.block_bytes);
  std::vector<float> weights(info.block_elements);
  std::vector<uint8_t> blocks;
  blocks.reserve(bytes + info.block_bytes);
  while (blocks.size() < bytes) {
    for (size_t i = 0; i < block.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(block.data() + i, &word, std::min<size_t>(8, block.size() - i));
    }
    decode(block.data(), weights.data(), static_cast<int64_t>(weights.size()));
    float largest = 0;
    bool finite = true;
    for (const float w : weights) {
      finite = finite && std::isfinite(w);
      largest = std::max(largest, std::abs(w));
    }
    if (!finite || largest < kWeightMin || largest > kWeightMax) continue;
    blocks.insert(blocks.end(), block.begin(), block.end());
  }
  return blocks;
}

MatmulTimes probe_matmul(const MatmulProbe& probe, const PollFn& poll) {
  check_probe(probe);
  const uint64_t block_bytes = weight_type_info(probe.type).block_bytes;
  const uint64_t row_bytes = weight_bytes(probe.type, probe.cols);
  const uint64_t bytes = row_bytes * probe.rows;
  std::mt19937_64 random(1);

  // Rows are stretches of a pool of checked blocks, from random places.
  const std::vector<uint8_t> pool = random_blocks(probe.type, std::max(kPoolBytes, 2 * row_bytes), 1);
  const uint64_t places = (pool.size() - row_bytes) / block_bytes + 1;
  AlignedBuffer matrices(bytes * probe.copies, "the matrices of a probe");
  for (uint64_t r = 0; r < probe.rows * probe.copies; ++r) {
    std::memcpy(matrices.data() + r * row_bytes, pool.data() + random() % places * block_bytes, row_bytes);
    if (poll && r % 1024 == 0) poll();
  }
  std::vector<Weight> copies;
  std::vector<Graph> graphs;
  for (uint32_t i = 0; i < probe.copies; ++i) {
    copies.push_back({matrices.data() + bytes * i, probe.type, probe.rows, probe.cols, bytes});
    graphs.push_back(one_matmul(probe.rows, probe.cols, static_cast<int32_t>(i)));
  }
  Config config;
  config.n_layer = probe.copies;
  const Weights weights(kProbeRole, copies);
  const int threads = thread_count(probe.threads);
  const std::unique_ptr<Backend> backend =
      make_cpu_backend(config, weights, {.threads = threads, .activations = probe.activations});

  const uint64_t n_x = probe.cols * probe.tokens;
  const auto scratch =
      backend->allocate((n_x + probe.rows * probe.tokens) * sizeof(float), MemoryUse::kWork, "the vectors of a probe");
  std::normal_distribution<float> normal;
  std::generate_n(scratch->floats(), n_x, [&] { return normal(random); });
  const Run run{.n_tokens = probe.tokens, .scratch = scratch.get()};
  NoTurns turns;
  Reader reader(threads, poll);
  MatmulTimes times{.matrix_bytes = bytes, .read_bytes = bytes * probe.copies, .op_ns = {}, .read_ns = {}};
  for (uint32_t repeat = 0; repeat < probe.repeats; ++repeat) {
    for (uint32_t i = 0; i < probe.copies; ++i) {
      const int64_t begin_ns = now_ns();
      backend->run_graph_seg(graphs[i], run, turns, poll);
      times.op_ns.push_back(now_ns() - begin_ns);
      if (repeat == 0) check_result(probe, copies[i], scratch->floats(), scratch->floats() + n_x);
    }
    times.read_ns.push_back(reader.time_ns(matrices.data(), times.read_bytes));
  }
  return times;
}

std::vector<int64_t> probe_read(uint64_t bytes, uint32_t repeats, int threads, const PollFn& poll) {
  check_between("bytes to read", bytes, 8, kBytesMax);
  check_between("repeats", repeats, 1, kCountMax);
  AlignedBuffer buffer(bytes, "the buffer of a probe");
  std::memset(buffer.data(), 0x5a, bytes);  // pages of its own, not the system's page of zeros
  Reader reader(thread_count(threads), poll);
  std::vector<int64_t> times;
  for (uint32_t i = 0; i < repeats; ++i) times.push_back(reader.time_ns(buffer.data(), bytes));
  return times;
}

namespace {

// The requests of a disk probe: taken one by one by the threads that keep them under way.
struct Requests {
  std::shared_ptr<File> file;
  ReadQueue queue;
  uint64_t read_bytes;
  std::vector<uint64_t> offsets;
  std::vector<int64_t> latency_ns;  // [offsets]; each written by the thread that took it
  std::atomic<size_t> next{0};
  std::atomic<uint32_t> left;       // threads still at work
  std::mutex mutex;                 // guards what follows
  std::exception_ptr error;         // the first
  int64_t end_ns = 0;               // of the last request

  // Asks, waits, asks again until nothing is left.
  void work() {
    try {
      AlignedBuffer to(align_up(read_bytes, uint64_t{4096}), "a read of the disk probe");
      for (size_t i; (i = next.fetch_add(1)) < offsets.size();) {
        const int64_t begin_ns = now_ns();
        const auto ticket =
            queue.submit({{.file = file, .offset = offsets[i], .bytes = read_bytes, .to = to.data()}},
                         ReadPriority::kDemand);
        queue.wait(*ticket, {});
        latency_ns[i] = now_ns() - begin_ns;
      }
      const std::lock_guard lock(mutex);
      end_ns = std::max(end_ns, now_ns());
    } catch (...) {
      next = offsets.size();
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    left.fetch_sub(1);
  }
};

std::vector<uint64_t> random_places(const DiskProbe& probe, uint64_t file_bytes) {
  const uint64_t stride = align_up(probe.read_bytes, uint64_t{4096});
  std::vector<uint64_t> places((file_bytes - probe.read_bytes) / stride + 1);
  for (size_t i = 0; i < places.size(); ++i) places[i] = i * stride;
  std::shuffle(places.begin(), places.end(), std::mt19937_64(probe.seed));
  const uint64_t n = div_ceil(probe.total_bytes, probe.read_bytes);
  std::vector<uint64_t> offsets(n);
  for (size_t i = 0; i < n; ++i) offsets[i] = places[i % places.size()];
  return offsets;
}

}  // namespace

DiskTimes probe_disk(const DiskProbe& probe, const PollFn& poll) {
  const std::shared_ptr<File> file = open_direct(probe.path);
  check_between("bytes of a read", probe.read_bytes, 1, file->size_bytes());
  check_between("bytes to read", probe.total_bytes, 1, kBytesMax);
  check_between("reads", div_ceil(probe.total_bytes, probe.read_bytes), 1, 1u << 24);
  check_between("depth", probe.depth, 1, kDepthMax);
  const uint32_t readers = probe.readers == 0 ? probe.depth : probe.readers;
  check_between("reader threads", readers, 1, kDepthMax);

  Requests requests{.file = file,
                    .queue = ReadQueue(static_cast<int>(readers)),
                    .read_bytes = probe.read_bytes,
                    .offsets = random_places(probe, file->size_bytes()),
                    .latency_ns = {},
                    .left = probe.depth,
                    .mutex = {},
                    .error = {},
                    .end_ns = 0};
  requests.latency_ns.resize(requests.offsets.size());
  std::vector<std::thread> askers;
  const auto stop = [&] {
    requests.next = requests.offsets.size();
    for (std::thread& asker : askers) asker.join();
  };
  const int64_t begin_ns = now_ns();
  try {
    for (uint32_t i = 0; i < probe.depth; ++i) askers.emplace_back([&] { requests.work(); });
    while (requests.left.load() != 0) {
      if (poll) poll();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  } catch (...) {
    stop();
    throw;
  }
  stop();
  if (requests.error) std::rethrow_exception(requests.error);
  return {.is_direct = file->is_direct(),
          .bytes = probe.read_bytes * requests.offsets.size(),
          .ns = requests.end_ns - begin_ns,
          .latency_ns = std::move(requests.latency_ns)};
}

}  // namespace esker
