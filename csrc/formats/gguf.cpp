// SPDX-License-Identifier: MIT
//
// GGUF metadata: the names of its types, and typed access with errors that say what stands there.
#include "formats/gguf.h"

#include <cmath>
#include <cstdio>

#include "abi/weight_types.h"
#include "base/error.h"
#include "formats/gguf_reader.h"

namespace esker {
namespace {

constexpr size_t kPrintedMax = 80;  // characters of a file's text that a message quotes

[[noreturn]] void raise_key(const char* problem, std::string_view key, const std::string& got,
                            const std::string& want, const Gguf& gguf, const std::string& hint) {
  raise(ErrorKind::kFormat, kGgufComponent,
        {"metadata key " + std::string(key) + problem, got, want, gguf.path(), hint});
}

const MetaValue& require(const Gguf& gguf, std::string_view key, const std::string& want) {
  const MetaValue* value = gguf.find(key);
  if (value == nullptr) {
    raise_key(" is missing", key, "no such key", want, gguf,
              "convert the model again with a current converter");
  }
  return *value;
}

}  // namespace

const char* meta_type_name(MetaType type) {
  static constexpr const char* kNames[] = {"UINT8", "INT8",    "UINT16", "INT16", "UINT32",
                                           "INT32", "FLOAT32", "BOOL",   "STRING", "ARRAY",
                                           "UINT64", "INT64",  "FLOAT64"};
  const uint32_t index = static_cast<uint32_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown type";
}

std::string MetaValue::type_name() const {
  std::string name = meta_type_name(type);
  if (type == MetaType::kArray) name += std::string(" of ") + meta_type_name(element);
  return name;
}

std::string TensorInfo::type_name() const {
  const WeightTypeInfo* info = find_weight_type(type_id);
  return info != nullptr ? info->name : "unknown type " + std::to_string(type_id);
}

std::string TensorInfo::shape() const {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  }
  return text + "]";
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= kPrintedMax) return out + "...";
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    }
  }
  return out;
}

std::string describe(const MetaValue& value) {
  std::string text = value.type_name();
  if (const auto* u = std::get_if<uint64_t>(&value.value)) {
    if (value.type == MetaType::kBool) return text + (*u != 0 ? " true" : " false");
    return text + " " + std::to_string(*u);
  }
  if (const auto* i = std::get_if<int64_t>(&value.value)) return text + " " + std::to_string(*i);
  if (const auto* d = std::get_if<double>(&value.value)) {
    char number[32];
    std::snprintf(number, sizeof number, " %g", *d);
    return text + number;
  }
  if (const auto* s = std::get_if<std::string>(&value.value)) {
    return text + " \"" + printable(*s) + "\"";
  }
  const size_t count =
      std::visit([](const auto& v) { return v.size(); }, std::get<MetaValue::Array>(value.value));
  return text + " with " + std::to_string(count) + (count == 1 ? " entry" : " entries");
}

bool to_uint(const MetaValue& value, uint64_t* number) {
  if (value.type == MetaType::kBool) return false;
  if (const auto* u = std::get_if<uint64_t>(&value.value)) {
    *number = *u;
    return true;
  }
  const auto* i = std::get_if<int64_t>(&value.value);
  if (i == nullptr || *i < 0) return false;
  *number = static_cast<uint64_t>(*i);
  return true;
}

const MetaValue* Gguf::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const TensorInfo* Gguf::find_tensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

uint64_t Gguf::require_uint(std::string_view key, uint64_t min, uint64_t max) const {
  const std::string want = min == max ? std::to_string(min)
                                      : "an integer from " + std::to_string(min) + " to " +
                                            std::to_string(max);
  const MetaValue& value = require(*this, key, want);
  const bool is_integer = value.type != MetaType::kBool &&
                          (std::holds_alternative<uint64_t>(value.value) ||
                           std::holds_alternative<int64_t>(value.value));
  if (!is_integer) raise_key(" has the wrong type", key, describe(value), want, *this, "");
  uint64_t number = 0;
  if (!to_uint(value, &number) || number < min || number > max) {
    raise_key(" is out of range", key, describe(value), want, *this, "");
  }
  return number;
}

double Gguf::require_float(std::string_view key) const {
  const std::string want = "a finite FLOAT32";
  const MetaValue& value = require(*this, key, want);
  const auto* number = std::get_if<double>(&value.value);
  if (number == nullptr) raise_key(" has the wrong type", key, describe(value), want, *this, "");
  if (!std::isfinite(*number)) {
    raise_key(" is out of range", key, describe(value), want, *this, "");
  }
  return *number;
}

const std::string& Gguf::require_string(std::string_view key) const {
  const MetaValue& value = require(*this, key, "a STRING");
  const auto* text = std::get_if<std::string>(&value.value);
  if (text == nullptr) {
    raise_key(" has the wrong type", key, describe(value), "a STRING", *this, "");
  }
  return *text;
}

std::vector<uint64_t> Gguf::require_uint_array(std::string_view key) const {
  const std::string want = "an array of integers";
  const MetaValue& value = require(*this, key, want);
  const auto* array = std::get_if<MetaValue::Array>(&value.value);
  if (array != nullptr) {
    if (const auto* u = std::get_if<std::vector<uint64_t>>(array)) return *u;
    if (const auto* i = std::get_if<std::vector<int64_t>>(array)) {
      std::vector<uint64_t> numbers;
      numbers.reserve(i->size());
      for (size_t at = 0; at < i->size(); ++at) {
        if ((*i)[at] < 0) {
          raise_key(" is out of range", key,
                    std::to_string((*i)[at]) + " in entry " + std::to_string(at),
                    "no negative number", *this, "");
        }
        numbers.push_back(static_cast<uint64_t>((*i)[at]));
      }
      return numbers;
    }
  }
  raise_key(" has the wrong type", key, describe(value), want, *this, "");
}

}  // namespace esker
