// The backward of layers that are run again recursively (models/decisions/recursion.h). Each layer
// is a run of its own, for no two are run again alike.
#include "models/decisions/recursion.h"

#include <algorithm>

#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

namespace decisions = models::decisions;

namespace {
void add_visits(std::size_t first, std::int64_t steps, std::int64_t kept,
                std::vector<Visit>& visits) {
  if (steps == 1) return visits.push_back({first, true});
  const std::int64_t ahead = decisions::steps_ahead(steps, kept);
  const std::size_t held = first + static_cast<std::size_t>(ahead);
  for (std::size_t r = first; r < held; ++r) visits.push_back({r, false});
  add_visits(held, steps - ahead, kept - 1, visits);
  add_visits(first, ahead, kept, visits);
}
}  // namespace

// The first of the layers that a gradient comes to and that save anything; those above do, too.
std::size_t StepWriter::first_reversed() const {
  const auto reversed = [](const Run& run) { return run.any() && run.own(0).gradients.last >= 0; };
  return static_cast<std::size_t>(std::ranges::find_if(runs_, reversed) - runs_.begin());
}

std::vector<Visit> StepWriter::visits_of_backward() const {
  std::vector<Visit> visits;
  const std::size_t first = first_reversed();
  add_visits(first, static_cast<std::int64_t>(runs_.size() - first) + 1, strategy_.recompute.layers,
             visits);
  // Down to the head and its backward: the forward's.
  visits.erase(visits.begin(),
               visits.begin() + static_cast<std::ptrdiff_t>(runs_.size() - first) + 1);
  return visits;
}

// What a micro-batch's visits gather. A layer's last one is its unit's own.
void StepWriter::begin_visits() {
  visits_ = visits_of_backward();
  if (!gathers()) return;
  for (Visit& visit : visits_) {
    const Unit& unit = runs_[visit.run].units.front();
    visit.gathered = visit.reverses ? unit.gathered_backward
                                    : b_.tensor_in(unit.group, unit.names->gathered,
                                                   b_.rounded(unit.whole), Category::parameters,
                                                   models::Residency::step, models::Stream::gather);
  }
  if (!visits_.empty()) runs_.back().units.front().gathered_again = visits_.front().gathered;
}

void StepWriter::layers_backward_recursively() {
  std::vector<Ref> inputs;
  for (std::size_t r = 0; r < runs_.size(); ++r) inputs.push_back(input_of(r, 0));
  const std::size_t first = first_reversed();
  const TensorId below = first > 0 ? first_backward(first - 1) : kNoTensor;
  for (std::size_t i = 0; i < visits_.size(); ++i) {
    const Visit& visit = visits_[i];
    Run& run = runs_[visit.run];
    Unit& unit = run.units.front();
    const Ref input = inputs[visit.run];
    b_.open(run.group, true, times_);
    gather(unit, Phase::recompute, {i + 1 < visits_.size() ? visits_[i + 1].gathered : below});
    if (visit.reverses) {
      layer_.forward(Phase::recompute, run.own(0), run.own(0).gradients, input, kNoTensor, true,
                     run.saved.front());
      layer_.backward(run.own(0), input, stream_grad_, unit.written, run.saved.front());
      free_gathered(unit, Phase::backward, visit.gathered);
      reduce(unit, reduced_before(exchanged(), visit.run, 0),
             reduced_before(&Unit::kept, visit.run, 0));
    } else {
      const TensorId out = layer_.make(decisions::kLayerOut, d_.hidden);
      layer_.forward(Phase::recompute, run.own(0), {}, input, out, false, run.saved.front());
      free_gathered(unit, Phase::recompute, visit.gathered);
      inputs[visit.run + 1] = {out};
    }
    b_.close();
  }
  for (std::size_t r = first; r-- > 0;) layers_backward(r);
}

}  // namespace plimsoll::planner::plimsoll_stack
