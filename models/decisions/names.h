// Names of the tensors and ops of our own runtime. A prediction and a ledger are joined by them.
//
// A tensor keeps the name that it was allocated under, whatever takes over its storage. Names of a
// layer stand behind "layers.<i>."; those of a chunk of the loss behind "loss.chunks.<i>.".
//
// Categories: `activations` is what a layer's forward makes, when it is made again too; `logits`
// the logits alone; `temporaries` gradients of activations, masked copies, the tokens' losses, and
// what backward makes again for itself; gathered parameters are `parameters`.
#pragma once

#include "models/names.h"

namespace plimsoll::models::decisions {

struct LinearNames {
  const char* product;  // op: forward
  const char* out;
  const char* weight_grad;  // op: gradients of weight and bias
  const char* input_grad;  // op, and the tensor where the product has its input for itself
  const char* adapter_dropout;  // op: the masked input, forward and backward
  const char* adapter_input;
  const char* adapter_a;  // op: x · A; backward: A's gradient
  const char* adapter_a_out;
  const char* adapter_b;  // op: y += a · B; backward: B's gradient and a's
  const char* adapter_a_out_grad;
  const char* adapter_input_grad;  // op: the adapter's part of the input's gradient
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

// A layer's modules, as the checkpoints call them, and what stands between them.
struct LayerNames {
  NormNames input_norm, post_norm, q_norm, k_norm;
  LinearNames q, k, v, o, gate, up, down;  // GPT-2: c_attn is q, c_fc is up, c_proj is down
  const char* rotary;  // op, both ways
  const char *attention, *attention_out, *attention_out_grad, *logsumexp;
  const char *scores, *softmax, *attention_dropout;  // ops of the paths that store the matrix
  const char *probabilities, *probabilities_grad, *probabilities_dropped;
  const char *q_grad, *k_grad, *v_grad;
  const char* attention_residual;  // op, and the stream between attention and MLP
  const char* residual_dropout;  // op of the backward: a masked copy of the stream's gradient
  const char* residual_dropout_out;
  const char *activation, *product;
  const char* residual;  // op: the layer's last sum
  const char* out;  // the stream after the layer
};

template <Text A, Text M, Text InputNorm, Text PostNorm, Text Q, Text O, Text Up, Text Down>
inline constexpr LayerNames layer_names{
    norm_names<InputNorm>,
    norm_names<PostNorm>,
    norm_names<Joined<A, ".q_norm">::text>,
    norm_names<Joined<A, ".k_norm">::text>,
    linear_names<Joined<A, Q>::text>,
    linear_names<Joined<A, ".k_proj">::text>,
    linear_names<Joined<A, ".v_proj">::text>,
    linear_names<Joined<A, O>::text>,
    linear_names<Joined<M, ".gate_proj">::text>,
    linear_names<Joined<M, Up>::text>,
    linear_names<Joined<M, Down>::text>,
    Joined<A, ".rotary">::chars,
    Joined<A, ".attention">::chars,
    Joined<A, ".attention.out">::chars,
    Joined<A, ".attention.out.grad">::chars,
    Joined<A, ".attention.logsumexp">::chars,
    Joined<A, ".attention.scores">::chars,
    Joined<A, ".attention.softmax">::chars,
    Joined<A, ".attention.dropout">::chars,
    Joined<A, ".attention.probabilities">::chars,
    Joined<A, ".attention.probabilities.grad">::chars,
    Joined<A, ".attention.probabilities.dropped">::chars,
    Joined<A, ".q.grad">::chars,
    Joined<A, ".k.grad">::chars,
    Joined<A, ".v.grad">::chars,
    Joined<A, ".residual">::chars,
    "residual.dropout",
    "residual.dropout.out",
    Joined<M, ".act">::chars,
    Joined<M, ".product">::chars,
    "residual",
    "out",
};
inline constexpr const LayerNames& kLlamaNames =
    layer_names<"self_attn", "mlp", "input_layernorm", "post_attention_layernorm", ".q_proj",
                ".o_proj", ".up_proj", ".down_proj">;
inline constexpr const LayerNames& kGpt2Names =
    layer_names<"attn", "mlp", "ln_1", "ln_2", ".c_attn", ".c_proj", ".c_fc", ".c_proj">;

}  // namespace plimsoll::models::decisions
