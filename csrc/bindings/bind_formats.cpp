// SPDX-License-Identifier: MIT
//
// Files seen from Python: metadata, facts about a model, and the scalar decoders for tests.
#include <cstring>
#include <string>

#include "backends/cpu/cpu_backend.h"
#include "base/error.h"
#include "base/machine.h"
#include "bindings/bindings.h"
#include "formats/gguf.h"
#include "formats/quantize.h"
#include "formats/quants.h"
#include "graph/config.h"
#include "graph/weights.h"

namespace esker::python {
namespace {

// File text is UTF-8 by the format's word; what is not comes with its bytes escaped.
nb::object text(const std::string& s) {
  return nb::steal(PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "surrogateescape"));
}

nb::object to_python(const MetaValue& value) {
  const auto list = [](const auto& items, const auto& convert) -> nb::object {
    nb::list out;
    for (const auto& item : items) out.append(convert(item));
    return out;
  };
  const auto plain = [](const auto& v) { return nb::cast(v); };
  if (const auto* u = std::get_if<uint64_t>(&value.value)) {
    return value.type == MetaType::kBool ? nb::cast(*u != 0) : nb::cast(*u);
  }
  if (const auto* i = std::get_if<int64_t>(&value.value)) return nb::cast(*i);
  if (const auto* d = std::get_if<double>(&value.value)) return nb::cast(*d);
  if (const auto* s = std::get_if<std::string>(&value.value)) return text(*s);
  const auto& array = std::get<MetaValue::Array>(value.value);
  if (const auto* u = std::get_if<std::vector<uint64_t>>(&array)) {
    if (value.element == MetaType::kBool) return list(*u, [](uint64_t v) { return nb::cast(v != 0); });
    return list(*u, plain);
  }
  if (const auto* i = std::get_if<std::vector<int64_t>>(&array)) return list(*i, plain);
  if (const auto* d = std::get_if<std::vector<double>>(&array)) return list(*d, plain);
  return list(std::get<std::vector<std::string>>(array), text);
}

nb::dict config_dict(const Config& c) {
  nb::dict d;
  const auto flags = [](const std::vector<uint8_t>& v) { return std::vector<bool>(v.begin(), v.end()); };
  d["n_layer"] = c.n_layer, d["n_mtp_layer"] = c.n_mtp_layer;
  d["context_length"] = c.context_length, d["d_model"] = c.d_model, d["n_vocab"] = c.n_vocab;
  d["n_stream"] = c.n_stream, d["low_rank"] = c.low_rank, d["rms_eps"] = c.rms_eps;
  d["is_linear"] = flags(c.is_linear), d["is_ple"] = flags(c.is_ple);
  d["n_key_head"] = c.n_key_head, d["n_value_head"] = c.n_value_head;
  d["d_linear_head"] = c.d_linear_head, d["conv_kernel"] = c.conv_kernel;
  d["n_head"] = c.n_head, d["n_kv_head"] = c.n_kv_head, d["d_head"] = c.d_head;
  d["n_rope"] = c.n_rope, d["rope_base"] = c.rope_base;
  d["n_index_head"] = c.n_index_head, d["d_index"] = c.d_index, d["index_budget"] = c.index_budget;
  d["compress_ratio"] = c.compress_ratio;
  d["n_expert"] = c.n_expert, d["n_expert_used"] = c.n_expert_used;
  d["d_expert"] = c.d_expert, d["d_shared"] = c.d_shared;
  d["ngram_size"] = c.ngram_size, d["heads_per_ngram"] = c.heads_per_ngram;
  d["d_ple_row"] = c.d_ple_row, d["ple_table_rows"] = c.ple_table_rows;
  return d;
}

// "blk.3.attn_q.weight" -> "attn_q"
std::string role_of(const std::string& name) {
  std::string role = name;
  if (role.starts_with("blk.")) role = role.substr(std::min(role.size(), role.find('.', 4) + 1));
  if (role.ends_with(".weight")) role.resize(role.size() - 7);
  return role;
}

std::pair<std::unique_ptr<Weights>, Config> open_model(const std::string& path,
                                                       const std::optional<std::string>& table) {
  const std::shared_ptr<const Gguf> model = Gguf::open(path);
  const std::shared_ptr<const Gguf> rows = table ? Gguf::open(*table) : model;
  Config config = read_config(*model, *rows);
  return {std::make_unique<Weights>(model, rows, config), std::move(config)};
}

const WeightTypeInfo* require_weight_type(uint32_t type_id) {
  const WeightTypeInfo* type = find_weight_type(type_id);
  if (type == nullptr) {
    raise(ErrorKind::kUsage, "formats",
          {.what = "unknown weight type", .got = std::to_string(type_id), .want = {}, .where = {}, .hint = {}});
  }
  return type;
}

FloatArray decode_weights(uint32_t type_id, const nb::bytes& data, int64_t n) {
  const WeightTypeInfo* type = require_weight_type(type_id);
  if (n < 0 || n % type->block_elements != 0 ||
      weight_bytes(type->type, static_cast<uint64_t>(n)) != data.size()) {
    raise(ErrorKind::kUsage, "formats",
          {.what = std::string("the data is not that many weights of type ") + type->name,
           .got = std::to_string(data.size()) + " bytes for " + std::to_string(n) + " weights",
           .want = std::to_string(type->block_bytes) + " bytes for each " +
                   std::to_string(type->block_elements),
           .where = {},
           .hint = {}});
  }
  FloatArray out = make_array(0, static_cast<size_t>(n));
  weight_decoder(type->type)(reinterpret_cast<const uint8_t*>(data.data()), out.data(), n);
  return out;
}

using WeightArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::bytes quantize_weights(uint32_t type_id, const WeightArray& weights) {
  const WeightTypeInfo* type = require_weight_type(type_id);
  const uint64_t n = weights.size();
  if (n % type->block_elements != 0) {
    raise(ErrorKind::kUsage, "formats",
          {.what = std::string("the weights are not whole blocks of type ") + type->name,
           .got = std::to_string(n) + " weights",
           .want = "a multiple of " + std::to_string(type->block_elements),
           .where = {},
           .hint = {}});
  }
  const nb::object out = nb::steal(
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(weight_bytes(type->type, n))));
  if (!out.is_valid()) throw nb::python_error();
  auto* blocks = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(out.ptr()));
  {
    nb::gil_scoped_release release;
    quantize(type->type, weights.data(), blocks, static_cast<int64_t>(n));
  }
  return nb::borrow<nb::bytes>(out);
}

}  // namespace

nb::dict metadata(const Gguf& gguf) {
  nb::dict out;
  for (const auto& [key, value] : gguf.metadata()) out[text(key)] = to_python(value);
  return out;
}

nb::dict model_info(const Weights& weights, const Config& config) {
  const Gguf& gguf = weights.gguf();
  nb::dict info;
  nb::list files, tensors;
  for (const auto& f : gguf.files()) {
    nb::dict file;
    file["path"] = f->path(), file["bytes"] = f->size_bytes();
    files.append(file);
  }
  std::map<std::string, std::map<std::string, uint64_t>> by_role;
  uint64_t parameters = 0, experts = 0;
  for (const TensorInfo& t : gguf.tensors()) {
    nb::dict tensor;
    tensor["name"] = t.name, tensor["type"] = t.type_name(), tensor["shape"] = t.dims;
    tensor["bytes"] = t.bytes, tensor["file"] = t.file, tensor["role"] = role_of(t.name);
    tensors.append(tensor);
    parameters += t.elements;
    by_role[role_of(t.name)][t.type_name()] += t.bytes;
  }
  for (uint32_t i = 0; i < config.n_layer; ++i) experts += weights.experts(i).record_bytes * config.n_expert;
  nb::dict roles;
  for (const auto& [role, types] : by_role) {
    nb::dict d;
    for (const auto& [type, bytes] : types) d[type.c_str()] = bytes;
    roles[role.c_str()] = d;
  }
  info["path"] = gguf.path(), info["files"] = files, info["architecture"] = kArchitecture;
  info["config"] = config_dict(config), info["tensors"] = tensors;
  info["unused"] = weights.unused(), info["bytes_by_role"] = roles;
  info["dense_bytes"] = weights.dense_bytes(), info["expert_bytes"] = experts;
  info["table_bytes"] = config.has_ple() ? weights.table().rows * weights.table().row_bytes : 0;
  info["table_path"] = config.has_ple() ? weights.table().path : std::string();
  info["n_parameters"] = parameters;
  return info;
}

void bind_formats(nb::module_& m) {
  m.def("file_metadata", [](const std::string& path) { return metadata(*Gguf::open(path)); },
        nb::arg("path"), "The GGUF metadata of a file, arrays as lists.");
  m.def(
      "file_info",
      [](const std::string& path, const std::optional<std::string>& table) {
        const auto [weights, config] = open_model(path, table);
        return model_info(*weights, config);
      },
      nb::arg("path"), nb::arg("ngram_table") = nb::none(),
      "Facts about a model file, without loading it.");
  m.def("decode_weights", &decode_weights, nb::arg("type_id"), nb::arg("data"), nb::arg("n"),
        "n weights of a GGUF weight type, decoded to float32 [n] by the scalar decoder.");
  m.def("quantize_weights", &quantize_weights, nb::arg("type_id"), nb::arg("weights"),
        "float32 [n] as the blocks of a GGUF weight type: whole blocks, types with a quantiser.");
  m.def(
      "cpu_info",
      [] {
        const MachineMemory memory = machine_memory();
        nb::dict d;
        d["cores"] = machine_cores();
        d["instruction_set"] = cpu_instruction_set();
        d["memory_total_bytes"] = memory.total_bytes;
        d["memory_available_bytes"] = memory.available_bytes;
        return d;
      },
      "Cores, instruction set of the kernels, and memory this process may use.");
}

}  // namespace esker::python
