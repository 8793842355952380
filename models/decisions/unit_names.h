// Names of what belongs to a unit of parameters (models/decisions/sharding.h), and of the tensors
// and ops outside the layers.
#pragma once

#include "models/decisions/names.h"
#include "models/optimizer_rule.h"

namespace plimsoll::models::decisions {

// What a unit allocates and does.
struct UnitNames {
  const char *parameters, *masters;
  std::array<const char*, kOptimizerStates.size()> states;  // of the optimizer, by OptimizerState
  // The scales of states in 8 bits, by OptimizerState; named as bitsandbytes names them.
  std::array<const char*, kOptimizerStates.size()> state_scales;
  const char* projector;  // bases of what is stepped in a subspace (low_rank.h)
  const char* gathered;  // stage 3: the whole parameters
  const char *gather, *free;  // ops; `gather` is named after the unit whose use begins
  const char* gradients;  // whole
  const char* gradients_new;  // of one micro-batch, where they are added to `gradients`
  const char* gradients_shard;  // this rank's piece
  const char* gradients_compressed;  // what ranks exchange of them (--reduce-dtype)
  const char *reduce, *reduced;  // ops: begin, and take the result of the unit before
  const char *step, *gather_stepped;  // ops of the optimizer
  const char *host_gradients, *host_parameters;  // in the host's memory (offload.h)

  const char* state(OptimizerState which) const { return states[static_cast<std::size_t>(which)]; }
  const char* scales(OptimizerState which) const {
    return state_scales[static_cast<std::size_t>(which)];
  }
};
template <Text U>
inline constexpr UnitNames unit_names{
    Joined<U, "parameters">::chars,
    Joined<U, "masters">::chars,
    {Joined<U, "exp_avg">::chars, Joined<U, "exp_avg_sq">::chars,
     Joined<U, "momentum_buffer">::chars},
    {Joined<U, "exp_avg.absmax">::chars, Joined<U, "exp_avg_sq.absmax">::chars,
     Joined<U, "momentum_buffer.absmax">::chars},
    Joined<U, "projector">::chars,
    Joined<U, "parameters.gathered">::chars,
    Joined<U, "gather">::chars,
    Joined<U, "free">::chars,
    Joined<U, "gradients">::chars,
    Joined<U, "gradients.new">::chars,
    Joined<U, "gradients.shard">::chars,
    Joined<U, "gradients.compressed">::chars,
    Joined<U, "reduce">::chars,
    Joined<U, "reduced">::chars,
    Joined<U, "optimizer.step">::chars,
    Joined<U, "optimizer.gather">::chars,
    Joined<U, "gradients.host">::chars,
    Joined<U, "parameters.host">::chars,
};
inline constexpr const UnitNames& kEmbeddingUnit = unit_names<"embedding.">;
inline constexpr const UnitNames& kLayerUnit = unit_names<"">;
inline constexpr const UnitNames& kTailUnit = unit_names<"tail.">;

// Outside layers.
inline constexpr const char* kFirstGather = "gather";  // op: what the first use of a step reads
inline constexpr const char* kLastReduced = "reduced";  // op: the last reduction of a backward
inline constexpr const char* kEmbedding = "embeddings";  // op, both ways
inline constexpr const char* kEmbeddingOut = "embeddings.out";
inline constexpr const NormNames& kFinalNorm = norm_names<"norm">;
inline constexpr const LinearNames& kHead = linear_names<"lm_head">;  // .out: the logits
inline constexpr const char *kLoss = "loss", *kLossSum = "loss.sum";  // ops
inline constexpr const char* kLossRows = "loss.rows";  // of each token
inline constexpr const char* kLossLogsumexp = "loss.logsumexp";
inline constexpr const char* kLossChunks = "loss.chunks";  // what the loop's ops stand behind
inline constexpr const char* kGradientNorm = "optimizer.grad_norm";  // op
inline constexpr const char *kIds = "batch.ids", *kTargets = "batch.targets";
// cos and sin of [length, rotated / 2]; of layers with the window, where these have their own
inline constexpr const char *kRotaryTable = "rotary.table",
                            *kLocalRotaryTable = "rotary.local_table";
inline constexpr const char* kFloat8Scales = "float8.scales";  // models/decisions/float8.h
inline constexpr const char* kWorkspace = "workspace";
inline constexpr const char* kScalarBlock = "scalars";
inline constexpr const char* kStaging = "communicator.staging";

}  // namespace plimsoll::models::decisions
