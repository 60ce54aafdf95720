// SPDX-License-Identifier: MIT
//
// From kernel names to compute pipelines: the shipped sources compiled by the system's Metal compiler, only
// the kernels that are wanted, and kept in a binary archive so that the next start finds them compiled.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <Metal/Metal.hpp>

#include "backends/gpu/device.h"

namespace esker::gpu {

using PipelinePtr = NS::SharedPtr<MTL::ComputePipelineState>;

// What a Metal call said went wrong; `error` may be null.
[[noreturn]] void raise_metal(const char* what, NS::Error* error, const std::string& where, const char* hint);

NS::String* ns_string(const std::string& text);  // autoreleased

// Whether the system is at least this macOS.
bool is_macos(NS::Integer major);

class Pipelines {
 public:
  // `cache_folder` empty: nothing is kept.
  Pipelines(MTL::Device* device, const std::string& cache_folder);

  // In the order of `specs`. Throws Error(kDevice) with what the compiler says.
  std::vector<PipelinePtr> make(std::span<const KernelSpec> specs);

 private:
  NS::SharedPtr<MTL::Library> compile(std::string_view text, std::span<const std::string> wanted) const;
  PipelinePtr pipeline(MTL::Library* library, const KernelSpec& spec);
  void open_archive();
  void save_archive();

  MTL::Device* device_;
  std::string archive_path_;
  NS::SharedPtr<MTL::BinaryArchive> archive_;  // null: none
  std::mutex archive_mutex_;                   // of what is added to it
  bool grown_ = false;
};

}  // namespace esker::gpu
