// SPDX-License-Identifier: MIT
#include "backends/gpu/metal/metal_pipelines.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "backends/gpu/kernel_sources.h"
#include "base/error.h"
#include "base/hash.h"

namespace esker::gpu {
namespace {

constexpr NS::UInteger kSimdgroup = 32;  // what the kernels are written for

// Runs job(i) for i below n on several threads; the first exception is thrown when all have ended.
void in_parallel(size_t n, const std::function<void(size_t)>& job) {
  std::atomic<size_t> next{0};
  std::exception_ptr failed;
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i; (i = next++) < n;) {
      NS::AutoreleasePool* pool = NS::AutoreleasePool::alloc()->init();
      try {
        job(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
      }
      pool->release();
    }
  };
  std::vector<std::thread> threads;
  const size_t most = std::max(1u, std::thread::hardware_concurrency());
  for (size_t i = 1; i < std::min(n, most); ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  if (failed) std::rethrow_exception(failed);
}

// A file's text with only the wanted ones of its instances, which stand one a line. (A line stays a line:
// the compiler's messages name the right ones.)
std::string with_instances(std::string_view text, std::span<const std::string> wanted) {
  constexpr std::string_view kBegin = "template [[host_name(\"";
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = text.substr(at, end - at);
    at = end;
    if (line.starts_with(kBegin)) {
      const std::string_view name =
          line.substr(kBegin.size(), line.find('"', kBegin.size()) - kBegin.size());
      if (std::ranges::find(wanted, name) == wanted.end()) {
        out += '\n';
        continue;
      }
    }
    out += line;
  }
  return out;
}

}  // namespace

void raise_metal(const char* what, NS::Error* error, const std::string& where, const char* hint) {
  std::string got;
  if (error != nullptr) got = error->localizedDescription()->utf8String();
  raise(ErrorKind::kDevice, "metal",
        {.what = what, .got = got.substr(0, 2000), .want = {}, .where = where, .hint = hint});
}

NS::String* ns_string(const std::string& text) {
  return NS::String::string(text.c_str(), NS::UTF8StringEncoding);
}

bool is_macos(NS::Integer major) {
  return NS::ProcessInfo::processInfo()->isOperatingSystemAtLeastVersion(
      {.majorVersion = major, .minorVersion = 0, .patchVersion = 0});
}

Pipelines::Pipelines(MTL::Device* device, const std::string& cache_folder) : device_(device) {
  if (cache_folder.empty()) return;
  // An archive is good for one device, system and set of sources.
  Hash hash;
  hash.add(device->name()->utf8String());
  hash.add(NS::ProcessInfo::processInfo()->operatingSystemVersionString()->utf8String());
  for (const KernelSource& s : metal_sources()) hash.add(s.text);
  char name[48];
  std::snprintf(name, sizeof name, "metal-%016llx.archive", static_cast<unsigned long long>(hash.value()));
  archive_path_ = cache_folder + "/" + name;
  open_archive();
}

// What cannot be read is made anew; without an archive all is compiled at every start.
void Pipelines::open_archive() {
  const auto descriptor = NS::TransferPtr(MTL::BinaryArchiveDescriptor::alloc()->init());
  std::error_code ignored;
  NS::Error* error = nullptr;
  if (std::filesystem::exists(archive_path_, ignored)) {
    descriptor->setUrl(NS::URL::fileURLWithPath(ns_string(archive_path_)));
    archive_ = NS::TransferPtr(device_->newBinaryArchive(descriptor.get(), &error));
    if (archive_) return;
  }
  descriptor->setUrl(nullptr);
  archive_ = NS::TransferPtr(device_->newBinaryArchive(descriptor.get(), &error));
}

// Whole or not at all: another process may be reading the old one. A full disk costs the next start
// some seconds, nothing else.
void Pipelines::save_archive() {
  if (!std::exchange(grown_, false)) return;
  const std::filesystem::path path = archive_path_;
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  const std::string temporary = archive_path_ + "." + std::to_string(getpid());
  NS::Error* error = nullptr;
  if (archive_->serializeToURL(NS::URL::fileURLWithPath(ns_string(temporary)), &error)) {
    std::filesystem::rename(temporary, path, ignored);
  }
  std::filesystem::remove(temporary, ignored);
}

std::vector<PipelinePtr> Pipelines::make(std::span<const KernelSpec> specs) {
  NS::AutoreleasePool* pool = NS::AutoreleasePool::alloc()->init();
  struct File {
    const KernelSource* source = nullptr;
    std::vector<std::string> wanted;
    NS::SharedPtr<MTL::Library> library;
  };
  std::vector<PipelinePtr> made(specs.size());
  try {
    std::map<std::string_view, File> by_name;
    for (const KernelSpec& spec : specs) {
      const KernelSource& source = source_of(metal_sources(), spec.name);
      File& file = by_name[source.file];
      file.source = &source;
      file.wanted.push_back(spec.name);
    }
    std::vector<File*> files;
    for (auto& [name, file] : by_name) files.push_back(&file);
    in_parallel(files.size(), [&](size_t i) {
      files[i]->library = compile(files[i]->source->text, files[i]->wanted);
    });
    in_parallel(specs.size(), [&](size_t i) {
      const File& file = by_name.at(source_of(metal_sources(), specs[i].name).file);
      made[i] = pipeline(file.library.get(), specs[i]);
    });
    save_archive();
  } catch (...) {
    pool->release();
    throw;
  }
  pool->release();
  return made;
}

NS::SharedPtr<MTL::Library> Pipelines::compile(std::string_view text,
                                               std::span<const std::string> wanted) const {
  const auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
  options->setLanguageVersion(MTL::LanguageVersion3_1);
  // Sums as they are written, NaNs as they are: the same on macOS 14 under its older name.
  if (is_macos(15)) {
    options->setMathMode(MTL::MathModeSafe);
  } else {
    options->setFastMathEnabled(false);
  }
  NS::Error* error = nullptr;
  auto library = NS::TransferPtr(
      device_->newLibrary(ns_string(with_instances(text, wanted)), options.get(), &error));
  if (!library) {
    raise_metal("the system's Metal compiler refuses the kernels", error, wanted.front(),
                "run `esker selftest` and report what it prints");
  }
  return library;
}

PipelinePtr Pipelines::pipeline(MTL::Library* library, const KernelSpec& spec) {
  const auto values = NS::TransferPtr(MTL::FunctionConstantValues::alloc()->init());
  for (const Constant& c : spec.constants) {
    values->setConstantValue(&c.value, MTL::DataTypeUInt, NS::UInteger{c.index});
  }
  NS::Error* error = nullptr;
  const auto function = NS::TransferPtr(library->newFunction(ns_string(spec.name), values.get(), &error));
  if (!function) raise_metal("a kernel cannot be specialised", error, spec.name, "");

  const auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
  descriptor->setComputeFunction(function.get());
  descriptor->setLabel(ns_string(spec.name));
  PipelinePtr made;
  if (archive_) {
    const NS::Object* archives[] = {archive_.get()};
    descriptor->setBinaryArchives(NS::Array::array(archives, 1));
    made = NS::TransferPtr(device_->newComputePipelineState(
        descriptor.get(), MTL::PipelineOptionFailOnBinaryArchiveMiss, nullptr, &error));
  }
  if (!made) {
    error = nullptr;
    made = NS::TransferPtr(device_->newComputePipelineState(descriptor.get(), MTL::PipelineOptionNone,
                                                            nullptr, &error));
    if (!made) raise_metal("a kernel cannot be made ready", error, spec.name, "");
    if (archive_) {
      const std::lock_guard lock(archive_mutex_);
      grown_ |= archive_->addComputePipelineFunctions(descriptor.get(), &error);
    }
  }
  const NS::UInteger width = made->threadExecutionWidth(), bytes = made->staticThreadgroupMemoryLength();
  if (width != kSimdgroup || bytes > device_->maxThreadgroupMemoryLength()) {
    raise(ErrorKind::kDevice, "metal",
          {.what = "this GPU cannot run a kernel",
           .got = "SIMD groups of " + std::to_string(width) + ", " + std::to_string(bytes) +
                  " bytes of threadgroup memory",
           .want = "SIMD groups of " + std::to_string(kSimdgroup) + ", at most " +
                   std::to_string(device_->maxThreadgroupMemoryLength()) + " bytes",
           .where = spec.name,
           .hint = "run the model on the cpu backend"});
  }
  return made;
}

}  // namespace esker::gpu
