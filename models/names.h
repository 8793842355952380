// Names of tensors and ops, as static text: "self_attn.q_proj" + ".weight.grad".
//
// They are fixed here because a prediction and a measurement are joined by them. Inside a layer a
// name is relative to "layers.<i>."; the modules are called as the checkpoint calls them.
#pragma once

#include <algorithm>
#include <cstddef>

namespace plimsoll::models {

// Text as a template argument.
template <std::size_t N>
struct Text {
  char chars[N]{};
  constexpr Text(const char (&text)[N]) { std::copy_n(text, N, chars); }
};

template <Text A, Text B>
struct Joined {
  static constexpr std::size_t a = sizeof(A.chars) - 1, b = sizeof(B.chars);
  static constexpr Text<a + b> text = [] {
    char joined[a + b]{};
    std::copy_n(A.chars, a, joined);
    std::copy_n(B.chars, b, joined + a);
    return Text<a + b>(joined);
  }();
  static constexpr const char* chars = text.chars;
};

// Everything that a module with a weight may allocate.
struct ModuleNames {
  const char* module;
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
  const char* input_fp32;  // the input upcast
  const char* normalized;
  const char* statistics;  // mean and 1/std, or 1/rms
  // LoRA.
  const char* lora_input;  // the input in the adapter's dtype
  const char* lora_a_out;
  const char* lora_casts;  // 16-bit copies of A and B
  const char* lora_grad;  // .grad of A and B
  const char* lora_mask;  // dropout
};

template <Text M>
inline constexpr ModuleNames module_names{
    Joined<M, "">::chars,
    Joined<M, ".out">::chars,
    Joined<M, ".weight.cast">::chars,
    Joined<M, ".input.cast">::chars,
    Joined<M, ".weight.grad">::chars,
    Joined<M, ".weight.grad.low">::chars,
    Joined<M, ".weight.grad.new">::chars,
    Joined<M, ".weight.grad.sum">::chars,
    Joined<M, ".input.grad">::chars,
    Joined<M, ".input.grad.low">::chars,
    Joined<M, ".out.grad.contiguous">::chars,
    Joined<M, ".input.fp32">::chars,
    Joined<M, ".normalized">::chars,
    Joined<M, ".statistics">::chars,
    Joined<M, ".lora.input">::chars,
    Joined<M, ".lora_A.out">::chars,
    Joined<M, ".lora.weights.cast">::chars,
    Joined<M, ".lora.weights.grad">::chars,
    Joined<M, ".lora.dropout.mask">::chars,
};

}  // namespace plimsoll::models
