// SPDX-License-Identifier: MIT
//
// Metal's types and functions for kernels that tools/msl.py has translated for NVRTC. It stands at the head of
// every translated text and includes nothing, so that only the compiler itself is needed. Functions without a
// space are the device's (--device-as-default-execution-space), products and sums stay as written
// (--fmad=false). Only what a kernel may use is here. A missing name fails to compile.
#pragma once

#define __METAL_VERSION__ 310
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
#define MAXFLOAT 3.402823466e+38f
#define M_PI_F 3.14159265358979323846f

namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

// A half as it is stored; it becomes a float to be computed with.
struct half {
  ushort bits;
  operator float() const {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
  }
};

// Vectors. A packed one has the alignment of its elements, the other that of its size.
template <typename T, int N, bool kPacked>
struct Elements;
template <typename T>
struct alignas(2 * sizeof(T)) Elements<T, 2, false> {
  T x, y;
};
template <typename T>
struct alignas(4 * sizeof(T)) Elements<T, 3, false> {
  T x, y, z;
};
template <typename T>
struct alignas(4 * sizeof(T)) Elements<T, 4, false> {
  T x, y, z, w;
};

template <typename T, int N>
struct vec : Elements<T, N, false> {
  vec() = default;
  explicit vec(T all) {
#pragma unroll
    for (int i = 0; i < N; ++i) (*this)[i] = all;
  }
  template <typename A, typename B>
  vec(A a, B b) : Elements<T, N, false>{T(a), T(b)} {}
  template <typename A, typename B, typename C>
  vec(A a, B b, C c) : Elements<T, N, false>{T(a), T(b), T(c)} {}
  template <typename A, typename B, typename C, typename D>
  vec(A a, B b, C c, D d) : Elements<T, N, false>{T(a), T(b), T(c), T(d)} {}
  T& operator[](int i) { return reinterpret_cast<T*>(this)[i]; }
  const T& operator[](int i) const { return reinterpret_cast<const T*>(this)[i]; }
};

#define MSL_VECTORS(T)    \
  typedef vec<T, 2> T##2; \
  typedef vec<T, 3> T##3; \
  typedef vec<T, 4> T##4;
MSL_VECTORS(float)
MSL_VECTORS(half)
MSL_VECTORS(uchar)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(ulong)
#undef MSL_VECTORS

// The type of an operand that must not take part in deduction: v * 2.0f takes T from v alone.
template <typename T>
struct Same {
  typedef T type;
};
template <typename T>
using plain = typename Same<T>::type;

#define MSL_OPERATOR(op)                                                   \
  template <typename T, int N>                                             \
  inline vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {   \
    vec<T, N> r;                                                           \
    _Pragma("unroll") for (int i = 0; i < N; ++i) r[i] = T(a[i] op b[i]);  \
    return r;                                                              \
  }                                                                        \
  template <typename T, int N>                                             \
  inline vec<T, N> operator op(const vec<T, N>& a, plain<T> b) {           \
    return a op vec<T, N>(b);                                              \
  }                                                                        \
  template <typename T, int N>                                             \
  inline vec<T, N> operator op(plain<T> a, const vec<T, N>& b) {           \
    return vec<T, N>(a) op b;                                              \
  }                                                                        \
  template <typename T, int N, typename B>                                 \
  inline vec<T, N>& operator op##=(vec<T, N>& a, const B& b) {             \
    return a = a op b;                                                     \
  }
MSL_OPERATOR(+)
MSL_OPERATOR(-)
MSL_OPERATOR(*)
MSL_OPERATOR(/)
MSL_OPERATOR(&)
MSL_OPERATOR(|)
MSL_OPERATOR(^)
#undef MSL_OPERATOR

template <typename To, typename From>
inline To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the sizes differ");
  return *reinterpret_cast<const To*>(&from);
}
template <>
inline float as_type<float, uint>(const uint& from) {
  return __uint_as_float(from);
}
template <>
inline uint as_type<uint, float>(const float& from) {
  return __float_as_uint(from);
}
template <>
inline uint as_type<uint, ushort2>(const ushort2& from) {
  return uint(from.x) | uint(from.y) << 16;
}
template <>
inline half2 as_type<half2, uint>(const uint& from) {
  half2 r;
  r.x.bits = ushort(from);
  r.y.bits = ushort(from >> 16);
  return r;
}
template <>
inline half as_type<half, ushort>(const ushort& from) {
  return half{from};
}

// Functions of floats; `precise` and plain are the same here, correctly rounded or within 1 to 2 ulp.
#define MSL_FUNCTIONS                                                             \
  inline float exp(float x) { return ::expf(x); }                                 \
  inline float log(float x) { return ::logf(x); }                                 \
  inline float sqrt(float x) { return __fsqrt_rn(x); }                            \
  inline float rsqrt(float x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }          \
  inline float sin(float x) { return ::sinf(x); }                                 \
  inline float cos(float x) { return ::cosf(x); }                                 \
  inline float floor(float x) { return ::floorf(x); }                             \
  inline float ceil(float x) { return ::ceilf(x); }                               \
  inline float rint(float x) { return ::rintf(x); }                               \
  inline float fabs(float x) { return ::fabsf(x); }                               \
  inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }      \
  template <int N>                                                                \
  inline vec<float, N> fma(const vec<float, N>& a, const vec<float, N>& b, const vec<float, N>& c) { \
    vec<float, N> r;                                                              \
    _Pragma("unroll") for (int i = 0; i < N; ++i) r[i] = __fmaf_rn(a[i], b[i], c[i]); \
    return r;                                                                     \
  }
MSL_FUNCTIONS
namespace precise {
MSL_FUNCTIONS
}
#undef MSL_FUNCTIONS

inline bool isnan(float x) { return x != x; }
inline bool isfinite(float x) { return ::fabsf(x) < INFINITY; }

// Both operands of one type, as Metal's overloads demand.
template <typename T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
inline T clamp(T v, T low, T high) {
  return min(max(v, low), high);
}
template <typename T>
inline T select(T no, T yes, bool which) {
  return which ? yes : no;
}

inline uint popcount(uint v) { return uint(__popc(v)); }
inline uint clz(uint v) { return uint(__clz(int(v))); }
inline uint ctz(uint v) { return v == 0 ? 32u : uint(__ffs(int(v)) - 1); }

// --- what the threads of a simdgroup or a threadgroup do together

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
inline void simdgroup_barrier(mem_flags) { __syncwarp(); }

inline uint lane_index() { return threadIdx.x & 31u; }

template <typename T>
inline T simd_shuffle(T value, ushort lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <typename T>
inline T simd_shuffle_xor(T value, ushort mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <typename T>
inline T simd_broadcast(T value, ushort lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// Every lane combines the values in the same order, that of a butterfly: the result is the same in all.
#define MSL_REDUCTION(name, expression)                           \
  template <typename T>                                           \
  inline T name(T value) {                                        \
    _Pragma("unroll") for (int mask = 16; mask > 0; mask /= 2) {  \
      const T other = __shfl_xor_sync(0xffffffffu, value, mask);  \
      value = expression;                                         \
    }                                                             \
    return value;                                                 \
  }
MSL_REDUCTION(simd_sum, value + other)
MSL_REDUCTION(simd_min, min(value, other))
MSL_REDUCTION(simd_max, max(value, other))
#undef MSL_REDUCTION

inline bool simd_any(bool value) { return __any_sync(0xffffffffu, value) != 0; }
inline bool simd_all(bool value) { return __all_sync(0xffffffffu, value) != 0; }

template <typename T>
inline T simd_prefix_inclusive_sum(T value) {
#pragma unroll
  for (uint delta = 1; delta < 32; delta *= 2) {
    const T before = __shfl_up_sync(0xffffffffu, value, delta);
    if (lane_index() >= delta) value += before;
  }
  return value;
}
template <typename T>
inline T simd_prefix_exclusive_sum(T value) {
  return simd_prefix_inclusive_sum(value) - value;
}

// Atomics, relaxed as everywhere in Metal.
enum memory_order { memory_order_relaxed };
template <typename T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;

template <typename T>
inline T atomic_load_explicit(const atomic<T>* a, memory_order) {
  return *const_cast<const volatile T*>(&a->value);
}
template <typename T>
inline void atomic_store_explicit(atomic<T>* a, plain<T> v, memory_order) {
  *const_cast<volatile T*>(&a->value) = v;
}
template <typename T>
inline T atomic_fetch_add_explicit(atomic<T>* a, plain<T> v, memory_order) {
  return atomicAdd(&a->value, v);
}

// 8x8 matrices, two neighbouring elements of a row in each lane. As the left of a product a lane needs a row of
// a matrix, as the right two columns: they are loaded with it, or come from the other lanes the first time they
// are wanted, so that a product is plain multiply-adds. What is not used the compiler drops.
template <typename T, int R = 8, int C = 8>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8");
  T own[2];
  mutable T row[8], columns[8][2];
  mutable bool has_row, has_columns;
};
typedef simdgroup_matrix<float> simdgroup_float8x8;

inline uint matrix_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline uint matrix_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
inline uint matrix_lane(uint row, uint column) {
  return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column >> 1 & 1);
}

template <typename T, int R, int C>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> m;
  m.has_row = m.has_columns = false;
  m.own[0] = m.own[1] = value;
  return m;
}

template <typename T>
inline void simdgroup_load(simdgroup_matrix<T>& m, const T* from, ulong elements_per_row = 8,
                           ulong2 origin = ulong2(0, 0), bool transposed = false) {
  const uint row = matrix_row(lane_index()), column = matrix_column(lane_index());
  // Steps to the next row and to the next column.
  const ulong down = transposed ? 1 : elements_per_row, along = transposed ? elements_per_row : 1;
  from += origin.y * elements_per_row + origin.x;
  m.has_row = m.has_columns = true;
#pragma unroll
  for (uint i = 0; i < 8; ++i) {
    m.row[i] = from[row * down + i * along];
    m.columns[i][0] = from[i * down + column * along];
    m.columns[i][1] = from[i * down + (column + 1) * along];
  }
  m.own[0] = from[row * down + column * along];
  m.own[1] = from[row * down + (column + 1) * along];
}

template <typename T>
inline void simdgroup_store(const simdgroup_matrix<T>& m, T* to, ulong elements_per_row = 8,
                            ulong2 origin = ulong2(0, 0), bool transposed = false) {
  const uint row = matrix_row(lane_index()), column = matrix_column(lane_index());
  const ulong down = transposed ? 1 : elements_per_row, along = transposed ? elements_per_row : 1;
  to += origin.y * elements_per_row + origin.x;
  __syncwarp();
  to[row * down + column * along] = m.own[0];
  to[row * down + (column + 1) * along] = m.own[1];
}

// d = a b + c, every element's products added in order of k.
template <typename T>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<T>& d, const simdgroup_matrix<T>& a,
                                          const simdgroup_matrix<T>& b, const simdgroup_matrix<T>& c) {
  const uint row = matrix_row(lane_index()), column = matrix_column(lane_index());
  if (!a.has_row) {
    a.has_row = true;
#pragma unroll
    for (uint k = 0; k < 8; ++k) a.row[k] = __shfl_sync(0xffffffffu, a.own[k % 2], matrix_lane(row, k));
  }
  if (!b.has_columns) {
    b.has_columns = true;
#pragma unroll
    for (uint k = 0; k < 8; ++k) {
      b.columns[k][0] = __shfl_sync(0xffffffffu, b.own[0], matrix_lane(k, column));
      b.columns[k][1] = __shfl_sync(0xffffffffu, b.own[1], matrix_lane(k, column));
    }
  }
  asm volatile("" ::: "memory");  // or all loads of an unrolled loop come first, and spill
  T sums[2] = {c.own[0], c.own[1]};
#pragma unroll
  for (uint k = 0; k < 8; ++k) {
    sums[0] = __fmaf_rn(a.row[k], b.columns[k][0], sums[0]);
    sums[1] = __fmaf_rn(a.row[k], b.columns[k][1], sums[1]);
  }
  d.own[0] = sums[0];
  d.own[1] = sums[1];
  d.has_row = d.has_columns = false;
}

// --- how a kernel is called

// What a function constant is; 1 where it is not set. MSL_CONSTANTS: {index, value} each.
struct ConstantValue {
  uint index, value;
};
constexpr ConstantValue kConstants[] = {{0xffffffffu, 0u} MSL_CONSTANTS};
constexpr bool constant_is_set(uint index) {
  for (const ConstantValue& c : kConstants) {
    if (c.index == index) return true;
  }
  return false;
}
constexpr uint constant_value(uint index) {
  for (const ConstantValue& c : kConstants) {
    if (c.index == index) return c.value;
  }
  return 1;
}
#define is_function_constant_defined(name) name##_is_set

template <typename T>
struct FromPosition {
  static T get(uint x, uint, uint) { return T(x); }
};
template <typename T>
struct FromPosition<vec<T, 2>> {
  static vec<T, 2> get(uint x, uint y, uint) { return {x, y}; }
};
template <typename T>
struct FromPosition<vec<T, 3>> {
  static vec<T, 3> get(uint x, uint y, uint z) { return {x, y, z}; }
};

// Kernels of a queue overlap. What a kernel reads is there once it has waited for the kernel before it, which
// ends after the one before that; a kernel that needs nothing of the kernel before waits at its end instead.
// The next kernel may begin as soon as all threadgroups of this one have come here.
//
// Weights are there all along: before it waits a kernel has them brought to the cache, as far as it may have
// room for them there. A threadgroup asks for its share.
enum { kPrefetchedBytes = 16 << 20 };
inline void prefetch_share(const void* weights, ulong bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x != 0 || bytes > kPrefetchedBytes) return;
  const ulong groups = ulong(gridDim.x) * gridDim.y, group = ulong(blockIdx.y) * gridDim.x + blockIdx.x;
  const ulong line = 128, first = (reinterpret_cast<ulong>(weights) + line - 1) / line * line;
  const ulong each = (bytes / groups + line - 1) / line * line, last = reinterpret_cast<ulong>(weights) + bytes;
  const ulong begin = first + group * each, end = min(begin + each, last / line * line);
  if (begin >= end) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"(uint(end - begin)) : "memory");
#endif
}
inline void begin_kernel(uint waits) {
#if __CUDA_ARCH__ >= 900
  if (waits) asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
inline void end_kernel(uint waits) {
#if __CUDA_ARCH__ >= 900
  if (!waits) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace metal
