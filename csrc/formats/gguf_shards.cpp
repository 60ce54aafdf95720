// SPDX-License-Identifier: MIT
//
// Opens a model: one file, or all the shards that belong to the one that was named.
// Shards lie side by side as NAME-00001-of-00005.gguf; split.no counts from 0, names from 1.
// The first shard's metadata are the model's; the others carry little but split.*.
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "formats/gguf_reader.h"

namespace esker {
namespace {

constexpr uint64_t kMaxShards = 4096;      // the real model, whole, comes in about 20
constexpr uint64_t kMaxTensors = 1 << 20;  // the real model has 1224
constexpr size_t kListedMax = 5;           // missing shards that a message names

const char* const kKeepTogether =
    "put all shards of one model into one folder under their original names";

struct ShardName {
  std::string stem;    // the path before "-00001-of-00005.gguf"
  uint64_t number = 0;  // from 1
  uint64_t count = 0;
};

bool all_digits(std::string_view text) {
  return text.find_first_not_of("0123456789") == text.npos;
}

// Whether `path` ends in "-NNNNN-of-NNNNN.gguf".
bool parse_shard_name(const std::string& path, ShardName* name) {
  constexpr size_t kTail = 20;  // length of "-00001-of-00005.gguf"
  if (path.size() <= kTail) return false;
  const std::string_view tail = std::string_view(path).substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" ||
      !all_digits(tail.substr(1, 5)) || !all_digits(tail.substr(10, 5))) {
    return false;
  }
  name->stem = path.substr(0, path.size() - kTail);
  name->number = std::stoul(std::string(tail.substr(1, 5)));
  name->count = std::stoul(std::string(tail.substr(10, 5)));
  return true;
}

std::string shard_path(const ShardName& name, uint64_t number) {
  char tail[64];
  std::snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", static_cast<unsigned>(number),
                static_cast<unsigned>(name.count));
  return name.stem + tail;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

[[noreturn]] void raise_shard(const std::string& what, const std::string& got,
                              const std::string& want, const std::string& path,
                              const char* hint = kKeepTogether) {
  raise(ErrorKind::kFormat, kGgufComponent, {what, got, want, path, hint});
}

uint64_t split_count(const GgufFile& file) {
  return optional_uint(file, "split.count", kMaxShards, 0);
}

// The name that leads to the other shards; throws if the file's name and content disagree.
ShardName name_of_shard(const GgufFile& file) {
  const std::string& path = file.mapping->path();
  const uint64_t count = split_count(file);
  const uint64_t number = optional_uint(file, "split.no", kMaxShards, 0) + 1;
  ShardName name;
  const bool named = parse_shard_name(path, &name);
  char want[64];
  std::snprintf(want, sizeof want, "NAME-%05u-of-%05u.gguf", static_cast<unsigned>(number),
                static_cast<unsigned>(count));
  if (number > count) {
    raise_shard("metadata key split.no is out of range", std::to_string(number - 1),
                "less than split.count, " + std::to_string(count), path, kFetchAgain);
  }
  if (!named) {
    raise_shard("this is one shard of several, and its name does not lead to the others",
                file_name(path), want, path);
  }
  if (name.number != number || name.count != count) {
    raise_shard("a shard's name and content disagree", file_name(path),
                std::string(want) + " (split.no " + std::to_string(number - 1) + ", split.count " +
                    std::to_string(count) + ")",
                path, "two shards were swapped or renamed: give them their original names");
  }
  return name;
}

void check_none_missing(const ShardName& name) {
  std::string missing;
  size_t missing_count = 0;
  for (uint64_t number = 1; number <= name.count; ++number) {
    std::error_code ignored;
    if (std::filesystem::exists(shard_path(name, number), ignored)) continue;
    if (++missing_count <= kListedMax) {
      missing += (missing.empty() ? "" : ", ") + file_name(shard_path(name, number));
    }
  }
  if (missing_count == 0) return;
  if (missing_count > kListedMax) missing += ", ...";
  raise_shard("shards of the model are missing: " + missing,
              std::to_string(name.count - missing_count) + " shards",
              std::to_string(name.count) + " shards",
              std::filesystem::path(name.stem).parent_path().string() + "/",
              "download the missing shards into the same folder");
}

// Whatever `shard` says about the model must be what the first shard says.
void check_belongs(const GgufFile& first, const GgufFile& shard) {
  const std::string& path = shard.mapping->path();
  if (split_count(shard) != split_count(first)) {
    raise_shard("a shard belongs to another model",
                "split.count " + std::to_string(split_count(shard)),
                "split.count " + std::to_string(split_count(first)), path);
  }
  name_of_shard(shard);
  for (const char* key : {"split.tensors.count", "general.architecture", "general.name"}) {
    const auto here = shard.metadata.find(key), there = first.metadata.find(key);
    if (here == shard.metadata.end() || there == first.metadata.end()) continue;
    uint64_t a = 0, b = 0;
    const bool same = to_uint(here->second, &a) && to_uint(there->second, &b)
                          ? a == b
                          : here->second.value == there->second.value;
    if (same) continue;
    raise_shard("a shard belongs to another model",
                std::string(key) + " " + describe(here->second),
                describe(there->second) + " as in " + file_name(first.mapping->path()), path);
  }
}

std::vector<GgufFile> open_files(const std::string& path, Extent extent) {
  std::vector<GgufFile> files;
  GgufFile opened = parse_gguf_file(std::make_shared<const Mapping>(path), extent);
  if (split_count(opened) <= 1) {
    files.push_back(std::move(opened));
    return files;
  }
  const ShardName name = name_of_shard(opened);
  check_none_missing(name);
  files.reserve(name.count);
  for (uint64_t number = 1; number <= name.count; ++number) {
    if (number == name.number) {
      files.push_back(std::move(opened));
    } else {
      files.push_back(
          parse_gguf_file(std::make_shared<const Mapping>(shard_path(name, number)), extent));
    }
    check_belongs(files.front(), files.back());
  }
  return files;
}

void check_tensor_total(const std::vector<GgufFile>& files) {
  uint64_t total = 0;
  for (const GgufFile& file : files) total += file.tensors.size();
  const uint64_t promised = optional_uint(files.front(), "split.tensors.count", kMaxTensors, total);
  if (total == promised) return;
  std::string got = std::to_string(total) + " tensors";
  if (files.size() > 1) got += " in " + std::to_string(files.size()) + " shards";
  raise_shard("the shards do not make up the model", got,
              std::to_string(promised) + " (split.tensors.count)", files.front().mapping->path(),
              "a shard belongs to another model: download all shards of one model");
}

}  // namespace

// Joins parsed files into the Gguf that callers hold.
class GgufReader {
 public:
  static std::shared_ptr<const Gguf> join(std::vector<GgufFile> parts, Extent extent) {
    auto gguf = std::make_shared<Gguf>();
    gguf->extent_ = extent;
    gguf->metadata_ = std::move(parts.front().metadata);
    for (size_t part = 0; part < parts.size(); ++part) {
      gguf->files_.push_back(parts[part].mapping);
      for (TensorInfo& tensor : parts[part].tensors) {
        tensor.file = static_cast<uint32_t>(part);
        const auto [at, is_new] = gguf->by_name_.emplace(tensor.name, gguf->tensors_.size());
        if (!is_new) {
          const std::string& first = gguf->files_[gguf->tensors_[at->second].file]->path();
          raise_shard("a tensor stands twice: " + tensor.name,
                      "a second one in " + file_name(parts[part].mapping->path()),
                      "one, as in " + file_name(first), parts[part].mapping->path(),
                      parts.size() > 1 ? kKeepTogether : kFetchAgain);
        }
        gguf->tensors_.push_back(std::move(tensor));
      }
    }
    return gguf;
  }
};

std::shared_ptr<const Gguf> Gguf::open(const std::string& path, Extent extent) {
  std::vector<GgufFile> files = open_files(path, extent);
  if (split_count(files.front()) > 0) check_tensor_total(files);
  std::shared_ptr<const Gguf> gguf = GgufReader::join(std::move(files), extent);
  // A file that was cut while it was parsed read as zeros: say so rather than trust them.
  for (const auto& file : gguf->files()) file->check_unchanged();
  return gguf;
}

}  // namespace esker
