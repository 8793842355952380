#include "planner/details.h"

#include <algorithm>
#include <string>

namespace plimsoll::planner {

using models::kNoGroup;
using models::Op;
using models::Residency;
using models::StepProgram;
using models::TensorDecl;

namespace {

constexpr std::size_t kMostPoints = 2000;  // contract: the abridged timeline

std::size_t index(models::Category category) {
  return static_cast<std::size_t>(category);
}

const TensorDecl& decl_of(const StepProgram& program, const Lifetime& life) {
  return program.tensors[static_cast<std::size_t>(life.tensor)];
}

// "layers.31" for every op of layer 31; the op's own name outside layers.
std::string block_name(const StepProgram& program, const Position& at) {
  const std::string name = name_of_op(program, at);
  if (program.segments[at.segment].group == kNoGroup) return name;
  return name.substr(0, name.find('.', name.find('.') + 1));
}

// Walks the steps in order and keeps what lives, by category.
class Sweep {
 public:
  Sweep(const StepProgram& program, const Timeline& timeline)
      : program_(program),
        timeline_(timeline),
        born_(timeline.steps.size()),
        died_(timeline.steps.size()) {
    for (std::size_t i = 0; i < timeline.lifetimes.size(); ++i) {
      const Lifetime& life = timeline.lifetimes[i];
      const TensorDecl& tensor = decl_of(program, life);
      if (tensor.residency == Residency::persistent) {
        live_[index(tensor.category)] += tensor.bytes;
      } else if (life.birth >= 0) {
        born_[static_cast<std::size_t>(life.birth)].push_back(life.tensor);
        died_[static_cast<std::size_t>(life.death)].push_back(life.tensor);
      }
    }
  }

  void enter(std::size_t step) { change(born_[step], 1); }
  void leave(std::size_t step) { change(died_[step], -1); }
  const reports::ByCategory& live() const { return live_; }
  reports::ByCategory during(std::size_t step) const {
    reports::ByCategory parts = live_;
    const Op& op = program_.ops[timeline_.steps[step].at.op];
    parts[index(op.scratch_category)] += op.scratch;
    return parts;
  }

 private:
  void change(const std::vector<models::TensorId>& tensors, int sign) {
    for (const models::TensorId id : tensors) {
      const TensorDecl& tensor = program_.tensors[static_cast<std::size_t>(id)];
      if (sign > 0)
        live_[index(tensor.category)] += tensor.bytes;
      else
        live_[index(tensor.category)] -= tensor.bytes;
    }
  }
  const StepProgram& program_;
  const Timeline& timeline_;
  std::vector<std::vector<models::TensorId>> born_, died_;
  reports::ByCategory live_{};
};

// One point for each op, or for the ops of one layer in one phase together.
void add_timeline(const StepProgram& program, const Timeline& timeline, bool full,
                  reports::Plan& plan) {
  Sweep sweep(program, timeline);
  reports::TimelinePoint point;
  for (std::size_t i = 0; i < timeline.steps.size(); ++i) {
    const Moment& moment = timeline.steps[i];
    const Op& op = program.ops[moment.at.op];
    const bool opens = full || point.op.empty();
    if (opens) {
      point = {};
      point.op = full ? name_of_op(program, moment.at) : block_name(program, moment.at);
      point.phase = name_of(op.phase);
    }
    sweep.enter(i);
    if (moment.high_water >= point.high_water) {
      point.high_water = moment.high_water;
      point.by_category = sweep.during(i);
    }
    sweep.leave(i);
    point.allocated = moment.after;
    bool last = full || i + 1 == timeline.steps.size();
    if (!last) {
      const Position& next = timeline.steps[i + 1].at;
      last = next.segment != moment.at.segment || next.iteration != moment.at.iteration ||
             program.ops[next.op].phase != op.phase ||
             program.segments[next.segment].group == kNoGroup;
    }
    if (!last) continue;
    plan.timeline.push_back(point);
    point = {};
  }
  while (!full && plan.timeline.size() > kMostPoints) {
    // Keep the higher one of every two neighbours.
    std::vector<reports::TimelinePoint> half;
    for (std::size_t i = 0; i < plan.timeline.size(); i += 2) {
      const bool second = i + 1 < plan.timeline.size() &&
                          plan.timeline[i + 1].high_water > plan.timeline[i].high_water;
      half.push_back(std::move(plan.timeline[second ? i + 1 : i]));
    }
    plan.timeline = std::move(half);
  }
}

std::string moment_name(const StepProgram& program, const Timeline& timeline, std::int64_t step) {
  if (step < 0) return "before the step";
  if (step >= static_cast<std::int64_t>(timeline.steps.size())) return "never";
  const Position& at = timeline.steps[static_cast<std::size_t>(step)].at;
  return std::string(name_of(program.ops[at.op].phase)) + " " + name_of_op(program, at);
}

reports::TensorLine line_of(const StepProgram& program, const Timeline& timeline,
                            const Lifetime& life, bool full) {
  const TensorDecl& tensor = decl_of(program, life);
  const auto peak = static_cast<std::int64_t>(timeline.peak_step);
  return {.name = name_of_tensor(program, life.tensor, life.instance),
          .category = name_of(tensor.category),
          .bytes = tensor.bytes,
          .repeat = 1,
          .born = moment_name(program, timeline, life.birth),
          .dies = moment_name(program, timeline, life.death),
          .at_peak = life.birth <= peak && life.death >= peak,
          .born_op = full ? std::optional(life.birth) : std::nullopt,
          .dies_op = full ? std::optional(life.death) : std::nullopt};
}

// Equal tensors of a group as one line, named and dated by the first layer.
void add_tensors(const StepProgram& program, const Timeline& timeline, bool full,
                 reports::Plan& plan) {
  for (std::size_t i = 0; i < timeline.lifetimes.size(); ++i) {
    const Lifetime& life = timeline.lifetimes[i];
    const TensorDecl& tensor = decl_of(program, life);
    if (life.birth < 0 && tensor.residency != Residency::persistent) continue;
    if (full || tensor.group == kNoGroup || life.instance == 0) {
      plan.tensors.push_back(line_of(program, timeline, life, full));
      continue;
    }
    reports::TensorLine& line = plan.tensors.back();
    if (line.repeat++ == 1) {  // "layers.0.mlp.act" stands for all layers
      const models::Group& group = program.groups[static_cast<std::size_t>(tensor.group)];
      line.name = std::string(group.prefix) + ".*." + tensor.name;
    }
    const auto peak = static_cast<std::int64_t>(timeline.peak_step);
    line.at_peak = line.at_peak || (life.birth <= peak && life.death >= peak);
  }
}

}  // namespace

reports::Place place_of(const StepProgram& program, const Position& at) {
  return {0, name_of(program.ops[at.op].phase), name_of_op(program, at)};
}

void add_details(const StepProgram& program, const Timeline& timeline, Detail detail,
                 reports::Plan& plan) {
  if (detail == Detail::none) return;
  add_timeline(program, timeline, detail == Detail::full, plan);
  add_tensors(program, timeline, detail == Detail::full, plan);
}

}  // namespace plimsoll::planner
