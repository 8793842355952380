// What stack pytorch does not plan of a model, whatever code wraps it.
#include <algorithm>
#include <array>
#include <string>

#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/stack_versions.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/regime.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

namespace {
// The names of modules that TRL casts back (trl 0.24, trainer/utils.py,
// peft_module_casting_to_bf16).
void refuse_casting_of(const Question& question) {
  if (!models::casts_behind_kbit(question.strategy)) return;
  const auto is_end = [](const models::ParameterRow& row) {
    return row.module == models::ModuleKind::embedding || row.module == models::ModuleKind::head;
  };
  const auto is_cast = [](const models::ParameterRow& row) {
    const std::string_view name = row.name;
    return std::ranges::any_of(std::array{"lm_head", "embed_tokens", "wte", "wpe"},
                               [&](const char* part) { return name.find(part) != name.npos; });
  };
  const auto& rows = question.model->parameters;
  const auto casts = [&](const models::ParameterRow& row) { return is_end(row) && is_cast(row); };
  check(std::ranges::any_of(rows, casts), ErrorKind::bad_input, [&] {
    return "--kbit-casting yes: TRL casts modules called embed_tokens, lm_head, wte and wpe, of "
           "which " +
           question.model->model_type + " has none: --kbit-casting no plans what it does";
  });
  // Transformers 5's routers and experts are no linears.
  const bool stacked = question.strategy.transformers >= models::kExpertsAreStacked;
  const auto stays = [&](const models::ParameterRow& row) {
    return (is_end(row) && !is_cast(row)) || (stacked && !row.stacked.empty());
  };
  check(std::ranges::none_of(rows, stays), ErrorKind::unsupported, [&] {
    return "--kbit-casting yes of " + question.model->model_type +
           " is not modelled yet: beside modules that TRL casts (embed_tokens, lm_head, wte, wpe) "
           "it has others, which stay in fp32";
  });
}

// Where the stream begins in 16 bits and its first layer makes it fp32 (set_stream).
void refuse_widening(const Question& question) {
  const models::Strategy& s = question.strategy;
  const models::Decoder& d = *question.model->decoder;
  if (!is_mixed(s.precision) || s.stack != models::Stack::pytorch) return;
  Regime regime = regime_of(s, s.data.zero >= 2, is_fsdp1(s));
  set_stream(regime, s, d);
  const bool packed_alone = s.quantize && !models::packs_with_bitsandbytes(s) &&
                            norm_dtype(d.norm, regime.embedded, regime) != regime.embedded;
  if (regime.embedded == regime.residual && !packed_alone) return;
  const auto refuse_if = [](bool asked, const std::string& with) {
    check(!asked, ErrorKind::unsupported, [&] {
      return with +
             " is not modelled where autocast makes the residual stream fp32 in the first layer: "
             "LayerNorm over a packed base without --kbit-prep yes, --kbit-casting yes, and "
             "weights in the other 16 bits than autocast's";
    });
  };
  refuse_if(packed_alone,
            s.quantize ? "--quantize " + std::string(s.quantize->storage->name) : std::string());
  refuse_if(s.data.zero >= 2, "--fsdp-version 1");
  refuse_if(s.offload.activations, "--offload activations");
  refuse_if(s.recompute.kind == models::RecomputeKind::ops, "--recompute ops:");
  refuse_if(models::decisions::layers_per_checkpoint(s.recompute, d.layers) > 1,
            "--recompute with checkpoints of several layers");
  refuse_if(s.kernels == models::Kernels::unsloth, "--kernels unsloth");
  refuse_if(s.compile != models::Compile::no, "--compile");
}

}  // namespace

void refuse_of_model(const Question& question) {
  const bool own = question.model->decoder->eager_attention;
  const bool sharded = question.strategy.stack == models::Stack::deepspeed
                           ? question.strategy.data.zero == 3
                           : question.strategy.data.zero >= 2;
  const models::Decoder& d = *question.model->decoder;
  check(!sharded || (!d.head_transform && !d.pooled && d.embedding_width == 0),
        ErrorKind::unsupported, [&] {
          return "--zero " + std::to_string(question.strategy.data.zero) +
                 ": sharded parameters of " + question.model->model_type +
                 " are not modelled yet (the head's is not its last GEMM alone)";
        });
  const bool selective = question.strategy.recompute.kind == models::RecomputeKind::selective;
  const bool alibi = d.position == models::PositionKind::alibi;
  check(!own || !alibi || !selective, ErrorKind::bad_input, [&] {
    return "--recompute selective goes around Transformers' attention interface, which " +
           question.model->model_type + " does not use";
  });
  check(!d.masks_without_positions || question.strategy.rows == models::Rows::full,
        ErrorKind::unsupported, [&] {
          return "rows that hold padding or several samples are not modelled yet for " +
                 question.model->model_type + " (its masks are made without positions)";
        });
  check(!own || !selective, ErrorKind::unsupported, [&] {
    return "--recompute selective of " + question.model->model_type + " is not modelled yet";
  });
  const bool decoder_alone = !d.bidirectional && !d.head_transform && d.embedding_width == 0;
  check(!question.strategy.quantize || (decoder_alone && !alibi), ErrorKind::unsupported, [&] {
    return "--quantize: packed GEMMs of " + question.model->model_type + " are not modelled yet";
  });
  check(!question.strategy.quantize || !question.strategy.quantize->storage->grouped ||
            models::is_rms(d.norm),
        ErrorKind::unsupported, [&] {
          return "--quantize " + std::string(question.strategy.quantize->storage->name) + " of " +
                 question.model->model_type + " is not modelled yet (models with RMSNorm are)";
        });
  const bool awq = question.strategy.quantize &&
                   question.strategy.quantize->storage->gemm == models::PackedGemm::awq;
  const auto stacked = [](const models::ParameterRow& row) { return !row.stacked.empty(); };
  check(!awq || std::ranges::none_of(question.model->parameters, stacked), ErrorKind::unsupported,
        [&] {
          return "--quantize awq of " + question.model->model_type +
                 ", a mixture of experts, is not modelled yet";
        });
  refuse_casting_of(question);
  refuse_widening(question);
  refuse_classifier(question);
  refuse_tiled(question);
  refuse_attention(question);
}

}  // namespace plimsoll::planner::pytorch
