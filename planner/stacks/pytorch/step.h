// The training step of one rank while it is written: what is asked, and what its writers share.
#pragma once

#include <algorithm>
#include <vector>

#include "planner/host_memory.h"
#include "planner/stack_step.h"
#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/ends/front_saved.h"
#include "planner/stacks/pytorch/unit.h"

namespace plimsoll::planner::pytorch {

class Offloading;
class Wrapper;

// torchtune's CEWithChunkedOutputLoss, num_output_chunks.
inline constexpr std::int64_t kHeadParts = 8;
// LitGPT's lm_head_chunk_size, and chunked_cross_entropy's chunk_size.
inline constexpr std::int64_t kLossRows = 128;

struct Step {
  Step(models::StepProgram& program, const ModelParts& parts, const models::Strategy& strategy,
       const models::Batch& batch, const Rules& rules);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  bool compiles() const { return strategy.compile == models::Compile::block; }  // each layer
  // By checkpoints around layers; inside a compiled one they are the graph's matter.
  bool recomputes() const {
    return !compiles() && models::decisions::recomputes_layers(strategy.recompute.kind);
  }
  bool recomputes(const Run& run) const { return recomputes() && run.recomputed; }
  // What the forward of a run's layer saves: of a checkpoint, what outlives it.
  const LayerSaved& saved_by_forward(const Run& run, std::size_t j) const {
    return recomputes(run) ? run.kept[j] : run.saved[j];
  }
  bool reentrant() const;  // checkpoints are
  DType stored(const Parameter& p) const;  // in memory
  DType seen(const Parameter& p) const;  // by modules
  DType bias_dtype(const Parameter& p) const;  // of a packed linear
  // Whether these require a gradient: the stream behind the last layer; the sum of the embeddings;
  // what the embedding returned, because PEFT asked for it.
  bool final_grad() const, embedding_grad() const, leaf_input() const;
  // The decoder itself runs the head on parts of the tokens, and the loss takes each.
  bool heads_parts() const { return d.holds_stream && strategy.loss == models::Loss::chunked; }
  // The head's gradient of a tied table is one of a GEMM, not of a cast (autocast), nor made by
  // a loss, nor a sum of several.
  bool head_grad_is_view() const {
    const bool by_loss =
        strategy.loss == models::Loss::fused || strategy.loss == models::Loss::tiled;
    return !regime.casts_weights() && !by_loss && !heads_parts();
  }
  // The stream before layer `layer` of an instance, and its gradient.
  Ref input_of(std::size_t run, std::size_t layer) const;
  Ref input_gradient_of(std::size_t run, std::size_t layer) const;
  // The same as a checkpoint's backward reads it.
  Ref checkpoint_input(std::size_t run, std::size_t at) const {
    if (input_buffer != kNoTensor) return {input_buffer};
    return offloading == nullptr ? input_of(run, at) : Ref{runs[run].loaded[at]};
  }
  // A unit's tensor `step` (-1 or +1) units away from layer `layer` of run `run`.
  Ref unit_tensor(TensorId Unit::*tensor, std::size_t run, std::size_t layer, int step) const;
  // What a run's last layer returned beside the stream goes.
  void drop_returned(OpBuilder& op, std::size_t run, int delta) const;
  // Autocast's cache holds every cast of a weight until the context exits, checkpointed or not;
  // only those of weights that require gradients.
  static void release_casts(OpBuilder exit, const LayerPart& layer, const LayerSaved& saved);
  static void release_casts(OpBuilder exit, const LinearPart& part, const LinearSaved& saved);
  // Whether nodes of autograd have attributes that hold tensors (LayerSaved::attributes).
  bool graph_keeps() const;
  static void release_attributes(OpBuilder op, const LayerSaved& saved);
  Bytes id_buffers() const;  // BertEmbeddings'
  Bytes shared_matrices() const;  // VeRA's
  Bytes frequencies() const;  // of the rotations, all buffers of them
  // Of the residual stream, as this rank has it.
  SymInt stream_tokens() const { return tokens.part(d.sequence_parts); }
  SymBytes stream_bytes() const { return storage(stream_tokens() * d.hidden, regime.residual); }
  std::int64_t scattered() const;  // GPUs that share the batch of this one (nn.DataParallel)
  std::int64_t rank() const { return std::max<std::int64_t>(0, rules.rank); }  // whose step it is
  bool first_micro() const { return micro == 0; }
  bool last_micro() const { return micro + 1 == micros; }

  ProgramBuilder b;
  const ModelParts& parts;
  const models::Decoder& d;
  models::Strategy strategy;
  models::Batch batch;
  Rules rules;
  Tokens tokens, text;  // that the model reads; that the batch holds
  Regime regime;
  SymInt shards = 1;  // ranks that PyTorch splits a parameter over
  BlockWriter layer;
  Wrapper* wrapper = nullptr;
  Offloading* offloading = nullptr;  // of activations, if any
  // Unsloth's offloaded checkpoints (unsloth_inputs.cpp): what their inputs are loaded into, one by
  // one, and the last layer's, which stays on the device.
  TensorId input_buffer = kNoTensor, last_input = kNoTensor;

  std::vector<Run> runs;
  // Parameters outside the layers, gathered at the model's start, the embedding, and the final norm
  // or (`tail_is_head`) the head; without FSDP2 all are in root.
  Unit root, embedding, tail;
  Unit *table_unit = &root, *norm_unit = &root, *head_unit = &root;
  bool tail_is_head = false, loss_prefetches = false;  // the last layer's; else at the logits
  Unit* unit = nullptr;  // whose gradients are being written
  // Which micro-batch is written, of how many distinct ones; how often it is run.
  std::int64_t micro = 0, micros = 1;
  SymInt times = 1, accumulated = 1;

  FrontSaved front;
  TensorId hidden = kNoTensor, d_embedded = kNoTensor;
  ByWindow cos{}, sin{}, masks{};
  TapeSaved final_norm;
  LinearSaved head, head_transform, project_in;
  EndSaved end;
  std::vector<HeadPart> head_parts;
  std::vector<LossPiece> loss_pieces;

  reports::States states;  // this rank's, after backward
  HostMemory host;  // of what is offloaded
};

// Who writes a part of it. What is asked is at hand; what is written is in `s_`.
class StepPart {
 protected:
  explicit StepPart(Step& step)
      : s_(step),
        b_(step.b),
        layer_(step.layer),
        parts_(step.parts),
        d_(step.d),
        strategy_(step.strategy),
        rules_(step.rules),
        tokens_(step.tokens),
        regime_(step.regime) {}

  Step& s_;
  ProgramBuilder& b_;
  BlockWriter& layer_;
  const ModelParts& parts_;
  const models::Decoder& d_;
  const models::Strategy& strategy_;
  const Rules& rules_;
  const Tokens& tokens_;
  const Regime& regime_;
};

}  // namespace plimsoll::planner::pytorch
