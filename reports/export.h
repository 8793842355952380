// A plan as other programs' configuration: what each can express, and in words what it cannot.
#pragma once

#include <string>
#include <vector>

#include "models/workload_reader.h"

namespace plimsoll::reports {

struct Exported {
  std::string text;  // the file to paste; YAML and Python hold `notes` as comments at the top
  std::vector<std::string> notes;  // what the target cannot say, one sentence each
};

// A ds_config.json (deepspeed 0.19.8, runtime/config.py).
Exported export_deepspeed(const models::Workload& workload);

// A file for `accelerate launch --config_file` (accelerate 1.15, commands/config/config_args.py).
Exported export_accelerate(const models::Workload& workload);

// Python: the model as it is to be loaded, LoraConfig and TrainingArguments (transformers 5.17,
// peft 0.21).
Exported export_transformers(const models::Workload& workload);

// A script for sbatch that starts the ranks with torchrun, one task a node.
Exported export_slurm(const models::Workload& workload);

}  // namespace plimsoll::reports
