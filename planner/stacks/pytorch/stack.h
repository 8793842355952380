// Stack pytorch behind the planner's door: what is refused, the step, its messages.
#pragma once

#include <memory>
#include <vector>

#include "planner/stack_step.h"
#include "planner/stacks/pytorch/step_writer.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::pytorch {

extern const StackInfo kStack;

// What the strategy does not say, for the question's GPU; adds what was assumed.
// Whether a GEMM of the layers adds its bias, or scales, itself: cuBLASLt's.
bool any_of_lt(const ModelParts& parts);
Rules rules_for(const Question& question, const ModelParts& parts,
                std::vector<reports::Assumption>& assumptions);
// Of those what the training loop and its wrappers decide.
void set_loop(Rules& rules, const models::Decoder& decoder, const models::Strategy& strategy);
// The same without what was assumed, for who asks a million times about one GPU and one model.
Rules quick_rules(const Question& question, const ModelParts& parts);
// What LitGPT's code does that nobody asked for.
void assume_litgpt(const models::Strategy& strategy, std::vector<reports::Assumption>& assumptions);
// Throws Error for what the model's code does not do, or was not modelled with it.
void refuse_of_model(const Question& question);
void refuse(const models::ModelSpec& model, const models::Strategy& strategy,
            const models::Batch& batch);
void refuse_offload(const models::Strategy& strategy, const models::Batch& batch);
// Of --kernels unsloth; of --offload activations.
void assume_unsloth(const models::Strategy& strategy, std::vector<reports::Assumption>& out);
void assume_host_optimizer(const models::Strategy& strategy, std::vector<reports::Assumption>& out);
void assume_offloaded(const models::Strategy& strategy, std::vector<reports::Assumption>& out);
// Of optimizer states in managed memory, of which there are so many bytes.
void assume_managed(Bytes managed, std::vector<reports::Assumption>& out);

// Of the strategy's data parallelism.
std::unique_ptr<StepWriter> step_writer(models::StepProgram& program, const ModelParts& parts,
                                        const models::Strategy& strategy,
                                        const models::Batch& batch, const Rules& rules);

void write_step(const Question& question, const ModelParts& parts, StackStep& step);
void write_messages(const ModelParts& parts, const models::Strategy& strategy, Messages& out);
void write_optimizer(const ModelParts& parts, const models::Strategy& strategy,
                     models::StepProgram& program, Works& works);
void write_compute(const Question& question, const ModelParts& parts, models::StepProgram& program,
                   Works& works);

// From counts alone; DeepSpeed's are taken to be the same.
TableStates table_states(const ParameterCounts& counts, const models::Strategy& strategy);

}  // namespace plimsoll::planner::pytorch
