// SPDX-License-Identifier: MIT
//
// Parses one GGUF file: magic, version, metadata, tensor table, and where the tensors' bytes lie.
// Invariant: a number from the file is compared with what the file still holds before it is used
// as a count, a length or an offset; each byte of the header is read once.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "abi/weight_types.h"
#include "base/error.h"
#include "base/units.h"
#include "formats/gguf_reader.h"

namespace esker {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr uint64_t kMaxHeaderBytes = 256u << 20;   // real files: 15 MB for 250,000 tokens
constexpr uint64_t kMaxKeyBytes = 65535;           // the format's own limit
constexpr uint64_t kMaxTensorNameBytes = 255;      // the ggml project's limit is 63
constexpr uint64_t kMaxAlignment = 16u << 20;
constexpr uint64_t kMaxElements = uint64_t{1} << 58;  // times 4 bytes stays far from overflow
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;  // where no file's size bounds the offsets
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;           // length, one letter, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // length, letter, dims, type, offset

// Reads the header front to back. Knows the part of the file and the item that it is in, so that
// an error anywhere can say both.
class Cursor {
 public:
  explicit Cursor(const Mapping& file) : file_(file) {}

  void enter(const char* section) { section_ = section; item_.clear(); }
  void set_item(std::string item) { item_ = std::move(item); }
  uint64_t position() const { return position_; }

  // "model.gguf, key general.name, offset 123".
  std::string where() const {
    std::string text = file_.path();
    if (!item_.empty()) text += ", " + item_;
    return text + ", offset " + std::to_string(position_);
  }

  [[noreturn]] void fail(const std::string& what, const std::string& got, const std::string& want,
                         const char* hint = kFetchAgain) const {
    raise(ErrorKind::kFormat, kGgufComponent, {what, got, want, where(), hint});
  }

  // Throws unless `count` items of at least `item_bytes` each can follow.
  void expect(uint64_t count, uint64_t item_bytes) const {
    const uint64_t left = file_.size_bytes() - position_;
    if (count > left / item_bytes) {
      uint64_t need = 0;
      const bool overflow = __builtin_mul_overflow(count, item_bytes, &need) ||
                            __builtin_add_overflow(need, position_, &need);
      fail(std::string("the file ends inside its ") + section_,
           std::to_string(file_.size_bytes()) + " bytes",
           overflow ? "more than 2^64 bytes" : "at least " + std::to_string(need) + " bytes");
    }
    if (position_ + count * item_bytes > kMaxHeaderBytes) {
      fail("the file's header is too large",
           "at least " + std::to_string(position_ + count * item_bytes) + " bytes",
           "at most " + std::to_string(kMaxHeaderBytes) + " bytes");
    }
  }

  template <class T>
  T take() {
    expect(1, sizeof(T));
    T value;
    std::memcpy(&value, file_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::string take_string(uint64_t max_bytes) {
    const uint64_t bytes = take<uint64_t>();
    expect(bytes, 1);
    if (bytes > max_bytes) {
      fail("a name is too long", std::to_string(bytes) + " bytes",
           "at most " + std::to_string(max_bytes) + " bytes");
    }
    std::string text(reinterpret_cast<const char*>(file_.data() + position_), bytes);
    position_ += bytes;
    return text;
  }

  // A key or tensor name: not empty, printable ASCII, so that messages and listings may hold it.
  std::string take_name(uint64_t max_bytes) {
    std::string name = take_string(max_bytes);
    const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return c >= 0x20 && c < 0x7f;
    });
    if (name.empty() || !plain) {
      fail("a name is not readable", "\"" + printable(name) + "\"", "printable ASCII characters");
    }
    return name;
  }

 private:
  const Mapping& file_;
  const char* section_ = "header";
  std::string item_;
  uint64_t position_ = 0;
};

struct Stranger {
  std::string_view start;
  const char* what;
  const char* hint;
};

constexpr const char* kNotAModel = "name a .gguf file";
constexpr Stranger kStrangers[] = {
    {"version https://git-lfs", "a git-lfs pointer",
     "the model itself was not downloaded: run git lfs pull"},
    {"PK\x03\x04", "a zip archive", "unpack it, or name a .gguf file"},
    {"lmgg", "an old GGML file", "convert the model to GGUF"},
    {"tjgg", "an old GGJT file", "convert the model to GGUF"},
    {"FUGG", "GGUF with its bytes swapped", "convert it to little-endian"},
    {"STRX", "an expert pack", "name the .gguf file beside it"},
};

[[noreturn]] void raise_no_magic(const Mapping& file) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<uint64_t>(file.size_bytes(), 256));
  std::string got = "bytes \"" + printable(start.substr(0, 8)) + "\"";
  const char* hint = kNotAModel;
  const bool is_text = std::all_of(start.begin(), start.end(), [](unsigned char c) {
    return (c >= 0x20 && c != 0x7f) || (c >= 0x09 && c <= 0x0d);
  });
  const size_t first = start.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  const std::string_view body = first == start.npos ? start : start.substr(first);
  if (start.find_first_not_of('\0') == start.npos) {
    got = "zeros";
    hint = "the download did not finish: download the file again";
  } else if (is_text && body.substr(0, 1) == "<") {
    got = "a web page (HTML): \"" + printable(body.substr(0, 40)) + "\"";
    hint = "the download failed and saved the server's page instead: download the file again";
  } else if (is_text) {
    got = "text: \"" + printable(body.substr(0, 40)) + "\"";
    hint = "the download may have failed and saved the server's answer: look at the file";
  }
  for (const Stranger& stranger : kStrangers) {
    if (start.substr(0, stranger.start.size()) != stranger.start) continue;
    got = stranger.what;
    hint = stranger.hint;
  }
  raise(ErrorKind::kFormat, kGgufComponent,
        {"this is not a GGUF file", got, "a file that begins with \"GGUF\"",
         file.path() + ", offset 0", hint});
}

void read_magic_and_version(const Mapping& file, Cursor& cursor) {
  if (file.size_bytes() == 0) {
    raise(ErrorKind::kFormat, kGgufComponent,
          {"the file is empty", "0 bytes", "a GGUF file", file.path(),
           "the download did not finish: download the file again"});
  }
  if (std::string_view(reinterpret_cast<const char*>(file.data()),
                       std::min<uint64_t>(4, file.size_bytes())) !=
      std::string_view("GGUF").substr(0, file.size_bytes())) {
    raise_no_magic(file);
  }
  cursor.take<uint32_t>();
  const uint32_t version = cursor.take<uint32_t>();
  if (version == 2 || version == 3) return;
  if (version != 0 && (version & 0xffffu) == 0) {
    cursor.fail("the file is big-endian", "version " + std::to_string(__builtin_bswap32(version)) +
                " with its bytes swapped", "a little-endian file",
                "convert the model again without the big-endian option");
  }
  cursor.fail("this version of GGUF is not supported", "version " + std::to_string(version),
              "version 2 or 3",
              version < 2 ? "convert the model again with a current converter"
                          : "a newer Esker may read it");
}

// Bytes of a value in the file, or of the length that stands before it.
uint64_t value_bytes(MetaType type) {
  switch (type) {
    case MetaType::kU8: case MetaType::kI8: case MetaType::kBool: return 1;
    case MetaType::kU16: case MetaType::kI16: return 2;
    case MetaType::kU32: case MetaType::kI32: case MetaType::kF32: return 4;
    default: return 8;
  }
}

uint64_t take_unsigned(Cursor& cursor, MetaType type) {
  switch (type) {
    case MetaType::kU8: return cursor.take<uint8_t>();
    case MetaType::kU16: return cursor.take<uint16_t>();
    case MetaType::kU32: return cursor.take<uint32_t>();
    case MetaType::kU64: return cursor.take<uint64_t>();
    default: break;
  }
  const uint8_t truth = cursor.take<uint8_t>();
  if (truth > 1) cursor.fail("a BOOL is neither true nor false", std::to_string(truth), "0 or 1");
  return truth;
}

int64_t take_signed(Cursor& cursor, MetaType type) {
  switch (type) {
    case MetaType::kI8: return cursor.take<int8_t>();
    case MetaType::kI16: return cursor.take<int16_t>();
    case MetaType::kI32: return cursor.take<int32_t>();
    default: return cursor.take<int64_t>();
  }
}

double take_float(Cursor& cursor, MetaType type) {
  return type == MetaType::kF32 ? static_cast<double>(cursor.take<float>())
                                : cursor.take<double>();
}

enum class Kind { kUnsigned, kSigned, kFloat, kString, kArray };

Kind kind_of(Cursor& cursor, uint32_t type) {
  switch (static_cast<MetaType>(type)) {
    case MetaType::kU8: case MetaType::kU16: case MetaType::kU32: case MetaType::kU64:
    case MetaType::kBool: return Kind::kUnsigned;
    case MetaType::kI8: case MetaType::kI16: case MetaType::kI32: case MetaType::kI64:
      return Kind::kSigned;
    case MetaType::kF32: case MetaType::kF64: return Kind::kFloat;
    case MetaType::kString: return Kind::kString;
    case MetaType::kArray: return Kind::kArray;
  }
  cursor.fail("a metadata value has an unknown type", std::to_string(type), "a type from 0 to 12");
}

template <class T, class Take>
std::vector<T> take_array(uint64_t count, Take take) {
  std::vector<T> values;
  values.reserve(count);  // bounded: `count` was compared with the bytes left
  for (uint64_t i = 0; i < count; ++i) values.push_back(take());
  return values;
}

MetaValue::Array take_elements(Cursor& cursor, MetaType element, uint64_t count) {
  switch (kind_of(cursor, static_cast<uint32_t>(element))) {
    case Kind::kUnsigned:
      return take_array<uint64_t>(count, [&] { return take_unsigned(cursor, element); });
    case Kind::kSigned:
      return take_array<int64_t>(count, [&] { return take_signed(cursor, element); });
    case Kind::kFloat:
      return take_array<double>(count, [&] { return take_float(cursor, element); });
    case Kind::kString:
      return take_array<std::string>(count, [&] { return cursor.take_string(kMaxHeaderBytes); });
    case Kind::kArray: break;
  }
  cursor.fail("a metadata array holds arrays", "ARRAY of ARRAY", "an array of plain values");
}

MetaValue take_value(Cursor& cursor) {
  MetaValue value;
  const uint32_t type = cursor.take<uint32_t>();
  const Kind kind = kind_of(cursor, type);
  value.type = static_cast<MetaType>(type);
  switch (kind) {
    case Kind::kUnsigned: value.value = take_unsigned(cursor, value.type); break;
    case Kind::kSigned: value.value = take_signed(cursor, value.type); break;
    case Kind::kFloat: value.value = take_float(cursor, value.type); break;
    case Kind::kString: value.value = cursor.take_string(kMaxHeaderBytes); break;
    case Kind::kArray: {
      value.element = static_cast<MetaType>(cursor.take<uint32_t>());
      const uint64_t count = cursor.take<uint64_t>();
      cursor.expect(count, value_bytes(value.element));
      value.value = take_elements(cursor, value.element, count);
      break;
    }
  }
  return value;
}

void read_metadata(Cursor& cursor, uint64_t count, GgufFile& file) {
  cursor.enter("metadata");
  cursor.expect(count, kMinKeyBytes);
  for (uint64_t i = 0; i < count; ++i) {
    cursor.set_item("metadata entry " + std::to_string(i + 1) + " of " + std::to_string(count));
    std::string key = cursor.take_name(kMaxKeyBytes);
    cursor.set_item("key " + printable(key));
    MetaValue value = take_value(cursor);
    if (!file.metadata.emplace(std::move(key), std::move(value)).second) {
      cursor.fail("a metadata key stands twice", "a second value", "each key once");
    }
  }
}

// Settles elements and bytes from dims and type.
void measure_tensor(Cursor& cursor, TensorInfo& tensor) {
  tensor.elements = 1;
  for (const uint64_t dim : tensor.dims) {
    if (dim == 0) {
      cursor.fail("a tensor has an empty dimension", tensor.shape(), "dimensions of 1 or more");
    }
    if (__builtin_mul_overflow(tensor.elements, dim, &tensor.elements) ||
        tensor.elements > kMaxElements) {
      cursor.fail("a tensor is impossibly large", tensor.shape(),
                  "at most " + std::to_string(kMaxElements) + " elements");
    }
  }
  const WeightTypeInfo* info = find_weight_type(tensor.type_id);
  if (info == nullptr) return;
  if (tensor.dims[0] % info->block_elements != 0) {
    cursor.fail("a tensor's rows are not whole blocks",
                std::string(info->name) + " rows of " + std::to_string(tensor.dims[0]),
                "a multiple of " + std::to_string(info->block_elements),
                "convert or quantise the model again");
  }
  tensor.bytes = tensor.elements / info->block_elements * info->block_bytes;
}

void read_tensor_table(Cursor& cursor, uint64_t count, GgufFile& file) {
  cursor.enter("tensor table");
  cursor.expect(count, kMinTensorBytes);
  file.tensors.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    cursor.set_item("tensor " + std::to_string(i + 1) + " of " + std::to_string(count));
    TensorInfo tensor;
    tensor.name = cursor.take_name(kMaxTensorNameBytes);
    cursor.set_item("tensor " + tensor.name);
    const uint32_t n_dims = cursor.take<uint32_t>();
    if (n_dims < 1 || n_dims > kMaxDims) {
      cursor.fail("a tensor has a wrong number of dimensions", std::to_string(n_dims),
                  "1 to " + std::to_string(kMaxDims));
    }
    for (uint32_t d = 0; d < n_dims; ++d) tensor.dims.push_back(cursor.take<uint64_t>());
    tensor.type_id = cursor.take<uint32_t>();
    tensor.offset = cursor.take<uint64_t>();
    measure_tensor(cursor, tensor);
    file.tensors.push_back(std::move(tensor));
  }
}

[[noreturn]] void raise_tensor(const std::string& what, const std::string& got,
                               const std::string& want, const GgufFile& file,
                               const TensorInfo& tensor) {
  raise(ErrorKind::kFormat, kGgufComponent,
        {what, got, want,
         file.mapping->path() + ", tensor " + tensor.name + ", offset " +
             std::to_string(tensor.offset),
         kFetchAgain});
}

uint64_t alignment_of(const GgufFile& file) {
  const auto found = file.metadata.find("general.alignment");
  if (found == file.metadata.end()) return kDefaultAlignment;
  uint64_t alignment = 0;
  const bool integer = to_uint(found->second, &alignment);
  const bool fits = alignment > 0 && alignment <= kMaxAlignment &&
                    (alignment % 8 == 0 || (alignment & (alignment - 1)) == 0);
  if (!integer || !fits) {
    raise(ErrorKind::kFormat, kGgufComponent,
          {"metadata key general.alignment cannot be used", describe(found->second),
           "a power of two or a multiple of 8, at most " + std::to_string(kMaxAlignment),
           file.mapping->path(), kFetchAgain});
  }
  return alignment;
}

bool is_marked_header_only(const GgufFile& file) {
  const auto found = file.metadata.find(kHeaderOnlyKey);
  if (found == file.metadata.end() || found->second.type != MetaType::kBool) return false;
  return std::get<uint64_t>(found->second.value) != 0;
}

// Throws if the file holds no byte of its tensors: then nothing was damaged, only never fetched.
void check_holds_data(const GgufFile& file, uint64_t data_start) {
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : file.tensors) {
    if (__builtin_add_overflow(bytes, tensor.bytes, &bytes)) bytes = UINT64_MAX;
  }
  const uint64_t size = file.mapping->size_bytes();
  const bool marked = is_marked_header_only(file);
  if (!marked && (bytes == 0 || size > data_start)) return;
  const uint64_t want = bytes > UINT64_MAX - data_start ? UINT64_MAX : data_start + bytes;
  raise(ErrorKind::kFormat, kGgufComponent,
        {"the file is only a header, without the tensors' data",
         std::to_string(size) + " bytes" + (marked ? std::string(", ") + kHeaderOnlyKey : ""),
         "at least " + std::to_string(want) + " bytes", file.mapping->path(),
         "esker plan --header plans with it; to run the model, fetch the whole file"});
}

// Turns offsets into offsets from the start of the file; proves that every tensor lies inside it
// (with Extent::kHeaderOnly: inside a file of any possible size) and that no two share a byte.
void place_tensors(GgufFile& file, uint64_t header_end, Extent extent) {
  const uint64_t alignment = alignment_of(file);
  const uint64_t data_start = align_up(header_end, alignment);
  if (extent == Extent::kWhole) check_holds_data(file, data_start);
  const uint64_t size =
      extent == Extent::kWhole ? file.mapping->size_bytes() : kMaxFileBytes;
  for (TensorInfo& tensor : file.tensors) {
    if (tensor.offset % alignment != 0) {
      raise_tensor("a tensor's data is not aligned", "offset " + std::to_string(tensor.offset),
                   "a multiple of " + std::to_string(alignment), file, tensor);
    }
    uint64_t end = 0;
    const bool overflow = __builtin_add_overflow(tensor.offset, data_start, &tensor.offset) ||
                          __builtin_add_overflow(tensor.offset, tensor.bytes, &end);
    if (overflow || end > size) {
      raise_tensor(extent == Extent::kWhole ? "a tensor reaches past the end of the file"
                                            : "a tensor reaches past the end of any file",
                   std::to_string(size) + " bytes",
                   overflow ? "more than 2^64 bytes" : "at least " + std::to_string(end) + " bytes",
                   file, tensor);
    }
  }
  std::vector<const TensorInfo*> order;
  order.reserve(file.tensors.size());
  for (const TensorInfo& tensor : file.tensors) {
    if (tensor.bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = *order[i - 1];
    if (order[i]->offset < before.offset + before.bytes) {
      raise_tensor("two tensors overlap", "offset " + std::to_string(order[i]->offset),
                   "an offset after tensor " + before.name + ", which ends at " +
                       std::to_string(before.offset + before.bytes),
                   file, *order[i]);
    }
  }
}

}  // namespace

GgufFile parse_gguf_file(std::shared_ptr<const Mapping> mapping, Extent extent) {
  GgufFile file;
  file.mapping = std::move(mapping);
  Cursor cursor(*file.mapping);
  read_magic_and_version(*file.mapping, cursor);
  const uint64_t tensor_count = cursor.take<uint64_t>();
  const uint64_t key_count = cursor.take<uint64_t>();
  read_metadata(cursor, key_count, file);
  read_tensor_table(cursor, tensor_count, file);
  place_tensors(file, cursor.position(), extent);
  return file;
}

uint64_t optional_uint(const GgufFile& file, std::string_view key, uint64_t max, uint64_t absent) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) return absent;
  uint64_t number = 0;
  if (!to_uint(found->second, &number) || number > max) {
    raise(ErrorKind::kFormat, kGgufComponent,
          {"metadata key " + std::string(key) + " is out of range", describe(found->second),
           "an integer from 0 to " + std::to_string(max), file.mapping->path(), ""});
  }
  return number;
}

}  // namespace esker
