// SPDX-License-Identifier: MIT
#include "backends/gpu/cuda/cuda_device.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/cuda/cuda_api.h"
#include "backends/gpu/cuda/cuda_kernels.h"
#include "backends/gpu/cuda/cuda_memory.h"
#include "backends/gpu/cuda/cuda_queue.h"
#include "base/error.h"
#include "base/units.h"

namespace esker::gpu {
namespace cuda {
namespace {

constexpr int kLeastCapability = 80;

int attribute(DeviceId device, int which) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, device), "ask about the GPU");
  return value;
}

DeviceId first_device() {
  check(driver().cuInit(0), "start");
  int n = 0;
  check(driver().cuDeviceGetCount(&n), "count the GPUs");
  if (n == 0) {
    raise(ErrorKind::kDevice, "cuda",
          {.what = "CUDA shows no GPU", .got = "0 devices", .want = "at least one", .where = {},
           .hint = "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or run the model on the cpu backend"});
  }
  DeviceId device = 0;
  check(driver().cuDeviceGet(&device, 0), "open the GPU");
  return device;
}

// What NVRTC compiles for: the GPU's own architecture, or an older one that its code runs on.
int architecture_for(int capability) {
  int n = 0;
  std::vector<int> known;
  if (compiler().nvrtcGetNumSupportedArchs(&n) == 0) {
    known.resize(static_cast<size_t>(n));
    compiler().nvrtcGetSupportedArchs(known.data());
  }
  int best = 0;
  for (const int a : known) {
    if (a / 10 == capability / 10 && a <= capability) best = std::max(best, a);
  }
  if (best != 0) return best;
  raise(ErrorKind::kDevice, "cuda",
        {.what = "the installed NVRTC does not know this GPU",
         .got = "compute capability " + std::to_string(capability / 10) + "." + std::to_string(capability % 10),
         .want = "a newer NVRTC",
         .where = {},
         .hint = "pip install --upgrade nvidia-cuda-nvrtc, or run the model on the cpu backend"});
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceOptions& options) : cache_folder_(options.cache_folder) {
    const DeviceId device = first_device();
    char name[128] = {};
    size_t bytes = 0;
    int version = 0;
    check(driver().cuDeviceGetName(name, sizeof name - 1, device), "ask about the GPU");
    check(driver().cuDeviceTotalMem_v2(&bytes, device), "ask about the GPU");
    check(driver().cuDriverGetVersion(&version), "ask about the driver");
    const int capability = attribute(device, kMajor) * 10 + attribute(device, kMinor);
    if (capability < kLeastCapability || attribute(device, kStreamMemoryOps64) == 0) {
      raise(ErrorKind::kDevice, "cuda",
            {.what = "the kernels do not run on this GPU",
             .got = std::string(name) + ", compute capability " + std::to_string(capability / 10) + "." +
                    std::to_string(capability % 10),
             .want = "compute capability 8.0 or newer, with operations on memory in streams",
             .where = {},
             .hint = "run the model on the cpu backend"});
    }
    architecture_ = architecture_for(capability);
    family_ = "nvidia" + std::to_string(capability / 10 * 10);
    shared_->context = std::make_shared<Context>(device);
    shared_->context->enter();
    shared_->copier = std::make_shared<Copier>(shared_->context);
    shared_->name = name;
    shared_->can_overlap = capability >= 90;
    description_ = std::string(name) + ", " + format_bytes(bytes) + ", CUDA " + std::to_string(version / 1000) +
                   "." + std::to_string(version % 1000 / 10);
  }

  const char* name() const override { return "cuda"; }
  const char* family() const override { return family_.c_str(); }
  std::string description() const override { return description_; }

  std::unique_ptr<DeviceMemory> allocate(size_t bytes, MemoryUse use, const char* purpose) override {
    switch (use) {
      case MemoryUse::kShared: return std::make_unique<SharedMemory>(shared_->context, bytes, purpose);
      case MemoryUse::kArena: return std::make_unique<ArenaMemory>(shared_->context, bytes, purpose);
      case MemoryUse::kWork: break;
    }
    auto block = std::make_shared<Block>(shared_->context, bytes, purpose);
    shared_->copier->zero(block->device(), bytes);
    shared_->copier->flush();
    return std::make_unique<WorkMemory>(bytes, std::move(block), shared_->copier);
  }

  std::unique_ptr<DeviceMemory> wrap(const uint8_t* data, size_t bytes, const char* what) override {
    std::weak_ptr<Block>& known = wrapped_[{data, bytes}];
    std::shared_ptr<Block> block = known.lock();
    if (!block) {
      block = std::make_shared<Block>(shared_->context, bytes, what);
      shared_->copier->upload(block->device(), data, bytes);
      shared_->copier->flush();
      known = block;
    }
    return std::make_unique<WorkMemory>(bytes, std::move(block), shared_->copier);
  }

  std::vector<std::unique_ptr<Kernel>> kernels(std::span<const KernelSpec> specs) override {
    const std::vector<std::string> code = machine_code(specs, architecture_, cache_folder_);
    std::vector<std::unique_ptr<Kernel>> made;
    for (size_t i = 0; i < specs.size(); ++i) {
      made.push_back(std::make_unique<CudaKernel>(shared_->context, specs[i].name, code[i]));
    }
    return made;
  }

  std::unique_ptr<Event> event() override { return std::make_unique<CudaEvent>(shared_); }
  std::unique_ptr<Queue> queue() override { return std::make_unique<CudaQueue>(shared_); }

  // The device's memory is nobody else's while the model is open: nothing is given back.
  void trim(DeviceMemory&, size_t) override {}

  bool needs_publish() const override { return true; }
  void publish(DeviceMemory& memory, std::span<const ByteRange> ranges) override {
    static_cast<ArenaMemory&>(memory).publish(ranges);
  }

 private:
  const std::string cache_folder_;
  int architecture_ = 0;
  std::string family_, description_;
  std::map<std::pair<const uint8_t*, size_t>, std::weak_ptr<Block>> wrapped_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace
}  // namespace cuda

std::unique_ptr<Device> make_cuda_device(const DeviceOptions& options) {
  return std::make_unique<cuda::CudaDevice>(options);
}

std::function<MachineMemory()> cuda_memory() {
  return [context = std::make_shared<cuda::Context>(cuda::first_device())] {
    context->enter();
    size_t free_bytes = 0, all_bytes = 0;
    cuda::check(cuda::driver().cuMemGetInfo_v2(&free_bytes, &all_bytes), "ask for memory");
    // Nobody but those who compute shares it: what is kept free need not be a desktop's.
    return MachineMemory{.total_bytes = all_bytes, .available_bytes = free_bytes, .is_limit = true,
                         .pressure = MemoryPressure::kNone};
  };
}

}  // namespace esker::gpu
