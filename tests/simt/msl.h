// SPDX-License-Identifier: MIT
//
// Metal's types and functions for kernels that tools/msl.py has translated to C++: scalars, vectors, math,
// and the glue that calls a kernel. Simdgroups, barriers and atomics: msl_simd.h.
// Only what a kernel may use is here. A missing name fails to compile.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "lane.h"

// Which of how many parts of the file's kernels this compilation makes.
#ifndef SIMT_PARTS
#define SIMT_PARTS 1
#define SIMT_PART 0
#endif

#define __METAL_VERSION__ 310
#define METAL_FUNC inline
#undef INFINITY
#undef MAXFLOAT
#undef NAN
#undef HUGE_VALF
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT __FLT_MAX__
#define M_PI_F 3.14159265358979323846f

namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef uint64_t ulong;
typedef _Float16 half;

// Stored in 16 bits, computed in float; rounds to nearest, ties to even.
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, half>>>
  explicit bfloat(T value) {
    const float f = static_cast<float>(value);
    uint32_t u;
    std::memcpy(&u, &f, 4);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? u >> 16 | 64 : (u + 0x7fffu + (u >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t u = uint32_t{bits} << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
};

// Vectors. A packed one has the alignment of its elements, the other that of its size.
template <typename T, int N, bool kPacked>
constexpr size_t vector_alignment = kPacked ? alignof(T) : sizeof(T) * (N == 3 ? 4 : N);

template <typename T, int N, bool kPacked>
struct Elements;
template <typename T, bool kPacked>
struct alignas(vector_alignment<T, 2, kPacked>) Elements<T, 2, kPacked> {
  T x, y;
};
template <typename T, bool kPacked>
struct alignas(vector_alignment<T, 3, kPacked>) Elements<T, 3, kPacked> {
  T x, y, z;
};
template <typename T, bool kPacked>
struct alignas(vector_alignment<T, 4, kPacked>) Elements<T, 4, kPacked> {
  T x, y, z, w;
};

template <typename T, int N, bool kPacked = false>
struct vec : Elements<T, N, kPacked> {
  vec() = default;
  explicit vec(T all) {
    for (int i = 0; i < N; ++i) (*this)[i] = all;
  }
  template <typename... U, typename = std::enable_if_t<sizeof...(U) == N && (N > 1)>>
  constexpr vec(U... e) : Elements<T, N, kPacked>{static_cast<T>(e)...} {}
  template <typename U, bool kOther, typename = std::enable_if_t<!std::is_same_v<U, T>>>
  explicit vec(const vec<U, N, kOther>& o) {
    for (int i = 0; i < N; ++i) (*this)[i] = static_cast<T>(o[i]);
  }
  vec(const vec<T, N, !kPacked>& o) { std::memcpy(static_cast<void*>(this), &o, N * sizeof(T)); }
  T& operator[](int i) { return reinterpret_cast<T*>(this)[i]; }
  const T& operator[](int i) const { return reinterpret_cast<const T*>(this)[i]; }
};

#define SIMT_VECTORS(T)                 \
  typedef vec<T, 2> T##2;               \
  typedef vec<T, 3> T##3;               \
  typedef vec<T, 4> T##4;               \
  typedef vec<T, 2, true> packed_##T##2; \
  typedef vec<T, 3, true> packed_##T##3; \
  typedef vec<T, 4, true> packed_##T##4;
SIMT_VECTORS(float)
SIMT_VECTORS(half)
SIMT_VECTORS(bfloat)
SIMT_VECTORS(char)
SIMT_VECTORS(uchar)
SIMT_VECTORS(short)
SIMT_VECTORS(ushort)
SIMT_VECTORS(int)
SIMT_VECTORS(uint)
SIMT_VECTORS(long)
SIMT_VECTORS(ulong)
typedef vec<bool, 2> bool2;
typedef vec<bool, 3> bool3;
typedef vec<bool, 4> bool4;
#undef SIMT_VECTORS

// The type of an operand that must not take part in deduction: v * 2.0f takes T from v alone.
template <typename T>
using plain = std::type_identity_t<T>;

#define SIMT_OPERATOR(op)                                                                      \
  template <typename T, int N, bool P, bool Q>                                                 \
  inline vec<T, N> operator op(const vec<T, N, P>& a, const vec<T, N, Q>& b) {                 \
    vec<T, N> r;                                                                               \
    for (int i = 0; i < N; ++i) r[i] = static_cast<T>(a[i] op b[i]);                           \
    return r;                                                                                  \
  }                                                                                            \
  template <typename T, int N, bool P>                                                         \
  inline vec<T, N> operator op(const vec<T, N, P>& a, plain<T> b) {                            \
    return a op vec<T, N>(b);                                                                  \
  }                                                                                            \
  template <typename T, int N, bool P>                                                         \
  inline vec<T, N> operator op(plain<T> a, const vec<T, N, P>& b) {                            \
    return vec<T, N>(a) op b;                                                                  \
  }                                                                                            \
  template <typename T, int N, bool P, typename B>                                             \
  inline vec<T, N, P>& operator op##=(vec<T, N, P>& a, const B& b) {                           \
    return a = a op b;                                                                         \
  }
SIMT_OPERATOR(+)
SIMT_OPERATOR(-)
SIMT_OPERATOR(*)
SIMT_OPERATOR(/)
SIMT_OPERATOR(%)
SIMT_OPERATOR(&)
SIMT_OPERATOR(|)
SIMT_OPERATOR(^)
SIMT_OPERATOR(<<)
SIMT_OPERATOR(>>)
#undef SIMT_OPERATOR

#define SIMT_COMPARISON(op)                                                          \
  template <typename T, int N, bool P, bool Q>                                       \
  inline vec<bool, N> operator op(const vec<T, N, P>& a, const vec<T, N, Q>& b) {    \
    vec<bool, N> r;                                                                  \
    for (int i = 0; i < N; ++i) r[i] = a[i] op b[i];                                 \
    return r;                                                                        \
  }                                                                                  \
  template <typename T, int N, bool P>                                               \
  inline vec<bool, N> operator op(const vec<T, N, P>& a, plain<T> b) {               \
    return a op vec<T, N>(b);                                                        \
  }
SIMT_COMPARISON(==)
SIMT_COMPARISON(!=)
SIMT_COMPARISON(<)
SIMT_COMPARISON(<=)
SIMT_COMPARISON(>)
SIMT_COMPARISON(>=)
#undef SIMT_COMPARISON

template <typename T, int N, bool P>
inline vec<T, N> operator-(const vec<T, N, P>& a) {
  return vec<T, N>(T(0)) - a;
}
template <typename T, int N, bool P>
inline vec<T, N> operator~(const vec<T, N, P>& a) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = static_cast<T>(~a[i]);
  return r;
}
template <int N>
inline bool all(const vec<bool, N>& v) {
  bool r = true;
  for (int i = 0; i < N; ++i) r = r && v[i];
  return r;
}
template <int N>
inline bool any(const vec<bool, N>& v) {
  bool r = false;
  for (int i = 0; i < N; ++i) r = r || v[i];
  return r;
}

template <typename To, typename From>
inline To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the sizes differ");
  To to;
  std::memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

// Functions of floats: for float and half, and for vectors element by element. Half goes through float.
#define SIMT_UNARY(name, expression)                                                            \
  inline float name(float x) { return expression; }                                             \
  inline half name(half x) { return static_cast<half>(name(static_cast<float>(x))); }           \
  template <typename T, int N, bool P>                                                          \
  inline vec<T, N> name(const vec<T, N, P>& v) {                                                \
    vec<T, N> r;                                                                                \
    for (int i = 0; i < N; ++i) r[i] = name(v[i]);                                              \
    return r;                                                                                   \
  }
#define SIMT_BINARY(name, expression)                                                           \
  inline float name(float x, float y) { return expression; }                                    \
  inline half name(half x, half y) {                                                            \
    return static_cast<half>(name(static_cast<float>(x), static_cast<float>(y)));               \
  }                                                                                             \
  template <typename T, int N, bool P, bool Q>                                                  \
  inline vec<T, N> name(const vec<T, N, P>& a, const vec<T, N, Q>& b) {                         \
    vec<T, N> r;                                                                                \
    for (int i = 0; i < N; ++i) r[i] = name(a[i], b[i]);                                        \
    return r;                                                                                   \
  }
#define SIMT_FUNCTIONS                                  \
  SIMT_UNARY(exp, __builtin_expf(x))                    \
  SIMT_UNARY(exp2, __builtin_exp2f(x))                  \
  SIMT_UNARY(exp10, __builtin_powf(10.0f, x))           \
  SIMT_UNARY(log, __builtin_logf(x))                    \
  SIMT_UNARY(log2, __builtin_log2f(x))                  \
  SIMT_UNARY(log10, __builtin_log10f(x))                \
  SIMT_UNARY(sqrt, __builtin_sqrtf(x))                  \
  SIMT_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))          \
  SIMT_UNARY(sin, __builtin_sinf(x))                    \
  SIMT_UNARY(cos, __builtin_cosf(x))                    \
  SIMT_UNARY(tan, __builtin_tanf(x))                    \
  SIMT_UNARY(sinh, __builtin_sinhf(x))                  \
  SIMT_UNARY(cosh, __builtin_coshf(x))                  \
  SIMT_UNARY(tanh, __builtin_tanhf(x))                  \
  SIMT_UNARY(floor, __builtin_floorf(x))                \
  SIMT_UNARY(ceil, __builtin_ceilf(x))                  \
  SIMT_UNARY(trunc, __builtin_truncf(x))                \
  SIMT_UNARY(rint, __builtin_rintf(x))                  \
  SIMT_UNARY(round, __builtin_roundf(x))                \
  SIMT_UNARY(fabs, __builtin_fabsf(x))                  \
  SIMT_BINARY(pow, __builtin_powf(x, y))                \
  SIMT_BINARY(powr, __builtin_powf(x, y))               \
  SIMT_BINARY(fmod, __builtin_fmodf(x, y))              \
  SIMT_BINARY(fmin, __builtin_fminf(x, y))              \
  SIMT_BINARY(fmax, __builtin_fmaxf(x, y))              \
  SIMT_BINARY(copysign, __builtin_copysignf(x, y))      \
  SIMT_BINARY(atan2, __builtin_atan2f(x, y))            \
  inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }               \
  template <typename T, int N>                                                                  \
  inline vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {            \
    vec<T, N> r;                                                                                \
    for (int i = 0; i < N; ++i) r[i] = fma(a[i], b[i], c[i]);                                   \
    return r;                                                                                   \
  }
SIMT_FUNCTIONS
namespace precise {
SIMT_FUNCTIONS
}
namespace fast {
SIMT_FUNCTIONS
}
#undef SIMT_FUNCTIONS
#undef SIMT_UNARY
#undef SIMT_BINARY

inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool signbit(float x) { return as_type<uint>(x) >> 31 != 0; }
inline float fract(float x) { return x - floor(x); }
inline float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == x ? x : 0.0f; }
inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
inline float mix(float a, float b, float t) { return a + (b - a) * t; }
inline float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }

// Both operands of one type, as Metal's overloads demand.
template <typename T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T, int N>
inline vec<T, N> min(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = min(a[i], b[i]);
  return r;
}
template <typename T, int N>
inline vec<T, N> max(const vec<T, N>& a, const vec<T, N>& b) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = max(a[i], b[i]);
  return r;
}
template <typename T>
inline T min3(T a, T b, T c) {
  return min(min(a, b), c);
}
template <typename T>
inline T max3(T a, T b, T c) {
  return max(max(a, b), c);
}
template <typename T>
inline T clamp(T v, T low, T high) {
  return min(max(v, low), high);
}
template <typename T>
inline T saturate(T v) {
  return clamp(v, T(0), T(1));
}
template <typename T>
inline T abs(T v) {
  return v < T(0) ? static_cast<T>(-v) : v;
}
inline float abs(float v) { return __builtin_fabsf(v); }
template <typename T>
inline T absdiff(T a, T b) {
  return static_cast<T>(a < b ? b - a : a - b);
}
template <typename T>
inline T select(T no, T yes, bool which) {
  return which ? yes : no;
}
template <typename T, int N>
inline vec<T, N> select(const vec<T, N>& no, const vec<T, N>& yes, const vec<bool, N>& which) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = which[i] ? yes[i] : no[i];
  return r;
}

inline uint popcount(uint v) { return static_cast<uint>(__builtin_popcount(v)); }
inline ulong popcount(ulong v) { return static_cast<ulong>(__builtin_popcountll(v)); }
inline uint clz(uint v) { return v == 0 ? 32u : static_cast<uint>(__builtin_clz(v)); }
inline uint ctz(uint v) { return v == 0 ? 32u : static_cast<uint>(__builtin_ctz(v)); }
inline uint mulhi(uint a, uint b) { return static_cast<uint>(ulong{a} * b >> 32); }
inline uint rotate(uint v, uint n) { return v << (n & 31) | v >> (-n & 31); }
inline uint extract_bits(uint v, uint offset, uint bits) {
  return bits == 0 ? 0u : (v >> offset) & (~0u >> (32 - bits));
}
inline int extract_bits(int v, uint offset, uint bits) {
  return bits == 0 ? 0 : static_cast<int>(static_cast<uint>(v) << (32 - bits - offset)) >> (32 - bits);
}
inline uint insert_bits(uint base, uint v, uint offset, uint bits) {
  const uint mask = bits == 0 ? 0u : (~0u >> (32 - bits)) << offset;
  return (base & ~mask) | (v << offset & mask);
}

template <typename T, int N, bool P, bool Q>
inline T dot(const vec<T, N, P>& a, const vec<T, N, Q>& b) {
  T r = a[0] * b[0];
  for (int i = 1; i < N; ++i) r += a[i] * b[i];
  return r;
}
template <int N>
inline float length(const vec<float, N>& a) {
  return sqrt(dot(a, a));
}

template <typename T>
struct numeric_limits : std::numeric_limits<T> {};
template <>
struct numeric_limits<half> {
  static constexpr half max() { return static_cast<half>(65504.0f); }
  static constexpr half lowest() { return static_cast<half>(-65504.0f); }
  static constexpr half infinity() { return static_cast<half>(__builtin_inff()); }
};
using std::conditional_t;
using std::enable_if_t;
using std::is_same;
using std::is_same_v;

}  // namespace metal

#include "msl_simd.h"

// How the kernel table calls a kernel: every parameter from its type and from what it is bound to.
namespace simt {

template <typename P>
constexpr ParameterType type_of() {
  using T = std::remove_pointer_t<std::remove_reference_t<P>>;
  if constexpr (std::is_void_v<T>) {
    return {0, 1, !std::is_const_v<T>};
  } else {
    return {sizeof(T), alignof(T), (std::is_pointer_v<P> || std::is_reference_v<P>)&&!std::is_const_v<T>};
  }
}

template <typename T>
struct FromPosition {
  static T get(const Position& p) { return static_cast<T>(p.v[0]); }
};
template <typename T, int N>
struct FromPosition<metal::vec<T, N>> {
  static metal::vec<T, N> get(const Position& p) {
    metal::vec<T, N> r;
    for (int i = 0; i < N; ++i) r[i] = static_cast<T>(p.v[i]);
    return r;
  }
};

template <typename P>
P argument(const Parameter& p, void* const* buffers, void* const* threadgroup_memory) {
  if constexpr (std::is_reference_v<P>) {
    return *static_cast<std::remove_reference_t<P>*>(buffers[p.index]);
  } else if constexpr (std::is_pointer_v<P>) {
    return static_cast<P>(p.source == Source::kBuffer ? buffers[p.index] : threadgroup_memory[p.index]);
  } else {
    return FromPosition<std::remove_const_t<P>>::get(thread_value(p.source));
  }
}

template <auto kFunction>
struct Call;
template <typename... P, void (*kFunction)(P...)>
struct Call<kFunction> {
  static constexpr ParameterType types[] = {type_of<P>()...};

  static void run(const Parameter* parameters, void* const* buffers, void* const* threadgroup_memory) {
    run(parameters, buffers, threadgroup_memory, std::index_sequence_for<P...>());
  }

 private:
  template <size_t... I>
  static void run(const Parameter* p, void* const* buffers, void* const* threadgroup_memory,
                  std::index_sequence<I...>) {
    kFunction(argument<P>(p[I], buffers, threadgroup_memory)...);
  }
};

}  // namespace simt
