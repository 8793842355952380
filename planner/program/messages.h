// What the ranks send each other in one step: every collective with its whole array to the byte,
// where in a micro-batch it is sent, and what the GPU computes meanwhile.
//
// The stack that writes the program writes them (StackInfo::write_messages), from the same units
// and buckets. They follow from strategy and parameters, and are the same for every batch,
// but for activations, whose arrays are those of a token until of_batch(). Nothing
// else says what is sent: the collectives of a plan are their sum, and a step's time is made of
// them (time/message_times.h).
#pragma once

#include <cstdint>
#include <vector>

#include "models/decisions/mesh.h"
#include "reports/record.h"

namespace plimsoll::planner {

struct Message {
  enum class Kind : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, reduce };
  // Whose parameters or gradients these are: of what the model uses before its layers, a layer, or
  // what comes behind the layers.
  enum class Part : std::uint8_t { front, layer, tail };
  enum class When : std::uint8_t {
    forward,  // before the part's forward
    backward,  // before its backward, or before what is run again for that
    reduction,  // when its backward has made gradients
    step,  // once, when the optimizer has stepped
  };
  enum class Micros : std::uint8_t { each, first, last };  // which micro-batches
  // The work on the GPU that runs meanwhile.
  enum class Beside : std::uint8_t {
    nothing,
    neighbour,  // the same pass over the layer that comes before
    backward,  // whatever of the backward has no other message beside it
  };

  Kind kind = Kind::all_gather;
  Bytes array;  // of all ranks of the group together
  bool of_token = false;  // of a micro-batch's tokens, each
  std::int64_t count = 1;  // equal ones, over all layers of the part
  models::decisions::AxisGroup group;
  Part part = Part::front;
  // Of every run's pattern, in the order of ModelParts::runs; or of any: buckets cross layers.
  static constexpr std::size_t kAnyLayer = static_cast<std::size_t>(-1);
  std::size_t layer = 0;
  When when = When::forward;
  Micros micros = Micros::each;
  Beside beside = Beside::nothing;
  double copied = 0;  // bytes that kernels read and write to fill one, or to take it apart
};
using Messages = std::vector<Message>;

// Unless there is nothing to send or to copy. As the last one where it is equal.
void add(Messages& messages, const Message& message);

// With the arrays that a micro-batch of so many tokens has.
Messages of_batch(Messages messages, std::int64_t tokens);

// Of a whole step; equal ones in one line, in the order in which the first of them are sent.
std::vector<reports::Collective> collectives_of(const Messages& messages, std::int64_t grad_accum);
// What one GPU sends of them, by ring algorithms.
Bytes bytes_sent(const std::vector<reports::Collective>& collectives);

}  // namespace plimsoll::planner
