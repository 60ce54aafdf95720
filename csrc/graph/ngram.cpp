// SPDX-License-Identifier: MIT
#include "graph/ngram.h"

namespace esker {

void ngram_rows(const Config& c, std::span<const int32_t> history, std::span<const int32_t> tokens,
                uint64_t* rows) {
  const int64_t before = static_cast<int64_t>(history.size());
  for (int64_t t = 0; t < static_cast<int64_t>(tokens.size()); ++t) {
    // Walking back, an EOS or the start of the sequence turns itself and all older into EOS.
    bool cut = false;
    uint64_t mixed = static_cast<uint64_t>(tokens[t]) * c.ple_multipliers[0];
    uint32_t head = 0;
    for (int64_t back = 1; back < static_cast<int64_t>(c.ngram_size); ++back) {
      const int64_t at = before + t - back;
      int32_t id = static_cast<int32_t>(c.ple_eos);
      if (!cut && at >= 0) {
        id = at < before ? history[static_cast<size_t>(at)] : tokens[static_cast<size_t>(at - before)];
      }
      cut = cut || id == static_cast<int32_t>(c.ple_eos);
      mixed ^= static_cast<uint64_t>(id) * c.ple_multipliers[static_cast<size_t>(back)];
      for (uint32_t p = 0; p < c.heads_per_ngram; ++p, ++head) {
        *rows++ = mixed % c.ple_head_sizes[head] + c.ple_head_offsets[head];
      }
    }
  }
}

}  // namespace esker
