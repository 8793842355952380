#include "planner/program/timeline.h"

#include <algorithm>

namespace plimsoll::planner {

using models::Group;
using models::GroupId;
using models::kNoGroup;
using models::kNoTensor;
using models::Op;
using models::Operand;
using models::Residency;
using models::Segment;
using models::StepProgram;
using models::TensorDecl;
using models::TensorId;

namespace {

const TensorDecl& decl_of(const StepProgram& program, TensorId tensor) {
  return program.tensors[static_cast<std::size_t>(tensor)];
}

std::int64_t instances(const StepProgram& program, const TensorDecl& decl) {
  return decl.group == kNoGroup ? 1 : program.groups[static_cast<std::size_t>(decl.group)].count;
}

// Numbers the instances of all tensors one after another, and notes who touches them when.
class Unroller {
 public:
  Unroller(const StepProgram& program, Repeats repeats) : program_(program), repeats_(repeats) {
    begin_.resize(program.tensors.size());
    for (std::size_t i = 0; i < program.tensors.size(); ++i) number(i);
  }

  Timeline run() {
    if (repeats_ == Repeats::all) find_homes();
    for (std::uint32_t begin = 0; begin < program_.segments.size();) {
      const std::uint32_t end = block_end(begin);
      const std::int64_t times = repeats_ == Repeats::all ? program_.segments[begin].times : 1;
      for (std::int64_t n = 0; n < times; ++n) {
        for (std::size_t i = 0; n > 0 && i < homes_.size(); ++i)
          if (homes_[i] == begin) number(i);
        for (std::uint32_t s = begin; s < end; ++s) walk(s);
      }
      begin = end;
    }
    keep_persistent();
    sum_up();
    return std::move(timeline_);
  }

 private:
  static constexpr std::uint32_t kNowhere = ~0U, kManyPlaces = kNowhere - 1;

  void number(std::size_t tensor) {
    begin_[tensor] = timeline_.lifetimes.size();
    const std::int64_t n = instances(program_, program_.tensors[tensor]);
    for (std::int64_t l = 0; l < n; ++l)
      timeline_.lifetimes.push_back({static_cast<TensorId>(tensor), l, -1, -1});
  }

  // Segments that are repeated together.
  std::uint32_t block_end(std::uint32_t begin) const {
    std::uint32_t end = begin + 1;
    const std::int64_t times = program_.segments[begin].times;
    while (times > 1 && end < program_.segments.size() && program_.segments[end].times == times)
      ++end;
    return end;
  }

  // For each tensor the one block that touches it.
  void find_homes() {
    homes_.assign(program_.tensors.size(), kNowhere);
    const auto note = [&](TensorId tensor, std::uint32_t block) {
      if (tensor == kNoTensor) return;
      std::uint32_t& home = homes_[static_cast<std::size_t>(tensor)];
      home = home == kNowhere || home == block ? block : kManyPlaces;
    };
    for (std::uint32_t begin = 0; begin < program_.segments.size();) {
      const std::uint32_t end = block_end(begin);
      for (std::uint32_t s = begin; s < end; ++s)
        for (std::uint32_t k = program_.segments[s].op_begin; k < program_.segments[s].op_end; ++k)
          for (const Operand& o : program_.operands_of(program_.ops[k])) {
            note(o.tensor, begin);
            note(o.beyond, begin);
          }
      begin = end;
    }
  }

  void walk(std::uint32_t s) {
    const Segment& segment = program_.segments[s];
    const std::int64_t n = program_.repeats(segment);
    for (std::int64_t t = 0; t < n; ++t)
      for (std::uint32_t k = segment.op_begin; k < segment.op_end; ++k) {
        timeline_.steps.push_back({{s, t, k}, {}, {}});
        touch_operands(segment, segment.descending ? n - 1 - t : t, n, program_.ops[k]);
      }
  }

  void touch(TensorId tensor, std::int64_t instance) {
    check(instance >= 0 && instance < instances(program_, decl_of(program_, tensor)),
          ErrorKind::internal, "an operand names an instance that does not exist");
    const std::size_t at =
        begin_[static_cast<std::size_t>(tensor)] + static_cast<std::size_t>(instance);
    Lifetime& life = timeline_.lifetimes[at];
    const auto now = static_cast<std::int64_t>(timeline_.steps.size()) - 1;
    if (life.birth < 0) {
      life.birth = now;
      timeline_.touched.push_back(at);
    }
    life.death = now;
  }

  // From outside the tensor's group: all of it, or its first or last instance.
  void touch_outside(TensorId tensor, int delta) {
    const std::int64_t n = instances(program_, decl_of(program_, tensor));
    if (decl_of(program_, tensor).group == kNoGroup) return touch(tensor, 0);
    if (delta == 0)
      for (std::int64_t l = 0; l < n; ++l) touch(tensor, l);
    else if (n > 0)
      touch(tensor, delta > 0 ? 0 : n - 1);
  }

  void touch_operands(const Segment& segment, std::int64_t layer, std::int64_t n, const Op& op) {
    for (const Operand& o : program_.operands_of(op)) {
      const std::int64_t neighbour = layer + o.delta;
      const bool inside = neighbour >= 0 && neighbour < n;
      if (o.tensor != kNoTensor) {
        const GroupId group = decl_of(program_, o.tensor).group;
        if (group == kNoGroup || group != segment.group)
          touch_outside(o.tensor, o.delta);
        else if (inside)
          touch(o.tensor, neighbour);
      }
      if (!inside && segment.group != kNoGroup && o.beyond != kNoTensor)
        touch_outside(o.beyond, o.delta);
    }
  }

  void keep_persistent() {
    for (Lifetime& life : timeline_.lifetimes)
      if (decl_of(program_, life.tensor).residency == Residency::persistent) {
        life.birth = -1;
        life.death = static_cast<std::int64_t>(timeline_.steps.size());
      }
  }

  void sum_up() {
    std::vector<Bytes> born(timeline_.steps.size() + 1), died(timeline_.steps.size() + 1);
    Bytes live;
    for (const Lifetime& life : timeline_.lifetimes) {
      const Bytes bytes = decl_of(program_, life.tensor).bytes;
      if (decl_of(program_, life.tensor).residency == Residency::persistent) {
        live += bytes;
      } else if (life.birth >= 0) {
        born[static_cast<std::size_t>(life.birth)] += bytes;
        died[static_cast<std::size_t>(life.death)] += bytes;
      }
    }
    for (std::size_t i = 0; i < timeline_.steps.size(); ++i) {
      Moment& moment = timeline_.steps[i];
      live += born[i];
      moment.high_water = live + program_.ops[moment.at.op].scratch;
      live -= died[i];
      moment.after = live;
      if (moment.high_water > timeline_.steps[timeline_.peak_step].high_water)
        timeline_.peak_step = i;
    }
  }

  const StepProgram& program_;
  Repeats repeats_;
  std::vector<std::size_t> begin_;  // of each tensor's instances, in lifetimes
  std::vector<std::uint32_t> homes_;  // first segment of the block, for each tensor
  Timeline timeline_;
};

std::string placed(const StepProgram& program, GroupId group, std::int64_t instance,
                   std::int64_t layer, const char* name) {
  if (group == kNoGroup) return name;
  const Group& g = program.groups[static_cast<std::size_t>(group)];
  return std::string(g.prefix) + "." + std::to_string(g.first + instance * g.stride + layer) + "." +
         name;
}

}  // namespace

Timeline unroll(const StepProgram& program, Repeats repeats) {
  return Unroller(program, repeats).run();
}

std::int64_t ops_in_all(const StepProgram& program) {
  std::int64_t ops = 0;
  for (const Segment& segment : program.segments) {
    const std::int64_t once =
        checked_multiply(program.repeats(segment), segment.op_end - segment.op_begin);
    ops = checked_add(ops, checked_multiply(once, segment.times));
  }
  return ops;
}

reports::ByCategory categories_at(const StepProgram& program, const Timeline& timeline,
                                  std::size_t step) {
  reports::ByCategory parts{};
  const auto now = static_cast<std::int64_t>(step);
  for (const Lifetime& life : timeline.lifetimes) {
    const TensorDecl& decl = decl_of(program, life.tensor);
    const bool touched = life.birth >= 0 || decl.residency == Residency::persistent;
    if (touched && life.birth <= now && life.death >= now)
      parts[static_cast<std::size_t>(decl.category)] += decl.bytes;
  }
  if (step < timeline.steps.size()) {
    const Op& op = program.ops[timeline.steps[step].at.op];
    parts[static_cast<std::size_t>(op.scratch_category)] += op.scratch;
  }
  return parts;
}

std::string name_of_tensor(const StepProgram& program, TensorId tensor, std::int64_t instance) {
  const TensorDecl& decl = decl_of(program, tensor);
  return placed(program, decl.group, instance, decl.layer, decl.name);
}

std::string name_of_op(const StepProgram& program, const Position& at) {
  const Segment& segment = program.segments[at.segment];
  const std::int64_t n = program.repeats(segment);
  const std::int64_t layer = segment.descending ? n - 1 - at.iteration : at.iteration;
  const Op& op = program.ops[at.op];
  return placed(program, segment.group, layer, op.layer, op.name);
}

}  // namespace plimsoll::planner
