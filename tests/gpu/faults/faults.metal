// SPDX-License-Identifier: MIT
//
// Sound kernels, each with faults that can be switched on: `fault` says which, 0 is none. test_simt.py
// knows how each must be found.
#include <metal_stdlib>

using namespace metal;

constant uint fault [[function_constant(0)]];

struct RowArgs {
  uint rows, cols;
};

enum { kChunk = 256, kSimdgroups = 4 };

// out[row] = sum of squares of x[row], through threadgroup memory by chunks.
// grid: groups (rows, 1, 1) of 128 threads
[[kernel]] void row_squares(constant RowArgs& args [[buffer(0)]],
                            device const float* x [[buffer(1)]],
                            device float* out [[buffer(2)]],
                            uint row [[threadgroup_position_in_grid]],
                            uint tid [[thread_index_in_threadgroup]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float chunk[kChunk];
  threadgroup float partial[kSimdgroups];
  device const float* from = x + row * args.cols + (fault == 5 ? 1u : 0u);
  float sum = 0.0f;
  for (uint begin = 0; begin < args.cols; begin += kChunk) {
    const uint n = min(args.cols - begin, uint(kChunk));
    for (uint i = tid; i < n; i += 128) {
      chunk[i + (fault == 7 && i == kChunk - 1 ? 1 : 0)] = from[begin + i];
    }
    if (fault == 4) simdgroup_barrier(mem_flags::mem_threadgroup);
    if (fault == 16) threadgroup_barrier(mem_flags::mem_none);
    if (fault != 1 && fault != 4 && fault != 16) threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < n; i += 128) {
      const float v = chunk[n - 1 - i];
      sum += v * v;
    }
    if (fault != 2) threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (fault == 10 && lane == 31) return;
  if (fault == 17 && simdgroup == 3) return;
  if (fault != 9 || lane < 16) sum = simd_sum(sum);
  if (lane == 0 && !(fault == 8 && simdgroup == 3)) partial[simdgroup] = sum;
  if (fault == 11) {
    if (simdgroup < 2) threadgroup_barrier(mem_flags::mem_threadgroup);
  } else if (fault == 13 && simdgroup < 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else if (fault != 3) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (simdgroup == 0) {
    float v = lane < kSimdgroups ? partial[lane] : 0.0f;
    v = simd_sum(v);
    if (lane == 0) out[row + (fault == 6 ? 1u : 0u)] = v;
  }
}

struct TileArgs {
  uint size;  // of square matrices, a multiple of 32
};

// c = a b in tiles of 32 by 32.
// grid: groups (size / 32, size / 32, 1) of 128 threads
[[kernel]] void tile_product(constant TileArgs& args [[buffer(0)]],
                             device const half* a [[buffer(1)]],
                             device const half* b [[buffer(2)]],
                             device float* c [[buffer(3)]],
                             uint2 tile [[threadgroup_position_in_grid]],
                             ushort tid [[thread_index_in_threadgroup]],
                             ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup half left[32 * 16];
  threadgroup half right[16 * 32];
  threadgroup float out[32 * 32];
  const uint row = tile.y * 32, column = tile.x * 32;
  const uint first_row = simdgroup / 2 * 16;
  const uint first_column = simdgroup % 2 * (fault == 2 ? 8 : 16);
  simdgroup_float8x8 sums[2][2];
  for (uint i = 0; i < 4; ++i) sums[i / 2][i % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k = 0; k < args.size; k += 16) {
    for (uint i = tid; i < 512; i += 128) {
      left[i] = a[(row + i / 16) * args.size + k + i % 16];
      right[i] = b[(k + i / 32) * args.size + column + i % 32];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 0; step < 16; step += 8) {
      simdgroup_half8x8 l[2], r[2];
      for (uint i = 0; i < 2; ++i) {
        simdgroup_load(l[i], left + (first_row + 8 * i) * 16 + step, 16);
        simdgroup_load(r[i], right + step * 32 + first_column + 8 * i, 32);
      }
      for (uint i = 0; i < 4; ++i) {
        simdgroup_multiply_accumulate(sums[i / 2][i % 2], l[i / 2], r[i % 2], sums[i / 2][i % 2]);
      }
    }
    if (fault != 1) threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = 0; i < 4; ++i) {
    const uint at = (first_row + 8 * (i / 2)) * 32 + simdgroup % 2 * 16 + 8 * (i % 2);
    simdgroup_store(sums[i / 2][i % 2], out + at, 32);
  }
  if (fault != 3) simdgroup_barrier(mem_flags::mem_threadgroup);
  // Each simdgroup writes the 16 by 16 elements that it stored.
  for (uint i = tid % 32; i < 256; i += 32) {
    const uint r = first_row + i / 16, s = simdgroup % 2 * 16 + i % 16;
    c[(row + r) * args.size + column + s] = out[r * 32 + s];
  }
}

struct CountArgs {
  uint n, per_group;
};

enum { kBins = 16 };

// bins[v] += how often v occurs; values are below 16.
// grid: groups (ceil(n / per_group), 1, 1) of 64 threads
[[kernel]] void count_values(constant CountArgs& args [[buffer(0)]],
                             device const uint* values [[buffer(1)]],
                             device atomic_uint* bins [[buffer(2)]],
                             uint group [[threadgroup_position_in_grid]],
                             uint tid [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint counts[kBins];
  if (tid < kBins) atomic_store_explicit(&counts[tid], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint end = min((group + 1) * args.per_group, args.n);
  for (uint i = group * args.per_group + tid; i < end; i += 64) {
    threadgroup atomic_uint* count = &counts[values[i] % (fault == 3 ? 0u * args.n : uint(kBins))];
    if (fault == 1) {
      threadgroup uint* plain_count = (threadgroup uint*)count;
      *plain_count += 1u;
    } else {
      atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid >= kBins) return;
  const uint count = atomic_load_explicit(&counts[tid], memory_order_relaxed);
  if (fault == 2) {
    device uint* bin = (device uint*)(bins + tid);
    *bin += count;
  } else {
    atomic_fetch_add_explicit(&bins[tid], count, memory_order_relaxed);
  }
}

// out[i] = how far it is to x[0], by way of the neighbour: whoever is first decides when groups look at each
// other's results, which no order between threadgroups allows.
// grid: groups (n / 32, 1, 1) of 32 threads
[[kernel]] void chain(constant uint& n [[buffer(0)]],
                      device const float* x [[buffer(1)]],
                      device float* out [[buffer(2)]],
                      uint i [[thread_position_in_grid]]) {
  if (i >= n) return;
  out[i] = fault == 1 && i >= 32 ? out[i - 32] + x[i] : x[i];
}

// More threadgroup memory than there is, when asked for.
// grid: groups (1, 1, 1) of 32 threads
template <uint kWords>
[[kernel]] void large(device float* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float words[kWords];
  words[kWords - 1 - lane] = float(lane);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[lane] = words[kWords - 32 + lane];
}

template [[host_name("large_8192")]] [[kernel]] decltype(large<8192>) large<8192>;
template [[host_name("large_8193")]] [[kernel]] decltype(large<8193>) large<8193>;
