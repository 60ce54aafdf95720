// SPDX-License-Identifier: MIT
//
// Matrix products of the CPU backend: one table of kernels per instruction set, the best the machine
// has chosen at run time (ESKER_CPU_ISA forces another).
#pragma once

#include <cstdint>
#include <vector>

#include "abi/weight_types.h"
#include "backends/cpu/packed.h"

namespace esker::cpu {

// For each i in [0, tokens): y[out(i) * y_stride + r] = row r of w . x[in(i)], rows [0, n_rows).
// Rows are contiguous, row_bytes apart. in and out are index lists; null stands for first + i.
// A value depends on its row and vector only, not on what is computed beside it, but for one thing: up
// to 4 tokens may be summed in another order than more of them (1e-6 apart). Calls begin at even rows.
struct RowsCall {
  const uint8_t* w = nullptr;
  uint64_t row_bytes = 0;
  int64_t n_rows = 0;
  const Packed* x = nullptr;
  int64_t tokens = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t first = 0;
  const int32_t* in = nullptr;
  const int32_t* out = nullptr;

  int64_t vector(int64_t i) const { return in != nullptr ? in[i] : first + i; }
  int64_t place(int64_t i) const { return out != nullptr ? out[i] : first + i; }
};
using RowsFn = void (*)(const RowsCall&);

struct TypeKernel {
  Order order = Order::kFloat;
  RowsFn rows = nullptr;
};

struct Kernels {
  const char* isa;
  // Packs vector t of `to` (resized) from its source.
  void (*pack)(Packed& to, int64_t t);
  TypeKernel types[64];  // by WeightType
  const TypeKernel& of(WeightType type) const { return types[static_cast<uint32_t>(type)]; }
};

// The best this machine has, or what ESKER_CPU_ISA names. Throws Error(kUsage) for a name that is none
// or that the machine lacks.
const Kernels& kernels();
// The instruction sets of this machine, best first: of "avx512", "avx2", "neon", "scalar".
std::vector<const Kernels*> available_kernels();

// One a file; null where the compiler or the machine lacks the instructions.
const Kernels* avx512_kernels();
const Kernels* avx2_kernels();
const Kernels* neon_kernels();

}  // namespace esker::cpu
