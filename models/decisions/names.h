// Names of the tensors and ops of our own runtime. A prediction and a ledger are joined by them.
//
// A tensor keeps the name that it was allocated under, whatever takes over its storage. Names of a
// layer stand behind "layers.<i>."; those of a chunk of the loss behind "loss.chunks.<i>.".
//
// Categories: `activations` is what a layer's forward makes, when it is made again too; `logits`
// the logits alone; `temporaries` gradients of activations, masked copies, the tokens' losses, and
// what backward makes again for itself; gathered parameters are `parameters`.
#pragma once

#include <string_view>

#include "models/names.h"

namespace plimsoll::models::decisions {

// A matrix cast to 8 bits (models/decisions/float8.h).
struct Float8Names {
  const char* values = "";  // op, where the cast is one of its own
  const char* transposed = "";
  const char* scale = "";
};

struct LinearNames {
  const char* gemm;  // op: forward
  const char* out;
  const char* weight_grad;  // op: gradients of weight and bias
  const char* input_grad;  // op, and the tensor where the GEMM has its input for itself
  const char* adapter_dropout;  // op: the masked input, forward and backward
  const char* adapter_input;
  const char* adapter_a;  // op: x · A; backward: A's gradient
  const char* adapter_a_out;
  const char* adapter_b;  // op: y = a · B, before the GEMM; backward: B's gradient and a's
  const char* adapter_a_out_grad;
  const char* adapter_input_grad;  // op: the adapter's part of the input's gradient
  const char* dequantized;  // of a packed weight, while an op reads it
  Float8Names input8{}, weight8{}, out_grad8{};  // of a layer's modules
};
template <Text M>
inline constexpr LinearNames linear_names{
    Joined<M, "">::chars,
    Joined<M, ".out">::chars,
    Joined<M, ".weight.grad">::chars,
    Joined<M, ".input.grad">::chars,
    Joined<M, ".lora_dropout">::chars,
    Joined<M, ".lora_dropout.out">::chars,
    Joined<M, ".lora_A">::chars,
    Joined<M, ".lora_A.out">::chars,
    Joined<M, ".lora_B">::chars,
    Joined<M, ".lora_A.out.grad">::chars,
    Joined<M, ".lora_A.input.grad">::chars,
    Joined<M, ".weight.dequantized">::chars,
};

struct NormNames {
  const char* norm;  // op, both ways
  const char* out;
  const char* statistics;
  const char* out_grad;
};
template <Text M>
inline constexpr NormNames norm_names{
    Joined<M, "">::chars,
    Joined<M, ".out">::chars,
    Joined<M, ".statistics">::chars,
    Joined<M, ".out.grad">::chars,
};

// Of the modules of a layer, whose names are its block's (models/decisions/layer_ops.h). Interned.
LinearNames linear_names_of(std::string_view module);
NormNames norm_names_of(std::string_view module);

// Attention's, behind the name of its module ("self_attn").
struct AttentionNames {
  const char *attention, *out, *out_grad, *logsumexp;
  const char *scores, *softmax, *dropout;  // ops of the paths that store the matrix
  const char *probabilities, *probabilities_grad, *probabilities_dropped;
  const char *q_grad, *k_grad, *v_grad;
};
AttentionNames attention_names_of(std::string_view module);

// A mixture's, behind the name of its module ("mlp.experts").
struct ExpertsNames {
  const char *route, *act, *sum;  // ops, both ways
  const char *routes, *scores, *scores_grad;
  const char* product;  // what the gate makes
  LinearNames gate_up, down;  // of the rows
};
ExpertsNames experts_names_of(std::string_view module);

// Of the backward of a sum with dropout: a masked copy of the stream's gradient.
inline constexpr const char* kResidualDropout = "residual.dropout";  // op
inline constexpr const char* kResidualDropoutOut = "residual.dropout.out";
// Where the branch is scaled, a copy that is scaled too.
inline constexpr const char* kResidualScale = "residual.scale";  // op
inline constexpr const char* kResidualScaleOut = "residual.scale.out";
// A layer's last sum, and the stream after the layer.
inline constexpr const char* kLayerSum = "residual";  // op
inline constexpr const char* kLayerOut = "out";

}  // namespace plimsoll::models::decisions
