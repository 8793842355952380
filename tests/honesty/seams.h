// Faults of the runtime that are real: tensors that are kept after their owner has let go, and
// tensors that nobody planned. The linker hands three functions of the runtime to seams.cpp
// (--wrap, tests/honesty/meson.build), so that plimsoll has no code for it.
#pragma once

#include <optional>
#include <string>

#include "models/category.h"
#include "tests/witness/case.h"

namespace plimsoll::honesty {

// Where its owner gives the tensor back, it lives on.
struct Kept {
  std::string tensor;
  int ops = 0;  // that begin before it goes; kForLong: it never does
};
inline constexpr int kForLong = 1 << 30;

// Where the op begins, a tensor is allocated beside its own.
struct Stray {
  std::string op;
  models::Phase phase = models::Phase::forward;
  std::string tensor;
  Bytes bytes;
  int ops = 0;  // that begin before it goes; 0: at once, inside the op
};

struct RuntimeFault {
  std::optional<Kept> kept;
  std::optional<Stray> stray;
  std::optional<int> rank;  // of that one alone; else of all
};

// As witness::measured, with the fault.
witness::Measured run_with(const RuntimeFault& fault, const witness::Case& c);

}  // namespace plimsoll::honesty
