// What a rank's memory on the host is asked for, where the optimizer's states are there
// (models/decisions/offload.h).
#include "models/decisions/offload.h"
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

using models::kNoGroup;
using models::Residency;
namespace decisions = models::decisions;

void StepWriter::write_host(models::StepProgram& program) {
  ProgramBuilder host(program, b_.rounded(Bytes(1)).value());
  struct Stepped {
    TensorId gradients = kNoTensor, weights = kNoTensor;
  };
  const auto declare = [&](const Unit& unit, models::GroupId group) {
    if (!unit.trains()) return Stepped{};
    each_state(unit, [&](const char* name, Bytes bytes) {
      host.tensor_in(group, name, host.rounded(bytes), Category::optimizer, Residency::persistent);
    });
    const auto buffer = [&](const char* name, Bytes bytes, Category category) {
      return host.tensor_in(group, name, host.rounded(bytes), category);
    };
    return Stepped{buffer(unit.names->host_gradients, unit.stepped_gradients, Category::gradients),
                   buffer(unit.names->host_parameters, unit.stepped_weights, Category::parameters)};
  };
  const auto step = [&](const Unit& unit, const Stepped& stepped) {
    if (unit.trains())
      host.op(unit.names->step, Phase::optimizer).write(stepped.gradients).write(stepped.weights);
  };
  host.begin(models::Section::optimizer);
  std::vector<models::GroupId> groups;
  std::vector<std::vector<Stepped>> of_layers;
  const Stepped embedding = declare(embedding_, kNoGroup);
  for (const Run& run : runs_) {
    const auto stride = static_cast<std::int64_t>(run.stride());
    groups.push_back(host.group("layers", run.first_layer, run.count, stride));
    of_layers.emplace_back();
    for (std::size_t j = 0; j < run.stride(); ++j) {
      host.at_layer(static_cast<std::uint16_t>(j));
      of_layers.back().push_back(declare(run.units[j], groups.back()));
    }
    host.at_layer(0);
  }
  const Stepped tail = declare(tail_, kNoGroup);
  host.tensor_in(kNoGroup, decisions::kHostScalars, host.rounded(decisions::kScalars),
                 Category::workspace, Residency::persistent);
  const auto step_end = [&](const Unit& unit, const Stepped& stepped) {
    host.open(kNoGroup);
    step(unit, stepped);
    host.close();
  };
  const bool backward = strategy_.optimizer_in_backward;
  const auto step_layers = [&](std::size_t r) {
    if (!runs_[r].trains()) return;
    const std::size_t stride = runs_[r].stride();
    host.open(groups[r], backward);
    for (std::size_t i = 0; i < stride; ++i) {
      const std::size_t j = backward ? stride - 1 - i : i;
      host.at_layer(static_cast<std::uint16_t>(j));
      step(runs_[r].units[j], of_layers[r][j]);
    }
    host.at_layer(0);
    host.close();
  };
  if (!backward) {
    step_end(embedding_, embedding);
    for (std::size_t r = 0; r < runs_.size(); ++r) step_layers(r);
    step_end(tail_, tail);
    return;
  }
  if (!d_.tied_head) step_end(tail_, tail);
  for (std::size_t r = runs_.size(); r-- > 0;) step_layers(r);
  step_end(embedding_, embedding);
  if (d_.tied_head) step_end(tail_, tail);
}

}  // namespace plimsoll::planner::plimsoll_stack
