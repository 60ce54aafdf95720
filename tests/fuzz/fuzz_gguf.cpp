// SPDX-License-Identifier: MIT
//
// libFuzzer harness: arbitrary bytes as a model file. Parsing, the config, the weights and the
// traffic, of the whole file and of its header alone, may throw Error(kFormat) and nothing else;
// sanitizers and the memory limit watch the rest. A header says of a whole file what the file says.
// `fuzz_gguf -write_seeds=FOLDER` writes the seeds kept in seeds/.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../native/gguf_bytes.h"
#include "base/error.h"
#include "graph/traffic.h"
#include "graph/weights.h"

namespace {

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(),
                                              static_cast<std::streamsize>(bytes.size()));
}

void write_seeds(const std::string& folder) {
  using esker::test::GgufBytes;
  GgufBytes model = esker::test::tiny_model();
  write_file(folder + "/model.gguf", model.build());
  // No weights: what is left fuzzes faster.
  GgufBytes keys = model;
  keys.tensors.clear();
  keys.set_string("tokenizer.ggml.model", "gpt2");
  keys.set_array<double>("test.doubles", {0.5, 2.0});
  keys.set_array<bool>("qwen4exp.attention.recurrent_layers", {true, false});
  write_file(folder + "/keys.gguf", keys.build());
  // Other types, fused experts, another alignment, tied output, version 2.
  model.version = 2;
  model.alignment = 64;
  model.set<uint32_t>("general.alignment", 64);
  model.erase_tensor("output.weight");
  for (const char* blk : {"blk.0.", "blk.1."}) {
    model.erase_tensor(std::string(blk) + "ffn_gate_exps.weight");
    model.erase_tensor(std::string(blk) + "ffn_up_exps.weight");
    model.add(std::string(blk) + "ffn_gate_up_exps.weight", {8, 8, 3});
  }
  for (auto& tensor : model.tensors) {
    if (tensor.dims.size() != 1) continue;
    tensor.type = tensor.dims[0] == 16 ? 1 : 30;
    tensor.data.resize(tensor.data.size() / 2);
    for (char& byte : tensor.data) byte = 0x3c;
  }
  write_file(folder + "/fused.gguf", model.build());
  GgufBytes shard;
  shard.set<uint16_t>("split.no", 0);
  shard.set<uint16_t>("split.count", 1);
  shard.set<int32_t>("split.tensors.count", 1);
  shard.add("extra.weight", {32});
  shard.tensors[0].type = 8;
  shard.tensors[0].data.resize(34);
  write_file(folder + "/shard.gguf", shard.build());
}

// A path that leads to a file of our own, the same for every input.
struct Scratch {
  int fd;
  std::string path;
  Scratch() {
#ifdef __linux__
    fd = memfd_create("esker-fuzz", 0);
    path = "/proc/self/fd/" + std::to_string(fd);
    if (fd >= 0) return;
#endif
    char name[] = "/tmp/esker-fuzz-XXXXXX";
    fd = mkstemp(name);
    if (fd < 0) std::abort();
    path = name;
  }
  ~Scratch() { unlink(path.c_str()); }
};

// Bytes that the file, or its header, says there are; 0 if it is refused.
uint64_t bytes_of(const std::string& path, esker::Extent extent) {
  try {
    const auto gguf = esker::Gguf::open(path, extent);
    const esker::Config config = esker::read_config(*gguf, *gguf);
    const esker::Weights weights(gguf, gguf, config);
    const esker::Traffic traffic = esker::decode_traffic(config, weights);
    if (weights.dense_bytes() == 0) std::abort();
    return weights.dense_bytes() + traffic.bytes(esker::TrafficKind::kMatrix);
  } catch (const esker::Error& error) {
    if (error.kind() == esker::ErrorKind::kFormat) return 0;
    std::fprintf(stderr, "wrong kind of error: %s\n", error.what());
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string option = "-write_seeds=";
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = (*argv)[i];
    if (argument.rfind(option, 0) != 0) continue;
    write_seeds(argument.substr(option.size()));
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Scratch scratch;
  if (ftruncate(scratch.fd, 0) != 0) std::abort();
  if (pwrite(scratch.fd, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  const uint64_t whole = bytes_of(scratch.path, esker::Extent::kWhole);
  const uint64_t header = bytes_of(scratch.path, esker::Extent::kHeaderOnly);
  if (whole != 0 && whole != header) std::abort();
  return 0;
}
