#include <algorithm>
#include <string>
#include <string_view>

#include "models/bitsandbytes.h"
#include "models/lora.h"
#include "models/model_spec.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::pytorch {

// TRL patches a decoder whose head reads the last norm's result (add_fused_lm_head); traced on one
// GPU and DDP, of rows that are full.
void refuse_tiled(const Question& question) {
  const models::Strategy& s = question.strategy;
  if (s.loss != models::Loss::tiled) return;
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported, [&] { return std::string("--loss tiled ") + what; });
  };
  const models::Decoder& d = *question.model->decoder;
  refuse_if(!models::is_transformers(s.code) || s.kernels != models::Kernels::eager,
            "is modelled of Transformers' own models without --kernels");
  refuse_if(s.transformers < models::Release{5, 0, 0} || s.torch < models::Release{2, 8, 0},
            "is modelled with Transformers 5.0 and PyTorch 2.8, and later");
  // A tied table is in the unit of the embedding, the norm and the head; adapters differ otherwise.
  refuse_if(
      stack_info(s.stack).has_fsdp && s.data.zero >= 2 && (is_fsdp1(s) || d.tied_head || s.lora),
      "under FSDP is modelled with --fsdp-version 2, a head that is not tied and no adapters "
      "(--loss full plans the model's own loss)");
  refuse_if(s.data.kind == models::DataParallelKind::dp, "is not modelled with --data-parallel dp");
  refuse_if(s.compile != models::Compile::no || s.optimizer_in_backward,
            "is not modelled with --compile or --optimizer-in-backward");
  refuse_if(s.rows != models::Rows::full,
            "with rows that hold padding or several samples is not modelled yet");
  refuse_if(
      d.labels > 0 || d.bidirectional || d.masked_loss || d.head_transform || d.embedding_width > 0,
      "is modelled of decoders whose head reads the last norm's result");
  const auto is_bias = [](const models::ParameterRow& row) {
    return row.module == models::ModuleKind::head && std::string_view(row.name).ends_with(".bias");
  };
  refuse_if(std::ranges::any_of(question.model->parameters, is_bias),
            "is not modelled of a head with a bias yet");
  refuse_if(s.quantize && !models::packs_with_bitsandbytes(s),
            "over a base that bitsandbytes did not pack is not modelled yet");
  refuse_if(s.lora && models::further_option(*s.lora) != nullptr,
            "is modelled with adapters that are LoRA's A and B alone");
  refuse_if(s.precision == models::Precision::fp8_mixed, "is not modelled in fp8");
}

}  // namespace plimsoll::planner::pytorch
