// The news that a rank has failed, from any process of MPI's to rank 0.
#pragma once

#include "models/base/error.h"

namespace plimsoll::runtime::comm {

// Another rank than 0: tells rank 0, which ends the job. Returns where it has not done so within
// `seconds`: it may have died, hang, or compute.
void tell_rank_0(const Error& error, double seconds);

// Rank 0 of the world: throws Told if a rank has told of its error. Others: nothing.
void hear_of_failures();

}  // namespace plimsoll::runtime::comm
