// SPDX-License-Identifier: MIT
#include "backends/gpu/tune.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "backends/gpu/kernel_names.h"
#include "backends/gpu/lowering.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"

namespace esker::gpu {
namespace {

constexpr int64_t kPollNs = 20'000'000;
// Parts of x that the staging kernel has room for at a time, for one token.
constexpr uint32_t kStageParts = 128;

const char* base_of(TileUse use) {
  return use == TileUse::kMatvec ? "matvec" : use == TileUse::kGateUp ? "expert_gate_up" : "expert_down";
}

class Bench {
 public:
  Bench(Device& device, const TuneCase& what, const std::vector<Tile>& tiles, const std::function<void()>& poll)
      : what_(what), poll_(poll), queue_(device.queue()) {
    std::vector<KernelSpec> specs;
    for (const Tile& t : tiles) {
      Launch& l = launches_.emplace_back(made(t));
      specs.push_back({l.kernel, {l.constants.begin(), l.constants.begin() + l.n_constants}});
    }
    kernels_ = device.kernels(specs);
    matrix_bytes_ = weight_bytes(what.type, what.cols) * what.rows;
    const uint64_t at_once = bytes();
    copies_ = static_cast<uint32_t>(std::max<uint64_t>(div_ceil(what.bytes, at_once), 2));
    // Any bytes do: what a kernel computes does not change how long it takes. Small ones are finite floats.
    weights_ = device.allocate(at_once * copies_, MemoryUse::kWork, "weights to tune with");
    std::vector<uint8_t> pattern(size_t{61} << 16);
    for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<uint8_t>(i * 37 % 61);
    for (uint64_t at = 0; at < weights_->size_bytes(); at += pattern.size()) {
      weights_->write(at, pattern.data(), std::min<uint64_t>(pattern.size(), weights_->size_bytes() - at));
    }
    const uint64_t widest = uint64_t{std::max(what.rows, what.cols)} * what.top_k;
    x_ = device.allocate(widest * sizeof(float), MemoryUse::kWork, "activations");
    x_->write(0, std::vector<float>(widest, 0.5f).data(), widest * sizeof(float));
    y_ = device.allocate(widest * sizeof(float), MemoryUse::kWork, "results");
    ints_ = device.allocate((1 + 2 * records()) * sizeof(int32_t), MemoryUse::kWork, "slots and picks");
    std::vector<int32_t> ints(1 + 2 * size_t{records()});
    // Slots: expert e of the launch lies in slot e of its copy; picks and order: 0, 1, 2 ...
    ints[0] = 1;
    for (uint32_t i = 0; i < records(); ++i) {
      ints[1 + i] = static_cast<int32_t>(i);
      ints[1 + records() + i] = static_cast<int32_t>(i);
    }
    ints_->write(0, ints.data(), ints.size() * sizeof(int32_t));
  }

  uint64_t bytes() const { return matrix_bytes_ * matrices() * records(); }
  KernelResources resources(size_t tile) const { return kernels_[tile]->resources(); }

  // Nanoseconds of a launch with a tile, the mean of all in one command; on the device's clock where it has one.
  int64_t time(size_t tile) {
    const Launch& launch = launches_[tile];
    const int64_t start = now_ns(), device_start = queue_->device_ns();
    for (uint32_t i = 0; i < what_.launches; ++i) {
      const uint64_t copy = next_++ % copies_ * bytes();
      std::vector<Binding> bindings{{weights_.get(), copy}};
      const auto slots = Binding{ints_.get(), 0}, picks = Binding{ints_.get(), 4 * (1 + uint64_t{records()})};
      switch (what_.use) {
        case TileUse::kMatvec: bindings.insert(bindings.end(), {{x_.get(), 0}, {y_.get(), 0}}); break;
        case TileUse::kGateUp:
          bindings.insert(bindings.end(), {slots, picks, {x_.get(), 0}, {y_.get(), 0}});
          break;
        case TileUse::kDown:
          bindings.insert(bindings.end(),
                          {slots, picks, picks, {x_.get(), 0}, {x_.get(), 0}, {y_.get(), 0}});
          break;
      }
      queue_->barrier();
      queue_->dispatch({.kernel = kernels_[tile].get(),
                        .args = {launch.args.data(), launch.args_bytes},
                        .buffers = bindings,
                        .groups = launch.groups,
                        .threads = launch.threads});
    }
    queue_->commit();
    while (!queue_->finish(kPollNs)) {
      if (poll_) poll_();
    }
    const int64_t on_device = queue_->device_ns() - device_start;
    return (on_device > 0 ? on_device : now_ns() - start) / what_.launches;
  }

 private:
  uint32_t records() const { return what_.use == TileUse::kMatvec ? 1 : what_.top_k; }
  uint32_t matrices() const { return what_.use == TileUse::kGateUp ? 2 : 1; }

  Launch made(const Tile& tile) const {
    const auto row_bytes = static_cast<uint32_t>(weight_bytes(what_.type, what_.cols));
    const uint64_t record = matrix_bytes_ * matrices();
    switch (what_.use) {
      case TileUse::kGateUp:
        return gate_up_launch(what_.type,
                              {.slot_bytes = record, .gate_offset = 0, .up_offset = matrix_bytes_,
                               .tokens = 1, .top_k = what_.top_k, .n_expert = what_.top_k,
                               .width = what_.cols, .expert_width = what_.rows, .row_bytes = row_bytes,
                               .part = kGateAndUp, .tiles = 0},
                              tile, {});
      case TileUse::kDown:
        return down_launch(what_.type,
                           {.slot_bytes = record, .down_offset = 0, .tokens = 1, .top_k = what_.top_k,
                            .n_expert = what_.top_k, .width = what_.rows, .expert_width = what_.cols,
                            .row_bytes = row_bytes, .tiles = 0, .pad = 0},
                           tile, {});
      case TileUse::kMatvec: break;
    }
    return matvec_launch(what_.type,
                         {.rows = what_.rows, .cols = what_.cols, .tokens = 1, .row_bytes = row_bytes,
                          .x_stride = what_.cols, .y_stride = what_.rows, .epilogue = kPlain, .scale = 1},
                         tile, {});
  }

  const TuneCase& what_;
  const std::function<void()>& poll_;
  std::unique_ptr<Queue> queue_;
  std::vector<Launch> launches_;  // by tile
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::unique_ptr<DeviceMemory> weights_, x_, y_, ints_;
  uint64_t matrix_bytes_ = 0, next_ = 0;
  uint32_t copies_ = 0;
};

}  // namespace

bool tile_fits(TileUse use, WeightType type, const Tile& t) {
  const auto is_power = [](uint32_t n) { return std::has_single_bit(n); };
  return is_power(t.lanes) && t.lanes >= 4 && t.lanes <= 32 && is_power(t.rows) && t.rows <= 4 &&
         is_power(t.simdgroups) && t.simdgroups <= 16 && is_power(t.split) && t.split <= t.simdgroups &&
         (use != TileUse::kGateUp || t.split == 1) &&
         (!t.threadgroup_table || has_threadgroup_table(base_of(use), type)) &&
         (!t.stage || (use != TileUse::kDown && t.split * t.lanes <= kStageParts));
}

TuneTimes tune(Device& device, const TuneCase& what, const std::vector<Tile>& tiles,
               const std::function<void()>& poll) {
  for (const Tile& t : tiles) {
    if (tile_fits(what.use, what.type, t)) continue;
    raise(ErrorKind::kUsage, "tune",
          {.what = "the tile does not fit the kernel",
           .got = std::to_string(t.lanes) + "," + std::to_string(t.rows) + "," +
                  std::to_string(t.simdgroups) + "," + std::to_string(t.split),
           .want = "powers of two: lanes 4 to 32, rows to 4, simdgroups to 16, split to simdgroups",
           .where = weight_type_info(what.type).name,
           .hint = {}});
  }
  if (tiles.empty()) return {};
  Bench bench(device, what, tiles, poll);
  TuneTimes times{.bytes = bench.bytes(), .anchor_ns = {}, .tile_ns = {}, .resources = {}};
  times.tile_ns.resize(tiles.size());
  for (size_t i = 0; i < tiles.size(); ++i) times.resources.push_back(bench.resources(i));
  for (uint32_t r = 0; r <= what.repeats; ++r) {
    for (size_t i = 0; i < tiles.size(); ++i) {
      const int64_t ns = bench.time(i);
      if (r > 0) times.tile_ns[i].push_back(ns);
    }
    times.anchor_ns.push_back(bench.time(0));
  }
  return times;
}

}  // namespace esker::gpu
