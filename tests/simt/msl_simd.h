// SPDX-License-Identifier: MIT
//
// What the threads of a simdgroup or a threadgroup do together, under Metal's names. Included by msl.h.
#pragma once

#include "lane.h"

// Where the kernel says it, for messages and for the divergence check.
#define SIMT_SITE(what) const simt::Site& site = simt::Site(what)

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}
inline void threadgroup_barrier(mem_flags flags, SIMT_SITE("threadgroup_barrier")) {
  simt::threadgroup_barrier(flags != mem_flags::mem_none, site);
}
inline void simdgroup_barrier(mem_flags flags, SIMT_SITE("simdgroup_barrier")) {
  simt::simdgroup_barrier(flags != mem_flags::mem_none, site);
}

template <typename T>
inline T slot(simt::Slots slots, uint lane) {
  T value;
  std::memcpy(static_cast<void*>(&value), slots[lane % simt::kSimdWidth], sizeof value);
  return value;
}
template <typename T>
inline simt::Slots simd_exchange(const T& value, const simt::Site& site) {
  static_assert(sizeof(T) <= simt::kSlotBytes, "too large for a simd operation");
  return simt::exchange(&value, sizeof value, site);
}

// Every lane combines the values in the same order, that of a butterfly: the result is the same in all.
template <typename T, typename F>
inline T simd_reduce(const T& value, F combine, const simt::Site& site) {
  const simt::Slots slots = simd_exchange(value, site);
  const uint n = simt::lane_count();
  T r[simt::kSimdWidth];
  for (uint i = 0; i < n; ++i) r[i] = slot<T>(slots, i);
  for (uint half_width = simt::kSimdWidth / 2; half_width > 0; half_width /= 2) {
    for (uint i = 0; i < half_width && i + half_width < n; ++i) r[i] = combine(r[i], r[i + half_width]);
  }
  return r[0];
}

#define SIMT_REDUCTION(name, expression)                                                  \
  template <typename T>                                                                   \
  inline T name(T value, SIMT_SITE(#name)) {                                              \
    return simd_reduce(value, [](T a, T b) { return static_cast<T>(expression); }, site); \
  }
SIMT_REDUCTION(simd_sum, a + b)
SIMT_REDUCTION(simd_product, a* b)
SIMT_REDUCTION(simd_min, min(a, b))
SIMT_REDUCTION(simd_max, max(a, b))
SIMT_REDUCTION(simd_and, a& b)
SIMT_REDUCTION(simd_or, a | b)
SIMT_REDUCTION(simd_xor, a ^ b)
#undef SIMT_REDUCTION

// A bit a lane.
class simd_vote {
 public:
  typedef ulong vote_t;
  explicit simd_vote(vote_t bits = 0) : bits_(bits) {}
  explicit operator vote_t() const { return bits_; }
  bool any() const { return bits_ != 0; }
  bool all() const { return bits_ == (ulong{1} << simt::lane_count()) - 1; }

 private:
  vote_t bits_;
};
inline ulong simd_ballot_bits(bool value, const simt::Site& site) {
  const simt::Slots slots = simd_exchange(value, site);
  ulong bits = 0;
  for (uint i = 0; i < simt::lane_count(); ++i) bits |= ulong{slot<bool>(slots, i)} << i;
  return bits;
}
inline simd_vote simd_ballot(bool value, SIMT_SITE("simd_ballot")) {
  return simd_vote(simd_ballot_bits(value, site));
}
inline bool simd_any(bool value, SIMT_SITE("simd_any")) {
  return simd_vote(simd_ballot_bits(value, site)).any();
}
inline bool simd_all(bool value, SIMT_SITE("simd_all")) {
  return simd_vote(simd_ballot_bits(value, site)).all();
}

template <typename T>
inline T simd_shuffle(T value, ushort lane, SIMT_SITE("simd_shuffle")) {
  return slot<T>(simd_exchange(value, site), lane);
}
template <typename T>
inline T simd_shuffle_xor(T value, ushort mask, SIMT_SITE("simd_shuffle_xor")) {
  return slot<T>(simd_exchange(value, site), simt::lane_index() ^ mask);
}
// Lanes whose source lies outside get what Metal leaves undefined: all ones.
template <typename T>
inline T simd_shuffle_from(T value, int lane, const simt::Site& site) {
  const simt::Slots slots = simd_exchange(value, site);
  if (lane >= 0 && lane < static_cast<int>(simt::kSimdWidth)) return slot<T>(slots, static_cast<uint>(lane));
  std::memset(static_cast<void*>(&value), 0xff, sizeof value);
  return value;
}
template <typename T>
inline T simd_shuffle_down(T value, ushort delta, SIMT_SITE("simd_shuffle_down")) {
  return simd_shuffle_from(value, static_cast<int>(simt::lane_index()) + delta, site);
}
template <typename T>
inline T simd_shuffle_up(T value, ushort delta, SIMT_SITE("simd_shuffle_up")) {
  return simd_shuffle_from(value, static_cast<int>(simt::lane_index()) - delta, site);
}
template <typename T>
inline T simd_shuffle_rotate_down(T value, ushort delta, SIMT_SITE("simd_shuffle_rotate_down")) {
  return slot<T>(simd_exchange(value, site), simt::lane_index() + delta);
}
template <typename T>
inline T simd_shuffle_rotate_up(T value, ushort delta, SIMT_SITE("simd_shuffle_rotate_up")) {
  return slot<T>(simd_exchange(value, site), simt::lane_index() - delta);
}
template <typename T>
inline T simd_broadcast(T value, ushort lane, SIMT_SITE("simd_broadcast")) {
  return slot<T>(simd_exchange(value, site), lane);
}
template <typename T>
inline T simd_broadcast_first(T value, SIMT_SITE("simd_broadcast_first")) {
  return slot<T>(simd_exchange(value, site), 0);
}
inline bool simd_is_first() { return simt::lane_index() == 0; }

template <typename T>
inline T simd_prefix(T value, T start, uint end, bool sum, const simt::Site& site) {
  const simt::Slots slots = simd_exchange(value, site);
  for (uint i = 0; i < end; ++i) {
    const T v = slot<T>(slots, i);
    start = static_cast<T>(sum ? start + v : start * v);
  }
  return start;
}
template <typename T>
inline T simd_prefix_inclusive_sum(T value, SIMT_SITE("simd_prefix_inclusive_sum")) {
  return simd_prefix(value, T(0), simt::lane_index() + 1, true, site);
}
template <typename T>
inline T simd_prefix_exclusive_sum(T value, SIMT_SITE("simd_prefix_exclusive_sum")) {
  return simd_prefix(value, T(0), simt::lane_index(), true, site);
}
template <typename T>
inline T simd_prefix_inclusive_product(T value, SIMT_SITE("simd_prefix_inclusive_product")) {
  return simd_prefix(value, T(1), simt::lane_index() + 1, false, site);
}
template <typename T>
inline T simd_prefix_exclusive_product(T value, SIMT_SITE("simd_prefix_exclusive_product")) {
  return simd_prefix(value, T(1), simt::lane_index(), false, site);
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
  return __atomic_load_n(&a->value, __ATOMIC_RELAXED);
}
template <typename T>
inline void atomic_store_explicit(atomic<T>* a, plain<T> v, memory_order) {
  __atomic_store_n(&a->value, v, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomic_exchange_explicit(atomic<T>* a, plain<T> v, memory_order) {
  return __atomic_exchange_n(&a->value, v, __ATOMIC_RELAXED);
}
template <typename T>
inline bool atomic_compare_exchange_weak_explicit(atomic<T>* a, T* expected, plain<T> v, memory_order,
                                                  memory_order) {
  return __atomic_compare_exchange_n(&a->value, expected, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
#define SIMT_ATOMIC(name, builtin)                                        \
  template <typename T>                                                   \
  inline T atomic_fetch_##name##_explicit(atomic<T>* a, plain<T> v, memory_order) { \
    return builtin(&a->value, v, __ATOMIC_RELAXED);                       \
  }
SIMT_ATOMIC(add, __atomic_fetch_add)
SIMT_ATOMIC(sub, __atomic_fetch_sub)
SIMT_ATOMIC(and, __atomic_fetch_and)
SIMT_ATOMIC(or, __atomic_fetch_or)
SIMT_ATOMIC(xor, __atomic_fetch_xor)
#undef SIMT_ATOMIC
template <typename T>
inline T atomic_fetch_min_explicit(atomic<T>* a, plain<T> v, memory_order order) {
  T old = atomic_load_explicit(a, order);
  while (v < old && !atomic_compare_exchange_weak_explicit(a, &old, v, order, order)) {
  }
  return old;
}
template <typename T>
inline T atomic_fetch_max_explicit(atomic<T>* a, plain<T> v, memory_order order) {
  T old = atomic_load_explicit(a, order);
  while (old < v && !atomic_compare_exchange_weak_explicit(a, &old, v, order, order)) {
  }
  return old;
}

// 8x8 matrices, two neighbouring elements of a row in each lane. Which lane has which is not documented; the
// layout is the one that published kernels rely on through thread_elements().
template <typename T, int R = 8, int C = 8>
struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8");
  T elements[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
  T* thread_elements() { return elements; }
};
typedef simdgroup_matrix<float> simdgroup_float8x8;
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;

inline uint matrix_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline uint matrix_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
inline uint matrix_lane(uint row, uint column) {
  return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column >> 1 & 1);
}

template <typename T, int R, int C>
simdgroup_matrix<T, R, C>::simdgroup_matrix(T diagonal) {
  const uint lane = simt::lane_index();
  for (uint i = 0; i < 2; ++i) elements[i] = matrix_row(lane) == matrix_column(lane) + i ? diagonal : T(0);
}
template <typename T, int R, int C>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> m;
  m.elements[0] = m.elements[1] = value;
  return m;
}

// Where element i of this lane lies.
inline ulong matrix_offset(uint i, ulong elements_per_row, const ulong2& origin, bool transposed) {
  const uint lane = simt::lane_index();
  const ulong row = transposed ? matrix_column(lane) + i : matrix_row(lane);
  const ulong column = transposed ? matrix_row(lane) : matrix_column(lane) + i;
  return (row + origin.y) * elements_per_row + column + origin.x;
}
template <typename T>
inline void simdgroup_load(simdgroup_matrix<T>& m, const T* from, ulong elements_per_row = 8,
                           ulong2 origin = ulong2(0), bool transposed = false, SIMT_SITE("simdgroup_load")) {
  simd_exchange(0, site);
  for (uint i = 0; i < 2; ++i) m.elements[i] = from[matrix_offset(i, elements_per_row, origin, transposed)];
}
template <typename T>
inline void simdgroup_store(const simdgroup_matrix<T>& m, T* to, ulong elements_per_row = 8,
                            ulong2 origin = ulong2(0), bool transposed = false,
                            SIMT_SITE("simdgroup_store")) {
  simd_exchange(0, site);
  for (uint i = 0; i < 2; ++i) to[matrix_offset(i, elements_per_row, origin, transposed)] = m.elements[i];
}

// d = a b + c, every element's products added in order of k in float.
template <typename D, typename A, typename B, typename C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a,
                                          const simdgroup_matrix<B>& b, const simdgroup_matrix<C>& c,
                                          SIMT_SITE("simdgroup_multiply_accumulate")) {
  struct Operands {
    A a[2];
    B b[2];
  };
  const Operands mine = {{a.elements[0], a.elements[1]}, {b.elements[0], b.elements[1]}};
  const simt::Slots slots = simd_exchange(mine, site);
  const uint row = matrix_row(simt::lane_index()), column = matrix_column(simt::lane_index());
  float sums[2] = {static_cast<float>(c.elements[0]), static_cast<float>(c.elements[1])};
  for (uint k = 0; k < 8; ++k) {
    const float left = static_cast<float>(slot<Operands>(slots, matrix_lane(row, k)).a[k % 2]);
    const Operands right = slot<Operands>(slots, matrix_lane(k, column));
    for (uint i = 0; i < 2; ++i) sums[i] = __builtin_fmaf(left, static_cast<float>(right.b[i]), sums[i]);
  }
  for (uint i = 0; i < 2; ++i) d.elements[i] = static_cast<D>(sums[i]);
}
template <typename D, typename A, typename B>
inline void simdgroup_multiply(simdgroup_matrix<D>& d, const simdgroup_matrix<A>& a,
                               const simdgroup_matrix<B>& b, SIMT_SITE("simdgroup_multiply")) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), site);
}

}  // namespace metal

#undef SIMT_SITE
