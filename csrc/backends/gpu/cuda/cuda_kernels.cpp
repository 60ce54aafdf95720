// SPDX-License-Identifier: MIT
#include "backends/gpu/cuda/cuda_kernels.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "backends/gpu/cuda/cuda_api.h"
#include "backends/gpu/kernel_sources.h"
#include "base/error.h"
#include "base/hash.h"

namespace esker::gpu::cuda {
namespace {

[[noreturn]] void raise_compiler(const char* what, const std::string& got, const std::string& where) {
  raise(ErrorKind::kDevice, "cuda",
        {.what = what,
         .got = got.substr(0, 2000),
         .want = {},
         .where = where,
         .hint = "this is a defect of Esker: report it; meanwhile the cpu backend runs the model"});
}

void check_compiler(Status status, const std::string& where) {
  if (status == 0) return;
  raise_compiler("NVRTC failed", compiler().nvrtcGetErrorString(status), where);
}

// Sums stay as they are written, exponentials and roots precise: as on the other devices. Instructions of one
// generation only ("90a") are not used, so that code for 90 is all that 90 needs.
std::vector<std::string> options_for(const KernelSpec& spec, int architecture) {
  std::string constants = "-DMSL_CONSTANTS=";
  for (const Constant& c : spec.constants) {
    constants += ",{" + std::to_string(c.index) + "u," + std::to_string(c.value) + "u}";
  }
  return {"--gpu-architecture=sm_" + std::to_string(architecture),
          "--std=c++17",
          "--device-as-default-execution-space",
          "--fmad=false",
          "-DMSL_MAKE_" + spec.name,
          std::move(constants)};
}

std::string compile(const KernelSource& source, const KernelSpec& spec, const std::vector<std::string>& options) {
  const Compiler& nvrtc = compiler();
  struct Program {
    ProgramHandle handle = nullptr;
    ~Program() {
      if (handle != nullptr) compiler().nvrtcDestroyProgram(&handle);
    }
  } program;
  const std::string text(source.text);
  check_compiler(nvrtc.nvrtcCreateProgram(&program.handle, text.c_str(), std::string(source.file).c_str(), 0,
                                          nullptr, nullptr),
                 spec.name);
  std::vector<const char*> pointers;
  for (const std::string& o : options) pointers.push_back(o.c_str());
  if (nvrtc.nvrtcCompileProgram(program.handle, static_cast<int>(pointers.size()), pointers.data()) != 0) {
    size_t bytes = 0;
    nvrtc.nvrtcGetProgramLogSize(program.handle, &bytes);
    std::string log(bytes, '\0');
    if (bytes > 0) nvrtc.nvrtcGetProgramLog(program.handle, log.data());
    raise_compiler("NVRTC refuses a kernel", log, spec.name);
  }
  size_t bytes = 0;
  check_compiler(nvrtc.nvrtcGetCUBINSize(program.handle, &bytes), spec.name);
  std::string code(bytes, '\0');
  check_compiler(nvrtc.nvrtcGetCUBIN(program.handle, code.data()), spec.name);
  return code;
}

// A kept kernel: its hash, then the code. Damaged or cut short, it is made anew.
class Cache {
 public:
  explicit Cache(const std::string& folder) : folder_(folder) {}

  std::string read(const std::string& name) const {
    if (folder_.empty()) return {};
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    std::string all((std::istreambuf_iterator<char>(file)), {});
    uint64_t wanted = 0;
    if (all.size() <= sizeof wanted) return {};
    std::memcpy(&wanted, all.data(), sizeof wanted);
    all.erase(0, sizeof wanted);
    return hash_of(all) == wanted ? all : std::string();
  }

  // A full or read-only disk costs the next start some seconds, nothing else.
  void write(const std::string& name, const std::string& code) const {
    if (folder_.empty()) return;
    const std::string path = folder_ + "/" + name;
    const std::string temporary = path + "." + std::to_string(getpid()) + "." + std::to_string(next_++);
    std::error_code ignored;
    std::filesystem::create_directories(folder_, ignored);
    bool whole = false;
    {
      std::ofstream file(temporary, std::ios::binary);
      const uint64_t hash = hash_of(code);
      file.write(reinterpret_cast<const char*>(&hash), sizeof hash);
      file.write(code.data(), static_cast<std::streamsize>(code.size()));
      file.close();
      whole = static_cast<bool>(file);
    }
    if (whole) std::filesystem::rename(temporary, path, ignored);
    std::filesystem::remove(temporary, ignored);
  }

 private:
  static uint64_t hash_of(const std::string& code) {
    Hash hash;
    hash.add(code);
    return hash.value();
  }

  const std::string folder_;
  mutable std::atomic<unsigned> next_{0};
};

std::string name_of(const KernelSource& source, const KernelSpec& spec, const std::vector<std::string>& options) {
  int major = 0, minor = 0;
  check_compiler(compiler().nvrtcVersion(&major, &minor), spec.name);
  Hash hash;
  hash.add(source.text);
  for (const std::string& o : options) hash.add(o);
  hash.add(static_cast<uint64_t>(major * 1000 + minor));
  char digits[20];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash.value()));
  return "cuda-" + spec.name + "-" + digits + ".cubin";
}

}  // namespace

std::vector<std::string> machine_code(std::span<const KernelSpec> specs, int architecture,
                                      const std::string& cache_folder) {
  const Cache cache(cache_folder);
  std::vector<std::string> code(specs.size());
  std::atomic<size_t> next{0};
  std::exception_ptr failed;
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i; (i = next++) < specs.size();) {
      try {
        const KernelSource& source = source_of(cuda_sources(), specs[i].name);
        const std::vector<std::string> options = options_for(specs[i], architecture);
        const std::string name = name_of(source, specs[i], options);
        code[i] = cache.read(name);
        if (!code[i].empty()) continue;
        code[i] = compile(source, specs[i], options);
        cache.write(name, code[i]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
        next = specs.size();
      }
    }
  };
  std::vector<std::thread> threads;
  const size_t most = std::max(1u, std::thread::hardware_concurrency());
  for (size_t i = 1; i < std::min(specs.size(), most); ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  if (failed) std::rethrow_exception(failed);
  return code;
}

}  // namespace esker::gpu::cuda
