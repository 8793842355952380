// What stack pytorch does not plan of a model, whatever code wraps it.
#include <algorithm>
#include <string>

#include "models/storages.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/regime.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

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
  check(!stream_widens(question.strategy, d.norm), ErrorKind::unsupported,
        "--quantize without --kbit-prep yes: under autocast the residual stream of a model with "
        "LayerNorm is fp32 from its first packed MLP on, which is not modelled yet");
  refuse_classifier(question);
  refuse_attention(question);
}

}  // namespace plimsoll::planner::pytorch
