// What kernels see of a mixture's routes (kernels/expert_kernels.h).
#pragma once

#include "kernels/cuda/operands.h"
#include "kernels/expert_kernels.h"

namespace plimsoll::kernels::cuda {

struct Pairs {
  std::int32_t *offsets, *chosen, *pairs, *places;
  std::int64_t experts, active, rows, tokens;
};

inline Pairs pairs_of(const Routes& r, const char* op) {
  expect(r.experts() > 0 && r.active > 0 && r.rows() % r.active == 0 &&
             r.chosen.elements() == r.rows() && r.places.elements() == r.rows(),
         op, "routes are of whole tokens");
  return {int32_of(r.offsets), int32_of(r.chosen), int32_of(r.pairs), int32_of(r.places),
          r.experts(),         r.active,           r.rows(),          r.tokens()};
}

}  // namespace plimsoll::kernels::cuda
