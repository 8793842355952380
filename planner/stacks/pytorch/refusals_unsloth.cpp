// What stack pytorch does not plan of --kernels unsloth (unsloth and unsloth_zoo 2025.11.6).
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/run_names.h"
#include "planner/stacks/pytorch/kernel_patch.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

namespace {

// Transformers that this release of Unsloth takes, and that was run with it.
constexpr models::Release kUnslothOldest{4, 57, 0}, kUnslothNewest{4, 57, 2};

const std::string kAllLinear = "all-linear";
constexpr std::array<std::string_view, 7> kSeven{"down_proj", "gate_proj", "k_proj", "o_proj",
                                                 "q_proj",    "up_proj",   "v_proj"};

void refuse_unsloth_if(bool it_is, ErrorKind kind, const std::string& what) {
  check(!it_is, kind, [&] { return "--kernels unsloth " + what; });
}

void refuse_unsloth_adapters(const models::Strategy& s) {
  constexpr auto kUnsupported = ErrorKind::unsupported, kBad = ErrorKind::bad_input;
  refuse_unsloth_if(!s.lora, kUnsupported,
                    "without --lora-rank: full fine-tuning runs through another of its classes "
                    "(FastModel), which is not modelled yet");
  const models::Lora& lora = *s.lora;
  refuse_unsloth_if(lora.kind != models::AdapterKind::lora, kBad,
                    "trains LoRA's adapters alone (get_peft_model)");
  refuse_unsloth_if(lora.dropout > 0, kUnsupported,
                    "with --lora-dropout: its functions of adapters are for a dropout of 0; what "
                    "it runs else is not modelled yet");
  refuse_unsloth_if(lora.dtype != DType::fp32, kBad,
                    "--adapter-dtype " + std::string(name_of(lora.dtype)) +
                        ": it casts adapters to fp32 (prepare_model_for_training)");
  refuse_unsloth_if(lora.dora || lora.bias || lora.adapters > 1, kUnsupported,
                    "with --use-dora, --lora-bias or --adapters is not modelled yet");
  refuse_unsloth_if(!lora.modules_to_save.empty(), kUnsupported,
                    "with --modules-to-save (embed_tokens, lm_head) is not modelled yet");
  refuse_unsloth_if(!s.freeze.empty() || !s.train.empty(), kBad,
                    "trains adapters alone: no --freeze or --train");
  std::vector<std::string> targets = lora.targets;
  std::ranges::sort(targets);
  const bool all = std::ranges::equal(targets, kSeven) || targets == std::vector{kAllLinear};
  refuse_unsloth_if(!all, kUnsupported,
                    "is modelled with adapters of all seven projections, as its get_peft_model has "
                    "them (--lora-targets all-linear)");
}

}  // namespace

void refuse_unsloth(const models::ModelSpec& model, const models::Strategy& s) {
  if (s.kernels != models::Kernels::unsloth) return;
  constexpr auto kUnsupported = ErrorKind::unsupported, kBad = ErrorKind::bad_input;
  const auto refuse_if = refuse_unsloth_if;
  kernel_patch(model.model_type, s);  // of its families
  refuse_if(!models::is_transformers(s.code), kBad, "patches Transformers' own models");
  refuse_if(s.transformers < kUnslothOldest || s.transformers > kUnslothNewest, kUnsupported,
            "is modelled as of 2025.11.6, with Transformers 4.57: "
            "--transformers-version 4.57.2 (--trainer unsloth has it)");
  refuse_if(models::decisions::mesh_of(s).ranks() > 1, kUnsupported, "is modelled on one GPU");
  refuse_unsloth_adapters(s);
  refuse_if(!is_mixed(s.precision) || s.precision == models::Precision::fp8_mixed, kBad,
            "trains under autocast: --precision bf16-mixed or fp16-mixed");
  refuse_if(s.param_dtype.value_or(DType::fp32) != low_dtype(s.precision), kBad,
            "loads weights in what it computes in: --param-dtype " +
                std::string(name_of(low_dtype(s.precision))));
  refuse_if(s.quantize && s.quantize->storage->name != "nf4-dq", kUnsupported,
            "--quantize " + std::string(s.quantize ? s.quantize->storage->name : "") +
                ": its load_in_4bit is nf4-dq");
  refuse_if(s.quantize && s.quantize->held_in != DType::uint8, kBad,
            "holds packed values in uint8: no --quant-storage");
  refuse_if(s.quantize && s.quantize->kbit_prep.value_or(false), kBad,
            "has a prepare_model_for_kbit_training of its own: no --kbit-prep yes");
  refuse_if(s.loss != models::Loss::fused, kUnsupported,
            "is modelled with its fused loss: --loss fused (--loss full is what "
            "UNSLOTH_RETURN_LOGITS=1 asks for)");
  refuse_if(s.recompute.kind != models::RecomputeKind::full, kBad,
            "recomputes every layer, whatever use_gradient_checkpointing says: its for_training "
            "switches it on (--recompute full)");
  refuse_if(!models::decisions::reentrant_checkpoints(s), kBad,
            "has checkpoints that are reentrant: no --use-reentrant no");
  refuse_if(s.rows != models::Rows::full, kUnsupported,
            "with rows that hold padding or several samples is not modelled yet");
  refuse_if(s.compile != models::Compile::no, kBad, "compiles its loss by itself: no --compile");
  refuse_if(s.offload.params || s.offload.optimizer || !s.offload.pinned, kBad,
            "keeps checkpoints on the host, in pinned memory: --offload activations alone");
  refuse_if(s.optimizer_in_backward, kUnsupported,
            "with --optimizer-in-backward is not modelled yet");
  // models/llama.py hands groups on, models/mistral.py and qwen3.py repeat them for SDPA alone.
  const bool groups = model.model_type == "llama" || model.model_type == "qwen2";
  refuse_if(s.attention != models::Attention::flash_2 &&
                s.attention != models::Attention::xformers &&
                !(s.attention == models::Attention::flash && groups),
            kUnsupported,
            "with " + model.model_type + " is modelled with --attention flash-2, xformers" +
                (groups ? " or flash" : ""));
  const models::Decoder& d = *model.decoder;
  refuse_if(d.mlp_bias || d.out_bias, kUnsupported,
            "with biases of o_proj or the MLP is not modelled yet");
}

void assume_unsloth(const models::Strategy& s, std::vector<reports::Assumption>& out) {
  if (s.kernels != models::Kernels::unsloth) return;
  out.push_back({"Unsloth", "\"2025.11.6, unsloth_zoo 2025.11.6\"", "derived",
                 "unsloth/kernels/fast_lora.py, models/llama.py; unsloth_zoo/fused_losses; "
                 "tests/golden/dry_runs_unsloth.json"});
  out.push_back({"chunks of its fused loss", "\"by what the card has free at the first loss\"",
                 "assumed",
                 "unsloth_zoo, get_chunk_size: logits in fp32 within half of what cudaMemGetInfo "
                 "says is free; here the card less the context, the parameters and cuBLAS's "
                 "workspaces (UNSLOTH_CE_LOSS_TARGET_GB and _N_CHUNKS not set)"});
}

}  // namespace plimsoll::planner::pytorch
