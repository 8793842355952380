// `plimsoll fit … -- accelerate launch … train.py …`: the command line that starts a training run,
// as the options that say the same.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/options.h"

namespace plimsoll::tools {

// Adds what the line says to `options`: the launcher's arguments as --accelerate or --gpus, the
// script's as --training-args, PYTORCH_CUDA_ALLOC_CONF as --allocator-conf, and notes of what was
// not looked at. Launchers: accelerate launch, torchrun, python -m torch.distributed.run,
// deepspeed, python; Axolotl, LLaMA-Factory, ms-swift and torchtitan by their own commands or as
// scripts of those. Error{bad_input}: another launcher, a launcher's option that it does not have,
// no number of ranks, a contradiction with an option that was given.
void add_launch_line(const std::vector<std::string>& words, Options& options);

}  // namespace plimsoll::tools
