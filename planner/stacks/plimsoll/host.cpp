// What a rank's memory on the host is asked for, where the optimizer's states or layers' inputs are
// there (models/decisions/offload.h).
#include "models/decisions/offload.h"
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

using models::kNoGroup;
using models::Residency;
namespace decisions = models::decisions;

bool StepWriter::offloads_input(const Run& run, std::size_t layer) const {
  return strategy_.offload.activations && run.recomputed && run.own(layer).gradients.last >= 0;
}

// What is fetched for the layer that runs backward behind layer `layer` of an instance of run `r`.
Ref StepWriter::fetched_below(std::size_t r, std::size_t layer) const {
  const Run& run = runs_[r];
  const auto of = [&](const Run& other, std::size_t j) {
    return offloads_input(other, j) ? other.fetched[j] : kNoTensor;
  };
  if (layer > 0) return {of(run, layer - 1)};
  return {of(run, run.stride() - 1), -1,
          r > 0 ? of(runs_[r - 1], runs_[r - 1].stride() - 1) : kNoTensor};
}

void StepWriter::fetch_first() {
  if (runs_.empty() || !offloads_input(runs_.back(), runs_.back().stride() - 1)) return;
  b_.open(kNoGroup, false, times_);
  op(decisions::kFetchInput, Phase::recompute)
      .touch(runs_.back().fetched.back(), -1, kNoTensor, models::Access::write);
  b_.work().moves(0, 0);
  b_.close();
}

class HostWriter {
 public:
  HostWriter(StepWriter& step, models::StepProgram& program)
      : s_(step), host_(program, step.b_.rounded(Bytes(1)).value()) {}

  void write() {
    for (const Run& run : s_.runs_)
      groups_.push_back(host_.group("layers", run.first_layer, run.count,
                                    static_cast<std::int64_t>(run.stride())));
    held_.resize(s_.runs_.size());
    if (steps()) declare_steps();
    host_.begin(models::Section::layers);
    for (std::int64_t micro = 0; micro < s_.micros_; ++micro) {
      const bool middle = s_.micros_ == 3 && micro == 1;
      times_ = middle ? value_of(s_.batch_, StepVariable::grad_accum) - 2 : SymInt(1);
      if (s_.strategy_.offload.activations) forward();
      if (s_.strategy_.offload.activations || in_backward()) backward();
    }
    if (!steps() || in_backward()) return;
    host_.begin(models::Section::optimizer);
    times_ = 1;
    step_end(s_.embedding_, embedding_);
    for (std::size_t r = 0; r < s_.runs_.size(); ++r)
      each_layer(r, false, s_.runs_[r].trains(), [&](std::size_t j) { step_layer(r, j); });
    step_end(s_.tail_, tail_);
  }

 private:
  struct Stepped {
    TensorId gradients = kNoTensor, weights = kNoTensor;
  };

  bool steps() const { return s_.strategy_.offload.optimizer; }
  bool in_backward() const { return steps() && s_.strategy_.optimizer_in_backward; }

  Stepped declare(const Unit& unit, models::GroupId group) {
    if (!unit.trains()) return {};
    s_.each_state(unit, [&](const char* name, Bytes bytes) {
      host_.tensor_in(group, name, host_.rounded(bytes), Category::optimizer,
                      Residency::persistent);
    });
    const auto buffer = [&](const char* name, Bytes bytes, Category category) {
      return host_.tensor_in(group, name, host_.rounded(bytes), category);
    };
    return {buffer(unit.names->host_gradients, unit.stepped_gradients, Category::gradients),
            buffer(unit.names->host_parameters, unit.stepped_weights, Category::parameters)};
  }
  void declare_steps() {
    embedding_ = declare(s_.embedding_, kNoGroup);
    for (std::size_t r = 0; r < s_.runs_.size(); ++r) {
      layers_.emplace_back();
      for (std::size_t j = 0; j < s_.runs_[r].stride(); ++j) {
        host_.at_layer(static_cast<std::uint16_t>(j));
        layers_.back().push_back(declare(s_.runs_[r].units[j], groups_[r]));
      }
      host_.at_layer(0);
    }
    tail_ = declare(s_.tail_, kNoGroup);
    host_.tensor_in(kNoGroup, decisions::kHostScalars, host_.rounded(decisions::kScalars),
                    Category::workspace, Residency::persistent);
  }

  // `needed`: the run has anything to say.
  template <class Visit>
  void each_layer(std::size_t r, bool descending, bool needed, Visit visit) {
    const std::size_t stride = s_.runs_[r].stride();
    if (!needed) return;
    host_.open(groups_[r], descending, times_);
    for (std::size_t i = 0; i < stride; ++i) {
      const std::size_t j = descending ? stride - 1 - i : i;
      host_.at_layer(static_cast<std::uint16_t>(j));
      visit(j);
    }
    host_.at_layer(0);
    host_.close();
  }

  bool offloads(std::size_t r) const {
    for (std::size_t j = 0; j < s_.runs_[r].stride(); ++j)
      if (s_.offloads_input(s_.runs_[r], j)) return true;
    return false;
  }

  void forward() {
    for (std::size_t r = 0; r < s_.runs_.size(); ++r) {
      held_[r].assign(s_.runs_[r].stride(), kNoTensor);
      for (std::size_t j = 0; j < held_[r].size(); ++j) {
        host_.at_layer(static_cast<std::uint16_t>(j));
        if (s_.offloads_input(s_.runs_[r], j))
          held_[r][j] =
              host_.tensor_in(groups_[r], decisions::kHostInput,
                              host_.rounded(s_.layer_.bytes(s_.d_.hidden, s_.regime_.compute)),
                              Category::activations);
      }
      host_.at_layer(0);
    }
    for (std::size_t r = 0; r < s_.runs_.size(); ++r)
      each_layer(r, false, offloads(r), [&](std::size_t j) {
        if (s_.offloads_input(s_.runs_[r], j))
          host_.op(decisions::kOffloadInput, Phase::forward).write(held_[r][j]);
      });
  }

  // Inputs come back; where the optimizer steps here, it does so behind each unit's backward.
  void backward() {
    const bool stepping = in_backward(), tied = s_.d_.tied_head;
    if (stepping && !tied) step_end(s_.tail_, tail_);
    for (std::size_t r = s_.runs_.size(); r-- > 0;)
      each_layer(r, true, offloads(r) || (stepping && s_.runs_[r].trains()), [&](std::size_t j) {
        if (s_.offloads_input(s_.runs_[r], j))
          host_.op(decisions::kFetchInput, Phase::recompute).read(held_[r][j]);
        if (stepping) step_layer(r, j);
      });
    if (!stepping) return;
    step_end(s_.embedding_, embedding_);
    if (tied) step_end(s_.tail_, tail_);
  }

  void step(const Unit& unit, const Stepped& stepped) {
    if (unit.trains())
      host_.op(unit.names->step, Phase::optimizer).write(stepped.gradients).write(stepped.weights);
  }
  void step_layer(std::size_t r, std::size_t j) { step(s_.runs_[r].units[j], layers_[r][j]); }
  void step_end(const Unit& unit, const Stepped& stepped) {
    host_.open(kNoGroup);
    step(unit, stepped);
    host_.close();
  }

  StepWriter& s_;
  ProgramBuilder host_;
  SymInt times_ = 1;
  std::vector<models::GroupId> groups_;
  std::vector<std::vector<TensorId>> held_;  // inputs, by run and layer
  Stepped embedding_, tail_;
  std::vector<std::vector<Stepped>> layers_;  // by run
};

void StepWriter::write_host(models::StepProgram& program) {
  HostWriter(*this, program).write();
}

}  // namespace plimsoll::planner::plimsoll_stack
