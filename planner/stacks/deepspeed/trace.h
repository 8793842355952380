// The trace of modules that ZeRO-3's coordinator records in one micro-batch: whose parameters are
// used when.
#pragma once

#include <vector>

#include "planner/program/messages.h"
#include "planner/stacks/deepspeed/layout.h"

namespace plimsoll::planner::deepspeed {

// A module's hook before its forward or backward.
struct TraceStep {
  std::size_t begin = 0, end = 0;  // of the trace's uses
  std::int64_t before = 0;  // elements that earlier steps use
  std::size_t last = 0;  // of the steps of what the module contains; its own where that is nothing
  Message::Part part = Message::Part::front;
  std::size_t layer = 0;
  Message::When when = Message::When::forward;
  std::int64_t number = -1;  // of the layer
  bool again = false;  // a forward that a checkpoint runs again
  bool finds_head = false;  // its forward reads the head's weight, whose module is not called
  bool leaves_copies = false;  // its forward: of packed weights, to others (Engine::packed_copy)
};

// Where a rank's part of a parameter is that has a file (nvme.h): there alone, on the way to a
// buffer, or in it.
enum class InFile { no, only, coming, buffered };

// A parameter, and how it is while the trace is run.
struct Held {
  std::int64_t elements = 0;
  Bytes padded;  // all ranks' parts, as they are stored
  bool wide = false;  // in another dtype than the model's
  bool packed = false;
  bool persistent = false, trained = true;
  bool there = false;
  InFile file = InFile::no;
  bool under_way = false;  // gathered ahead, and no module has waited for it
  bool elsewhere = false;  // what was gathered is an other's by now
  std::size_t flat = 0;  // the buffer that it was gathered in with others
  std::int32_t block = -1;  // its own, where requests are recorded
  std::int64_t read_to = -1;  // the step of the last use that the queue has passed
  int active = 0;  // modules that have begun and not ended
};

struct Trace {
  std::vector<Held> parameters;
  std::vector<std::size_t> uses;  // parameters
  std::vector<std::int64_t> step_of;  // of each use
  std::vector<TraceStep> steps;

  // `of`: parameters, counted from `first`. `inside`: modules that this one contains.
  void add(TraceStep at, const std::vector<std::size_t>& of, std::size_t inside = 0,
           std::size_t first = 0) {
    at.begin = uses.size();
    at.before = elements;
    for (const std::size_t p : of) {
      uses.push_back(first + p);
      step_of.push_back(std::ssize(steps));
      elements += parameters[first + p].elements;
    }
    at.end = uses.size();
    at.last = steps.size() + inside;
    steps.push_back(at);
  }

 private:
  std::int64_t elements = 0;
};

// By the layer's parameters: whether what their modules read takes a gradient.
std::vector<bool> inputs_with_grad(const LayerPart& layer, bool input_grad);

// Whether the model's own forward reads the head's weight, in place of the head's: ZeRO-3 makes it
// an external parameter of the model (gather.cpp).
bool reads_head_weight(const models::Strategy& strategy);

// A use for each module's forward, for its backward where its output takes a gradient, and for what
// a checkpoint runs again. Source: deepspeed 0.19.8, runtime/zero/parameter_offload.py.
Trace trace_of(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
               const models::Strategy& strategy);

}  // namespace plimsoll::planner::deepspeed
