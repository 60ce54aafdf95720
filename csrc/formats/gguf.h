// SPDX-License-Identifier: MIT
//
// GGUF files: metadata and tensor table, of one file or of all shards of a model.
//
// A hostile file can make this throw Error(kFormat), nothing else: every count, offset, length and
// string is checked against the file's size before it is used, and nothing is allocated that the
// file is not large enough to fill.
// Knows nothing of any architecture; graph/ gives the names their meaning.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/file.h"

namespace esker {

// The value types of GGUF metadata, as numbered in the file.
enum class MetaType : uint32_t {
  kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7,
  kString = 8, kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12,
};
const char* meta_type_name(MetaType type);  // "UINT32", ...

// One metadata value. Integers and booleans widen to 64 bits; arrays hold one of the four kinds.
struct MetaValue {
  using Array = std::variant<std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>,
                             std::vector<std::string>>;
  MetaType type = MetaType::kU32;
  MetaType element = MetaType::kU32;  // of an array
  std::variant<uint64_t, int64_t, double, std::string, Array> value;
  std::string type_name() const;  // "UINT32", "ARRAY of INT32"
};

struct TensorInfo {
  std::string name;
  uint32_t type_id = 0;        // as in the file; may be one that we cannot decode
  std::vector<uint64_t> dims;  // fastest first, as GGUF writes them
  uint64_t elements = 0;
  uint64_t offset = 0;         // from the start of its file
  uint64_t bytes = 0;          // 0 when the type is unknown
  uint32_t file = 0;           // index into Gguf::files()
  std::string type_name() const;  // "IQ4_XS", "unknown type 99"
  std::string shape() const;      // "[2560, 512]"
};

// How much of a file must be there.
enum class Extent : uint8_t {
  kWhole,       // every tensor's bytes
  kHeaderOnly,  // metadata and tensor table; whatever follows is not looked at
};

// A file whose metadata say this is true was written as a header alone.
inline constexpr const char* kHeaderOnlyKey = "esker.header_only";

// A model's GGUF: all its shards as one. Immutable once opened.
class Gguf {
 public:
  // Opens `path`; if it is a shard (split.count > 1), finds and opens the others beside it.
  // Throws Error(kFormat) or Error(kRead); a file that is only a header is one only for
  // Extent::kHeaderOnly.
  static std::shared_ptr<const Gguf> open(const std::string& path, Extent extent = Extent::kWhole);

  const std::map<std::string, MetaValue, std::less<>>& metadata() const { return metadata_; }
  const MetaValue* find(std::string_view key) const;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  const TensorInfo* find_tensor(std::string_view name) const;

  const std::vector<std::shared_ptr<const Mapping>>& files() const { return files_; }
  const std::string& path() const { return files_.front()->path(); }  // of the first shard

  Extent extent() const { return extent_; }

  // The mapped bytes of a tensor; null when only the header was asked for.
  const uint8_t* data(const TensorInfo& tensor) const {
    if (extent_ == Extent::kHeaderOnly) return nullptr;
    return files_[tensor.file]->data() + tensor.offset;
  }

  // Typed access to required keys; each throws Error(kFormat) naming the key, the file, and what
  // was found instead. Integers of any width and sign serve for each other when the value fits.
  uint64_t require_uint(std::string_view key, uint64_t min, uint64_t max) const;
  double require_float(std::string_view key) const;
  const std::string& require_string(std::string_view key) const;
  std::vector<uint64_t> require_uint_array(std::string_view key) const;  // bools count as 0 and 1

 private:
  friend class GgufReader;
  Extent extent_ = Extent::kWhole;
  std::map<std::string, MetaValue, std::less<>> metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::vector<std::shared_ptr<const Mapping>> files_;
};

}  // namespace esker
