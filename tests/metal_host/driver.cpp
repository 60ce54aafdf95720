// SPDX-License-Identifier: MIT
//
// A small Metal host that doubles numbers, and does one thing wrong when told to: what the fake must notice.
#include <Metal/Metal.hpp>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace {

constexpr NS::UInteger kCount = 64;
constexpr size_t kBytes = 16384;

struct Args {
  uint32_t count;
  float factor;
};

NS::String* text(const std::string& s) { return NS::String::string(s.c_str(), NS::UTF8StringEncoding); }

std::string says(const NS::Error* error) {
  return error == nullptr ? "no error given" : error->localizedDescription()->utf8String();
}

class Driver {
 public:
  Driver(const char* source, const char* wrong) : source_(source), wrong_(wrong) {}

  // Empty when all went well.
  std::string run(float* numbers) {
    device_ = NS::TransferPtr(MTL::CreateSystemDefaultDevice());
    if (!device_) return "no device";
    queue_ = NS::TransferPtr(device_->newCommandQueue());
    event_ = NS::TransferPtr(device_->newSharedEvent());
    fence_ = NS::TransferPtr(device_->newFence());
    std::memcpy(memory_, numbers, kCount * sizeof(float));
    std::string error = make_pipeline();
    if (error.empty()) error = make_buffer();
    if (error.empty()) error = compute();
    std::memcpy(numbers, memory_, kCount * sizeof(float));
    if (is("leak")) device_->newSharedEvent();
    let_go();
    if (error.empty() && !freed_) error = "the buffer's memory was not given back";
    return error;
  }

 private:
  bool is(const char* what) const { return wrong_ == what; }

  std::string make_pipeline() {
    NS::Error* error = nullptr;
    const auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
    options->setLanguageVersion(is("language") ? MTL::LanguageVersion3_0 : MTL::LanguageVersion3_1);
    if (!is("fast math")) options->setMathMode(MTL::MathModeSafe);
    const auto library = NS::TransferPtr(device_->newLibrary(text(source_), options.get(), &error));
    if (!library) return says(error);
    const auto constants = NS::TransferPtr(MTL::FunctionConstantValues::alloc()->init());
    const uint32_t twice = 2;
    const bool yes = true;
    if (is("constant type")) {
      constants->setConstantValue(&yes, MTL::DataTypeBool, NS::UInteger(0));
    } else if (!is("no constant")) {
      constants->setConstantValue(&twice, MTL::DataTypeUInt, NS::UInteger(0));
    }
    const auto function =
        NS::TransferPtr(library->newFunction(text(is("function name") ? "scaled" : "scale"), constants.get(), &error));
    if (!function) return says(error);
    pipeline_ = NS::TransferPtr(device_->newComputePipelineState(function.get(), &error));
    return pipeline_ ? "" : says(error);
  }

  std::string make_buffer() {
    buffer_ = NS::TransferPtr(device_->newBuffer(
        memory_, is("page") ? kCount * 4 : kBytes, MTL::ResourceStorageModeShared | MTL::ResourceHazardTrackingModeUntracked,
        ^(void* pointer, NS::UInteger bytes) { freed_ = pointer == memory_ && bytes == kBytes; }));
    if (!buffer_) return "no buffer";
    NS::Error* error = nullptr;
    const auto descriptor = NS::TransferPtr(MTL::ResidencySetDescriptor::alloc()->init());
    set_ = NS::TransferPtr(device_->newResidencySet(descriptor.get(), &error));
    if (!set_) return says(error);
    set_->addAllocation(buffer_.get());
    if (!is("residency commit")) set_->commit();
    if (!is("residency queue")) queue_->addResidencySet(set_.get());
    return "";
  }

  void encode(MTL::CommandBuffer* commands, bool second) {
    MTL::ComputeCommandEncoder* encoder = commands->computeCommandEncoder(MTL::DispatchTypeConcurrent);
    if (second && !is("fence")) encoder->waitForFence(fence_.get());
    const Args args{kCount, 1};
    if (!is("pipeline")) encoder->setComputePipelineState(pipeline_.get());
    uint8_t large[4100] = {};
    std::memcpy(large, &args, sizeof args);
    encoder->setBytes(large, is("large bytes") ? sizeof large : is("argument size") ? 4 : sizeof args, 0);
    if (!is("unbound")) encoder->setBuffer(buffer_.get(), is("offset") ? 2 : 0, 1);
    const NS::UInteger threads = is("threads") ? 2048 : kCount;
    encoder->dispatchThreadgroups(MTL::Size::Make(1, 1, 1), MTL::Size::Make(threads, 1, 1));
    if (!is("barrier")) encoder->memoryBarrier(MTL::BarrierScopeBuffers);
    encoder->updateFence(fence_.get());
    if (is("signal in encoder")) commands->encodeSignalEvent(event_.get(), 1);
    if (!is("end")) encoder->endEncoding();
    if (is("after end")) encoder->setBuffer(buffer_.get(), 0, 1);
    if (is("over-release")) encoder->release();
    if (is("unknown selector")) commands->blitCommandEncoder();
  }

  // The set owns its allocations, and a queue its set.
  void let_go() {
    if (set_ && buffer_) {
      set_->removeAllocation(buffer_.get());
      set_->commit();
    }
    buffer_ = {};
  }

  std::string compute() {
    NS::AutoreleasePool* pool = is("pool") ? nullptr : NS::AutoreleasePool::alloc()->init();
    MTL::CommandBuffer* commands = queue_->commandBufferWithUnretainedReferences();
    commands->encodeWait(event_.get(), 0);
    encode(commands, false);
    encode(commands, true);
    commands->encodeSignalEvent(event_.get(), is("event value") ? 1 : 2);
    if (is("falling event")) event_->setSignaledValue(3);
    if (is("early release")) let_go();
    std::string error;
    __block int ended = 0;
    commands->addCompletedHandler(^(MTL::CommandBuffer* done) { ended += done->status() == MTL::CommandBufferStatusCompleted; });
    commands->addCompletedHandler([&error](MTL::CommandBuffer* done) {
      if (done->status() == MTL::CommandBufferStatusError) {
        error = says(done->error()) + " (code " + std::to_string(done->error()->code()) + ")";
      }
    });
    if (is("commit")) {
      pool->release();
      return "";
    }
    commands->commit();
    if (is("commit twice")) commands->commit();
    if (is("after commit")) commands->encodeSignalEvent(event_.get(), 4);
    commands->waitUntilCompleted();
    if (error.empty() && ended != 1) error = "a handler was not called";
    if (error.empty() && commands->GPUEndTime() < commands->GPUStartTime()) error = "no times";
    if (pool != nullptr) pool->release();
    if (is("dead")) commands->status();
    if (error.empty() && !event_->waitUntilSignaledValue(2, 100)) error = "the event has another value";
    return error;
  }

  const std::string source_, wrong_;
  NS::SharedPtr<MTL::Device> device_;
  NS::SharedPtr<MTL::CommandQueue> queue_;
  NS::SharedPtr<MTL::SharedEvent> event_;
  NS::SharedPtr<MTL::Fence> fence_;
  NS::SharedPtr<MTL::ComputePipelineState> pipeline_;
  NS::SharedPtr<MTL::Buffer> buffer_;
  NS::SharedPtr<MTL::ResidencySet> set_;
  alignas(kBytes) uint8_t memory_[kBytes] = {};
  bool freed_ = false;
};

}  // namespace

// Doubles 64 numbers twice with a kernel of this text. Null when all went well.
extern "C" __attribute__((visibility("default"))) const char* drive(const char* source, const char* wrong,
                                                                    float* numbers) {
  static std::string error;
  NS::AutoreleasePool* pool = std::string(wrong) == "pool" ? nullptr : NS::AutoreleasePool::alloc()->init();
  {
    const auto driver = std::make_unique<Driver>(source, wrong);
    error = driver->run(numbers);
  }
  if (pool != nullptr) pool->release();
  return error.empty() ? nullptr : error.c_str();
}
