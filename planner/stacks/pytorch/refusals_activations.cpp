// What stack pytorch does not plan of --offload activations (offloading.h).
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/lora.h"
#include "models/model_spec.h"
#include "models/run_names.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/regime.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

namespace {
// Without checkpoints hooks take what each node of a layer saves: of these families, traced.
constexpr std::array<std::string_view, 7> kTraced{"llama", "mistral", "qwen2", "qwen3",
                                                  "gemma", "granite", "olmo2"};

void refuse_saved_by_node(const models::ModelSpec& model, const models::Strategy& s,
                          const models::Batch& batch) {
  if (!hooks_take_all(s)) return;
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return std::string("--offload activations without --recompute full ") + what; });
  };
  const models::Decoder& d = *model.decoder;
  refuse_if(std::ranges::find(kTraced, model.model_type) == kTraced.end(),
            "is modelled of llama, mistral, qwen2, qwen3, gemma, granite and olmo2");
  refuse_if(s.data.zero >= 2, "is not modelled under FSDP");
  const bool slides = d.window > 0 && d.full_layers < d.layers && batch.seq_len >= d.window;
  const bool fused =
      s.attention == models::Attention::flash || s.attention == models::Attention::cudnn;
  refuse_if(
      !fused || slides || regime_of(s, false, false).compute == DType::fp32,
      "is modelled with PyTorch's own flash attention or cuDNN's: 16 bits, no sliding window");
  const bool more = s.lora && (models::further_option(*s.lora) != nullptr || s.lora->dropout > 0);
  refuse_if(more, "is modelled with adapters that are LoRA's A and B alone, without dropout");
}
}  // namespace

void refuse_offloaded_activations(const models::ModelSpec& model, const models::Strategy& s,
                                  const models::Batch& batch) {
  if (!s.offload.activations || s.kernels == models::Kernels::unsloth) return;
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return std::string("--offload activations ") + what; });
  };
  refuse_if(!models::is_transformers(s.code),
            "is not modelled with --model-code, whose own hooks copy what TRL's keep");
  refuse_if(s.offload.params, "together with params is not modelled yet");
  refuse_if(!s.offload.pinned, "with --offload-pin no: TRL's trainers pin what they copy");
  refuse_if(!hooks_take_all(s) && (s.recompute.kind != models::RecomputeKind::full ||
                                   models::decisions::reentrant_checkpoints(s)),
            "is modelled with --recompute none, or full of checkpoints that are not reentrant");
  refuse_if(s.transformers < models::Release{5, 0, 0},
            "with Transformers before 5.0 is not modelled yet");
  refuse_if(s.kernels != models::Kernels::eager,
            "with --kernels other than eager is not modelled yet");
  refuse_if(s.loss != models::Loss::full, "with --loss other than full is not modelled yet");
  refuse_if(s.rows != models::Rows::full,
            "with rows that hold padding or several samples is not modelled yet");
  refuse_if(is_fsdp1(s), "with --fsdp-version 1 is not modelled yet");
  refuse_if(s.optimizer_in_backward, "with --optimizer-in-backward is not modelled yet");
  refuse_if(!s.freeze.empty() || !s.train.empty(), "with --freeze or --train is not modelled yet");
  refuse_if(s.quantize && !models::packs_with_bitsandbytes(s),
            "with a base that bitsandbytes did not pack is not modelled yet");
  refuse_if(models::runs_bitsandbytes(s) && s.data.zero >= 2,
            "under FSDP with a packed base or an optimizer of bitsandbytes is not modelled yet");
  refuse_if(models::contexts_keep_inputs(s),
            "with --quantize int8 is not modelled yet, nor with bitsandbytes whose 4-bit products "
            "keep their inputs");
  const models::Decoder& d = *model.decoder;
  refuse_if(d.embedding_norm || d.embedding_dropout > 0 || d.embeds_positions() ||
                d.token_types > 0 || d.embedding_width > 0 || d.head_transform || d.masked_loss,
            "is modelled of decoders whose layers read the embeddings as they are");
  refuse_if(model.model_type == "gpt_neox",
            "of GPT-NeoX is not modelled yet: TRL does not find its head, and offloads the logits' "
            "operands");
  refuse_saved_by_node(model, s, batch);
}

void assume_offloaded(const models::Strategy& s, std::vector<reports::Assumption>& out) {
  if (!s.offload.activations || s.kernels == models::Kernels::unsloth) return;
  out.push_back({"what the layers and the loss saved",
                 "\"on the host until the backward reads it\"", "derived",
                 "trl 1.16, models/activation_offloading.py (activation_offloading=True); "
                 "tests/golden/dry_runs_activations.json"});
  if (models::runs_bitsandbytes(s))
    out.push_back({"the allocator's cache", "\"emptied before each micro-batch\"", "derived",
                   "trl 1.16, models/activation_offloading.py, where bitsandbytes is imported"});
  if (!s.lora || models::runs_bitsandbytes(s)) return;
  out.push_back({"bitsandbytes", "\"not installed\"", "assumed",
                 "PEFT imports it where it is, and then TRL empties the allocator's cache before "
                 "each micro-batch: what is allocated stays as it is, what is reserved does not"});
}

}  // namespace plimsoll::planner::pytorch
