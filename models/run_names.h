// The names of the choices in run_spec.h, on the command line and in JSON documents.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "models/optimizers.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// In the order of the enumerators.
template <class Choice>
inline constexpr std::array<std::string_view, 0> kNamesOf{};

template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Stack>{"plimsoll", "pytorch", "deepspeed",
                                                                 "megatron"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Device>{"cuda", "cpu"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Exchange>{"threads", "mpi", "nccl"};
template <>
inline constexpr std::array<std::string_view, 6> kNamesOf<Precision>{
    "fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16", "fp8-mixed"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Fp8Recipe>{"tensorwise", "rowwise",
                                                                     "rowwise_with_gw_hp"};
template <>
inline constexpr std::array<std::string_view, 10> kNamesOf<Attention>{
    "flash",   "eager", "math",      "flash-1", "flash-2",
    "flash-3", "cudnn", "efficient", "flex",    "xformers"};
template <>
inline constexpr std::array<std::string_view, 8> kNamesOf<ModelCode>{
    "transformers",    "torchtitan@2024-03", "torchtitan@2024-12", "torchtitan@0.2.2",
    "torchtune@0.6.1", "litgpt@0.3.0",       "litgpt@0.4.13",      "litgpt@0.5.13"};
template <>
inline constexpr std::array<std::string_view, 6> kNamesOf<AdapterKind>{
    "lora", "ia3", "vera", "prompt-tuning", "p-tuning", "prefix-tuning"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Loss>{"full", "chunked", "fused",
                                                                "tiled"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<DataParallelKind>{"ddp", "dp"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Rows>{"full", "padded", "flattened"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<Kernels>{"eager", "liger", "fused",
                                                                   "unsloth"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Compile>{"no", "block", "model"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<OptimizerImpl>{"foreach", "fused",
                                                                         "for-loop"};
template <>
inline constexpr std::array<std::string_view, kOptimizers.size()> kNamesOf<Optimizer> = [] {
  std::array<std::string_view, kOptimizers.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kOptimizers[i].name;
  return names;
}();
template <>
inline constexpr std::array<std::string_view, 9> kNamesOf<RecomputeKind>{
    "none", "selective", "full", "sqrt", "every", "block", "nth", "recursive", "ops"};

template <class Choice>
concept Named = kNamesOf<Choice>
.size() > 0;

template <Named Choice>
constexpr std::string_view name_of(Choice choice) {
  return kNamesOf<Choice>[static_cast<std::size_t>(choice)];
}

template <Named Choice>
constexpr std::optional<Choice> choice_from(std::string_view name) {
  for (std::size_t i = 0; i < kNamesOf<Choice>.size(); ++i)
    if (kNamesOf<Choice>[i] == name) return static_cast<Choice>(i);
  return std::nullopt;
}

// The option that asks for them.
constexpr std::string_view option_of(Rows rows) {
  return rows == Rows::padded ? "--padding-mask yes" : "--padding free";
}

}  // namespace plimsoll::models
