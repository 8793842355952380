// What the exports have in common.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/workload_reader.h"

namespace plimsoll::reports {

using Notes = std::vector<std::string>;

// "bf16", "fp16" or "fp32": in what the model computes.
std::string_view compute_dtype(models::Precision precision);
// The dtype that the plan loads the weights in.
DType loaded_dtype(const models::Strategy& strategy);

// "llama-3.1-8b, stack pytorch, 8 GPUs, …", for the head of a file.
std::string title(const models::Workload& workload);
// A Hugging Face id for the model where one is known, else the name or path as the user gave it.
std::string hub_id(const models::Workload& workload);
// Each line of `notes`, wrapped, behind `mark`.
std::string as_comments(const Notes& notes, std::string_view mark);

// `PYTORCH_CUDA_ALLOC_CONF=…` of the plan, where it is not torch's default: for a shell, and for
// files that hold no environment. All releases of torch read that name, PYTORCH_ALLOC_CONF
// from 2.9.
std::string allocator_setting(const models::Strategy& strategy);
void add_allocator_note(const models::Strategy& strategy, Notes& notes);
// "model.gradient_checkpointing_enable()", with arguments where checkpoints are reentrant.
std::string checkpointing_call(const models::Strategy& strategy);
// Parts of a plan that are the data's or the installation's: sequence length, kernels.
void add_model_notes(const models::Workload& workload, Notes& notes);
// FSDP1's name for the plan's sharding, and what its keys leave open.
std::string_view fsdp1_sharding(const models::Strategy& strategy);
// Whether FSDP's own wrapper checkpoints the layers: it is never reentrant.
bool fsdp_checkpoints(const models::Strategy& strategy);
void add_fsdp1_notes(const models::Strategy& strategy, Notes& notes);
// Throws Error{bad_input} for plans that are not data parallel training of a named model.
void check_exportable(const models::Workload& workload, std::string_view target);

// The members of a ds_config.json, for the file and for TrainingArguments(deepspeed=…).
// `trainer`: batch sizes, precision and optimizer are the Trainer's ("auto").
std::string deepspeed_json(const models::Workload& workload, bool trainer, Notes& notes);

}  // namespace plimsoll::reports
