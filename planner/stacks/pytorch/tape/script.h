// What a function's forward or backward does to memory, step by step.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/tape/function.h"

namespace plimsoll::planner::tape {

// What a block of memory is to the caller.
enum class Role : std::uint8_t {
  scratch,  // nothing
  given,  // a value or parameter of the caller's
  kept,  // what autograd keeps of the forward
  result,
  d_result,
  flowing,  // what has arrived of a given value's gradient so far
  d_given,  // its gradient
  d_parameter,
  crossing,  // made by one op of the program and read by a later one (lowering.cpp)
};

struct Block {
  Size size;
  Role role = Role::scratch;
  ValueId value = kNone;
};

struct Step {
  enum class What : std::uint8_t {
    take,
    drop,
    read,
    unpack,  // from here on what autograd kept is read
    node,  // another op begins with what is taken next; `from`: which of the script's parts
    leave,  // another op begins here
    arrive,  // a parameter's gradient is there, and who takes it acts: what is taken next is of
             // another op
    adopt,  // `block` is `from` from here on: a sum made in place
  };
  What what = What::take;
  std::int16_t block = -1, from = -1;
};

// What one kernel reads or writes, in front of step `at`.
struct Moved {
  std::size_t at = 0;
  Size size;
  bool launches = false;  // one kernel's first
};

// A GEMM in front of step `at`.
struct Multiplied {
  std::size_t at = 0;
  DType dtype = DType::fp32;
  std::array<Extent, 4> shape{};  // m, n, k, and how many
};

// What is to be an op of its own.
struct Part {
  ValueId value = kNone;  // what the operation makes
  bool fused = false;
  Extent compiled = kAll;  // as the operation's
  ValueId of = kNone;  // what the operation makes, op of its own or not
};

struct Script {
  std::vector<Block> blocks;
  std::vector<Step> steps;
  std::vector<Moved> moved;
  std::vector<Multiplied> multiplied;
  std::vector<Part> parts;
  void part(const Function& function, const Operation& operation);
};

// `saves`: autograd records. `stops`: a recomputation, which ends with the last tensor that is
// kept (torch/utils/checkpoint.py, set_checkpoint_early_stop).
Script forward(const Function& function, bool saves, bool stops);

struct Surroundings {
  bool flows = false;  // the first given value's gradient has begun to arrive
  bool checkpointed =
      false;  // what is kept comes through hooks, and dies before gradients are summed
  bool keeps_gradients =
      true;  // parameters' gradients stay; else each is added to another and dies
  bool acts_on_gradients =
      false;  // something happens between a gradient's arrival and what follows
  bool result_shared = false;  // the result's gradient has another owner, and lives on
  bool flowing_shared = false;  // and so has what has begun to arrive: it is not added to in place
};
Script backward(const Function& function, const Surroundings& surroundings);

}  // namespace plimsoll::planner::tape
