// SPDX-License-Identifier: MIT
//
// Metal's names for compilers that only check a kernel file (tests/gpu/dialect.py) and run nothing: clang as
// C++ for OpenCL, whose address spaces are Metal's, and clang as C++14, Metal's language without them. So
// everything is declared and nothing is defined, but for the types.
#pragma once

#define __METAL_VERSION__ 310
#define METAL_FUNC inline
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT __FLT_MAX__
#define M_PI_F 3.14159265358979323846f
// Instances of a kernel but the first: a file may have hundreds.
#ifdef CHECK_INSTANCES
#define CHECK_ALL_INSTANCES(...) __VA_ARGS__
#else
#define CHECK_ALL_INSTANCES(...)
#endif
#define is_function_constant_defined(name) true

#ifdef __OPENCL_CPP_VERSION__
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#else
typedef _Float16 half;
#define device
#define constant const
#define threadgroup
#define thread
#define kernel
#endif

typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;

// What is packed differs in alignment only, which is no matter here.
#define CHECK_VECTOR(T, N)                                \
  typedef T T##N __attribute__((ext_vector_type(N)));     \
  typedef T packed_##T##N __attribute__((ext_vector_type(N)));
#define CHECK_VECTORS(T) CHECK_VECTOR(T, 2) CHECK_VECTOR(T, 3) CHECK_VECTOR(T, 4)
CHECK_VECTORS(float)
CHECK_VECTORS(half)
CHECK_VECTORS(bfloat)
CHECK_VECTORS(char)
CHECK_VECTORS(uchar)
CHECK_VECTORS(short)
CHECK_VECTORS(ushort)
CHECK_VECTORS(int)
CHECK_VECTORS(uint)
CHECK_VECTORS(long)
CHECK_VECTORS(ulong)

namespace metal {

#define CHECK_EACH(OF, name) \
  OF(float, name) OF(float2, name) OF(float3, name) OF(float4, name) \
  OF(half, name) OF(half2, name) OF(half4, name)
#define CHECK_UNARY(T, name) T name(T);
#define CHECK_BINARY(T, name) T name(T, T);
#define CHECK_TERNARY(T, name) T name(T, T, T);
#define CHECK_FUNCTIONS                                                                             \
  CHECK_EACH(CHECK_UNARY, exp)                                                                      \
  CHECK_EACH(CHECK_UNARY, exp2)                                                                     \
  CHECK_EACH(CHECK_UNARY, exp10)                                                                    \
  CHECK_EACH(CHECK_UNARY, log)                                                                      \
  CHECK_EACH(CHECK_UNARY, log2)                                                                     \
  CHECK_EACH(CHECK_UNARY, log10)                                                                    \
  CHECK_EACH(CHECK_UNARY, sqrt)                                                                     \
  CHECK_EACH(CHECK_UNARY, rsqrt)                                                                    \
  CHECK_EACH(CHECK_UNARY, sin)                                                                      \
  CHECK_EACH(CHECK_UNARY, cos)                                                                      \
  CHECK_EACH(CHECK_UNARY, tan)                                                                      \
  CHECK_EACH(CHECK_UNARY, sinh)                                                                     \
  CHECK_EACH(CHECK_UNARY, cosh)                                                                     \
  CHECK_EACH(CHECK_UNARY, tanh)                                                                     \
  CHECK_EACH(CHECK_UNARY, floor)                                                                    \
  CHECK_EACH(CHECK_UNARY, ceil)                                                                     \
  CHECK_EACH(CHECK_UNARY, trunc)                                                                    \
  CHECK_EACH(CHECK_UNARY, rint)                                                                     \
  CHECK_EACH(CHECK_UNARY, round)                                                                    \
  CHECK_EACH(CHECK_UNARY, fabs)                                                                     \
  CHECK_EACH(CHECK_BINARY, pow)                                                                     \
  CHECK_EACH(CHECK_BINARY, powr)                                                                    \
  CHECK_EACH(CHECK_BINARY, fmod)                                                                    \
  CHECK_EACH(CHECK_BINARY, fmin)                                                                    \
  CHECK_EACH(CHECK_BINARY, fmax)                                                                    \
  CHECK_EACH(CHECK_BINARY, copysign)                                                                \
  CHECK_EACH(CHECK_BINARY, atan2)                                                                   \
  CHECK_EACH(CHECK_TERNARY, fma)
CHECK_FUNCTIONS
namespace precise {
CHECK_FUNCTIONS
}
namespace fast {
CHECK_FUNCTIONS
}

bool isnan(float);
bool isinf(float);
bool isfinite(float);
bool signbit(float);
float fract(float);
float sign(float);
float ldexp(float, int);
float mix(float, float, float);
float step(float, float);
float abs(float);
template <typename T>
T abs(T);
template <typename T>
T absdiff(T, T);
template <typename T>
T min(T, T);
template <typename T>
T max(T, T);
template <typename T>
T min3(T, T, T);
template <typename T>
T max3(T, T, T);
template <typename T>
T clamp(T, T, T);
template <typename T>
T saturate(T);
template <typename T, typename C>
T select(T, T, C);
template <typename T>
bool all(T);
template <typename T>
bool any(T);
float dot(float2, float2);
float dot(float3, float3);
float dot(float4, float4);
float length(float2);
float length(float3);
float length(float4);
uint popcount(uint);
ulong popcount(ulong);
uint clz(uint);
uint ctz(uint);
uint mulhi(uint, uint);
uint rotate(uint, uint);
uint extract_bits(uint, uint, uint);
int extract_bits(int, uint, uint);
uint insert_bits(uint, uint, uint, uint);
template <typename To, typename From>
To as_type(From);

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define CHECK_SIMD(name) \
  template <typename T>  \
  T name(T);
#define CHECK_SIMD_LANE(name) \
  template <typename T>       \
  T name(T, ushort);
CHECK_SIMD(simd_sum)
CHECK_SIMD(simd_product)
CHECK_SIMD(simd_min)
CHECK_SIMD(simd_max)
CHECK_SIMD(simd_and)
CHECK_SIMD(simd_or)
CHECK_SIMD(simd_xor)
CHECK_SIMD(simd_broadcast_first)
CHECK_SIMD(simd_prefix_inclusive_sum)
CHECK_SIMD(simd_prefix_exclusive_sum)
CHECK_SIMD(simd_prefix_inclusive_product)
CHECK_SIMD(simd_prefix_exclusive_product)
CHECK_SIMD_LANE(simd_shuffle)
CHECK_SIMD_LANE(simd_shuffle_xor)
CHECK_SIMD_LANE(simd_shuffle_down)
CHECK_SIMD_LANE(simd_shuffle_up)
CHECK_SIMD_LANE(simd_shuffle_rotate_down)
CHECK_SIMD_LANE(simd_shuffle_rotate_up)
CHECK_SIMD_LANE(simd_broadcast)
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();
struct simd_vote {
  typedef ulong vote_t;
  explicit simd_vote(vote_t = 0);
  explicit operator vote_t() const;
  bool any() const;
  bool all() const;
};
simd_vote simd_ballot(bool);

// No template: OpenCL takes none as what a kernel's pointer points to.
struct atomic_int {
  int value;
};
struct atomic_uint {
  uint value;
};
enum memory_order { memory_order_relaxed };
#define CHECK_ATOMICS(space, A, T)                                                                  \
  T atomic_load_explicit(const space A*, memory_order);                                             \
  void atomic_store_explicit(space A*, T, memory_order);                                            \
  T atomic_exchange_explicit(space A*, T, memory_order);                                            \
  bool atomic_compare_exchange_weak_explicit(space A*, thread T*, T, memory_order, memory_order);   \
  T atomic_fetch_add_explicit(space A*, T, memory_order);                                           \
  T atomic_fetch_sub_explicit(space A*, T, memory_order);                                           \
  T atomic_fetch_and_explicit(space A*, T, memory_order);                                           \
  T atomic_fetch_or_explicit(space A*, T, memory_order);                                            \
  T atomic_fetch_xor_explicit(space A*, T, memory_order);                                           \
  T atomic_fetch_min_explicit(space A*, T, memory_order);                                           \
  T atomic_fetch_max_explicit(space A*, T, memory_order);
CHECK_ATOMICS(device, atomic_int, int)
CHECK_ATOMICS(device, atomic_uint, uint)
#ifdef __OPENCL_CPP_VERSION__
CHECK_ATOMICS(threadgroup, atomic_int, int)
CHECK_ATOMICS(threadgroup, atomic_uint, uint)
#endif

template <typename T, int R, int C>
struct simdgroup_matrix {
  T elements[2];
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <typename T, int R, int C>
simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
#define CHECK_MATRICES(space)                                                                                \
  template <typename T>                                                                                      \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, const space T*, ulong = 8, ulong2 = 0,              \
                      bool = false);                                                                         \
  template <typename T>                                                                                      \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T*, ulong = 8, ulong2 = 0, bool = false);
CHECK_MATRICES(device)
#ifdef __OPENCL_CPP_VERSION__
CHECK_MATRICES(threadgroup)
#endif
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>,
                                   simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
template <typename D, typename A, typename B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>,
                        simdgroup_matrix<B, 8, 8>);

}  // namespace metal
