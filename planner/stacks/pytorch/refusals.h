// Refusals that have a file of their own.
#pragma once

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "planner/stacks/pytorch/rules.h"

namespace plimsoll::planner {
struct Question;
}

namespace plimsoll::planner::pytorch {

// Error{unsupported}, {bad_input}: what asks for a packed base that is not planned.
void refuse_packed(const models::Strategy& s);
// Error{unsupported}, {bad_input}: what is not modelled of --bitsandbytes-version.
void refuse_bitsandbytes(const models::Strategy& s);
// Error{unsupported}, {bad_input}: what a kernel of attention that is asked for does not take.
void refuse_attention(const Question& question);
// Error{unsupported}, {bad_input}: what the card, with the kernel that SDPA takes on it, does not
// run.
void refuse_on_gpu(const Question& question, Rules::Sdpa sdpa);
// Error{unsupported}: what is not modelled of a classifier of sequences.
void refuse_classifier(const Question& question);
// Error{unsupported}, {bad_input}: what is not modelled of --loss tiled.
void refuse_tiled(const Question& question);
// Error{unsupported}, {bad_input}: what is not modelled of torch.nn.DataParallel.
void refuse_data_parallel(const models::Strategy& s);
// Error{unsupported}: what is not modelled of --transformers-version.
void refuse_release(const models::ModelSpec& model, const models::Strategy& s);
// Error{unsupported}: what is not modelled of rows that hold padding or several samples.
void refuse_rows(const models::ModelSpec& model, const models::Strategy& s);
// Error{unsupported}: what is not modelled of adapters.
void refuse_adapters(const models::ModelSpec& model, const models::Strategy& s);
// Error{unsupported}: what is not modelled of a mixture whose experts are a loop over modules, as
// they are in releases before 5.0.
void refuse_loops(const models::ModelSpec& model, const models::Strategy& s,
                  const models::Batch& batch);
// Error{unsupported}: what is not modelled of --model-code.
void refuse_code(const models::ModelSpec& model, const models::Strategy& s,
                 const models::Batch& batch);
// Error{unsupported}, {bad_input}: what is not modelled of --precision fp8-mixed.
void refuse_float8(const models::ModelSpec& model, const models::Strategy& s,
                   const models::Batch& batch);
// Error{unsupported}, {bad_input}: what is not modelled of --torch-version.
void refuse_torch(const models::ModelSpec& model, const models::Strategy& s);
// Error{unsupported}, {bad_input}: what is not modelled of --kernels unsloth.
void refuse_unsloth(const models::ModelSpec& model, const models::Strategy& s);
// Error{unsupported}: what is not modelled of --offload activations.
void refuse_offloaded_activations(const models::ModelSpec& model, const models::Strategy& s,
                                  const models::Batch& batch);

}  // namespace plimsoll::planner::pytorch
