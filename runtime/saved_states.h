// What a trainer keeps between steps, into a training checkpoint and out of one.
#pragma once

#include <filesystem>

#include "runtime/io/checkpoint.h"
#include "runtime/trainer.h"

namespace plimsoll::runtime {

// Weights, fp32 masters and optimizer states as they are stored, byte for byte; nothing of it is a
// tensor of the ledger, and nothing is gathered. Each rank of one sharding group writes its pieces
// into a file of the unfinished checkpoint. All ranks call it together, between steps; `about` with
// what is not the trainer's (seed, options, data). Errors as UnfinishedCheckpoint.
void save_states(Trainer& trainer, const std::filesystem::path& folder,
                 io::TrainingCheckpoint about);

// On all ranks, instead of Trainer::load. Flat parts begin their tensors, and blocks of moments in
// 8 bits, at the same elements under every sharding: the states of another number of ranks or
// another stage are these, byte for byte. Each file's digest is checked by one of the ranks.
// Error{bad_input}: damaged, or of other parameters, another precision or optimizer; which.
void load_states(Trainer& trainer, const std::filesystem::path& found,
                 const io::TrainingCheckpoint& about);

}  // namespace plimsoll::runtime
