// SPDX-License-Identifier: MIT
//
// Kernels with known answers, which show that tests/simt does what Metal says. test_simt.py has the answers.
#include <metal_stdlib>

using namespace metal;

// Where a thread is. out: a row of 19 words a thread.
// grid: any
[[kernel]] void positions(device uint* out [[buffer(0)]],
                          uint3 in_grid [[thread_position_in_grid]],
                          ushort3 in_group [[thread_position_in_threadgroup]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint3 groups [[threadgroups_per_grid]],
                          uint3 threads [[threads_per_threadgroup]],
                          uint index [[thread_index_in_threadgroup]],
                          ushort lane [[thread_index_in_simdgroup]],
                          ushort simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]]) {
  const uint group_index = (group.z * groups.y + group.y) * groups.x + group.x;
  device uint* row = out + (group_index * threads.x * threads.y * threads.z + index) * 19;
  const uint values[19] = {in_grid.x,  in_grid.y, in_grid.z, in_group.x, in_group.y, in_group.z, group.x,
                           group.y,    group.z,   groups.x,  groups.y,   groups.z,   threads.x,  threads.y,
                           threads.z,  index,     lane,      simdgroup,  simdgroups};
  for (uint i = 0; i < 19; ++i) row[i] = values[i];
}

// What the lanes of a simdgroup do together. ints [24, threads], floats [5, threads].
// grid: groups (1, 1, 1) of up to 32 threads
[[kernel]] void simd_operations(device const int* x [[buffer(0)]],
                                device const float* y [[buffer(1)]],
                                device int* ints [[buffer(2)]],
                                device float* floats [[buffer(3)]],
                                uint lane [[thread_index_in_simdgroup]],
                                uint n [[threads_per_threadgroup]]) {
  const int v = x[lane];
  device int* out = ints + lane;
  out[0 * n] = simd_sum(v);
  out[1 * n] = simd_product(v % 3);
  out[2 * n] = simd_min(v);
  out[3 * n] = simd_max(v);
  out[4 * n] = simd_and(v);
  out[5 * n] = simd_or(v);
  out[6 * n] = simd_xor(v);
  out[7 * n] = simd_any(v > 90);
  out[8 * n] = simd_all(v > 90);
  out[9 * n] = simd_all(v >= 0);
  const simd_vote vote = simd_ballot(v > 50);
  out[10 * n] = int(simd_vote::vote_t(vote));
  out[11 * n] = simd_shuffle(v, ushort((lane * 5) % n));
  out[12 * n] = simd_shuffle_xor(v, ushort(1));
  out[13 * n] = simd_shuffle_down(v, ushort(3));
  out[14 * n] = simd_shuffle_up(v, ushort(3));
  out[15 * n] = simd_shuffle_rotate_down(v, ushort(7));
  out[16 * n] = simd_shuffle_rotate_up(v, ushort(7));
  out[17 * n] = simd_broadcast(v, ushort(9));
  out[18 * n] = simd_broadcast_first(v);
  out[19 * n] = simd_prefix_inclusive_sum(v);
  out[20 * n] = simd_prefix_exclusive_sum(v);
  out[21 * n] = simd_prefix_inclusive_product(v % 2 + 1);
  out[22 * n] = simd_prefix_exclusive_product(v % 2 + 1);
  out[23 * n] = simd_is_first();
  device float* f = floats + lane;
  f[0 * n] = simd_sum(y[lane]);
  f[1 * n] = simd_max(y[lane]);
  f[2 * n] = simd_prefix_inclusive_sum(y[lane]);
  const float4 sums = simd_sum(float4{y[lane], 1.0f, 2.0f, 3.0f});
  f[3 * n] = sums.x + sums.w;
  f[4 * n] = float(simd_sum(half(lane)));
}

// c = a b^T + c in 8 by 8 matrices: a [8, 16] begins at (2, 3) of a [12, 20] matrix.
// grid: groups (1, 1, 1) of 32 threads
template <typename T>
[[kernel]] void matrices(device const T* a [[buffer(0)]],
                         device const T* b [[buffer(1)]],
                         device float* c [[buffer(2)]],
                         device float* transposed [[buffer(3)]]) {
  simdgroup_matrix<float, 8, 8> sum, product;
  simdgroup_load(sum, c);
  for (uint k = 0; k < 16; k += 8) {
    simdgroup_matrix<T, 8, 8> left, right;
    simdgroup_load(left, a, 20, ulong2{3 + k, 2});
    simdgroup_load(right, b + k, 16, ulong2{0, 0}, true);
    simdgroup_multiply(product, left, right);
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  simdgroup_store(sum, c, 8);
  simdgroup_store(product, transposed, 8, ulong2{0, 0}, true);
}

template [[host_name("matrices_float")]] [[kernel]] decltype(matrices<float>) matrices<float>;
template [[host_name("matrices_half")]] [[kernel]] decltype(matrices<half>) matrices<half>;
template [[host_name("matrices_bfloat")]] [[kernel]] decltype(matrices<bfloat>) matrices<bfloat>;

// Every thread of the grid takes part in each sum.
// grid: any
[[kernel]] void atomics(device atomic_uint* sums [[buffer(0)]],
                        device atomic_int* extremes [[buffer(1)]],
                        device atomic_uint* place [[buffer(2)]],
                        device uint* list [[buffer(3)]],
                        uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&sums[0], i, memory_order_relaxed);
  atomic_fetch_sub_explicit(&sums[1], 1u, memory_order_relaxed);
  atomic_fetch_or_explicit(&sums[2], 1u << (i % 32), memory_order_relaxed);
  atomic_fetch_and_explicit(&sums[3], ~(1u << (i % 8)), memory_order_relaxed);
  atomic_fetch_xor_explicit(&sums[4], i, memory_order_relaxed);
  uint seen = atomic_load_explicit(&sums[5], memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&sums[5], &seen, seen + 2u, memory_order_relaxed,
                                                memory_order_relaxed)) {
  }
  atomic_fetch_min_explicit(&extremes[0], -int(i), memory_order_relaxed);
  atomic_fetch_max_explicit(&extremes[1], int(i), memory_order_relaxed);
  const uint at = atomic_fetch_add_explicit(place, 1u, memory_order_relaxed);
  list[at] = i;
}

constant bool with_bias [[function_constant(0)]];
constant uint count [[function_constant(1)]];
constant float scale [[function_constant(2)]];
constant uint optional_count [[function_constant(3)]];
constant uint twice = count * 2;
constant bool has_optional = is_function_constant_defined(optional_count);

constant int table[4] = {3, 1, 4, 1};

inline float biased(float v, device const float* bias, uint i) { return with_bias ? v + bias[i] : v; }

// grid: groups (1, 1, 1) of 32 threads
[[kernel]] void constants(device float* out [[buffer(0)]],
                          device const float* bias [[buffer(1), function_constant(with_bias)]],
                          uint i [[thread_index_in_threadgroup]]) {
  float v = i < twice ? scale * float(table[i % 4]) : 0.0f;
  v = biased(v, bias, i);
  out[i] = has_optional ? v + float(optional_count) : v;
}

// A row's sum through threadgroup memory whose size the host gives.
// grid: groups (rows, 1, 1) of any number of threads
[[kernel]] void reverse_row(device const packed_float3* x [[buffer(0)]],
                            device packed_float3* out [[buffer(1)]],
                            threadgroup float3* row [[threadgroup(0)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint i [[thread_index_in_threadgroup]],
                            uint n [[threads_per_threadgroup]]) {
  row[i] = x[group * n + i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[group * n + i] = row[n - 1 - i];
}

// Arithmetic of one thread. floats [28], words [20].
// grid: groups (1, 1, 1) of 1 thread
[[kernel]] void arithmetic(device const float* x [[buffer(0)]],
                           device float* floats [[buffer(1)]],
                           device uint* words [[buffer(2)]]) {
  const float a = x[0], b = x[1];
  uint i = 0;
  floats[i++] = precise::exp(a);
  floats[i++] = precise::log(b);
  floats[i++] = fast::exp2(a);
  floats[i++] = sqrt(b);
  floats[i++] = rsqrt(b);
  floats[i++] = tanh(a);
  floats[i++] = pow(b, a);
  floats[i++] = fma(a, b, 1.0f);
  floats[i++] = floor(-a);
  floats[i++] = rint(2.5f);
  floats[i++] = clamp(b, 0.0f, 1.0f);
  floats[i++] = select(a, b, a < b);
  floats[i++] = float(half(a) * half(2.0f));
  floats[i++] = float(bfloat(a));
  floats[i++] = float(bfloat(1.00390625f));  // halfway: to even
  floats[i++] = dot(float4{a, b, a, b}, float4{1.0f, 2.0f, 3.0f, 4.0f});
  float4 v = float4{a, b, 1.0f, 2.0f} * 2.0f;
  v += float4(1.0f);
  floats[i++] = v.x;
  floats[i++] = v[3];
  v = max(v, float4{100.0f, 0.0f, 0.0f, 0.0f});
  floats[i++] = v.x + v.y;
  floats[i++] = as_type<float>(0x3fc00000u);
  floats[i++] = float(as_type<half2>(0x3c004000u).y);
  floats[i++] = ldexp(a, 3);
  floats[i++] = float(any(float2{a, b} < float2{0.0f, 0.0f}));
  floats[i++] = abs(-a) + float(abs(-3));
  floats[i++] = exp(float2{a, b}).y;
  floats[i++] = copysign(b, -1.0f);
  floats[i++] = fmod(b, a);
  floats[i++] = isnan(log(-b)) ? 1.0f : 0.0f;
  i = 0;
  words[i++] = popcount(0xf0f0u);
  words[i++] = clz(1u);
  words[i++] = ctz(8u);
  words[i++] = extract_bits(0xabcdu, 4u, 8u);
  words[i++] = uint(extract_bits(int(0xf0), 4u, 4u));
  words[i++] = insert_bits(0u, 0xffu, 4u, 4u);
  words[i++] = rotate(0x80000001u, 4u);
  words[i++] = mulhi(0x80000000u, 6u);
  words[i++] = as_type<uint>(a);
  words[i++] = as_type<uint>(ushort2{1, 2});
  words[i++] = as_type<ushort>(half(1.0f));
  words[i++] = as_type<ushort>(bfloat(-2.0f));
  words[i++] = uint(sizeof(float3)) << 16 | uint(sizeof(packed_float3));
  words[i++] = uint(alignof(uint4)) << 16 | uint(alignof(packed_uint4));
  words[i++] = (uint4{1, 2, 3, 4} << 4u).w;
  words[i++] = uint(char4{-1, 2, 3, 4}.x);
  words[i++] = uint(uchar(300));
  words[i++] = min(7u, max3(1u, 9u, 4u));
  words[i++] = __METAL_VERSION__;
  words[i++] = uint(sizeof(ulong));
}
