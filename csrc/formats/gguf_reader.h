// SPDX-License-Identifier: MIT
//
// What gguf.cpp (one file) and gguf_shards.cpp (a model of several) share. Not for anyone else.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace esker {

inline constexpr const char* kGgufComponent = "gguf";
inline constexpr const char* kFetchAgain =
    "the file is incomplete or damaged: download or copy it again";

// One file as parsed: offsets count from its start, TensorInfo::file is still 0.
struct GgufFile {
  std::shared_ptr<const Mapping> mapping;
  std::map<std::string, MetaValue, std::less<>> metadata;
  std::vector<TensorInfo> tensors;
};

// Throws Error(kFormat). The mapping is read once, front to back, and only in its header.
GgufFile parse_gguf_file(std::shared_ptr<const Mapping> mapping, Extent extent);

// Text of a file made safe for a message: control and non-ASCII bytes as \xNN, long text cut.
std::string printable(std::string_view text);

// "UINT32 5", "STRING \"llama\"", "ARRAY of INT32 with 48 entries".
std::string describe(const MetaValue& value);

// The value as an unsigned number, if it is an integer that is not negative.
bool to_uint(const MetaValue& value, uint64_t* number);

// Value of `key` in one file's metadata, an integer up to `max`; `absent` if there is none.
uint64_t optional_uint(const GgufFile& file, std::string_view key, uint64_t max, uint64_t absent);

}  // namespace esker
