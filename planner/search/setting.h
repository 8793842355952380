// One point of the space: a strategy with its batch, and what it gives up.
#pragma once

#include <cstdint>

#include "models/decisions/mesh.h"
#include "models/run_spec.h"

namespace plimsoll::planner::search {

struct Setting {
  models::Strategy strategy;
  models::Batch batch;
  // What it asks of the user beyond memory and time, summed over its axes (concessions.h). A plan
  // that asks for less goes before every plan that asks for more.
  std::uint8_t concession = 0;
  std::uint8_t parts = 0;  // which choice of adapters and base (Space::parts)

  std::int64_t tokens_per_step() const {
    return checked_multiply(checked_multiply(batch.tokens(), batch.grad_accum),
                            models::decisions::mesh_of(strategy).data().ranks);
  }
};

}  // namespace plimsoll::planner::search
