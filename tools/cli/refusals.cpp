#include "tools/cli/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/optimizers.h"
#include "models/stack_versions.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
[[noreturn]] void unsupported(std::string_view option, std::string_view value,
                              std::string_view why) {
  fail(ErrorKind::unsupported,
       fmt::format("--{}{}{}: {}", option, value.empty() ? "" : " ", value.substr(0, 60), why));
}

// One of several names, of which only the first `modelled` ones are predicted.
struct Choices {
  std::string_view option;
  std::array<std::string_view, 12> names;
  std::size_t modelled;
  std::string_view why;
};

constexpr Choices kChoices[] = {
    {"stack",
     {"pytorch", "plimsoll", "deepspeed", "megatron"},
     3,
     "this stack is not modelled yet (pytorch, deepspeed and plimsoll are)"},
    {"kernels",
     {"eager", "liger", "unsloth", "fused"},
     1,
     "these kernels are not modelled yet (eager is)"},
    {"precision",
     {"fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16", "fp8-mixed"},
     5,
     "fp8 training is not modelled yet"},
    {"mode", {"train", "inference"}, 1, "inference is not modelled yet"},
};

// A count of parallel ranks: 1 is what everybody has.
struct Ranks {
  std::string_view option, what;
};
constexpr Ranks kRanks[] = {{"tp", "tensor parallelism"},
                            {"pp", "pipeline parallelism"},
                            {"cp", "context parallelism"},
                            {"ep", "expert parallelism"},
                            {"virtual-stages", "pipeline parallelism"}};

// Options without any value that this version predicts.
struct Never {
  std::string_view option, why;
};
constexpr Never kNever[] = {
    {"compile", "torch.compile is not modelled yet"},
    {"sequence-parallel", "tensor parallelism is not modelled yet"},
    {"pp-schedule", "pipeline parallelism is not modelled yet"},
    {"prefetch", "prefetch depths other than the stack's own are not modelled yet"},
    {"galore-rank", "GaLore is not modelled yet"},
    {"optimizer-in-backward", "stepping inside the backward pass is not modelled yet"},
    {"quantize", "quantized bases are not modelled yet"},
    {"quant-storage", "quantized bases are not modelled yet"},
    {"kbit-prep", "quantized bases are not modelled yet"},
    {"offload", "offloading is not modelled yet"},
    {"offload-to", "offloading is not modelled yet"},
    {"batch", "belongs to --mode inference, which is not modelled yet"},
    {"context", "belongs to --mode inference, which is not modelled yet"},
    {"kv-dtype", "belongs to --mode inference, which is not modelled yet"},
    {"peft", "this version reads no PEFT files; give --lora-rank and its kin"},
    {"accelerate", "this version reads no Accelerate files; give the options themselves"},
};

void refuse_choice(const Choices& choices, const std::string& value) {
  const auto end = std::ranges::find(choices.names, std::string_view());
  const std::span<const std::string_view> names(choices.names.begin(), end);
  if (name_index(choices.option, value, names) >= choices.modelled)
    unsupported(choices.option, value, choices.why);
}

void refuse_optimizer(const std::string& value) {
  const auto kind = choice<models::Optimizer>("optimizer", value);
  if (models::rule_of(kind).planned()) return;
  unsupported("optimizer", value,
              fmt::format("this optimizer is not modelled yet ({} are)",
                          models::optimizer_names(
                              [](const models::OptimizerRule& r) { return r.planned(); })));
}

void refuse_version(const Options& options, std::string_view option, std::string_view modelled) {
  const std::string* value = options.find(option);
  if (value == nullptr) return;
  // "2.11" means 2.11.0.
  if (*value != modelled && *value + ".0" != modelled)
    unsupported(option, *value, fmt::format("this version models {} only", modelled));
}
}  // namespace

void refuse_unmodelled(const Options& options) {
  for (const Choices& choices : kChoices)
    if (const std::string* value = options.find(choices.option)) refuse_choice(choices, *value);
  if (const std::string* value = options.find("optimizer")) refuse_optimizer(*value);
  for (const auto& [option, what] : kRanks)
    if (const std::string* value = options.find(option))
      if (whole(option, *value, 1, 1 << 30) != 1)
        unsupported(option, *value, fmt::format("{} is not modelled yet", what));
  for (const auto& [option, why] : kNever)
    if (const std::string* value = options.find(option)) unsupported(option, *value, why);
  refuse_version(options, "torch-version", models::kTorchVersion);
}

bool is_never_modelled(std::string_view option) {
  return std::ranges::find(kNever, option, &Never::option) != std::end(kNever) ||
         std::ranges::find(kRanks, option, &Ranks::option) != std::end(kRanks);
}

void refuse_with_params(const Options& options) {
  constexpr std::array<std::string_view, 22> touching{"allocator-conf", "hold-outputs",
                                                      "assume",         "stack",
                                                      "device",         "param-dtype",
                                                      "grad-dtype",     "fsdp-version",
                                                      "fsdp-upcast",    "master-weights",
                                                      "optimizer",      "optimizer-impl",
                                                      "lora-rank",      "lora-alpha",
                                                      "lora-targets",   "lora-dropout",
                                                      "adapter-dtype",  "freeze",
                                                      "train",          "reduce-bucket",
                                                      "bucket-cap-mb",  "gradient-as-bucket-view"};
  for (const std::string_view option : touching) {
    const std::string* value = options.find(option);
    if (value == nullptr) continue;
    if (option == "optimizer" && *value == "adamw") continue;
    fail(ErrorKind::bad_input,
         fmt::format("--params with --{}: a bare count is answered in the ZeRO paper's layout "
                     "(AdamW, no stack); give a MODEL for more",
                     option));
  }
  const std::string* precision = options.find("precision");
  if (precision != nullptr && (*precision == "bf16" || *precision == "fp16"))
    fail(ErrorKind::bad_input,
         fmt::format("--params with --precision {}: the ZeRO paper's layout has fp32 and mixed "
                     "precision only; give a MODEL for more",
                     *precision));
}

}  // namespace plimsoll::tools
