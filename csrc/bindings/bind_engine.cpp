// SPDX-License-Identifier: MIT
//
// Engine, Session and Sampler. Every call that computes lets go of the GIL and looks for Ctrl-C.
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "bindings/bindings.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/session.h"

namespace esker::python {
namespace {

using Tokens = std::vector<int32_t>;
using ProgressFn = std::function<void(uint64_t, uint64_t)>;

std::vector<gpu::TileRow> tile_rows(const std::vector<TunedRow>& rows) {
  std::vector<gpu::TileRow> of;
  for (const TunedRow& row : rows) of.push_back(tile_row(row));
  return of;
}

std::shared_ptr<Engine> open_engine(const std::string& path,
                                    const std::optional<std::string>& ngram_table, uint64_t context,
                                    int threads, int activation_bytes, uint64_t memory_bytes,
                                    uint64_t arena_bytes,
                                    double arena_fraction, uint32_t slots, uint32_t chunk,
                                    int reader_threads, double class_waste, uint32_t min_slots,
                                    uint64_t keep_free_bytes, int32_t read_ahead,
                                    uint32_t read_ahead_2, bool touch_guesses, bool split_turn,
                                    float cache_prior, uint32_t protect, uint32_t starvation,
                                    bool wire, bool governor, const std::string& backend,
                                    const std::vector<TunedRow>& tiles, const std::string& cache_folder) {
  const EngineOptions options{.path = path,
                              .backend = backend,
                              .cache_folder = cache_folder,
                              .tiles = tile_rows(tiles),
                              .ngram_table = ngram_table.value_or(""),
                              .context = context,
                              .memory_bytes = memory_bytes,
                              .keep_free_bytes = keep_free_bytes,
                              .arena_bytes = arena_bytes,
                              .arena_fraction = arena_fraction,
                              .slots = slots,
                              .min_slots = min_slots,
                              .class_waste = class_waste,
                              .chunk = chunk,
                              .threads = threads,
                              .activations = static_cast<Activations>(activation_bytes),
                              .reader_threads = reader_threads,
                              .read_ahead = read_ahead,
                              .read_ahead_2 = read_ahead_2,
                              .touch_guesses = touch_guesses,
                              .split_turn = split_turn,
                              .cache_prior = cache_prior,
                              .protect = protect,
                              .starvation = starvation,
                              .wire = wire,
                              .governor = governor};
  const nb::gil_scoped_release no_gil;
  return Engine::open(options, make_poll());
}

nb::dict counters_dict(const EngineCounters& c) {
  nb::dict d;
  d["lookups"] = c.stream.lookups, d["hits"] = c.stream.hits;
  d["ahead_hits"] = c.stream.ahead_hits, d["ahead_late"] = c.stream.ahead_late;
  d["demand_misses"] = c.stream.demand_misses, d["ahead_reads"] = c.stream.ahead_reads;
  d["ahead_wasted"] = c.stream.ahead_wasted, d["displaced"] = c.stream.displaced;
  d["evictions"] = c.stream.evictions, d["withdrawn_bytes"] = c.stream.withdrawn_bytes;
  d["bytes_read"] = c.stream.bytes_read, d["bytes_ahead"] = c.stream.bytes_ahead;
  d["bytes_wasted"] = c.stream.bytes_wasted, d["turns"] = c.stream.turns;
  d["host_ns"] = c.stream.host_ns, d["wait_ns"] = c.stream.wait_ns;
  d["after_ns"] = c.stream.after_ns, d["read_ns"] = c.stream.read_ns;
  d["row_lookups"] = c.rows.lookups, d["row_hits"] = c.rows.hits;
  d["row_bytes_read"] = c.rows.bytes_read;
  d["device_ns"] = c.device_ns;
  return d;
}

nb::list op_times(const Engine& engine) {
  nb::list out;
  for (const OpTime& t : engine.op_times()) {
    nb::dict d;
    d["op"] = op_name(t.kind);
    d["role"] = t.role == Role::kCount ? "" : role_name(t.role);
    d["calls"] = t.calls, d["ns"] = t.ns;
    out.append(d);
  }
  return out;
}

nb::list wired(const Engine& engine) {
  nb::list out;
  for (const WiredPart& part : engine.wired()) {
    nb::dict d;
    d["what"] = part.what, d["bytes"] = part.bytes;
    d["error"] = part.error_number == 0 ? "" : std::strerror(part.error_number);
    out.append(d);
  }
  return out;
}

void prefill(Session& session, const Tokens& tokens, uint32_t chunk,
             const std::optional<ProgressFn>& progress) {
  Session::Progress report;
  if (progress) {
    report = [&](uint64_t done, uint64_t total) {
      const nb::gil_scoped_acquire gil;
      (*progress)(done, total);
    };
  }
  const nb::gil_scoped_release no_gil;
  session.prefill(tokens, chunk, report, make_poll());
}

FloatArray evaluate(Session& session, const Tokens& tokens, uint32_t chunk, uint32_t n_vocab) {
  FloatArray logits = make_array(std::max<size_t>(1, tokens.size()), n_vocab);
  float* to = logits.data();
  const nb::gil_scoped_release no_gil;
  session.evaluate(tokens, chunk, to, make_poll());
  return logits;
}

FloatArray copy_logits(const Session& session) {
  const std::span<const float> logits = session.logits();
  FloatArray out = make_array(0, logits.size());
  std::copy(logits.begin(), logits.end(), out.data());
  return out;
}

// A session that knows its engine, so that Python may drop either first.
struct PySession {
  std::shared_ptr<Engine> engine;
  std::unique_ptr<Session> session;
};

void bind_session(nb::module_& m) {
  nb::class_<PySession>(m, "Session", "One conversation's state on a model.")
      .def_prop_ro("position", [](const PySession& s) { return s.session->position(); })
      .def_prop_ro("context", [](const PySession& s) { return s.session->context(); })
      .def_prop_ro("tokens", [](const PySession& s) { return s.session->tokens(); })
      .def("prefill",
           [](PySession& s, const Tokens& tokens, uint32_t chunk,
              const std::optional<ProgressFn>& progress) {
             prefill(*s.session, tokens, chunk, progress);
           },
           nb::arg("tokens"), nb::arg("chunk") = 0, nb::arg("progress") = nb::none())
      .def("decode",
           [](PySession& s, int32_t token) {
             const nb::gil_scoped_release no_gil;
             s.session->decode(token, make_poll());
           },
           nb::arg("token"))
      .def("logits", [](const PySession& s) { return copy_logits(*s.session); })
      .def("evaluate",
           [](PySession& s, const Tokens& tokens, uint32_t chunk) {
             return evaluate(*s.session, tokens, chunk, s.engine->config().n_vocab);
           },
           nb::arg("tokens"), nb::arg("chunk") = 0)
      .def("fork", [](PySession& s) { return PySession{s.engine, s.session->fork()}; })
      .def("checkpoint", [](PySession& s) { return s.session->checkpoint(); })
      .def("rewind", [](PySession& s, uint32_t id) { s.session->rewind(id); }, nb::arg("checkpoint"))
      .def("save",
           [](PySession& s, const std::string& path) {
             const nb::gil_scoped_release no_gil;
             s.session->save(path);
           },
           nb::arg("path"))
      .def("restore",
           [](PySession& s, const std::string& path) {
             const nb::gil_scoped_release no_gil;
             s.session->restore(path);
           },
           nb::arg("path"));
}

int32_t sample(Sampler& sampler, const nb::ndarray<const float, nb::ndim<1>, nb::c_contig>& logits) {
  return sampler.sample({logits.data(), logits.size()});
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<Engine>(m, "Engine", "A model, open and planned. See esker.Model.")
      .def(nb::new_(&open_engine), nb::arg("path"), nb::arg("ngram_table") = nb::none(),
           nb::arg("context") = 0, nb::arg("threads") = 0,
           nb::arg("activation_bytes") = static_cast<int>(Activations::kExact),
           nb::arg("memory_bytes") = 0,
           nb::arg("arena_bytes") = 0, nb::arg("arena_fraction") = 0.0, nb::arg("slots") = 0,
           nb::arg("chunk") = 0, nb::arg("reader_threads") = 0,
           nb::arg("class_waste") = EngineOptions{}.class_waste, nb::arg("min_slots") = 0,
           nb::arg("keep_free_bytes") = 0, nb::arg("read_ahead") = -1,
           nb::arg("read_ahead_2") = 0, nb::arg("touch_guesses") = false,
           nb::arg("split_turn") = true, nb::arg("cache_prior") = 0.0f,
           nb::arg("protect") = kProtect, nb::arg("starvation") = kStarvation, nb::arg("wire") = false,
           nb::arg("governor") = false, nb::arg("backend") = "cpu",
           nb::arg("tiles") = std::vector<TunedRow>(), nb::arg("cache_folder") = "")
      .def_prop_ro("info", [](const Engine& e) { return model_info(e.weights(), e.config()); })
      .def_prop_ro("plan", [](const Engine& e) { return plan_dict(e.plan()); })
      .def("metadata", [](const Engine& e) { return metadata(e.weights().gguf()); })
      .def("new_session",
           [](const std::shared_ptr<Engine>& e) { return PySession{e, std::make_unique<Session>(e)}; })
      .def("counters", [](const Engine& e) { return counters_dict(e.counters()); })
      .def("op_times", &op_times)
      .def("wired", &wired)
      .def("fill",
           [](Engine& e, const std::vector<std::pair<uint32_t, uint32_t>>& ranked) {
             const nb::gil_scoped_release no_gil;
             return e.fill(ranked, make_poll());
           },
           nb::arg("ranked"), "Reads (layer, expert) pairs into free slots; returns how many.")
      .def("pick_counts", &Engine::pick_counts, "[n_layer * n_expert] picks of decode.")
      .def("set_readers",
           [](Engine& e, int threads, uint64_t chunk_bytes) {
             const nb::gil_scoped_release no_gil;
             e.set_readers(threads, chunk_bytes);
           },
           nb::arg("threads"), nb::arg("chunk_bytes"))
      .def("graph",
           [](const Engine& e, bool prompt) {
             return dump(e.graph(prompt ? GraphMode::kPrompt : GraphMode::kWindow));
           },
           nb::arg("prompt") = false, "The graph as text, one op a line.");
  bind_session(m);
  nb::class_<Sampler>(m, "Sampler", "Draws tokens from logits; temperature 0 is greedy.")
      .def("__init__",
           [](Sampler* self, float temperature, int top_k, float top_p, float min_p, uint64_t seed) {
             new (self) Sampler({.temperature = temperature, .top_k = top_k, .top_p = top_p,
                                 .min_p = min_p, .seed = seed});
           },
           nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
           nb::arg("seed"))
      .def("sample", &sample, nb::arg("logits"));
}

}  // namespace esker::python
