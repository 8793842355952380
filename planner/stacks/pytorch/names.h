// Names of the tensors and ops of eager PyTorch's step: "self_attn.q_proj" + ".weight.grad".
//
// A prediction and a measurement are joined by them. Inside a layer a name is relative to
// "layers.<i>."; modules are called as the checkpoint calls them. Each is made once and kept, so
// that equal names have one address.
#pragma once

#include <cstdint>

namespace plimsoll::planner::pytorch {

// lora_a, lora_b: or the vectors that stand in their place.
enum class Leaf : std::uint8_t {
  weight,
  bias,
  down,  // of experts that are stacked
  down_bias,
  lora_a,
  lora_b,
  lora_b_bias,
  magnitude,
  down_a,
  down_b,
};
inline constexpr int kLeaves = 10;

// Everything that a module with a weight may allocate.
struct ModuleNames {
  const char* module;
  Leaf leaf;
  const char* out;  // its result
  const char* weight_cast;  // 16-bit copy of an fp32 weight under autocast
  const char* input_cast;  // 16-bit copy of an fp32 input under autocast
  const char* weight_grad;  // .grad
  const char* weight_grad_low;  // 16-bit gradient before it is cast to the weight's dtype
  const char* weight_grad_new;  // this micro-batch's gradient before it is added to .grad
  const char* weight_grad_sum;  // accumulated in the dtype of the reduction
  const char* input_grad;
  const char* input_grad_low;  // 16-bit gradient before it is cast to the input's dtype
  const char* grad_layout;  // contiguous copy of the output's gradient
  // Norms.
  const char* input_fp32;  // the input upcast; LoRA: in the adapter's dtype
  const char* lora_mask;  // dropout
  const char* statistics;  // norms: of each row
  const char* input_layout;  // contiguous copy of the input
};

// A linear's, with those of its bias and its LoRA adapter.
struct LinearNames {
  ModuleNames base;
  ModuleNames bias;  // its `weight…` fields name the bias
  ModuleNames a, b, b_bias;  // LoRA
  const char* dropped;  // LoRA's input after dropout
  const char* dropped_grad;
  const char* scaled;  // B's result times alpha / rank
  const char* sum;  // base + adapter
  const char* sum_grad;
  const char* base_grad;  // the sum's gradient as the base's result had its dtype
  const char* scaled_grad;
  const char* a_input_grad;  // in the input's dtype
  // A packed base: its result and that one's gradient in the dtype it computes in, the result's
  // copy; the scales of a weight whose scales are packed, without and with their offset, and the
  // weight, as it was loaded.
  const char *low, *low_grad, *cloned, *scaled_cast, *scales, *shifted_scales, *unpacked;
  // LLM.int8's input in fp16, its magnitudes, which of them stand out, its 8-bit values with a
  // scale for each row; the GEMM in 32 bits and in fp16.
  const char *half, *magnitude, *outliers, *quantized, *row_scales, *accumulated, *half_out;
  // An adapter of joined modules (joined_adapters.cpp): what B makes of a part, all parts, what of
  // the whole result these are, and zeros where they are not.
  const char *part, *part_grad, *parts, *parts_grad, *places, *padded;
};

// One of attention's three operands: as projected, in the kernel's dtype, repeated over the query
// heads of its group, laid out anew; and its gradient.
struct OperandNames {
  const char* name;
  const char *cast, *repeated, *laid_out;
  const char *grad, *grad_wide, *grad_cast, *grad_rotated, *grad_laid_out;
  const char *wide, *turned, *rotated, *grad_turned;  // rotated as complex numbers
  const char *unpadded, *grad_padded;  // the package's: without padding
  const char* joined;  // with the rest of each head
  const char *prefix, *cached, *cached_grad;  // learned ones, and these with a sequence's own
};

// What attention makes between its projections, under the module that does it.
struct AttentionNames {
  const char* module;
  OperandNames q, k, v;
  const char *mask, *product, *out, *logsumexp, *seed, *offset;
  ModuleNames sinks;
  // The flash_attn package: where tokens that are no padding stand, where samples begin, the
  // longest of these.
  const char *indices, *starts, *longest, *unpadded, *grad_unpadded;
  const char *natural_lse, *low_lse, *grad_lse, *row_sums, *grad_laid_out;  // attention_flex.cpp
};

// A mixture's stacked parameters: gate_up_proj, down_proj.
struct ExpertsNames {
  ModuleNames gate_up, down, gate_up_bias, down_bias;
  ModuleNames gate_up_a, gate_up_b, down_a, down_b;  // LoRA
};

// What a loop over experts makes once: the zeros that their results are added to, a mask of each
// visit by expert, which experts are visited, and their numbers.
struct LoopNames {
  const char *sum, *mask, *met, *numbers;
};

// Of ranks that share each sequence: what comes from them or goes to them, one rank's part behind
// the other, and how it is read.
struct SequenceNames {
  const char *by_rank, *out, *grad_by_rank, *grad;
};

// What elementwise nodes of a layer make.
struct NodeNames {
  const char* name;
  const char* grad;
  const char* out_grad;  // of a branch, as it parts from the residual stream
  const char* residual;  // the stream after a branch
  const char* mask;  // dropout
};

// `name`: interned (models/block.h).
const ModuleNames& module_names(const char* name);
const LinearNames& linear_names(const char* name);
const AttentionNames& attention_names(const char* name);
const NodeNames& node_names(const char* name);
const OperandNames& operand_names(const char* name);
const ExpertsNames& experts_names(const char* name);
const LoopNames& loop_names(const char* name);
const SequenceNames& sequence_names(const char* name);

// Modules outside of layers.
struct EndNames {
  const ModuleNames& tokens;  // embeddings
  const ModuleNames& positions;
  const ModuleNames& token_types;
  const ModuleNames& embedding_norm;
  const ModuleNames& norm;  // after the last layer
  const LinearNames& project_in;
  const LinearNames& head_transform;
  const LinearNames& head;
  // What tensor parallelism gathers for the head and scatters behind the embedding.
  const SequenceNames& head_input;
  const SequenceNames& embedded;
};
const EndNames& end_names();

}  // namespace plimsoll::planner::pytorch
