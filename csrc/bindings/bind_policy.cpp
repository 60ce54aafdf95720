// SPDX-License-Identifier: MIT
//
// The residency policy and the ranking of guesses by themselves, for simulations and tests: the very
// code that the engine runs.
#include <nanobind/stl/pair.h>

#include <vector>

#include "bindings/bindings.h"
#include "stream/guess.h"
#include "stream/policy.h"

namespace esker::python {
namespace {

using Experts = std::vector<int32_t>;
using Loads = std::span<const ResidencyPolicy::Load>;

nb::list loads_list(Loads loads) {
  nb::list out;
  for (const auto& load : loads) {
    out.append(nb::make_tuple(load.expert, load.slot, load.evicts, load.claimed));
  }
  return out;
}

template <class T>
nb::list to_list(std::span<const T> values) {
  nb::list out;
  for (const T v : values) out.append(v);
  return out;
}

// classes: (pages, slots) each.
ArenaPlan make_plan(const std::vector<std::pair<uint32_t, uint32_t>>& classes,
                    const std::vector<uint32_t>& class_of_layer) {
  ArenaPlan plan;
  for (const auto& [pages, slots] : classes) {
    plan.classes.push_back({.pages = pages, .slots = slots, .base_bytes = plan.total_bytes});
    plan.total_bytes += plan.classes.back().slot_bytes() * slots;
  }
  plan.class_of_layer = class_of_layer;
  return plan;
}

TurnKind kind_of(bool prompt) { return prompt ? TurnKind::kPrompt : TurnKind::kDecode; }

Experts rank(const std::vector<float>& scores, uint32_t n_expert, uint32_t depth, uint32_t protect,
             float prior, const std::vector<uint8_t>& favoured) {
  if (n_expert == 0 || scores.size() % n_expert != 0 ||
      (!favoured.empty() && favoured.size() != n_expert)) {
    throw nb::value_error("scores are [T, n_expert], favoured [n_expert] or nothing");
  }
  Experts ranked;
  rank_guesses({.n_expert = n_expert, .depth = depth, .protect = protect, .prior = prior}, scores,
               favoured, &ranked);
  return ranked;
}

}  // namespace

void bind_policy(nb::module_& m) {
  using Policy = ResidencyPolicy;
  nb::class_<Policy>(m, "ResidencyPolicy",
                     "Which expert is in which slot (csrc/stream/policy.h). Loads are tuples (expert, "
                     "slot, evicts, claimed). Misuse raises RuntimeError.")
      .def("__init__",
           [](Policy* self, const std::vector<std::pair<uint32_t, uint32_t>>& classes,
              const std::vector<uint32_t>& class_of_layer, uint32_t n_expert, uint32_t starvation) {
             new (self) Policy(make_plan(classes, class_of_layer), n_expert, starvation);
           },
           nb::arg("classes"), nb::arg("class_of_layer"), nb::arg("n_expert"),
           nb::arg("starvation") = 0)
      .def("begin_prompt", &Policy::begin_prompt)
      .def("begin_turn",
           [](Policy& p, uint32_t layer, const Experts& experts, bool prompt) {
             p.begin_turn(layer, experts, kind_of(prompt));
           },
           nb::arg("layer"), nb::arg("experts"), nb::arg("prompt") = false)
      .def("has_more", &Policy::has_more)
      .def("next_round",
           [](Policy& p, bool overlapped) {
             const Policy::Round round = p.next_round(overlapped);
             return nb::make_tuple(to_list(round.experts), loads_list(round.loads));
           },
           nb::arg("overlapped") = false, "(experts, loads) of the turn's next round.")
      .def("loaded", &Policy::loaded, nb::arg("slot"))
      .def("failed", &Policy::failed, nb::arg("slot"))
      .def("read_ahead",
           [](Policy& p, uint32_t layer, const Experts& candidates, bool prompt, uint32_t keep,
              bool touch) {
             return loads_list(p.read_ahead(layer, candidates, kind_of(prompt), keep, touch));
           },
           nb::arg("layer"), nb::arg("candidates"), nb::arg("prompt") = false, nb::arg("keep") = 0,
           nb::arg("touch") = false)
      .def("retire", [](Policy& p, uint32_t layer) { return to_list(p.retire(layer)); },
           nb::arg("layer"))
      .def("limbo", [](const Policy& p) { return to_list(p.limbo()); })
      .def("free_limbo", &Policy::free_limbo)
      .def("fill",
           [](Policy& p, const std::vector<std::pair<uint32_t, uint32_t>>& ranked) {
             return loads_list(p.fill(ranked));
           },
           nb::arg("ranked"))
      .def("note_displaced",
           [](Policy& p, uint32_t layer, const Experts& picks, const Experts& wanted) {
             return p.note_displaced(layer, picks, wanted);
           },
           nb::arg("layer"), nb::arg("picks"), nb::arg("wanted"))
      .def("publish_favoured", &Policy::publish_favoured, nb::arg("layer"))
      .def("favoured",
           [](const Policy& p, uint32_t layer) {
             return to_list(p.favoured().subspan(size_t{layer} * p.n_expert(), p.n_expert()));
           },
           nb::arg("layer"))
      .def("residency", [](const Policy& p, uint32_t layer) { return to_list(p.residency(layer)); },
           nb::arg("layer"), "[n_expert] slot code within the layer's class, or -1.")
      .def("check_invariants", &Policy::check_invariants);
  m.def("rank_guesses", &rank, nb::arg("scores"), nb::arg("n_expert"), nb::arg("depth"),
        nb::arg("protect") = 0, nb::arg("prior") = 0.0f, nb::arg("favoured") = std::vector<uint8_t>(),
        "The experts that read-ahead brings in, in order (csrc/stream/guess.h).");
}

}  // namespace esker::python
