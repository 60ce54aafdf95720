// SPDX-License-Identifier: MIT
//
// Embedding rows, matrix products and the shared expert's activation.
#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/math.h"
#include "backends/cpu/ops.h"
#include "formats/quants.h"

namespace esker::cpu {
namespace {

// Rows of a part: about 64 KB, which hides the claim of a part; with many tokens whole panels of rows.
int64_t row_grain(uint64_t row_bytes, int64_t tokens) {
  const int64_t rows = std::clamp<int64_t>(65536 / static_cast<int64_t>(row_bytes) / 2 * 2, 2, 64);
  return tokens == 1 ? rows : (rows + 31) / 32 * 32;
}

// As fine as the option says, but where a small error may choose another expert or another block; a
// guess only chooses what is read early.
int parts_of(const Context& c, Role role) {
  switch (role) {
    case Role::kRouter: case Role::kIndexQ: case Role::kIndexK:
      return static_cast<int>(Activations::kExact);
    case Role::kRouterAhead: return static_cast<int>(Activations::kCoarse);
    default: return c.parts;
  }
}

}  // namespace

void PackCache::clear() {
  for (Entry& e : entries_) e.id = kNoBuffer;
}

const Packed& PackCache::get(const Context& c, const Op& op, BufferId id, Order order, int parts,
                             int64_t n) {
  for (const Entry& e : entries_) {
    if (e.id == id && e.packed.order == order && e.packed.parts == parts) return e.packed;
  }
  Entry& e = entries_[next_];
  next_ = (next_ + 1) % entries_.size();
  e.id = id;
  e.packed.resize(order, parts, n, c.run.n_tokens);
  e.packed.x = c.floats(id);
  if (order == Order::kFloat) return e.packed;
  const int64_t first = c.first_row(op);
  c.pool.parallel_for(c.rows(op), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) c.kernels.pack(e.packed, first + t);
  });
  return e.packed;
}

void embed(const Context& c, const Op& op) {
  const Weight& w = c.weight(op.w[0]);
  const int64_t d = c.config.d_model, streams = c.config.n_stream;
  const DecodeFn decode = weight_decoder(w.type);
  float* out = c.floats(op.out[0]);
  c.pool.parallel_for(c.run.n_tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* first = out + t * streams * d;
      decode(w.data + static_cast<uint64_t>(c.run.tokens[t]) * w.row_bytes(), first, d);
      for (int64_t s = 1; s < streams; ++s) std::copy_n(first, d, first + s * d);
    }
  });
}

void matmul(const Context& c, const Op& op) {
  const Weight& w = c.weight(op.w[0]);
  const int64_t n_out = c.width(op.out[0]), t0 = c.first_row(op), t1 = c.run.n_tokens;
  const TypeKernel& kernel = c.kernels.of(w.type);
  const int parts = parts_of(c, op.w[0].role);
  const Packed& x = c.packs.get(c, op, op.in[0], kernel.order, parts, static_cast<int64_t>(w.cols));
  float* y = c.floats(op.out[0]);
  c.pool.parallel_for(n_out, row_grain(w.row_bytes(), t1 - t0), [&](int64_t begin, int64_t end, int) {
    kernel.rows({.w = w.data + static_cast<uint64_t>(begin) * w.row_bytes(),
                 .row_bytes = w.row_bytes(),
                 .n_rows = end - begin,
                 .x = &x,
                 .tokens = t1 - t0,
                 .y = y + begin,
                 .y_stride = n_out,
                 .first = t0});
    if (op.epilogue != Epilogue::kSilu) return;
    for (int64_t t = t0; t < t1; ++t) {
      for (int64_t r = begin; r < end; ++r) y[t * n_out + r] = silu(op.scale * y[t * n_out + r]);
    }
  });
}

void swiglu(const Context& c, const Op& op) {
  const int64_t n = c.width(op.out[0]) * c.run.n_tokens;
  const float *gate = c.floats(op.in[0]), *up = c.floats(op.in[1]);
  float* out = c.floats(op.out[0]);
  c.pool.parallel_for(n, 8192, [&](int64_t begin, int64_t end, int) {
    silu_times(out + begin, gate + begin, up + begin, end - begin);
  });
}

}  // namespace esker::cpu
