// SPDX-License-Identifier: MIT
//
// Which rows of the n-gram table a token reads (SPEC section 5).
#pragma once

#include <cstdint>
#include <span>

#include "graph/config.h"

namespace esker {

// history: the ids before tokens[0], oldest first, as many as there are (at least the last N - 1, or
// all when the sequence is shorter). rows: [T, n_ple_head], written.
void ngram_rows(const Config& config, std::span<const int32_t> history,
                std::span<const int32_t> tokens, uint64_t* rows);

}  // namespace esker
