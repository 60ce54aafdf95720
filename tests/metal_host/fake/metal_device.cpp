// SPDX-License-Identifier: MIT
//
// MTLDevice and what it makes: memory, kernels, archives of them, residency sets, events.
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "metal.h"

namespace fake {
namespace {

constexpr unsigned long kFailOnArchiveMiss = 4;
constexpr unsigned long kLanguage31 = (3 << 16) + 1;
constexpr size_t kThreadgroupMemoryBytes = 32 << 10;

struct Device final : Object {
  Device() : Object("MTLDevice") {}
  ~Device() override;
};

struct CompileOptions final : Object {
  CompileOptions() : Object("MTLCompileOptions") {}
  unsigned long language = 0;
  bool fast = true;
};

struct ConstantValues final : Object {
  ConstantValues() : Object("MTLFunctionConstantValues") {}
  struct Value {
    unsigned long type;
    uint64_t bits;
  };
  std::map<unsigned long, Value> values;
};

struct PipelineDescriptor final : Object {
  PipelineDescriptor() : Object("MTLComputePipelineDescriptor") {}
  ~PipelineDescriptor() override {
    set_member<Function>(function, nullptr);
    set_member<Array>(archives, nullptr);
  }
  Function* function = nullptr;
  Array* archives = nullptr;
};

struct ArchiveDescriptor final : Object {
  ArchiveDescriptor() : Object("MTLBinaryArchiveDescriptor") {}
  ~ArchiveDescriptor() override { set_member<Url>(url, nullptr); }
  Url* url = nullptr;
};

struct Archive final : Object {
  Archive() : Object("MTLBinaryArchive") {}
  std::mutex mutex;
  std::set<std::string> keys;
};

struct SetDescriptor final : Object {
  SetDescriptor() : Object("MTLResidencySetDescriptor") {}
};

const simt::KernelLibraries& kernel_libraries() {
  static const simt::KernelLibraries& all = *new simt::KernelLibraries;
  return all;
}

// There is one at a time; it dies with its last owner.
std::mutex& device_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}
Device* the_device = nullptr;

Device::~Device() { the_device = nullptr; }

Device* create_device() {
  const std::lock_guard lock(device_mutex());
  if (setting("no_device") != 0) return nullptr;
  if (the_device != nullptr) return retain(the_device);
  the_device = new Device;
  return the_device;
}

// --- memory

Buffer* new_buffer(void* memory, size_t bytes, unsigned long options, bool owns) {
  if (bytes == 0 || bytes > static_cast<size_t>(setting("max_buffer"))) {
    fault("newBuffer of " + std::to_string(bytes) + " bytes");
    return nullptr;
  }
  if (is_ordered("fail_buffer", "buffers")) return nullptr;
  if (owns) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
  }
  return new Buffer(memory, bytes, options, owns);
}

Buffer* wrap_memory(void* memory, size_t bytes, unsigned long options, const void* deallocator) {
  if (reinterpret_cast<uintptr_t>(memory) % kPageBytes != 0 || bytes % kPageBytes != 0) {
    fault("newBufferWithBytesNoCopy: pointer and length are whole pages of " + std::to_string(kPageBytes) +
          " bytes, got length " + std::to_string(bytes) + " and an offset of " +
          std::to_string(reinterpret_cast<uintptr_t>(memory) % kPageBytes));
    return nullptr;
  }
  Buffer* buffer = new_buffer(memory, bytes, options, false);
  if (buffer != nullptr) buffer->deallocator = copy_block(deallocator);
  return buffer;
}

// --- kernels

// Of what a kernel is made from: which instances a text asks for changes none of them.
size_t hash_of(const std::string& text) {
  std::istringstream lines(text);
  std::string rest;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("host_name(") == line.npos) rest += line;
  }
  return std::hash<std::string>()(rest);
}

Library* new_library(String* source, CompileOptions* options, Error** error) {
  if (options == nullptr || options->language != kLanguage31) {
    fault("newLibrary: the kernels are Metal 3.1, and nothing said so");
  }
  if (options == nullptr || options->fast) fault("newLibrary: kernels that add as written, compiled with fast math");
  if (is_ordered("fail_library", "libraries")) {
    give_error(error, "MTLLibraryErrorDomain", 3, "program_source:1:1: error: the compiler was told to refuse this");
    return nullptr;
  }
  auto* library = new Library;
  try {
    library->text = read_metal(text_of(source));
    library->hash = hash_of(text_of(source));
    return library;
  } catch (const std::runtime_error& e) {
    give_error(error, "MTLLibraryErrorDomain", 3, e.what());
    release(library);
    return nullptr;
  }
}

struct ConstantType {
  const char* name;
  unsigned long type;  // MTLDataType
};
constexpr ConstantType kConstantTypes[] = {{"float", 3}, {"int", 29}, {"uint", 33}, {"short", 37}, {"ushort", 41}, {"bool", 53}};

size_t bytes_of_type(unsigned long type) {
  if (type == 53) return 1;
  if (type == 37 || type == 41) return 2;
  if (type == 3 || type == 29 || type == 33) return 4;
  die("setConstantValue: type " + std::to_string(type) + " is not known here");
}

Function* new_function(Library* library, String* name, ConstantValues* values, Error** error) {
  const std::string wanted = text_of(name);
  const auto refuse = [&](const std::string& why) {
    give_error(error, "MTLLibraryErrorDomain", 5, why);
    return nullptr;
  };
  const auto found = library->text.kernels.find(wanted);
  const simt::KernelLibraries::Place* place = kernel_libraries().find(wanted);
  if (found == library->text.kernels.end()) return refuse("Function " + wanted + " was not found in the library");
  if (place == nullptr) return refuse("no library of kernels has " + wanted);
  std::ostringstream key;
  key << wanted << '|' << std::hex << library->hash;
  std::vector<simt::ConstantValue> constants;
  if (values == nullptr) values = autorelease(new ConstantValues);
  for (const auto& [index, value] : values->values) {
    const auto declared = library->text.constants.find(index);
    if (declared == library->text.constants.end()) continue;
    for (const ConstantType& t : kConstantTypes) {
      if (declared->second == t.name && value.type != t.type) {
        fault(wanted + ": function constant " + std::to_string(index) + " is " + t.name + ", got a value of type " +
              std::to_string(value.type));
        return refuse("function constant " + std::to_string(index) + " has another type");
      }
    }
    key << '|' << index << '=' << value.bits;
    if (place->first->constant_type(place->second, static_cast<uint32_t>(index)) != nullptr) {
      constants.push_back({static_cast<uint32_t>(index), value.bits});
    }
  }
  auto* function = new Function;
  function->label = wanted;
  function->key = key.str();
  std::tie(function->library, function->index) = *place;
  function->text = found->second;
  function->constants = std::move(constants);
  return function;
}

Pipeline* new_pipeline(Function* function, const std::string& label, Error** error) {
  if (function == nullptr) {
    fault("newComputePipelineState: no function");
    give_error(error, "AGXMetalG13X", 3, "computeFunction must not be nil");
    return nullptr;
  }
  if (is_ordered("fail_pipeline", "pipelines")) {
    give_error(error, "AGXMetalG13X", 3, "Compiler encountered an internal error");
    return nullptr;
  }
  auto* pipeline = new Pipeline;
  pipeline->label = label;
  pipeline->threads_max = static_cast<unsigned long>(setting("max_threads"));
  pipeline->library = function->library;
  pipeline->index = function->index;
  pipeline->kernel = function->label;
  pipeline->text = function->text;
  pipeline->constants = function->constants;
  return pipeline;
}

Pipeline* new_described_pipeline(PipelineDescriptor* descriptor, unsigned long options, Error** error) {
  bool has = false;
  if (descriptor->archives != nullptr && descriptor->function != nullptr) {
    for (Object* o : descriptor->archives->objects) {
      auto* archive = static_cast<Archive*>(o);
      const std::lock_guard lock(archive->mutex);
      has = has || archive->keys.count(descriptor->function->key) != 0;
    }
  }
  if (!has && (options & kFailOnArchiveMiss) != 0) {
    give_error(error, "MTLBinaryArchiveDomain", 3, "the function is not in the archive");
    return nullptr;
  }
  Pipeline* made = new_pipeline(descriptor->function, descriptor->label, error);
  if (made != nullptr) count(has ? "loaded" : "compiled");
  return made;
}

// --- archives

constexpr char kArchiveHead[] = "archive of the fake Metal device";

Archive* new_archive(ArchiveDescriptor* descriptor, Error** error) {
  auto* archive = new Archive;
  if (descriptor->url == nullptr) return archive;
  std::ifstream file(descriptor->url->path);
  std::string line;
  std::getline(file, line);
  bool whole = line == kArchiveHead;
  while (whole && std::getline(file, line) && line != "end") archive->keys.insert(line);
  if (whole && line == "end") return archive;
  give_error(error, "MTLBinaryArchiveDomain", 1, "Invalid binary archive file " + descriptor->url->path);
  release(archive);
  return nullptr;
}

bool serialize(Archive* archive, Url* url, Error** error) {
  const std::lock_guard lock(archive->mutex);
  std::ofstream file(url->path);
  file << kArchiveHead << '\n';
  for (const std::string& key : archive->keys) file << key << '\n';
  file << "end\n";
  file.close();
  if (file) return true;
  give_error(error, "MTLBinaryArchiveDomain", 4, "cannot write " + url->path);
  return false;
}

// --- the classes

void define_device() {
  const char* device = "MTLDevice";
  method(device, "name", +[](Device*, Selector) { return autorelease(new String("Fake Apple GPU")); });
  method(device, "supportsFamily:", +[](Device*, Selector, long family) {
    constexpr long kApple = 1000, kMetal3 = 5001;
    return family == kMetal3 || (family > kApple && family <= kApple + setting("family"));
  });
  method(device, "maxBufferLength", +[](Device*, Selector) { return setting("max_buffer"); });
  method(device, "recommendedMaxWorkingSetSize", +[](Device*, Selector) { return setting("working_set"); });
  method(device, "hasUnifiedMemory", +[](Device*, Selector) { return setting("unified") != 0; });
  method(device, "maxThreadgroupMemoryLength", +[](Device*, Selector) { return kThreadgroupMemoryBytes; });
  method(device, "newBufferWithLength:options:", +[](Device*, Selector, size_t bytes, unsigned long options) {
    return new_buffer(nullptr, bytes, options, true);
  });
  method(device, "newBufferWithBytesNoCopy:length:options:deallocator:",
         +[](Device*, Selector, void* memory, size_t bytes, unsigned long options, const void* deallocator) {
           return wrap_memory(memory, bytes, options, deallocator);
         });
  method(device, "newLibraryWithSource:options:error:",
         +[](Device*, Selector, String* source, CompileOptions* options, Error** error) {
           return new_library(source, options, error);
         });
  method(device, "newComputePipelineStateWithFunction:error:",
         +[](Device*, Selector, Function* function, Error** error) {
           Pipeline* made = new_pipeline(function, "", error);
           if (made != nullptr) count("compiled");
           return made;
         });
  method(device, "newComputePipelineStateWithDescriptor:options:reflection:error:",
         +[](Device*, Selector, PipelineDescriptor* descriptor, unsigned long options, void*, Error** error) {
           return new_described_pipeline(descriptor, options, error);
         });
  method(device, "newBinaryArchiveWithDescriptor:error:",
         +[](Device*, Selector, ArchiveDescriptor* descriptor, Error** error) { return new_archive(descriptor, error); });
  method(device, "newResidencySetWithDescriptor:error:",
         +[](Device*, Selector, SetDescriptor*, Error** error) -> ResidencySet* {
           if (!is_ordered("fail_residency", "residency sets")) return new ResidencySet;
           give_error(error, "MTLResidencySetErrorDomain", 1, "there is no room for a residency set");
           return nullptr;
         },
         15);
  method(device, "newSharedEvent", +[](Device*, Selector) { return new SharedEvent; });
  method(device, "newFence", +[](Device*, Selector) { return new Fence; });
  method(device, "newCommandQueue", +[](Device*, Selector) -> CommandQueue* {
    return is_ordered("fail_queue", "queues") ? nullptr : new CommandQueue;
  });
}

void define_memory() {
  method("MTLBuffer", "contents", +[](Buffer* self, Selector) { return self->is_private() ? nullptr : self->data; });
  method("MTLBuffer", "length", +[](Buffer* self, Selector) { return self->bytes; });
  method("MTLBuffer", "allocatedSize", +[](Buffer* self, Selector) { return self->bytes; });

  class_method("MTLResidencySetDescriptor", "alloc", +[](Object*, Selector) { return new SetDescriptor; });
  method("MTLResidencySetDescriptor", "setInitialCapacity:", +[](Object*, Selector, unsigned long) {});
  const char* set = "MTLResidencySet";
  method(set, "addAllocation:", +[](ResidencySet* self, Selector, Object* allocation) {
    if (!is_alive(allocation)) die("addAllocation: of a dead " + described(allocation));
    const std::lock_guard lock(self->mutex);
    if (self->wanted.insert(allocation).second) retain(allocation);
  });
  method(set, "removeAllocation:", +[](ResidencySet* self, Selector, Object* allocation) {
    const std::lock_guard lock(self->mutex);
    if (self->wanted.erase(allocation) == 0) return fault("removeAllocation: it is not in the set");
    release(allocation);
  });
  method(set, "commit", +[](ResidencySet* self, Selector) {
    std::set<Object*> before;
    {
      const std::lock_guard lock(self->mutex);
      for (Object* o : self->wanted) retain(o);
      before = std::exchange(self->committed, self->wanted);
    }
    for (Object* o : before) release(o);
  });
  method(set, "requestResidency", +[](ResidencySet*, Selector) { count("residency requests"); });
  method(set, "endResidency", +[](ResidencySet*, Selector) { count("residency ends"); });
  method(set, "allocationCount", +[](ResidencySet* self, Selector) {
    const std::lock_guard lock(self->mutex);
    return self->wanted.size();
  });
  method(set, "containsAllocation:", +[](ResidencySet* self, Selector, Object* allocation) {
    const std::lock_guard lock(self->mutex);
    return self->wanted.count(allocation) != 0;
  });
}

void define_kernels() {
  class_method("MTLCompileOptions", "alloc", +[](Object*, Selector) { return new CompileOptions; });
  method("MTLCompileOptions", "setLanguageVersion:",
         +[](CompileOptions* self, Selector, unsigned long version) { self->language = version; });
  method("MTLCompileOptions", "setMathMode:",
         +[](CompileOptions* self, Selector, long mode) { self->fast = mode != 0; }, 15);
  method("MTLCompileOptions", "setFastMathEnabled:",
         +[](CompileOptions* self, Selector, bool fast) { self->fast = fast; });

  class_method("MTLFunctionConstantValues", "alloc", +[](Object*, Selector) { return new ConstantValues; });
  method("MTLFunctionConstantValues", "setConstantValue:type:atIndex:",
         +[](ConstantValues* self, Selector, const void* value, unsigned long type, unsigned long index) {
           uint64_t bits = 0;
           std::memcpy(&bits, value, bytes_of_type(type));
           self->values[index] = {type, bits};
         });
  method("MTLLibrary", "newFunctionWithName:constantValues:error:",
         +[](Library* self, Selector, String* name, ConstantValues* values, Error** error) {
           return new_function(self, name, values, error);
         });

  class_method("MTLComputePipelineDescriptor", "alloc", +[](Object*, Selector) { return new PipelineDescriptor; });
  const char* descriptor = "MTLComputePipelineDescriptor";
  method(descriptor, "setComputeFunction:",
         +[](PipelineDescriptor* self, Selector, Function* function) { set_member(self->function, function); });
  method(descriptor, "setBinaryArchives:",
         +[](PipelineDescriptor* self, Selector, Array* archives) { set_member(self->archives, archives); });
  const char* pipeline = "MTLComputePipelineState";
  method(pipeline, "threadExecutionWidth", +[](Pipeline*, Selector) { return setting("simd_width"); });
  method(pipeline, "maxTotalThreadsPerThreadgroup", +[](Pipeline* self, Selector) { return self->threads_max; });
  method(pipeline, "staticThreadgroupMemoryLength", +[](Pipeline*, Selector) { return 0ul; });

  class_method("MTLBinaryArchiveDescriptor", "alloc", +[](Object*, Selector) { return new ArchiveDescriptor; });
  method("MTLBinaryArchiveDescriptor", "setUrl:",
         +[](ArchiveDescriptor* self, Selector, Url* url) { set_member(self->url, url); });
  method("MTLBinaryArchive", "addComputePipelineFunctionsWithDescriptor:error:",
         +[](Archive* self, Selector, PipelineDescriptor* descriptor_, Error**) {
           const std::lock_guard lock(self->mutex);
           self->keys.insert(descriptor_->function->key);
           return true;
         });
  method("MTLBinaryArchive", "serializeToURL:error:",
         +[](Archive* self, Selector, Url* url, Error** error) { return serialize(self, url, error); });
}

// What all of Metal's objects have.
void define_labels() {
  for (const char* name : {"MTLBuffer", "MTLCommandBuffer", "MTLCommandQueue", "MTLComputeCommandEncoder",
                           "MTLComputePipelineDescriptor", "MTLComputePipelineState", "MTLFence", "MTLFunction", "MTLLibrary",
                           "MTLResidencySet", "MTLResidencySetDescriptor", "MTLSharedEvent", "MTLBinaryArchive"}) {
    method(name, "setLabel:", +[](Object* self, Selector, String* label) { self->label = text_of(label); });
    method(name, "label", +[](Object* self, Selector) { return autorelease(new String(self->label)); });
  }
}

}  // namespace

Buffer::~Buffer() {
  if (owns) munmap(data, bytes);
  if (deallocator == nullptr) return;
  call_block(deallocator, data, static_cast<unsigned long>(bytes));
  release_block(deallocator);
}

ResidencySet::~ResidencySet() {
  for (const std::set<Object*>* objects : {&wanted, &committed}) {
    for (Object* o : *objects) release(o);
  }
}

void define_metal() {
  define_device();
  define_memory();
  define_kernels();
  define_labels();
  define_metal_commands();
}

}  // namespace fake

extern "C" {

fake::Object* MTLCreateSystemDefaultDevice() { return fake::create_device(); }

fake::Object* MTLCopyAllDevices() {
  fake::Device* device = fake::create_device();
  if (device == nullptr) return new fake::Array;
  auto* all = new fake::Array({device});
  fake::release(device);
  return all;
}

}  // extern "C"
