// SPDX-License-Identifier: MIT
//
// Chooses the kernels; and the scalar ones, which decode a row to float32 and multiply.
#include "backends/cpu/kernels.h"

#include <string>

#include "backends/cpu/math.h"
#include "base/env.h"
#include "base/error.h"
#include "formats/quants.h"

namespace esker::cpu {
namespace {

template <WeightType kType>
void scalar_rows(const RowsCall& c) {
  const int64_t n = c.x->n;
  const DecodeFn decode = weight_decoder(kType);
  thread_local std::vector<float> row;  // grows to the longest row this thread meets
  if (static_cast<int64_t>(row.size()) < n) row.resize(static_cast<size_t>(n));
  for (int64_t r = 0; r < c.n_rows; ++r) {
    decode(c.w + static_cast<uint64_t>(r) * c.row_bytes, row.data(), n);
    for (int64_t i = 0; i < c.tokens; ++i) {
      c.y[c.place(i) * c.y_stride + r] = dot(row.data(), c.x->x + c.vector(i) * n, n);
    }
  }
}

template <size_t... kIndex>
void fill_scalar(Kernels& k, std::index_sequence<kIndex...>) {
  ((k.types[static_cast<uint32_t>(kWeightTypes[kIndex].type)].rows =
        &scalar_rows<kWeightTypes[kIndex].type>), ...);
}

const Kernels& scalar_kernels() {
  static const Kernels table = [] {
    Kernels k{.isa = "scalar", .pack = [](Packed&, int64_t) {}, .types = {}};
    fill_scalar(k, std::make_index_sequence<std::size(kWeightTypes)>());
    return k;
  }();
  return table;
}

// A type that an instruction set has no kernel for is served by the scalar one.
Kernels completed(const Kernels& table) {
  Kernels k = table;
  for (const WeightTypeInfo& t : kWeightTypes) {
    TypeKernel& kernel = k.types[static_cast<uint32_t>(t.type)];
    if (kernel.rows == nullptr) kernel = scalar_kernels().of(t.type);
  }
  return k;
}

}  // namespace

std::vector<const Kernels*> available_kernels() {
  static const std::vector<Kernels> tables = [] {
    std::vector<Kernels> all;
    for (const Kernels* k : {avx512_kernels(), avx2_kernels(), neon_kernels()}) {
      if (k != nullptr) all.push_back(completed(*k));
    }
    all.push_back(scalar_kernels());
    return all;
  }();
  std::vector<const Kernels*> list;
  for (const Kernels& k : tables) list.push_back(&k);
  return list;
}

const Kernels& kernels() {
  static const std::vector<const Kernels*> all = available_kernels();
  const std::string wanted = environment("ESKER_CPU_ISA");
  if (wanted.empty()) return *all.front();
  std::string names;
  for (const Kernels* k : all) {
    if (wanted == k->isa) return *k;
    names += names.empty() ? k->isa : std::string(", ") + k->isa;
  }
  raise(ErrorKind::kUsage, "cpu",
        {.what = "this machine has no such instruction set",
         .got = wanted,
         .want = "one of " + names,
         .where = "environment variable ESKER_CPU_ISA",
         .hint = {}});
}

}  // namespace esker::cpu
