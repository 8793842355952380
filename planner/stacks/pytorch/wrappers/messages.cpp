// Whom a unit's message goes to, and what it stands beside.
#include "models/decisions/mesh.h"
#include "planner/stacks/pytorch/wrappers/torch_wrapper.h"

namespace plimsoll::planner::pytorch {

using models::decisions::Axis;
using Kind = Message::Kind;
using Part = Message::Part;
using When = Message::When;
using Beside = Message::Beside;

// Gradients are reduced within a group, and what comes of that across its copies; without shards
// among all that see other rows.
Message TorchWrapper::message(const Unit& unit, Message::Kind kind, Message::When when,
                              Bytes array) const {
  Message m{.kind = kind, .array = array, .count = unit.copies};
  const models::decisions::Mesh mesh = models::decisions::mesh_of(strategy_);
  m.group = strategy_.data.zero < 2    ? mesh.data()
            : kind == Kind::all_reduce ? mesh[Axis::replicate]
                                       : mesh[Axis::shard];
  m.part = unit.part;
  m.layer = unit.layer;
  m.when = when;
  m.micros = when == When::reduction ? Message::Micros::last : Message::Micros::each;
  // The front's comes first in the forward and last in the backward.
  const bool back = when != When::forward;
  if (unit.part == Part::layer || (unit.part == Part::tail && !back))
    m.beside = Beside::neighbour;
  else if (unit.part == Part::tail || when == When::backward)
    m.beside = Beside::backward;
  return m;
}

}  // namespace plimsoll::planner::pytorch
