// Where gradients arrive in a backward under DeepSpeed, and the buckets that they are reduced in.
#pragma once

#include <cstdint>
#include <vector>

#include "models/step_program.h"
#include "planner/program/messages.h"
#include "planner/stacks/pytorch/unit.h"

namespace plimsoll::planner::deepspeed {

using models::kNoTensor;
using models::TensorId;

// A gradient's arrival (grad_handling_hook). All are planned before the backward (hooks.cpp).
struct Hook {
  // The parameter's place in its repeat, in elements and in parameters.
  std::int64_t elements = 0, offset = 0, index = 0;
  // The iteration of the first reduction here that copies; whether the partition's gradients are
  // there.
  std::int64_t first = -1;
  bool owned = false;
  bool last = false;  // reduced with what is left when the backward has ended, in every repeat
  // When it is written; elements of the copy.
  TensorId copy = kNoTensor, gradient = kNoTensor;
  SymInt content = 0;
};
// Hooks of one pass over a block of the layout.
struct HookRun {
  std::vector<Hook> hooks;
  models::GroupId group = models::kNoGroup;
  Message::Part part = Message::Part::front;
  std::int64_t repeats = 1, begin = 0, elements = 0;  // in the layout, of one repeat
  std::int64_t first = 0, parameters = 0;  // the same counted in parameters
  // The last gradient, where the next repeat's first hook finds it waiting: that of its unit's
  // gradients of so many elements which comes behind `alike` others.
  const pytorch::Unit* unit = nullptr;
  TensorId waiting = kNoTensor;
  std::int64_t alike = 0, begun = 0;
};

// The bucket's copy at a hook, in one of its run's repeats.
struct Placement {
  std::size_t run = 0, hook = 0;
  std::int64_t iteration = 0, content = 0;
};

// What is reduced at once: elements, and with each parameter padded; before a gradient of `part`.
struct Bucket {
  Message::Part part = Message::Part::front;
  std::int64_t content = 0, padded = 0;
};

}  // namespace plimsoll::planner::deepspeed
