// SPDX-License-Identifier: MIT
//
// Embedding rows, matrix products and the shared expert's activation.
// A row of W is decoded once and used for every token of the run.
#include <algorithm>
#include <cstring>

#include "backends/cpu/math.h"
#include "backends/cpu/ops.h"
#include "formats/quants.h"

namespace esker::cpu {
namespace {

// About 32 K weights a part: tens of microseconds, enough to hide the claim of a part.
int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 32768 / cols); }

}  // namespace

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
  const int64_t cols = static_cast<int64_t>(w.cols), n_out = c.width(op.out[0]);
  const int64_t t0 = c.first_row(op), t1 = c.run.n_tokens;
  const float* x = c.floats(op.in[0]);
  float* y = c.floats(op.out[0]);
  const DecodeFn decode = weight_decoder(w.type);
  const bool silu_after = op.epilogue == Epilogue::kSilu;
  c.reserve(cols);
  c.pool.parallel_for(n_out, row_grain(cols), [&](int64_t begin, int64_t end, int thread) {
    float* row = c.thread_floats[static_cast<size_t>(thread)].data();
    for (int64_t r = begin; r < end; ++r) {
      decode(w.data + static_cast<uint64_t>(r) * w.row_bytes(), row, cols);
      for (int64_t t = t0; t < t1; ++t) {
        const float v = dot(row, x + t * cols, cols);
        y[t * n_out + r] = silu_after ? silu(op.scale * v) : v;
      }
    }
  });
}

void swiglu(const Context& c, const Op& op) {
  const int64_t n = c.width(op.out[0]) * c.run.n_tokens;
  const float *gate = c.floats(op.in[0]), *up = c.floats(op.in[1]);
  float* out = c.floats(op.out[0]);
  c.pool.parallel_for(n, 8192, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) out[i] = silu(gate[i]) * up[i];
  });
}

}  // namespace esker::cpu
